"""Numbers that callers give."""

import operator
from typing import SupportsIndex


def whole(name: str, value: SupportsIndex) -> int:
    """An integer of any kind, numpy's too, as an int. Raises ValueError for anything else."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise ValueError(f"{name} must be a whole number, not {value!r}")


def number(name: str, value: object) -> None:
    """Raises ValueError for what is no number; numpy's are."""
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise ValueError(f"{name} must be a number, not {value!r}")


def function(name: str, value: object) -> None:
    """Raises ValueError for what cannot be called."""
    if not callable(value):
        raise ValueError(f"{name} must be a function, not {value!r}")


def whole_or_none(name: str, value: SupportsIndex | None) -> int | None:
    """The same, None being None."""
    return None if value is None else whole(name, value)
