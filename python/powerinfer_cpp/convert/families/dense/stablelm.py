"""StableLM: LayerNorm, rotation of a part of each head, a gated FFN."""

from dataclasses import replace

from ...config import Config
from ...tensors import Output, Weights, from_weight, stacked
from ..llama import Llama


class StableLm(Llama):
    architecture = "stablelm"
    norm_epsilon = "layer_norm_epsilon"
    pairs = False
    norm_bias = True
    default_part = 0.25
    rotates_partly = True
    has_rope_factors = False

    def __init__(self, config: Config):
        super().__init__(config)
        self.qkv_bias, self.o_bias, self.mlp_bias = config.flag("use_qkv_bias"), False, False
        self.head_norms = config.flag("qk_layernorm")  # StableLM 2 12B has both
        self.parallel = config.flag("use_parallel_residual")

    def read_norm_eps(self) -> float:
        return self.config.number("layer_norm_eps", default=1e-5)

    def head_norm(self, weights: Weights, theirs: str, heads: int, ours: str) -> Output:
        """Norms that differ from head to head, [heads, head_dim]."""
        norms = [f"{theirs}_layernorm.norms.{i}.weight" for i in range(heads)]
        rows = [from_weight(ours, weights.take(name, self.head_dim)) for name in norms]
        return replace(stacked(ours, rows), exact=True)
