"""Vectors and scores of a served model: requests share one session, and take turns at its calls."""

import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.sequences.embedding import POOLING_NAMES, RANK
from ..run.runtime import Runtime
from ..run.vectors import TextVectors
from ..text.inputs import TextInputs

# While texts are written, a call of several texts takes about so long, so that who writes gets the
# processor back, and others their turn; but it has so many tokens, as it reads all weights.
CALL_SECONDS = 0.1
LEAST_TOKENS = 64

Values = np.ndarray | list[np.ndarray]


@dataclass(frozen=True)
class Asked:
    """Texts, or pairs with their token types, as a model reads them: int32 [n] of each."""

    ids: Sequence[np.ndarray]
    types: Sequence[np.ndarray] | None = None

    @property
    def n_tokens(self) -> int:
        """Of all of them."""
        return sum(map(len, self.ids))


@dataclass(frozen=True)
class Turns:
    """run: runs work in a thread, when it is the sender's turn. busy: are texts written now?"""

    run: Callable[..., Awaitable[Any]]
    busy: Callable[[], bool]


@dataclass
class Counts:
    """What was computed so far; seconds: of the calls."""

    n_texts: int = 0
    n_tokens: int = 0
    seconds: float = 0.0


class Vectors:
    """inputs: what the model reads. n_ctx: tokens of a text at most. Any thread may use it; calls
    follow each other."""

    def __init__(self, runtime: Runtime, n_ctx: int):
        self._runtime = runtime
        self.inputs = TextInputs(runtime.model, runtime.prompts, n_ctx)
        self.counts = Counts()
        self._lock = threading.Lock()
        self._opened: TextVectors | None = None
        self._token_seconds = 0.0  # of a token of a call, on average; 0: not known yet

    @property
    def is_open(self) -> bool:
        """Is there a session?"""
        return self._opened is not None

    @property
    def ranks(self) -> bool:
        """Are there scores of pairs in place of vectors?"""
        return self._runtime.pooling == RANK

    @property
    def pooling(self) -> str | None:
        """The name of what becomes of a text's rows; None: the file asks for what there is not."""
        return POOLING_NAMES.get(self._runtime.pooling)

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        opened = self._opened
        return self._runtime.model.n_embd if opened is None else opened.embedder.width

    def open(self) -> TextVectors:
        """The session, which the first call opens: its threads have the priority of the thread that
        calls this. Raises what `Runtime.open_vectors` raises."""
        if self._opened is not None:  # the event loop never waits for a call that runs
            return self._opened
        with self._lock:
            if self._opened is None:
                opened = self._runtime.open_vectors()
                if opened.ranks:
                    opened.require_score()
                self._opened = opened
            return self._opened

    def groups(self, asked: Asked, busy: Callable[[], bool]) -> Iterator[list[int]]:
        """The texts of each call, by number. busy: are texts written now?"""

        def most() -> int | None:
            if not busy():
                return None
            seconds = self._token_seconds
            return max(LEAST_TOKENS, int(CALL_SECONDS / seconds)) if seconds else LEAST_TOKENS

        return self.open().embedder.groups([len(of) for of in asked.ids], most)

    def computed(self, asked: Asked, group: Sequence[int]) -> Values:
        """What the model makes of the texts of a call. Raises what the engine raises."""
        ids = [asked.ids[i] for i in group]
        types = None if asked.types is None else [asked.types[i] for i in group]
        opened = self.open()
        with self._runtime.in_use(), self._lock:
            begin = time.perf_counter()
            found = opened.computed(ids, types)
            seconds, n = time.perf_counter() - begin, sum(map(len, ids))
        first = not self._token_seconds
        self._token_seconds += (seconds / n - self._token_seconds) * (1 if first else 0.3)
        self.counts.n_texts += len(ids)
        self.counts.n_tokens += n
        self.counts.seconds += seconds
        return found

    def scores(self, found: Values, raw: bool) -> np.ndarray:
        """[pairs]: of what was computed for them; see `TextVectors.scores`."""
        return self.open().scores(np.asarray(found), raw)

    async def calls(self, asked: Asked, turns: Turns) -> AsyncIterator[tuple[list[int], Values]]:
        """Call after call: the numbers of its texts, and what the model makes of them. Who goes
        away between two gets no more computed."""
        if not self.is_open:
            await turns.run(self.open)
        for group in self.groups(asked, turns.busy):
            yield group, await turns.run(self.computed, asked, group)
