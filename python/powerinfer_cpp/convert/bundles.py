"""Bundles: the neuron rows of a layer in one tensor.

The engine implements the layouts; this module has the names (docs/formats.md). Version 2 is
written: a layer has `ffn_bundle`, I8 [n_ff, bytes of a neuron], and `ffn_bundle_crc`, the checksums
of its neurons, I32 [n_ff, 2]. Version 1 is read: `ffn_gate_rows` and `ffn_up_down_rows`, both I8
[n_ff, bytes of a neuron]. For experts all of them end in `_exps` and have n_expert in front, for
one that every token computes they end in `_shexp`. Keys hold the formats of the rows, one name per
layer; those of the latter end in `_shexp`, too.
"""

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from .._native import ffi, lib
from ..core.errors import ModelFormatError, check
from ..core.structs import sized
from .formats import Format, format_by_name
from .stored import Stored
from .writer import Entry, array, uint32

VERSION = "powerinfer.bundle.version"
KEYS = re.compile(r"powerinfer\.bundle\..+")
# Of a file that was written from another one: which that was, what its placements call it, and what
# saved states do.
OF_SOURCE = (
    "powerinfer.bundle.source_hash",
    "powerinfer.bundle.model_hash",
    "powerinfer.bundle.weights_hash",
)
ALIGN = 512  # of a neuron's two ranges
FILE_ALIGNMENT = 4096
_ALIGN_KEY = "powerinfer.bundle.align"
_NAME = re.compile(r"blk\.(\d+)\.ffn_(gate_rows|up_down_rows|bundle|bundle_crc)(_exps|_shexp)?")
_PARTS = {"gate_rows": ("gate",), "up_down_rows": ("up", "down")}  # of version 1
_SHARED = "_shexp"
_TENSORS = {"gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down_t"}  # names without bundles


def _key(part: str, end: str) -> str:
    return f"powerinfer.bundle.{part}_type{end if end == _SHARED else ''}"


def bundled(
    tensors: Sequence[Stored], n_layer: int, align: int = ALIGN
) -> tuple[list[Stored], list[Entry]]:
    """The tensors with neuron rows in bundles of version 2, and the keys of the bundles.

    Raises ValueError for a file without neuron rows.
    """
    found = {t.name: t for t in tensors}
    names: dict[str, dict[int, str]] = {}  # key -> layer -> format
    instead: dict[str, tuple[Stored, ...]] = {}  # tensor name -> what takes its place
    for layer in range(n_layer):
        block = f"blk.{layer}."
        if not any(name.startswith(f"{block}ffn_") and "_norm" not in name for name in found):
            continue  # of another kind
        ends = [end for end in ("", "_exps", _SHARED) if f"{block}ffn_down_t{end}.weight" in found]
        if not ends:
            raise ValueError(f"bundles need neuron rows, but layer {layer} has none (ffn_down_t)")
        for end in ends:
            wanted = {part: f"{block}{name}{end}.weight" for part, name in _TENSORS.items()}
            if wanted["gate"] not in found:
                del wanted["gate"]
            for name in wanted.values():
                if name not in found:
                    raise ModelFormatError(f"tensor {name} is missing")
            parts = [found[name] for name in wanted.values()]
            instead.update(dict.fromkeys(wanted.values(), ()))
            instead[next(iter(wanted.values()))] = _bundle(block, end, parts, align)
            for part, stored in zip(wanted, parts, strict=True):
                names.setdefault(_key(part, end), {})[layer] = stored.format.name
    if not instead:
        raise ValueError("bundles need neuron rows (ffn_down_t), and no layer has any")
    outputs = [new for t in tensors for new in instead.get(t.name, (t,))]
    entries = [uint32(VERSION, 2), uint32(_ALIGN_KEY, align)]
    entries.append(uint32("general.alignment", FILE_ALIGNMENT))
    for key, own in names.items():
        usual = next(iter(own.values()))  # layers without neurons have any name
        of_layers = [own.get(layer, usual) for layer in range(n_layer)]
        entries.append(array(key, "STRING", of_layers))
    return outputs, entries


def _bundle(block: str, end: str, parts: Sequence[Stored], align: int) -> tuple[Stored, Stored]:
    """The neurons of a layer, and their checksums."""
    layout = _Layout([p.format for p in parts], parts[0].row, align)
    lead = parts[0].shape[:-1]
    n = parts[0].n_rows
    sums, known = np.zeros((n, 2), "<u4"), np.zeros(n, bool)

    def rows(a: int, b: int) -> np.ndarray:
        out = np.zeros((b - a) * layout.stride, np.uint8)
        for i, part in enumerate(parts):
            layout.put(i, b - a, part.rows(a, b), out)
        sums[a:b], known[a:b] = layout.checksums(b - a, out), True
        return out

    def checksums(a: int, b: int) -> np.ndarray:
        # The neurons are written before their checksums, which are then known.
        for i in np.flatnonzero(~known[a:b]) + a:
            rows(i, i + 1)
        return sums[a:b].reshape(-1).view(np.uint8)

    name = f"{block}ffn_bundle"
    return (
        Stored(f"{name}{end}", (*lead, layout.stride), format_by_name("I8"), rows),
        Stored(f"{name}_crc{end}", (*lead, 2), format_by_name("I32"), checksums),
    )


def unbundled(
    tensors: Sequence[Stored], value: Callable[[str], object], width: Callable[[str], int]
) -> Iterator[Stored]:
    """The tensors of a file, with bundles split into tensors with the usual names.

    value: returns the value of a key. width: weights of a row, by the end of a bundle's name.
    Raises ModelFormatError for bundles that contradict their keys.
    """
    for stored in tensors:
        match = _NAME.fullmatch(stored.name)
        if not match:
            yield stored
            continue
        layer, kind, end = int(match[1]), match[2], match[3] or ""
        version = 1 if kind in _PARTS else 2
        if value(VERSION) != version:
            raise ModelFormatError(
                f"bundles of version {value(VERSION)} are not supported in tensor {stored.name}"
            )
        if kind == "bundle_crc":
            continue
        gated, n_embd = value(_key("gate", end)) is not None, width(end)
        parts = _PARTS.get(kind, tuple(_TENSORS)[0 if gated else 1 :])
        formats = [_format(value(_key(part, end)), _key(part, end), layer) for part in parts]
        fits = all(f.fits(n_embd) for f in formats) and stored.format.name == "I8"
        layout = _layout(version, formats, n_embd, value(_ALIGN_KEY)) if fits else None
        if layout is None or stored.row != layout.stride:
            names = ", ".join(f.name for f in formats)
            raise ModelFormatError(
                f"tensor {stored.name} has rows of {stored.row} bytes, which are not {names} "
                f"of {n_embd} weights"
            )
        for i, part in enumerate(parts):
            yield _part(f"blk.{layer}.{_TENSORS[part]}{end}.weight", stored, layout, i)


def _part(name: str, bundle: Stored, layout: "_Memory | _Layout", part: int) -> Stored:
    def rows(a: int, b: int) -> np.ndarray:
        # Neurons are much longer than their parts: not all of a slab at once.
        step = max(1, (1 << 24) // layout.stride)
        found = [
            layout.take(part, n - m, bundle.rows(m, n))
            for m in range(a, b, step)
            for n in (min(m + step, b),)
        ]
        return found[0] if len(found) == 1 else np.concatenate(found)

    return Stored(name, (*bundle.shape[:-1], layout.cols), layout.formats[part], rows)


def _format(value: object, key: str, layer: int) -> Format:
    name = value[layer] if isinstance(value, list) and layer < len(value) else value
    try:
        return format_by_name(name if isinstance(name, str) else "")
    except ValueError:
        raise ModelFormatError(f"key {key} has no valid format for layer {layer}") from None


def _layout(
    version: int, formats: Sequence[Format], cols: int, align: object
) -> "_Memory | _Layout":
    if version == 1:
        return _Memory(formats, cols)
    if isinstance(align, bool) or align not in (512, 1024, 2048, 4096):
        raise ModelFormatError(f"key {_ALIGN_KEY} is {align}, and not 512, 1024, 2048 or 4096")
    return _Layout(formats, cols, int(align))


class _Memory:
    """Version 1: a neuron's rows one after the other."""

    def __init__(self, formats: Sequence[Format], cols: int):
        self.formats, self.cols = formats, cols
        self.stride = sum(f.n_bytes(cols) for f in formats)
        self._head = (ffi.new("uint32_t[]", [f.type for f in formats]), len(formats), cols)

    def take(self, part: int, n: int, bundles: np.ndarray) -> np.ndarray:
        """The rows of one part, as other files store them."""
        out = np.empty(n * self.formats[part].n_bytes(self.cols), np.uint8)
        check(lib.pi_bundle_take(*self._head, n, part, *_source(bundles), *_target(out)))
        return out


class _Layout:
    """Version 2: two aligned ranges a neuron."""

    def __init__(self, formats: Sequence[Format], cols: int, align: int):
        self.formats, self.cols = formats, cols
        self._head = (ffi.new("uint32_t[]", [f.type for f in formats]), len(formats), cols, align)
        layout = sized("pi_store_layout")
        check(lib.pi_store_layout_of(*self._head, layout))
        self.stride = layout.stride

    def put(self, row: int, n: int, rows: np.ndarray, out: np.ndarray) -> None:
        check(lib.pi_store_put(*self._head, n, row, *_source(rows), *_target(out)))

    def take(self, row: int, n: int, bundles: np.ndarray) -> np.ndarray:
        out = np.empty(n * self.formats[row].n_bytes(self.cols), np.uint8)
        check(lib.pi_store_take(*self._head, n, row, *_source(bundles), *_target(out)))
        return out

    def checksums(self, n: int, bundles: np.ndarray) -> np.ndarray:
        out = np.empty((n, 2), "<u4")
        into = ffi.from_buffer("uint32_t[]", out, require_writable=True)
        check(lib.pi_store_checksums(*self._head, n, *_source(bundles), into, out.nbytes))
        return out


def _source(data: np.ndarray) -> tuple[object, int]:
    data = np.ascontiguousarray(data)
    return ffi.from_buffer(data), data.nbytes


def _target(data: np.ndarray) -> tuple[object, int]:
    return ffi.from_buffer(data, require_writable=True), data.nbytes
