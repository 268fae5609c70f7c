"""Where pickles of older versions look for LlamaState (core/state.py)."""

from .core.state import LlamaState

__all__ = ["LlamaState"]
