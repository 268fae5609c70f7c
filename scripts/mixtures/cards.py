"""What a card would hold of a mixture's experts: texts of stated routers, and replays of them."""

from __future__ import annotations

import csv
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from powerinfer_cpp.placement.machine import GB

from .routers import KINDS, tokens

WIDTH = 256  # of the tokens' vectors
PROFILE, WARM, COUNTED = 4096, 128, 2048  # tokens of another text, not counted, and counted


@dataclass(frozen=True)
class Mixture:
    """Layers with experts, experts in each and chosen ones, and the bytes of an expert."""

    layers: int
    experts: int
    used: int
    expert: float

    @property
    def blocks(self) -> int:
        return self.layers * self.experts


def matrices(embd: int, ff: int, *bits: float) -> float:
    """Bytes of an expert's matrices, of which a weight has so many bits."""
    return sum(bits) / 8 * embd * ff


MIXTURES = {
    # Half of the layers' down in Q6_K.
    "Qwen3-30B-A3B Q4_K_M": Mixture(48, 128, 8, matrices(2048, 768, 4.5, 4.5, (4.5 + 6.5625) / 2)),
    # With biases in F32.
    "gpt-oss-20b MXFP4": Mixture(24, 32, 4, matrices(2880, 2880, 4.25, 4.25, 4.25) + 3 * 2880 * 4),
    "gpt-oss-120b MXFP4": Mixture(
        36, 128, 4, matrices(2880, 2880, 4.25, 4.25, 4.25) + 3 * 2880 * 4
    ),
    "Qwen3.6-35B-A3B Q4_K_M": Mixture(
        40, 256, 8, matrices(2048, 512, 4.5, 4.5, (4.5 + 6.5625) / 2)
    ),
    # Rows of 2688 and 1856 columns are no whole groups of 256: Q5_0 takes the place of Q4_K, and
    # Q8_0 that of Q6_K.
    "Nemotron 3 Nano Q4_K_M": Mixture(23, 128, 6, matrices(2688, 1856, 5.5, (5.5 + 8.5) / 2)),
}


@dataclass(frozen=True)
class Prices:
    """Bytes a second of RAM, the CPU's share of it, copies to the card, and VRAM; seconds of a
    layer in which CPU and card meet."""

    ram: float = 60 * GB
    share: float = 0.8
    copy: float = 25 * GB
    vram: float = 500 * GB
    meeting: float = 6e-6


@dataclass(frozen=True)
class Replayed:
    """Of the mean token: seconds of the experts, the share of them on the card, and copies."""

    seconds: float
    hits: float
    copies: float


@dataclass(frozen=True)
class Row:
    """A line of docs/card_experts.csv. share: of the experts, in %, that the card has room for."""

    mixture: str
    router: str
    share: int
    policy: str
    ms: float
    hits: float
    copies: float


def text(mixture: Mixture, router: str, seed: int = 5) -> np.ndarray:
    """uint8 [PROFILE + WARM + COUNTED, layers, used]: the experts that tokens choose. All of it has
    the same popular experts and the same topics, of which a part has some."""
    rng = np.random.default_rng(seed)
    x = tokens(KINDS[router], PROFILE + WARM + COUNTED, WIDTH, rng)
    chosen = np.empty((len(x), mixture.layers, mixture.used), np.uint8)
    for layer in range(mixture.layers):
        scores = x @ rng.standard_normal((WIDTH, mixture.experts), np.float32)
        first = mixture.experts - mixture.used
        chosen[:, layer] = np.argpartition(scores, first, -1)[:, first:]
    return chosen


def replay(
    tool: Path, mixture: Mixture, chosen: np.ndarray, lines: Iterable[str], prices: Prices
) -> list[Replayed]:
    """What card_replay answers to each line."""
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(chosen.tobytes())
        file.flush()
        numbers = (mixture.layers, mixture.experts, mixture.used, PROFILE, WARM, mixture.expert)
        command = [tool, file.name, *numbers, *asdict(prices).values()]
        done = subprocess.run(
            list(map(str, command)),
            input="".join(f"{line}\n" for line in lines),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return [Replayed(*map(float, line.split())) for line in done.stdout.splitlines()]


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(field.name for field in fields(Row))
        for r in rows:
            numbers = (f"{r.ms:.3f}", f"{r.hits:.4f}", f"{r.copies:.2f}")
            out.writerow((r.mixture, r.router, r.share, r.policy, *numbers))


def read_rows(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Row(
                row["mixture"],
                row["router"],
                int(row["share"]),
                row["policy"],
                *(float(row[name]) for name in ("ms", "hits", "copies")),
            )
            for row in csv.DictReader(file)
        ]
