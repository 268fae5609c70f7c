"""GGUF files for tests: what one holds, and a copy of it with something changed."""

from __future__ import annotations

import struct
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


def entry(key: str, value: Any) -> bytes:
    """A key and its value: bool, int (u32; i32 below 0), float (f32), str, or a list of one of
    them."""
    plain = value[0] if isinstance(value, list) else value
    codes = {bool: (7, "<B"), float: (6, "<f"), int: (4, "<I"), str: (8, "")}
    kind, code = codes[type(plain)]
    if type(plain) is int and plain < 0:
        kind, code = 5, "<i"

    def text(of: str) -> bytes:
        return struct.pack("<Q", len(of.encode())) + of.encode()

    def element(of: Any) -> bytes:
        return text(of) if kind == 8 else struct.pack(code, of)

    if not isinstance(value, list):
        return text(key) + struct.pack("<I", kind) + element(value)
    return text(key) + struct.pack("<IIQ", 9, kind, len(value)) + b"".join(map(element, value))


class Spliced:
    """The bytes of a GGUF file, and quick copies of it with other keys and more tensors."""

    def __init__(self, source: Path):
        reader = gguf.GGUFReader(source)
        self.path = source
        self.keys = {  # the bytes of each
            field.name: (field.offset, field.offset + sum(part.nbytes for part in field.parts))
            for field in reader.fields.values()
            if not field.name.startswith("GGUF.")
        }
        self.architecture = reader.fields["general.architecture"].contents()
        self.tensors = {t.name for t in reader.tensors}
        self._alignment, data = reader.alignment, source.read_bytes()
        last = reader.tensors[-1].field
        end = last.offset + sum(part.nbytes for part in last.parts)
        self._head, self._data = data[:end], data[reader.data_offset :]

    def write(
        self,
        target: Path,
        keys: dict[str, Any] | None = None,
        tensors: dict[str, np.ndarray] | None = None,
    ) -> Path:
        """A copy with values of keys (None: without the key), which come first, and further F32
        tensors, which come last."""
        head, n_keys = self._head, len(self.keys)
        gone = [self.keys[key] for key in keys or {} if key in self.keys]
        for begin, end in sorted(gone, reverse=True):
            head = head[:begin] + head[end:]
        new = {key: value for key, value in (keys or {}).items() if value is not None}
        entries = b"".join(entry(key, value) for key, value in new.items())
        n_tensors = len(self.tensors) + len(tensors or {})
        counts = struct.pack("<QQ", n_tensors, n_keys - len(gone) + len(new))
        infos, data = b"", self._padded(self._data)
        for name, values in (tensors or {}).items():
            sizes = struct.pack(f"<{values.ndim}Q", *reversed(values.shape))
            infos += struct.pack("<Q", len(name)) + name.encode()
            infos += struct.pack("<I", values.ndim) + sizes + struct.pack("<IQ", 0, len(data))
            data = self._padded(data + values.astype("<f4").tobytes())
        head = head[:8] + counts + entries + head[24:] + infos
        target.write_bytes(self._padded(head) + data)
        return target

    def _padded(self, data: bytes) -> bytes:
        return data + bytes(-len(data) % self._alignment)


def changed(
    source: Path,
    target: Path,
    keys: dict[str, Any] | None = None,
    tensors: Callable[[str, np.ndarray], Any] = lambda _name, data: data,
    added: dict[str, np.ndarray] | None = None,
) -> Path:
    """A copy with other values of keys (None: without the key) and of tensors (None: without it).

    keys: a value of the same kind as the file's takes its type; general.alignment is that of the
    copy. tensors gets the name and the elements as the file stores them, blocks as bytes; what it
    gives back as float32 is stored as F32; it may also give bytes and the type that they are of.
    added: new tensors.
    """
    reader, keys = gguf.GGUFReader(source), dict(keys or {})
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value = field.contents()
        if field.name == "general.alignment":
            keys.setdefault(field.name, int(value))
            continue
        new = keys.get(field.name, value)
        if _kind(new) != _kind(value):
            continue
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, new, field.types[0], element)
        keys.pop(field.name, None)
    if alignment := keys.pop("general.alignment", None):
        writer.add_custom_alignment(alignment)
    for key, value in keys.items():
        kinds = {bool: "BOOL", int: "UINT32", float: "FLOAT32", str: "STRING"}
        if isinstance(value, list):
            kind = gguf.GGUFValueType[kinds[type(value[0])]]
            writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, kind)
        elif value is not None:
            writer.add_key_value(key, value, gguf.GGUFValueType[kinds[type(value)]])
    for t in reader.tensors:
        data = tensors(t.name, t.data)
        if isinstance(data, tuple):
            writer.add_tensor(t.name, data[0], raw_dtype=data[1])
        elif data is not None:
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
