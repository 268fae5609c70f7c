"""Caches of states under the name of llama-cpp-python's module."""

from .disk_cache import LlamaDiskCache
from .state import BaseLlamaCache, LlamaCache, LlamaRAMCache

__all__ = ["BaseLlamaCache", "LlamaCache", "LlamaDiskCache", "LlamaRAMCache"]
