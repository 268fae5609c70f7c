"""A tensor of a checkpoint, read on demand."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Weight:
    """A tensor of a checkpoint.

    shape: numpy's order. stored(): an array of its values as stored, mapped if possible, BF16 as
    uint16; or what stands for an array whose values are computed (codes.Computed). bf16: the values
    are BF16. unsupported: the element type of values that cannot be read, "" otherwise;
    whoever needs the tensor refuses it. codes: their element type, as safetensors names it, if
    stored() has them as integers, which stand for weights in a way that somebody else knows.
    """

    name: str
    shape: tuple[int, ...]
    bf16: bool
    stored: Callable[[], Any]
    unsupported: str = ""
    codes: str = ""

    def of(self, index: int) -> "Weight":
        """One of the tensors that it stacks, such as an expert's."""
        return replace(self, shape=self.shape[1:], stored=lambda: self.stored()[index])

    def between(self, first: int, end: int) -> "Weight":
        """Some of its rows."""
        shape = (end - first, *self.shape[1:])
        return replace(self, shape=shape, stored=lambda: self.stored()[first:end])

    def reshaped(self, *shape: int) -> "Weight":
        """The same values in another shape."""
        return replace(self, shape=shape, stored=lambda: self.stored().reshape(shape))


def unread() -> np.ndarray:
    """Stands for the values of a tensor that nobody may read."""
    raise RuntimeError("the values of this tensor cannot be read")


def widen(values: Any, bf16: bool) -> np.ndarray:
    """Weight.stored() or a part of it as float32."""
    if bf16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)
