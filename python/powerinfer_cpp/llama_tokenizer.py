"""The tokenizer of a model as a separate object."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from .llama_tokens import LlamaTokens


class BaseLlamaTokenizer(ABC):
    """Text to ids and back."""

    @abstractmethod
    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Ids of bytes."""

    @abstractmethod
    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """Bytes of ids."""


class LlamaTokenizer(BaseLlamaTokenizer):
    """Text to ids and back with a Llama. Raises the errors of its tokenize and detokenize."""

    def __init__(self, llama: LlamaTokens):
        self._llama = llama

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Ids of bytes."""
        return self._llama.tokenize(text, add_bos, special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """Bytes of ids."""
        return self._llama.detokenize(tokens, prev_tokens, special)

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """Ids of a text."""
        return self.tokenize(text.encode("utf-8", "ignore"), add_bos, special)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of ids, without bytes that are not valid text."""
        return self.detokenize(tokens).decode("utf-8", "ignore")

    @classmethod
    def from_ggml_file(cls, path: str | Path) -> "LlamaTokenizer":
        """The tokenizer of a GGUF file, without its weights. Raises what `Llama` raises."""
        return cls(LlamaTokens(path, vocab_only=True, verbose=False))
