"""GGUF files for tests: what one holds, and a copy of it with something changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np


def values(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of the file as the gguf package decodes it, in numpy's order of sizes."""
    found = {}
    for t in gguf.GGUFReader(path).tensors:
        shape = tuple(int(n) for n in reversed(t.shape))
        data = t.data if t.data.dtype == np.int8 else gguf.quants.dequantize(t.data, t.tensor_type)
        found[t.name] = data.reshape(shape)
    return found


def raw(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Type, sizes and bytes of every tensor."""
    return {
        t.name: (t.tensor_type.name, tuple(int(n) for n in t.shape), t.data.tobytes())
        for t in gguf.GGUFReader(path).tensors
    }


def _kind(value: Any) -> tuple[type, ...]:
    return (list, *map(type, value[:1])) if isinstance(value, list) else (type(value),)


def changed(
    source: Path,
    target: Path,
    keys: dict[str, Any] | None = None,
    tensors: Callable[[str, np.ndarray], np.ndarray | None] = lambda _name, data: data,
    added: dict[str, np.ndarray] | None = None,
) -> Path:
    """A copy with other values of keys (None: without the key) and of tensors (None: without it).

    keys: a value of the same kind as the file's takes its type. tensors gets the name and the
    elements as the file stores them, blocks as bytes; what it gives back as float32 is stored as
    F32. added: new tensors.
    """
    reader, keys = gguf.GGUFReader(source), dict(keys or {})
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value = field.contents()
        if field.name == "general.alignment":
            writer.add_custom_alignment(int(value))
            continue
        new = keys.get(field.name, value)
        if _kind(new) != _kind(value):
            continue
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, new, field.types[0], element)
        keys.pop(field.name, None)
    for key, value in keys.items():
        kinds = {bool: "BOOL", int: "UINT32", float: "FLOAT32", str: "STRING"}
        if isinstance(value, list):
            kind = gguf.GGUFValueType[kinds[type(value[0])]]
            writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, kind)
        elif value is not None:
            writer.add_key_value(key, value, gguf.GGUFValueType[kinds[type(value)]])
    for t in reader.tensors:
        data = tensors(t.name, t.data)
        if data is not None:
            kind = t.tensor_type if data.dtype == t.data.dtype else None
            writer.add_tensor(t.name, np.ascontiguousarray(data), raw_dtype=kind)
    for name, data in (added or {}).items():
        writer.add_tensor(name, data)
    for step in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
    ):
        step()
    writer.close()
    return target
