"""Texts that are written in the caller's thread, on the one sequence of a `Context`.

What `Llama` writes goes this way. It is no scheduler with one place: callers see the sequence
between two tokens (`n_tokens`, `scores`, `save_state`), may append to it, and may use it for
something else while a text rests. Choosing tokens is the same piece of code (generation.py).

Who shortens what: a `Context` owns its sequence, and every call that changes it counts
`Context.version` up. A loop that finds another version than its own makes the sequence its text
again, with the longest prefix that is still there.
"""

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.errors import OutOfMemoryError
from ..core.sequences.context import Context
from ..core.session import as_tokens
from ..core.state import BaseLlamaCache, LlamaRAMCache, checkpoints_of
from ..core.stats import Meter
from ..text.completion import Piece
from ..text.logprobs import Choice, choice
from .generation import Generation
from .requests import Request, Ticket
from .runtime import Runtime


class Loop:
    """Writes texts one by one; others may use the context between two tokens.

    opened: the context, if it was used. cache: states of texts, to reuse common beginnings of
    prompts; None: there is none. meter: the times of the last text.
    """

    def __init__(self, runtime: Runtime):
        self._runtime = runtime
        self.opened: Context | None = None
        self.cache: BaseLlamaCache | None = None
        self.meter = Meter()

    @contextmanager
    def held(self) -> Iterator[Context]:
        """What computes, with the runtime's lock. Raises ValueError if that is closed, and what
        opening a context raises."""
        with self._runtime.held():
            if self.opened is None:
                self.opened = self._runtime.open_context()
            yield self.opened

    def pieces(self, request: Request) -> Iterator[Piece]:
        """The pieces of a request's text."""
        cache = self.cache
        parts = (piece for _, piece in self.run(request, cache=cache) if piece is not None)
        return parts if cache is None else self._cached(cache, request.ids, parts)

    def run(
        self, request: Request, reset: bool = True, cache: BaseLlamaCache | None = None
    ) -> Generator[tuple[int, Piece | None], Sequence[int] | None, None]:
        """Each token with the piece of text that it makes certain, up to the one with a reason.

        Ids sent into the generator are appended as a prompt. reset: a new sequence; else the prompt
        comes after what the context holds. cache: gets states of the prompt that the one at the end
        of the text does not stand for. Raises ContextOverflowError when the context is full,
        and what processors and criteria raise.
        """
        of = self._runtime
        with self.held() as context:
            version, n_done = (None, 0) if reset else (context.version, context.n_tokens)
            if n_done:
                flags = np.zeros(len(request.ids), bool)
                flags = np.concatenate([context.generated(), flags])
                ids = np.concatenate([context.input_ids[:n_done], as_tokens(request.ids)])
                request = replace(request, ids=ids, generated=flags)
            ticket = Ticket(request, 0, time.perf_counter())
            text = Generation(ticket, 0, request.limit, of.prompts.token_bytes)
            text.prepare(of.samplers)
            text.n_done = n_done
        meter, prompt = Meter(), True
        while True:
            with self.held() as context:
                before, work, start = context.n_computed, context.work(), time.perf_counter()
                if prompt and cache is not None and context.has_states:
                    self._keep_beginning(context, cache, request)
                self._compute(context, text, version == context.version)
                version, text.n_done = context.version, context.n_tokens
                seconds, n = time.perf_counter() - start, context.n_computed - before
                meter.add(n, seconds, prompt, context.work() - work)
                self.meter = meter
                prompt = False
                piece = text.choose(context.last_logits())
                meter.chosen()
                if request.endless and piece is not None:  # the criteria ended it
                    return
            ended = piece is not None and bool(piece.reason)
            if not ended:
                text.foresee()
            sent = yield text.token, piece
            if ended:
                return
            for token in as_tokens(sent or ()).tolist():
                text.append(token)

    def _compute(self, context: Context, text: Generation, same: bool) -> None:
        """Computes what is left of a text. same: nobody else has used the context."""
        first = context.n_tokens
        if not same:
            context.become(text.ids.all, text.ids.generated, text.checkpoints)
        elif text.drafts is None or len(text.ids) > first + 1 or not text.ids.written:
            context.eval(text.ids.all[first:], text.ids.generated[first:], text.checkpoints)
        elif not context.advance(text.token):
            start = time.perf_counter()
            text.guess(context.n_ctx - len(text.ids), context.guess)
            context.eval_ahead(np.array([text.token], dtype=np.int32), text.guessed)
            text.computed(time.perf_counter() - start)

    def choices(self, ids: Sequence[int], n_top: int) -> list[Choice]:
        """The choices of a prompt's tokens, of which the first has none; it is then computed."""
        rows = [choice(ids[0], None, n_top)]

        def visit(i: int, logits: np.ndarray) -> None:
            if i + 1 < len(ids):
                rows.append(choice(ids[i + 1], logits, n_top))

        with self.held() as context:
            context.visit(as_tokens(ids), visit)
        return rows

    # ---- Known prefixes ------------------------------------------------------------------

    def _cached(
        self, cache: BaseLlamaCache, ids: Sequence[int], parts: Iterator[Piece]
    ) -> Iterator[Piece]:
        """The parts; starts from the cached state with the longest common prefix, and caches."""
        with self.held() as context:
            wanted, state = as_tokens(ids), None
            with suppress(KeyError):  # there is none, or another process has removed it
                state = cache[tuple(ids)]
            if state is not None:
                usable = state.reusable(wanted)
                if state.n_tokens <= context.n_ctx and usable > context.reusable(wanted):
                    with suppress(ValueError):  # of another model or mode, or damaged
                        context.load(state)
            del state  # otherwise its bytes could not be freed to make room
        yield from parts
        with self.held() as context, suppress(OutOfMemoryError):  # it may not fit
            if context.n_tokens:
                self._keep(context, cache)

    def _keep_beginning(self, context: Context, cache: BaseLlamaCache, request: Request) -> None:
        """Computes a prompt up to where others are most likely to go on in another way, and puts
        the state there into a cache."""
        ids = as_tokens(request.ids)
        positions = checkpoints_of(len(ids), request.shared)
        at = max(positions, default=0)
        if at <= context.reusable(ids):
            return
        context.become(ids[:at], np.zeros(at, bool), positions)
        with suppress(OutOfMemoryError):
            self._keep(context, cache)

    def _keep(self, context: Context, cache: BaseLlamaCache) -> None:
        """Puts the state of the sequence into a cache. Removes older states if the budget requires
        it. Raises OutOfMemoryError, with nothing copied, if the state does not fit."""
        model, ours = self._runtime.model, isinstance(cache, LlamaRAMCache)

        def reserve(n_bytes: int) -> Any:
            while True:
                try:
                    return model.reserve("a cached state", n_bytes)
                except OutOfMemoryError:
                    # Remove older states only if that frees enough.
                    if not ours or n_bytes > model.unreserved() + cache.reserved(model):
                        raise
                    cache.forget_oldest()

        state = context.save(reserve)
        cache[tuple(state.input_ids.tolist())] = state
