"""Relatives of BERT with RoPE and gates: Nomic's models and Alibaba's GTE ("new")."""

from collections.abc import Iterator

from ...config import Config
from ...tensors import Output, Weights, from_weight, some_rows
from .encoder import Encoder, Form

_NOMIC = {
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.out_proj",
    "attn_output_norm": "norm1",
    "ffn_up": "mlp.fc11",
    "ffn_gate": "mlp.fc12",
    "ffn_down": "mlp.fc2",
    "layer_output_norm": "norm2",
}
_BOTH = "ffn_up_gate"  # not a GGUF's: the rows of both, gates behind
_GTE = {
    "attn_qkv": "attention.qkv_proj",
    "attn_output": "attention.o_proj",
    "attn_output_norm": "attn_ln",
    _BOTH: "mlp.up_gate_proj",
    "ffn_down": "mlp.down_proj",
    "layer_output_norm": "mlp_ln",
}
# As transformers 5 names what it reads of either.
_FIVE = Form(
    "layers.",
    {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_output_norm": "post_attention_layernorm",
        "ffn_up": "mlp.up_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_down": "mlp.down_proj",
        "layer_output_norm": "post_mlp_layernorm",
    },
)
_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output")


class NomicBert(Encoder):
    architecture = "nomic-bert"
    # Published files have other names than those that transformers 5 writes.
    names = {
        "n_embd": ("n_embd", "hidden_size"),
        "n_layer": ("n_layer", "num_hidden_layers"),
        "n_head": ("n_head", "num_attention_heads"),
        "n_ctx": ("max_trained_positions", "n_positions", "max_position_embeddings"),
    }
    forms = (Form("encoder.layers.", _NOMIC, "emb_ln"), _FIVE)
    default_types = 2

    def __init__(self, config: Config):
        super().__init__(config)
        published = "n_embd" in config.values
        self.norm_eps = config.number("layer_norm_epsilon", "layer_norm_eps", default=1e-12)
        kind = config.values.get("activation_function", "swiglu")
        if kind != "swiglu" or config.values.get("hidden_act", "silu") != "silu":
            raise self.refuse("nomic_bert with an activation_function that is not swiglu")
        self.activation = "silu"
        for name in (
            *("prenorm", "use_rms_norm", "parallel_block", "causal", "parallel_block_tied_norm"),
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
        biased = [("qkv_proj_bias", _ATTENTION), ("mlp_fc1_bias", ("ffn_up", "ffn_gate"))]
        biased.append(("mlp_fc2_bias", ("ffn_down",)))
        self.biased = frozenset(
            part for key, parts in biased if config.flag(key, published) for part in parts
        )
        # Of how it is computed and trained.
        config.known("fused_bias_fc", "use_xentropy", "dense_seq_output", "max_trained_positions")
        config.known("pad_vocab_size_multiple")
        theta = config.number("rotary_emb_base", default=10000.0 if published else 1000.0)
        self.rope = self.read_rope(theta)

    def read_n_ff(self) -> int:
        return self.config.integer("n_inner", "intermediate_size")


class Gte(Encoder):
    architecture = "gte"
    forms = (Form("encoder.layer.", _GTE), _FIVE)
    biased = frozenset((*_ATTENTION, "ffn_down"))
    default_types = 1

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
        # Of how it is computed.
        config.known("logn_attention_clip1", "pack_qkv", "unpad_inputs")
        config.known("use_memory_efficient_attention")
        self.rope = self.read_rope(160000.0 if config.model_type() == "gte" else 10000.0)

    def part(self, weights: Weights, theirs: str, ours: str, part: str) -> Iterator[Output]:
        if part != _BOTH:
            yield from super().part(weights, theirs, ours, part)
            return
        both = from_weight("", weights.take(f"{theirs}.weight", 2 * self.n_ff, self.n_embd))
        for i, name in enumerate(("ffn_up", "ffn_gate")):
            yield some_rows(f"{ours.replace(_BOTH, name)}.weight", both, i * self.n_ff, self.n_ff)
