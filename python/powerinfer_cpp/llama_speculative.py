"""Drafts under the name of llama-cpp-python's module."""

from .speculative import LlamaDraftModel, LlamaModelDecoding, LlamaPromptLookupDecoding

__all__ = ["LlamaDraftModel", "LlamaModelDecoding", "LlamaPromptLookupDecoding"]
