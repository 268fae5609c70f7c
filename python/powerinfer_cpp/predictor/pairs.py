"""What predictors learn from: inputs of feed-forward blocks and the neurons that fired on them.

The engine records them in exact mode; they lie in memory-mapped files of a size that is known
before: 2 bytes per value of an input, one bit per neuron.
"""

import json
import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._native import lib
from ..errors import ModelFormatError
from ..model import Model, Session
from ..options import SPARSE_MODES
from ..progress import Progress

_FLUSHED = 16  # windows between two notes of how far the recording is


def bytes_per_token(model: Model) -> int:
    """Of the store, all layers together."""
    return model.n_layer * (2 * model.n_embd + (_neurons(model) + 7) // 8)


def _neurons(model: Model) -> int:
    """Of a layer, all experts together."""
    return max(1, model.n_expert) * model.n_ff


class Pairs:
    """The store of a folder; n_tokens: of all windows that are recorded.

    inputs: float16 [n_layer, n_tokens, n_embd]. bits: uint8 [n_layer, n_tokens, n_ff / 8], the
    first neuron lowest; n_ff: of all experts, one after the other.
    """

    def __init__(self, folder: Path, model: Model, n_tokens: int):
        self.n_ff = _neurons(model)
        self._progress = folder / "recorded.json"
        shapes = (
            ("inputs", np.float16, (model.n_layer, n_tokens, model.n_embd)),
            ("bits", np.uint8, (model.n_layer, n_tokens, (self.n_ff + 7) // 8)),
        )
        needed = n_tokens * bytes_per_token(model)
        there = sum(path.stat().st_size for path in folder.glob("*.pairs"))
        if shutil.disk_usage(folder).free + there < needed:
            raise OSError(
                f"{folder}: {needed >> 20} MiB needed for what {n_tokens} tokens record, and the "
                "disk has less: use fewer --tokens"
            )
        self.inputs, self.bits = (_mapped(folder / f"{n}.pairs", d, s) for n, d, s in shapes)

    def record(self, model: Model, windows: Sequence[np.ndarray], **fields: Any) -> None:
        """Fills the store, going on where it was left. fields: of pi_session_params.

        Raises ModelFormatError for inputs beyond the range of half precision.
        """
        done = json.loads(self._progress.read_text()) if self._progress.exists() else 0
        if done == len(windows):
            return
        n_ctx = max(map(len, windows))
        options = {
            **fields,
            "n_ctx": n_ctx,
            "n_batch": n_ctx,
            "n_ubatch": min(n_ctx, fields.get("n_ubatch", 512)),
            "n_logits": 1,
            "sparse": SPARSE_MODES.index("exact"),
            "record": lib.PI_RECORD_INPUTS,
        }
        session, row = Session(model, **options), sum(map(len, windows[:done]))
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
                fired = session.activations().reshape(*inputs.shape[:2], self.n_ff)
                self.bits[:, row:end] = np.packbits(fired, axis=-1, bitorder="little")
                row, done = end, done + 1
                if done % _FLUSHED == 0 or done == len(windows):
                    self.inputs.flush()
                    self.bits.flush()
                    self._progress.write_text(json.dumps(done))
                progress.update(len(window))
        session.close()

    def fired(self, layer: int, rows: np.ndarray) -> np.ndarray:
        """bool [rows, n_ff]."""
        bits = np.unpackbits(self.bits[layer, rows], axis=-1, count=self.n_ff, bitorder="little")
        return bits.view(bool)


def _mapped(path: Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap:
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if not path.exists() or path.stat().st_size != n_bytes:
        with path.open("wb") as file:  # a mapping that outgrows the disk would end the process
            os.posix_fallocate(file.fileno(), 0, n_bytes)
    return np.memmap(path, dtype, "r+", shape=shape)
