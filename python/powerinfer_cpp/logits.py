"""Functions that change logits, or end a generation, between evaluation and sampling."""

from collections.abc import Callable, Mapping

import numpy as np

from .options import whole

# Both get the ids so far (intc [n]) and the logits of the next token (float32 [n_vocab]).
LogitsProcessor = Callable[[np.ndarray, np.ndarray], np.ndarray]
StoppingCriteria = Callable[[np.ndarray, np.ndarray], bool]


class LogitsProcessorList(list[LogitsProcessor]):
    """Applies its members in order."""

    def __call__(self, input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


class StoppingCriteriaList(list[StoppingCriteria]):
    """Ends the generation when any member says so."""

    def __call__(self, input_ids: np.ndarray, logits: np.ndarray) -> bool:
        return any(criterion(input_ids, logits) for criterion in self)


class MinTokensLogitsProcessor:
    """Forbids a token until `min_tokens` ids have followed those of the first call."""

    def __init__(self, min_tokens: int, token_eos: int):
        self.min_tokens, self.token_eos = min_tokens, token_eos
        self.prompt_tokens: int | None = None

    def __call__(self, input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        if self.prompt_tokens is None:
            self.prompt_tokens = len(input_ids)
        if len(input_ids) - self.prompt_tokens < self.min_tokens:
            scores[self.token_eos] = -np.inf
        return scores


class LogitBias:
    """Adds a number to the logits of chosen tokens.

    bias: id -> number; ids may be strings, as JSON has them. Raises ValueError for ids outside the
    vocabulary.
    """

    def __init__(self, bias: Mapping[int | str, float], n_vocab: int):
        ids = [int(t) if isinstance(t, str) else whole("logit_bias", t) for t in bias]
        self.ids = np.array(ids, dtype=np.intp)
        self.values = np.array(list(bias.values()), dtype=np.float32)
        if ((self.ids < 0) | (self.ids >= n_vocab)).any():
            raise ValueError(f"logit_bias: ids must be from 0 to {n_vocab - 1}")

    def __call__(self, input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        scores[self.ids] += self.values
        return scores
