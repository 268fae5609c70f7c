"""A text that is written in the caller's thread, on the one sequence of a `Context`.

What `Llama` writes goes this way. It is no scheduler with one place: callers see the sequence
between two tokens (`n_tokens`, `scores`, `save_state`), may append to it, and may use it for
something else while a text rests. Choosing tokens is the same piece of code (generation.py).

Who shortens what: a `Context` owns its sequence, and every call that changes it counts
`Context.version` up. A loop that finds another version than its own makes the sequence its text
again, with the longest prefix that is still there.
"""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ..core.context import Context
from ..core.session import as_tokens
from ..core.stats import Meter
from ..text.completion import Piece
from .generation import Generation, TokenText
from .requests import MakeSampler, Request, Ticket


class Loop:
    """Writes texts one by one; others may use the context between two tokens.

    lock: is held while a token is computed. context: gives what computes, and raises if that is
    closed. make_sampler: a sampler with a seed, for what follows the prompt of a request. text:
    bytes of a token, None for an end token. measured: gets the times of a text, after each of its
    tokens.
    """

    def __init__(
        self,
        lock: AbstractContextManager[Any],
        context: Callable[[], Context],
        make_sampler: MakeSampler,
        text: TokenText,
        measured: Callable[[Meter], None],
    ):
        self._lock, self._context = lock, context
        self._make_sampler, self._text, self._measured = make_sampler, text, measured

    def run(
        self, request: Request, reset: bool = True
    ) -> Generator[tuple[int, Piece | None], Sequence[int] | None, None]:
        """Each token with the piece of text that it makes certain, up to the one with a reason.

        Ids sent into the generator are appended as a prompt. reset: a new sequence; else it begins
        after what the context holds. Raises ContextOverflowError when the context is full, and what
        processors and criteria raise.
        """
        with self._lock:
            version = None if reset else self._context().version
            text = Generation(Ticket(request, 0, time.perf_counter()), 0, request.limit, self._text)
            text.prepare(self._make_sampler)
            text.n_done = 0 if reset else self._context().n_tokens
        meter, prompt = Meter(), True
        while True:
            with self._lock:
                context = self._context()
                before, work, start = context.n_computed, context.work(), time.perf_counter()
                self._compute(context, text, version == context.version)
                version, text.n_done = context.version, context.n_tokens
                seconds, n = time.perf_counter() - start, context.n_computed - before
                meter.add(n, seconds, prompt, context.work() - work)
                self._measured(meter)
                prompt = False
                piece = text.choose(context.last_logits())
                meter.chosen()
                if request.endless and piece is not None:  # the criteria ended it
                    return
            sent = yield text.token, piece
            if piece is not None and piece.reason:
                return
            for token in as_tokens(sent or ()).tolist():
                text.append(token)

    def _compute(self, context: Context, text: Generation, same: bool) -> None:
        """Computes what is left of a text. same: nobody else has used the context."""
        first = context.n_tokens
        if not same:
            context.become(text.ids.all, text.ids.generated)
        elif text.drafts is None or len(text.ids) > first + 1 or not text.ids.written:
            context.eval(text.ids.all[first:], text.ids.generated[first:])
        elif not context.advance(text.token):
            start = time.perf_counter()
            text.guess(context.n_ctx - len(text.ids))
            context.eval_ahead(np.array([text.token], dtype=np.int32), text.guessed)
            text.computed(time.perf_counter() - start)
