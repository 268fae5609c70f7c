"""Bundles: the neuron rows of a layer in one tensor, in their memory layout.

The engine implements the layout (`pi_bundle_put`, `pi_bundle_take`); this module has the names. A
layer has `ffn_gate_rows`, the gates, and `ffn_up_down_rows`, each neuron's up and down row, both I8
[n_ff, bytes of a neuron]; for experts `..._exps` [n_expert, n_ff, bytes]. Keys hold the formats of
the rows, one name per layer.
"""

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from .._native import ffi, lib
from ..errors import ModelFormatError, check
from ..formats import Format, format_by_name
from .stored import Stored
from .writer import Entry, array, uint32

VERSION = "powerinfer.bundle.version"
KEYS = re.compile(r"powerinfer\.bundle\..+")
_NAME = re.compile(r"blk\.(\d+)\.ffn_(gate|up_down)_rows(_exps)?")
_PARTS = {"gate": ("gate",), "up_down": ("up", "down")}
_TENSORS = {"gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down_t"}  # names without bundles


def _key(part: str) -> str:
    return f"powerinfer.bundle.{part}_type"


def bundled(tensors: Sequence[Stored], n_layer: int) -> tuple[list[Stored], list[Entry]]:
    """The tensors with neuron rows in bundles, and the keys of the bundles.

    Raises ValueError for a file without neuron rows.
    """
    found = {t.name: t for t in tensors}
    formats: dict[str, list[str]] = {part: [] for part in _TENSORS}
    instead: dict[str, Stored | None] = {}  # tensor name -> its bundle, or None
    for layer in range(n_layer):
        block = f"blk.{layer}."
        end = "_exps" if f"{block}ffn_down_t_exps.weight" in found else ""
        if f"{block}ffn_down_t{end}.weight" not in found:
            raise ValueError(f"bundles need neuron rows, but layer {layer} has none (ffn_down_t)")
        for bundle, names in _PARTS.items():
            wanted = [f"{block}{_TENSORS[part]}{end}.weight" for part in names]
            if bundle == "gate" and wanted[0] not in found:
                continue
            for name in wanted:
                if name not in found:
                    raise ModelFormatError(f"tensor {name} is missing")
            parts = [found[name] for name in wanted]
            instead.update(dict.fromkeys(wanted))
            instead[wanted[0]] = _bundle(f"{block}ffn_{bundle}_rows{end}", parts)
            for part, stored in zip(names, parts, strict=True):
                formats[part].append(stored.format.name)
    outputs = [instead.get(t.name, t) for t in tensors]
    entries = [uint32(VERSION, lib.pi_bundle_version())]
    entries += [array(_key(part), "STRING", names) for part, names in formats.items() if names]
    return [t for t in outputs if t is not None], entries


def _bundle(name: str, parts: Sequence[Stored]) -> Stored:
    shape, formats = parts[0].shape, [p.format for p in parts]

    def rows(a: int, b: int) -> np.ndarray:
        out = np.empty((b - a) * _stride(formats, shape[-1]), np.uint8)
        for i, part in enumerate(parts):
            _move(lib.pi_bundle_put, formats, shape[-1], b - a, i, part.rows(a, b), out)
        return out

    stride = _stride(formats, shape[-1])
    return Stored(name, (*shape[:-1], stride), format_by_name("I8"), rows)


def unbundled(
    tensors: Sequence[Stored], value: Callable[[str], object], n_embd: int
) -> Iterator[Stored]:
    """The tensors of a file, with bundles split into tensors with the usual names.

    value: returns the value of a key. Raises ModelFormatError for bundles that contradict their
    keys.
    """
    for stored in tensors:
        match = _NAME.fullmatch(stored.name)
        if not match:
            yield stored
            continue
        layer, end = int(match[1]), match[3] or ""
        parts = _PARTS[match[2]]
        formats = [_format(value(_key(part)), _key(part), layer) for part in parts]
        if value(VERSION) != lib.pi_bundle_version():
            raise ModelFormatError(f"bundles of version {value(VERSION)} are not supported")
        fits = all(f.fits(n_embd) for f in formats) and stored.format.name == "I8"
        if not fits or stored.row != _stride(formats, n_embd):
            names = ", ".join(f.name for f in formats)
            raise ModelFormatError(
                f"tensor {stored.name} has rows of {stored.row} bytes, which are not {names} "
                f"of {n_embd} weights"
            )
        for i, part in enumerate(parts):
            name = f"blk.{layer}.{_TENSORS[part]}{end}.weight"
            yield _part(name, stored, formats, i, n_embd)


def _part(name: str, bundle: Stored, formats: Sequence[Format], part: int, cols: int) -> Stored:
    def rows(a: int, b: int) -> np.ndarray:
        out = np.empty((b - a) * formats[part].n_bytes(cols), np.uint8)
        _move(lib.pi_bundle_take, formats, cols, b - a, part, bundle.rows(a, b), out)
        return out

    return Stored(name, (*bundle.shape[:-1], cols), formats[part], rows)


def _format(value: object, key: str, layer: int) -> Format:
    name = value[layer] if isinstance(value, list) and layer < len(value) else value
    try:
        return format_by_name(name if isinstance(name, str) else "")
    except ValueError:
        raise ModelFormatError(f"key {key} has no valid format for layer {layer}") from None


def _stride(formats: Sequence[Format], cols: int) -> int:
    return sum(f.n_bytes(cols) for f in formats)


def _move(
    move: Callable[..., int],
    formats: Sequence[Format],
    cols: int,
    n: int,
    part: int,
    source: np.ndarray,
    target: np.ndarray,
) -> None:
    types = ffi.new("uint32_t[]", [f.type for f in formats])
    source = np.ascontiguousarray(source)
    check(
        move(
            types,
            len(formats),
            cols,
            n,
            part,
            ffi.from_buffer(source),
            source.nbytes,
            ffi.from_buffer(target, require_writable=True),
            target.nbytes,
        )
    )
