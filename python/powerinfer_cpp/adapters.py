"""LoRA adapters (core/adapters.py)."""

from .core.adapters import LoraAdapter

__all__ = ["LoraAdapter"]
