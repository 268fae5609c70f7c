"""PowerInfer's predictor folders: `model_N.pt` per layer, and an optional config.json.

Each file holds `fc1.weight` [r, n_embd] and `fc2.weight` [n_ff, r]; the rank r may differ from
layer to layer, and a layer without a file is computed without a predictor.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path

from ..errors import ModelFormatError
from .checkpoint import Weight, load_torch, read_json, torch_to_numpy
from .tensors import Output, check_shape, from_weight
from .torch_zip import NotPlain, read_torch_zip


def sparse_threshold(folder: Path) -> float | None:
    """The folder's threshold on the predictor's output, None when it names none."""
    path = folder / "config.json"
    if not path.exists():
        return None
    value = read_json(path).get("sparse_threshold")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ModelFormatError(f"{path}: sparse_threshold must be a finite number, not {value!r}")
    return float(value)


def predictors(folder: Path, n_layer: int, n_embd: int, n_ff: int) -> Iterator[Output]:
    """fc1 and fc2 of every layer that has a file, in the order of layers.

    Raises FileNotFoundError for a folder without files, ModelFormatError for layers that the model
    lacks and tensors that do not fit it.
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
        rank = weights["fc1.weight"].shape[0] if weights["fc1.weight"].shape else 0
        for name, shape in (("fc1.weight", (rank, n_embd)), ("fc2.weight", (n_ff, rank))):
            weight = check_shape(weights[name], shape)
            yield from_weight(f"blk.{layer}.{name}", weight, predictor=True)


def _read(path: Path) -> dict[str, Weight]:
    """Tensors of a torch file: by our own reader of plain zip files, else through torch."""
    try:
        found = read_torch_zip(path)
    except NotPlain:
        found = {name: torch_to_numpy(tensor) for name, tensor in load_torch(path).items()}
    return {
        name: Weight(f"{path}: {name}", values.shape, bf16, lambda values=values: values)
        for name, (values, bf16) in found.items()
    }
