"""Weights that a checkpoint stores as codes beside scales.

Their values are computed where somebody reads them, for the rows and columns that are asked for, so
that memory never holds more than these.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.errors import ModelFormatError, UnsupportedModelError
from .weight import Weight, widen

# Columns a to b of some rows: (numbers of the rows, a, b) -> float32 [rows, b - a], a new array.
# Rows are counted over all dimensions but the last.
Values = Callable[[np.ndarray, int, int], np.ndarray]


def _small_floats(exponent_bits: int, mantissa_bits: int) -> np.ndarray:
    """The value of every code: a sign, an exponent and a mantissa, without infinities."""
    codes = np.arange(1 << (1 + exponent_bits + mantissa_bits))
    mantissa = codes & ((1 << mantissa_bits) - 1)
    exponent = codes >> mantissa_bits & ((1 << exponent_bits) - 1)
    sign = np.where(codes >> (exponent_bits + mantissa_bits), -1.0, 1.0)
    lowest = 1 - ((1 << (exponent_bits - 1)) - 1) - mantissa_bits  # of the subnormal ones
    whole = mantissa + np.where(exponent, 1 << mantissa_bits, 0)
    return (sign * np.ldexp(whole.astype(float), lowest + np.maximum(exponent - 1, 0))).astype("f4")


def _e4m3() -> np.ndarray:
    table = _small_floats(4, 3)
    table[[0x7F, 0xFF]] = np.nan
    return table


# The value of each code, by the element types of safetensors, and of four bits.
E2M1 = _small_floats(2, 1)
TABLES = {
    "F8_E4M3": _e4m3(),
    "F8_E5M2": (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32),
    "F8_E8M0": np.append(np.ldexp(np.float32(1), np.arange(255) - 127), np.float32(np.nan)),
}


def numbers(weight: Weight, found: np.ndarray, kind: str = "") -> np.ndarray:
    """float32 of a part of Weight.stored(). kind: the element type, if the file names another."""
    table = TABLES.get(kind or weight.codes)
    return widen(found, weight.bf16) if table is None else table[found]


class Computed:
    """Stands for the array of a weight (Weight.stored), [rows, columns] or a stack of such, and
    takes the indices that are used for these: rows in any order, a range of columns, and the
    matrices of a stack."""

    def __init__(self, shape: tuple[int, ...], values: Values, first: int = 0):
        self.shape, self._values, self._first = shape, values, first

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, index: Any) -> Any:
        rows, *more = index if isinstance(index, tuple) else (index,)
        if self.ndim == 2:
            (columns,) = more or (slice(None),)
            a, b, _ = columns.indices(self.shape[1])
            chosen = self._first + np.arange(self.shape[0])[rows]
            return self._values(chosen, a, max(a, b))
        of_matrix = math.prod(self.shape[1:-1])
        if isinstance(rows, slice):
            a, b, _ = rows.indices(self.shape[0])
            shape, first = (max(b - a, 0), *self.shape[1:]), a
        else:
            shape, first = self.shape[1:], int(rows)
        part = Computed(shape, self._values, self._first + first * of_matrix)
        return part[tuple(more)] if more else part

    def reshape(self, *shape: int) -> Any:
        """Another division of the rows, or an array of all values."""
        if len(shape) > 1 and shape[-1] == self.shape[-1]:
            n_rows = math.prod(self.shape[:-1])
            known = math.prod(n for n in shape[:-1] if n >= 0)
            lead = (n_rows // max(known, 1) if n < 0 else n for n in shape[:-1])
            return Computed((*lead, shape[-1]), self._values, self._first)
        return np.asarray(self).reshape(*shape)

    def astype(self, dtype: Any, copy: bool = True) -> np.ndarray:
        """An array of all values."""
        return np.asarray(self, dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        n_rows, row = math.prod(self.shape[:-1]), self.shape[-1]
        found = self._values(self._first + np.arange(n_rows), 0, row).reshape(self.shape)
        return found if dtype is None else found.astype(dtype)


@dataclass(frozen=True)
class Grid:
    """Numbers that the blocks of a matrix share, such as scales.

    read(rows): float32 [rows, columns] of the grid. height, width: of a block. n_rows, per: rows of
    a matrix and of its grid, for stacks of these. order(): the column of the grid for each column
    of the matrix, where these do not follow each other.
    """

    read: Callable[[np.ndarray], np.ndarray]
    n_rows: int
    per: int
    height: int
    width: int
    order: Callable[[], np.ndarray] | None = None

    def at(self, rows: np.ndarray, a: int, b: int) -> np.ndarray:
        """For columns a to b of the matrix's rows: [rows, b - a], or [rows, 1] if all are alike."""
        found = self.read(rows // self.n_rows * self.per + rows % self.n_rows // self.height)
        if found.shape[1] == 1:
            return found
        if self.order is not None:
            return found[:, self.order()[a:b]]
        first = a // self.width
        wide = np.repeat(found[:, first : -(-b // self.width)], self.width, axis=1)
        return wide[:, a - first * self.width : b - first * self.width]


def coded(
    name: str,
    shape: tuple[int, ...],
    read: Values,
    scales: list[Grid],
    zeros: Grid | None = None,
    biases: Grid | None = None,
) -> Weight:
    """The weight (read - zeros) * scales + biases."""

    def values(rows: np.ndarray, a: int, b: int) -> np.ndarray:
        found = read(rows, a, b)
        if zeros is not None:
            found -= zeros.at(rows, a, b)
        for scale in scales:
            found *= scale.at(rows, a, b)
        if biases is not None:
            found += biases.at(rows, a, b)
        return found

    return Weight(name, shape, False, lambda: Computed(shape, values))


def elements(weight: Weight) -> Values:
    """Codes that are elements of their own."""

    def read(rows: np.ndarray, a: int, b: int) -> np.ndarray:
        found = weight.stored().reshape(-1, weight.shape[-1])[rows, a:b]
        return numbers(weight, found)

    return read


def bit_fields(weight: Weight, bits: int, size: int, table: np.ndarray | None = None) -> Values:
    """Codes of `bits` bits, the first ones lowest, in words of `size` bytes; what is left of a word
    is empty. table: the value of each code; None: its number."""
    per_word, mask = size * 8 // bits, (1 << bits) - 1

    def read(rows: np.ndarray, a: int, b: int) -> np.ndarray:
        stored = np.ascontiguousarray(weight.stored().reshape(-1, weight.shape[-1])[rows])
        first, last = a // per_word, -(-b // per_word)
        data = stored.view(np.uint8)[:, first * size : last * size]
        data = data.reshape(len(rows), last - first, size)
        words = np.zeros(data.shape[:2], np.uint64)
        for i in range(size):
            words |= data[..., i].astype(np.uint64) << np.uint64(8 * i)
        codes = np.empty((*words.shape, per_word), np.uint8)
        for i in range(per_word):
            codes[..., i] = words >> np.uint64(bits * i) & np.uint64(mask)
        found = codes.reshape(len(rows), -1)[:, a - first * per_word : b - first * per_word]
        return found.astype(np.float32) if table is None else table[found]

    return read


def grid_of(
    scale: Weight,
    shape: tuple[int, ...],
    blocks: Sequence[tuple[int, int]] = (),
    order: Callable[[], np.ndarray] | None = None,
    kind: str = "",
) -> Grid:
    """A tensor as the scales of a weight: one, one for each row, for groups of columns, or for one
    of these kinds of blocks (rows, columns), of which the last ones may be cut.

    order: as in Grid. kind: the element type of scales that are bytes; "": exponents. Raises
    ModelFormatError, which names the tensor, if it does not fit the shape.
    """
    *stack, n_rows, row = shape
    kind = kind or ("F8_E8M0" if scale.codes == "U8" else "")
    if scale.unsupported and scale.codes not in (*TABLES, "I8") and not kind:
        raise UnsupportedModelError(f"tensor {scale.name} has {scale.unsupported}")
    have, n_matrices = scale.shape, math.prod(stack)
    if math.prod(have) == 1:
        n_rows, n_matrices, have = n_rows * n_matrices, 1, (1, 1)
    elif have == (n_matrices,) and stack:
        have = (*stack, 1, 1)
    elif have == (*stack, n_rows):
        have = (*have, 1)
    if len(have) < 2 or math.prod(have[:-2]) != n_matrices or not row or not n_rows:
        raise _unlike(scale, shape)
    per, columns = have[-2:]
    fitting = [(h, w) for h, w in blocks if (-(-n_rows // h), -(-row // w)) == (per, columns)]
    if not fitting and per in (1, n_rows) and columns and row % columns == 0:
        fitting = [(n_rows // per, row // columns)]
    if not fitting:
        raise _unlike(scale, shape)

    def read(rows: np.ndarray) -> np.ndarray:
        return numbers(scale, scale.stored().reshape(-1, columns)[rows], kind)

    return Grid(read, n_rows, per, *fitting[0], order)


def _unlike(scale: Weight, shape: tuple[int, ...]) -> ModelFormatError:
    return ModelFormatError(
        f"tensor {scale.name} has shape {list(scale.shape)}, which are no scales of a weight "
        f"{list(shape)}"
    )
