"""Drafts under the name of llama-cpp-python's module."""

from pathlib import Path
from typing import Any

from .llama import Llama
from .run.drafts import LlamaDraftModel, LlamaPromptLookupDecoding, ModelDraft

__all__ = ["LlamaDraftModel", "LlamaModelDecoding", "LlamaPromptLookupDecoding"]


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
        super().__init__(of._model, lambda: of._computing, of._lock, num_pred_tokens, p_min)
        self.llama = of

    def close(self) -> None:
        """Closes the model, if it was opened here."""
        if self._own:
            self.llama.close()
