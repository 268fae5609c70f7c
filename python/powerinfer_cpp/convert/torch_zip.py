"""Reads torch's zip files that contain only tensors, without torch.

`torch_pickle` reads the pickle. It accepts three kinds of names (an ordered dict, the function that
rebuilds a tensor, and the storage types) and refuses all others, so a file can only contain
numbers. The numbers are mapped and read on demand.
"""

import errno
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import ModelFormatError
from .torch_pickle import NotPlain, read_pickle
from .weight import Weight

__all__ = ["NotPlain", "read_torch_tensor", "read_torch_zip"]

# numpy's types; the integer ones are read only as such (statistics), never as weights.
_STORAGES = {
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "DoubleStorage": "<f8",
    "BFloat16Storage": "<u2",  # its bits
    "IntStorage": "<i4",
    "LongStorage": "<i8",
    "ShortStorage": "<i2",
    "CharStorage": "<i1",
    "ByteStorage": "<u1",
    "BoolStorage": "|b1",
}
_LARGEST_PICKLE = 1 << 24  # bytes; name and shape of a tensor take about a hundred
_LOCAL_HEADER = 30  # bytes of a zip entry before its name
_MOST_DIMENSIONS = 16


def read_torch_zip(path: Path) -> dict[str, Weight]:
    """Tensors of a state dict by name.

    Raises OSError, NotPlain for other kinds of files, ModelFormatError for damaged files.
    """
    state = _load(path)
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(tensor, _Tensor) for name, tensor in state.items()
    ):
        raise ModelFormatError(f"{path}: not a state dict of tensors")
    return {name: tensor.weight(name) for name, tensor in state.items()}


def read_torch_tensor(path: Path) -> Weight:
    """The tensor of a file that holds a single tensor. Raises the errors of read_torch_zip."""
    state = _load(path)
    if not isinstance(state, _Tensor):
        raise ModelFormatError(f"{path}: not a single tensor")
    return state.weight(str(path))


def _load(path: Path) -> Any:
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(path, archive)
    except ModelFormatError:
        raise
    except zipfile.BadZipFile:
        raise NotPlain(f"{path}: not a torch zip file") from None
    except Exception as error:  # zipfile raises nearly anything: EOFError, struct.error, ...
        # EINVAL means an impossible offset; other system errors are not the file's fault.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise ModelFormatError(f"{path}: damaged zip file ({type(error).__name__})") from None


@dataclass(frozen=True)
class _Storage:
    """Numbers that tensors share: `count` of `dtype`, at an offset in the file."""

    dtype: str
    bf16: bool
    offset: int
    count: int


def _read(path: Path, archive: zipfile.ZipFile) -> Any:
    entries = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise NotPlain(f"{path}: not a torch zip file")
    root = pickles[0].removesuffix("data.pkl")
    if any(info.compress_type != zipfile.ZIP_STORED for info in entries.values()):
        raise NotPlain(f"{path}: compressed; torch does not write such files")
    if entries[pickles[0]].file_size > _LARGEST_PICKLE:
        raise NotPlain(f"{path}: too much data besides its tensors")
    byteorder = f"{root}byteorder"
    if byteorder in entries and _contents(archive, entries[byteorder], 6) != b"little":
        raise NotPlain(f"{path}: big-endian")

    def storage(kind: str, key: str, count: int) -> _Storage:
        name, dtype = f"{root}data/{key}", _STORAGES[kind]
        if name not in entries or entries[name].file_size != count * np.dtype(dtype).itemsize:
            shown = ascii(name[:80])[1:-1]
            raise ModelFormatError(f"{path}: {shown} is missing or has another size")
        return _Storage(dtype, kind == "BFloat16Storage", _offset(path, entries[name]), count)

    def rebuild(storage: Any, first: Any, size: Any, stride: Any) -> _Tensor:
        return _tensor(path, storage, first, size, stride)

    data = _contents(archive, entries[pickles[0]], _LARGEST_PICKLE)
    return read_pickle(path, data, frozenset(_STORAGES), storage, rebuild)


def _contents(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, most: int) -> bytes:
    """The bytes of an entry, at most `most`, whatever sizes the file claims."""
    with archive.open(entry) as file:
        return file.read(most)


def _offset(path: Path, entry: zipfile.ZipInfo) -> int:
    """Offset of the bytes of an uncompressed entry, after its local header."""
    with open(path, "rb") as file:
        file.seek(entry.header_offset)
        header = file.read(_LOCAL_HEADER)
        if len(header) != _LOCAL_HEADER or header[:4] != b"PK\3\4":
            raise ModelFormatError(f"{path}: {entry.filename} is damaged")
        names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        offset = entry.header_offset + _LOCAL_HEADER + names
        if offset + entry.file_size > file.seek(0, 2):
            raise ModelFormatError(f"{path}: {entry.filename} exceeds the file")
    return offset


@dataclass(frozen=True)
class _Tensor:
    path: Path
    storage: _Storage
    first: int  # element of the storage
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def weight(self, name: str) -> Weight:
        plain = self.storage.bf16 or np.dtype(self.storage.dtype).kind == "f"
        why = "" if plain else f"element type {np.dtype(self.storage.dtype).name}"
        return Weight(name, self.shape, self.storage.bf16, self.values, why)

    def values(self) -> np.ndarray:
        """The numbers, mapped."""
        s = self.storage
        if math.prod(self.shape) == 0:
            return np.empty(self.shape, dtype=s.dtype)
        flat = np.memmap(self.path, s.dtype, "r", offset=s.offset, shape=(s.count,))[self.first :]
        strides = [step * flat.itemsize for step in self.stride]
        return np.lib.stride_tricks.as_strided(flat, self.shape, strides, writeable=False)


def _tensor(path: Path, storage: Any, first: Any, size: Any, stride: Any) -> _Tensor:
    """A tensor of a pickle; all of its bytes are inside its storage."""
    if not (
        isinstance(storage, _Storage)
        and isinstance(size, tuple)
        and isinstance(stride, tuple)
        and len(size) == len(stride) <= _MOST_DIMENSIONS
        and all(type(n) is int and n >= 0 for n in (first, *size, *stride))
    ):
        raise ModelFormatError(f"{path}: a tensor of impossible shape")
    # The stride of a dimension of one element is never used; a file may have any number there.
    steps = tuple(step if n > 1 else 0 for n, step in zip(size, stride, strict=True))
    # A view can repeat its storage any number of times, so limit the elements. An empty tensor
    # cannot be compared with its storage, and numpy has its own limit.
    most = storage.count if math.prod(size) else 1 << 31
    if math.prod(max(n, 1) for n in size) > most:
        raise ModelFormatError(f"{path}: a tensor of impossible shape")
    last = first + sum((n - 1) * step for n, step in zip(size, steps, strict=True))
    if math.prod(size) and last >= storage.count:
        raise ModelFormatError(f"{path}: a tensor that exceeds its storage")
    return _Tensor(path, storage, first, size, steps)
