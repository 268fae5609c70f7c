"""What holds while a model thinks: a limit of tokens, and a grammar that waits for the answer."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .tools import Thoughts


@dataclass(frozen=True)
class ThoughtLimit:
    """tags: around thoughts. opened: the prompt ends with the opening one. budget: tokens of
    thoughts at most; None: any number."""

    tags: Thoughts
    opened: bool
    budget: int | None


class ThoughtProcessor:
    """A logits processor that ends thoughts where their budget does: it leaves only the tokens of
    the closing tag, one after another. A grammar begins behind the thoughts.

    grammar: a processor. text: bytes of a token, those of control tokens as well. encode: the
    tokens of a text in which texts of control tokens are these. Tokens after those of the first
    call count as generated.
    """

    def __init__(
        self,
        limit: ThoughtLimit,
        grammar: Any,
        text: Callable[[int], bytes],
        encode: Callable[[str], list[int]],
    ):
        self._limit, self._grammar, self._text, self._encode = limit, grammar, text, encode
        self._opening, self._closing = (
            tag.encode("utf-8") for tag in (limit.tags.opening, limit.tags.closing)
        )
        self._n_seen: int | None = None
        self._at = self._think if limit.opened else self._begin
        self._read = b""  # what may become a tag
        self._n = 0  # tokens of thoughts
        self._forced: deque[int] = deque()

    def begin_mask(self, input_ids: np.ndarray) -> None:
        """Begins the grammar's mask for these ids."""
        self._follow(input_ids)
        if self._uses_grammar:
            self._grammar.begin_mask(input_ids)

    def mask_ready(self, seconds: float) -> bool:
        """Would a call with the prepared ids return at once? Waits so long for it."""
        return not self._uses_grammar or self._grammar.mask_ready(seconds)

    def __call__(self, input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        self._follow(input_ids)
        if self._forced:
            out = np.full_like(scores, -np.inf)
            out[self._forced[0]] = 0.0
            return out
        return self._grammar(input_ids, scores) if self._uses_grammar else scores

    @property
    def _uses_grammar(self) -> bool:
        return self._grammar is not None and self._at == self._answer and not self._forced

    def _follow(self, ids: np.ndarray) -> None:
        fresh = ids[len(ids) if self._n_seen is None else self._n_seen :]
        first, self._n_seen = self._n_seen is None, len(ids)
        if first:
            self._end_in_time()
        for token in fresh.tolist():
            if self._forced and self._forced[0] == token:
                self._forced.popleft()
            else:
                self._forced.clear()
            self._at(self._text(token))
            self._end_in_time()

    def _end_in_time(self) -> None:
        budget = self._limit.budget
        thinks = self._at == self._think and not self._forced
        if thinks and budget is not None and self._n >= budget:
            self._forced.extend(self._encode(self._limit.tags.tail))

    # ---- States: each takes the bytes of a token ----

    def _begin(self, data: bytes) -> None:
        self._read = (self._read + data).lstrip()
        if self._read.startswith(self._opening):
            self._read, self._at = self._read[len(self._opening) :], self._think
        elif not self._opening.startswith(self._read):
            self._at = self._answer

    def _think(self, data: bytes) -> None:
        self._n += 1
        self._read += data
        _, found, after = self._read.partition(self._closing)
        if not found:
            self._read = self._read[-len(self._closing) :]
            return
        self._at = self._answer
        if self._grammar is not None and not self._forced:
            # What a template writes between thoughts and answer is no part of the grammar.
            tail = self._limit.tags.tail
            left = tail[tail.index(self._limit.tags.closing) :].encode("utf-8")
            left = left[len(self._closing) :]
            if left.startswith(after):
                self._forced.extend(self._encode(left[len(after) :].decode("utf-8", "ignore")))

    def _answer(self, data: bytes) -> None:
        """Nothing is looked for."""
