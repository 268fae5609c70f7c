"""A tensor of a checkpoint, read on demand."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Weight:
    """A tensor of a checkpoint.

    shape: numpy's order. stored(): its values as stored, mapped if possible; BF16 as uint16. bf16:
    the values are BF16. unsupported: the element type of values that cannot be read, "" otherwise;
    whoever needs the tensor refuses it.
    """

    name: str
    shape: tuple[int, ...]
    bf16: bool
    stored: Callable[[], np.ndarray]
    unsupported: str = ""


def unread() -> np.ndarray:
    """Stands for the values of a tensor that nobody may read."""
    raise RuntimeError("the values of this tensor cannot be read")


def widen(values: np.ndarray, bf16: bool) -> np.ndarray:
    """A part of Weight.stored() as float32."""
    if bf16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)
