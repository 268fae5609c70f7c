"""How often neurons fired: what a profile is, and how a GGUF holds it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFValueType

from ..convert import source
from ..convert.embed import embed, from_array
from ..convert.stored import Stored
from ..convert.writer import Entry, string
from ..errors import ModelFormatError
from ..gguf import Gguf
from ..rates import RATES, read_rates

TOKENS, CORPUS = "powerinfer.profile.tokens", "powerinfer.profile.corpus"
# A placement was solved for statistics, and is none of others.
_OUTDATED = re.compile(r"blk\.\d+\.ffn_tier(_exps)?|powerinfer\.placement\..+")


@dataclass(frozen=True)
class Statistics:
    """counts: uint64 [n_layer, experts, n_ff], tokens on which each neuron fired, out of `tokens`
    of texts named in corpus. experts: 1 where a layer has one block."""

    counts: np.ndarray
    tokens: int
    corpus: str

    def rates(self) -> np.ndarray:
        """float32 [n_layer, experts, n_ff]: share of tokens on which each neuron fired."""
        return (self.counts / self.tokens).astype(np.float32)

    def __add__(self, other: "Statistics") -> "Statistics":
        """Those of both texts together."""
        names = [n for s in (self, other) for n in s.corpus.split(" + ")]
        corpus = " + ".join(dict.fromkeys(names))
        return Statistics(self.counts + other.counts, self.tokens + other.tokens, corpus)


def tensors(statistics: Statistics, mixture: bool) -> list[Stored]:
    """ffn_rate of every layer, of mixtures ffn_rate_exps."""
    found = []
    for layer, rates in enumerate(statistics.rates()):
        name = f"blk.{layer}.ffn_rate"
        found.append(from_array(f"{name}_exps", rates) if mixture else from_array(name, rates[0]))
    return found


def entries(statistics: Statistics) -> list[Entry]:
    """The keys that go with them."""
    tokens = Entry(TOKENS, GGUFValueType.UINT64, statistics.tokens)
    return [tokens, string(CORPUS, statistics.corpus)]


def embed_statistics(gguf: Gguf, target: str | Path, statistics: Statistics, mixture: bool) -> None:
    """Writes the model with statistics instead of those it has, and without a placement that was
    solved for them. Raises what `embed` raises."""
    embed(
        gguf,
        target,
        entries(statistics),
        tensors(statistics, mixture),
        removed=lambda name: bool(RATES.fullmatch(name) or _OUTDATED.fullmatch(name)),
    )


def from_gguf(gguf: Gguf) -> Statistics:
    """The statistics in a file. Raises ModelFormatError where there are none, or half of them."""
    path, rates = gguf.files[0], read_rates(gguf)
    tokens, corpus = gguf.value(TOKENS), gguf.value(CORPUS, "")
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise ModelFormatError(f"{path}: {TOKENS} is missing or no count of tokens")
    layers = []
    for layer in range(source.size(gguf, "block_count")):
        if layer not in rates:
            raise ModelFormatError(f"{path}: layer {layer} has no statistics (ffn_rate)")
        layers.append(rates[layer].reshape(-1, rates[layer].shape[-1]).astype(np.float64))
    if len({layer.shape for layer in layers}) != 1:
        raise ModelFormatError(f"{path}: statistics of layers of different sizes")
    counts = np.rint(np.stack(layers) * tokens).astype(np.uint64)
    return Statistics(counts, tokens, str(corpus))


def merged(parts: Iterable[tuple[str, Statistics]]) -> Statistics:
    """The sum of statistics, each with the name of where it is from. Raises ValueError for parts
    of models of different sizes."""
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
