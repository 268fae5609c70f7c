#!/usr/bin/env python3
"""What a card should hold of a mixture's experts: policies, replayed on texts of stated routers.

    ninja -C build/cpu card_replay
    scripts/card_experts.py docs/card_experts.csv           # the figures of docs/gpu.md: a minute
    scripts/card_experts.py docs/card_experts.csv --table   # the table there, from the file
    scripts/card_experts.py --grid                          # the options: some minutes

Simulated: the text's experts are drawn (mixtures/routers.py), and time is bytes over bandwidths
(tests/engine/tools/card_replay.cpp). static: the experts that another text of the same router used
most; first: the first ones of each layer; lru: each miss is copied in the place of what was used
longest ago; follow: CardExperts with its own options, after the same text; unknown: the same, but
beginning with the first ones. Copies may take half of the bus beside a token of `static`.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import numpy as np
from mixtures.cards import (
    MIXTURES,
    Mixture,
    Prices,
    Replayed,
    Row,
    read_rows,
    replay,
    text,
    write_rows,
)
from mixtures.routers import KINDS

TOOL = Path(__file__).resolve().parents[1] / "build" / "cpu" / "tests" / "card_replay"
SHARES = (10, 20, 30, 40, 50, 60)  # % of the experts
POLICIES = ("static", "first", "lru", "follow", "unknown")
BUS = 0.5  # of its time

# For --grid. None: fitted.
HALF_LIVES = (3, 6, 12, 25, 50, 100, 200)
THRESHOLDS = (0.25, 0.75, 1.5)
LONG_RUNS = (None, 0.0, 0.3, 0.8)
COPIES = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)


def budget(mixture: Mixture, prices: Prices, seconds: float) -> float:
    """Copies for each token of such a length."""
    return BUS * prices.copy * seconds / mixture.expert


def policies(
    tool: Path, mixture: Mixture, chosen: np.ndarray, share: int, prices: Prices
) -> dict[str, Replayed]:
    frames = mixture.blocks * share // 100
    (static,) = replay(tool, mixture, chosen, [f"static {frames}"], prices)
    copies = budget(mixture, prices, static.seconds)
    lines = [f"first {frames}", f"lru {frames}"]
    lines += [f"follow {frames} {known} {copies}" for known in (1, 0)]
    others = replay(tool, mixture, chosen, lines, prices)
    return dict(zip(POLICIES, (static, *others), strict=True))


def rows(tool: Path, prices: Prices) -> list[Row]:
    found = []
    for (name, mixture), router in itertools.product(MIXTURES.items(), KINDS):
        chosen = text(mixture, router)
        for share in SHARES:
            for policy, r in policies(tool, mixture, chosen, share, prices).items():
                found.append(Row(name, router, share, policy, 1e3 * r.seconds, r.hits, r.copies))
    return found


def table(rows: list[Row]) -> str:
    """Markdown: milliseconds of static / first / lru / follow."""
    by = {(r.mixture, r.router, r.share, r.policy): r for r in rows}
    lines = ["| sizes of, router | " + " | ".join(f"{share}%" for share in SHARES) + " |"]
    lines += ["| --- |" + " --- |" * len(SHARES)]
    for mixture, router in itertools.product(MIXTURES, KINDS):
        cells = []
        for share in SHARES:
            of = [by[mixture, router, share, policy] for policy in POLICIES[:4]]
            cells.append("/".join(f"{r.ms:.1f}" for r in of))
        lines.append(f"| {mixture.rsplit(' ', 1)[0]}, {router} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def grid(tool: Path, prices: Prices) -> str:
    """Times of options over the best ones of each case, as a mean and at most; the case's policies
    beside them."""
    options = list(itertools.product(HALF_LIVES, THRESHOLDS, LONG_RUNS))
    times: dict[str, list[float]] = {}
    for (name, mixture), router, share in itertools.product(MIXTURES.items(), KINDS, (10, 30, 50)):
        chosen = text(mixture, router)
        frames = mixture.blocks * share // 100
        fixed = policies(tool, mixture, chosen, share, prices)
        copies = budget(mixture, prices, fixed["static"].seconds)
        lines = [
            f"follow {frames} 1 {copies} {half_life} {threshold}"
            + ("" if long_run is None else f" {long_run}")
            for half_life, threshold, long_run in options
        ]
        lines += [f"follow {frames} 1 {n}" for n in COPIES]
        found = replay(tool, mixture, chosen, lines, prices)
        print(f"{name}, {router}, {share}% done", flush=True)
        times[f"{name}, {router}, {share}%"] = [r.seconds for r in (*fixed.values(), *found)]
    names = [*POLICIES]
    names += [
        f"half-life {h}, threshold {t}, {'fitted' if s is None else f'average {s}'}"
        for h, t, s in options
    ]
    names += [f"at most {n} copies per token" for n in COPIES]
    over = np.array(list(times.values()))
    over /= over.min(1, keepdims=True)
    mean = np.exp(np.log(over).mean(0))
    return "\n".join(
        f"{mean[i]:.3f} {over[:, i].max():.3f} {names[i]}" for i in np.argsort(mean, kind="stable")
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("file", type=Path, nargs="?", help="the rows")
    parser.add_argument("--table", action="store_true", help="print the file's rows")
    parser.add_argument("--grid", action="store_true", help="compare options")
    parser.add_argument("--tool", type=Path, default=TOOL)
    args = parser.parse_args()
    if args.grid:
        print(grid(args.tool, Prices()))
    elif args.file is None:
        parser.error("a file, or --grid")
    else:
        if not args.table:
            write_rows(args.file, rows(args.tool, Prices()))
        print(table(read_rows(args.file)))


if __name__ == "__main__":
    main()
