"""Drafts under the name of llama-cpp-python's module."""

from pathlib import Path
from typing import Any

import numpy as np

from .core.logits import Ids
from .llama import Llama
from .run.drafts import (
    NO_IDS,
    LlamaDraftModel,
    LlamaDraftMtp,
    LlamaPromptLookupDecoding,
    ModelDraft,
)

__all__ = ["LlamaDraftModel", "LlamaDraftMtp", "LlamaModelDecoding", "LlamaPromptLookupDecoding"]


class LlamaModelDecoding(ModelDraft):
    """A smaller model with the same vocabulary, opened from a file or given as a Llama.

    num_pred_tokens: most tokens of a draft. p_min: a draft ends where the model gives its best
    token less than this probability. keywords: of Llama, for a file. Drafts replace what a given
    Llama has computed.
    """

    def __init__(
        self,
        model: Llama | str | Path,
        num_pred_tokens: int = 10,
        p_min: float = 0.5,
        **keywords: Any,
    ):
        self._own = not isinstance(model, Llama)
        of = model if isinstance(model, Llama) else Llama(model, **{"verbose": False, **keywords})
        super().__init__(of._model, num_pred_tokens, p_min)
        self.llama = of

    def __call__(self, input_ids: Ids, /, **kwargs: Any) -> Ids:
        with self.llama._loop.held() as context:
            ids = np.ascontiguousarray(input_ids, dtype=np.int32)
            n = self.most(ids, context.n_ctx, **kwargs)
            if not n:
                return NO_IDS
            # What is guessed behind them may be wrong.
            context.become(ids, np.ones(len(ids), dtype=bool), {len(ids) - 1})
            return self.likely(
                n, context.last_logits, lambda token: context.eval(token, np.ones(1, dtype=bool))
            )

    def close(self) -> None:
        """Closes the model, if it was opened here."""
        if self._own:
            self.llama.close()
