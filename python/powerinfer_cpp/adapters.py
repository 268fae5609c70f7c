"""LoRA adapters (core/sequences/adapters.py)."""

from .core.sequences.adapters import LoraAdapter

__all__ = ["LoraAdapter"]
