"""Structs of powerinfer.h."""

from typing import Any

from .._native import ffi


def sized(name: str) -> Any:
    """A struct with struct_size set, as the engine requires."""
    return ffi.new(f"{name} *", {"struct_size": ffi.sizeof(name)})


def filled(params: Any, fields: dict[str, Any]) -> Any:
    """params with fields set. Raises ValueError if a value does not fit its C type."""
    for name, value in fields.items():
        try:
            setattr(params, name, value)
        except OverflowError:
            raise ValueError(f"{name}: {value} is out of range") from None
        except TypeError:
            raise ValueError(f"{name}: {value!r} is not a valid number") from None
    return params
