"""Placements in files: embedded in the model, beside it, or as PowerInfer's gpuidx."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf import GGUFValueType

from ..convert.embed import embed, from_array
from ..convert.formats import Format
from ..convert.stored import Stored
from ..convert.writer import Entry, string, uint32, write_gguf
from ..core.errors import ModelFormatError
from ..core.gguf import Gguf
from ..core.tiers import GPU
from .gpu_index import ARCHITECTURE as GPU_INDEX
from .place import Placement
from .statistics import model_hash, read_statistics, statistics_hash

_PREFIX = "powerinfer.placement."
_TIER = re.compile(r"blk\.(\d+)\.ffn_tier(_exps)?")
SIDECAR = "powerinfer.placement"  # general.architecture of a sidecar file
_PWRI_I32 = Format("I32", 18, 1, 4)  # the type id in PowerInfer's format


def sidecar_path(model: str | Path) -> Path:
    """Path of the sidecar with the placement of a model."""
    return Path(f"{model}.placement.gguf")


def embed_placement(gguf: Gguf, target: str | Path, placement: Placement) -> None:
    """Writes the model with a placement in it, which replaces an older one.

    Raises the errors of `embed`.
    """

    def removed(name: str) -> bool:
        return name.startswith(_PREFIX) or _TIER.fullmatch(name) is not None

    embed(gguf, target, list(_entries(placement)), list(_tensors(placement)), removed)


def write_sidecar(target: str | Path, placement: Placement) -> None:
    """Writes only the placement: the keys of an embedded one, the model's hash, and the tiers."""
    entries = [*_entries(placement), string(_PREFIX + "model_hash", placement.model.model_hash)]
    write_gguf(Path(target), SIDECAR, entries, list(_tensors(placement)), _files(placement))


def write_gpuidx(target: str | Path, placement: Placement) -> None:
    """Writes PowerInfer's file, which lists the neurons on the GPU.

    It has only 0 or 1 per neuron, so RAM and storage are the same. Raises ValueError for experts,
    which the format cannot store.
    """
    if any(layer.statistics.is_experts for layer in placement.model.layers):
        raise ValueError("--format gpuidx: PowerInfer's file cannot store experts")
    layers = [layer.statistics.layer for layer in placement.model.layers]
    if layers != list(range(len(layers))):
        raise ValueError("--format gpuidx: PowerInfer's file has neurons of every layer")
    tensors = []
    for layer, tier in zip(placement.model.layers, placement.tiers(), strict=True):
        index = (tier == GPU).astype("<i4")
        bucket = np.flatnonzero(index).astype("<i4")
        block = f"blk.{layer.statistics.layer}"
        tensors += [_int32(f"{block}.gpu_idx", index), _int32(f"{block}.gpu_bucket", bucket)]
    entries = [
        uint32(f"{GPU_INDEX}.block_count", len(placement.model.layers)),
        # PowerInfer uses the file if at least this much memory is free for neurons.
        Entry("split.vram_capacity", GGUFValueType.UINT64, placement.neuron_bytes()[GPU]),
    ]
    # Except for the magic, the file is a GGUF.
    write_gguf(Path(target), GPU_INDEX, entries, tensors, _files(placement), magic=b"PWRI")


def _files(placement: Placement) -> list[str]:
    """Files of the placed model, which must not be overwritten."""
    with Gguf(placement.model.path) as gguf:
        return gguf.files


def read_placement(model: Gguf, path: str | Path | None = None) -> list[np.ndarray]:
    """Tiers per layer, int8 [n_ff] or [n_expert, n_ff], from the model or from the sidecar `path`.

    Raises OSError, and ModelFormatError if there is no placement, or if it is for another model,
    another quantisation or other statistics.
    """
    if path is None:
        return _read(model, model)
    with Gguf(path) as sidecar:
        if sidecar.value("general.architecture") != SIDECAR:
            raise ModelFormatError(f"{path}: holds no placement")
        if sidecar.value(_PREFIX + "model_hash") != model_hash(model):
            raise ModelFormatError(f"{path}: is a placement of another model")
        return _read(model, sidecar)


def _read(model: Gguf, holder: Gguf) -> list[np.ndarray]:
    name = holder.files[0]
    held = {int(m[1]): t for t in holder.tensors if (m := _TIER.fullmatch(t.name))}
    if not held:
        raise ModelFormatError(f"{name}: holds no placement (blk.N.ffn_tier); `powerinfer place`")
    statistics = read_statistics(model)
    if holder.value(_PREFIX + "stats_hash") != statistics_hash(statistics):
        raise ModelFormatError(f"{name}: the placement was solved for other statistics")
    tiers = []
    for layer in statistics:
        tensor = held.get(layer.layer)
        if tensor is None or tensor.type_name != "I8" or tensor.shape != layer.rates.shape:
            raise ModelFormatError(f"{name}: layer {layer.layer} has no placement that fits")
        tier = np.array(holder.data(tensor)).view(np.int8).reshape(tensor.shape)
        if tier.min() < 0 or tier.max() > GPU:
            raise ModelFormatError(f"{name}: tensor {tensor.name} has tiers other than 0 to 2")
        tiers.append(tier)
    return tiers


def _entries(placement: Placement) -> Iterator[Entry]:
    yield Entry(_PREFIX + "vram_budget", GGUFValueType.UINT64, placement.vram)
    if placement.ram is not None:
        yield Entry(_PREFIX + "ram_budget", GGUFValueType.UINT64, placement.ram)
    yield string(_PREFIX + "device", placement.device)
    yield string(_PREFIX + "stats_hash", placement.model.statistics_hash)


def _tensors(placement: Placement) -> Iterator[Stored]:
    for layer, tier in zip(placement.model.layers, placement.tiers(), strict=True):
        end = "_exps" if layer.statistics.is_experts else ""
        yield from_array(f"blk.{layer.statistics.layer}.ffn_tier{end}", tier)


def _int32(name: str, values: np.ndarray) -> Stored:
    return Stored(name, values.shape, _PWRI_I32, lambda _a, _b: values.view(np.uint8))
