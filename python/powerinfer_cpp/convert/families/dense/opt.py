"""OPT: learned positions, LayerNorm before each block, biases everywhere, no gate."""

from collections.abc import Iterator

from ...config import Config
from ...tensors import Output, Weights, from_weight
from ..family import Family

PADDING = 2  # rows of the position table before position 0


class Opt(Family):
    architecture = "opt"
    tied = True
    root = "model.decoder."

    def __init__(self, config: Config):
        super().__init__(config)
        self.activation = config.activation("activation_function", "relu")
        removed = config.flag("_remove_final_layer_norm")
        if removed or not config.flag("do_layer_norm_before", True):
            raise self.refuse("OPT that normalises after its blocks (do_layer_norm_before off)")
        if config.integer("word_embed_proj_dim", default=self.n_embd) != self.n_embd:
            raise self.refuse("OPT whose embedding has a width of its own (word_embed_proj_dim)")
        if not config.flag("enable_bias", True):
            raise self.refuse("OPT without biases (enable_bias off)")
        if not config.flag("layer_norm_elementwise_affine", True):
            raise self.refuse("OPT without weights of its norms (layer_norm_elementwise_affine)")

    def read_n_head_kv(self) -> int:
        return self.n_head

    def read_n_ff(self) -> int:
        return self.config.integer("ffn_dim")

    def outputs(self, weights: Weights, transpose_down: bool) -> Iterator[Output]:
        decoder = "model.decoder"
        yield self.embedding(weights, f"{decoder}.embed_tokens")
        positions = weights.take(
            f"{decoder}.embed_positions.weight", self.n_ctx + PADDING, self.n_embd
        )
        yield from_weight("position_embd.weight", positions, exact=True)
        square = (self.n_embd, self.n_embd)
        for i in range(self.n_layer):
            theirs, block = f"{decoder}.layers.{i}", f"blk.{i}"
            name = f"{theirs}.self_attn_layer_norm"
            yield from self.norm(weights, name, f"{block}.attn_norm", True)
            for name, ours in (
                ("q_proj", "attn_q"),
                ("k_proj", "attn_k"),
                ("v_proj", "attn_v"),
                ("out_proj", "attn_output"),
            ):
                name = f"{theirs}.self_attn.{name}"
                yield from self.linear(weights, name, f"{block}.{ours}", square, True)
            yield from self.norm(weights, f"{theirs}.final_layer_norm", f"{block}.ffn_norm", True)
            shape = (self.n_ff, self.n_embd)
            yield from self.linear(weights, f"{theirs}.fc1", f"{block}.ffn_up", shape, True)
            yield from self.down(weights, f"{theirs}.fc2", block, transpose_down, True)
        yield from self.norm(weights, f"{decoder}.final_layer_norm", "output_norm", True)
        yield from self.head(weights)
