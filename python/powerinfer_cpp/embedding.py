"""Embeddings of texts, from a session that returns hidden states instead of logits."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .adapters import Adapters
from .errors import ContextOverflowError
from .model import Model, Session

NONE, MEAN, CLS, LAST = 0, 1, 2, 3  # llama.cpp's numbers


def check_pooling(pooling_type: int) -> int:
    """A kind of pooling; -1 is MEAN. Raises ValueError for an unknown one.

    Callers who do not choose want a vector for each text: LangChain takes a text's vectors, one per
    token, for those of several texts.
    """
    if pooling_type not in (-1, NONE, MEAN, CLS, LAST):
        raise ValueError("pooling_type must be 0 (none), -1 or 1 (mean), 2 (first) or 3 (last)")
    return MEAN if pooling_type == -1 else pooling_type


class Embedder:
    """Computes embeddings in its own session. Use it from one thread at a time.

    Keyword arguments are those of Session.
    """

    def __init__(self, model: Model, **fields: Any):
        self._session = Session(model, **{**fields, "embedding": True, "n_logits": 0})
        self.n_ctx = self._session.n_ctx

    def close(self) -> None:
        """Frees the session."""
        self._session.close()

    def set_adapters(self, adapters: Adapters) -> None:
        """Computes with these adapters from now on. Raises what Session.set_adapters raises."""
        adapters.apply(self._session)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """float32 [n, n_embd]: the hidden state after each of int32 ids [n]."""
        self._session.truncate(0)
        n_batch, found = self._session.n_batch, []
        for first in range(0, len(ids), n_batch):
            chunk = ids[first : first + n_batch]
            self._session.eval(chunk, np.ones(len(chunk), dtype=bool))
            found += [self._session.embedding(row).copy() for row in range(len(chunk))]
        return np.stack(found)

    def embed(self, ids: Sequence[int], pooling: int, normalize: bool, truncate: bool) -> Any:
        """One vector as a list or, without pooling, one vector per token as a list of lists.

        truncate: use the first n_ctx ids of a longer text instead of raising ContextOverflowError.
        Raises ValueError for a text without tokens.
        """
        if len(ids) > self.n_ctx and not truncate:
            raise ContextOverflowError(
                f"a text of {len(ids)} tokens exceeds the context of {self.n_ctx} positions"
            )
        if not len(ids):
            raise ValueError("a text without tokens has no embedding")
        rows = self.rows(np.asarray(ids[: self.n_ctx], dtype=np.int32))
        if pooling == NONE:
            return (normalized(rows) if normalize else rows).tolist()
        vector = {MEAN: lambda: rows.mean(axis=0), CLS: lambda: rows[0], LAST: lambda: rows[-1]}
        pooled = vector[pooling]()
        return (normalized(pooled) if normalize else pooled).tolist()


def normalized(vectors: np.ndarray) -> np.ndarray:
    """Vectors [..., n] scaled to length 1; zeros stay zeros."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(length == 0, 1, length)
