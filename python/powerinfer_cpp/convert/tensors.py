"""Tensors of the file to be written, with functions that return their rows on demand."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from ..core.errors import ModelFormatError, UnsupportedModelError
from .weight import Weight, widen


@dataclass(frozen=True)
class Output:
    """A tensor of the file to be written.

    shape: numpy's order, slowest dimension first. rows(a, b): float32 rows a to b, counted over
    all dimensions but the last, [b - a, shape[-1]]; 1-D tensors count as a single row. predictor:
    has its own format option. exact: stays F32 whatever the file's format. packed: the same rows as
    bytes (uint8, 1-D) of the format `own_format`, which they keep.
    """

    name: str
    shape: tuple[int, ...]
    rows: Callable[[int, int], np.ndarray]
    predictor: bool = False
    exact: bool = False
    own_format: str = ""
    packed: Callable[[int, int], np.ndarray] | None = None

    @property
    def row(self) -> int:
        """Elements of a row; a format's block must divide this."""
        return self.shape[-1]

    @property
    def n_rows(self) -> int:
        return math.prod(self.shape[:-1])


class Weights:
    """Tensors of a checkpoint; each is used once.

    of_adapter: they are what an adapter adds to a checkpoint's.
    """

    of_adapter = False

    def __init__(self, weights: dict[str, Weight]):
        self._left = dict(weights)

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str, *shape: int) -> Weight:
        """The tensor with this name and shape. Raises ModelFormatError if there is none."""
        weight = self._left.pop(name, None)
        if weight is None:
            raise ModelFormatError(f"the checkpoint lacks tensor {name} {list(shape)}")
        return check_shape(weight, shape)

    def peek(self, name: str) -> Weight | None:
        """The tensor with this name, which somebody else takes; None: there is none."""
        return self._left.get(name)

    def take_parts(self, names: Sequence[str], n_rows: int, *row: int) -> list[Weight]:
        """Tensors that have n_rows rows of this shape together, however these are divided. Raises
        ModelFormatError for other numbers of rows, and if one is missing."""
        parts = [self.take(name, self.rows(name), *row) for name in names]
        if (n := sum(part.shape[0] for part in parts)) != n_rows:
            raise ModelFormatError(
                f"tensors {', '.join(names)} have {n} rows together, expected {n_rows}"
            )
        return parts

    def joined(self, name: str, parts: Sequence[Weight]) -> Output:
        """Matrices with their rows one behind another."""
        return joined(name, [from_weight(name, part) for part in parts])

    def take_bytes(self, name: str, *shape: int) -> Weight:
        """The same for a tensor of bytes (U8), which are no weights by themselves."""
        weight = self._left.get(name)
        if weight is not None and weight.shape == shape and weight.codes == "U8":
            return self._left.pop(name)
        if weight is not None and not weight.unsupported:
            raise ModelFormatError(f"tensor {name} does not hold bytes")
        return self.take(name, *shape)  # which says why

    def take_integers(self, name: str, n: int) -> list[int]:
        """The values of a vector of integers (I64), which are no weights."""
        weight = self._left.get(name)
        if weight is not None and weight.shape == (n,) and weight.codes == "I64":
            return [int(value) for value in self._left.pop(name).stored()]
        if weight is not None and weight.shape == (n,):
            raise ModelFormatError(f"tensor {name} does not hold integers of 64 bits")
        if weight is None:
            raise ModelFormatError(f"the checkpoint lacks tensor {name} [{n}]")
        raise ModelFormatError(f"tensor {name} has shape {list(weight.shape)}, expected [{n}]")

    def count(self, prefix: str) -> int:
        """Tensors whose names begin so, and are not taken yet."""
        return sum(name.startswith(prefix) for name in self._left)

    def rows(self, name: str) -> int:
        """Rows of a tensor that is not taken yet; 0 if there is none."""
        weight = self._left.get(name)
        return weight.shape[0] if weight is not None and weight.shape else 0

    def drop(self, name: str) -> None:
        """Ignores a tensor that may exist and is not needed."""
        self._left.pop(name, None)

    def rest(self) -> list[str]:
        """Names of the tensors that are left over."""
        return sorted(self._left)


def check_shape(weight: Weight, shape: tuple[int, ...]) -> Weight:
    """Returns the weight. Raises ModelFormatError if it has another shape, UnsupportedModelError if
    its elements cannot be read."""
    check_type(weight)
    if weight.shape != shape:
        raise ModelFormatError(
            f"tensor {weight.name} has shape {list(weight.shape)}, expected {list(shape)}"
        )
    return weight


def check_type(weight: Weight) -> Weight:
    """Returns the weight. Raises UnsupportedModelError if its elements cannot be read."""
    if weight.unsupported:
        raise UnsupportedModelError(f"tensor {weight.name} has {weight.unsupported}")
    return weight


def from_weight(name: str, weight: Weight, predictor: bool = False, exact: bool = False) -> Output:
    """A weight, unchanged."""
    row = weight.shape[-1] if weight.shape else 1

    def rows(a: int, b: int) -> np.ndarray:
        return widen(weight.stored().reshape(-1, row)[a:b], weight.bf16)

    return Output(name, weight.shape, rows, predictor, exact)


def plus_one(name: str, weight: Weight) -> Output:
    """A vector with 1 added, for norms that do so."""
    return Output(name, weight.shape, lambda _a, _b: 1 + widen(weight.stored(), weight.bf16)[None])


def scaled(output: Output, factor: float | np.ndarray) -> Output:
    """The same values times a factor, or times one for each row."""

    def rows(a: int, b: int) -> np.ndarray:
        each = factor[a:b, None] if isinstance(factor, np.ndarray) else np.float32(factor)
        return output.rows(a, b) * each

    return replace(output, rows=rows)


def from_values(name: str, values: np.ndarray) -> Output:
    """A vector that the converter computed."""
    return Output(name, values.shape, lambda _a, _b: values.astype(np.float32)[None])


def row_order(name: str, weight: Weight, order: np.ndarray | None) -> Output:
    """A weight or bias whose row r is row order[r] of the checkpoint; order may leave rows out."""
    if order is None:
        return from_weight(name, weight)

    def rows(a: int, b: int) -> np.ndarray:
        stored = weight.stored()
        part = stored[order][None] if stored.ndim == 1 else stored[order[a:b]]
        return widen(part, weight.bf16)

    return Output(name, (len(order), *weight.shape[1:]), rows)


def column_order(name: str, weight: Weight, order: np.ndarray) -> Output:
    """A matrix whose column c is column order[c] of the checkpoint."""
    return Output(
        name, weight.shape, lambda a, b: widen(weight.stored()[a:b][:, order], weight.bf16)
    )


def computed(name: str, weight: Weight, function: Callable[[np.ndarray], np.ndarray]) -> Output:
    """A vector, each value of which is a function of the checkpoint's, given in float64."""

    def rows(_a: int, _b: int) -> np.ndarray:
        stored = widen(weight.stored(), weight.bf16).astype(np.float64)
        return function(stored).astype(np.float32)[None]

    return Output(name, weight.shape, rows)


def transposed(name: str, weight: Weight) -> Output:
    """A matrix whose rows are the checkpoint's columns."""

    def rows(a: int, b: int) -> np.ndarray:
        return widen(np.copy(weight.stored()[:, a:b].T, order="C"), weight.bf16)

    return Output(name, weight.shape[::-1], rows)


def some_rows(name: str, output: Output, first: int, n: int) -> Output:
    """n rows of a matrix, from the first one on."""
    return replace(
        output,
        name=name,
        shape=(n, output.row),
        rows=lambda a, b: output.rows(a + first, b + first),
        own_format="",
        packed=None,
    )


def joined(name: str, parts: Sequence[Output]) -> Output:
    """Matrices with their rows one behind another."""
    ends = np.cumsum([part.n_rows for part in parts])

    def rows(a: int, b: int) -> np.ndarray:
        found = []
        for part, end in zip(parts, ends, strict=True):
            first = int(end) - part.n_rows
            if a < end and first < b:
                found.append(part.rows(max(a - first, 0), min(b - first, part.n_rows)))
        return found[0] if len(found) == 1 else np.concatenate(found)

    return Output(name, (int(ends[-1]), parts[0].row), rows)


def stacked(name: str, parts: Sequence[Output]) -> Output:
    """Stacks matrices of equal shape, such as the experts of a layer."""
    return replace(joined(name, parts), shape=(len(parts), *parts[0].shape))


def joined_rows(name: str, parts: Sequence[Weight], row: int) -> Output:
    """A matrix with rows of `row` values, which the checkpoint has in parts, in their order."""
    ends = list(accumulate(part.shape[0] for part in parts))

    def rows(a: int, b: int) -> np.ndarray:
        found = [np.empty((0, row), np.float32)]
        for part, end in zip(parts, ends, strict=True):
            first = end - part.shape[0]
            if first < b and a < end:
                stored = part.stored()[max(a - first, 0) : b - first]
                found.append(widen(stored, part.bf16))
        return np.concatenate(found)

    return Output(name, (ends[-1] if ends else 0, row), rows)
