"""Copies a GGUF with some keys and tensors changed."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ..core.gguf import Gguf
from . import bundles, source
from .formats import format_by_name
from .stored import Stored
from .writer import Entry, uint32, write_gguf

MARK = "powerinfer.version"
# The writer sets its own, a split file becomes a single file, and a bundled one is no longer that
# of the model it was written from. It keeps the alignment of its neurons.
_WRITER = ("general.architecture", *bundles.OF_SOURCE)


def embed(
    origin: Gguf,
    target: str | Path,
    entries: Sequence[Entry],
    tensors: Sequence[Stored],
    removed: Callable[[str], bool] = lambda _name: False,
) -> None:
    """Writes `origin` to `target` with added keys and tensors, a slab at a time.

    entries, tensors: each replaces the one with its name, or comes at the end. removed: returns
    whether to leave out a key or tensor of the origin. The file is marked as neuron-aware
    (powerinfer.version); for a PWRI file it also names the activation.

    Raises OSError, UnsupportedModelError (a tensor in an unknown format, a PWRI file with an
    unknown activation), ValueError if both are the same file; an error leaves no partial file.
    """
    source.refuse_same_file(origin, target)
    marks = list(source.marks(origin)) if origin.is_pwri else [uint32(MARK, 1)]
    new_entries = {entry.key: entry for entry in (*marks, *entries)}
    new_tensors = {stored.name: stored for stored in tensors}
    written = [
        new_entries.pop(key, None) or source.entry(origin, key)
        for key in origin.metadata
        if key not in _WRITER and not key.startswith("split.") and not removed(key)
    ]
    stored = [
        new_tensors.pop(tensor.name, None) or source.stored(origin, tensor)
        for tensor in origin.tensors
        if not removed(tensor.name)
    ]
    write_gguf(
        Path(target),
        str(origin.value("general.architecture", "")),
        [*written, *new_entries.values()],
        [*stored, *new_tensors.values()],
        origin.files,
    )


def from_array(name: str, values: np.ndarray) -> Stored:
    """A tensor of float32 or int8 values, stored as F32 or I8."""
    values = np.ascontiguousarray(values)
    fmt = format_by_name({"float32": "F32", "int8": "I8"}[values.dtype.name])
    by_rows = values.reshape(-1, values.shape[-1])
    return Stored(name, values.shape, fmt, lambda a, b: by_rows[a:b].view(np.uint8).reshape(-1))
