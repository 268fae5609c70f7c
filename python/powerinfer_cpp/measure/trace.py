"""Traces: which neurons each token of a text needed. docs/formats.md describes the file."""

import re
import zipfile
from collections.abc import Iterator, Sequence
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

VERSION = 1  # of traces of blocks of one size
_OF_SIZES = 2
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
    rest_bytes: of a neuron's rows. sizes: int64 [blocks], the neurons of each block where these
    differ; n_ff is the largest then, and what is behind the last neuron is never needed.
    """

    n_ff: int
    proposed: np.ndarray | None
    computed: np.ndarray
    rates: np.ndarray | None
    first_bytes: int
    rest_bytes: int
    sizes: np.ndarray | None = None

    @property
    def n_tokens(self) -> int:
        return self.computed.shape[0]

    @property
    def n_blocks(self) -> int:
        return self.computed.shape[1]

    @property
    def parts(self) -> int:
        """Neurons of the model."""
        return self.n_blocks * self.n_ff if self.sizes is None else int(self.sizes.sum())

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
    fields["n_checkpoints"] = fields["n_kv_old"] = 0
    session = Session(model, **fields, record=lib.PI_RECORD_NEEDS)
    layers = [layer for layer, size in enumerate(model.sizes) if size.n_ff]
    shapes = [model.sizes[layer].shape for layer in layers]
    sizes = np.repeat([n_ff for _, n_ff in shapes], [n for n, _ in shapes]).astype("<i8")
    blocks, n_ff = len(sizes), int(sizes.max())
    equal = bool((sizes == n_ff).all())
    total, sums = sum(map(len, pieces)), np.zeros(2)
    generated = np.ones(1, bool)
    path = Path(path)
    with (
        replacing(path, 0, model.gguf.files) as part,
        zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out,
        Progress("tracing", total, "tokens") as progress,
    ):
        rates = read_rates(model.gguf, required=False)
        if len(rates) == len(layers):
            all_rates = np.zeros((blocks, n_ff), "<f4")
            for layer, of_layer in zip(layers, _by_layer(all_rates, shapes), strict=True):
                of_layer[...] = rates[layer]
            _put(out, "rates", all_rates)
        version = VERSION if equal else _OF_SIZES
        _put(out, "shape", np.array([version, blocks, n_ff, *part_bytes(model.gguf)], "<i8"))
        if not equal:
            _put(out, "sizes", sizes)
        for i, piece in enumerate(pieces):
            session.truncate(0)
            needs = np.zeros((2, len(piece), blocks, n_ff), bool)
            for t in range(len(piece)):
                session.eval(piece[t : t + 1], generated=generated)
                halves = (_by_layer(half, shapes) for half in needs[:, t])
                for layer, first, rest in zip(layers, *halves, strict=True):
                    _needs(session, layer, first, rest)
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


def _by_layer(of_blocks: np.ndarray, shapes: Sequence[tuple[int, int]]) -> Iterator[np.ndarray]:
    """The parts of [blocks, n_ff] that belong to layers of these shapes, [experts, n_ff] each."""
    first = 0
    for n_expert, n_ff in shapes:
        yield of_blocks[first : first + n_expert, :n_ff]
        first += n_expert


def _needs(session: Session, layer: int, *out: np.ndarray) -> None:
    """Copies the needs of the last row in a layer: of first rows, and of the others."""
    pointers = ffi.new("bool const *[2]")
    check(lib.pi_ffn_needs(session.handle, layer, pointers, pointers + 1))
    for pointer, to in zip(pointers, out, strict=True):
        to[...] = np.frombuffer(ffi.buffer(pointer, to.size), bool).reshape(to.shape)


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
            if version not in (VERSION, _OF_SIZES):
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
            sizes = stored["sizes"] if version == _OF_SIZES else None
        arrays = [*computed, *(proposed or [])]
        wanted = (n_blocks, (n_ff + 7) // 8)
        good = all(a.dtype == np.uint8 and a.ndim == 3 and a.shape[1:] == wanted for a in arrays)
        good = good and [len(a) for a in computed] == [len(a) for a in proposed or computed]
        good = good and len(computed) > 0 and n_blocks > 0 and n_ff > 0
        if rates is not None:
            good = good and rates.dtype == np.float32 and rates.shape == (n_blocks, n_ff)
            good = good and bool(np.all((rates >= 0) & (rates <= 1)))
        if sizes is not None:
            good = good and sizes.dtype == np.int64 and sizes.shape == (n_blocks,)
            good = good and bool(np.all((sizes > 0) & (sizes <= n_ff)))
        if not good:
            raise ModelFormatError(f"{path}: the arrays of the trace do not fit its shape")
        whole = np.concatenate(proposed) if proposed else None
        return Trace(n_ff, whole, np.concatenate(computed), rates, first, rest, sizes)
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, ModelFormatError):
            raise
        raise ModelFormatError(f"{path}: not a trace ({error})") from None
