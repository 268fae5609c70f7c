"""Plot of the quality and the cost of predictors."""

import re
from typing import Any

import numpy as np

from ..convert import source
from ..convert.statistics.rates import read_rates
from ..core.errors import ModelFormatError
from ..core.gguf import Gguf
from . import style

_TENSOR = re.compile(r"blk\.(\d+)\.(fc1|fc2|sketch)(?:_exps)?\.(?:weight|bias)")


def figures(gguf: Gguf) -> dict[str, dict[int, float]]:
    """By name and layer: rank (of mlps) and bytes; if the file has them recall, precision,
    threshold, fired and, from these, proposed (shares of the neurons).

    Raises ModelFormatError for a file without predictors.
    """
    found: dict[str, dict[int, float]] = {"rank": {}, "bytes": {}}
    fired = {layer: float(r.mean()) for layer, r in read_rates(gguf, required=False).items()}
    for tensor in source.tensors(gguf):
        if match := _TENSOR.fullmatch(tensor.name):
            layer = int(match[1])
            found["bytes"][layer] = found["bytes"].get(layer, 0) + tensor.n_bytes
            if match[2] == "fc1" and len(tensor.shape) > 1:
                found["rank"][layer] = tensor.shape[-2]
    if not found["bytes"]:
        raise ModelFormatError(
            f"{gguf.files[0]}: holds no predictors; `powerinfer train-predictor`"
        )
    layers = sorted(found["bytes"])
    for name, key in (
        ("recall", "powerinfer.predictor.recall"),
        ("precision", "powerinfer.predictor.precision"),
        ("threshold", "powerinfer.sparse_threshold"),
    ):
        value = gguf.value(key)
        values = value if isinstance(value, list) else [value] * (max(layers) + 1)
        found[name] = {
            i: float(values[i])
            for i in layers
            if i < len(values) and isinstance(values[i], float) and np.isfinite(values[i])
        }
    found["fired"] = {i: fired[i] for i in layers if i in fired}
    found["proposed"] = {
        i: min(1.0, fired[i] * found["recall"][i] / found["precision"][i])
        for i in layers
        if i in fired and i in found["recall"] and found["precision"].get(i)
    }
    return {name: dict(sorted(values.items())) for name, values in found.items()}


def draw(gguf: Gguf) -> tuple[Any, str]:
    """The figure for a file with predictors, and a one-line summary."""
    found = figures(gguf)
    quality = any(found[name] for name in ("recall", "precision"))
    panels = [_ranks, _bytes] if found["rank"] else [_bytes]
    if found["fired"]:
        panels.insert(0, _shares)
    if quality:
        panels.insert(0, _quality)
    if len(set(found["threshold"].values())) > 1:
        panels.append(_thresholds)
    figure = style.figure(9, 1.0 + 2.1 * len(panels))
    for axes, panel in zip(
        np.atleast_1d(figure.subplots(len(panels), 1, sharex=True)), panels, strict=True
    ):
        panel(axes, found)
        style.whole_layers(axes.xaxis)
    for axes in figure.axes[:-1]:
        axes.set_xlabel("")
    total = sum(found["bytes"].values())
    kind = "predictors" if found["rank"] else "sketches"
    text = f"{len(found['bytes'])} {kind}, {total / (1 << 20):.1f} MiB"
    if found["recall"]:
        worst = min(found["recall"], key=found["recall"].get)  # type: ignore[arg-type]
        mean = np.mean(list(found["recall"].values()))
        text += f"; recall {mean:.3f} on average, at least {found['recall'][worst]:.3f} "
        text += f"(layer {worst})"
    return figure, text


def _line(axes: Any, values: dict[int, float], scale: float, **look: Any) -> None:
    if values:
        axes.plot(list(values), [scale * v for v in values.values()], "o-", markersize=3, **look)


def _quality(axes: Any, found: dict[str, dict[int, float]]) -> None:
    _line(axes, found["recall"], 100, color=style.BLUE, label="recall: of the firings, found")
    _line(
        axes, found["precision"], 100, color=style.RAM, label="precision: of the proposals, right"
    )
    style.plain(axes, "layer", "%", "What predictors find")
    axes.set_ylim(0, 101)
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def _shares(axes: Any, found: dict[str, dict[int, float]]) -> None:
    _line(axes, found["fired"], 100, color=style.GREY, label="fire")
    _line(axes, found["proposed"], 100, color=style.GPU, label="are proposed")
    style.plain(axes, "layer", "% of the neurons", "What predictors make the engine read")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)


def _ranks(axes: Any, found: dict[str, dict[int, float]]) -> None:
    axes.bar(list(found["rank"]), list(found["rank"].values()), color=style.BLUE)
    style.plain(axes, "layer", "rank", "Size: hidden units")


def _bytes(axes: Any, found: dict[str, dict[int, float]]) -> None:
    sizes = [n / (1 << 20) for n in found["bytes"].values()]
    axes.bar(list(found["bytes"]), sizes, color=style.GREY)
    style.plain(axes, "layer", "MiB", "Size: bytes")


def _thresholds(axes: Any, found: dict[str, dict[int, float]]) -> None:
    _line(axes, found["threshold"], 1, color=style.BLUE)
    style.plain(axes, "layer", "score", "Threshold: what is below it is skipped")
