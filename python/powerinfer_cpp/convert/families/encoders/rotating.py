"""Relatives of BERT with RoPE and gates: Nomic's models and Alibaba's GTE ("new")."""

from collections.abc import Iterator
from dataclasses import replace

from ...config import Config, section_number
from ...rope import Rope
from ...tensors import Output, Weights, from_weight, stacked, transposed
from ...writer import Entry, uint32
from ..family import Family
from .encoder import UP_GATE, Encoder, Form

_NOMIC = {
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.out_proj",
    "attn_output_norm": "norm1",
    "ffn_up": "mlp.fc11",
    "ffn_gate": "mlp.fc12",
    "ffn_down": "mlp.fc2",
    "layer_output_norm": "norm2",
}
_NOMIC_PLAIN = {name: _NOMIC[name] for name in _NOMIC if name != "ffn_gate"}
_NOMIC_PLAIN["ffn_up"] = "mlp.fc1"
_EXPERTS = "experts"  # of a layer, in the place of its matrices
_GTE = {
    "attn_qkv": "attention.qkv_proj",
    "attn_output": "attention.o_proj",
    "attn_output_norm": "attn_ln",
    UP_GATE: "mlp.up_gate_proj",
    "ffn_down": "mlp.down_proj",
    "layer_output_norm": "mlp_ln",
}
# As transformers 5 names what it reads of either.
FIVE = Form(
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
    forms: tuple[Form, ...] = (Form("encoder.layers.", _NOMIC, "emb_ln"), FIVE)
    default_types = 2
    rank_head: tuple[str, str] | None = ("pooler.dense", "classifier")

    def __init__(self, config: Config):
        super().__init__(config)
        published = "n_embd" in config.values
        self.norm_eps = config.number("layer_norm_epsilon", "layer_norm_eps", default=1e-12)
        self.read_activation()
        for name in (
            *("prenorm", "use_rms_norm", "parallel_block", "causal", "parallel_block_tied_norm"),
            *("rotary_emb_interleaved", "scale_attn_by_inverse_layer_idx"),
        ):
            if config.flag(name):
                raise self.refuse(f"nomic_bert with {name}")
        if config.number("rotary_emb_fraction", default=1.0) != 1:
            raise self.refuse("nomic_bert with partial rotation (rotary_emb_fraction)")
        if config.values.get("rotary_emb_scale_base"):
            raise self.refuse("nomic_bert with rotary_emb_scale_base")
        biased = [("qkv_proj_bias", _ATTENTION), ("mlp_fc1_bias", ("ffn_up", "ffn_gate"))]
        biased.append(("mlp_fc2_bias", ("ffn_down",)))
        self.biased = frozenset(
            part for key, parts in biased if config.flag(key, published) for part in parts
        )
        # Of how it is computed and trained.
        config.known("fused_bias_fc", "use_xentropy", "dense_seq_output", "max_trained_positions")
        config.known("pad_vocab_size_multiple", "add_pooling_layer")
        theta = config.number("rotary_emb_base", default=10000.0 if published else 1000.0)
        self.rope = self.read_rope(theta)
        if config.number("rotary_scaling_factor", default=1.0) > 1:
            # Of texts that are longer than those in training the base grows with the length.
            factor = config.number("rotary_scaling_factor")
            self.rope = replace(self.rope, kind="dynamic", factor=factor)

    def read_n_ff(self) -> int:
        return self.config.integer("n_inner", "intermediate_size")

    def read_activation(self) -> None:
        kind = self.config.values.get("activation_function", "swiglu")
        if kind != "swiglu" or self.config.values.get("hidden_act", "silu") != "silu":
            raise self.refuse("nomic_bert with an activation_function that is not swiglu")
        self.activation = "silu"


class NomicBertMoe(NomicBert):
    """One layer of each period has experts, the others a block without gates."""

    rank_head = None
    architecture = "nomic-bert-moe"
    forms = (Form("encoder.layers.", _NOMIC_PLAIN, "emb_ln"),)

    def __init__(self, config: Config):
        super().__init__(config)
        self.n_expert = config.integer("num_experts")
        self.n_expert_used = config.integer("moe_top_k")
        self.period = config.integer("moe_every_n_layers")
        for name in ("moe_normalize_expert_weights", "num_shared_experts", "expert_choice_router"):
            if config.values.get(name):
                raise self.refuse(f"nomic_bert with {name}")
        if config.integer("ffn_div", default=1) != 1:
            raise self.refuse("nomic_bert with ffn_div")
        config.known("moe_impl")  # how it is computed

    def read_activation(self) -> None:
        kind = self.config.values.get("activation_function")
        if kind != "gelu":
            raise self.refuse(f"nomic_bert with experts and activation_function {kind!r}")
        self.activation = "gelu"

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        yield uint32(f"{self.architecture}.moe_every_n_layers", self.period)

    def parts_of(self, form: Form, layer: int) -> dict[str, str]:
        if layer % self.period != 1:
            return form.parts
        kept = {part: name for part, name in form.parts.items() if not part.startswith("ffn")}
        return kept | {_EXPERTS: "mlp"}

    def part(self, weights: Weights, theirs: str, ours: str, part: str) -> Iterator[Output]:
        if part != _EXPERTS:
            yield from super().part(weights, theirs, ours, part)
            return
        n, n_ff, block = self.n_expert, self.n_ff, ours.removesuffix(f".{_EXPERTS}")
        router = weights.take(f"{theirs}.router.layer.weight", n, self.n_embd)
        yield from_weight(f"{block}.ffn_gate_inp.weight", router, exact=True)
        for name, ends, turn in (("w1", "ffn_up_exps", False), ("w2", "ffn_down_exps", True)):
            every = weights.take(f"{theirs}.experts.mlp.{name}", n * n_ff, self.n_embd)
            each = [every.between(e * n_ff, (e + 1) * n_ff) for e in range(n)]
            make = transposed if turn else from_weight
            yield stacked(f"{block}.{ends}.weight", [make("", expert) for expert in each])
        bias = f"{theirs}.experts.bias"
        # Of the sum. llama.cpp has no place for one that adds something.
        if bias in weights and (weight := weights.take(bias, self.n_embd)).stored().any():
            yield from_weight(f"{block}.ffn_exps.bias", weight)


def nomic_bert(config: Config) -> Family:
    """Nomic's models, with experts or without."""
    return NomicBertMoe(config) if config.values.peek("num_experts") else NomicBert(config)


class Gte(Encoder):
    architecture = "gte"
    forms = (Form("encoder.layer.", _GTE), FIVE)
    biased = frozenset((*_ATTENTION, "ffn_down"))
    default_types = 1
    rank_head = ("pooler.dense", "classifier")

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
        theta = 160000.0 if config.model_type() == "gte" else 10000.0
        self.rope = self.read_ntk(theta) or self.read_rope(theta)

    def read_ntk(self, default_theta: float) -> Rope | None:
        """The rotation whose base is multiplied by a factor, and whose frequencies are divided by
        the same power of it (https://kexue.fm/archives/9706): that is a linear scaling. None: it is
        another one."""
        values = self.config.values.get("rope_scaling")
        if not isinstance(values, dict) or values.get("type") != "ntk":
            return None
        if values.get("mixed_b") is not None:
            raise self.refuse("gte with rope_scaling of several bases (mixed_b)")
        factor = section_number(f"{self.config.path}: rope_scaling", values, "factor")
        theta = self.config.number("rope_theta", default=default_theta)
        return Rope(factor * theta, self.head_dim, "linear", factor ** (2 / self.head_dim))
