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

TOKENS, CORPUS = "powerinfer.profile.tokens", "powerinfer.profile.corpus"
_RATE = re.compile(r"blk\.(\d+)\.ffn_rate(_exps)?")
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
        removed=lambda name: bool(_RATE.fullmatch(name) or _OUTDATED.fullmatch(name)),
    )


def from_gguf(gguf: Gguf) -> Statistics:
    """The statistics in a file. Raises ModelFormatError where there are none, or half of them."""
    path, n_layer = gguf.files[0], source.size(gguf, "block_count")
    found = {t.name: t for t in gguf.tensors if _RATE.fullmatch(t.name)}
    tokens, corpus = gguf.value(TOKENS), gguf.value(CORPUS, "")
    if not found:
        raise ModelFormatError(f"{path}: holds no statistics (blk.0.ffn_rate); profile it first")
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise ModelFormatError(f"{path}: {TOKENS} is missing or no count of tokens")
    rates = []
    for layer in range(n_layer):
        name = f"blk.{layer}.ffn_rate"
        tensor = found.get(name) or found.get(f"{name}_exps")
        if tensor is None or tensor.type_name != "F32" or tensor.n_elements == 0:
            raise ModelFormatError(f"{path}: tensor {name} is missing or not F32")
        values = gguf.data(tensor).view(np.float32).reshape(-1, tensor.shape[-1])
        if not (np.isfinite(values).all() and (values >= 0).all() and (values <= 1).all()):
            raise ModelFormatError(f"{path}: tensor {tensor.name} holds values that are no shares")
        rates.append(values.astype(np.float64))
    if len({r.shape for r in rates}) != 1:
        raise ModelFormatError(f"{path}: statistics of layers of different sizes")
    counts = np.rint(np.stack(rates) * tokens).astype(np.uint64)
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
