#!/usr/bin/env python3
"""Tokens per second that a model of speed expects of mixtures beside a card: nothing is measured.

    scripts/predict_mixture.py                # the table of docs/gpu.md

A token takes what the card reads of attention, head and half of the context's keys and values, and
what it reads and writes of states; its kernels (powerinfer_cpp/placement/machine.py), and the
experts:

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
MIB = 1 << 20
FREE = 256 * MIB  # that a budget leaves
CARD = 528 * MIB  # that opening a card takes
# Of a layer's experts: norm, router, choice, gate and up, activation, down, sum; where the CPU has
# some of them, also what it is told.
EXPERT_KERNELS = 7
PUBLISHING = 1
# Besides: of a shared expert gate and up, activation and down; its weight and what is weighed; the
# gate of attention. Of a delta net norm, three products, what is kept, convolution, steps, rule,
# norm and output (its matrices are of two types); of Mamba-2 one product.
SHARED_KERNELS = 3
WEIGHED = 2
GATED = 1
DELTA_KERNELS = 10
MAMBA_KERNELS = 8


@dataclass(frozen=True)
class Dense:
    """What every token reads on the card: bytes of all layers but for their experts, of the head,
    of keys and values of a position in all layers that keep them all, of windows, and of a
    sequence's states; and its kernels but for those of experts. room: bytes of scratch memory and
    of all states, as --plan has them for 512 rows."""

    layers: float
    head: float
    position: float
    kernels: int
    room: float
    windows: float = 0
    state: float = 0


def stored(bits: float, *shape: int) -> float:
    """Bytes of a matrix, of which a weight has so many bits."""
    return math.prod(shape) * bits / 8


Q5_0, Q8_0, Q4_K, Q5_K, Q6_K = 5.5, 8.5, 4.5, 5.5, 6.5625
HALF = (Q4_K + Q6_K) / 2  # the format of some matrices in half of the layers
# Matrices of gpt-oss in Q8_0, router in F32; every other layer has a window of 128.
OSS_LAYER, OSS_HEAD = 28.2e6 + 1.5e6, stored(Q8_0, 201088, 2880)
DENSE = {
    # Q4_K, V in Q6_K in half of the layers; the head in Q6_K.
    "Qwen3-30B-A3B Q4_K_M": Dense(
        48 * (18.9e6 * 4.6 / 8 + 1.05e6),
        stored(Q6_K, 151936, 2048),
        position=48 * 2048,
        kernels=48 * ATTENTION_KERNELS + 24,
        room=160 * MIB,
    ),
    "gpt-oss-20b MXFP4": Dense(
        24 * OSS_LAYER,
        OSS_HEAD,
        position=12 * 2048,
        kernels=24 * ATTENTION_KERNELS,
        room=220 * MIB,
        windows=12 * 2048 * 128,
    ),
    "gpt-oss-120b MXFP4": Dense(
        36 * OSS_LAYER,
        OSS_HEAD,
        position=18 * 2048,
        kernels=36 * ATTENTION_KERNELS,
        room=220 * MIB,
        windows=18 * 2048 * 128,
    ),
    # 30 delta nets and 10 layers of attention with a gate, all with a shared expert that is
    # weighed; sizes as in mixtures/hybrid.py.
    "Qwen3.6-35B-A3B Q4_K_M": Dense(
        30 * (stored(Q5_K, 8192, 2048) + stored(Q4_K, 2, 4096, 2048) + stored(32, 4, 8192))
        + 10 * (stored(Q4_K, 8192 + 512 + 4096, 2048) + stored(HALF, 512, 2048))
        + 40 * (stored(32, 257, 2048) + stored(Q4_K, 2, 512, 2048) + stored(HALF, 512, 2048)),
        stored(Q6_K, 248320, 2048),
        position=10 * 2048,
        kernels=30 * DELTA_KERNELS
        + 10 * (ATTENTION_KERNELS + GATED)
        + 5
        + 40 * (SHARED_KERNELS + WEIGHED),
        room=441 * MIB,
        state=30 * stored(32, 32 * 128 * 128 + 3 * 8192 + 32),
    ),
    # 23 layers of Mamba-2, 6 of attention, 23 of experts. Rows of 2688 and 3712 columns are no
    # whole groups of 256, so they have blocks of 32.
    "Nemotron 3 Nano Q4_K_M": Dense(
        23 * (stored(Q5_0, 10304, 2688) + stored(Q4_K, 2688, 4096) + stored(32, 4, 6144))
        + 6 * (stored(Q5_0, 4352, 2688) + stored(7, 256, 2688) + stored(Q4_K, 2688, 4096))
        + 23 * (stored(32, 128, 2688) + stored(Q5_0, 3712, 2688) + stored(7, 3712, 2688)),
        stored(Q8_0, 131072, 2688),
        position=6 * 1024,
        kernels=23 * MAMBA_KERNELS + 6 * ATTENTION_KERNELS + 3 + 23 * SHARED_KERNELS,
        room=381 * MIB,
        state=23 * stored(32, 64 * 64 * 128 + 3 * 6144 + 64),
    ),
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
    context: int = CONTEXT

    @property
    def share(self) -> float:
        """Of the experts, that the card has room for."""
        dense = self.dense
        left = self.memory - FREE - CARD - dense.room - dense.head - dense.windows
        left -= dense.layers + dense.position * self.context
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
        dense = self.dense
        n_bytes = dense.layers + dense.head + dense.windows + 2 * dense.state
        n_bytes += dense.position * self.context / 2
        kernels = EXPERT_KERNELS + PUBLISHING * (self.share < 1)
        kernels = dense.kernels + self.mixture.layers * kernels + HEAD_KERNELS
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
