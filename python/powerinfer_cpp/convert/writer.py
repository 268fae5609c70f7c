"""Writing GGUF files: header and layout by the gguf package, data in slabs of rows.

The file grows as `OUT.part` and takes its name when it is complete; an error or Ctrl-C removes it.
Memory: one slab of rows, whatever the size of a tensor.
"""

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

from ..formats import F16, Format, encode, format_by_name
from ..progress import Progress
from .tensors import Output

SLAB = 1 << 24  # elements of a slab: 64 MB as float32
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
# What takes the place of a format whose blocks of 256 do not divide a row, as in llama.cpp.
_NARROWER = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}


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


@dataclass(frozen=True)
class Stored:
    """A tensor of the file: shape in numpy's order, its format, and its bytes piece by piece."""

    name: str
    shape: tuple[int, ...]
    format: Format
    pieces: Callable[[], Iterator[np.ndarray]]

    @property
    def n_bytes(self) -> int:
        n = 1
        for size in self.shape:
            n *= size
        return self.format.n_bytes(n)


def encoded(output: Output, fmt: Format) -> Stored:
    """An Output in a format whose block divides its rows.

    While writing, raises ValueError for values that are not finite, or do not fit the format.
    """

    def pieces() -> Iterator[np.ndarray]:
        step = max(1, SLAB // max(1, output.row))
        for a in range(0, output.n_rows, step):
            values = output.rows(a, min(a + step, output.n_rows))
            if not np.isfinite(values).all():
                raise ValueError(f"tensor {output.name} holds values that are not finite")
            data = encode(fmt, values)
            if fmt.type == F16 and not np.isfinite(data.view(np.float16)).all():
                raise ValueError(
                    f"tensor {output.name} holds values beyond F16's range: use f32 or bf16"
                )
            yield data

    return Stored(output.name, output.shape, fmt, pieces)


def fitting(fmt: Format, row: int, name: str, log: Callable[[str], None]) -> Format:
    """The format, or where its blocks do not divide a row a narrower one or F16, with a line."""
    if fmt.fits(row):
        return fmt
    found = format_by_name(_NARROWER.get(fmt.name, "F16"))
    if not found.fits(row):
        found = format_by_name("F16")
    why = f"rows of {row} are no multiple of {fmt.block}"
    log(f"{name}: {why}, so {found.name} instead of {fmt.name}")
    return found


def write_gguf(
    path: Path, architecture: str, entries: Iterable[Entry], tensors: Sequence[Stored]
) -> None:
    """Writes a GGUF v3 file, or nothing.

    entries: without general.architecture. Raises OSError (with one sentence for a full disk), and
    what the tensors' pieces raise.
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
            for piece in tensor.pieces():
                file.write(piece.data)
                progress.update(piece.nbytes)
            if file.tell() - start != tensor.n_bytes:
                raise RuntimeError(f"tensor {tensor.name}: {file.tell() - start} bytes written")
        file.write(bytes(-file.tell() % _ALIGNMENT))
        file.flush()


@contextmanager
def replacing(path: Path, n_bytes: int) -> Iterator[Path]:
    """Gives `path.part` to write to, and renames it to `path` when the block ends well.

    n_bytes: about what will be written; too little free disk is refused at once.
    """
    _check_target(path, n_bytes)
    part = path.with_name(path.name + ".part")
    try:
        yield part
        os.replace(part, path)
    except BaseException as error:
        with suppress(OSError):
            part.unlink()
        if isinstance(error, OSError) and error.errno in _FULL:
            raise OSError(
                error.errno, f"{path}: no space left to write it (about {_size(n_bytes)} needed)"
            ) from None
        raise


def _check_target(path: Path, n_bytes: int) -> None:
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
