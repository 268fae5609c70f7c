"""Statistics of the neurons in a file: how often each fires, and its bytes."""

import hashlib
import re
from dataclasses import dataclass

import numpy as np

from ..convert import bundles, source
from ..convert.statistics.rates import read_rates
from ..convert.stored import Stored
from ..core.errors import ModelFormatError
from ..core.gguf import Gguf
from ..profile.fingerprint import fingerprint

_LAYER = re.compile(r"blk\.(\d+)\.(.+)")
_TABLE = re.compile(r"blk\.\d+\.ffn_(?:rate|tier)(?:_exps)?")
_NEURON = re.compile(r"ffn_(gate|up|down|down_t)(?:_exps)?\.weight|ffn_(gate|up)\.bias")


@dataclass(frozen=True)
class LayerStatistics:
    """Neurons of a layer.

    rates: float32 [n_ff] or, for experts, [n_expert, n_ff]: share of the profiled tokens on which
    the neuron fired. n_bytes: bytes of all rows in the file; first_bytes: bytes of the rows that
    show whether a neuron fires (gates; ups if there are no gates).
    """

    layer: int
    rates: np.ndarray
    n_bytes: int
    first_bytes: int

    @property
    def n(self) -> int:
        return self.rates.size

    @property
    def is_experts(self) -> bool:
        return self.rates.ndim == 2


def is_of_neurons(name: str) -> bool:
    """Whether a layer's tensor, e.g. "ffn_up.weight", has a row, column or number per neuron."""
    return _NEURON.fullmatch(name) is not None


def read_statistics(gguf: Gguf) -> list[LayerStatistics]:
    """Statistics of every layer, in numerical order.

    Raises ModelFormatError, naming file and tensor, if they are missing or do not fit.
    """
    file, rates = gguf.files[0], read_rates(gguf)
    rows: dict[int, dict[str, Stored]] = {}
    n_layer = source.n_layer(gguf)  # those behind them guess tokens, and have no statistics
    for tensor in source.tensors(gguf):
        match = _LAYER.fullmatch(tensor.name)
        if match and int(match[1]) < n_layer and is_of_neurons(match[2]):
            rows.setdefault(int(match[1]), {})[match[2]] = tensor
    for layer in sorted(rows.keys() ^ rates.keys()):
        what = "neurons" if layer in rates else "statistics (ffn_rate)"
        raise ModelFormatError(f"{file}: layer {layer} has no {what}")
    return [_layer(file, i, rates[i], rows[i]) for i in sorted(rates)]


def _layer(file: str, i: int, rates: np.ndarray, rows: dict[str, Stored]) -> LayerStatistics:
    first = {name: t for name, t in rows.items() if "gate" in name}
    first = first or {name: t for name, t in rows.items() if "up" in name}
    for name, tensor in rows.items():
        # Neurons are the columns of ffn_down and the numbers of a bias, else the rows.
        by_column = name.startswith(("ffn_down.", "ffn_down_exps.")) or name.endswith("bias")
        shape = tensor.shape[:-2] + tensor.shape[-1:] if by_column else tensor.shape[:-1]
        if shape != rates.shape:
            raise ModelFormatError(
                f"{file}: blk.{i}.ffn_rate of shape {rates.shape} does not fit {tensor.name} of "
                f"shape {tensor.shape}"
            )
    total = sum(t.n_bytes for t in rows.values())
    return LayerStatistics(i, rates, total, sum(t.n_bytes for t in first.values()))


def statistics_hash(layers: list[LayerStatistics]) -> str:
    """SHA-256 (64 hex digits) of the rates, to check that a placement was solved for them."""
    digest = hashlib.sha256()
    for layer in layers:
        digest.update(f"{layer.layer} {layer.rates.shape}".encode())
        digest.update(np.ascontiguousarray(layer.rates, "<f4").tobytes())
    return digest.hexdigest()


def model_hash(gguf: Gguf) -> str:
    """Hash of the model's weights, without statistics, to check that a placement is for it.

    A bundled file has the hash of the model that it was written from.
    """
    of_source = gguf.value(bundles.OF_SOURCE[1])
    if isinstance(of_source, str) and of_source:
        return of_source
    return fingerprint(gguf, without=lambda name: _TABLE.fullmatch(name) is not None)
