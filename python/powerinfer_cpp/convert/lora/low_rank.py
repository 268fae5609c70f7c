"""A matrix that is kept as the product of two narrow ones, as the changes of an adapter are.

What a family does to the rows and columns of a checkpoint's matrix is done to the factors: rows are
those of the left one, columns those of the right one. What has no such form is not linear in the
matrix, or no operation on rows and columns, and raises NotLinear.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin


class NotLinear(Exception):
    """An operation on a matrix that its factors do not have."""


@dataclass(frozen=True, eq=False)
class LowRank(NDArrayOperatorsMixin):
    """The matrix left @ right, for code that expects a numpy array [rows, columns] of float32.

    left: [rows, rank], right: [rank, columns], both float32. It knows what the families do: choose
    and order rows and columns, transpose, and multiply by a number, or by one for each row or
    column.
    """

    left: np.ndarray
    right: np.ndarray

    ndim = 2

    @property
    def shape(self) -> tuple[int, int]:
        return self.left.shape[0], self.right.shape[1]

    @property
    def T(self) -> "LowRank":  # noqa: N802, numpy's name
        return LowRank(self.right.T, self.left.T)

    def __getitem__(self, key: Any) -> "LowRank":
        rows, columns = key if isinstance(key, tuple) and len(key) == 2 else (key, slice(None))
        if not all(isinstance(part, slice | np.ndarray) for part in (rows, columns)):
            raise NotLinear("a part that is no matrix")
        return LowRank(self.left[rows], self.right[:, columns])

    def astype(self, dtype: Any, copy: bool = True) -> "LowRank":
        """The same: its factors are float32, as what becomes of every weight."""
        if np.dtype(dtype) != np.float32:
            raise NotLinear(f"values of type {np.dtype(dtype)}")
        return self

    def reshape(self, *shape: int) -> "LowRank":
        rows, columns = self.shape
        if shape not in ((rows, columns), (-1, columns)):
            raise NotLinear("another shape")
        return self

    def __array__(self, *_: Any, **_named: Any) -> np.ndarray:
        raise NotLinear("its values one by one")

    def __array_function__(self, function: Any, _types: Any, args: Any, kwargs: Any) -> "LowRank":
        if function is np.copy and args[0] is self:
            return self
        raise NotLinear(f"numpy.{function.__name__}")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **_: Any) -> "LowRank":
        factor, others = np.float32(1), [x for x in inputs if x is not self]
        if ufunc is not np.multiply or method != "__call__" or len(others) != 1:
            raise NotLinear(f"numpy.{ufunc.__name__}")
        factor = np.asarray(others[0], np.float32)
        if factor.ndim == 2 and factor.shape in ((self.shape[0], 1), (1, 1)):
            return LowRank(self.left * factor, self.right)
        if factor.ndim < 2 and factor.size in (1, self.shape[1]):
            return LowRank(self.left, self.right * factor)
        raise NotLinear("a product with a matrix")
