"""Granite 3 and 4: Llama with four multipliers, dense or with experts."""

from collections.abc import Iterator

from ..config import Config
from ..tensors import Output, Weights, from_weight
from ..writer import Entry, float32
from .llama import Llama
from .mixtures import Mixture


class Granite(Llama):
    architecture = "granite"

    def __init__(self, config: Config):
        super().__init__(config)
        self.multipliers = {
            "attention.scale": config.number("attention_multiplier", default=1.0),
            "embedding_scale": config.number("embedding_multiplier", default=1.0),
            "residual_scale": config.number("residual_multiplier", default=1.0),
            "logit_scale": config.number("logits_scaling", default=1.0),
        }

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        for key, value in self.multipliers.items():
            yield float32(f"{self.architecture}.{key}", value)


class GraniteMoe(Mixture, Granite):
    """Also with an expert that every token computes (granitemoeshared)."""

    architecture = "granitemoe"
    expert_keys = ("num_local_experts",)
    width_keys = ("intermediate_size",)
    moe = "block_sparse_moe"
    router = "router.layer"
    all_experts = ("input_linear.weight", "output_linear.weight")
    shared = "shared_mlp"

    def __init__(self, config: Config):
        super().__init__(config)
        self.n_ff_shared = config.integer("shared_intermediate_size", default=0, least=0)

    def shared_expert(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        n = self.n_ff_shared
        both = weights.take(f"{theirs}.input_linear.weight", 2 * n, self.n_embd)
        yield from_weight(f"{block}.ffn_gate_shexp.weight", both.between(0, n))
        yield from_weight(f"{block}.ffn_up_shexp.weight", both.between(n, 2 * n))
        down = weights.take(f"{theirs}.output_linear.weight", self.n_embd, n)
        yield from_weight(f"{block}.ffn_down_shexp.weight", down)
