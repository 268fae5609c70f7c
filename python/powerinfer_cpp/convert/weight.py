"""A tensor of a checkpoint, read when it is needed."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Weight:
    """A tensor of a checkpoint.

    shape: numpy's order. stored(): its values as they are stored, mapped where possible; BF16 as
    uint16. bf16: that is the case.
    """

    name: str
    shape: tuple[int, ...]
    bf16: bool
    stored: Callable[[], np.ndarray]


def widen(values: np.ndarray, bf16: bool) -> np.ndarray:
    """float32 of a part of Weight.stored()."""
    if bf16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)
