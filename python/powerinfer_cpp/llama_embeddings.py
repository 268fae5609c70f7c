"""The embeddings of `Llama`, in llama-cpp-python's shapes."""

from collections.abc import Sequence
from typing import Literal, overload

from .llama_tokens import LlamaTokens
from .text.answers import Embedding, Embeddings


class LlamaEmbeddings(LlamaTokens):
    """A `Llama` that turns texts into vectors."""

    def create_embedding(self, input: str | Sequence[str], model: str | None = None) -> Embeddings:
        """Embeddings of texts in OpenAI's shape, each as returned by `embed`."""
        texts = [input] if isinstance(input, str) else list(input)
        vectors, n = self.embed(texts, return_count=True)
        data = [
            {"object": "embedding", "embedding": vector, "index": i}
            for i, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": n, "total_tokens": n}
        return {
            "object": "list",
            "data": data,
            "model": model or self.model_path,
            "usage": usage,
        }

    @overload
    def embed(
        self,
        input: str,
        normalize: bool = False,
        truncate: bool = True,
        return_count: Literal[False] = False,
    ) -> Embedding: ...

    @overload
    def embed(
        self,
        input: str,
        normalize: bool = False,
        truncate: bool = True,
        *,
        return_count: Literal[True],
    ) -> tuple[Embedding, int]: ...

    @overload
    def embed(
        self,
        input: Sequence[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: Literal[False] = False,
    ) -> list[Embedding]: ...

    @overload
    def embed(
        self,
        input: Sequence[str],
        normalize: bool = False,
        truncate: bool = True,
        *,
        return_count: Literal[True],
    ) -> tuple[list[Embedding], int]: ...

    def embed(
        self,
        input: str | Sequence[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Embedding | list[Embedding] | tuple[Embedding | list[Embedding], int]:
        """The embedding of a text, or a list of embeddings for a list of texts.

        An embedding is a vector of n_embd numbers: by default the file's pooling of the hidden
        states after the output norm, one per token, or their mean if it has none; with the
        constructor's pooling_type=0 it is the list of these. normalize: scale to length 1.
        truncate: cut texts that exceed the context instead of raising ContextOverflowError.
        return_count: return a pair with the number of tokens. Raises ValueError unless opened with
        embedding=True.
        """
        texts = [input] if isinstance(input, str) else list(input)
        found, n = [], 0
        with self._lock:
            self._require_open()
            if self._embedder is None:
                raise ValueError("embeddings need a Llama opened with embedding=True")
            for text in texts:
                ids = self.tokenize(text.encode("utf-8"))
                vectors = self._embedder.embed(ids, self._pooling, normalize, truncate)
                n += min(len(ids), self._embedder.n_ctx)
                found.append(vectors)
        value = found[0] if isinstance(input, str) else found
        return (value, n) if return_count else value

    def pooling_type(self) -> int:
        """0: embeddings have a vector per token; 1 mean, 2 first, 3 last."""
        return self._pooling
