"""Counters of firings: with the engine, or with transformers on the original checkpoint."""

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .._native import lib
from ..convert.activations import SMOOTH
from ..core.model import Model
from ..core.options import SPARSE_MODES
from ..core.session import Session

# Names of the down projection of a feed-forward block in the families' checkpoints.
_DOWN = ("down_proj", "fc2", "dense_4h_to_h", "w2")


class Counter(Protocol):
    """Counts firings in windows of tokens, each computed from an empty context."""

    def add(self, window: np.ndarray) -> None:
        """Computes a window of tokens, int32 [n]."""

    def counts(self) -> list[np.ndarray]:
        """Of each layer uint64 [experts, n_ff]: number of tokens so far on which each neuron
        fired."""


def check_sparse(model: Model) -> None:
    """Raises ValueError for a model in which every neuron always fires."""
    threshold = model.gguf.value("powerinfer.ffn.threshold", 0.0)
    if model.activation in SMOOTH and not np.any(np.asarray(threshold) != 0):
        raise ValueError(
            f"{model.path}: with {model.activation} and no powerinfer.ffn.threshold every neuron "
            "fires on every token; set one, for example with `powerinfer profile --cats 50%`"
        )


def recording(
    model: Model, n_ctx: int, sparse: str, record: int, fields: dict[str, Any]
) -> Session:
    """A session that records windows of at most n_ctx tokens, each evaluated in one call. record: a
    PI_RECORD value. fields: fields of pi_session_params."""
    options = {
        **fields,
        "n_ctx": n_ctx,
        "n_batch": n_ctx,
        "n_ubatch": min(n_ctx, fields.get("n_ubatch", 512)),
        "n_logits": 1,
        "n_checkpoints": 0,
        "n_kv_old": 0,
        "sparse": SPARSE_MODES.index(sparse),
        "record": record,
    }
    return Session(model, **options)


class EngineCounter:
    """Counts with the engine in exact mode. fields: fields of pi_session_params."""

    def __init__(self, model: Model, n_ctx: int, **fields: Any):
        self._session = recording(model, n_ctx, "exact", lib.PI_RECORD_COUNTS, fields)
        self._layers = range(model.n_layer)

    def add(self, window: np.ndarray) -> None:
        self._session.truncate(0)
        self._session.eval(window)

    def counts(self) -> list[np.ndarray]:
        return [self._session.layer_firing_counts(i) for i in self._layers]


class TransformersCounter:
    """Counts with transformers on a Hugging Face folder, in float32. A neuron fires if its input
    to the down projection is not zero.

    Raises ImportError without torch or transformers, ValueError for a checkpoint whose down
    projections are not found or do not fit the model.
    """

    def __init__(self, model: Model, checkpoint: Path):
        try:
            import torch
            from transformers import AutoModelForCausalLM
            from transformers.utils import logging
        except ImportError as error:
            raise ImportError(
                f"the backend transformers needs the package {error.name}: "
                "pip install torch transformers"
            ) from None
        logging.disable_progress_bar()  # we show our own
        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        found = [m for name, m in self._model.named_modules() if name.split(".")[-1] in _DOWN]
        sizes = model.sizes
        if len(found) != model.n_layer or model.has_experts:
            raise ValueError(
                f"{checkpoint}: {len(found)} down projections found for {model.n_layer} layers; "
                "the backend transformers knows models with one feed-forward block per layer"
            )
        self._counts = [np.zeros(size.shape, np.uint64) for size in sizes]
        for layer, module in enumerate(found):
            if module.weight.shape[1] != sizes[layer].n_ff:
                raise ValueError(
                    f"{checkpoint}: {module.weight.shape[1]} neurons in layer {layer}; the GGUF "
                    f"has {sizes[layer].n_ff}"
                )
            module.register_forward_pre_hook(self._hook(layer))

    def add(self, window: np.ndarray) -> None:
        with self._torch.no_grad():
            self._model(self._torch.from_numpy(window.astype(np.int64))[None])

    def counts(self) -> list[np.ndarray]:
        return self._counts

    def _hook(self, layer: int) -> Any:
        def note(_module: Any, inputs: tuple[Any, ...]) -> None:
            counts = self._counts[layer][0]
            fired = (inputs[0] != 0).reshape(-1, len(counts))
            counts += fired.sum(0).numpy().astype(np.uint64)

        return note
