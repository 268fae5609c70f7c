"""Importance matrices: for each column of a matrix, the mean square of its input on some text.

An error in a column counts as often. Files are those of llama.cpp: a GGUF with sums of squares and
counts of rows per tensor; its older .dat is read, too.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..convert.formats import F32, format_by_name
from ..convert.stored import Stored
from ..convert.writer import array, string, uint32, write_gguf
from ..core.errors import ModelFormatError
from ..core.gguf import Gguf, Tensor

_DATASETS, _CHUNKS, _CHUNK = "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"
_SUMS, _COUNTS = ".in_sum2", ".counts"
_MOST_MATRICES = 1 << 20  # entries of a .dat


@dataclass(frozen=True)
class Inputs:
    """Squared inputs of a tensor's matrices. sums: float64 [n_mat, columns]. counts: how many rows
    were summed, [n_mat]; n_mat: experts, or 1."""

    sums: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True)
class Imatrix:
    """datasets: names of the texts. chunks, chunk: how many windows, and tokens of each. inputs: by
    the tensor's name."""

    datasets: Sequence[str]
    chunks: int
    chunk: int
    inputs: dict[str, Inputs]

    def importance(self, name: str, n_mat: int, row: int) -> np.ndarray | None:
        """Mean squares, float32 [n_mat, row], 1 for experts that saw no token; None if the tensor
        has no entry. Raises ValueError if its entry has another size."""
        found = self.inputs.get(name)
        if found is None:
            return None
        if found.sums.size != n_mat * row:
            raise ValueError(
                f"{name} has {found.sums.size} values in the importance matrix, and {n_mat * row} "
                "columns in the model"
            )
        sums = found.sums.reshape(len(found.counts), -1)
        means = np.ones_like(sums)
        np.divide(sums, found.counts[:, None], out=means, where=found.counts[:, None] > 0)
        return means.reshape(n_mat, row).astype(np.float32)


def write(path: str | Path, imatrix: Imatrix) -> None:
    """Writes llama.cpp's GGUF. Raises OSError, and ValueError for sums that are not finite."""
    entries = [string("general.type", "imatrix")]
    entries.append(array(_DATASETS, "STRING", list(imatrix.datasets)))
    entries += [uint32(_CHUNKS, imatrix.chunks), uint32(_CHUNK, imatrix.chunk)]
    tensors = []
    for name, found in sorted(imatrix.inputs.items()):
        with np.errstate(over="ignore"):
            sums = found.sums.astype(np.float32)
        if not np.isfinite(sums).all():
            raise ValueError(f"the squared inputs of {name} are not finite numbers")
        tensors.append(_stored(name + _SUMS, sums))
        tensors.append(_stored(name + _COUNTS, found.counts.astype(np.float32)[:, None]))
    write_gguf(Path(path), "", entries, tensors)


def _stored(name: str, values: np.ndarray) -> Stored:
    data = np.ascontiguousarray(values)
    return Stored(
        name, data.shape, format_by_name("F32"), lambda a, b: data[a:b].reshape(-1).view(np.uint8)
    )


def read(path: str | Path) -> Imatrix:
    """Reads a GGUF or .dat file. Raises OSError, ModelFormatError for other contents."""
    with Path(path).open("rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    imatrix = _read_gguf(path) if is_gguf else _read_dat(path)
    for name, found in imatrix.inputs.items():
        if not (np.isfinite(found.sums).all() and np.isfinite(found.counts).all()):
            raise ModelFormatError(f"{path}: {name} has values that are not finite")
        if (found.sums < 0).any() or (found.counts < 0).any():
            raise ModelFormatError(f"{path}: {name} has values below 0")
    return imatrix


def _read_gguf(path: str | Path) -> Imatrix:
    with Gguf(path) as gguf:
        datasets, chunks, chunk = (gguf.value(key) for key in (_DATASETS, _CHUNKS, _CHUNK))
        if not isinstance(chunks, int) or not isinstance(chunk, int):
            raise ModelFormatError(
                f"{path}: no importance matrix: {_CHUNKS} or {_CHUNK} is missing"
            )
        tensors = {tensor.name: tensor for tensor in gguf.tensors}
        inputs = {}
        for name in tensors:
            if not name.endswith(_SUMS):
                continue
            of = name.removesuffix(_SUMS)
            if of + _COUNTS not in tensors:
                raise ModelFormatError(f"{path}: tensor {of + _COUNTS} is missing")
            sums, counts = (_values(gguf, tensors[of + end]) for end in (_SUMS, _COUNTS))
            if counts.size == 0 or sums.size == 0 or sums.size % counts.size:
                raise ModelFormatError(
                    f"{path}: {name} has {sums.size} values for {counts.size} matrices"
                )
            inputs[of] = Inputs(sums.reshape(counts.size, -1), counts)
        names = datasets if isinstance(datasets, list) else []
        return Imatrix([str(n) for n in names], chunks, chunk, inputs)


def _values(gguf: Gguf, tensor: Tensor) -> np.ndarray:
    if tensor.type != F32:
        raise ModelFormatError(f"{gguf.files[0]}: tensor {tensor.name} is not F32")
    return gguf.data(tensor).view(np.float32).astype(np.float64)


def _read_dat(path: str | Path) -> Imatrix:
    """Entries of a name, a number of windows and the mean squares times it; then, in newer files,
    the windows of all and the name of the text."""
    data, at = Path(path).read_bytes(), 0

    def take(n: int) -> bytes:
        nonlocal at
        if n < 0 or n > len(data) - at:
            raise ModelFormatError(f"{path}: no importance matrix, or cut off")
        at += n
        return data[at - n : at]

    def number() -> int:
        return struct.unpack("<i", take(4))[0]

    n, inputs, chunks, datasets = number(), {}, 0, []
    if not 0 < n <= _MOST_MATRICES:
        raise ModelFormatError(f"{path}: no importance matrix, or cut off")
    for _ in range(n):
        name = take(number()).decode("utf-8", "surrogateescape")
        calls, size = number(), number()
        sums = np.frombuffer(take(4 * size), "<f4").astype(np.float64)
        inputs[name] = Inputs(sums[None], np.array([max(1, calls)], np.float64))
    if at < len(data):
        chunks = number()
        datasets = [take(number()).decode("utf-8", "surrogateescape")]
    return Imatrix(datasets, chunks, 0, inputs)
