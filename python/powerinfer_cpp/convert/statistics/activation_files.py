"""PowerInfer's statistics: a folder of `activation_N.pt`, a torch file per layer N with the number
of firings of each neuron. The number of tokens is not stored."""

import pickle
import re
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ...core.errors import ModelFormatError
from ...core.model import LayerSizes
from ..stored import Stored
from ..torch_zip import read_torch_tensor
from ..weight import widen
from ..writer import Entry, replacing
from . import Statistics, entries, tensors

_UP = re.compile(r"blk\.(\d+)\.ffn_up(_exps)?\.weight")
_NAME = re.compile(r"activation_(\d+)\.pt")


def read(folder: Path, sizes: Sequence[LayerSizes], tokens: int | None = None) -> Statistics:
    """The statistics of a folder, for a model with layers of these sizes. Those without neurons
    have no file.

    tokens: number of profiled tokens; None: the largest count, which is a lower bound. Raises
    FileNotFoundError, ModelFormatError for files that are damaged or of another model, ValueError
    if a neuron fired on more than `tokens` tokens.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    files = {int(match[1]): path for match, path in matches if match}
    if not files:
        raise FileNotFoundError(f"{folder}: no statistics (activation_0.pt, activation_1.pt, ...)")
    wanted = [layer for layer, size in enumerate(sizes) if size.n_ff]
    if sorted(files) != wanted:
        raise ModelFormatError(
            f"{folder}: statistics of layers {_ranges(sorted(files))}; the model has {len(wanted)}"
        )
    layers = [
        _layer(files[layer], size.shape) if size.n_ff else np.zeros(size.shape, np.uint64)
        for layer, size in enumerate(sizes)
    ]
    most = max(int(counts.max()) for counts in layers if counts.size)
    if tokens is not None and tokens < most:
        raise ValueError(f"{folder}: a neuron fired {most} times, more than on {tokens} tokens")
    return Statistics(layers, max(1, most if tokens is None else tokens), folder.name)


def as_gguf(
    folder: Path, model: Sequence[Stored], n_layer: int
) -> tuple[list[Stored], list[Entry]]:
    """A folder's statistics as tensors and keys of a GGUF. model: the tensors of a neuron-aware
    one. Raises the errors of `read`."""
    sizes = [LayerSizes(0, 0)] * n_layer
    for tensor in model:
        match = _UP.fullmatch(tensor.name)
        if match and int(match[1]) < n_layer:
            experts = tensor.shape[0] if match[2] else 0
            sizes[int(match[1])] = LayerSizes(tensor.shape[-2], experts)
    found = read(folder, sizes)
    return tensors(found, sizes), entries(found)


def write(folder: Path, statistics: Statistics, inputs: Iterable[str | Path] = ()) -> None:
    """Writes activation_N.pt for every layer: int64 [n_ff], for mixtures [n_expert, n_ff].

    inputs: files that must not be replaced. Raises ValueError if one would be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for layer, counts in enumerate(statistics.layers):
        if not counts.size:
            continue
        values = (counts if len(counts) > 1 else counts[0]).astype("<i8")
        path = folder / f"activation_{layer}.pt"
        with replacing(path, values.nbytes, inputs) as part:
            _save(part, path.stem, values)


def _layer(path: Path, shape: tuple[int, int]) -> np.ndarray:
    """The counts of a file, uint64 [experts, n_ff]."""
    weight = read_torch_tensor(path)
    if weight.shape not in (shape, shape[1:] if shape[0] == 1 else shape):
        raise ModelFormatError(
            f"{path}: shape {list(weight.shape)}; the model has {shape[1]} neurons in a layer"
            + (f" and {shape[0]} experts" if shape[0] > 1 else "")
        )
    stored = weight.stored()
    values = stored if stored.dtype.kind == "i" else widen(stored, weight.bf16).astype(np.float64)
    if not (np.isfinite(values).all() and (values >= 0).all() and (values < 2.0**62).all()):
        raise ModelFormatError(f"{path}: holds values that are not counts")
    return np.rint(values).astype(np.uint64).reshape(shape)


def _save(path: Path, name: str, values: np.ndarray) -> None:
    """Writes an int64 tensor as torch.save does: the pickle names the storage and the shape."""

    def text(s: str) -> bytes:
        return pickle.BINUNICODE + len(s).to_bytes(4, "little") + s.encode()

    def number(n: int) -> bytes:
        return pickle.BININT + n.to_bytes(4, "little")

    def group(*items: bytes) -> bytes:
        return pickle.MARK + b"".join(items) + pickle.TUPLE

    def named(module: str, attribute: str) -> bytes:
        return pickle.GLOBAL + f"{module}\n{attribute}\n".encode()

    storage = group(
        text("storage"), named("torch", "LongStorage"), text("0"), text("cpu"), number(values.size)
    )
    arguments = group(
        storage + pickle.BINPERSID,
        number(0),
        group(*map(number, values.shape)),
        group(*(number(step // values.itemsize) for step in values.strides)),
        pickle.NEWFALSE,
        named("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE,
    )
    rebuilt = named("torch._utils", "_rebuild_tensor_v2") + arguments + pickle.REDUCE
    members = {
        "data.pkl": pickle.PROTO + b"\2" + rebuilt + pickle.STOP,
        "byteorder": b"little",
        "data/0": values.tobytes(),
        "version": b"3\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in members.items():
            # A fixed time, so that the same work writes the same bytes.
            archive.writestr(zipfile.ZipInfo(f"{name}/{member}"), data)


def _ranges(numbers: list[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}" + (
        "" if len(numbers) == numbers[-1] - numbers[0] + 1 else " with gaps"
    )
