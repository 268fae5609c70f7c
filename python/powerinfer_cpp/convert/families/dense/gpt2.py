"""GPT-2: learned positions, LayerNorm before each block, biases everywhere, no gate.

Its matrices are [inputs, outputs], the transposes of everyone else's.
"""

from collections.abc import Iterator

from ...config import Config
from ...tensors import Output, Weights, from_weight, transposed
from ..family import Family


class Gpt2(Family):
    architecture = "gpt2"
    names = {
        "n_embd": ("n_embd", "hidden_size"),
        "n_layer": ("n_layer", "num_hidden_layers"),
        "n_head": ("n_head", "num_attention_heads"),
        "n_ctx": ("n_positions", "n_ctx", "max_position_embeddings"),
    }
    tied = True
    root, first, layers = "transformer.", "wte.weight", "h."
    inputs_first = True

    def __init__(self, config: Config):
        super().__init__(config)
        self.norm_eps = config.number("layer_norm_epsilon", default=1e-5)
        self.activation = config.activation("activation_function", "gelu_tanh")
        if not config.flag("scale_attn_weights", True):
            raise self.refuse("GPT-2 with unscaled attention (scale_attn_weights off)")
        if config.flag("scale_attn_by_inverse_layer_idx"):
            raise self.refuse("GPT-2 with scale_attn_by_inverse_layer_idx")
        if config.flag("add_cross_attention"):
            raise self.refuse("GPT-2 with cross attention")

    def read_n_head_kv(self) -> int:
        return self.n_head

    def read_n_ff(self) -> int:
        return self.config.integer("n_inner", default=4 * self.n_embd)

    def outputs(self, weights: Weights, transpose_down: bool) -> Iterator[Output]:
        yield self.embedding(weights, "transformer.wte")
        positions = weights.take("transformer.wpe.weight", self.n_ctx, self.n_embd)
        yield from_weight("position_embd.weight", positions, exact=True)
        for i in range(self.n_layer):
            theirs, block = f"transformer.h.{i}", f"blk.{i}"
            yield from self.norm(weights, f"{theirs}.ln_1", f"{block}.attn_norm", True)
            for name, ours, n in (("c_attn", "attn_qkv", 3), ("c_proj", "attn_output", 1)):
                yield from self.turned(
                    weights, f"{theirs}.attn.{name}", f"{block}.{ours}", n * self.n_embd
                )
            yield from self.norm(weights, f"{theirs}.ln_2", f"{block}.ffn_norm", True)
            yield from self.turned(weights, f"{theirs}.mlp.c_fc", f"{block}.ffn_up", self.n_ff)
            yield from self.down(weights, f"{theirs}.mlp.c_proj", block, transpose_down, True)
        yield from self.norm(weights, "transformer.ln_f", "output_norm", True)
        yield from self.head(weights)

    def turned(self, weights: Weights, theirs: str, ours: str, n: int) -> Iterator[Output]:
        """A matrix with n outputs that the checkpoint has transposed, and its bias."""
        yield transposed(f"{ours}.weight", weights.take(f"{theirs}.weight", self.n_embd, n))
        yield from_weight(f"{ours}.bias", weights.take(f"{theirs}.bias", n))

    def down(
        self, weights: Weights, theirs: str, block: str, turn: bool, bias: bool
    ) -> Iterator[Output]:
        name = f"{block}.ffn_down_t" if turn else f"{block}.ffn_down"
        weight = weights.take(f"{theirs}.weight", self.n_ff, self.n_embd)
        yield (from_weight if turn else transposed)(f"{name}.weight", weight)
        if bias:
            yield from_weight(f"{name}.bias", weights.take(f"{theirs}.bias", self.n_embd))
