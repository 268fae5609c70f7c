"""Predictors without training: the signs of the gates' weights, and who they propose.

A gate's product with an input is guessed by the sum of the input's values under the signs of the
weights: one bit per weight is read instead of 4 to 16. Only the threshold comes from data. The
engine's operator is ggml/include/ggml/sketch.h; SparseInfer (arXiv 2411.12692) has the idea.
"""

from collections.abc import Sequence

import numpy as np

from ..convert.embed import from_array
from ..convert.stored import Stored, decoded
from ..formats import format_by_name
from . import train
from .pairs import Pairs
from .train import Curve

UNIT, TOP = 0.45, 7  # levels of inputs, as in ggml/src/cpu/sketch.cpp
_SLAB = 1024  # rows


def signs(gate: Stored, name: str) -> Stored:
    """I8 [..., n_ff, n_embd / 8] of weights [..., n_ff, n_embd]: bit i % 8 of byte i / 8 is set
    where weight i is negative."""
    values = decoded(gate)

    def rows(a: int, b: int) -> np.ndarray:
        return np.packbits(values.rows(a, b) < 0, axis=-1, bitorder="little").reshape(-1)

    return Stored(name, (*gate.shape[:-1], gate.row // 8), format_by_name("I8"), rows)


def offsets(gate: Stored, bias: Stored, name: str) -> Stored:
    """F32 [n_ff]: biases in the unit of scores, which is that of inputs under weights of mean
    magnitude."""
    values, slabs = decoded(gate), range(0, gate.n_rows, _SLAB)
    size = [np.abs(values.rows(a, min(a + _SLAB, gate.n_rows))).mean(axis=1) for a in slabs]
    b = decoded(bias).rows(0, 1).reshape(-1).astype(np.float64)
    found = b / np.maximum(np.concatenate(size), 1e-30)
    return from_array(name, np.clip(found, -1e30, 1e30).astype(np.float32))


def scores(signs: np.ndarray, offset: np.ndarray | None, x: np.ndarray) -> np.ndarray:
    """The engine's scores, float32 [t, n], of inputs float32 [t, n_embd]; signs: uint8
    [n, n_embd / 8], offset: [n]."""
    size = np.abs(x)
    unit = np.maximum(UNIT * size.mean(axis=1, keepdims=True), 1e-30)
    levels = np.copysign(np.minimum(np.floor(size / unit + 0.5), TOP), x) * unit
    weights = 1 - 2 * np.unpackbits(signs, axis=-1, bitorder="little").astype(np.float32)
    found = levels @ weights.T
    return found if offset is None else found + offset


def curve(
    pairs: Pairs,
    layer: int,
    rows: np.ndarray,
    tensors: Sequence[Stored],
    recalls: Sequence[float],
) -> Curve:
    """The curve of a layer's sketch: its signs and, where there are biases, offsets."""
    bits, *bias = tensors
    n_ff, n_bytes = bits.shape[-2:]
    offset = decoded(bias[0]).rows(0, 1).reshape(-1) if bias else None

    def of_expert(expert: int, x: np.ndarray) -> np.ndarray:
        own = bits.rows(expert * n_ff, (expert + 1) * n_ff).reshape(n_ff, n_bytes)
        return scores(own, offset, x)

    return train.curve(pairs, layer, rows, of_expert, recalls)


def layer_tensors(tensors: dict[str, Stored], layer: int) -> list[Stored]:
    """The sketch of a layer of a file with these tensors, of its ups where it has no gates."""
    end = "_exps" if f"blk.{layer}.ffn_up_exps.weight" in tensors else ""
    part = "gate" if f"blk.{layer}.ffn_gate{end}.weight" in tensors else "up"
    gate, name = tensors[f"blk.{layer}.ffn_{part}{end}.weight"], f"blk.{layer}.sketch{end}"
    found = [signs(gate, f"{name}.weight")]
    if bias := tensors.get(f"blk.{layer}.ffn_{part}.bias"):
        found.append(offsets(gate, bias, f"{name}.bias"))
    return found
