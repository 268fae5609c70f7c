"""GGUF files (core/gguf.py)."""

from .core.gguf import Gguf, Tensor

__all__ = ["Gguf", "Tensor"]
