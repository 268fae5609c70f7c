"""CATS thresholds for models whose activation is never zero.

CATS (arXiv 2404.08763) drops a given share of a layer's activations, the smallest ones. The engine
records the inputs of the blocks; this module computes their gates with the file's own weights.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._native import lib
from ..convert import source
from ..convert.activations import SMOOTH
from ..convert.embed import embed
from ..convert.stored import Stored, decoded
from ..convert.writer import array, string
from ..core.errors import UnsupportedModelError
from ..core.model import Model
from .counters import recording

THRESHOLD = "powerinfer.ffn.threshold"
_INPUT = "powerinfer.predictor.input"
_WINDOWS, _ROWS = 16, 64  # windows, and rows of each: enough for a quantile of many neurons
# A table of erf, which numpy lacks; the error of interpolation is below 1e-9.
_ERF_AT = np.linspace(-6, 6, 120_001)
_ERF = np.array([math.erf(x) for x in _ERF_AT])


def activated(activation: str, gate: np.ndarray) -> np.ndarray:
    """Magnitudes of a smooth activation of gates."""
    if activation == "swiglu_oai":
        gate = np.minimum(gate, 7)
        return np.abs(gate) / (1 + np.exp(-np.clip(1.702 * gate, -60, 60)))
    if activation == "silu":
        return np.abs(gate) / (1 + np.exp(-np.clip(gate, -60, 60)))
    if activation == "gelu_tanh":
        inner = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
        return np.abs(gate) * (1 + np.tanh(inner)) / 2
    return np.abs(gate) * (1 + np.interp(gate / 2**0.5, _ERF_AT, _ERF)) / 2


def with_thresholds(
    model: Model, target: Path, pieces: Sequence[np.ndarray], share: float, **fields: Any
) -> list[float]:
    """Writes the model with one threshold per layer, so that `share` of the layer's activations on
    these windows are below it, and returns them. Needs space for another copy of the model beside
    `target`. fields: fields of pi_session_params.

    Raises ValueError for an activation that can be zero, UnsupportedModelError for a file without
    neuron rows, for which the engine supports no thresholds.
    """
    if model.activation not in SMOOTH:
        raise ValueError(
            f"{model.path}: {model.activation} can be exactly zero; these thresholds are only for "
            f"{', '.join(SMOOTH[:-1])} and {SMOOTH[-1]}"
        )
    tensors = {t.name: t for t in source.tensors(model.gguf)}
    if not any(".ffn_down_t" in name for name in tensors):
        raise UnsupportedModelError(
            f"{model.path}: has no neuron rows (ffn_down_t), which a threshold needs; "
            "`powerinfer convert` makes a file that has them"
        )
    inputs, chosen = _recorded(model, target.parent, pieces, fields)
    found = []
    for layer, x in enumerate(inputs):
        if not model.sizes[layer].n_ff:
            found.append(0.0)
            continue
        sizes = [
            activated(model.activation, gate(x if mask is None else x[mask]))
            for gate, mask in zip(_gates(tensors, layer), chosen[layer], strict=True)
        ]
        every = np.concatenate([values.reshape(-1) for values in sizes])
        found.append(float(np.quantile(every, share)))
    embed(model.gguf, target, [array(THRESHOLD, "FLOAT32", found)], [])
    return found


def _recorded(
    model: Model, folder: Path, pieces: Sequence[np.ndarray], fields: dict[str, Any]
) -> tuple[list[np.ndarray], list[list[np.ndarray | None]]]:
    """Inputs of each layer's blocks, float32 [rows, n_embd], and per layer and expert the rows that
    chose it; None for all."""
    windows = pieces[:: -(-len(pieces) // _WINDOWS)]
    layers = range(model.n_layer)
    inputs, chosen = [[] for _ in layers], [[] for _ in layers]
    path = folder / "normed.gguf"
    # A block's gate has the normed input, whatever the input of the file's predictors is.
    embed(model.gguf, path, [string(_INPUT, "normed")], [], removed=_predictors)
    normed = Model(str(path), allow_unknown=True)  # as the model itself
    session = recording(normed, max(map(len, windows)), "off", lib.PI_RECORD_INPUTS, fields)
    for window in windows:
        session.truncate(0)
        session.eval(window)
        rows = slice(None, None, -(-len(window) // _ROWS))
        for i in layers:
            inputs[i].append(session.layer_ffn_inputs(i)[rows])
            if model.sizes[i].n_expert:
                chosen[i].append(session.layer_activations(i)[rows].any(axis=-1))
    session.close()
    normed.close()
    path.unlink()
    masks = [list(np.concatenate(own).T) if own else [None] for own in chosen]
    return [np.concatenate(own) for own in inputs], masks


def _predictors(name: str) -> bool:
    return name.startswith("powerinfer.predictor.") or bool(source.PREDICTOR.fullmatch(name))


def _gates(tensors: dict[str, Stored], layer: int) -> list[Callable[[np.ndarray], np.ndarray]]:
    """Functions that compute the gates of a layer's block, or of each of its experts."""
    end = "_exps" if f"blk.{layer}.ffn_up_exps.weight" in tensors else ""
    part = "gate" if f"blk.{layer}.ffn_gate{end}.weight" in tensors else "up"
    stored, bias = tensors[f"blk.{layer}.ffn_{part}{end}.weight"], f"blk.{layer}.ffn_{part}.bias"
    n_ff, weights = stored.shape[-2], decoded(stored)
    offset = decoded(tensors[bias]).rows(0, 1).reshape(-1) if bias in tensors else np.float32(0)

    def gate(expert: int, x: np.ndarray) -> np.ndarray:
        return x @ weights.rows(expert * n_ff, (expert + 1) * n_ff).T + offset

    return [lambda x, e=e: gate(e, x) for e in range(stored.n_rows // n_ff)]
