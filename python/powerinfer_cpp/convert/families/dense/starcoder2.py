"""StarCoder 2: LayerNorm, biases everywhere, rotary positions, no gate."""

from collections.abc import Iterator

from ...config import Config
from ...tensors import Output, Weights
from ..family import read_window
from ..llama import Llama


class StarCoder2(Llama):
    architecture = "starcoder2"
    norm_epsilon = "layer_norm_epsilon"
    pairs = False
    norm_bias = True
    default_activation = "gelu_tanh"
    has_rope_factors = False
    tied = True

    def __init__(self, config: Config):
        super().__init__(config.completed(num_key_value_heads=2))
        biased = config.flag("use_bias", True)
        self.qkv_bias = self.o_bias = self.mlp_bias = biased
        # Keys of the published checkpoints, which transformers does not read.
        for key, usual in (("norm_type", "layer_norm"), ("mlp_type", "default")):
            if config.values.get(key) not in (None, usual):
                raise self.refuse(f"starcoder2 with {key} {config.values[key]!r}")

    def read_norm_eps(self) -> float:
        return self.config.number("norm_epsilon", default=1e-5)

    def read_window(self) -> tuple[int, list[bool]]:
        return read_window(self.config, self.n_layer, self.n_ctx)

    def ffn(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        name, shape = f"{theirs}.mlp.c_fc", (self.n_ff, self.n_embd)
        yield from self.linear(weights, name, f"{block}.ffn_up", shape, self.mlp_bias)
        name = f"{theirs}.mlp.c_proj"
        yield from self.down(weights, name, block, transpose_down, self.mlp_bias)
