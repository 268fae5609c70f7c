"""Plot of the share of neurons that make most of the firings (PowerInfer's power law)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.gguf import Gguf
from ..placement.statistics import read_statistics
from . import style

_MOST = 0.8  # share of the firings, as in the paper


def cumulative(rates: np.ndarray) -> np.ndarray:
    """float64 [n + 1]: share of all firings that the k hottest neurons make, for k = 0 to n."""
    total = np.concatenate(([0.0], np.cumsum(np.sort(rates.reshape(-1).astype(np.float64))[::-1])))
    return total / max(total[-1], 1e-300)


def share_for(rates: np.ndarray, firings: float = _MOST) -> float:
    """The smallest share of neurons that makes this share of the firings."""
    curve = cumulative(rates)
    return int(np.searchsorted(curve, firings * (1 - 1e-12))) / (len(curve) - 1)


def draw(gguf: Gguf) -> tuple[Any, str]:
    """The figure for a file with statistics, and a one-line summary."""
    layers = read_statistics(gguf)
    rates = [layer.rates for layer in layers]
    numbers = [layer.layer for layer in layers]
    whole = np.concatenate([r.reshape(-1) for r in rates])
    shares = [share_for(r) for r in rates]
    figure = style.figure(11, 4.6)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _curves(figure, left, numbers, rates, whole)
    density = [100 * float(r.mean()) for r in rates]
    right.plot(numbers, density, "o-", color=style.BLUE, markersize=3, label="fire per token")
    right.plot(
        numbers,
        [100 * s for s in shares],
        "s-",
        color=style.GPU,
        markersize=3,
        label="make 80 % of the firings",
    )
    style.plain(right, "layer", "% of the layer's neurons", "By layer")
    style.whole_layers(right.xaxis)
    right.set_ylim(0, 1.2 * 100 * max(shares))  # room for the legend
    right.legend(frameon=False, fontsize=8, loc="upper center", ncols=2)
    return figure, (
        f"{100 * share_for(whole):.1f} % of all neurons make 80 % of the firings; within a layer "
        f"{100 * min(shares):.1f} to {100 * max(shares):.1f} %; per token "
        f"{100 * float(whole.mean()):.1f} % fire"
    )


def _curves(
    figure: Any, axes: Any, numbers: Sequence[int], rates: Sequence[np.ndarray], whole: np.ndarray
) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    colours = ScalarMappable(Normalize(min(numbers), max(max(numbers), 1)), colormaps["viridis"])
    for number, own in zip(numbers, rates, strict=True):
        _curve(axes, own, color=colours.to_rgba(number), linewidth=0.9)
    _curve(axes, whole, color="black", linewidth=2.2, label="whole model")
    share = 100 * share_for(whole)
    axes.plot([0, share, share], [100 * _MOST, 100 * _MOST, 0], ":", color=style.GREY)
    axes.annotate(
        f"{share:.0f} % of the neurons:\n80 % of the firings",
        (share, 100 * _MOST),
        (share + 6, 60),
        fontsize=9,
        arrowprops={"arrowstyle": "-", "color": style.GREY},
    )
    style.plain(
        axes, "% of the neurons, hottest first", "% of the firings", "Few neurons fire most"
    )
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 101)
    axes.legend(frameon=False, loc="lower right")
    style.whole_layers(figure.colorbar(colours, ax=axes, label="layer", pad=0.01).ax.yaxis)


def _curve(axes: Any, rates: np.ndarray, **look: Any) -> None:
    curve = cumulative(rates)
    at = np.unique(np.linspace(0, len(curve) - 1, 500).astype(int))
    axes.plot(100 * at / (len(curve) - 1), 100 * curve[at], **look)
