"""Shared code of the plots: matplotlib without a display, colours, and writing the file."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..convert.writer import replacing

_DPI = 150
# Colours that also differ in lightness, for print and for colour-blind readers.
GPU, RAM, STORAGE = "#b30000", "#fc8d59", "#e3e3ee"
OF_TIERS = (STORAGE, RAM, GPU)  # in the order of tiers.NAMES
BLUE, GREY = "#225ea8", "#6b6b6b"


def figure(width: float, height: float) -> Any:
    """An empty figure with a size in inches. Raises ValueError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError(
            "plots need the package matplotlib: pip install 'powerinfer_cpp[plot]'"
        ) from None
    return Figure(figsize=(width, height), layout="constrained")


def height_for(n_layer: int) -> float:
    """Height in inches for n_layer rows."""
    return min(12.0, max(3.5, 1.5 + 0.16 * n_layer))


def plain(axes: Any, x: str, y: str, title: str) -> None:
    """Sets labels and a light grid, and removes the upper and right frame."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10, loc="left")
    axes.grid(True, color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def legend(figure_: Any, colours: dict[str, str]) -> None:
    """Names colours, above the figure."""
    from matplotlib.patches import Patch

    figure_.legend(
        handles=[Patch(color=colour, label=name) for name, colour in colours.items()],
        loc="outside upper right",
        ncols=len(colours),
        frameon=False,
    )


def whole_layers(axis: Any) -> None:
    """Sets ticks only at whole numbers, for layers."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def save(figure_: Any, path: str | Path, inputs: Iterable[str | Path] = ()) -> None:
    """Writes a PNG, or nothing. Raises OSError, and ValueError if `path` is one of the inputs."""
    with replacing(Path(path), 1 << 20, inputs) as part:
        figure_.savefig(part, format="png", dpi=_DPI)
