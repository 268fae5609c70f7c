"""Plot of a placement: the tier of each layer's neurons, and the firings that each tier serves."""

from pathlib import Path
from typing import Any

import numpy as np

from ..core.gguf import Gguf
from ..core.tiers import TITLES
from ..placement.statistics import read_statistics
from ..placement.store import read_placement, sidecar_path
from . import style

_COLUMNS = 512  # columns of the map


def tier_map(tier: np.ndarray, rates: np.ndarray, columns: int = _COLUMNS) -> np.ndarray:
    """int8 [columns]: most frequent tier in each part of a layer, the hottest part first."""
    order = np.argsort(-rates.reshape(-1), kind="stable")
    parts = np.arange(len(order)) * columns // len(order)  # a small layer leaves columns empty
    counts = np.zeros((columns, len(TITLES)), int)
    np.add.at(counts, (parts, tier.reshape(-1)[order]), 1)
    filled = np.flatnonzero(counts.any(axis=1))
    return counts[filled[np.searchsorted(filled, np.arange(columns), "right") - 1]].argmax(axis=1)


def shares(tier: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """float64 [3]: share of a layer's firings that storage, RAM and GPU serve."""
    fired = np.bincount(tier.reshape(-1), rates.reshape(-1), len(TITLES))
    return fired / max(fired.sum(), 1e-300)


def draw(gguf: Gguf) -> tuple[Any, str]:
    """The figure for a file with a placement in it or beside it, and a one-line summary."""
    beside = sidecar_path(gguf.files[0])
    embedded = any(".ffn_tier" in tensor.name for tensor in gguf.tensors)
    tiers = read_placement(gguf, None if embedded or not Path(beside).exists() else beside)
    layers = read_statistics(gguf)
    numbers = [layer.layer for layer in layers]
    rates = [layer.rates for layer in layers]
    figure = style.figure(11, style.height_for(len(layers)))
    left, right = figure.subplots(1, 2, width_ratios=(3, 1), sharey=True)
    from matplotlib.colors import ListedColormap

    image = np.array([tier_map(t, r) for t, r in zip(tiers, rates, strict=True)])
    edges = (min(numbers) - 0.5, max(numbers) + 0.5)
    left.imshow(
        image,
        aspect="auto",
        interpolation="nearest",
        cmap=ListedColormap(style.OF_TIERS),
        vmin=0,
        vmax=len(TITLES) - 1,
        extent=(0, 100, edges[1], edges[0]),
    )
    style.plain(left, "% of the layer's neurons, hottest first", "layer", "Where neurons live")
    left.grid(False)
    style.whole_layers(left.yaxis)
    served = np.array([shares(t, r) for t, r in zip(tiers, rates, strict=True)])
    start = np.zeros(len(layers))
    for tier in reversed(range(len(TITLES))):
        right.barh(numbers, 100 * served[:, tier], 1.0, 100 * start, color=style.OF_TIERS[tier])
        start += served[:, tier]
    style.plain(right, "% of the layer's firings", "", "Who serves the firings")
    right.set_xlim(0, 100)
    used = [t for t in reversed(range(len(TITLES))) if any((own == t).any() for own in tiers)]
    style.legend(figure, {TITLES[t]: style.OF_TIERS[t] for t in used})
    total = shares(
        np.concatenate([t.reshape(-1) for t in tiers]),
        np.concatenate([r.reshape(-1) for r in rates]),
    )
    listed = ", ".join(f"{TITLES[t]} {100 * total[t]:.1f} %" for t in reversed(range(len(TITLES))))
    return figure, f"firings served by {listed}"
