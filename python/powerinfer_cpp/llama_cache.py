"""Caches of states under the name of llama-cpp-python's module."""

from .core.state import BaseLlamaCache, LlamaCache, LlamaRAMCache
from .run.disk_cache import LlamaDiskCache

__all__ = ["BaseLlamaCache", "LlamaCache", "LlamaDiskCache", "LlamaRAMCache"]
