"""A reader of torch's zip files that holds nothing but tensors, without torch.

`pickle.load` runs whatever a file names. This unpickler knows three names (an ordered dict, the
function that rebuilds a tensor, and the storage types) and refuses every other one, so that a file
can give numbers and nothing else.
"""

import math
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelFormatError

_STORAGES = {
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "DoubleStorage": "<f8",
    "BFloat16Storage": "<u2",  # its bits
}
_LARGEST_PICKLE = 1 << 20  # bytes; names and shapes of a few tensors take a few hundred


class NotPlain(ModelFormatError):
    """Not a zip file of plain tensors."""


def read_torch_zip(path: Path) -> dict[str, tuple[np.ndarray, bool]]:
    """Tensors of a state dict: values (BF16 as uint16) and whether they are BF16.

    Raises OSError, NotPlain for other kinds of files, ModelFormatError for damaged ones.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(path, archive)
    except zipfile.BadZipFile:
        raise NotPlain(f"{path}: not a torch zip file") from None


def _read(path: Path, archive: zipfile.ZipFile) -> dict[str, tuple[np.ndarray, bool]]:
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

    def storage(key: str, dtype: str, count: int) -> np.ndarray:
        name = f"{root}data/{key}"
        if name not in entries or entries[name].file_size != count * np.dtype(dtype).itemsize:
            raise ModelFormatError(f"{path}: {name} is missing or has another size")
        return np.frombuffer(archive.read(name), dtype=dtype)

    with archive.open(pickles[0]) as file:
        try:
            state = _Tensors(file, storage, path).load()
        except ModelFormatError:
            raise
        except Exception as error:  # a damaged pickle can raise nearly anything
            raise ModelFormatError(f"{path}: damaged: {error}") from None
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(tensor, _Tensor) for name, tensor in state.items()
    ):
        raise ModelFormatError(f"{path}: not a state dict of tensors")
    return {name: (tensor.values, tensor.bf16) for name, tensor in state.items()}


class _Tensor:
    def __init__(self, values: np.ndarray, bf16: bool):
        self.values, self.bf16 = values, bf16


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
        return storage_type, self._storage(str(key), _STORAGES[storage_type], count)

    def _rebuild(
        self, storage: Any, offset: int, size: Any, stride: Any, *_autograd: Any
    ) -> _Tensor:
        kind, values = storage
        sizes = [int(n) for n in (*size, *stride, offset)]
        if min(sizes) < 0 or len(size) != len(stride):
            raise ModelFormatError(f"{self._path}: a tensor of impossible shape")
        if math.prod(size) == 0:
            return _Tensor(np.empty(size, dtype=values.dtype), kind == "BFloat16Storage")
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if last >= len(values):
            raise ModelFormatError(f"{self._path}: a tensor that exceeds its storage")
        strides = [step * values.itemsize for step in stride]
        view = np.lib.stride_tricks.as_strided(values[offset:], size, strides, writeable=False)
        return _Tensor(view, kind == "BFloat16Storage")
