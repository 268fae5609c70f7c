"""One sequence of tokens over a session: what is computed, its logits, and the choice of tokens."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ._native import lib
from .errors import ContextOverflowError, OutOfMemoryError
from .model import Model, Sampler, Session, Work, release
from .state import STATE_VERSION, LlamaState

# Rows of one call of the engine whose logits are kept when only some calls want all of them.
ROWS_KEPT = 32


class Context:
    """Tokens that a session holds, and their logits.

    n_tokens: positions computed. input_ids: intc [n_ctx], n_tokens of them valid. version: counts
    changes, so that who computed before can see whether somebody else came in between.
    Keyword arguments are those of Session. Serves one thread at a time.
    """

    def __init__(self, model: Model, logits_all: bool, **fields: Any):
        self._session = Session(model, **fields)
        self._rows_kept = min(
            fields.get("n_logits") or self._session.n_batch, self._session.n_batch
        )
        self._logits_all = logits_all
        self.n_vocab = model.n_vocab
        self.n_ctx = self._session.n_ctx
        self.n_tokens = 0
        self.n_computed = 0  # tokens in all, those that were forgotten included
        self.input_ids = np.zeros(self.n_ctx, dtype=np.intc)
        self._generated = np.zeros(self.n_ctx, dtype=bool)  # as input_ids
        self.version = 0
        # Where the last token's logits are: a row of the engine's last call, or a copy.
        self._last_row: int | np.ndarray | None = None
        self._scores: np.ndarray | None = None
        self._filled = np.zeros(self.n_ctx, dtype=bool)  # rows of scores that have memory
        self._kept = np.zeros(self.n_ctx, dtype=bool)  # and those that hold a token's logits
        self._reserved: list[Any] = []  # what they took of the model's budget
        self._model = model
        self._record = fields.get("record", lib.PI_RECORD_OFF)
        self._one_block = not model.n_expert
        self._fired: list[np.ndarray] = []  # of the last `eval` or `visit`, call by call
        self._inputs: list[np.ndarray] = []

    def close(self) -> None:
        """Gives the session back."""
        self._session.close()
        self._scores = None
        for reservation in self._reserved:
            release(reservation)
        self._reserved = []

    @property
    def handle(self) -> Any:
        """The C API's handle of the session."""
        return self._session.handle

    def work(self) -> Work:
        """What the session has done so far."""
        return self._session.work()

    def activations(self) -> np.ndarray:
        """Which neurons fired at the tokens of the last eval.

        bool [n_layer, n_tokens, n_ff], with experts [n_layer, n_tokens, n_expert, n_ff]. Raises
        ValueError when that is not recorded, or nothing has been computed.
        """
        fired = _joined(self._fired, 'record="fired"')
        return fired[:, :, 0] if self._one_block else fired

    def ffn_inputs(self) -> np.ndarray:
        """float32 [n_layer, n_tokens, n_embd]: what predictors see at the last eval's tokens.

        Raises ValueError when that is not recorded, or nothing has been computed.
        """
        return _joined(self._inputs, 'record="fired+input"')

    def tokens(self) -> list[int]:
        """Ids of the positions computed."""
        return self.input_ids[: self.n_tokens].tolist()

    def generated(self) -> list[bool]:
        """Which of them were computed as generated tokens."""
        return self._generated[: self.n_tokens].tolist()

    def eval(self, ids: np.ndarray, generated: np.ndarray | None = None) -> None:
        """Computes int32 ids [n], in calls of n_batch rows, after those that are there.

        generated: bool [n], which of them were generated; None: all are of a prompt. Raises
        ContextOverflowError, before anything is computed, when they do not fit.
        """
        self._check_fits(len(ids), self.n_tokens)
        self.version += 1
        self._fired, self._inputs = [], []
        n_batch = self._session.n_batch
        for first in range(0, len(ids), n_batch):
            part = slice(first, min(first + n_batch, len(ids)))
            keep = np.full(part.stop - first, self._logits_all)
            keep[-1] |= part.stop == len(ids)
            self._eval_chunk(ids[part], keep, None if generated is None else generated[part])

    def visit(self, ids: np.ndarray, visit: Callable[[int, np.ndarray], None]) -> None:
        """Forgets all and computes int32 ids [n], calling visit(i, logits after the i-th).

        The logits, float32 [n_vocab], may be changed by the visitor. Raises ContextOverflowError
        when the ids do not fit.
        """
        self._check_fits(len(ids), 0)
        self.truncate(0)
        self._fired, self._inputs = [], []
        for first in range(0, len(ids), self._rows_kept):
            chunk = ids[first : first + self._rows_kept]
            self._eval_chunk(chunk, np.ones(len(chunk), dtype=bool))
            for row in range(len(chunk)):
                visit(first + row, self._session.logits(row).copy())

    def become(self, ids: np.ndarray, generated: np.ndarray) -> None:
        """Makes the sequence equal to ids, of which those with a flag were generated.

        Keeps the longest prefix that was computed in the same way, and computes at least the last.
        """
        same = min(self._session.match(ids, generated), len(ids) - 1)
        self._check_fits(len(ids) - same, same)
        self.truncate(same)
        self.eval(ids[same:], generated[same:])

    def save(self) -> LlamaState:
        """What is computed, with its logits as far as they are there."""
        if self._scores is not None and self._logits_all:
            scores = self._scores[: self.n_tokens].copy()
        elif self._last_row is not None:
            scores = self.logits()[None]
        else:
            scores = np.empty((0, self.n_vocab), dtype=np.float32)
        data = self._session.save()
        ids = self.input_ids[: self.n_tokens].copy()
        flags, n_prompt = self._generated[: self.n_tokens].copy(), self._session.match(ids)
        return LlamaState(
            ids, scores, self.n_tokens, data, len(data), flags, n_prompt, version=STATE_VERSION
        )

    def load(self, state: LlamaState) -> None:
        """Makes the sequence what it was when `save` gave state.

        Raises ContextOverflowError, ModelFormatError, or ValueError for a state that contradicts
        itself or is of another version; then all is as before or, after a ModelFormatError, nothing
        is computed.
        """
        if state.version != STATE_VERSION:
            raise ValueError(
                f"this state has version {state.version}, and only {STATE_VERSION} can be loaded: "
                "it was saved by another version of powerinfer_cpp"
            )
        ids, scores, n = np.asarray(state.input_ids), np.asarray(state.scores), state.n_tokens
        flags = np.asarray(state.generated)
        if ids.shape != (n,) or flags.shape != (n,) or scores.ndim != 2 or len(scores) > n:
            raise ValueError("this state contradicts itself")
        if scores.shape[1] != self.n_vocab:
            raise ValueError(f"this state is of a model with {scores.shape[1]} tokens")
        self._check_fits(n, 0)
        self.version += 1
        self.n_tokens, self._last_row = 0, None
        try:
            self._session.load(state.llama_state)
            if self._session.length() != n:
                raise ValueError("this state contradicts itself")
        except BaseException:
            self._session.truncate(0)
            raise
        self.input_ids[:n], self._generated[:n], self.n_tokens = ids, flags, n
        self._kept[:] = False
        if len(scores):
            self._last_row = np.ascontiguousarray(scores[-1], dtype=np.float32).copy()
            if self._logits_all or self._scores is not None:
                self._fill_scores(np.arange(n - len(scores), n))[n - len(scores) : n] = scores
                self._kept[n - len(scores) : n] = True

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
                last = self.n_tokens - 1
                self._fill_scores(np.array([last]))[last] = self.logits()
                self._kept[last] = True
        return self._scores

    def score(self, i: int) -> np.ndarray:
        """A copy of the logits after token i. Raises ValueError where they were not kept."""
        scores = self.need_scores()
        if not 0 <= i < self.n_tokens:
            raise ValueError(f"there is no token {i}: {self.n_tokens} are computed")
        if not self._kept[i]:
            raise ValueError(f"logits after token {i} were not kept: open with logits_all=True")
        return scores[i].copy()

    def _fill_scores(self, rows: np.ndarray) -> np.ndarray:
        """The scores, of which these rows may be written: their memory is in the budget.

        Raises OutOfMemoryError when it is not.
        """
        scores = self.need_scores()
        fresh = rows[~self._filled[rows]]
        if fresh.size:
            n_bytes = fresh.size * self.n_vocab * scores.itemsize
            try:
                reserved = self._model.reserve(f"scores of {fresh.size} tokens", n_bytes)
            except OutOfMemoryError:
                if not self._filled.any():
                    self._scores = None  # nobody has any, so later calls need not want them
                raise
            self._reserved.append(reserved)
            self._filled[fresh] = True
        return scores

    def logits(self) -> np.ndarray:
        """A copy of the last token's logits, float32 [n_vocab]. ValueError before any eval."""
        row = self._require_row()
        return (row if isinstance(row, np.ndarray) else self._session.logits(row)).copy()

    def choose(
        self, sampler: Sampler, processors: Any, n: int, row: np.ndarray | None = None
    ) -> int:
        """A token after n tokens, for the last token's logits or for those in `row`.

        processors: None, or a function of ids and logits that gives logits. Raises ValueError when
        nothing is computed, or when that function gives something else.
        """
        if not processors and row is None:
            last = self._require_row()
            if not isinstance(last, np.ndarray):
                last = self._session.logits_pointer(last)
            return sampler.sample(last, self.n_vocab)
        scores = self.logits() if row is None else row
        if processors:
            changed = processors(self.input_ids[:n], scores)
            scores = np.ascontiguousarray(changed, dtype=np.float32)
            if scores.shape != (self.n_vocab,):
                raise ValueError(f"logits_processor must return {self.n_vocab} numbers")
        return sampler.sample(scores, self.n_vocab)

    def _require_row(self) -> int | np.ndarray:
        if self._last_row is None:
            raise ValueError("there are no logits: nothing has been computed since reset()")
        return self._last_row

    def _check_fits(self, n: int, after: int) -> None:
        if after + n > self.n_ctx:
            raise ContextOverflowError(
                f"{n} tokens after {after} exceed the context of {self.n_ctx} positions"
            )

    def reusable(self, ids: np.ndarray) -> int:
        """Leading positions that a prompt of these ids would compute the same way."""
        return self._session.match(ids)

    def _eval_chunk(
        self, chunk: np.ndarray, keep: np.ndarray, generated: np.ndarray | None = None
    ) -> None:
        start, n = self.n_tokens, len(chunk)
        scores, kept = None, np.flatnonzero(keep)
        if self._logits_all or self._scores is not None:
            scores = self._fill_scores(start + kept)
        self._last_row = None
        self._session.eval(chunk, keep, generated=generated)
        if self._record >= lib.PI_RECORD_FIRED:
            self._fired.append(self._session.activations())
        if self._record >= lib.PI_RECORD_INPUTS:
            self._inputs.append(self._session.ffn_inputs())
        self._kept[start : start + n] = False
        self.input_ids[start : start + n] = chunk
        self._generated[start : start + n] = False if generated is None else generated
        self.n_tokens += n
        self.n_computed += n
        if keep[-1]:
            self._last_row = n - 1
        if scores is not None:
            for row in kept:
                scores[start + row] = self._session.logits(int(row))
                self._kept[start + row] = True


def _joined(parts: list[np.ndarray], option: str) -> np.ndarray:
    """Recordings [n_layer, n_tokens, ...] of several calls as one."""
    if not parts:
        raise ValueError(f"nothing is recorded: open with {option} and compute something")
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
