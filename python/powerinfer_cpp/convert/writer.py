"""Writing GGUF files: header and layout by the gguf package, data in slabs of rows.

The file grows as `OUT.part` and takes its name when it is complete; an error or Ctrl-C removes it.
Memory: one slab of rows, whatever the size of a tensor.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

from ..progress import Progress
from .stored import Stored

_ALIGNMENT = 32  # the format's default, which the gguf package uses
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

# general.file_type, by the format of the matrices
FILE_TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q2_K": 10,
    "Q3_K": 11,
    "Q4_K": 14,
    "Q5_K": 16,
    "Q6_K": 18,
    "BF16": 32,
}


@dataclass(frozen=True)
class Entry:
    """A key of the header. element: of arrays."""

    key: str
    type: GGUFValueType
    value: Any
    element: GGUFValueType | None = None


def uint32(key: str, value: int) -> Entry:
    return Entry(key, GGUFValueType.UINT32, value)


def float32(key: str, value: float) -> Entry:
    return Entry(key, GGUFValueType.FLOAT32, value)


def boolean(key: str, value: bool) -> Entry:
    return Entry(key, GGUFValueType.BOOL, value)


def string(key: str, value: str) -> Entry:
    return Entry(key, GGUFValueType.STRING, value)


def array(key: str, element: str, value: Sequence[Any]) -> Entry:
    return Entry(key, GGUFValueType.ARRAY, value, GGUFValueType[element])


def write_gguf(
    path: Path, architecture: str, entries: Iterable[Entry], tensors: Sequence[Stored]
) -> None:
    """Writes a GGUF v3 file, or nothing.

    entries: without general.architecture. Raises OSError (with one sentence for a full disk), and
    what the tensors' rows raise.
    """
    with replacing(path, sum(t.n_bytes + _ALIGNMENT for t in tensors)) as part:
        writer = GGUFWriter(part, architecture)
        try:
            _write(writer, entries, tensors)
        except BaseException:
            for file in writer.fout or ():
                with suppress(OSError):  # closing flushes, which may fail once more
                    file.close()
            raise
        for file in writer.fout:
            file.close()


def _write(writer: GGUFWriter, entries: Iterable[Entry], tensors: Sequence[Stored]) -> None:
    for entry in entries:
        if entry.type != GGUFValueType.ARRAY or len(entry.value):  # the package has no empty ones
            writer.add_key_value(entry.key, entry.value, entry.type, entry.element)
    for tensor in tensors:
        kind = GGMLQuantizationType(tensor.format.type)
        writer.add_tensor_info(
            tensor.name, tensor.shape, np.dtype(np.float32), tensor.n_bytes, raw_dtype=kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    _write_data(writer.fout[0], tensors)


def _write_data(file: Any, tensors: Sequence[Stored]) -> None:
    total = sum(tensor.n_bytes for tensor in tensors)
    with Progress("writing", total, "B") as progress:
        for tensor in tensors:
            file.write(bytes(-file.tell() % _ALIGNMENT))
            start = file.tell()
            for piece in tensor.slabs():
                file.write(piece.data)
                progress.update(piece.nbytes)
            if file.tell() - start != tensor.n_bytes:
                raise RuntimeError(f"tensor {tensor.name}: {file.tell() - start} bytes written")
        file.write(bytes(-file.tell() % _ALIGNMENT))
        file.flush()


@contextmanager
def named(path: Path, n_bytes: int = 0) -> Iterator[None]:
    """Names `path` in errors of a full disk, which say nothing but that. n_bytes: about what was
    to be written, where that is worth saying."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        needed = f" (about {_size(n_bytes)} needed)" if n_bytes else ""
        raise OSError(error.errno, f"{path}: no space left to write it{needed}") from None


@contextmanager
def replacing(path: Path, n_bytes: int) -> Iterator[Path]:
    """Gives `path.part` to write to, and renames it to `path` when the block ends well.

    n_bytes: about what will be written; too little free disk is refused at once.
    """
    check_target(path, n_bytes)
    part = path.with_name(path.name + ".part")
    try:
        with named(path, n_bytes):
            yield part
            os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def check_target(path: Path, n_bytes: int) -> None:
    """Raises OSError where a file of n_bytes cannot be written."""
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"{path}: the folder {path.parent} does not exist")
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, f"{path}: exists and is no ordinary file")
    free = shutil.disk_usage(path.parent).free
    if free < n_bytes:
        raise OSError(
            errno.ENOSPC,
            f"{path}: {_size(n_bytes)} needed, only {_size(free)} free on that disk",
        )


def _size(n_bytes: int) -> str:
    if n_bytes >= 1 << 30:
        return f"{n_bytes / (1 << 30):.1f} GiB"
    return f"{n_bytes / (1 << 20):.1f} MiB"
