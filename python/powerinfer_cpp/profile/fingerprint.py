"""A cheap hash of a model: its header and the beginning of every tensor."""

import hashlib
from collections.abc import Callable

from ..core.gguf import Gguf

_BYTES = 4096  # hashed per tensor


def fingerprint(gguf: Gguf, without: Callable[[str], bool] = lambda _name: False) -> str:
    """Hexadecimal digest of names, shapes, formats and first bytes of tensors.

    without: selects tensors, by name, to leave out. Keys are not part of the digest.
    """
    digest = hashlib.sha256()
    for tensor in gguf.tensors:
        if without(tensor.name):
            continue
        digest.update(f"{tensor.name} {tensor.shape} {tensor.type}\n".encode("utf-8", "replace"))
        digest.update(gguf.data(tensor)[:_BYTES])
    return digest.hexdigest()
