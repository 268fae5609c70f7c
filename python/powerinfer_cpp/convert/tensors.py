"""Tensors of the file to be written, as functions that give their rows when they are needed."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..errors import ModelFormatError
from .checkpoint import Weight, widen


@dataclass(frozen=True)
class Output:
    """A tensor of the file to be written.

    shape: numpy's order, 1-D or 2-D. rows(a, b): float32 rows a to b of it, [b - a, shape[-1]];
    1-D tensors count as a single row. predictor: its format is chosen apart.
    """

    name: str
    shape: tuple[int, ...]
    rows: Callable[[int, int], np.ndarray]
    predictor: bool = False

    @property
    def row(self) -> int:
        """Elements of a row: what a format's block must divide."""
        return self.shape[-1]

    @property
    def n_rows(self) -> int:
        return 1 if len(self.shape) == 1 else self.shape[0]


def check_shape(weight: Weight, shape: tuple[int, ...]) -> Weight:
    """The weight itself; raises ModelFormatError when it has another shape."""
    if weight.shape != shape:
        raise ModelFormatError(
            f"tensor {weight.name} has shape {list(weight.shape)}, expected {list(shape)}"
        )
    return weight


def from_weight(name: str, weight: Weight, predictor: bool = False) -> Output:
    """A weight as it is."""

    def rows(a: int, b: int) -> np.ndarray:
        stored = weight.stored()
        part = stored[None] if stored.ndim == 1 else stored[a:b]
        return widen(part, weight.bf16)

    return Output(name, weight.shape, rows, predictor)


def row_order(name: str, weight: Weight, order: np.ndarray | None) -> Output:
    """A weight or bias whose row r is row order[r] of the checkpoint."""
    if order is None:
        return from_weight(name, weight)

    def rows(a: int, b: int) -> np.ndarray:
        stored = weight.stored()
        part = stored[order][None] if stored.ndim == 1 else stored[order[a:b]]
        return widen(part, weight.bf16)

    return Output(name, weight.shape, rows)


def transposed(name: str, weight: Weight) -> Output:
    """A matrix whose rows are the checkpoint's columns."""

    def rows(a: int, b: int) -> np.ndarray:
        return widen(np.ascontiguousarray(weight.stored()[:, a:b].T), weight.bf16)

    return Output(name, weight.shape[::-1], rows)
