"""What tells one model from another, cheaply: its header and the beginning of every tensor."""

import hashlib
from collections.abc import Callable

from .gguf import Gguf

_BYTES = 4096  # of each tensor


def fingerprint(gguf: Gguf, without: Callable[[str], bool] = lambda _name: False) -> str:
    """Hexadecimal digest of names, shapes, formats and first bytes of all tensors but some.

    Keys do not count: a file with other statistics of the same weights is the same model as long
    as they are only keys.
    """
    digest = hashlib.sha256()
    for tensor in gguf.tensors:
        if without(tensor.name):
            continue
        digest.update(f"{tensor.name} {tensor.shape} {tensor.type}\n".encode("utf-8", "replace"))
        digest.update(gguf.data(tensor)[:_BYTES])
    return digest.hexdigest()
