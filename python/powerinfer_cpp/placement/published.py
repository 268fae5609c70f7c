"""Published speeds of llama.cpp's dense decoding, which the model of speed has to predict.

published.csv, a row per figure:

- source: repository and thread or a page; date of the figure.
- vram_gb_s, ram_gb_s: bandwidths by the data sheet; of RAM where it is used.
- graphs: whether the kernels of a token were launched as one graph.
- gpu_layers: layers on the GPU. vram_gb, ram_gb: what a token reads there: the file without the
  embedding, and the cache where it is more than 1 %.
- fitted: the constant that the row fitted ("gpu": efficiency and node; "launch": a kernel without
  a graph; "ram": llama.cpp's share of RAM's bandwidth). Other rows are predicted.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from .machine import GB, Machine

LLAMA_KERNELS = 20  # of llama.cpp per layer and token
PLAIN_LAUNCH = 3.7e-6  # a kernel without a graph, as `Machine.node`
LLAMA_RAM = 0.64  # share of RAM's data sheet that llama.cpp's quantised products reach


@dataclass(frozen=True)
class Figure:
    """A row, with the prediction for it."""

    source: str
    card: str
    model: str
    gpu_layers: int
    fitted: str
    tokens_per_second: float
    predicted: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.tokens_per_second


def figures() -> list[Figure]:
    """All rows, each with its prediction."""
    with Path(__file__).with_name("published.csv").open(newline="", encoding="utf-8") as file:
        return [_figure(row) for row in csv.DictReader(file)]


def _figure(row: dict[str, str]) -> Figure:
    fields = {} if row["graphs"] == "yes" else {"node": PLAIN_LAUNCH, "launch": 0.0}
    ram = float(row["ram_gb_s"] or 1) * GB * LLAMA_RAM
    machine = Machine(vram=float(row["vram_gb_s"]) * GB, ram=ram, **fields)
    layers = int(row["gpu_layers"])
    seconds = machine.dense_seconds(
        float(row["vram_gb"]) * GB, float(row["ram_gb"] or 0) * GB, layers * LLAMA_KERNELS
    )
    return Figure(
        row["source"],
        row["card"],
        row["model"],
        layers,
        row["fitted"],
        float(row["tokens_per_s"]),
        1 / seconds,
    )
