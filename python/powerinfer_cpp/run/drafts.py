"""Drafts: tokens that may come next, which a model checks in one pass (speculative decoding, arXiv
2211.17192, with the text of the model alone).

A pass over a few rows reads the weights once, so where memory is the limit it takes little longer
than a pass over one. The model still chooses every token itself, from the same logits and random
numbers. So drafts change the time of a text and nothing else.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from ..core.context import ROWS_KEPT, Context
from ..core.logits import Ids
from ..core.model import Model

NO_IDS = np.empty(0, dtype=np.intc)


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

    context: gives what computes it, when it is needed; drafts replace what that holds. lock: is
    held while a draft is made. num_pred_tokens: most tokens of a draft. p_min: a draft ends where
    the model gives its best token less than this probability.
    """

    def __init__(
        self,
        model: Model,
        context: Callable[[], Context],
        lock: AbstractContextManager[Any],
        num_pred_tokens: int = 10,
        p_min: float = 0.5,
    ):
        self.model, self._context, self._lock = model, context, lock
        self.num_pred_tokens, self.p_min = num_pred_tokens, p_min

    @classmethod
    def opened(cls, path: str | Path, n_ctx: int, n_threads: int, **fields: Any) -> "ModelDraft":
        """A draft model from a file, which close() closes. n_threads: 0 for all; fields: further
        pi_model_params. Raises what `Model` and `Session` raise."""
        room = {
            "n_ctx": n_ctx,
            "n_logits": ROWS_KEPT,
            "n_threads": n_threads,
            "n_threads_batch": n_threads,
        }
        model = Model(str(path), None, False, room, n_threads=n_threads, **fields)
        context = Context(model, False, verbose=False, **room)
        return _OwnModel(model, lambda: context, nullcontext())

    def __call__(self, input_ids: Ids, /, **kwargs: Any) -> Ids:
        with self._lock:
            context = self._context()
            ids = np.ascontiguousarray(input_ids, dtype=np.int32)
            most = min(self.num_pred_tokens, kwargs.get("most", self.num_pred_tokens))
            n = min(most, context.n_ctx - len(ids))
            if n <= 0:
                return NO_IDS
            context.become(ids, np.ones(len(ids), dtype=bool))
            found: list[int] = []
            while True:
                logits = context.logits()
                best = int(logits.argmax())
                if not 1 / np.exp(logits - logits[best]).sum() >= self.p_min:
                    break
                found.append(best)
                if len(found) == n:
                    break
                context.eval(np.array([best], dtype=np.int32), np.ones(1, dtype=bool))
            return np.array(found, dtype=np.intc)

    def close(self) -> None:
        """Closes the model, if it was opened for drafts."""


class _OwnModel(ModelDraft):
    def close(self) -> None:
        self._context().close()
        self.model.close()


def draft_model(
    given: LlamaDraftModel | str | Path | None,
    model: Model,
    n_ctx: int,
    n_threads: int,
    **fields: Any,
) -> LlamaDraftModel | None:
    """What `draft_model=` names: None, a LlamaDraftModel, or the path of a smaller model, opened
    as `ModelDraft.opened` says.

    Raises ValueError for anything else, and for a model with another vocabulary.
    """
    if given is None:
        return None
    if isinstance(given, str | Path):
        given = ModelDraft.opened(given, n_ctx, n_threads, **fields)
    if isinstance(given, ModelDraft) and _vocabulary(given.model) != _vocabulary(model):
        given.close()
        raise ValueError(
            f"draft_model: {given.model.path} has another vocabulary than {model.path}: their "
            "tokens must be the same"
        )
    if not callable(given):
        raise ValueError("draft_model must be a LlamaDraftModel or the path of a GGUF file")
    return given


def _vocabulary(model: Model) -> Any:
    return model.n_vocab, model.gguf.metadata.get("tokenizer.ggml.tokens")


class Drafts:
    """Drafts for one text: how many tokens are worth checking, by what was accepted and measured.

    A draft grows while all of it is accepted. If passes with drafts take longer than the tokens
    that they brought would have taken alone, there are none for a while.
    """

    FIRST, REST, LONGEST_REST = 3, 16, 256  # tokens
    TRIAL = 3  # passes with a draft before they are judged
    MEMORY = 0.9  # weight of a pass relative to the next one

    def __init__(self, draft: LlamaDraftModel, most: int, n_vocab: int):
        self._draft, self._n_vocab = draft, n_vocab
        self._most = min(most, ROWS_KEPT) - 1
        self._length = self.FIRST
        self._alone: float | None = None  # seconds of a pass with one token
        self._rest, self._resting = self.REST, 0
        self._passes, self._seconds, self._tokens = 0, 0.0, 0.0  # of passes with drafts
        self._drafted = self._accepted = 0  # of the pass that is being used up

    def propose(self, ids: Ids, room: int) -> Ids:
        """Ids that may follow `ids`, at most `room`."""
        self._judge()
        most = min(self._length, self._most, room)
        if self._resting or self._alone is None or most <= 0:
            self._resting = max(0, self._resting - 1)
            return NO_IDS
        found = np.asarray(self._draft(ids, most=most), dtype=np.intc)
        found = found.reshape(-1)[:most]
        bad = np.flatnonzero((found < 0) | (found >= self._n_vocab))
        return found[: bad[0]] if bad.size else found

    def computed(self, n: int, seconds: float) -> None:
        """A pass with n drafted tokens took so long, with making the draft."""
        if n == 0:
            least = seconds if self._alone is None else min(self._alone * 1.02, seconds)
            self._alone = least
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
        if not self._drafted:
            return
        if self._accepted == self._drafted:
            self._length = max(self._length, min(self._most, 2 * self._drafted))
        else:
            self._length = max(1, self._accepted + 1)
        self._drafted = 0
        if self._passes < self.TRIAL:
            return
        if self._tokens * self._alone >= self._seconds:
            self._rest = self.REST
            return
        self._resting, self._rest = self._rest, min(2 * self._rest, self.LONGEST_REST)
        self._passes, self._seconds, self._tokens, self._length = 0, 0.0, 0.0, 1


def eval_with_draft(context: Context, drafts: Drafts, token: int) -> None:
    """Computes a generated token, and with it the tokens that may follow."""
    start = time.perf_counter()
    ahead = drafts.propose(context.followed_by(token), context.n_ctx - context.n_tokens - 1)
    context.eval_ahead(np.array([token], dtype=np.int32), ahead.astype(np.int32))
    drafts.computed(len(ahead), time.perf_counter() - start)
