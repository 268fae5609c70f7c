"""Caches of states under the name of llama-cpp-python's module."""

from .state import BaseLlamaCache, LlamaCache, LlamaRAMCache

__all__ = ["BaseLlamaCache", "LlamaCache", "LlamaRAMCache"]
