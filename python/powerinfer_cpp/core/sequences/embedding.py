"""Embeddings of texts, from a session that returns hidden states instead of logits."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ContextOverflowError, UnsupportedModelError
from ..model import Model
from ..session import Session
from .adapters import Adapters

POOLINGS = NONE, MEAN, CLS, LAST = 0, 1, 2, 3  # llama.cpp's numbers; -1: as the file says


def check_pooling(pooling_type: int) -> int:
    """The kind of pooling that was asked for. Raises ValueError for an unknown one."""
    if pooling_type not in (-1, *POOLINGS):
        raise ValueError(
            "pooling_type must be -1 (as the file says), 0 (none), 1 (mean), 2 (first) or 3 (last)"
        )
    return pooling_type


def pooling_of(model: Model, pooling_type: int = -1) -> int:
    """The kind of pooling that was asked for; with -1 the file's, MEAN if that does not say.

    Callers who do not choose want a vector for each text: LangChain takes a text's vectors, one per
    token, for those of several texts. The file's may be one that `require_pooling` refuses.
    """
    if pooling_type >= 0:
        return pooling_type
    found = model.gguf.value(f"{model.architecture}.pooling_type", -1)
    return MEAN if found == -1 else found if isinstance(found, int) else -1


def require_pooling(model: Model, pooling: int) -> None:
    """Raises UnsupportedModelError for a kind that cannot be computed, such as a reranker's."""
    if pooling not in POOLINGS:
        raise UnsupportedModelError(
            f"{model.path}: {model.architecture}.pooling_type is none of 0 to 3: there are no "
            "embeddings of a model that ranks texts; pooling_type= overrides"
        )


def embedding_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """pi_session_params of an Embedder. fields: those that the caller chose."""
    return {**fields, "embedding": True, "n_logits": 0, "n_checkpoints": 0, "n_kv_old": 0}


class Embedder:
    """Computes embeddings in its own session. Use it from one thread at a time.

    Keyword arguments are those of Session.
    """

    def __init__(self, model: Model, **fields: Any):
        self._model = model
        self._session = Session(model, **embedding_fields(fields))
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
        Raises ValueError for a text without tokens, and what `require_pooling` raises.
        """
        require_pooling(self._model, pooling)
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
