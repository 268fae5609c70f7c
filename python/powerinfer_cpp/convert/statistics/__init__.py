"""Statistics of firings, and how a GGUF stores them."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFValueType

from ...core.errors import ModelFormatError
from ...core.gguf import Gguf
from ...core.model import LayerSizes
from .. import source
from ..embed import embed, from_array
from ..stored import Stored
from ..writer import Entry, string
from .rates import RATES, read_rates

TOKENS, CORPUS = "powerinfer.profile.tokens", "powerinfer.profile.corpus"
# Placements are removed, because they are valid only for the statistics they were solved for.
_OUTDATED = re.compile(r"blk\.\d+\.ffn_tier(_exps)?|powerinfer\.placement\..+")
# Of layers that have neurons.
_NEURONS = re.compile(
    r"blk\.(\d+)\.ffn_(?:up|gate_up|bundle|up_down_rows)(?:_exps|\.0)?(?:\.weight)?"
)


@dataclass(frozen=True)
class Statistics:
    """layers: of each uint64 [experts, n_ff], number of tokens on which each neuron fired; experts:
    1 if a layer has one block, n_ff: 0 if it has none. tokens: number of all tokens. corpus: names
    of the texts."""

    layers: Sequence[np.ndarray]
    tokens: int
    corpus: str

    @property
    def counts(self) -> np.ndarray:
        """uint64 [n_layer, experts, n_ff]. Raises ValueError if layers have different sizes."""
        if len({counts.shape for counts in self.layers}) > 1:
            raise ValueError("layers have different sizes: use `Statistics.layers`")
        return np.stack(self.layers)

    def rates(self) -> np.ndarray:
        """float32 [n_layer, experts, n_ff]: share of tokens on which each neuron fired. Raises
        ValueError if layers have different sizes: then see `layer_rates`."""
        return (self.counts / self.tokens).astype(np.float32)

    def layer_rates(self, layer: int) -> np.ndarray:
        """Those of a layer: float32 [experts, n_ff]."""
        return (self.layers[layer] / self.tokens).astype(np.float32)

    def __add__(self, other: "Statistics") -> "Statistics":
        """The statistics of both texts together."""
        names = [n for s in (self, other) for n in s.corpus.split(" + ")]
        corpus = " + ".join(dict.fromkeys(names))
        layers = [a + b for a, b in zip(self.layers, other.layers, strict=True)]
        return Statistics(layers, self.tokens + other.tokens, corpus)


def tensors(statistics: Statistics, sizes: Sequence[LayerSizes]) -> list[Stored]:
    """ffn_rate of every layer with neurons, of experts ffn_rate_exps."""
    found = []
    for layer, size in enumerate(sizes):
        rates, name = statistics.layer_rates(layer), f"blk.{layer}.ffn_rate"
        if size.n_expert:
            found.append(from_array(f"{name}_exps", rates))
        elif size.n_ff:
            found.append(from_array(name, rates[0]))
    return found


def entries(statistics: Statistics) -> list[Entry]:
    """The keys of the statistics."""
    tokens = Entry(TOKENS, GGUFValueType.UINT64, statistics.tokens)
    return [tokens, string(CORPUS, statistics.corpus)]


def embed_statistics(
    gguf: Gguf, target: str | Path, statistics: Statistics, sizes: Sequence[LayerSizes]
) -> None:
    """Writes the model with new statistics, without a placement for old ones. Raises the errors of
    `embed`."""
    embed(
        gguf,
        target,
        entries(statistics),
        tensors(statistics, sizes),
        removed=lambda name: bool(RATES.fullmatch(name) or _OUTDATED.fullmatch(name)),
    )


def from_gguf(gguf: Gguf) -> Statistics:
    """The statistics in a file. Raises ModelFormatError if they are missing or incomplete."""
    path, rates = gguf.files[0], read_rates(gguf)
    tokens, corpus = gguf.value(TOKENS), gguf.value(CORPUS, "")
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise ModelFormatError(f"{path}: {TOKENS} is missing or not a number of tokens")
    layers = []
    have = {int(match[1]) for t in gguf.tensors if (match := _NEURONS.fullmatch(t.name))}
    for layer in range(source.n_layer(gguf)):
        if layer in have and layer not in rates:
            raise ModelFormatError(f"{path}: layer {layer} has no statistics (ffn_rate)")
        own = rates.get(layer, np.empty((1, 0), np.float32))
        counts = np.rint(own.astype(np.float64) * tokens).astype(np.uint64)
        layers.append(np.atleast_2d(counts))
    return Statistics(layers, tokens, str(corpus))


def merged(parts: Iterable[tuple[str, Statistics]]) -> Statistics:
    """The sum of named statistics. Raises ValueError for models with different sizes."""
    (first, total), *others = parts
    for name, part in others:
        if _shapes(part) != _shapes(total):
            ours, theirs = map(_size, (total, part))
            raise ValueError(f"{name}: statistics of another model, {theirs}; {first} has {ours}")
        total += part
    return total


def _shapes(statistics: Statistics) -> list[tuple[int, ...]]:
    return [counts.shape for counts in statistics.layers]


def _size(statistics: Statistics) -> str:
    layers = Counter(shape for shape in _shapes(statistics) if shape[1])
    named = []
    for (experts, n_ff), n in layers.items():
        mixture = f" of {experts} experts" if experts > 1 else ""
        named.append(f"{n} layers{mixture} of {n_ff} neurons")
    return ", ".join(named)
