"""Matrices of feed-forward blocks that GGUFs have together, or apart.

Dense GGUFs of some architectures have gate and up in one matrix: `ffn_up` with twice the rows,
gates first, and for experts `ffn_gate_up_exps`. Old mixtures have a matrix for each expert.
Neuron-aware files have `ffn_gate` and `ffn_up`, for experts one of each with all of them.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from ..core.errors import ModelFormatError, UnsupportedModelError
from .stored import Stored

ARCHITECTURES = ("phi3", "glm4")

_PART = re.compile(r"(blk\.(\d+)\.ffn_)(gate|up)\.weight")
_EXPERTS = re.compile(r"(blk\.\d+\.ffn_)gate_up_exps\.weight")
_EXPERT = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down))\.(\d+)\.weight")


def parted(
    tensors: Iterable[Stored], n_ff_of: Callable[[int], int], n_expert: int | None
) -> Iterator[Stored]:
    """The tensors, with fused ones as two, and those of single experts as one.

    n_ff_of: neurons of a layer without experts. n_expert: experts of a layer; None: layers differ.
    Raises ModelFormatError if a layer has more or fewer matrices of experts, UnsupportedModelError
    if they differ in formats or sizes.
    """
    tensors = list(_stacked(list(tensors), n_expert))
    names = {t.name for t in tensors}
    for tensor in tensors:
        if experts := _EXPERTS.fullmatch(tensor.name):
            yield from _halves(experts[1], tensor)
            continue
        match = _PART.fullmatch(tensor.name)
        alone = match and match[3] == "up" and f"{match[1]}gate.weight" not in names
        n_ff = n_ff_of(int(match[2])) if match and alone else 0
        if not (match and n_ff and tensor.shape[:-1] == (2 * n_ff,)):
            yield tensor
            continue
        for part, first in (("gate", 0), ("up", n_ff)):
            yield replace(
                tensor,
                name=f"{match[1]}{part}.weight",
                shape=(n_ff, tensor.row),
                rows=lambda a, b, t=tensor, first=first: t.rows(first + a, first + b),
            )


def _halves(prefix: str, both: Stored) -> Iterator[Stored]:
    """Gates and ups of experts: of each expert the first and the second half of the rows."""
    n_expert, n_rows, cols = both.shape
    n = n_rows // 2
    for part, first in (("gate", 0), ("up", n)):

        def read(expert: int, begin: int, end: int, first: int = first) -> np.ndarray:
            at = expert * n_rows + first
            return both.rows(at + begin, at + end)

        name = f"{prefix}{part}_exps.weight"
        yield replace(both, name=name, shape=(n_expert, n, cols), rows=_rows_of(n, read))


def _rows_of(n: int, read: Callable[[int, int, int], np.ndarray]):
    """`rows` of a tensor of experts with n rows each: read(expert, begin, end) has those of one."""

    def rows(a: int, b: int) -> np.ndarray:
        found = []
        for expert in range(a // n, -(-b // n)):
            at = expert * n
            found.append(read(expert, max(a - at, 0), min(b - at, n)))
        return np.concatenate(found)

    return rows


def _stacked(tensors: list[Stored], n_expert: int | None) -> Iterator[Stored]:
    """The tensors, with the matrices of a layer's experts as one, where the first of them is."""
    matrices: dict[str, dict[int, Stored]] = {}
    for tensor in tensors:
        if match := _EXPERT.fullmatch(tensor.name):
            matrices.setdefault(match[1], {})[int(match[2])] = tensor
    for tensor in tensors:
        match = _EXPERT.fullmatch(tensor.name)
        found = matrices.pop(match[1], None) if match else None
        if found:
            yield _stack(match[1], found, n_expert)
        elif not match:
            yield tensor


def _stack(prefix: str, experts: dict[int, Stored], n_expert: int | None) -> Stored:
    if n_expert is None:
        n_expert = max(experts) + 1
    if wrong := set(range(n_expert)) ^ set(experts):
        what = "missing" if min(wrong) < n_expert else "one too many"
        raise ModelFormatError(
            f"{prefix}.{min(wrong)}.weight is {what}: a layer of the model has {n_expert} experts"
        )
    first = experts[0]
    for other in experts.values():
        if (other.format, other.shape) != (first.format, first.shape):
            raise UnsupportedModelError(
                f"{first.name} is {first.format.name} {list(first.shape)} and {other.name} is "
                f"{other.format.name} {list(other.shape)}, but neuron rows of experts are in one "
                "tensor"
            )
    return replace(
        first,
        name=f"{prefix}_exps.weight",
        shape=(len(experts), *first.shape),
        rows=_rows_of(first.n_rows, lambda expert, a, b: experts[expert].rows(a, b)),
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
