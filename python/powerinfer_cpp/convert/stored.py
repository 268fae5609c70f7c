"""Tensors as GGUF files store them: a format, and rows of bytes that are read on demand.

To rewrite a file, its tensors are read as `Stored`; a matrix that changes its format or is
transposed is decoded to an `Output` and encoded to `Stored` again.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from .formats import Format, decode, encode, format_by_name
from .tensors import Output

SLAB = 1 << 24  # elements of a slab: 64 MB as float32
# Replacements for formats whose blocks of 256 do not divide a row, as in llama.cpp.
_NARROWER = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
_NARROWER |= {"IQ4_XS": "IQ4_NL", "TQ1_0": "Q4_0", "TQ2_0": "Q4_0"}


@dataclass(frozen=True)
class Stored:
    """A tensor of a file.

    shape: numpy's order, slowest dimension first. rows(a, b): bytes (uint8, 1-D) of rows a to b,
    counted over all dimensions but the last; 1-D tensors count as a single row.
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    rows: Callable[[int, int], np.ndarray]

    @property
    def row(self) -> int:
        """Elements of a row."""
        return self.shape[-1]

    @property
    def n_rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        return self.format.n_bytes(self.n_elements)

    def slabs(self) -> Iterator[np.ndarray]:
        """All bytes, a slab of rows at a time."""
        step = max(1, SLAB // max(1, self.row))
        for a in range(0, self.n_rows, step):
            yield self.rows(a, min(a + step, self.n_rows))


def encoded(output: Output, fmt: Format, importance: np.ndarray | None = None) -> Stored:
    """An Output in a format whose block divides its rows.

    importance: of the columns, [n_mat, row], for as many matrices of the same height. Reading its
    rows raises ValueError for values that are not finite or do not fit the format.
    """
    if output.packed is not None and output.own_format == fmt.name:
        return Stored(output.name, output.shape, fmt, output.packed)

    def by_matrix(values: np.ndarray, a: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        height = math.prod(output.shape[:-1]) // len(importance)
        while len(values):
            n = height - a % height
            yield values[:n], importance[a // height]
            values, a = values[n:], a + n

    def rows(a: int, b: int) -> np.ndarray:
        values = output.rows(a, b)
        if not np.isfinite(values).all():
            raise ValueError(f"tensor {output.name} holds values that are not finite")
        try:
            if importance is None:
                return encode(fmt, values)
            return np.concatenate([encode(fmt, v, w) for v, w in by_matrix(values, a)])
        except ValueError as error:
            raise ValueError(
                f"tensor {output.name}: {error} (F32 and BF16 have no limit)"
            ) from None

    return Stored(output.name, output.shape, fmt, rows)


def decoded(stored: Stored) -> Output:
    """The values of a tensor."""

    def rows(a: int, b: int) -> np.ndarray:
        n = (b - a) * stored.row
        return decode(stored.format.type, stored.rows(a, b), n).reshape(b - a, stored.row)

    return Output(stored.name, stored.shape, rows)


def turned(name: str, stored: Stored) -> Output:
    """The transpose of a matrix, or of each matrix of a stack."""
    *stack, height, width = stored.shape
    fmt = stored.format

    def columns(matrix: int, a: int, b: int) -> np.ndarray:
        """Columns a to b, [b - a, height], decoded from their blocks."""
        first, last = a // fmt.block, -(-b // fmt.block)
        data = stored.rows(matrix * height, (matrix + 1) * height)
        blocks = data.reshape(height, width // fmt.block, fmt.block_bytes)[:, first:last]
        n = (last - first) * fmt.block
        values = decode(fmt.type, np.ascontiguousarray(blocks).reshape(-1), height * n)
        values = values.reshape(height, n)[:, a - first * fmt.block : b - first * fmt.block]
        return np.ascontiguousarray(values.T)

    def rows(a: int, b: int) -> np.ndarray:
        found = []
        for matrix in range(a // width, -(-b // width)):
            begin = matrix * width
            found.append(columns(matrix, max(a - begin, 0), min(b - begin, width)))
        return found[0] if len(found) == 1 else np.concatenate(found)

    return Output(name, (*stack, width, height), rows)


class Fitting:
    """Formats whose blocks divide the rows of a tensor, and what had to be replaced for that."""

    def __init__(self) -> None:
        self._replaced: dict[tuple[int, int, str, str], list[str]] = {}

    def __call__(self, fmt: Format, row: int, name: str) -> Format:
        """The format or, if its blocks do not divide a row, a replacement or F16."""
        if fmt.fits(row):
            return fmt
        found = format_by_name(_NARROWER.get(fmt.name, "F16"))
        if not found.fits(row):
            found = format_by_name("F16")
        self._replaced.setdefault((row, fmt.block, found.name, fmt.name), []).append(name)
        return found

    def report(self, log: Callable[[str], None]) -> None:
        """Logs a line for each reason, with the number of tensors."""
        for (row, block, found, wanted), names in self._replaced.items():
            which = names[0] if len(names) == 1 else f"{len(names)} tensors ({names[0]}, ...)"
            why = f"rows of {row} are not a multiple of {block}"
            log(f"{which}: {why}, so {found} instead of {wanted}")
        self._replaced.clear()
