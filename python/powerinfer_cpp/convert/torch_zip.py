"""A reader of torch's zip files that holds nothing but tensors, without torch.

`pickle.load` runs whatever a file names. This unpickler knows three names (an ordered dict, the
function that rebuilds a tensor, and the storage types) and refuses every other one, so that a file
can give numbers and nothing else. The numbers are mapped, and read when they are needed.
"""

import math
import pickle
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelFormatError
from .weight import Weight

_STORAGES = {
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "DoubleStorage": "<f8",
    "BFloat16Storage": "<u2",  # its bits
    "IntStorage": "<i4",
    "LongStorage": "<i8",
}
_LARGEST_PICKLE = 1 << 24  # bytes; name and shape of a tensor take about a hundred
_LOCAL_HEADER = 30  # bytes of a zip entry before its name


class NotPlain(ModelFormatError):
    """Not a zip file of plain tensors."""


def read_torch_zip(path: Path) -> dict[str, Weight]:
    """Tensors of a state dict by name.

    Raises OSError, NotPlain for other kinds of files, ModelFormatError for damaged ones.
    """
    state = _load(path)
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(tensor, _Tensor) for name, tensor in state.items()
    ):
        raise ModelFormatError(f"{path}: not a state dict of tensors")
    return {name: tensor.weight(name) for name, tensor in state.items()}


def read_torch_tensor(path: Path) -> Weight:
    """The tensor of a file that holds one and nothing else. Raises what read_torch_zip does."""
    state = _load(path)
    if not isinstance(state, _Tensor):
        raise ModelFormatError(f"{path}: not a single tensor")
    return state.weight(str(path))


def _load(path: Path) -> Any:
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(path, archive)
    except zipfile.BadZipFile:
        raise NotPlain(f"{path}: not a torch zip file") from None


@dataclass(frozen=True)
class _Storage:
    """Numbers that tensors share: count of dtype, at a byte of the file."""

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
        raise NotPlain(f"{path}: too much beside its tensors")
    byteorder = f"{root}byteorder"
    if byteorder in entries and archive.read(byteorder) != b"little":
        raise NotPlain(f"{path}: big-endian")

    def storage(kind: str, key: str, count: int) -> _Storage:
        name, dtype = f"{root}data/{key}", _STORAGES[kind]
        if name not in entries or entries[name].file_size != count * np.dtype(dtype).itemsize:
            raise ModelFormatError(f"{path}: {name} is missing or has another size")
        return _Storage(dtype, kind == "BFloat16Storage", _offset(path, entries[name]), count)

    with archive.open(pickles[0]) as file:
        try:
            return _Tensors(file, storage, path).load()
        except ModelFormatError:
            raise
        except Exception as error:  # a damaged pickle can raise nearly anything
            raise ModelFormatError(f"{path}: damaged: {error}") from None


def _offset(path: Path, entry: zipfile.ZipInfo) -> int:
    """Where the bytes of an uncompressed entry begin, after its own header."""
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
        return Weight(name, self.shape, self.storage.bf16, self.values)

    def values(self) -> np.ndarray:
        """The numbers, mapped."""
        s = self.storage
        if math.prod(self.shape) == 0:
            return np.empty(self.shape, dtype=s.dtype)
        flat = np.memmap(self.path, s.dtype, "r", offset=s.offset, shape=(s.count,))[self.first :]
        strides = [step * flat.itemsize for step in self.stride]
        return np.lib.stride_tricks.as_strided(flat, self.shape, strides, writeable=False)


class _Tensors(pickle.Unpickler):
    """Rebuilds tensors over storages; refuses everything else."""

    def __init__(self, file: Any, storage: Any, path: Path):
        super().__init__(file)
        self._storage, self._path = storage, path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._rebuild
        if module == "torch" and name in _STORAGES:
            return name
        raise NotPlain(f"{self._path}: it names {module}.{name}, which is no plain tensor")

    def persistent_load(self, pid: Any) -> Any:
        kind, storage_type, key, _device, count = pid
        if kind != "storage" or storage_type not in _STORAGES:
            raise NotPlain(f"{self._path}: a storage of an unknown kind")
        return self._storage(storage_type, str(key), count)

    def _rebuild(
        self, storage: Any, offset: int, size: Any, stride: Any, *_autograd: Any
    ) -> _Tensor:
        first, *sizes = (int(n) for n in (offset, *size, *stride))
        if first < 0 or min(sizes, default=0) < 0 or len(size) != len(stride):
            raise ModelFormatError(f"{self._path}: a tensor of impossible shape")
        shape, steps = tuple(sizes[: len(size)]), tuple(sizes[len(size) :])
        last = first + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
        if math.prod(shape) and last >= storage.count:
            raise ModelFormatError(f"{self._path}: a tensor that exceeds its storage")
        return _Tensor(self._path, storage, first, shape, steps)
