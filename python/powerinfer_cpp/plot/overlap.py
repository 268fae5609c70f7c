"""Plot of the overlap between the hottest neurons of several profiles."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import ModelFormatError
from ..core.gguf import Gguf
from ..placement.statistics import LayerStatistics, read_statistics
from . import style

HOT = 0.2  # share of the neurons that counts as hot, as in the paper


def overlap(a: np.ndarray, b: np.ndarray, hot: float = HOT) -> float:
    """Share of the hottest neurons of one profile that are also hot in the other.

    hot: share of the neurons that counts as hot. Unrelated profiles give `hot`.
    """
    n = max(1, round(hot * a.size))
    sets = [np.argsort(-rates.reshape(-1), kind="stable")[:n] for rates in (a, b)]
    return len(np.intersect1d(*sets, assume_unique=True)) / n


def whole_model(a: Sequence[LayerStatistics], b: Sequence[LayerStatistics]) -> float:
    """The same over all layers' neurons together."""
    return overlap(*(np.concatenate([la.rates.reshape(-1) for la in side]) for side in (a, b)))


def draw(files: Sequence[Gguf]) -> tuple[Any, str]:
    """The figure for two or more profiles of one model, and a one-line summary.

    Raises ValueError for a single file, ModelFormatError for profiles of different models.
    """
    if len(files) < 2:
        raise ValueError("overlap needs two or more profiled files of one model")
    profiles = [read_statistics(gguf) for gguf in files]
    for gguf, profile in zip(files, profiles, strict=True):
        if [(la.layer, la.rates.shape) for la in profile] != [
            (la.layer, la.rates.shape) for la in profiles[0]
        ]:
            raise ModelFormatError(
                f"{gguf.files[0]}: has other layers or neurons than {files[0].files[0]}"
            )
    names = _names(files)
    numbers = [layer.layer for layer in profiles[0]]
    figure = style.figure(11, 4.6)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    matrix, lowest = np.eye(len(files)), (1.0, "")
    for i, j in combinations(range(len(files)), 2):
        pairs = zip(profiles[i], profiles[j], strict=True)
        by_layer = [overlap(a.rates, b.rates) for a, b in pairs]
        matrix[i, j] = matrix[j, i] = whole_model(profiles[i], profiles[j])
        label = f"{names[i]} / {names[j]}"
        left.plot(numbers, [100 * v for v in by_layer], "o-", markersize=3, label=label)
        lowest = min(lowest, (matrix[i, j], label))
    left.axhline(100 * HOT, color=style.GREY, linestyle=":", label="unrelated")
    style.plain(left, "layer", "% in common", f"Hottest {HOT:.0%} of each layer's neurons")
    style.whole_layers(left.xaxis)
    left.set_ylim(0, 101)
    left.legend(frameon=False, fontsize=8, loc="lower right")
    _matrix(right, matrix, names)
    return figure, (
        f"of the hottest {HOT:.0%} of all neurons {100 * lowest[0]:.1f} % are in common "
        f"({lowest[1]}{', the least of all pairs' if len(files) > 2 else ''})"
    )


def _matrix(axes: Any, matrix: np.ndarray, names: Sequence[str]) -> None:
    axes.imshow(100 * matrix, vmin=0, vmax=100, cmap="Blues")
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            axes.text(
                j,
                i,
                f"{100 * value:.0f}",
                ha="center",
                va="center",
                color="white" if value > 0.6 else "black",
            )
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set_title(f"Hottest {HOT:.0%} of all neurons: % in common", fontsize=10, loc="left")


def _names(files: Sequence[Gguf]) -> list[str]:
    """A unique name for each profile: its text if the file names it, else its file."""
    names = [str(f.value("powerinfer.profile.corpus") or Path(f.files[0]).stem) for f in files]
    short = [Path(name).name[:24] for name in names]
    return [s if short.count(s) == 1 else f"{s} ({i + 1})" for i, s in enumerate(short)]
