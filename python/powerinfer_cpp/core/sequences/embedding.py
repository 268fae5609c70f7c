"""Vectors and scores of texts, from a session that gives these instead of logits."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import ContextOverflowError, UnsupportedModelError
from ..model import Model
from ..session import Session
from .adapters import Adapters

POOLINGS = NONE, MEAN, CLS, LAST, RANK = 0, 1, 2, 3, 4  # llama.cpp's numbers; -1: the file's
POOLING_NAMES = {NONE: "none", MEAN: "mean", CLS: "cls", LAST: "last", RANK: "rank"}
MOST_NORM = 64  # that vectors may be scaled by, in llama.cpp's numbers
_TEXTS = 16  # that a call computes together, at most; each has a page of keys and values of its own
_PAGE = 64  # positions

Ids = Sequence[int] | np.ndarray


def check_pooling(pooling_type: int) -> int:
    """The kind of pooling that was asked for. Raises ValueError for an unknown one."""
    if pooling_type not in (-1, *POOLINGS):
        raise ValueError(
            "pooling_type must be -1 (as the file says), 0 (none), 1 (mean), 2 (first), 3 (last) "
            "or 4 (scores)"
        )
    return pooling_type


def pooling_of(model: Model, pooling_type: int = -1) -> int:
    """The kind of pooling that was asked for; with -1 the file's, RANK if the model ranks, MEAN if
    nothing says.

    Callers who do not choose want a vector for each text: LangChain takes a text's vectors, one per
    token, for those of several texts. The file's may be one that `require_pooling` refuses.
    """
    if pooling_type >= 0:
        return pooling_type
    found = model.gguf.value(f"{model.architecture}.pooling_type", -1)
    if found == -1:
        return RANK if model.ranks else MEAN
    return found if found in POOLINGS and (found != RANK or model.ranks) else -1


def require_pooling(model: Model, pooling: int) -> None:
    """Raises UnsupportedModelError for a kind that cannot be computed."""
    if pooling not in POOLINGS:
        raise UnsupportedModelError(
            f"{model.path}: {model.architecture}.pooling_type is none of 0 to 3, and there is no "
            "head that ranks texts (cls.output); pooling_type= overrides"
        )


def embedding_fields(fields: dict[str, Any], pooling: int) -> dict[str, Any]:
    """pi_session_params of an Embedder. fields: those that the caller chose."""
    own = {"embedding": True, "pooling": pooling, "n_logits": 0, "n_checkpoints": 0, "n_kv_old": 0}
    return {**fields, **own, "n_seq": 1 if pooling == NONE else _TEXTS, "n_kv": 0, "n_active": 0}


class Embedder:
    """Computes vectors or scores in its own session. Use it from one thread at a time.

    Other keyword arguments are those of Session. session: for who measures it.
    """

    def __init__(self, model: Model, pooling: int, **fields: Any):
        self._model, self.pooling = model, pooling
        self.session = Session(model, **embedding_fields(fields, pooling))
        self.n_ctx = self.session.n_ctx
        self.width = self.session.pooled_width or model.n_embd  # of a vector, or scores of a pair
        self._most = 1 if pooling == NONE or model.has_states else _TEXTS
        last_rows = pooling in (LAST, RANK) and not model.is_encoder
        self._shares = last_rows and self._most > 1

    def close(self) -> None:
        """Frees the session."""
        self.session.close()

    def set_adapters(self, adapters: Adapters) -> None:
        """Computes with these adapters from now on. Raises what Session.set_adapters raises."""
        adapters.apply(self.session)

    def rows(self, ids: Ids) -> np.ndarray:
        """float32 [n, n_embd]: the hidden state after each of n ids. Only without pooling."""
        self._check(ids)
        self.session.truncate(0)
        tokens, n_batch, found = np.asarray(ids, np.int32), self.session.n_batch, []
        for first in range(0, len(tokens), n_batch):
            chunk = tokens[first : first + n_batch]
            self.session.eval(chunk, np.ones(len(chunk), dtype=bool))
            found += [self.session.embedding(row).copy() for row in range(len(chunk))]
        return np.stack(found)

    def pooled(
        self,
        texts: Sequence[Ids],
        types: Sequence[Ids] | None = None,
        between: Callable[[], None] = lambda: None,
    ) -> np.ndarray:
        """float32 [texts, width]: the vector or the scores of each text.

        Texts of about the same length are computed together; the bits of each are those that it has
        alone. What all of them begin with is computed once, if nothing but their last rows counts.
        types: token types. between: called between calls of the engine; what it raises ends
        the work. Raises ContextOverflowError for a text beyond the context, ValueError for one
        without tokens.
        """
        for text in texts:
            self._check(text)
        found = np.empty((len(texts), self.width), np.float32)
        shared = self._shared(texts)
        first = int(shared > 0)  # sequence 0 has what they share
        if shared:
            between()
            self.session.eval(np.asarray(texts[0][:shared], np.int32))
        try:
            for group in self.groups([len(text) for text in texts], shared=shared):
                between()
                if shared:
                    for sequence in range(len(group)):
                        self.session.copy(0, first + sequence, shared)
                ids = np.concatenate([np.asarray(texts[i][shared:], np.int32) for i in group])
                lengths = [len(texts[i]) - shared for i in group]
                where = np.repeat(np.arange(first, first + len(group), dtype=np.int32), lengths)
                kinds = None
                if types is not None:
                    kinds = np.concatenate([np.asarray(types[i], np.int32) for i in group])
                self.session.eval(ids, sequences=where, types=kinds)
                for sequence, i in enumerate(group):
                    found[i] = self.session.pooled(first + sequence)
                if not self._model.is_encoder:
                    for sequence in range(len(group)):
                        self.session.truncate(0, first + sequence)
        finally:
            if shared:
                self.session.truncate(0)
        return found

    def _shared(self, texts: Sequence[Ids]) -> int:
        """How many ids all texts begin with, where computing them once gives the same vectors: 0
        for less than a page."""
        if len(texts) < 2 or not self._shares:
            return 0
        # What the first and the last one in the order of their ids share, all do.
        low, high = min(texts, key=tuple), max(texts, key=tuple)
        end = min(len(text) for text in texts) - 1  # a text needs a row of its own
        n = next((i for i in range(end) if low[i] != high[i]), end)
        return n if n >= _PAGE else 0

    def groups(
        self,
        lengths: Sequence[int],
        most: Callable[[], int | None] = lambda: None,
        shared: int = 0,
    ) -> Iterator[list[int]]:
        """Texts of calls of the engine, by number, long ones first. lengths: tokens of each. most:
        tokens of a call of several texts, asked before each; None: as many as it may have. shared:
        leading ids that are computed."""
        # One sequence has what texts share, which is not known of all that are computed together.
        n_batch, n_texts, takes = self.session.n_batch, self._most - self._shares, lengths
        if shared:  # the rest of a text is in pages of its own, the first one of which is a copy
            own = shared // _PAGE * _PAGE
            takes = [-(-(length - own) // _PAGE) * _PAGE for length in lengths]
            n_batch = min(n_batch, self.session.free_positions())
        order = deque(sorted(range(len(lengths)), key=lambda i: -lengths[i]))
        while order:
            wanted = most()
            n_most = n_batch if wanted is None else min(n_batch, wanted)
            group = [order.popleft()]
            n = takes[group[0]]
            while order and len(group) < n_texts and n + takes[order[0]] <= n_most:
                n += takes[order[0]]
                group.append(order.popleft())
            yield group

    def _check(self, ids: Ids) -> None:
        if not len(ids):
            raise ValueError("a text without tokens has no embedding")
        if len(ids) > self.n_ctx:
            raise ContextOverflowError(
                f"a text of {len(ids)} tokens exceeds the context of {self.n_ctx} positions"
            )


def no_texts(model: Model) -> str | None:
    """What to say of a model that gives no tokens; None: it gives some."""
    if model.is_encoder or model.ranks:
        what = "scores of pairs of texts" if model.ranks else "vectors of texts"
        return f"this model gives {what}, and writes no texts"
    return None


def require_texts(model: Model) -> None:
    """Raises UnsupportedModelError for a model that gives no tokens."""
    if words := no_texts(model):
        raise UnsupportedModelError(f"{model.path}: {words}")


def normalized(vectors: np.ndarray) -> np.ndarray:
    """Vectors [..., n] scaled to length 1; zeros stay zeros."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(length == 0, 1, length)
