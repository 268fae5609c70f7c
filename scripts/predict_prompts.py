#!/usr/bin/env python3
"""Least seconds of long prompts beside a card: nothing is measured, and no card was seen.

    scripts/predict_prompts.py                # the table of docs/gpu.md

What kernels execute is counted, and divided by what a card can issue at most: four instructions of
a warp in a cycle and multiprocessor. So kernels that wait for memory, for shared memory or for each
other take longer. Experts that the card lacks cross the bus once for each chunk of rows, beside the
computing of others; a state is read and changed row by row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mixtures.cards import MIXTURES, Prices
from powerinfer_cpp.placement.machine import GIB, Machine
from predict_mixture import CARDS, DENSE, MIB, Case

TILE = 64  # rows of activations of a tile
WARPS, COLUMNS = 8, 128  # of a tile; what its warps go through at a time
# Instructions of a warp for 128 columns of a tile of 64 rows of weights.
TILES = {"Q4_0": 385, "Q4_K": 607}
# Of a block of attention, for 256 positions and 16 queries, by format of the cache and width of
# heads, where all is seen (tests/gpu/ptx).
BLOCKS = {("F16", 128): 91106, ("Q8_0", 128): 64174, ("F16", 256): 166954, ("Q8_0", 256): 124698}
POSITIONS, QUERIES = 256, 16
# Cycles of a row of a delta net: 128 rows of a state that one warp reads, five instructions each,
# then 32 rows of each warp, whose loop waits some 40 cycles for shared memory each time; barriers.
ROW_OF_STATE = 128 * 5 + 32 * 40 + 80
Q8_0 = 17 / 32  # of the bytes of F16

# Multiprocessors and cycles a second.
ISSUE = {"4060 Ti": (34, 2.535e9), "3060": (28, 1.777e9), "4090": (128, 2.52e9)}
LENGTHS = (4096, 32768)
CHUNKS = (512, 4096)


def tile_instructions(rows: float, cols: float, kind: str, tiles: float) -> float:
    """Of the warps of so many tiles of activations with a matrix."""
    return math.ceil(rows / TILE) * math.ceil(cols / COLUMNS) * WARPS * TILES[kind] * tiles


@dataclass(frozen=True)
class Prompted:
    """A model: the matrices of all layers (number, rows, columns), heads and layers of attention,
    layers of delta nets, and of experts (number of layers, of experts, used, rows, columns)."""

    kind: str
    matrices: tuple[tuple[int, int, int], ...]
    heads: int
    width: int
    layers: int
    nets: int = 0
    experts: tuple[int, int, int, int, int] | None = None

    def products(self, n: int) -> float:
        """Instructions for n rows."""
        return sum(
            count * tile_instructions(rows, cols, self.kind, math.ceil(n / TILE))
            for count, rows, cols in self.matrices
        )

    def attention(self, n: int, cache: str) -> float:
        blocks = sum(math.ceil((t + QUERIES) / POSITIONS) for t in range(0, n, QUERIES))
        return self.layers * self.heads * blocks * BLOCKS[cache, self.width]

    def of_experts(self, n: int) -> float:
        """Instructions for a chunk of n rows: a tile of each expert is not full."""
        if not self.experts:
            return 0
        layers, experts, used, rows, cols = self.experts
        tiles = max(experts, n * used / TILE + experts / 2)
        one = 2 * tile_instructions(rows, cols, self.kind, 1)
        return layers * tiles * (one + tile_instructions(cols, rows, self.kind, 1))


QWEN = "Qwen3.6-35B-A3B Q4_K_M"
MODELS = {
    "7B Q4_0": Prompted(
        "Q4_0", ((32 * 4, 4096, 4096), (32 * 2, 11008, 4096), (32, 4096, 11008)), 32, 128, 32
    ),
    QWEN: Prompted(
        "Q4_K",
        ((30, 12288, 2048), (10, 9216, 2048), (40, 2048, 4096), (80, 512, 2048), (40, 2048, 512)),
        16,
        256,
        10,
        nets=30,
        experts=(40, 256, 8, 512, 2048),
    ),
}
# Scratch memory and states by --plan for so many rows.
ROOM = {512: 441 * MIB, 4096: 1667 * MIB}


def share_of(card: str, n: int, chunk: int, cache: str) -> float:
    """Of Qwen's experts, that the card has room for beside a context of n positions."""
    memory, bandwidth = CARDS[card]
    dense = DENSE[QWEN]
    position = dense.position * (Q8_0 if cache == "Q8_0" else 1)
    dense = replace(dense, position=position, room=ROOM[chunk])
    machine = Machine(vram=bandwidth)
    case = Case(MIXTURES[QWEN], dense, memory * GIB, machine, Prices(), [], context=n)
    return case.share


def seconds(model: str, card: str, n: int, chunk: int, cache: str) -> float:
    name = card.rsplit("(", 1)[1].rstrip(")")
    processors, clock = ISSUE[name]
    issued = 4 * processors * clock
    m = MODELS[model]
    rest = m.products(n) + m.attention(n, cache)
    # 128 blocks, of which a multiprocessor has four side by side without their waiting.
    nets = m.nets * n * ROW_OF_STATE / clock * max(1, math.ceil(128 / processors) / 4)
    experts = m.of_experts(chunk) / issued
    if m.experts:
        mixture = MIXTURES[model]
        missing = (1 - share_of(card, n, chunk, cache)) * mixture.blocks * mixture.expert
        experts = max(experts, missing / Prices().copy)
    return rest / issued + nets + n / chunk * experts


def cases() -> Iterator[tuple[str, str, int]]:
    """Model, card and rows of a chunk."""
    yield "7B Q4_0", list(CARDS)[-1], 512
    for card in CARDS:
        for chunk in CHUNKS:
            yield QWEN, card, chunk


def rounded(value: float) -> str:
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 10 else f"{value:.0f}"


def table() -> str:
    """Markdown."""
    lines = [
        "| model | card | rows of a chunk | "
        + " | ".join(f"{n:,} tokens, {cache}" for n in LENGTHS for cache in ("F16", "Q8_0"))
        + " |",
        "| --- | --- |" + " ---: |" * 5,
    ]
    for model, card, chunk in cases():
        cells = [
            rounded(seconds(model, card, n, chunk, cache))
            for n in LENGTHS
            for cache in ("F16", "Q8_0")
        ]
        lines.append(f"| {model} | {card} | {chunk:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
