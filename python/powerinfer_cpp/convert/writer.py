"""Writes GGUF files: header and layout by the gguf package, data in slabs of rows.

The file is written as `OUT.HEX.part` and renamed when it is complete. An error or Ctrl-C removes
it; after a kill, the next writer of OUT does.
Memory: one slab of rows, whatever the size of a tensor.
"""

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

from ..core.progress import Progress
from ..core.system import lock, open_for_lock, open_left
from .stored import Stored

_ALIGNMENT = 32  # the format's default
_ALIGNMENT_KEY = "general.alignment"
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
    "IQ4_NL": 25,
    "IQ4_XS": 30,
    "BF16": 32,
    "TQ1_0": 36,
    "TQ2_0": 37,
    "MXFP4": 38,
}


@dataclass(frozen=True)
class Entry:
    """A key of the header. element: element type of an array."""

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


def of_layers(key: str, values: list[int]) -> Entry:
    """A number for all layers, or where they differ an array with one for each."""
    return uint32(key, values[0]) if len(set(values)) == 1 else array(key, "INT32", values)


def replaced(entries: Iterable[Entry], own: Iterable[Entry]) -> Iterator[Entry]:
    """The entries, with those of `own` in the place of the ones with their keys, or behind them."""
    left = {entry.key: entry for entry in own}
    for entry in entries:
        yield left.pop(entry.key, entry)
    yield from left.values()


def write_gguf(
    path: Path,
    architecture: str,
    entries: Iterable[Entry],
    tensors: Sequence[Stored],
    inputs: Iterable[str | Path] = (),
    magic: bytes = b"GGUF",
) -> None:
    """Writes a GGUF v3 file, or nothing.

    architecture: "" for a file of no model. entries: without general.architecture;
    general.alignment is that of the tensors. inputs: as in `replacing`. magic: the file's first
    four bytes. Raises OSError (with one sentence for a full disk), ValueError if `path` is an
    input, and the errors of the tensors' rows.
    """
    entries = list(entries)
    alignment = next((e.value for e in entries if e.key == _ALIGNMENT_KEY), _ALIGNMENT)
    with replacing(path, sum(t.n_bytes + alignment for t in tensors), inputs) as part:
        writer = GGUFWriter(part, architecture)
        try:
            _write(writer, entries, tensors, magic)
        except BaseException:
            for file in writer.fout or ():
                with suppress(OSError):  # closing flushes, which may fail again
                    file.close()
            raise
        for file in writer.fout:
            file.close()


def _write(
    writer: GGUFWriter, entries: Iterable[Entry], tensors: Sequence[Stored], magic: bytes
) -> None:
    for entry in entries:
        if entry.key == _ALIGNMENT_KEY:
            writer.add_custom_alignment(entry.value)
        elif entry.type != GGUFValueType.ARRAY or len(
            entry.value
        ):  # the package cannot write empty ones
            writer.add_key_value(entry.key, entry.value, entry.type, entry.element)
    for tensor in tensors:
        kind = GGMLQuantizationType(tensor.format.type)
        writer.add_tensor_info(
            tensor.name, tensor.shape, np.dtype(np.float32), tensor.n_bytes, raw_dtype=kind
        )
    writer.write_header_to_file()
    header = writer.fout[0]
    header.seek(0)
    header.write(magic)
    header.seek(0, os.SEEK_END)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    _write_data(writer.fout[0], tensors, writer.data_alignment)


def _write_data(file: Any, tensors: Sequence[Stored], alignment: int) -> None:
    total = sum(tensor.n_bytes for tensor in tensors)
    with Progress("writing", total, "B") as progress:
        for tensor in tensors:
            file.write(bytes(-file.tell() % alignment))
            start = file.tell()
            for piece in tensor.slabs():
                file.write(piece.data)
                progress.update(piece.nbytes)
            if file.tell() - start != tensor.n_bytes:
                raise RuntimeError(f"tensor {tensor.name}: {file.tell() - start} bytes written")
        file.write(bytes(-file.tell() % alignment))
        file.flush()


@contextmanager
def named(path: Path, n_bytes: int = 0) -> Iterator[None]:
    """Adds `path` to errors of a full disk. n_bytes: about the size to be written; 0: not shown."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        needed = f" (about {_size(n_bytes)} needed)" if n_bytes else ""
        raise OSError(error.errno, f"{path}: no space left to write it{needed}") from None


@contextmanager
def replacing(path: Path, n_bytes: int, inputs: Iterable[str | Path] = ()) -> Iterator[Path]:
    """Yields a new file beside `path` to write to, and renames it to `path` on success.

    n_bytes: about the size to be written; raises at once if the disk has less. inputs: files that
    must not be replaced. The new file has a unique name, so two processes with the same `path` each
    write a whole file, and the last one remains.
    """
    inputs = list(inputs)
    check_target(path, n_bytes, inputs)
    clear(path, inputs)
    with named(path, n_bytes):
        part, held = _new_part(path)
    try:
        with named(path, n_bytes):
            yield part
            os.fsync(held)  # else a power cut may leave the name with a file of nothing
            os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    finally:
        os.close(held)


def _new_part(path: Path) -> tuple[Path, int]:
    """A new empty file `path.HEX.part`, and a descriptor that holds its lock."""
    while True:
        part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
        try:
            held = open_for_lock(part, new=True)
        except FileExistsError:
            continue
        if lock(held) is not False and part.exists():  # else another process has removed it
            return part, held
        os.close(held)


@contextmanager
def alone(mark: Path) -> Iterator[None]:
    """Holds the lock of a file that marks a work folder. Raises ValueError if another process is
    using that folder."""
    with named(mark):
        file = open_for_lock(mark)
    try:
        if lock(file) is False or not mark.exists():  # gone: its work has just ended
            raise ValueError(f"{mark.parent}: another process is using it")
        yield
    finally:
        os.close(file)


def clear(path: Path, inputs: Iterable[str | Path] = ()) -> None:
    """Removes partial files of this output from killed processes, whose locks are free."""
    inputs = list(inputs)
    name = re.compile(re.escape(path.name) + r"\.[0-9a-f]{8}\.part")
    for left in path.parent.iterdir():
        if not name.fullmatch(left.name) or _is_input(left, inputs):
            continue
        with suppress(OSError):
            file = open_left(left)
            try:
                if stat.S_ISREG(os.fstat(file).st_mode) and lock(file):
                    left.unlink()
            finally:
                os.close(file)


def refuse_inputs(target: Path, inputs: Iterable[str | Path]) -> None:
    """Raises ValueError if `target` is one of the input files, also through links.

    A folder as input means the files in it, except GGUFs, which are results.
    """
    if target.exists() and _is_input(target, inputs):
        raise ValueError(f"{target}: input and output are the same file")


def _is_input(path: Path, inputs: Iterable[str | Path]) -> bool:
    for given in map(Path, inputs):
        files = [given]
        if given.is_dir():
            files = [f for f in given.iterdir() if f.suffix != ".gguf"]
        for file in files:
            with suppress(OSError):
                if path.samefile(file):
                    return True
    return False


def check_target(path: Path, n_bytes: int, inputs: Iterable[str | Path] = ()) -> None:
    """Raises OSError if a file of n_bytes cannot be written, ValueError if it is an input."""
    refuse_inputs(path, inputs)
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"{path}: the folder {path.parent} does not exist")
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, f"{path}: exists and is not a regular file")
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
