"""Structs that the engine fills."""

from typing import Any

from ._native import ffi


def sized(name: str) -> Any:
    """A struct of powerinfer.h that says its size, as each must before it is filled."""
    return ffi.new(f"{name} *", {"struct_size": ffi.sizeof(name)})
