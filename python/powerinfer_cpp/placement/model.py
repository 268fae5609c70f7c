"""The properties of a model that a placement needs."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..convert import source
from ..core.gguf import Gguf
from .parts import Part, read_parts
from .statistics import LayerStatistics, model_hash, read_statistics, statistics_hash

# Predictors that find 91 to 93% of the firings propose about twice as many neurons as fire
# (ProSparse's table 2: 21% for 11%, 22% for 11%).
OVERSHOOT = 2.0


@dataclass(frozen=True)
class Neurons:
    """Neurons of a layer, the hottest first.

    order: int64 [n], ids (experts one after another). rates: float64 [n], firings per token.
    reads: float64 [n], expected share of the neuron's bytes that a token reads.
    """

    statistics: LayerStatistics
    order: np.ndarray
    rates: np.ndarray
    reads: np.ndarray

    @property
    def n(self) -> int:
        return len(self.order)

    @property
    def neuron_bytes(self) -> int:
        """Bytes of one neuron, rounded up if a neuron is a column of blocks."""
        return -(-self.statistics.n_bytes // self.n)


def neurons(layer: LayerStatistics, overshoot: float | None = None, chosen: float = 1.0) -> Neurons:
    """The neurons of a layer.

    overshoot: neurons that a predictor proposes per firing; None: no predictor, so every gate is
    read. Of a proposed neuron the gate is read first, and the rest if it fires. chosen: share of
    the tokens that choose an expert.
    """
    order = np.argsort(-layer.rates.reshape(-1), kind="stable")
    rates = layer.rates.reshape(-1)[order].astype(np.float64)
    first = layer.first_bytes / layer.n_bytes
    if overshoot is not None:
        proposed = np.minimum(1.0, overshoot * rates)
    else:
        proposed = np.maximum(chosen, rates)
    reads = first * proposed + (1 - first) * np.minimum(rates, proposed)
    return Neurons(layer, order, rates, reads)


@dataclass(frozen=True)
class PlacementModel:
    """A model to place. path: its file. layers: its neurons. parts: everything else."""

    path: str
    layers: list[Neurons]
    parts: list[Part]
    model_hash: str
    statistics_hash: str

    @cached_property
    def firings(self) -> float:
        """Firing neurons per token."""
        return float(sum(layer.rates.sum() for layer in self.layers))


def read_model(
    gguf: Gguf, n_ctx: int = 0, n_ubatch: int = 512, overshoot: float | None = None
) -> PlacementModel:
    """A model with statistics and a context of n_ctx positions (0: the model's own).

    n_ubatch: tokens computed at once. overshoot: neurons that predictors propose per firing; None:
    the file's value, else OVERSHOOT.

    Raises ModelFormatError for a file without statistics, and the errors of opening the model.
    """
    statistics = read_statistics(gguf)
    parts = read_parts(gguf, n_ctx, n_ubatch)
    predicted = {p.layer for p in parts if p.kind == "predictor"}
    layers = [
        neurons(
            layer,
            _overshoot(gguf, layer.layer, overshoot) if layer.layer in predicted else None,
            _chosen(gguf, layer),
        )
        for layer in statistics
    ]
    return PlacementModel(
        gguf.files[0], layers, parts, model_hash(gguf), statistics_hash(statistics)
    )


def _chosen(gguf: Gguf, layer: LayerStatistics) -> float:
    """The share of a layer's experts that a token chooses; 1 of a layer with one block."""
    if not layer.is_experts:
        return 1.0
    return min(1.0, source.size(gguf, "expert_used_count", layer=layer.layer) / len(layer.rates))


def _overshoot(gguf: Gguf, layer: int, given: float | None) -> float:
    """Proposals per firing: recall / precision, if the file has both for the layer."""
    if given is not None:
        return given
    quality = []
    for key in ("powerinfer.predictor.recall", "powerinfer.predictor.precision"):
        value = gguf.value(key)
        fits = isinstance(value, list) and layer < len(value)
        number = value[layer] if fits else None
        quality.append(number if isinstance(number, float) and 0 < number <= 1 else None)
    recall, precision = quality
    return OVERSHOOT if recall is None or precision is None else recall / precision
