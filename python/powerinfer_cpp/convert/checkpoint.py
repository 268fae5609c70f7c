"""Weights of a Hugging Face folder, tensor by tensor: safetensors or torch files.

Tensors are read on demand. The safetensors package checks safetensors files; then they are mapped,
so that BF16, which numpy lacks, can be read from its bytes. Our own reader maps torch's zip files;
torch's weights-only loader reads its other files.
"""

import json
import math
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import ModelFormatError, UnsupportedModelError
from .torch_zip import NotPlain, read_torch_zip
from .weight import Weight, unread

_SAFETENSORS_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
# Elements that are no weights by themselves, and the integers that hold them.
_CODES = {"U8": "u1", "I8": "i1", "I32": "<i4", "U32": "<u4", "I64": "<i8"}
_CODES |= dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0"), "u1")


def open_checkpoint(folder: Path) -> dict[str, Weight]:
    """Every tensor of a checkpoint by name.

    Raises FileNotFoundError if there are no weights, ModelFormatError for damaged or missing parts.
    Unsupported element types are refused only where somebody needs the tensor (Weight.unsupported).
    """
    for pattern, single, reader in (
        ("*.safetensors", "model.safetensors", _safetensors),
        ("pytorch_model*.bin", "pytorch_model.bin", torch_weights),
        ("*.pt", "model.pt", torch_weights),
    ):
        files = _parts(folder, pattern, single)
        if files:
            return _merged(files, reader)
    raise FileNotFoundError(f"{folder}: no weights (model.safetensors or pytorch_model.bin)")


def open_adapter(folder: Path) -> dict[str, Weight]:
    """Every tensor of a folder of the package peft by name; raises what open_checkpoint raises."""
    for name, reader in (
        ("adapter_model.safetensors", _safetensors),
        ("adapter_model.bin", torch_weights),
    ):
        if (folder / name).is_file():
            return reader(folder / name)
    raise FileNotFoundError(f"{folder}: no weights (adapter_model.safetensors)")


def _merged(files: list[Path], reader: Callable[[Path], dict[str, Weight]]) -> dict[str, Weight]:
    weights: dict[str, Weight] = {}
    for file in files:
        for name, weight in reader(file).items():
            if name in weights:
                raise ModelFormatError(f"{file}: tensor {name} is also in another part")
            weights[name] = weight
    return weights


def _parts(folder: Path, pattern: str, single: str) -> list[Path]:
    """Files of a checkpoint: those in the index, or the single file, or all that match."""
    index = folder / f"{single}.index.json"
    if index.exists():
        names = read_json(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(n, str) for n in names.values()):
            raise ModelFormatError(f"{index}: no weight_map of file names")
        parts = [folder / name for name in sorted(set(names.values()))]
        for part in parts:
            if part.parent != folder or not part.is_file():
                raise ModelFormatError(f"{index}: part {part.name} is not in the folder")
        return parts
    if (folder / single).exists():
        return [folder / single]
    return sorted(folder.glob(pattern))


def read_json_value(path: Path) -> Any:
    """JSON from a file. Raises OSError, or ModelFormatError for other content."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # also UnicodeDecodeError
        raise ModelFormatError(f"{path}: not JSON: {error}") from None
    except RecursionError:
        raise ModelFormatError(f"{path}: not JSON of a sensible depth") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises OSError, or ModelFormatError for other content."""
    value = read_json_value(path)
    if not isinstance(value, dict):
        raise ModelFormatError(f"{path}: not a JSON object")
    return value


def _safetensors(path: Path) -> dict[str, Weight]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np"):
            pass  # checks the header: every range inside the file, no holes, no overlaps
    except (SafetensorError, ValueError) as error:
        raise ModelFormatError(f"{path}: damaged safetensors file: {error}") from None
    header, size = _header(path)
    weights = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        kind, shape = entry["dtype"], tuple(entry["shape"])
        offset = 8 + size + entry["data_offsets"][0]
        dtype = _SAFETENSORS_DTYPES.get(kind)
        if dtype is None:
            held = _CODES.get(kind)
            stored = _mapping(path, held, shape, offset) if held else unread
            why = f"element type {kind}; supported: {', '.join(_SAFETENSORS_DTYPES)}"
            weights[name] = Weight(name, shape, False, stored, why, kind if held else "")
            continue
        weights[name] = Weight(name, shape, dtype == "<u2", _mapping(path, dtype, shape, offset))
    return weights


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """What a safetensors file says of its tensors, and the bytes that this takes."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(size)), size


def metadata_format(folder: Path) -> str:
    """The program that wrote a checkpoint's safetensors files ("pt", "mlx"), as far as the first of
    them says, which open_checkpoint has read without an error."""
    files = _parts(folder, "*.safetensors", "model.safetensors")
    found = _header(files[0])[0].get("__metadata__", {}).get("format") if files else None
    return found if isinstance(found, str) else ""


def _mapping(
    path: Path, dtype: str, shape: tuple[int, ...], offset: int
) -> Callable[[], np.ndarray]:
    def stored() -> np.ndarray:
        if math.prod(shape) == 0:
            return np.empty(shape, dtype=dtype)
        return np.memmap(path, dtype, "r", offset=offset, shape=shape or (1,)).reshape(shape)

    return stored


def load_torch(path: Path) -> dict[str, Any]:
    """A state dict of torch tensors, read with torch's weights-only loader.

    Raises UnsupportedModelError if torch is missing, ModelFormatError for other contents.
    """
    try:
        import torch
    except ImportError:
        raise UnsupportedModelError(
            f"{path}: reading this file needs torch (pip install torch); safetensors files do not"
        ) from None
    try:
        is_zip = zipfile.is_zipfile(path)
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip or None)
    except OSError:
        raise
    except pickle.UnpicklingError:
        # torch's own message advises loading without this check.
        raise ModelFormatError(f"{path}: damaged, or holds more than plain tensors") from None
    except Exception as error:
        reason = str(error).split("\n", 1)[0]
        raise ModelFormatError(f"{path}: torch cannot read it: {reason}") from None
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in state.items()
    ):
        raise ModelFormatError(f"{path}: not a state dict of tensors")
    return state


def torch_weights(path: Path) -> dict[str, Weight]:
    """Every tensor of a torch file, with our own reader if it supports the file."""
    try:
        return read_torch_zip(path)
    except NotPlain:
        pass
    weights = {}
    for name, tensor in load_torch(path).items():
        if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
            shape, why = tuple(tensor.shape), f"element type {tensor.dtype}"
            weights[name] = Weight(name, shape, False, unread, why)
            continue
        values, bf16 = _to_numpy(tensor)
        weights[name] = Weight(name, values.shape, bf16, lambda values=values: values)
    return weights


def _to_numpy(tensor: Any) -> tuple[np.ndarray, bool]:
    """A torch tensor's values, BF16 as uint16, and whether they are BF16."""
    import torch

    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16), True
    return tensor.numpy(), False
