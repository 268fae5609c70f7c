"""Drafts: tokens that may come next, which a model checks in one pass (speculative decoding, arXiv
2211.17192, with the text of the model alone).

A pass over a few rows reads the weights once, so where memory is the limit it takes little longer
than a pass over one. The model still chooses every token itself, from the same logits and random
numbers. So drafts change the time of a text and nothing else.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._native import lib
from ..core.errors import ContextOverflowError
from ..core.gguf import Gguf
from ..core.logits import Ids
from ..core.model import Model
from ..core.sequences.context import ROWS_KEPT
from ..core.session import Session
from .sequences import Sequences
from .sequences import fields as fields_of

N_BATCH = 512  # tokens that a draft model computes at once
MOST_ALONE = 128  # tokens that only one of two vocabularies has, such as added ones
_UNUSED = 5  # tokenizer.ggml.token_type
_PADDING = re.compile(r"\[PAD\d+\]")  # as converters name these rows, earlier without the type
NO_IDS = np.empty(0, dtype=np.intc)
# The id behind one that comes next, and its probability (Session.guess).
Guess = Callable[[int], tuple[int, float]]


class LlamaDraftModel(ABC):
    """Guesses how a sequence continues. The interface is llama-cpp-python's."""

    @abstractmethod
    def __call__(self, input_ids: Ids, /, **kwargs: Any) -> Ids:
        """Ids that may follow input_ids, in order; none if there is no good guess.

        input_ids: intc [n], prompt and text so far. most: a keyword, how many ids can be used.
        """


class LlamaPromptLookupDecoding(LlamaDraftModel):
    """Continues as the prompt or the text did when its last tokens occurred before.

    max_ngram_size: most last tokens that are looked for; the longest match counts, and of several
    the latest. num_pred_tokens: most tokens of a draft.
    """

    def __init__(self, max_ngram_size: int = 2, num_pred_tokens: int = 10):
        if max_ngram_size < 1 or num_pred_tokens < 1:
            raise ValueError("max_ngram_size and num_pred_tokens must be at least 1")
        self.max_ngram_size = max_ngram_size
        self.num_pred_tokens = num_pred_tokens

    def __call__(self, input_ids: Ids, /, **kwargs: Any) -> Ids:
        ids = np.asarray(input_ids, dtype=np.intc)
        ends = np.flatnonzero(ids[:-1] == ids[-1])  # where the last token occurred before
        for i in range(1, self.max_ngram_size):
            longer = ends[(ends >= i) & (ids[ends - i] == ids[max(len(ids) - 1 - i, 0)])]
            if not longer.size:
                break
            ends = longer
        if not ends.size:
            return NO_IDS
        return ids[ends[-1] + 1 : ends[-1] + 1 + self.num_pred_tokens]


class ModelDraft(LlamaDraftModel):
    """What a smaller model with the same vocabulary writes next.

    num_pred_tokens: most tokens of a draft. p_min: a draft ends where the model gives its best
    token less than this probability. shared: bool [n_vocab], which of its tokens may be guessed;
    None: all.
    """

    def __init__(self, model: Model, num_pred_tokens: int = 10, p_min: float = 0.5):
        self.model, self.num_pred_tokens, self.p_min = model, num_pred_tokens, p_min
        self.shared: np.ndarray | None = None

    def most(self, ids: np.ndarray, n_ctx: int, **kwargs: Any) -> int:
        """Tokens of the next draft behind the ids; kwargs: those of the call. 0 also where the
        model lacks one of the ids."""
        if len(ids) and ids.max() >= self.model.n_vocab:
            return 0
        room = n_ctx - len(ids)
        return max(0, min(self.num_pred_tokens, kwargs.get("most", self.num_pred_tokens), room))

    def likely(
        self, n: int, logits: Callable[[], np.ndarray], compute: Callable[[np.ndarray], None]
    ) -> Ids:
        """At most n ids, each the most likely one. logits: float32 [n_vocab] of the last position;
        compute: appends int32 [1]."""
        found: list[int] = []
        while True:
            scores = logits()
            best = int(scores.argmax())
            if self.shared is not None and not self.shared[best]:
                break
            if not 1 / np.exp(scores - scores[best]).sum() >= self.p_min:
                break
            found.append(best)
            if len(found) == n:
                break
            compute(np.array([best], dtype=np.int32))
        return np.array(found, dtype=np.intc)

    def close(self) -> None:
        """Closes the model, if it was opened for drafts."""


class LlamaDraftMtp(LlamaDraftModel):
    """One token by the layer that models bring along for that (multi-token prediction).

    p_min: a token less likely than this is no guess.
    """

    num_pred_tokens = 1

    def __init__(self, p_min: float = 0.5):
        self.p_min = p_min

    def __call__(self, input_ids: Ids, /, **kwargs: Any) -> Ids:
        """guess: a keyword, what gives the id behind the last one, and its probability."""
        try:
            token, probability = kwargs["guess"](int(input_ids[-1]))
        except ContextOverflowError:  # others have all positions: the pass makes room
            return NO_IDS
        return np.array([token] if probability >= self.p_min else [], dtype=np.intc)


@dataclass(frozen=True)
class DraftFile:
    """A draft model that is still to be opened; the rest as for `ModelDraft`."""

    path: str | Path
    num_pred_tokens: int = 10
    p_min: float = 0.5


class FileDraft(ModelDraft):
    """A draft model of a file, for one text or for several that take turns.

    n_ctx: positions of a text. n_threads: 0 for the default. n_texts: that are written at the same
    time. fields: further pi_model_params. Raises what `Model` and `Session` raise.
    """

    def __init__(
        self, file: DraftFile, n_ctx: int, n_threads: int, n_texts: int = 1, **fields: Any
    ):
        with Gguf(str(file.path)) as gguf:
            room = fields_of(n_texts, n_ctx, None, N_BATCH, has_states=gguf.has_states)
        n_threads = lib.pi_threads_used(n_threads)  # that it is less than asked for was said
        room |= {"n_ctx": n_ctx, "n_threads": n_threads, "n_threads_batch": n_threads}
        model = Model(str(file.path), None, False, room, n_threads=n_threads, **fields)
        super().__init__(model, file.num_pred_tokens, file.p_min)
        self._session = Session(model, **room)
        self._sequences = Sequences(self._session, room["n_seq"])

    def __call__(self, input_ids: Ids, /, **kwargs: Any) -> Ids:
        ids = np.ascontiguousarray(input_ids, dtype=np.int32)
        n = self.most(ids, self._session.n_ctx, **kwargs)
        if not n:
            return NO_IDS
        flags = np.ones(len(ids), dtype=bool)
        seq, done = self._sequences.take(kwargs.get("owner", ""), ids, flags)
        try:
            # What it lacks after a long prompt it computes over several calls, so that none of them
            # takes long; until then it guesses nothing.
            end = min(len(ids), done + N_BATCH)
            self._compute(ids[done:end], seq, end == len(ids))  # what is guessed may be wrong
            if end < len(ids):
                return NO_IDS
            return self.likely(n, self._logits, lambda token: self._compute(token, seq))
        finally:
            self._sequences.leave(seq, self._session.length(seq))

    def _compute(self, ids: np.ndarray, seq: int, checkpoint: bool = False) -> None:
        """Appends int32 [n] to a sequence; older ones make room. checkpoint: one is kept before the
        last."""
        n = len(ids)
        seqs, generated = np.full(n, seq, dtype=np.int32), np.ones(n, dtype=bool)
        kept_before = np.arange(n) == n - 1 if checkpoint else None
        while True:
            try:
                self._session.eval(ids, None, seqs, generated, kept_before)
            except ContextOverflowError:
                if not self._sequences.forget_one():
                    raise
            else:
                self._last = n - 1
                return

    def _logits(self) -> np.ndarray:
        return self._session.logits(self._last)

    def close(self) -> None:
        """Closes the model."""
        self._session.close()
        self.model.close()


def draft_model(
    given: LlamaDraftModel | DraftFile | str | Path | None,
    model: Model,
    n_ctx: int,
    n_threads: int,
    n_texts: int = 1,
    **fields: Any,
) -> LlamaDraftModel | None:
    """What `draft_model=` names: None, a LlamaDraftModel, or a smaller model's file, opened as
    `FileDraft` says.

    Raises ValueError for anything else, and for a model with another vocabulary.
    """
    if given is None:
        return None
    if isinstance(given, str | Path):
        given = DraftFile(given)
    if isinstance(given, DraftFile):
        given = FileDraft(given, n_ctx, n_threads, n_texts, **fields)
    if isinstance(given, ModelDraft):
        try:
            given.shared = _shared(given.model, model)
        except ValueError:
            given.close()
            raise
    if not callable(given):
        raise ValueError("draft_model must be a LlamaDraftModel or the path of a GGUF file")
    return given


def _shared(draft: Model, model: Model) -> np.ndarray | None:
    """Which of the draft's tokens the model has too, bool [n_vocab]; None: all, as all of its own.

    Rows that only pad an embedding are no tokens: files of one tokenizer have more or fewer of
    them. Raises ValueError for another vocabulary.
    """
    ours, theirs = _texts(draft), _texts(model)
    if ours == theirs:
        return None
    both = list(zip(ours, theirs, strict=False))
    shared = np.array([a is not None and a == b for a, b in both], dtype=bool)
    alone = sum(text is not None for text in (*ours, *theirs)) - 2 * int(shared.sum())
    other = next((i for i, (a, b) in enumerate(both) if a != b and None not in (a, b)), None)
    if other is not None or alone > MOST_ALONE:
        why = f"{alone} tokens are only in one of them"
        if other is not None:
            why = f"token {other} is {ours[other]!r} and {theirs[other]!r}"
        raise ValueError(
            f"draft_model: {draft.path} has another vocabulary than {model.path}: {why}"
        )
    return np.concatenate([shared, np.zeros(len(ours) - len(shared), dtype=bool)])


def _texts(model: Model) -> list[str | None]:
    """The model's tokens, None for rows that are none."""
    texts: Any = model.gguf.value("tokenizer.ggml.tokens", [])
    types: Any = model.gguf.value("tokenizer.ggml.token_type", [])
    unused = {i for i, kind in enumerate(types) if kind == _UNUSED}
    found = [None if i in unused or _PADDING.fullmatch(t) else t for i, t in enumerate(texts)]
    return found + [None] * (model.n_vocab - len(found))


class Drafts:
    """Drafts for one text: how many tokens are worth checking, by what was accepted and measured.

    A draft grows while all of it is accepted. If passes with drafts take longer than the tokens
    that they brought would have taken alone, there are none for a while. What a pass takes depends
    on how many texts it computes, so that is known for each number of them.
    """

    FIRST, REST, LONGEST_REST = 3, 16, 256  # tokens
    TRIAL = 3  # passes with a draft before they are judged
    MEMORY = 0.9  # weight of a pass relative to the next one

    def __init__(self, draft: LlamaDraftModel, most: int, n_vocab: int):
        self._draft, self._n_vocab = draft, n_vocab
        self._most = min(most, ROWS_KEPT) - 1
        self._length = self.FIRST
        self._beside = 1  # texts of a pass
        self._alone: dict[int, float] = {}  # by these: seconds of a pass without drafts
        self._rest, self._resting = self.REST, 0
        self._passes, self._seconds, self._tokens = 0, 0.0, 0.0  # of passes with drafts
        self._drafted = self._accepted = 0  # of the pass that is being used up
        self._of_model = isinstance(draft, LlamaDraftMtp)
        self._tried = False  # has a guess taken time in the next pass that no draft came of?

    def propose(
        self, ids: Ids, room: int, beside: int = 1, owner: str = "", guess: Guess | None = None
    ) -> Ids:
        """Ids that may follow `ids`, at most `room`. beside: texts that the pass computes. owner:
        whose text it is. guess: that of the text's sequence."""
        self._judge()
        if beside != self._beside:
            self._beside, self._passes, self._seconds, self._tokens = beside, 0, 0.0, 0.0
        most = min(self._length, self._most, room)
        if self._resting or beside not in self._alone or most <= 0:
            self._resting = max(0, self._resting - 1)
            return NO_IDS
        more: dict[str, Any] = {"owner": owner} if owner else {}
        if self._of_model:
            more["guess"], self._tried = guess, True
        found = np.asarray(self._draft(ids, most=most, **more), dtype=np.intc)
        found = found.reshape(-1)[:most]
        bad = np.flatnonzero((found < 0) | (found >= self._n_vocab))
        return found[: bad[0]] if bad.size else found

    def computed(self, n: int, seconds: float) -> None:
        """A pass with n drafted tokens took so long, with making the draft."""
        tried, self._tried = self._tried, False
        if n == 0 and not tried:
            before = self._alone.get(self._beside, seconds)
            self._alone[self._beside] = min(before * 1.02, seconds)
            return
        self._drafted, self._accepted = n, 0
        self._passes += 1
        self._seconds = self._seconds * self.MEMORY + seconds
        self._tokens = self._tokens * self.MEMORY + 1

    def advanced(self) -> None:
        """The model chose the next drafted token."""
        self._accepted += 1
        self._tokens += 1

    def _judge(self) -> None:
        """After the last pass with a draft: its length, and whether to rest."""
        if not self._drafted and not self._of_model:
            return
        if self._accepted == self._drafted:
            self._length = max(self._length, min(self._most, 2 * self._drafted))
        else:
            self._length = max(1, self._accepted + 1)
        self._drafted = 0
        if self._passes < self.TRIAL:
            return
        if self._tokens * self._alone[self._beside] >= self._seconds:
            self._rest = self.REST
            return
        self._resting, self._rest = self._rest, min(2 * self._rest, self.LONGEST_REST)
        self._passes, self._seconds, self._tokens, self._length = 0, 0.0, 0.0, 1
