"""Gate and up in one matrix, as dense GGUFs of some architectures have them.

There `ffn_up` has twice the rows, gates first. Neuron-aware files have `ffn_gate` and `ffn_up`.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from ..errors import UnsupportedModelError
from .stored import Stored

ARCHITECTURES = ("phi3",)

_PART = re.compile(r"(blk\.\d+\.ffn_)(gate|up)\.weight")


def parted(tensors: Iterable[Stored], n_ff: int) -> Iterator[Stored]:
    """The tensors, with fused ones as two. n_ff: neurons of a layer."""
    tensors = list(tensors)
    names = {t.name for t in tensors}
    for tensor in tensors:
        match = _PART.fullmatch(tensor.name)
        alone = match and match[2] == "up" and f"{match[1]}gate.weight" not in names
        if not (match and alone and tensor.shape[:-1] == (2 * n_ff,)):
            yield tensor
            continue
        for part, first in (("gate", 0), ("up", n_ff)):
            yield replace(
                tensor,
                name=f"{match[1]}{part}.weight",
                shape=(n_ff, tensor.row),
                rows=lambda a, b, t=tensor, first=first: t.rows(first + a, first + b),
            )


def fused(tensors: Iterable[Stored]) -> Iterator[Stored]:
    """The tensors, with gates and ups of a layer as one.

    Raises UnsupportedModelError if their formats differ.
    """
    tensors = list(tensors)
    ups = {t.name: t for t in tensors if _PART.fullmatch(t.name)}
    gates = {name for name in ups if name.endswith("gate.weight")}
    for tensor in tensors:
        if tensor.name in gates:
            continue
        match = _PART.fullmatch(tensor.name)
        gate = ups.get(f"{match[1]}gate.weight") if match else None
        yield tensor if gate is None else _fused(gate, tensor)


def _fused(gate: Stored, up: Stored) -> Stored:
    if gate.format != up.format:
        raise UnsupportedModelError(
            f"{gate.name} is {gate.format.name} and {up.name} is {up.format.name}, but a dense "
            "GGUF has them in one tensor: an outtype gives both the same format"
        )
    n = gate.n_rows

    def rows(a: int, b: int) -> np.ndarray:
        parts = [gate.rows(a, min(b, n))] if a < n else []
        if b > n:
            parts.append(up.rows(max(a - n, 0), b - n))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    return replace(up, shape=(n + up.n_rows, up.row), rows=rows)
