"""Computes a placement from a model, a machine and budgets, and predicts its speed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.errors import OutOfMemoryError
from ..core.tiers import GPU, RAM, STORAGE
from .machine import (
    ATTENTION_KERNELS,
    FFN_KERNELS,
    HEAD_KERNELS,
    PREDICTOR_KERNELS,
    Machine,
)
from .model import Neurons, PlacementModel
from .parts import GPU_ORDER, Parts, assign
from .solve import Layer, Solution, solve

GROUP = 64  # neurons that are placed together, as in the paper
_GAP = 1e-5  # relative to the value of the firings; rates are less exact than five digits
COMMUNICATION = ("expected", "paper", "off")
# On the GPU, of each part besides neurons.
KERNELS = {
    "attention": ATTENTION_KERNELS,
    "predictor": PREDICTOR_KERNELS,
    "head": HEAD_KERNELS,
}


@dataclass(frozen=True)
class Prediction:
    """Seconds per token by kind of work.

    ffn: per layer the slowest tier, since all three work at the same time; kernels: their cost on
    the GPU besides the bytes; sync: waiting in layers that CPU and GPU share.
    """

    seconds: dict[str, float]

    @property
    def tokens_per_second(self) -> float:
        return 1 / max(sum(self.seconds.values()), 1e-12)


@dataclass(frozen=True)
class Placement:
    """The tier of every neuron.

    vram, ram: budgets in bytes (ram None: no limit). gpu, memory: int64 [L], neurons of each layer
    on the GPU, and on the GPU or in RAM, the hottest first. least: int64 [L], the minimum on the
    GPU, if the GPU takes any neuron of the layer.
    """

    model: PlacementModel
    machine: Machine
    vram: int
    ram: int | None
    device: str
    parts: Parts
    solution: Solution
    gpu: np.ndarray
    memory: np.ndarray
    least: np.ndarray
    prediction: Prediction

    def tiers(self) -> list[np.ndarray]:
        """Per layer int8 [n_ff] or [n_expert, n_ff]: 0 storage, 1 RAM, 2 GPU."""
        found = []
        for layer, gpu, memory in zip(self.model.layers, self.gpu, self.memory, strict=True):
            tier = np.full(layer.n, STORAGE, np.int8)
            tier[layer.order[:memory]] = RAM
            tier[layer.order[:gpu]] = GPU
            found.append(tier.reshape(layer.statistics.rates.shape))
        return found

    def neurons(self, layer: int) -> tuple[int, int, int]:
        """Neurons of a layer in storage, in RAM and on the GPU."""
        gpu, memory = int(self.gpu[layer]), int(self.memory[layer])
        return self.model.layers[layer].n - memory, memory - gpu, gpu

    def firings(self, layer: int) -> tuple[float, float, float]:
        """Firings per token of a layer's neurons in storage, in RAM and on the GPU."""
        rates = self.model.layers[layer].rates
        gpu, memory = rates[: self.gpu[layer]].sum(), rates[: self.memory[layer]].sum()
        return float(rates.sum() - memory), float(memory - gpu), float(gpu)

    def shares(self) -> tuple[float, float, float]:
        """Shares of all firings that storage, RAM and GPU serve."""
        totals = np.sum([self.firings(i) for i in range(len(self.gpu))], axis=0)
        total = max(float(totals.sum()), 1e-300)
        return tuple(float(t) / total for t in totals)  # type: ignore[return-value]

    def neuron_bytes(self) -> tuple[int, int, int]:
        """Bytes of neurons in storage, in RAM and on the GPU."""
        counts = np.array([self.neurons(i) for i in range(len(self.gpu))])
        sizes = np.array([layer.neuron_bytes for layer in self.model.layers])
        return tuple(int(n) for n in sizes @ counts)  # type: ignore[return-value]


def place(
    model: PlacementModel,
    machine: Machine,
    vram: int,
    ram: int | None = None,
    *,
    device: str = "",
    group: int = GROUP,
    communication: str = "expected",
    time_limit: float = 10.0,
) -> Placement:
    """The best placement within budgets in bytes (ram None: no limit).

    device: a name to store with it. group: neurons that are placed together. communication: how to
    count C_l: by expected reads ("expected"), one read per neuron ("paper"), or "off". time_limit:
    seconds after which the best placement found so far is used.

    Raises OutOfMemoryError if RAM is too small for everything except neurons, ValueError without
    scipy.
    """
    parts = assign(model.parts, vram, ram)
    needed = sum(layer.n * layer.neuron_bytes for layer in model.layers)
    # With room for every neuron the third tier stays empty, and the problem needs no part for it.
    scarce = parts.ram_left is not None and parts.ram_left < needed
    capacities = (
        (parts.vram_left, parts.ram_left, machine.ram_value()) if scarce else (parts.vram_left,)
    )

    def solved(least: Sequence[int], gap: float, seconds: float) -> Solution:
        groups = [
            _groups(la, -(-n // group), group) for la, n in zip(model.layers, least, strict=True)
        ]
        return solve(groups, *capacities, gap=gap, time_limit=seconds)

    least = [1] * len(model.layers)
    if communication != "off":
        instead = 0.0
        if scarce and communication == "expected":
            rough = solved(least, 1e-3, time_limit / 5)
            instead = _first_in_storage(model, rough.memory * group)
        least = [_least(layer, machine, communication, instead) for layer in model.layers]
    solution = solved(least, _GAP, time_limit * 4 / 5)
    sizes = np.array([layer.n for layer in model.layers])
    gpu = np.minimum(solution.gpu * group, sizes)
    memory = np.minimum(solution.memory * group, sizes)
    return Placement(
        model,
        machine,
        vram,
        ram,
        device,
        parts,
        solution,
        gpu,
        memory,
        np.array(least),
        predict(model, machine, parts, gpu, memory),
    )


def _least(layer: Neurons, machine: Machine, communication: str, instead: float) -> int:
    """C_l of a layer, at most all its neurons: a layer entirely on the GPU has no waiting."""
    reads = layer.reads if communication == "expected" else np.ones(layer.n)
    return min(machine.least_neurons(layer.neuron_bytes, reads, instead), layer.n)


def _first_in_storage(model: PlacementModel, memory: np.ndarray) -> float:
    """Reads per token of the neuron that would be the next to move into RAM."""
    return max(
        (float(la.reads[m]) for la, m in zip(model.layers, memory, strict=True) if m < la.n),
        default=0.0,
    )


def _groups(layer: Neurons, least: int, group: int) -> Layer:
    starts = np.arange(0, layer.n, group)
    values = np.add.reduceat(layer.rates, starts)
    sizes = np.diff(np.append(starts, layer.n)) * layer.neuron_bytes
    return Layer(values, sizes, least)


def predict(
    model: PlacementModel, machine: Machine, parts: Parts, gpu: Any, memory: Any
) -> Prediction:
    """Time of a token with a half-full cache.

    gpu, memory: [L], neurons of each layer on the GPU, and on the GPU or in RAM.
    """
    seconds = dict.fromkeys((*GPU_ORDER, "ffn", "kernels", "sync"), 0.0)
    for tier, speed in ((parts.gpu, machine.gpu), (parts.ram, machine.ram)):
        for part in tier:
            if part.kind in GPU_ORDER:
                seconds[part.kind] += part.n_bytes / speed * (0.5 if part.kind == "kv" else 1.0)
    on_gpu = [part.kind for part in parts.gpu]
    kernels = sum(KERNELS.get(kind, 0) for kind in on_gpu)
    for layer, n_gpu, n_memory in zip(model.layers, gpu, memory, strict=True):
        read = np.concatenate(([0.0], np.cumsum(layer.reads))) * layer.neuron_bytes
        ends = (0, n_gpu, n_memory, layer.n)
        ffn, sync = machine.ffn_seconds(*np.diff(read[list(ends)]))
        seconds["ffn"] += ffn
        seconds["sync"] += sync
        kernels += FFN_KERNELS + (n_gpu < layer.n) if n_gpu else 0
    seconds["kernels"] = kernels * machine.node + (machine.launch if kernels else 0.0)
    return Prediction(seconds)


def least_memory(
    model: PlacementModel,
    machine: Machine,
    vram: int,
    ram: int | None,
    target: float,
    **options: Any,
) -> Placement:
    """The placement with the least memory and a prediction of `target` tokens per second.

    With a RAM budget it saves RAM and uses all of the VRAM; without, it saves VRAM. Budgets are
    upper limits; the result is exact to a thousandth of the budget. options: options of `place`.
    Raises ValueError if the budgets are not sufficient, and the errors of `place`.
    """
    budget = vram if ram is None else ram

    def attempt(n_bytes: int) -> Placement:
        pair = (n_bytes, None) if ram is None else (vram, n_bytes)
        return place(model, machine, *pair, **options)

    best = attempt(budget)
    if best.prediction.tokens_per_second < target:
        raise ValueError(
            f"--target-speed {target:g}: these budgets allow "
            f"{best.prediction.tokens_per_second:.2f} tokens/s"
        )
    low, high = -1, budget
    while high - low > max(1, budget >> 10):
        middle = (low + high) // 2
        try:
            found = attempt(middle)
        except OutOfMemoryError:
            low = middle
            continue
        if found.prediction.tokens_per_second >= target:
            best, high = found, middle
        else:
            low = middle
    return best
