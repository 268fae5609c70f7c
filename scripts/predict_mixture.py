#!/usr/bin/env python3
"""Tokens per second that a model of speed expects of mixtures beside a card: nothing is measured.

    scripts/predict_mixture.py                # the table of docs/gpu.md

A token takes what the card reads of attention, head and half of the context's keys and values, its
kernels (powerinfer_cpp/placement/machine.py), and the experts:

- here: the card reads those that it has, the CPU the others at the same time; how many it has is
  the replays' (docs/card_experts.csv), as if each use were drawn by itself.
- layers: llama.cpp's -ncmoe: all experts of some layers are on the card, those of the others are
  the CPU's, which then is as fast as here.
- uploads: a cache on the card with the experts that were used last; each miss is uploaded before
  the card computes with it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mixtures.cards import MIXTURES, Mixture, Prices, Row, read_rows
from powerinfer_cpp.placement.machine import ATTENTION_KERNELS, GB, GIB, HEAD_KERNELS, Machine

ROWS = Path(__file__).resolve().parents[1] / "docs" / "card_experts.csv"
CONTEXT = 8192
FREE = 256 << 20  # that a budget leaves
CARD = 528 << 20  # that opening a card takes
SCRATCH = 128 << 20
# Of a layer's experts: norm, router, choice, quantising, gate and up, activation, down, sum.
EXPERT_KERNELS = 8


@dataclass(frozen=True)
class Dense:
    """Bytes of what every token reads on the card: attention, norms and router of a layer, the
    head; of keys and values of a position in all layers that keep them all, and of windows."""

    layer: float
    head: float
    position: float
    windows: float


OSS = {"layer": 28.2e6 + 1.5e6, "head": 201088 * 2880 * 1.0625}  # matrices in Q8_0, router in F32
DENSE = {
    # Q4_K, V in Q6_K in half of the layers; the head in Q6_K.
    "Qwen3-30B-A3B Q4_K_M": Dense(
        18.9e6 * 4.6 / 8 + 1.05e6, 151936 * 2048 * 6.5625 / 8, 48 * 2048, 0
    ),
    # Every other layer has a window of 128.
    "gpt-oss-20b MXFP4": Dense(**OSS, position=12 * 2048, windows=12 * 2048 * 128),
    "gpt-oss-120b MXFP4": Dense(**OSS, position=18 * 2048, windows=18 * 2048 * 128),
}
# GiB and bytes a second by the data sheet.
CARDS = {
    "8 GB, 288 GB/s (4060 Ti)": (8, 288 * GB),
    "12 GB, 360 GB/s (3060)": (12, 360 * GB),
    "24 GB, 1008 GB/s (4090)": (24, 1008 * GB),
}


def at_share(rows: list[Row], share: float) -> tuple[float, float]:
    """Hits and copies per token of one policy where the card has room for such a share."""
    rows = sorted(rows, key=lambda row: row.share)
    shares = [0, *(row.share / 100 for row in rows), 1]
    hits = np.interp(share, shares, [0, *(row.hits for row in rows), 1])
    copies = np.interp(share, shares, [0, *(row.copies for row in rows), 0])
    return float(hits), float(copies)


@dataclass(frozen=True)
class Case:
    """A mixture beside a card. rows: of the mixture."""

    mixture: Mixture
    dense: Dense
    memory: float
    machine: Machine
    prices: Prices
    rows: list[Row]

    @property
    def share(self) -> float:
        """Of the experts, that the card has room for."""
        left = self.memory - FREE - CARD - SCRATCH - self.dense.head - self.dense.windows
        left -= self.mixture.layers * self.dense.layer + self.dense.position * CONTEXT
        return min(1.0, max(0.0, left / (self.mixture.blocks * self.mixture.expert)))

    @property
    def used(self) -> float:
        """Bytes of the experts of a token."""
        return self.mixture.layers * self.mixture.used * self.mixture.expert

    def found(self, router: str, policy: str) -> tuple[float, float]:
        return at_share(
            [row for row in self.rows if (row.router, row.policy) == (router, policy)], self.share
        )

    def rest(self) -> float:
        """Seconds of all but the experts' bytes."""
        n_bytes = self.mixture.layers * self.dense.layer + self.dense.head + self.dense.windows
        n_bytes += self.dense.position * CONTEXT / 2
        kernels = self.mixture.layers * (ATTENTION_KERNELS + EXPERT_KERNELS) + HEAD_KERNELS
        return self.machine.dense_seconds(n_bytes, 0, kernels)

    def shared(self, hits: float, copies: float) -> float:
        """Seconds of the experts, of which the card has a use with this chance and the CPU computes
        the others, while so many are copied to the card."""
        m, seconds = self.mixture, 0.0
        slowed = copies * m.expert / self.prices.ram / m.layers
        for missed in range(m.used + 1):
            here = m.used - missed
            chance = math.comb(m.used, missed) * hits**here * (1 - hits) ** missed
            cpu = missed * m.expert / (self.prices.ram * self.prices.share)
            cpu += (slowed + self.machine.dispatch) * (missed > 0)
            meeting = self.machine.sync * (here > 0 < missed)
            seconds += chance * (max(cpu, here * m.expert / self.machine.gpu) + meeting)
        return max(m.layers * seconds, copies * m.expert / self.prices.copy)

    def here(self, router: str = "qwen3", policy: str = "follow") -> float:
        """Tokens a second."""
        return 1 / (self.rest() + self.shared(*self.found(router, policy)))

    def layers(self) -> float:
        n = self.mixture.layers
        on_cpu = n - math.floor(self.share * n)
        seconds = self.used * (1 - on_cpu / n) / self.machine.gpu
        seconds += self.used * on_cpu / n / (self.prices.ram * self.prices.share)
        return 1 / (self.rest() + seconds + on_cpu * (self.machine.dispatch + self.machine.sync))

    def uploads(self) -> float:
        missed = 1 - self.found("qwen3", "lru")[0]
        seconds = self.used * (1 / self.machine.gpu + missed / self.prices.copy)
        # The host has to know which experts a layer chose.
        return 1 / (self.rest() + seconds + self.mixture.layers * self.machine.sync * (missed > 0))


def cases(rows: list[Row]) -> Iterator[tuple[str, str, Case]]:
    """With the names of the model and the card."""
    for model, mixture in MIXTURES.items():
        of = [row for row in rows if row.mixture == model]
        for card, (memory, bandwidth) in CARDS.items():
            machine = Machine(vram=bandwidth)
            yield model, card, Case(mixture, DENSE[model], memory * GIB, machine, Prices(), of)


def table(rows: list[Row]) -> str:
    """Markdown."""
    lines = [
        "| model | card | experts there | here | all alike | profile's, fixed | whole layers |"
        " uploads | here / better one |",
        "| --- | --- |" + " ---: |" * 7,
    ]
    for model, card, case in cases(rows):
        speeds = (case.here(), case.here("uniform"), case.here(policy="static"))
        others = (case.layers(), case.uploads())
        cells = [f"{100 * case.share:.0f} %", *(f"{x:.0f}" for x in (*speeds, *others))]
        lines.append(
            f"| {model} | {card} | " + " | ".join(cells) + f" | {speeds[0] / max(others):.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=Path, default=ROWS, help="of scripts/card_experts.py")
    print(table(read_rows(parser.parse_args().rows)))


if __name__ == "__main__":
    main()
