"""Figures of a run: the keys of `llm.stats()` and of `./main --json-stats`."""

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._native import lib
from . import tiers
from .model import Model
from .work import NEURON_COUNTS, PARTS, Work


@dataclass
class Meter:
    """Times of one generation, in seconds: of the computed prompt tokens, of each computed
    generated token, and from the start to the choice of the first token. Also the work for its
    tokens: the prompt's until the first generated token is computed, then only the generated
    tokens'."""

    n_prompt: int = 0
    prompt_s: float = 0.0
    token_s: list[float] = field(default_factory=list)
    ttft_s: float = 0.0
    began: float = field(default_factory=time.perf_counter)
    work: Work | None = None

    def add(self, n: int, seconds: float, prompt: bool, work: Work) -> None:
        """Records that n tokens were computed."""
        if prompt:
            self.n_prompt, self.prompt_s = self.n_prompt + n, self.prompt_s + seconds
            self.work = work
        else:
            self.work = self.work + work if self.token_s else work
            self.token_s.append(seconds)

    def chosen(self) -> None:
        """Records that a token was chosen."""
        if not self.ttft_s:
            self.ttft_s = time.perf_counter() - self.began


def rss_peak() -> int:
    """Peak RAM of the process in bytes."""
    return lib.pi_peak_memory()


def neuron_figures(model: Model, plan: dict[str, Any], work: Work | None) -> dict[str, Any]:
    """share_*, bytes_per_token and tiers from the work of rows (None: no rows).

    plan: memory plan, for the bytes in each tier.
    """
    if work is None:
        nothing = np.zeros((model.n_layer, len(NEURON_COUNTS)), dtype=np.int64)
        work = Work(0, np.zeros(len(PARTS), dtype=np.int64), nothing)
    layers = range(model.n_layer)
    on_gpu = np.array([model.layer_on_device(layer) for layer in layers])
    on_disk = np.array([model.layer_stored(layer) for layer in layers])
    in_ram = np.array([math.prod(size.shape) for size in model.sizes]) - on_gpu - on_disk
    # Neurons of an expert; more than there are of a layer without experts, which has none.
    experts_of = np.array([s.n_ff if s.n_expert else 1 << 62 for s in model.sizes], np.int64)
    by_tier = [
        {
            "neurons": int(neurons.sum()),
            "experts": int((neurons // experts_of).sum()),
            "bytes": sum(plan[name].get(part, 0) for part in ("ffn", "cache", "experts")),
            "hits": int(computed.sum()) // max(1, work.rows),
            "reads": read,
            "stall_s": stall,
            "layer_neurons": neurons.tolist(),
            "layer_hits": (computed / max(1, work.rows)).tolist(),
        }
        for name, neurons, computed, read, stall in zip(
            tiers.NAMES,
            (on_disk, in_ram, on_gpu),
            work.computed_by_tier(),
            work.read_by_tier(),
            work.waits(),
            strict=True,
        )
    ]
    return {
        **{f"share_{name}": share for name, share in work.shares().items()},
        "audit": work.audit(),
        "bytes_per_token": work.bytes_per_token(),
        "tiers": tiers.by_name(by_tier),
        "storage": storage_figures(model, work),
        "experts": expert_figures(model, work),
    }


def expert_figures(model: Model, work: Work) -> dict[str, Any] | None:
    """Where the experts of a mixture are, and who computed the chosen ones; None of others."""
    found = model.experts()
    if found is None:
        return None
    return {
        "experts": found.experts,
        "gpu_room": found.device_room,
        "gpu_has": found.device_has,
        "chosen": tiers.by_name(work.chosen_by_tier()),
        "copies": found.copies,
        "copied_bytes": found.copied_bytes,
    }


def storage_figures(model: Model, work: Work) -> dict[str, Any] | None:
    """How the model runs from storage, and sums over the rows; None if it does not."""
    found = model.storage()
    if found is None:
        return None
    parts = {
        name: {
            "slots": slots,
            "used": used,
            "needed": work.sum(f"{name}_needed"),
            "missed": work.sum(f"{name}_missed"),
        }
        for name, slots, used in zip(("first", "rest"), found.slots, found.used, strict=True)
    }
    layers = {name: work.by_layer(f"storage_{name}") for name in ("needed", "missed", "bytes")}
    return {
        "io": found.io,
        "direct": found.direct,
        "unit": found.unit,
        "arena_bytes": found.arena_bytes,
        **parts,
        "reads": work.sum("storage_reads"),
        "guessed": work.sum("storage_guessed"),
        "guessed_right": work.sum("storage_guessed_right"),
        **{f"layer_{name}": values.tolist() for name, values in layers.items()},
        "layer_stall_s": (work.by_layer("storage_waited_ns") * 1e-9).tolist(),
    }


def report(model: Model, plan: dict[str, Any], meter: Meter) -> dict[str, Any]:
    """Figures of a generation, described in docs/sparsity.md.

    plan: memory plan. Times are in s and ms, sizes in bytes, shares of n_ff per layer.
    """
    gen_s = sum(meter.token_s)
    p50, p95, p99 = (
        np.percentile(meter.token_s, (50, 95, 99)) * 1e3 if meter.token_s else (0.0,) * 3
    )
    return {
        "n_prompt": meter.n_prompt,
        "n_gen": len(meter.token_s),
        "prompt_s": meter.prompt_s,
        "gen_s": gen_s,
        "gen_ts": len(meter.token_s) / gen_s if gen_s else 0.0,
        "ttft_s": meter.ttft_s,
        "token_ms": {"p50": float(p50), "p95": float(p95), "p99": float(p99)},
        **neuron_figures(model, plan, meter.work),
        "pcie_bytes": meter.work.per_token("transferred") if meter.work else 0,
        "rss_peak": rss_peak(),
        "vram_peak": model.on_device()[1],
    }
