"""What holds while a model thinks: a limit of tokens, and a grammar that waits for the answer."""

import codecs
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from .grammar import GrammarProcessor
from .masks import Vocabulary
from .tools import Thoughts


@dataclass(frozen=True)
class ThoughtLimit:
    """tags: around thoughts. opened: the prompt ends with the opening one. budget: tokens of
    thoughts at most; None: any number. shown: ids of control tokens that are part of the text, by
    their texts."""

    tags: Thoughts
    opened: bool
    budget: int | None = None
    shown: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Waiting:
    """A grammar that waits for the end of thoughts, and the vocabulary of its masks."""

    grammar: GrammarProcessor
    vocabulary: Vocabulary


class ThoughtProcessor:
    """A logits processor that ends thoughts where their budget does: it leaves only the tokens of
    the closing tag, one after another.

    waiting: sleeps only within thoughts that the prompt has opened; without these it begins at
    once. While it sleeps, whatever would end the text closes the thoughts instead, and no token
    begins the answer together with the end of the closing tag.

    text: bytes of a token that is no control token. encode: the tokens of a text in
    which texts of control tokens are these. Tokens after those of the first call count as
    generated.
    """

    def __init__(
        self,
        limit: ThoughtLimit,
        waiting: Waiting | None,
        text: Callable[[int], bytes],
        encode: Callable[[str], list[int]],
    ):
        self._limit, self._text, self._encode = limit, text, encode
        self._shown = {token: name.encode("utf-8") for name, token in limit.shown.items()}
        self._opening, self._closing = limit.tags.opening, limit.tags.closing
        # What a template writes between thoughts and answer is no part of the grammar.
        self._left = limit.tags.tail.partition(self._closing)[2]
        self._grammar = None
        begin = self._begin
        if waiting is not None:
            self._grammar, begin = waiting.grammar, self._answer
            self._close = encode(self._closing + self._left)
            # Some formats close thoughts with a token that ends answers elsewhere.
            self._ends = np.setdiff1d(waiting.vocabulary.ends, self._close)
            self._past = waiting.vocabulary.going_past(self._closing, self._left)
        self._at = self._think if limit.opened else begin
        self._n_seen: int | None = None
        self._read = ""  # what may become a tag
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")  # as texts are read
        self._n = 0  # tokens of thoughts
        self._forced: deque[int] = deque()
        self._ends_here = False  # is the closing tag rather an end than the model's own?
        self._answers = False  # has the grammar begun?

    def begin_mask(self, input_ids: np.ndarray) -> None:
        """Begins the grammar's mask for these ids."""
        self._follow(input_ids)
        if self._answers:
            self._grammar.begin_mask(input_ids)

    def mask_ready(self, seconds: float) -> bool:
        """Would a call with the prepared ids return at once? Waits so long for it."""
        return not self._answers or self._grammar.mask_ready(seconds)

    def __call__(self, input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        self._follow(input_ids)
        if self._answers:
            return self._grammar(input_ids, scores)
        if self._forced:
            out = np.full_like(scores, -np.inf)
            out[self._forced[0]] = 0.0
            return out
        return scores if self._grammar is None else self._held(scores)

    def _held(self, scores: np.ndarray) -> np.ndarray:
        """The scores within thoughts for which a grammar waits."""
        for before, tokens in self._past.items():
            if self._read.endswith(before):
                scores[tokens] = -np.inf
        first, end = self._close[0], np.logaddexp.reduce(scores[self._ends])
        self._ends_here = bool(end > scores[first])
        scores[first] = np.logaddexp(scores[first], end)
        scores[self._ends] = -np.inf
        return scores

    def _follow(self, ids: np.ndarray) -> None:
        first = self._n_seen is None
        begin, self._n_seen = len(ids) if first else self._n_seen, len(ids)
        if first:
            self._end_in_time()
        for n, token in enumerate(ids[begin:].tolist(), begin):
            forced = bool(self._forced) and self._forced[0] == token
            if forced:
                self._forced.popleft()
            else:
                self._forced.clear()
                if self._at == self._answer:
                    self._answer_from(n)
                    return
                if self._ends_here and token == self._close[0]:
                    self._forced.extend(self._close[1:])
            self._ends_here = False
            data = self._shown[token] if token in self._shown else self._text(token)
            self._at(self._decoder.decode(data))
            self._end_in_time()
        if self._at == self._answer and not self._forced:
            self._answer_from(len(ids))

    def _answer_from(self, n: int) -> None:
        """The answer begins behind n ids, unless it has begun."""
        if self._grammar is not None and not self._answers:
            self._answers = True
            self._grammar.begin(n)

    def _end_in_time(self) -> None:
        budget = self._limit.budget
        thinks = self._at == self._think and not self._forced
        if thinks and budget is not None and self._n >= budget:
            self._forced.extend(self._encode(self._limit.tags.tail))

    # ---- States: each takes the text of a token ----

    def _begin(self, text: str) -> None:
        self._read = (self._read + text).lstrip()
        if self._read.startswith(self._opening):
            self._read, self._at = self._read[len(self._opening) :], self._think
        elif not self._opening.startswith(self._read):
            self._at = self._answer

    def _think(self, text: str) -> None:
        self._n += 1
        self._read += text
        _, found, after = self._read.partition(self._closing)
        if not found:
            self._read = self._read[-len(self._closing) :]
            return
        self._at = self._answer
        if self._grammar is not None and not self._forced and self._left.startswith(after):
            self._forced.extend(self._encode(self._left[len(after) :]))

    def _answer(self, text: str) -> None:
        """Nothing is looked for."""
