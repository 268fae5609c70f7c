"""Plot of a run: where its neurons, or experts, were and who computed them.

The file has the statistics of `./main --json-stats FILE`, or those of `llm.stats()` as JSON.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.tiers import GPU, NAMES, RAM, STORAGE, TITLES
from . import style

_LONGEST = 1 << 26  # bytes of a file


@dataclass(frozen=True)
class Running:
    """What each tier had, in the order of tiers.NAMES: neurons [3, n_layer], neurons computed per
    token [3, n_layer], bytes of FFN weights [3]. experts: of a run whose experts were read from
    storage, those that its tokens needed and missed, [2, n_layer]. unit: what a tier has."""

    neurons: np.ndarray
    hits: np.ndarray
    n_bytes: np.ndarray
    experts: np.ndarray | None = None
    unit: str = "neurons"


def is_json(path: str | Path) -> bool:
    """Whether a file begins as statistics do; a GGUF does not. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(1) == b"{"


def read(path: str | Path) -> Running:
    """The tiers in a file of statistics. Raises OSError, ValueError if it has none."""
    with open(path, "rb") as file:
        text = file.read(_LONGEST + 1)
    if len(text) > _LONGEST:
        raise ValueError(f"{path}: is too large for statistics of a run")
    try:
        figures = json.loads(text)
        tiers = figures["tiers"]
    except (ValueError, KeyError, RecursionError):
        raise ValueError(f"{path}: has no statistics of a run (--json-stats)") from None
    keys = ("layer_neurons", "layer_hits", "bytes")
    try:
        found = [np.array([tiers[name][key] for name in NAMES], float) for key in keys]
    except (ValueError, KeyError, TypeError, OverflowError):
        found = []
    shapes = [values.ndim for values in found]
    if shapes != [2, 2, 1] or found[0].shape != found[1].shape or not found[0].size:
        raise ValueError(f"{path}: tiers needs {', '.join(keys)} of {', '.join(reversed(NAMES))}")
    # Where a GPU computes experts, those that each side has computed say more than the reads.
    on_gpu = bool(found[0][GPU].any())
    experts = None if on_gpu else _experts(path, figures, found[0].shape[1])
    whole = experts is not None or (on_gpu and isinstance(figures.get("experts"), dict))
    of_run = Running(*found, experts, "experts" if whole else "neurons")
    if any(not (np.isfinite(values) & (values >= 0)).all() for values in found):
        raise ValueError(f"{path}: tiers has a number that is not finite, or below 0")
    if not of_run.neurons.sum(axis=0).all():
        raise ValueError(f"{path}: tiers has a layer without neurons")
    return of_run


def _experts(path: str | Path, figures: dict[str, Any], n_layer: int) -> np.ndarray | None:
    """Running.experts of the figures. Raises ValueError if they are not what a run writes."""
    storage = figures.get("storage")
    if not isinstance(storage, dict) or storage.get("unit") != "experts":
        return None
    try:
        found = np.array([storage[f"layer_{name}"] for name in ("needed", "missed")], float)
    except (ValueError, KeyError, TypeError, OverflowError):
        found = np.zeros(0)
    if found.shape != (2, n_layer) or not np.isfinite(found).all():
        raise ValueError(f"{path}: storage needs layer_needed and layer_missed, of each layer")
    needed, missed = found
    if (missed < 0).any() or (missed > needed).any():
        raise ValueError(f"{path}: storage has a layer that missed more than it needed")
    return found


def shares(values: np.ndarray) -> np.ndarray:
    """values [3, ...] as shares of their sum over the tiers; 0 where that is 0."""
    total = values.sum(axis=0)
    return np.divide(values, total, out=np.zeros_like(values), where=total > 0)


def draw(run: Running) -> tuple[Any, str]:
    """The figure, and a one-line summary."""
    unit = run.unit
    layers = np.arange(run.neurons.shape[1])
    figure = style.figure(11, style.height_for(len(layers)))
    left, right = figure.subplots(1, 2, sharey=True)
    served = run.hits if run.experts is None else _had(run.experts)
    of_layers = served if run.experts is None else 100 * shares(served)
    for axes, values in ((left, 100 * shares(run.neurons)), (right, of_layers)):
        start = np.zeros(len(layers))
        for tier in reversed(range(len(NAMES))):
            axes.barh(layers, values[tier], 1.0, start, color=style.OF_TIERS[tier])
            start += values[tier]
    style.plain(left, f"% of the layer's {unit}", "layer", f"Where the {unit} of the run were")
    if run.experts is None:
        style.plain(right, "neurons per token", "", "Who computed them")
    else:
        style.plain(right, "% of those that tokens needed", "", "Where they were when needed")
        right.set_xlim(0, 100)
    left.set_xlim(0, 100)
    left.set_ylim(len(layers) - 0.5, -0.5)
    style.whole_layers(left.yaxis)
    used = [t for t in reversed(range(len(NAMES))) if run.neurons[t].any() or served[t].any()]
    neurons, hits = (100 * shares(values.sum(axis=1)) for values in (run.neurons, served))
    style.legend(figure, {f"{TITLES[t]}, {_size(run.n_bytes[t])}": style.OF_TIERS[t] for t in used})
    of = "computed" if run.experts is None else "needed"
    listed = "; ".join(
        f"{TITLES[t]}: {neurons[t]:.1f} % of the {unit}, {_size(run.n_bytes[t])}, "
        f"{hits[t]:.1f} % of those {of}"
        for t in used
    )
    return figure, listed


def _had(experts: np.ndarray) -> np.ndarray:
    """How many of the needed experts each tier had, [3, n_layer]."""
    needed, missed = experts
    had = np.zeros((len(NAMES), len(needed)))
    had[STORAGE], had[RAM] = missed, needed - missed
    return had


def _size(n_bytes: float) -> str:
    return f"{n_bytes / (1 << 20):,.1f} MiB"
