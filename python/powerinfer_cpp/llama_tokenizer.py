"""Tokenizers under the name of llama-cpp-python's module."""

from .tokenizer import BaseLlamaTokenizer, LlamaTokenizer

__all__ = ["BaseLlamaTokenizer", "LlamaTokenizer"]
