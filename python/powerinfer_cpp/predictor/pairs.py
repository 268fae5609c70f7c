"""Training data of predictors: inputs of feed-forward blocks and the neurons that fired on them.

The engine records them in exact mode, into memory-mapped files of a fixed size: 2 bytes per input
value, one bit per neuron.
"""

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._native import lib
from ..convert import source
from ..convert.writer import named
from ..core.errors import ModelFormatError
from ..core.model import Model
from ..core.progress import Progress
from ..core.session import Session
from ..core.system import reserve
from ..profile.counters import recording

_FLUSHED = 16  # windows between two saves of the progress


class LayerPairs:
    """Those of a layer; n_tokens: tokens of all recorded windows.

    inputs: float16 [n_tokens, width]. bits: uint8 [n_tokens, used, n_ff / 8], the first neuron in
    the lowest bit, for the experts that a token chose. experts: int16 [n_tokens, used], their ids,
    -1 if fewer fired; None if the layer has one block, which is expert 0 of n_expert 1.

    A chosen expert without any firing is treated as not chosen; with thousands of neurons this does
    not happen.
    """

    def __init__(self, folder: Path, model: Model, layer: int, n_tokens: int):
        size = model.sizes[layer]
        self.width, self.n_ff = _width(model, layer), size.n_ff
        self.n_expert, self.used = size.shape[0], _used(model, layer)

        def store(name: str, dtype: Any, *shape: int) -> np.memmap:
            return _mapped(folder / f"{name}-{layer}.pairs", dtype, (n_tokens, *shape))

        self.inputs = store("inputs", np.float16, self.width)
        self.bits = store("bits", np.uint8, self.used, (self.n_ff + 7) // 8)
        self.experts = store("experts", np.int16, self.used) if size.n_expert else None

    @property
    def share(self) -> float:
        """Of its blocks, those that a token uses."""
        return self.used / self.n_expert

    @property
    def mixture(self) -> bool:
        return self.experts is not None

    def record(self, session: Session, layer: int, row: int) -> bool:
        """Copies what the session recorded in its last call to the rows from `row` on. False: the
        inputs exceed half precision."""
        inputs, fired = session.layer_ffn_inputs(layer), session.layer_activations(layer)
        if not np.abs(inputs).max() < np.finfo(np.float16).max:
            return False
        rows = slice(row, row + len(inputs))
        self.inputs[rows] = inputs
        if self.experts is not None:
            fired, self.experts[rows] = _chosen(fired, self.used)
        self.bits[rows] = np.packbits(fired, axis=-1, bitorder="little")
        return True

    def flush(self) -> None:
        for store in (self.inputs, self.bits, self.experts):
            if store is not None:
                store.flush()

    def chose(self, rows: np.ndarray, expert: int) -> np.ndarray:
        """The rows whose tokens chose an expert."""
        if self.experts is None:
            return rows
        return rows[(self.experts[rows] == expert).any(axis=-1)]

    def fired(self, rows: np.ndarray, expert: int = 0) -> np.ndarray:
        """bool [rows, n_ff]: firings of the expert, for rows that chose it."""
        place = 0
        if self.experts is not None:
            place = (self.experts[rows] == expert).argmax(axis=-1)
        bits = np.unpackbits(self.bits[rows, place], axis=-1, count=self.n_ff, bitorder="little")
        return bits.view(bool)


def bytes_per_token(model: Model) -> int:
    """Bytes of the store per token, for all layers."""
    return sum(_layer_bytes(model, layer) for layer in with_neurons(model))


def with_neurons(model: Model) -> list[int]:
    """The layers that have neurons."""
    return [layer for layer, size in enumerate(model.sizes) if size.n_ff]


def _layer_bytes(model: Model, layer: int) -> int:
    size, used = model.sizes[layer], _used(model, layer)
    experts = 2 * used if size.n_expert else 0
    return 2 * _width(model, layer) + used * ((size.n_ff + 7) // 8) + experts


def _width(model: Model, layer: int) -> int:
    """Values of a row that a layer's predictors see."""
    return model.sizes[layer].width if model.predicts_from_normed else model.n_embd


def _used(model: Model, layer: int) -> int:
    """Blocks of a layer that a token uses: the number of chosen experts, or one."""
    if not model.sizes[layer].n_expert:
        return 1
    return source.size(model.gguf, "expert_used_count", layer=layer)


class Pairs:
    """The store in a folder; n_tokens: tokens of all recorded windows. layers: of each layer that
    has neurons, by its number."""

    def __init__(self, folder: Path, model: Model, n_tokens: int):
        self.n_tokens = n_tokens
        self._progress = folder / "recorded.json"
        needed = n_tokens * bytes_per_token(model)
        there = sum(path.stat().st_size for path in folder.glob("*.pairs"))
        if shutil.disk_usage(folder).free + there < needed:
            raise OSError(
                f"{folder}: recording {n_tokens} tokens needs {needed >> 20} MiB, but the disk has "
                "less: use fewer --tokens"
            )
        self.layers = {i: LayerPairs(folder, model, i, n_tokens) for i in with_neurons(model)}

    def record(self, model: Model, windows: Sequence[np.ndarray], **fields: Any) -> None:
        """Fills the store, continuing earlier work. fields: fields of pi_session_params.

        Raises ModelFormatError for inputs beyond the range of half precision.
        """
        done = json.loads(self._progress.read_text()) if self._progress.exists() else 0
        if done == len(windows):
            return
        n_ctx, row = max(map(len, windows)), sum(map(len, windows[:done]))
        session = recording(model, n_ctx, "exact", lib.PI_RECORD_INPUTS, fields)
        with Progress("recording", sum(map(len, windows)), "tokens") as progress:
            progress.update(row)
            for window in windows[done:]:
                session.truncate(0)
                session.eval(window)
                for layer, pairs in self.layers.items():
                    if not pairs.record(session, layer, row):
                        raise ModelFormatError(
                            f"{model.path}: inputs of predictors exceed half precision: use the "
                            "normed"
                        )
                row, done = row + len(window), done + 1
                if done % _FLUSHED == 0 or done == len(windows):
                    for pairs in self.layers.values():
                        pairs.flush()
                    with named(
                        self._progress
                    ):  # replaced as a whole, so a kill cannot leave a partial number
                        part = self._progress.with_suffix(".part")
                        part.write_text(json.dumps(done))
                        part.replace(self._progress)
                progress.update(len(window))
        session.close()


def _chosen(fired: np.ndarray, used: int) -> tuple[np.ndarray, np.ndarray]:
    """From bool [..., n_expert, n_ff], the firings of experts that fired, [..., used, n_ff], and
    their ids, int16 [..., used]."""
    silent = ~fired.any(axis=-1)
    order = np.argsort(silent, axis=-1, kind="stable")[..., :used]
    experts = np.where(np.take_along_axis(silent, order, -1), -1, order).astype(np.int16)
    return np.take_along_axis(fired, order[..., None], -2), experts


def _mapped(path: Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap:
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if not path.exists() or path.stat().st_size != n_bytes:
        # writing a mapping on a full disk would kill the process
        with named(path, n_bytes), path.open("wb") as file:
            reserve(file.fileno(), n_bytes)
    return np.memmap(path, dtype, "r+", shape=shape)
