"""The units of a model that the live view shows: its neurons, or its experts."""

import functools
import math

import numpy as np

from ..convert.activations import SMOOTH
from ..core.model import Model
from ..core.session import Session


class Units:
    """What a token can use or leave out, and where it is. session: that which records."""

    def __init__(self, model: Model, session: Session):
        self._model, self._session = model, session

    @property
    def kind(self) -> str:
        """What is computed or not, and has a tier: "experts" where a row computes all of an
        expert, else "neurons". A layer without experts counts as one expert."""
        return "experts" if self._whole_experts else "neurons"

    @functools.cached_property
    def sparse(self) -> bool:
        """Can a token leave units out? Of a dense model with a smooth activation
        every neuron contributes to every token."""
        of = self._model
        if of.has_experts or of.has_predictors or of.activation not in SMOOTH:
            return True
        return bool(np.any(np.asarray(of.gguf.value("powerinfer.ffn.threshold", 0.0)) != 0))

    def fired(self, bits: np.ndarray) -> np.ndarray:
        """Bits that `watch` gave as flags: bool [units of the model], as in `tiers`."""
        flags = []
        for i, size in enumerate(self._model.sizes):
            of_layer = self._session.layer_fired_bits(i, bits)
            if self._whole_experts:
                flags.append(of_layer.any(axis=-1))
                continue
            unpacked = np.unpackbits(of_layer, axis=-1, count=size.n_ff, bitorder="little")
            flags.append(unpacked.reshape(-1))
        return np.concatenate(flags).astype(bool)

    def layer_units(self) -> list[int]:
        """Experts of each layer, or neurons of all of its experts."""
        return [
            size.shape[0] if self._whole_experts else math.prod(size.shape)
            for size in self._model.sizes
        ]

    def tiers(self) -> np.ndarray:
        """Where each unit is now, by the numbers of tiers: uint8 [units of the model], layer after
        layer, [experts] or [experts, n_ff] each."""
        found = [self._model.tiers(i) for i in range(self._model.n_layer)]
        if self._whole_experts:
            found = [tiers.min(axis=1) for tiers in found]
        return np.concatenate([tiers.reshape(-1) for tiers in found])

    def bytes_per_unit(self) -> float:
        """Bytes of a neuron's rows, or of an expert, on average."""
        of = self._model
        ffn = [t.n_bytes for t in of.gguf.tensors if ".ffn_" in t.name and "norm" not in t.name]
        return sum(ffn) / sum(self.layer_units())

    @functools.cached_property
    def _whole_experts(self) -> bool:
        rows = (".ffn_down_t", ".ffn_bundle", ".ffn_up_down_rows")  # a neuron can be left out
        names = [tensor.name for tensor in self._model.gguf.tensors]
        return self._model.has_experts and not any(part in name for part in rows for name in names)
