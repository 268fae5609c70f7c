"""Figures of a run: the keys of `llm.stats()` and of `./main --json-stats`."""

import resource
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .model import Model


@dataclass
class Meter:
    """Times of one generation, in seconds: of the prompt's tokens that were computed, of each
    generated token that was computed, and from the beginning to the first token's choice."""

    n_prompt: int = 0
    prompt_s: float = 0.0
    token_s: list[float] = field(default_factory=list)
    ttft_s: float = 0.0
    began: float = field(default_factory=time.perf_counter)

    def add(self, n: int, seconds: float, prompt: bool) -> None:
        """n tokens were computed."""
        if prompt:
            self.n_prompt, self.prompt_s = self.n_prompt + n, self.prompt_s + seconds
        else:
            self.token_s.append(seconds)

    def chosen(self) -> None:
        """A token was chosen."""
        if not self.ttft_s:
            self.ttft_s = time.perf_counter() - self.began


def rss_peak() -> int:
    """Most bytes of RAM that the process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def report(
    model: Model,
    plan: dict[str, Any],
    meter: Meter,
    n_ctx: int,
    n_tokens: int,
    sparsity: list[tuple[float, float]],
) -> dict[str, Any]:
    """Figures of a generation.

    plan: of memory, for the bytes of the parts; n_tokens: positions that attention reads now;
    sparsity: per layer the shares of neurons that were proposed and that fired.
    Times are in s and ms, sizes in bytes. share_* are shares of n_ff per layer.
    """
    ram, gen_s = plan.get("ram", {}), sum(meter.token_s)
    p50, p95, p99 = (
        np.percentile(meter.token_s, (50, 95, 99)) * 1e3 if meter.token_s else (0.0,) * 3
    )
    n_expert = int(model.gguf.value(f"{model.architecture}.expert_count", 0) or 1)
    neurons = model.n_layer * model.n_ff * n_expert
    nothing = {"neurons": 0, "bytes": 0, "hits": 0, "reads": 0, "stall_s": 0.0}
    proposed, fired = [p for p, _ in sparsity], [f for _, f in sparsity]
    return {
        "n_prompt": meter.n_prompt,
        "n_gen": len(meter.token_s),
        "prompt_s": meter.prompt_s,
        "gen_s": gen_s,
        "gen_ts": len(meter.token_s) / gen_s if gen_s else 0.0,
        "ttft_s": meter.ttft_s,
        "token_ms": {"p50": float(p50), "p95": float(p95), "p99": float(p99)},
        "share_predicted": proposed,
        "share_computed": list(proposed),
        "share_fired": fired,
        "bytes_per_token": {
            "attention": ram.get("attention", 0) + ram.get("norms", 0),
            "predictor": ram.get("predictor", 0),
            "ffn": ram.get("ffn", 0),
            "head": ram.get("head", 0),
            "kv": ram.get("kv", 0) * n_tokens // max(1, n_ctx),
        },
        "tiers": {
            "gpu": dict(nothing),
            "ram": {**nothing, "neurons": neurons, "bytes": ram.get("ffn", 0)},
            "storage": dict(nothing),
        },
        "pcie_bytes": 0,
        "rss_peak": rss_peak(),
        "vram_peak": 0,
    }
