"""Phi-3.5-MoE: LayerNorm, biases, LongRoPE, and a router of its own."""

from collections.abc import Iterator
from dataclasses import replace

from ...config import Config
from ...rope import Rope
from ...writer import Entry, float32
from ..llama import Mistral
from .mixture import Mixture

_JITTER = 0.01  # of the published model, and the engine's for files that do not say


class PhiMoe(Mixture, Mistral):
    architecture = "phimoe"
    pairs = False
    norm_bias = True
    default_eps = 1e-5
    default_theta = 1000000.0
    default_window = None
    expert_keys = ("num_local_experts",)
    width_keys = ("intermediate_size",)
    moe = "block_sparse_moe"
    expert_parts = {"gate": "w1", "up": "w3", "down": "w2"}

    def __init__(self, config: Config):
        super().__init__(config)
        self.jitter = config.number("router_jitter_noise", default=_JITTER)
        self.head_bias = config.flag("lm_head_bias")
        config.known("input_jitter_noise")  # of training
        self.notes.append(
            "llama.cpp gives the experts of phimoe other weights than the model's own code does"
        )

    def read_rope(self, default_theta: float = 10000.0) -> Rope:
        rope = super().read_rope(default_theta)
        if rope.kind != "longrope":
            return rope
        key = "rope_parameters" if self.config.values.get("rope_parameters") else "rope_scaling"
        scaling = self.config.section(key)
        short, long = (scaling.number(f"{kind}_mscale") for kind in ("short", "long"))
        if short != long:
            raise self.refuse("phimoe with a short_mscale other than long_mscale")
        return replace(rope, attention_factor=short)

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        if self.jitter != _JITTER:
            yield float32("powerinfer.router.mixer", 2 * self.jitter)
