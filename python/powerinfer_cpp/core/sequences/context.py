"""One sequence of tokens in a session: its positions, their logits, and the choice of tokens."""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from ..._native import lib
from ..errors import ContextOverflowError, ModelFormatError, OutOfMemoryError
from ..model import Model, release
from ..session import Session
from ..state import NUMERICS, STATE_VERSION, LlamaState, checkpoint_flags, parting
from ..work import Work
from .adapters import Adapters

# Rows per engine call whose logits can be kept, if only some calls need all of them.
ROWS_KEPT = 32


class Context:
    """Tokens of a session, and their logits.

    n_tokens: computed positions. input_ids: intc [n_ctx], the first n_tokens are valid. version:
    counts changes, so that a caller can see whether another caller used the context in between.
    has_states: layers have a state, so that the sequence cannot be cut everywhere.
    Keyword arguments are those of Session. Use it from one thread at a time.
    """

    def __init__(self, model: Model, logits_all: bool, **fields: Any):
        self._session = Session(model, **fields)
        self._rows_kept = min(
            fields.get("n_logits") or self._session.n_batch, self._session.n_batch
        )
        self._logits_all = logits_all
        self.n_vocab, self.has_states = model.n_vocab, model.has_states
        self.n_ctx = self._session.n_ctx
        self.n_tokens = 0
        self.n_computed = 0  # all computed tokens, including truncated ones
        self.input_ids = np.zeros(self.n_ctx, dtype=np.intc)
        self._generated = np.zeros(self.n_ctx, dtype=bool)  # same index as input_ids
        self.version = 0
        # The last token's logits: a row of the engine's last call, or a copy.
        self._last_row: int | np.ndarray | None = None
        self._n_ahead = 0  # positions after n_tokens that are computed, in the engine's last call
        self._scores: np.ndarray | None = None
        self._filled = np.zeros(self.n_ctx, dtype=bool)  # rows of scores that have memory
        self._kept = np.zeros(self.n_ctx, dtype=bool)  # rows of scores with a token's logits
        self._reserved: list[Any] = []  # reservations for scores in the model's budget
        self._model = model
        self._record = fields.get("record", lib.PI_RECORD_OFF)
        self._one_block = not model.has_experts
        self._fired: list[np.ndarray] = []  # of the last `eval` or `visit`, call by call
        self._inputs: list[np.ndarray] = []

    def close(self) -> None:
        """Frees the session and its reservations."""
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
        """The work of the session so far."""
        return self._session.work()

    def activations(self) -> np.ndarray:
        """Which neurons fired at the tokens of the last eval.

        bool [n_layer, n_tokens, n_ff], with experts [n_layer, n_tokens, n_expert, n_ff]. Raises
        ValueError if this is not recorded, or nothing has been computed.
        """
        fired = _joined(self._fired, 'record="fired"')
        return fired[:, :, 0] if self._one_block else fired

    def ffn_inputs(self) -> np.ndarray:
        """float32 [n_layer, n_tokens, n_embd]: inputs of predictors at the last eval's tokens.

        Raises ValueError if this is not recorded, or nothing has been computed.
        """
        return _joined(self._inputs, 'record="fired+input"')

    def tokens(self) -> list[int]:
        """Ids of the computed positions."""
        return self.input_ids[: self.n_tokens].tolist()

    def generated(self) -> list[bool]:
        """Whether each computed position is a generated token."""
        return self._generated[: self.n_tokens].tolist()

    def eval(
        self,
        ids: np.ndarray,
        generated: np.ndarray | None = None,
        checkpoints: Collection[int] = (),
    ) -> None:
        """Appends and computes int32 ids [n], in calls of n_batch rows.

        generated: bool [n], True for generated tokens; None: all are prompt. checkpoints: positions
        where the states of layers are kept. Raises ContextOverflowError, before anything is
        computed, if the ids do not fit.
        """
        self._check_fits(len(ids), self.n_tokens)
        self._drop_ahead()
        self.version += 1
        self._fired, self._inputs = [], []
        n_batch = self._session.n_batch
        for first in range(0, len(ids), n_batch):
            part = slice(first, min(first + n_batch, len(ids)))
            keep = np.full(part.stop - first, self._logits_all)
            keep[-1] |= part.stop == len(ids)
            of_part = None if generated is None else generated[part]
            self._eval_chunk(ids[part], keep, of_part, checkpoints)

    def eval_ahead(self, token: np.ndarray, ahead: np.ndarray) -> None:
        """Appends one generated token, int32 [1], and computes what may follow, int32 [n], in the
        same pass: n < n_batch, and their logits must be kept.

        The latter are no part of the sequence until `advance` takes them, one by one; every other
        call drops them. Raises ContextOverflowError if all do not fit.
        """
        ids = np.concatenate([token, ahead])
        self._drop_ahead()
        n, start = len(ids), self.n_tokens
        self._check_fits(n, start)
        self.version += 1
        self._last_row = None
        flags = np.ones(n, dtype=bool)
        self._session.eval(ids, flags, generated=flags)
        self.input_ids[start : start + n], self._generated[start : start + n] = ids, True
        self.n_computed += n
        self._n_ahead, self._last_row = n, -1
        self._take_ahead()

    def guess(self, token: int) -> tuple[int, float]:
        """What may follow a token that comes next, and its probability: `Session.guess`."""
        self._drop_ahead()
        return self._session.guess(token)

    def advance(self, token: int) -> bool:
        """Appends a generated token, if `eval_ahead` has computed it here."""
        if not self._n_ahead or self.input_ids[self.n_tokens] != token:
            return False
        self.version += 1
        self._take_ahead()
        return True

    def _take_ahead(self) -> None:
        at, row = self.n_tokens, self._last_row + 1
        self._kept[at] = False
        self.n_tokens, self._n_ahead, self._last_row = at + 1, self._n_ahead - 1, row
        if self._logits_all or self._scores is not None:
            self._fill_scores(np.array([at]))[at] = self._session.logits(row)
            self._kept[at] = True

    def _drop_ahead(self) -> None:
        if self._n_ahead:
            self._session.truncate(self.n_tokens)
            self._n_ahead = 0

    def set_adapters(self, adapters: Adapters) -> None:
        """Computes with these adapters from now on; the sequence becomes empty if that changes
        something. Raises what Session.set_adapters raises."""
        self._drop_ahead()
        adapters.apply(self._session)
        if self._session.length() != self.n_tokens:
            self.truncate(0)

    def visit(self, ids: np.ndarray, visit: Callable[[int, np.ndarray], None]) -> None:
        """Clears the sequence, computes int32 ids [n], and calls visit(i, logits after token i).

        The visitor may change the logits, float32 [n_vocab]. Raises ContextOverflowError if the
        ids do not fit.
        """
        self._check_fits(len(ids), 0)
        self.truncate(0)
        self._fired, self._inputs = [], []
        for first in range(0, len(ids), self._rows_kept):
            chunk = ids[first : first + self._rows_kept]
            self._eval_chunk(chunk, np.ones(len(chunk), dtype=bool))
            for row in range(len(chunk)):
                visit(first + row, self._session.logits(row).copy())

    def become(
        self, ids: np.ndarray, generated: np.ndarray, checkpoints: Collection[int] = ()
    ) -> None:
        """Makes the sequence equal to ids; generated: flag of each id. checkpoints: as for `eval`.

        Keeps the longest prefix that was computed in the same way and can be continued; always
        computes the last id.
        """
        before = len(ids) - 1
        same = self._session.match(ids[:before], generated[:before])
        self._check_fits(len(ids) - same, same)
        parted = parting(self.input_ids[: self.n_tokens], ids, same)
        self.truncate(same)
        self.eval(ids[same:], generated[same:], parted.union(checkpoints))

    def save(self, reserve: Callable[[int], Any] | None = None) -> LlamaState:
        """The state of the sequence, with the logits that were kept.

        reserve: takes its bytes from the model's budget before anything is copied, and gives the
        reservation, which the state keeps; what it raises is raised. None: they are the caller's.
        """
        self._drop_ahead()
        every = self._scores is not None and self._logits_all
        n_rows = self.n_tokens if every else int(self._last_row is not None)
        n_bytes = self._session.saved_bytes() + 4 * n_rows * self.n_vocab
        n_bytes += self.n_tokens * (self.input_ids.itemsize + self._generated.itemsize)
        reserved = None if reserve is None else reserve(n_bytes)
        if every:
            assert self._scores is not None
            scores = self._scores[: self.n_tokens].copy()
        elif n_rows:
            scores = self.logits()[None]
        else:
            scores = np.empty((0, self.n_vocab), dtype=np.float32)
        data = self._session.save()
        ids = self.input_ids[: self.n_tokens].copy()
        flags, n_prompt = self._generated[: self.n_tokens].copy(), self._session.match(ids)
        state = LlamaState(
            ids,
            scores,
            self.n_tokens,
            data,
            len(data),
            flags,
            n_prompt,
            whole=self._session.first_cut() > 1,
            version=STATE_VERSION,
            numerics=NUMERICS,
        )
        if reserved is not None:
            state._reserved = self._model, reserved
        return state

    def load(self, state: LlamaState) -> None:
        """Restores a state from `save`.

        Raises ContextOverflowError, ModelFormatError, or ValueError for a state that contradicts
        itself or has another version (for other numerics: ModelFormatError). After an error the
        sequence is unchanged or, after a ModelFormatError, empty.
        """
        if state.version != STATE_VERSION:
            raise ValueError(
                f"this state has version {state.version}, only version {STATE_VERSION} can be "
                "loaded: it was saved by another version of powerinfer_cpp"
            )
        if state.numerics != NUMERICS:
            raise ModelFormatError(
                f"this state was computed with numerics {state.numerics}, and this version of "
                f"powerinfer_cpp has {NUMERICS}: it rounds results differently"
            )
        ids, scores, n = np.asarray(state.input_ids), np.asarray(state.scores), state.n_tokens
        flags = np.asarray(state.generated)
        if ids.shape != (n,) or flags.shape != (n,) or scores.ndim != 2 or len(scores) > n:
            raise ValueError("this state contradicts itself")
        if scores.shape[1] != self.n_vocab:
            raise ValueError(f"this state is of a model with {scores.shape[1]} vocabulary tokens")
        self._check_fits(n, 0)
        self.version += 1
        self.n_tokens, self._last_row, self._n_ahead = 0, None, 0
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
        """Drops every position from n on."""
        self._session.truncate(n)
        self.version += 1
        self.n_tokens, self._last_row, self._n_ahead = n, None, 0

    def need_scores(self) -> np.ndarray:
        """The array float32 [n_ctx, n_vocab]; later calls fill it, the last token's row is filled.

        Raises OutOfMemoryError if memory is not sufficient.
        """
        if self._scores is None:
            try:  # the system allocates pages when rows are written
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
        """A copy of the logits after token i. Raises ValueError if they were not kept."""
        scores = self.need_scores()
        if not 0 <= i < self.n_tokens:
            raise ValueError(f"there is no token {i}: {self.n_tokens} are computed")
        if not self._kept[i]:
            raise ValueError(f"logits after token {i} were not kept: open with logits_all=True")
        return scores[i].copy()

    def _fill_scores(self, rows: np.ndarray) -> np.ndarray:
        """The scores, after reserving memory for these rows in the budget.

        Raises OutOfMemoryError if the budget is not sufficient.
        """
        scores = self.need_scores()
        fresh = rows[~self._filled[rows]]
        if fresh.size:
            n_bytes = fresh.size * self.n_vocab * scores.itemsize
            try:
                reserved = self._model.reserve(f"scores of {fresh.size} tokens", n_bytes)
            except OutOfMemoryError:
                if not self._filled.any():
                    self._scores = None  # no row is filled, so later calls need not fill any
                raise
            self._reserved.append(reserved)
            self._filled[fresh] = True
        return scores

    def logits(self) -> np.ndarray:
        """A copy of the last token's logits, float32 [n_vocab]. Raises ValueError before eval."""
        return self.last_logits().copy()

    def last_logits(self) -> np.ndarray:
        """The same as a view, which the next call that computes invalidates."""
        row = self._last_row
        if row is None:
            raise ValueError("there are no logits: nothing has been computed since reset()")
        return row if isinstance(row, np.ndarray) else self._session.logits(row)

    def _check_fits(self, n: int, after: int) -> None:
        if after + n > self.n_ctx:
            raise ContextOverflowError(
                f"{n} tokens after {after} exceed the context of {self.n_ctx} positions"
            )

    def reusable(self, ids: np.ndarray) -> int:
        """Number of leading positions that a prompt of these ids need not compute again."""
        return self._session.match(ids[: len(ids) - 1])

    def _eval_chunk(
        self,
        chunk: np.ndarray,
        keep: np.ndarray,
        generated: np.ndarray | None = None,
        checkpoints: Collection[int] = (),
    ) -> None:
        start, n = self.n_tokens, len(chunk)
        scores, kept = None, np.flatnonzero(keep)
        if self._logits_all or self._scores is not None:
            scores = self._fill_scores(start + kept)
        self._last_row = None
        kept_before = checkpoint_flags(start, n, checkpoints)
        try:
            self._session.eval(chunk, keep, generated=generated, checkpoint=kept_before)
        except BaseException:  # it may have given up the windows that the sequence ended with
            self.n_tokens = min(self.n_tokens, self._session.length())
            raise
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
    """Joins recordings [n_layer, n_tokens, ...] of several calls."""
    if not parts:
        raise ValueError(f"nothing is recorded: open with {option} and compute something")
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
