"""PowerInfer's placements: MODEL.generated.gpuidx lists the neurons that it puts on the GPU."""

import os
from pathlib import Path

from .._native import ffi, lib
from ..convert import source
from ..core.errors import check
from ..core.gguf import Gguf

ARCHITECTURE = "generic.gpu_index"


def path_beside(model: str | Path) -> Path:
    """Path of a model's placement; the file may not exist."""
    return Path(f"{model}.generated.gpuidx")


def shares(model: Gguf) -> list[float] | None:
    """Share of each layer's neurons that the file beside a model puts on the GPU; None without it.

    Raises OSError, ModelFormatError for a file that is damaged or belongs to another model.
    """
    path = path_beside(model.files[0])
    if not path.exists():
        return None
    sizes = [source.size(model, key) for key in ("block_count", "feed_forward_length")]
    return _read(path, *sizes)


def own_shares(index: Gguf) -> list[float]:
    """The same from the placement file alone; its first tensor gives the number of neurons."""
    n_ff = index.tensors[0].n_elements if index.tensors else 0
    return _read(Path(index.files[0]), max(1, len(index.tensors) // 2), max(1, n_ff))


def _read(path: Path, n_layer: int, n_ff: int) -> list[float]:
    marked = ffi.new("int64_t[]", n_layer)
    name = os.fsencode(path)
    check(lib.pi_gpu_index_read(name, n_layer, n_ff, marked), str(path))
    return [n / n_ff for n in marked]
