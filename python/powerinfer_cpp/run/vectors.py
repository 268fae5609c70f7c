"""Vectors of texts and scores of pairs, from an open model."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..core.errors import UnsupportedModelError
from ..core.model import Model
from ..core.sequences.embedding import NONE, RANK, Embedder, Ids
from ..text.inputs import TextInputs
from ..text.prompts import Prompts, Text


class Made(NamedTuple):
    """values: float32 [texts, width], or without pooling [rows, n_embd] of each text; n_tokens: of
    each text, with its prompt and what the tokenizer adds."""

    values: np.ndarray | list[np.ndarray]
    n_tokens: list[int]


class TextVectors:
    """Use it from one thread at a time."""

    def __init__(self, model: Model, prompts: Prompts, embedder: Embedder):
        self._model, self.embedder = model, embedder
        self.inputs = TextInputs(model, prompts, embedder.n_ctx)

    @property
    def ranks(self) -> bool:
        return self.embedder.pooling == RANK

    def embed(
        self,
        texts: Sequence[Text],
        prompt: str = "",
        truncate: bool = True,
        between: Callable[[], None] = lambda: None,
    ) -> Made:
        """What `Llama.embed` computes, not scaled. between: see `Embedder.pooled`."""
        if self.ranks:
            raise UnsupportedModelError(
                f"{self._model.path}: this model ranks texts, and gives no vectors of them "
                "(pooling_type= overrides)"
            )
        ids = [self.inputs.ids(text, prompt, truncate) for text in texts]
        return Made(self.computed(ids, None, between), [len(of) for of in ids])

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        raw_scores: bool = False,
        instruction: str | None = None,
        between: Callable[[], None] = lambda: None,
    ) -> Made:
        """What `Llama.rank` computes: float32 [documents]."""
        if not self.ranks:
            raise ValueError(
                "this model gives vectors of texts, and no scores of pairs: rank() needs a model "
                "that ranks"
            )
        self.require_score()
        if not documents:
            return Made(np.empty(0, np.float32), [])
        ids, types = self.inputs.pairs(query, documents, instruction)
        found = self.computed(ids, types, between)
        return Made(self.scores(np.asarray(found), raw_scores), [len(of) for of in ids])

    def computed(
        self,
        ids: Sequence[Ids],
        types: Sequence[Ids] | None = None,
        between: Callable[[], None] = lambda: None,
    ) -> np.ndarray | list[np.ndarray]:
        """float32 [texts, width]: what the model makes of texts, or of pairs with their token
        types; without pooling [rows, n_embd] of each text. between: see `Embedder.pooled`."""
        if self.embedder.pooling == NONE:
            return [self.embedder.rows(of) for of in ids]
        return self.embedder.pooled(ids, types if self._model.is_encoder else None, between)

    def scores(self, found: np.ndarray, raw: bool) -> np.ndarray:
        """[pairs]: of what was computed for them. raw: the model's numbers as they are."""
        # Two of yes and no: what a softmax of both gives yes is the sigmoid of the difference.
        scores = found[:, 0] - found[:, 1] if found.shape[1] == 2 else found[:, 0]
        if not raw and self._activation() == "sigmoid":
            scores = 1 / (1 + np.exp(-scores.astype(np.float64)))
        return scores

    def require_score(self) -> None:
        """Raises UnsupportedModelError for a head whose labels are not one, or yes and no."""
        model, n = self._model, self.embedder.width
        labels = model.gguf.value(f"{model.architecture}.classifier.output_labels", [])
        if n != 1 and labels != ["yes", "no"]:
            raise UnsupportedModelError(
                f"{model.path}: a head with {n} labels ({model.architecture}.classifier."
                "output_labels): models that rank have one, or yes and no"
            )

    def _activation(self) -> str:
        return str(self._model.gguf.value("powerinfer.rank.activation", "sigmoid"))
