"""Statistics of firings, and how a GGUF stores them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFValueType

from ...core.errors import ModelFormatError
from ...core.gguf import Gguf
from .. import source
from ..embed import embed, from_array
from ..stored import Stored
from ..writer import Entry, string
from .rates import RATES, read_rates

TOKENS, CORPUS = "powerinfer.profile.tokens", "powerinfer.profile.corpus"
# Placements are removed, because they are valid only for the statistics they were solved for.
_OUTDATED = re.compile(r"blk\.\d+\.ffn_tier(_exps)?|powerinfer\.placement\..+")


@dataclass(frozen=True)
class Statistics:
    """counts: uint64 [n_layer, experts, n_ff], number of tokens on which each neuron fired. tokens:
    number of all tokens. corpus: names of the texts. experts: 1 if a layer has one block."""

    counts: np.ndarray
    tokens: int
    corpus: str

    def rates(self) -> np.ndarray:
        """float32 [n_layer, experts, n_ff]: share of tokens on which each neuron fired."""
        return (self.counts / self.tokens).astype(np.float32)

    def __add__(self, other: "Statistics") -> "Statistics":
        """The statistics of both texts together."""
        names = [n for s in (self, other) for n in s.corpus.split(" + ")]
        corpus = " + ".join(dict.fromkeys(names))
        return Statistics(self.counts + other.counts, self.tokens + other.tokens, corpus)


def tensors(statistics: Statistics, mixture: bool) -> list[Stored]:
    """ffn_rate of every layer, for mixtures ffn_rate_exps."""
    found = []
    for layer, rates in enumerate(statistics.rates()):
        name = f"blk.{layer}.ffn_rate"
        found.append(from_array(f"{name}_exps", rates) if mixture else from_array(name, rates[0]))
    return found


def entries(statistics: Statistics) -> list[Entry]:
    """The keys of the statistics."""
    tokens = Entry(TOKENS, GGUFValueType.UINT64, statistics.tokens)
    return [tokens, string(CORPUS, statistics.corpus)]


def embed_statistics(gguf: Gguf, target: str | Path, statistics: Statistics, mixture: bool) -> None:
    """Writes the model with new statistics, without a placement for old ones. Raises the errors of
    `embed`."""
    embed(
        gguf,
        target,
        entries(statistics),
        tensors(statistics, mixture),
        removed=lambda name: bool(RATES.fullmatch(name) or _OUTDATED.fullmatch(name)),
    )


def from_gguf(gguf: Gguf) -> Statistics:
    """The statistics in a file. Raises ModelFormatError if they are missing or incomplete."""
    path, rates = gguf.files[0], read_rates(gguf)
    tokens, corpus = gguf.value(TOKENS), gguf.value(CORPUS, "")
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise ModelFormatError(f"{path}: {TOKENS} is missing or not a number of tokens")
    layers = []
    for layer in range(source.n_layer(gguf)):
        if layer not in rates:
            raise ModelFormatError(f"{path}: layer {layer} has no statistics (ffn_rate)")
        layers.append(rates[layer].reshape(-1, rates[layer].shape[-1]).astype(np.float64))
    if len({layer.shape for layer in layers}) != 1:
        raise ModelFormatError(f"{path}: statistics of layers of different sizes")
    counts = np.rint(np.stack(layers) * tokens).astype(np.uint64)
    return Statistics(counts, tokens, str(corpus))


def merged(parts: Iterable[tuple[str, Statistics]]) -> Statistics:
    """The sum of named statistics. Raises ValueError for models with different sizes."""
    (first, total), *others = parts
    for name, part in others:
        if part.counts.shape != total.counts.shape:
            ours, theirs = (_size(s.counts) for s in (total, part))
            raise ValueError(f"{name}: statistics of another model, {theirs}; {first} has {ours}")
        total += part
    return total


def _size(counts: np.ndarray) -> str:
    n_layer, experts, n_ff = counts.shape
    mixture = f" of {experts} experts" if experts > 1 else ""
    return f"{n_layer} layers{mixture} of {n_ff} neurons"
