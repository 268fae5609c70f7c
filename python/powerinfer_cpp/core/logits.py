"""Functions that change logits or end the generation, between evaluation and sampling."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .checks import function, number, whole

Ids = np.ndarray[tuple[int, ...], np.dtype[np.intc]]
Scores = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
# Arguments: the ids so far [n] and the logits of the next token [n_vocab].
LogitsProcessor = Callable[[Ids, Scores], Scores]
StoppingCriteria = Callable[[Ids, Scores], bool]
# What calls accept: one, several or none.
LogitsProcessors = LogitsProcessor | Sequence[LogitsProcessor] | None
AnyStoppingCriteria = StoppingCriteria | Sequence[StoppingCriteria] | None


def processed(processor: LogitsProcessor | None, ids: Ids, logits: Scores) -> Scores:
    """The logits, float32 [n_vocab], from which a token is chosen: they, or a changed copy.

    Raises ValueError if the processor returns something else than n_vocab numbers.
    """
    if processor is None:
        return logits
    changed = np.ascontiguousarray(processor(ids, logits.copy()), dtype=np.float32)
    if changed.shape != logits.shape:
        raise ValueError(f"logits_processor must return {len(logits)} numbers")
    return changed


class LogitsProcessorList(list[LogitsProcessor]):
    """Applies its members in order."""

    def __call__(self, input_ids: Ids, scores: Scores) -> Scores:
        for processor in self:
            scores = processor(input_ids, scores)
        return scores

    @property
    def has_masks(self) -> bool:
        """Does a member compute masks?"""
        return any(map(has_masks, self))

    def begin_mask(self, input_ids: Ids) -> None:
        """Lets members begin what they can do before the logits are known."""
        for processor in self:
            if hasattr(processor, "begin_mask"):
                processor.begin_mask(input_ids)

    def mask_ready(self, seconds: float) -> bool:
        """Would a call return at once? Waits so long for it."""
        until = time.monotonic() + seconds
        waits = [processor.mask_ready for processor in self if hasattr(processor, "mask_ready")]
        return all(ready(max(0.0, until - time.monotonic())) for ready in waits)


def has_masks(processor: LogitsProcessor | None) -> bool:
    """Does it compute masks before the logits are known? One that holds others says so itself."""
    found: bool = getattr(processor, "has_masks", hasattr(processor, "begin_mask"))
    return found


class StoppingCriteriaList(list[StoppingCriteria]):
    """Ends the generation when any member returns true. reason: why it has ended, "stop", or what
    the member that ended it says in its own `reason`."""

    reason = "stop"

    def __call__(self, input_ids: Ids, logits: Scores) -> bool:
        for criterion in self:
            if criterion(input_ids, logits):
                self.reason = getattr(criterion, "reason", "stop")
                return True
        return False


class MinTokensLogitsProcessor:
    """Forbids a token until `min_tokens` ids have followed those of the first call."""

    def __init__(self, min_tokens: int, token_eos: int):
        self.min_tokens, self.token_eos = min_tokens, token_eos
        self.prompt_tokens: int | None = None

    def __call__(self, input_ids: Ids, scores: Scores) -> Scores:
        if self.prompt_tokens is None:
            self.prompt_tokens = len(input_ids)
        if len(input_ids) - self.prompt_tokens < self.min_tokens:
            scores[self.token_eos] = -np.inf
        return scores


class LogitBias:
    """Adds a number to the logits of some tokens.

    bias: id -> number; ids may be strings, as in JSON. Raises ValueError for ids outside the
    vocabulary.
    """

    def __init__(self, bias: Mapping[int | str, float], n_vocab: int):
        if not isinstance(bias, Mapping):
            raise ValueError(f"logit_bias must map ids to numbers, not be {bias!r}")
        for token, value in bias.items():
            number(f"logit_bias of {token}", value)
        self.ids = np.array([_token(token) for token in bias], dtype=np.intp)
        self.values = np.array(list(bias.values()), dtype=np.float32)
        if ((self.ids < 0) | (self.ids >= n_vocab)).any():
            raise ValueError(f"logit_bias: ids must be from 0 to {n_vocab - 1}")

    def __call__(self, input_ids: Ids, scores: Scores) -> Scores:
        scores[self.ids] += self.values
        return scores


def _token(given: int | str) -> int:
    """The id that a key of logit_bias is. Raises ValueError for what is none."""
    if isinstance(given, str) and given.isdecimal():
        return int(given)
    return whole("an id in logit_bias", given)  # type: ignore[arg-type]


def combined(name: str, value: Any, kind: type) -> Any:
    """One function from a function or a list of functions; None if there are none. name: of the
    argument, for the ValueError of what is neither."""
    if value is None or callable(value):
        return value
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ValueError(f"{name} must be a function or a list of functions, not {value!r}")
    functions = list(value)
    for each in functions:
        function(f"each of {name}", each)
    return kind(functions) if functions else None
