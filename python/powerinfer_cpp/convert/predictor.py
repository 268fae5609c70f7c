"""PowerInfer's predictor folders: `model_N.pt` per layer, and an optional config.json.

Each file holds `fc1.weight` [r, n_embd] and `fc2.weight` [n_ff, r]; the rank r may differ between
layers, and a layer without a file is computed without a predictor. With experts both have a leading
dimension n_expert.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ..core.errors import ModelFormatError
from .checkpoint import read_json, torch_weights
from .tensors import Output, check_shape, from_weight
from .weight import Weight

_HIGHEST_RANK = 1 << 16  # the engine's, powerinfer_cpp/src/model/families/weights.cpp


def sparse_threshold(folder: Path) -> float | None:
    """The folder's threshold on the predictor's output; None if it has none."""
    path = folder / "config.json"
    if not path.exists():
        return None
    value = read_json(path).get("sparse_threshold")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ModelFormatError(f"{path}: sparse_threshold must be a finite number, not {value!r}")
    return float(value)


def predictors(
    folder: Path, n_layer: int, n_embd: int, n_ff: int, n_expert: int = 0
) -> Iterator[Output]:
    """fc1 and fc2 (with experts fc1_exps and fc2_exps) of every layer with a file, in order.

    Raises FileNotFoundError for a folder without files, ModelFormatError for layers that the model
    does not have and tensors that do not fit it.
    """
    files = {}
    for path in folder.iterdir():
        match = re.fullmatch(r"model_(\d+)\.pt", path.name)
        if match:
            files[int(match[1])] = path
    if not files:
        raise FileNotFoundError(f"{folder}: no predictors (model_0.pt, model_1.pt, ...)")
    for layer, path in sorted(files.items()):
        if layer >= n_layer:
            raise ModelFormatError(f"{path}: the model has only {n_layer} layers")
        weights = _read(path)
        if set(weights) != {"fc1.weight", "fc2.weight"}:
            names = ", ".join(sorted(weights)) or "nothing"
            raise ModelFormatError(f"{path}: expected fc1.weight and fc2.weight, found {names}")
        experts = (n_expert,) if n_expert else ()
        shape = weights["fc1.weight"].shape
        rank = shape[len(experts)] if len(shape) > len(experts) else 0
        if rank > _HIGHEST_RANK:
            raise ModelFormatError(f"{path}: fc1.weight has rank {rank}, beyond {_HIGHEST_RANK}")
        for part, shape in (("fc1", (rank, n_embd)), ("fc2", (n_ff, rank))):
            weight = check_shape(weights[f"{part}.weight"], (*experts, *shape))
            name = f"blk.{layer}.{part}{'_exps' if experts else ''}.weight"
            yield from_weight(name, weight, predictor=True)


def _read(path: Path) -> dict[str, Weight]:
    """Tensors of a torch file; their names include the file's name."""
    found = torch_weights(path)
    return {name: replace(weight, name=f"{path}: {name}") for name, weight in found.items()}
