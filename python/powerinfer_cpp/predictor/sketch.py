"""Predictors without training: the signs of the gates' weights.

The product of a gate and an input is approximated by the sum of the input's values with the signs
of the weights, which reads one bit per weight instead of 4 to 16. Only the threshold comes from
data. The engine's operator is in ggml/include/ggml/sketch.h; the idea is from SparseInfer (arXiv
2411.12692).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..convert.activations import RELUS
from ..convert.embed import from_array
from ..convert.formats import format_by_name
from ..convert.stored import Stored, decoded
from ..core.errors import UnsupportedModelError
from ..core.model import Model
from . import search, train
from .pairs import LayerPairs, Pairs
from .report import LayerReport
from .train import Curve

UNIT, TOP = 0.45, 7  # levels of inputs, as in ggml/src/ops/sketch.cpp
_SLAB = 1024  # rows


def signs(gate: Stored, name: str) -> Stored:
    """I8 [..., n_ff, n_embd / 8] from weights [..., n_ff, n_embd]: bit i % 8 of byte i / 8 is set
    if weight i is negative."""
    values = decoded(gate)

    def rows(a: int, b: int) -> np.ndarray:
        return np.packbits(values.rows(a, b) < 0, axis=-1, bitorder="little").reshape(-1)

    return Stored(name, (*gate.shape[:-1], gate.row // 8), format_by_name("I8"), rows)


def offsets(gate: Stored, bias: Stored, name: str) -> Stored:
    """F32 [n_ff]: biases divided by the mean magnitude of the row's weights, the unit of scores."""
    values, slabs = decoded(gate), range(0, gate.n_rows, _SLAB)
    size = [np.abs(values.rows(a, min(a + _SLAB, gate.n_rows))).mean(axis=1) for a in slabs]
    b = decoded(bias).rows(0, 1).reshape(-1).astype(np.float64)
    found = b / np.maximum(np.concatenate(size), 1e-30)
    return from_array(name, np.clip(found, -1e30, 1e30).astype(np.float32))


def scores(signs: np.ndarray, offset: np.ndarray | None, x: np.ndarray) -> np.ndarray:
    """The engine's scores, float32 [t, n], for inputs float32 [t, n_embd]; signs: uint8
    [n, n_embd / 8], offset: [n]."""
    size = np.abs(x)
    unit = np.maximum(UNIT * size.mean(axis=1, keepdims=True), 1e-30)
    levels = np.copysign(np.minimum(np.floor(size / unit + 0.5), TOP), x) * unit
    weights = 1 - 2 * np.unpackbits(signs, axis=-1, bitorder="little").astype(np.float32)
    found = levels @ weights.T
    return found if offset is None else found + offset


def curve(
    pairs: LayerPairs,
    rows: np.ndarray,
    tensors: Sequence[Stored],
    recalls: Sequence[float],
) -> Curve:
    """The curve of a layer's sketch. tensors: its signs and, if it has biases, offsets."""
    bits, *bias = tensors
    n_ff, n_bytes = bits.shape[-2:]
    offset = decoded(bias[0]).rows(0, 1).reshape(-1) if bias else None

    def of_expert(expert: int, x: np.ndarray) -> np.ndarray:
        own = bits.rows(expert * n_ff, (expert + 1) * n_ff).reshape(n_ff, n_bytes)
        return scores(own, offset, x)

    return train.curve(pairs, rows, of_expert, recalls)


def layer_tensors(tensors: dict[str, Stored], layer: int) -> list[Stored]:
    """The sketch of a layer in a file with these tensors; of its ups if it has no gates. A layer
    without neurons has none."""
    end = "_exps" if f"blk.{layer}.ffn_up_exps.weight" in tensors else ""
    part = "gate" if f"blk.{layer}.ffn_gate{end}.weight" in tensors else "up"
    gate, name = tensors.get(f"blk.{layer}.ffn_{part}{end}.weight"), f"blk.{layer}.sketch{end}"
    if gate is None:
        return []
    found = [signs(gate, f"{name}.weight")]
    if bias := tensors.get(f"blk.{layer}.ffn_{part}.bias"):
        found.append(offsets(gate, bias, f"{name}.bias"))
    return found


def check(model: Model) -> None:
    """Raises UnsupportedModelError for a model that sketches cannot serve."""
    if model.activation not in RELUS:
        raise UnsupportedModelError(
            f"{model.path}: a sketch guesses the sign of a gate, which decides who fires only "
            f"in models of the ReLU family, not with {model.activation}"
        )
    for width in {size.width for size in model.sizes}:
        if width % 8:
            raise UnsupportedModelError(
                f"{model.path}: a sketch has 8 signs in a byte, and rows of {width} weights are no "
                "multiple of that"
            )


@dataclass
class Sketches:
    """Predictors of rank 1, one for each layer, with the methods of Mlps. tensors: of the model.
    rows: of the recorded pairs, from which thresholds are chosen."""

    pairs: Pairs
    tensors: dict[str, Stored]
    rows: np.ndarray
    _found: dict[int, tuple[list[Stored], Curve]] = field(default_factory=dict)

    def candidate(self, layer: int, _rank: int) -> tuple[list[Stored], Curve, float]:
        """Signs and offsets of a layer, their curve, and that they do not overfit."""
        if layer not in self._found:
            tensors = layer_tensors(self.tensors, layer)
            found = curve(self.pairs.layers[layer], self.rows, tensors, search.RECALLS)
            self._found[layer] = tensors, found
        return (*self._found[layer], 1.0)

    def ranks(self, _layer: int) -> list[int]:
        return [1]

    def start(self, _layer: int) -> int:
        return 1

    def rank_bytes(self, layer: int) -> float:
        tensors, _, _ = self.candidate(layer, 1)
        return sum(t.n_bytes for t in tensors) * self.pairs.layers[layer].share

    def notes(self, _layers: Sequence[LayerReport]) -> list[str]:
        return []
