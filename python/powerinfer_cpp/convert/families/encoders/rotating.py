"""Relatives of BERT with RoPE and gates: Nomic's models and Alibaba's GTE ("new")."""

from collections.abc import Iterator

from ...config import Config
from ...rope import Rope
from ...tensors import Output, Weights, from_weight, some_rows
from .encoder import Encoder


class Rotating(Encoder):
    """LayerNorm behind both parts, queries, keys and values in one matrix."""

    embedding_norm = "embeddings.LayerNorm"

    def outputs(self, weights: Weights, transpose_down: bool) -> Iterator[Output]:
        yield self.embedding(weights, "embeddings.word_embeddings")
        types = "embeddings.token_type_embeddings.weight"
        if types in weights:
            yield self.table(weights, types, "token_types.weight")
        yield from self.norm(weights, self.embedding_norm, "token_embd_norm")
        for i in range(self.n_layer):
            yield from self.layer(weights, f"{self.layers}{i}", f"blk.{i}")
        yield from self.ranker(weights)

    def layer(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        raise NotImplementedError

    def ranker(self, weights: Weights) -> Iterator[Output]:
        if self.ranks:
            raise self.refuse(f"{self.architecture} that ranks")
        return iter(())

    def matrix(
        self, weights: Weights, theirs: str, ours: str, shape: tuple[int, int]
    ) -> Iterator[Output]:
        """A matrix, and its bias if there is one."""
        yield from self.linear(weights, theirs, ours, shape, f"{theirs}.bias" in weights)


class NomicBert(Rotating):
    architecture = "nomic-bert"
    names = {
        "n_embd": ("n_embd", "hidden_size"),
        "n_layer": ("n_layer", "num_hidden_layers"),
        "n_head": ("n_head", "num_attention_heads"),
        "n_ctx": ("max_trained_positions", "n_positions", "max_position_embeddings"),
    }
    layers = "encoder.layers."
    embedding_norm = "emb_ln"

    def __init__(self, config: Config):
        super().__init__(config)
        self.norm_eps = config.number("layer_norm_epsilon", "layer_norm_eps", default=1e-12)
        if config.values.get("activation_function", "swiglu") != "swiglu":
            raise self.refuse("nomic_bert with an activation_function that is not swiglu")
        self.activation = "silu"
        for name in (
            *("prenorm", "use_rms_norm", "parallel_block", "causal"),
            *("rotary_emb_interleaved", "scale_attn_by_inverse_layer_idx"),
        ):
            if config.flag(name):
                raise self.refuse(f"nomic_bert with {name}")
        if config.number("rotary_emb_fraction", default=1.0) != 1:
            raise self.refuse("nomic_bert with partial rotation (rotary_emb_fraction)")
        if config.integer("num_experts", default=0, least=0):
            raise self.refuse("nomic_bert with experts")
        for name in ("rotary_scaling_factor", "rotary_emb_scale_base"):
            if config.values.get(name):
                raise self.refuse(f"nomic_bert with {name}")
        config.known("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "max_trained_positions")
        self.rope = Rope(config.number("rotary_emb_base", default=10000.0), self.head_dim)

    def read_n_ff(self) -> int:
        return self.config.integer("n_inner", "intermediate_size")

    def layer(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        n, n_ff = self.n_embd, self.n_ff
        for name, ours, shape in (
            ("attn.Wqkv", "attn_qkv", (3 * n, n)),
            ("attn.out_proj", "attn_output", (n, n)),
            ("mlp.fc11", "ffn_up", (n_ff, n)),
            ("mlp.fc12", "ffn_gate", (n_ff, n)),
            ("mlp.fc2", "ffn_down", (n, n_ff)),
        ):
            yield from self.matrix(weights, f"{theirs}.{name}", f"{block}.{ours}", shape)
        yield from self.norm(weights, f"{theirs}.norm1", f"{block}.attn_output_norm")
        yield from self.norm(weights, f"{theirs}.norm2", f"{block}.layer_output_norm")


class Gte(Rotating):
    architecture = "gte"
    layers = "encoder.layer."
    has_pooler = True

    def __init__(self, config: Config):
        super().__init__(config)
        self.norm_eps = config.number("layer_norm_eps", default=1e-12)
        self.activation = config.activation("hidden_act", "gelu")
        if config.values.get("position_embedding_type", "rope") != "rope":
            raise self.refuse("gte without RoPE (position_embedding_type)")
        if config.values.get("layer_norm_type", "layer_norm") != "layer_norm":
            raise self.refuse("gte with other norms (layer_norm_type)")
        if config.flag("logn_attention_scale"):
            raise self.refuse("gte with logn_attention_scale")
        config.known("logn_attention_clip1", "pack_qkv", "unpad_inputs", "type_vocab_size")
        self.rope = self.read_rope()

    def layer(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        n, n_ff = self.n_embd, self.n_ff
        attention, mlp = f"{theirs}.attention", f"{theirs}.mlp"
        yield from self.matrix(weights, f"{attention}.qkv_proj", f"{block}.attn_qkv", (3 * n, n))
        yield from self.matrix(weights, f"{attention}.o_proj", f"{block}.attn_output", (n, n))
        yield from self.norm(weights, f"{theirs}.attn_ln", f"{block}.attn_output_norm")
        both = from_weight("", weights.take(f"{mlp}.up_gate_proj.weight", 2 * n_ff, n))
        yield some_rows(f"{block}.ffn_up.weight", both, 0, n_ff)
        yield some_rows(f"{block}.ffn_gate.weight", both, n_ff, n_ff)
        yield from self.matrix(weights, f"{mlp}.down_proj", f"{block}.ffn_down", (n, n_ff))
        yield from self.norm(weights, f"{theirs}.mlp_ln", f"{block}.layer_output_norm")
