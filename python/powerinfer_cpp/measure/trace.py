"""Traces: which neurons each token of a text needed. docs/formats.md describes the file."""

import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._native import ffi, lib
from ..convert import source
from ..convert.statistics.rates import read_rates
from ..convert.writer import replacing
from ..core.errors import ModelFormatError, check
from ..core.gguf import Gguf
from ..core.model import Model
from ..core.progress import Progress
from ..core.session import Session

VERSION = 1
_FIRST = re.compile(r"blk\.\d+\.ffn_gate(_exps)?\.weight")
_UP = re.compile(r"blk\.\d+\.ffn_up(_exps)?\.weight")
_DOWN = re.compile(r"blk\.\d+\.ffn_down_t(_exps)?\.weight")


_ONES = np.array([value.bit_count() for value in range(256)], np.uint8)


@dataclass(frozen=True)
class Trace:
    """Bits of neurons, bit i % 8 of byte i / 8, for tokens and blocks (layers times experts).

    proposed: uint8 [tokens, blocks, (n_ff + 7) / 8], neurons whose first row was needed (gate, or
    up without a gate); None: all of every token. computed: the same for their other rows. rates:
    float32 [blocks, n_ff], the firing rates of the model's profile, if it has one. first_bytes,
    rest_bytes: of a neuron's rows.
    """

    n_ff: int
    proposed: np.ndarray | None
    computed: np.ndarray
    rates: np.ndarray | None
    first_bytes: int
    rest_bytes: int

    @property
    def n_tokens(self) -> int:
        return self.computed.shape[0]

    @property
    def n_blocks(self) -> int:
        return self.computed.shape[1]

    @property
    def parts(self) -> int:
        """Neurons of the model."""
        return self.n_blocks * self.n_ff

    def per_token(self) -> tuple[float, float]:
        """Mean numbers of proposed and of computed neurons of a token."""
        n = max(self.n_tokens, 1)
        computed = _ones(self.computed) / n
        if self.proposed is None:
            return float(self.parts), computed
        return _ones(self.proposed) / n, computed


def _ones(bits: np.ndarray) -> int:
    return int(_ONES[bits].sum(dtype=np.int64))


def record(
    model: Model, path: str | Path, pieces: Sequence[np.ndarray], **fields: Any
) -> tuple[int, float, float]:
    """Writes the trace of windows of tokens, each computed token by token as if generated.

    fields: those of pi_session_params; `sparse` says whether predictors propose. Returns the
    tokens, and the mean numbers of proposed and of computed neurons. Raises ValueError for a file
    without neuron rows, OSError.
    """
    longest = max(map(len, pieces))
    fields = {**fields, "n_ctx": longest, "n_batch": 1, "n_ubatch": 1, "n_logits": 1}
    fields["n_checkpoints"] = 0
    session = Session(model, **fields, record=lib.PI_RECORD_NEEDS)
    blocks = model.n_layer * max(1, model.n_expert)
    total, sums = sum(map(len, pieces)), np.zeros(2)
    generated = np.ones(1, bool)
    path = Path(path)
    with (
        replacing(path, 0, model.gguf.files) as part,
        zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out,
        Progress("tracing", total, "tokens") as progress,
    ):
        rates = read_rates(model.gguf, required=False)
        if len(rates) == model.n_layer:
            stacked = np.stack([rates[i] for i in range(model.n_layer)]).reshape(blocks, -1)
            _put(out, "rates", stacked.astype("<f4"))
        _put(out, "shape", np.array([VERSION, blocks, model.n_ff, *part_bytes(model.gguf)], "<i8"))
        for i, piece in enumerate(pieces):
            session.truncate(0)
            needs = np.empty((2, len(piece), blocks, model.n_ff), bool)
            for t in range(len(piece)):
                session.eval(piece[t : t + 1], generated=generated)
                _needs(session, model.n_layer, needs[:, t])
            sums += needs.sum((1, 2, 3))
            proposed, computed = np.packbits(needs, axis=-1, bitorder="little")
            _put(out, f"computed{i}", computed)
            if not needs[0].all():
                _put(out, f"proposed{i}", proposed)
            progress.update(len(piece))
    session.close()
    return total, *(sums / total)


def _put(out: zipfile.ZipFile, name: str, values: np.ndarray) -> None:
    with out.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array(file, values, allow_pickle=False)


def _needs(session: Session, n_layer: int, out: np.ndarray) -> None:
    """Copies the needs of the last row into bool [2, blocks, n_ff]."""
    pointers = ffi.new("bool const *[2]")
    by_layer = out.reshape(2, n_layer, -1, out.shape[-1])
    for layer in range(n_layer):
        check(lib.pi_ffn_needs(session.handle, layer, pointers, pointers + 1))
        for half in range(2):
            to = by_layer[half, layer]
            to[...] = np.frombuffer(ffi.buffer(pointers[half], to.size), bool).reshape(to.shape)


def part_bytes(gguf: Gguf) -> tuple[int, int]:
    """Bytes of a neuron's first row and of its other rows, the mean over all neurons."""
    sums = {_FIRST: 0, _UP: 0, _DOWN: 0}
    neurons = 0
    for tensor in source.tensors(gguf):
        for name in sums:
            if name.fullmatch(tensor.name):
                sums[name] += tensor.n_bytes
                neurons += int(np.prod(tensor.shape[:-1])) if name is _DOWN else 0
    first = sums[_FIRST] or sums[_UP]
    neurons = max(neurons, 1)
    return round(first / neurons), round((sum(sums.values()) - first) / neurons)


def load(path: str | Path) -> Trace:
    """Reads a trace. Raises ModelFormatError for a file that is none, OSError."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            version, n_blocks, n_ff, first, rest = (int(v) for v in stored["shape"])
            if version != VERSION:
                raise ModelFormatError(f"{path}: a trace of version {version}, not {VERSION}")
            names = [name for name in stored.files if name.startswith("computed")]
            names.sort(key=lambda name: int(name.removeprefix("computed")))
            computed = [stored[name] for name in names]
            proposed = None
            if any(name.startswith("proposed") for name in stored.files):
                proposed = [
                    stored[name.replace("computed", "proposed")]
                    if name.replace("computed", "proposed") in stored.files
                    else np.full_like(piece, 0xFF)
                    for name, piece in zip(names, computed, strict=True)
                ]
            rates = stored["rates"] if "rates" in stored.files else None
        arrays = [*computed, *(proposed or [])]
        wanted = (n_blocks, (n_ff + 7) // 8)
        good = all(a.dtype == np.uint8 and a.ndim == 3 and a.shape[1:] == wanted for a in arrays)
        good = good and [len(a) for a in computed] == [len(a) for a in proposed or computed]
        good = good and len(computed) > 0 and n_blocks > 0 and n_ff > 0
        if rates is not None:
            good = good and rates.dtype == np.float32 and rates.shape == (n_blocks, n_ff)
            good = good and bool(np.all((rates >= 0) & (rates <= 1)))
        if not good:
            raise ModelFormatError(f"{path}: the arrays of the trace do not fit its shape")
        whole = np.concatenate(proposed) if proposed else None
        return Trace(n_ff, whole, np.concatenate(computed), rates, first, rest)
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, ModelFormatError):
            raise
        raise ModelFormatError(f"{path}: not a trace ({error})") from None
