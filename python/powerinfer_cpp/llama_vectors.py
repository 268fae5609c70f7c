"""`LlamaVectors`: vectors of texts and scores of pairs, with llama-cpp-python's interface."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, overload

import numpy as np

from .core.checks import whole_or_none
from .core.sequences.embedding import normalized
from .llama_tokens import LlamaTokens
from .run.vectors import Made
from .text.answers import Embedding, Embeddings
from .text.prompts import Text

Input = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]


class LlamaVectors(LlamaTokens):
    """Vectors and scores."""

    @property
    def prompts(self) -> Mapping[str, str]:
        """What stands before texts, by the names that `prompt_name` takes."""
        return MappingProxyType(self._vectors.inputs.prompts if self._vectors else {})

    @property
    def max_tokens(self) -> int:
        """Tokens of a text of which a vector is made, with those that the tokenizer adds."""
        return self._vectors.inputs.max_tokens if self._vectors else self.n_ctx()

    def pooling_type(self) -> int:
        """0: embeddings have a vector per token; 1 mean, 2 first, 3 last, 4 scores."""
        return self._runtime.pooling

    def create_embedding(
        self,
        input: Input,
        model: str | None = None,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        dimensions: int | None = None,
    ) -> Embeddings:
        """Embeddings of texts, or of their ids, in OpenAI's shape, each as returned by `embed`.

        prompt_name: what stands before each text, one of `prompts`; prompt: its text; neither: the
        file's default, which most files do not have. dimensions: the first so many numbers, scaled
        to length 1, of models that were trained for it. Raises ValueError for an unknown prompt and
        more dimensions than there are, and what `embed` raises.
        """
        texts = _texts(input)
        made = self._embedded(texts, True, prompt_name, prompt)
        vectors = made.values
        if (n := whole_or_none("dimensions", dimensions)) is not None:
            vectors = shortened(vectors, n)
        data = [
            {"object": "embedding", "embedding": vector.tolist(), "index": i}
            for i, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": sum(made.n_tokens), "total_tokens": sum(made.n_tokens)}
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
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> Embedding: ...

    @overload
    def embed(
        self,
        input: str,
        normalize: bool = False,
        truncate: bool = True,
        *,
        return_count: Literal[True],
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> tuple[Embedding, int]: ...

    @overload
    def embed(
        self,
        input: Sequence[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: Literal[False] = False,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> list[Embedding]: ...

    @overload
    def embed(
        self,
        input: Sequence[str],
        normalize: bool = False,
        truncate: bool = True,
        *,
        return_count: Literal[True],
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> tuple[list[Embedding], int]: ...

    def embed(
        self,
        input: Input,
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> Embedding | list[Embedding] | tuple[Embedding | list[Embedding], int]:
        """The embedding of a text, or a list of embeddings for a list of texts, which are computed
        together and have the bits that each has alone.

        An embedding is a vector: the file's pooling of the hidden states after the last norm, or
        their mean if it names none, and what the file computes of that; with the constructor's
        pooling_type=0 it is the list of these states, one per token. normalize: scale to length 1.
        truncate: cut texts that exceed `max_tokens` instead of raising ContextOverflowError; a last
        token that the tokenizer adds stays. Control tokens in a text are these tokens.
        return_count: return a pair with the number of tokens. prompt_name, prompt: see
        `create_embedding`. Raises ValueError unless opened with embedding=True, and
        UnsupportedModelError for a model that ranks.
        """
        made = self._embedded(_texts(input), truncate, prompt_name, prompt)
        vectors = [(normalized(v) if normalize else v).tolist() for v in made.values]
        value = vectors[0] if _is_one(input) else vectors
        return (value, sum(made.n_tokens)) if return_count else value

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        raw_scores: bool = False,
        instruction: str | None = None,
        top_n: int | None = None,
    ) -> list[float]:
        """How well each document answers a query: numbers in the documents' order, 0 to 1 unless
        the model's files say otherwise.

        raw_scores: the model's numbers as they are. instruction: what it is to judge, of models
        whose pairs have a place for that. top_n: the others than the best so many have -infinity,
        behind every score. Of a pair that is too long the document is cut; ContextOverflowError if
        the query alone is. Raises ValueError for a model that does not rank, and a top_n below 1.
        """
        if (n := whole_or_none("top_n", top_n)) is not None and n < 1:
            raise ValueError(f"top_n must be at least 1, not {n}")
        with self._runtime.held():
            if self._vectors is None:
                raise ValueError("rank needs a Llama opened with embedding=True")
            made = self._vectors.rank(query, list(documents), raw_scores, instruction)
        scores = np.asarray(made.values)
        if n is not None:
            scores[np.argsort(-scores, kind="stable")[n:]] = -np.inf
        return [float(score) for score in scores]

    def _embedded(
        self, texts: list[Text], truncate: bool, prompt_name: str | None, prompt: str | None
    ) -> Made:
        with self._runtime.held():
            if self._vectors is None:
                raise ValueError("embeddings need a Llama opened with embedding=True")
            before = self._vectors.inputs.prompt(prompt_name, prompt)
            return self._vectors.embed(texts, before, truncate)


def shortened(vectors: "np.ndarray | list[np.ndarray]", n: int) -> np.ndarray:
    """The first n numbers of vectors [texts, width], scaled to length 1. Raises ValueError if there
    are fewer."""
    values = np.asarray(vectors)
    if values.ndim != 2 or not 1 <= n <= values.shape[1]:
        raise ValueError(f"dimensions must be 1 to {values.shape[-1]}, not {n}")
    return normalized(values[:, :n])


def _is_one(given: Input) -> bool:
    """Is it one text, or the ids of one?"""
    return isinstance(given, str) or (len(given) > 0 and isinstance(given[0], int))


def _texts(given: Input) -> list[Text]:
    return [given] if _is_one(given) else list(given)  # type: ignore[list-item,arg-type]
