#!/usr/bin/env python3
"""Draw docs/relufy.png from docs/relufy.csv: perplexity and zeros while a model becomes sparse.

    python scripts/plot_relufy.py [OUT.png]

The table holds the curve.csv of several runs of `powerinfer relufy`, with their names in a first
column. Needs the package with its extra [plot].
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from pathlib import Path

from powerinfer_cpp.plot import style

DOCS = Path(__file__).resolve().parents[1] / "docs"
COLOURS = (style.GREY, style.GPU, style.RAM, style.BLUE)


def read(path: Path) -> dict[str, list[dict[str, str]]]:
    """The rows of each run, without those of other thresholds after its end."""
    runs: dict[str, list[dict[str, str]]] = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if float(row["threshold"]) == 0:
                runs[row["run"]].append(row)
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", type=Path, default=DOCS / "relufy.png")
    out = parser.parse_args().out
    figure = style.figure(7.5, 5)
    above, below = figure.subplots(2, 1, sharex=True)
    style.plain(above, "", "perplexity", "Held-out text")
    style.plain(below, "thousand tokens", "%", "Neurons at zero")
    for colour, (run, rows) in zip(COLOURS, read(DOCS / "relufy.csv").items(), strict=False):
        x = [int(row["tokens"]) / 1e3 for row in rows]
        above.plot(x, [math.exp(float(row["held_out_loss"])) for row in rows], "o-", color=colour)
        below.plot(x, [100 * float(row["zero"]) for row in rows], "o-", color=colour, label=run)
    below.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 0.1))
    style.save(figure, out)


if __name__ == "__main__":
    main()
