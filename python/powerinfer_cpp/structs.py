"""Structs that the engine fills."""

from typing import Any

from ._native import ffi


def sized(name: str) -> Any:
    """A struct of powerinfer.h with struct_size set, as the engine requires."""
    return ffi.new(f"{name} *", {"struct_size": ffi.sizeof(name)})
