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
from ..core.system import reserve
from ..profile.counters import recording

_FLUSHED = 16  # windows between two saves of the progress


def bytes_per_token(model: Model) -> int:
    """Bytes of the store per token, for all layers."""
    used = _used(model)
    experts = 2 * used if model.n_expert else 0
    return model.n_layer * (2 * model.n_embd + used * ((model.n_ff + 7) // 8) + experts)


def _used(model: Model) -> int:
    """Blocks of a layer that a token uses: the number of chosen experts, or one."""
    return source.size(model.gguf, "expert_used_count") if model.n_expert else 1


class Pairs:
    """The store in a folder; n_tokens: tokens of all recorded windows.

    inputs: float16 [n_layer, n_tokens, n_embd]. bits: uint8 [n_layer, n_tokens, used, n_ff / 8],
    the first neuron in the lowest bit, for the experts that a token chose. experts: int16 [n_layer,
    n_tokens, used], their ids, -1 if fewer fired; None if a layer has one block, which is expert 0
    of n_expert 1.

    A chosen expert without any firing is treated as not chosen; with thousands of neurons this does
    not happen.
    """

    def __init__(self, folder: Path, model: Model, n_tokens: int):
        self.n_ff, self.n_expert, self.used = model.n_ff, max(1, model.n_expert), _used(model)
        self._progress = folder / "recorded.json"
        lead = (model.n_layer, n_tokens)
        shapes = {
            "inputs": (np.float16, (*lead, model.n_embd)),
            "bits": (np.uint8, (*lead, self.used, (self.n_ff + 7) // 8)),
        }
        if model.n_expert:
            shapes["experts"] = (np.int16, (*lead, self.used))
        needed = n_tokens * bytes_per_token(model)
        there = sum(path.stat().st_size for path in folder.glob("*.pairs"))
        if shutil.disk_usage(folder).free + there < needed:
            raise OSError(
                f"{folder}: recording {n_tokens} tokens needs {needed >> 20} MiB, but the disk has "
                "less: use fewer --tokens"
            )
        stores = {n: _mapped(folder / f"{n}.pairs", *shape) for n, shape in shapes.items()}
        self.inputs, self.bits = stores["inputs"], stores["bits"]
        self.experts = stores.get("experts")
        self._stores = list(stores.values())

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
                end = row + len(window)
                inputs = session.ffn_inputs()
                if not np.abs(inputs).max() < np.finfo(np.float16).max:
                    raise ModelFormatError(
                        f"{model.path}: inputs of predictors exceed half precision: use the normed"
                    )
                self.inputs[:, row:end] = inputs
                fired = session.activations().reshape(*inputs.shape[:2], -1, self.n_ff)
                if self.experts is not None:
                    fired, self.experts[:, row:end] = _chosen(fired, self.used)
                self.bits[:, row:end] = np.packbits(fired, axis=-1, bitorder="little")
                row, done = end, done + 1
                if done % _FLUSHED == 0 or done == len(windows):
                    for store in self._stores:
                        store.flush()
                    with named(
                        self._progress
                    ):  # replaced as a whole, so a kill cannot leave a partial number
                        part = self._progress.with_suffix(".part")
                        part.write_text(json.dumps(done))
                        part.replace(self._progress)
                progress.update(len(window))
        session.close()

    def chose(self, layer: int, rows: np.ndarray, expert: int) -> np.ndarray:
        """The rows whose tokens chose an expert."""
        if self.experts is None:
            return rows
        return rows[(self.experts[layer, rows] == expert).any(axis=-1)]

    def fired(self, layer: int, rows: np.ndarray, expert: int = 0) -> np.ndarray:
        """bool [rows, n_ff]: firings of the expert, for rows that chose it."""
        place = 0
        if self.experts is not None:
            place = (self.experts[layer, rows] == expert).argmax(axis=-1)
        bits = self.bits[layer, rows, place]
        bits = np.unpackbits(bits, axis=-1, count=self.n_ff, bitorder="little")
        return bits.view(bool)


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
