"""One sequence of tokens over a session: what is computed, its logits, and the choice of tokens."""

from typing import Any

import numpy as np

from .errors import ContextOverflowError, OutOfMemoryError
from .model import Model, Sampler, Session


class Context:
    """Tokens that a session holds, and their logits.

    n_tokens: positions computed. input_ids: intc [n_ctx], n_tokens of them valid. version: counts
    changes, so that who computed before can see whether somebody else came in between.
    Keyword arguments are the fields of pi_session_params. Serves one thread at a time.
    """

    def __init__(self, model: Model, logits_all: bool, **fields: Any):
        self._session = Session(model, **fields)
        self._logits_all = logits_all
        self.n_vocab = model.n_vocab
        self.n_ctx = self._session.n_ctx
        self.n_tokens = 0
        self.input_ids = np.zeros(self.n_ctx, dtype=np.intc)
        self.version = 0
        self._last_row: int | None = None  # row of the last token in the engine's last call
        self._scores: np.ndarray | None = None

    def close(self) -> None:
        """Gives the session back."""
        self._session.close()
        self._scores = None

    def tokens(self) -> list[int]:
        """Ids of the positions computed."""
        return self.input_ids[: self.n_tokens].tolist()

    def eval(self, ids: np.ndarray) -> None:
        """Computes int32 ids [n], in calls of n_batch rows, after those that are there.

        Raises ContextOverflowError, before anything is computed, when they do not fit.
        """
        self._check_fits(len(ids), self.n_tokens)
        self.version += 1
        n_batch = self._session.n_batch
        for first in range(0, len(ids), n_batch):
            chunk = ids[first : first + n_batch]
            keep = np.full(len(chunk), self._logits_all)
            keep[-1] |= first + len(chunk) == len(ids)
            self._eval_chunk(chunk, keep)

    def become(self, ids: np.ndarray) -> None:
        """Makes the sequence equal to ids: keeps the longest prefix, computes at least the last."""
        known = min(self.n_tokens, len(ids) - 1)
        differs = np.flatnonzero(self.input_ids[:known] != ids[:known])
        same = int(differs[0]) if differs.size else known
        self._check_fits(len(ids) - same, same)
        self.truncate(same)
        self.eval(ids[same:])

    def truncate(self, n: int) -> None:
        """Forgets every position from n on."""
        self._session.truncate(n)
        self.version += 1
        self.n_tokens, self._last_row = n, None

    def need_scores(self) -> np.ndarray:
        """float32 [n_ctx, n_vocab], filled from now on; the last token's row at once.

        Raises OutOfMemoryError when there is no room for it.
        """
        if self._scores is None:
            try:  # the system gives pages as rows are written
                self._scores = np.zeros((self.n_ctx, self.n_vocab), dtype=np.float32)
            except MemoryError:
                raise OutOfMemoryError(
                    f"scores of {self.n_ctx} positions and {self.n_vocab} tokens do not fit into "
                    "memory: use a smaller n_ctx"
                ) from None
            if self._last_row is not None:
                self._scores[self.n_tokens - 1] = self._session.logits(self._last_row)
        return self._scores

    def logits(self) -> np.ndarray:
        """A copy of the last token's logits, float32 [n_vocab]. ValueError before any eval."""
        return self._session.logits(self._require_row()).copy()

    def choose(
        self, sampler: Sampler, processors: Any, n: int, row: np.ndarray | None = None
    ) -> int:
        """A token after n tokens, for the last token's logits or for those in `row`.

        processors: None, or a function of ids and logits that gives logits. Raises ValueError when
        nothing is computed, or when that function gives something else.
        """
        if not processors and row is None:
            pointer = self._session.logits_pointer(self._require_row())
            return sampler.sample(pointer, self.n_vocab)
        scores = self.logits() if row is None else row
        if processors:
            changed = processors(self.input_ids[:n], scores)
            scores = np.ascontiguousarray(changed, dtype=np.float32)
            if scores.shape != (self.n_vocab,):
                raise ValueError(f"logits_processor must return {self.n_vocab} numbers")
        return sampler.sample(scores, self.n_vocab)

    def _require_row(self) -> int:
        if self._last_row is None:
            raise ValueError("there are no logits: nothing has been computed since reset()")
        return self._last_row

    def _check_fits(self, n: int, after: int) -> None:
        if after + n > self.n_ctx:
            raise ContextOverflowError(
                f"{n} tokens after {after} exceed the context of {self.n_ctx} positions"
            )

    def _eval_chunk(self, chunk: np.ndarray, keep: np.ndarray) -> None:
        start, n = self.n_tokens, len(chunk)
        self._last_row = None
        self._session.eval(chunk, keep)
        self.input_ids[start : start + n] = chunk
        self.n_tokens += n
        if keep[-1]:
            self._last_row = n - 1
        scores = self.need_scores() if self._logits_all else self._scores
        if scores is not None:
            for row in np.flatnonzero(keep):
                scores[start + row] = self._session.logits(int(row))
