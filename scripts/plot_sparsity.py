#!/usr/bin/env python3
"""Draw docs/sparsity.png from docs/sparsity.csv: tokens per second against density.

    python scripts/plot_sparsity.py [OUT.png]

A row without a density is a run that computes every neuron. Several rows with the same run and
density are rounds; the plot shows their median. Needs the package with its extra [plot].
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from pathlib import Path

from powerinfer_cpp.plot import style

DOCS = Path(__file__).resolve().parents[1] / "docs"
LOOKS = {  # run -> colour, line, and offset of its name from its first value, in points
    "predictor": (style.GPU, "o-", (-2, 8)),
    "exact": (style.BLUE, "o-", (-2, -17)),
    "dense": ("black", "--", (6, -12)),
    "llama.cpp": (style.GREY, ":", (6, -12)),
}


def read(path: Path) -> dict[str, dict[float | None, float]]:
    """Tokens per second by run and density; None where there is no density."""
    rounds: dict[str, dict[float | None, list[float]]] = defaultdict(lambda: defaultdict(list))
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            density = float(row["density"]) if row["density"] else None
            rounds[row["run"]][density].append(float(row["tokens_per_s"]))
    return {
        run: {density: statistics.median(speeds) for density, speeds in values.items()}
        for run, values in rounds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", type=Path, default=DOCS / "sparsity.png")
    out = parser.parse_args().out
    figure = style.figure(7.5, 4)
    axes = figure.subplots()
    style.plain(
        axes, "neurons that fire, % (density)", "tokens/s", "Decoding, 1B shape, Q4_0, 2 threads"
    )
    for run, values in read(DOCS / "sparsity.csv").items():
        colour, line, offset = LOOKS[run]
        if None in values:
            first = (0.0, values[None])
            axes.axhline(values[None], color=colour, linestyle=line)
            run += ", every neuron"
        else:
            first = next((100 * density, speed) for density, speed in values.items())
            axes.plot([100 * d for d in values], list(values.values()), line, color=colour)
        axes.annotate(run, first, offset, textcoords="offset points", color=colour)
    axes.set_xlim(0, 52)
    axes.set_ylim(0, 95)
    style.save(figure, out)


if __name__ == "__main__":
    main()
