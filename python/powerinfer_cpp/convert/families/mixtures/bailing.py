"""Ling 2 and Ring 2: fused queries, keys and values, and the router of DeepSeek V3."""

from collections.abc import Iterator

from ...config import Config
from ...rope import Rope
from ...tensors import Output, Weights, from_weight
from .mixture import GroupedMixture, GuessesBehind

_V2 = "BailingMoeV2ForCausalLM"


class BailingMoe(GuessesBehind, GroupedMixture):
    """Version 2; the first one has the same model_type."""

    architecture = "bailingmoe2"
    pairs = False
    default_theta = 600000.0
    rotates_partly = True
    has_rope_factors = False
    first = "word_embeddings.weight"
    expert_keys = ("num_experts",)
    choice_bias = "gate.expert_bias"
    last_guess_norm = "layer_output_norm"
    default_dense = 1

    def __init__(self, config: Config):
        if config.values.get("architectures") != [_V2]:
            self.config = config
            raise self.refuse(f"bailing_moe other than {_V2} (architectures)")
        n_shared = config.values.get("num_shared_experts", 1) or 0
        super().__init__(
            config.completed(head_dim=128, n_group=8, topk_group=4, n_shared_experts=n_shared)
        )
        self.qkv_bias = config.flag("use_qkv_bias")
        self.o_bias = config.flag("use_bias")
        width = config.values.get("moe_shared_expert_intermediate_size")
        if self.n_shared and width is not None:
            self.n_ff_shared = config.integer("moe_shared_expert_intermediate_size")
        for key in ("use_qk_norm", "use_rmsnorm"):
            if not config.flag(key, True):
                raise self.refuse(f"bailing_moe without {key}")
        if config.values.get("score_function") not in (None, "sigmoid"):
            raise self.refuse("bailing_moe whose scores are no sigmoids (score_function)")
        if not config.flag("moe_router_enable_expert_bias", True):
            self.choice_bias = ""
        config.known("router_dtype", "max_window_layers", "use_sliding_window")

    def read_rope(self, default_theta: float = 10000.0) -> Rope:
        """rotary_dim says the same as partial_rotary_factor, and may stand alone."""
        values = self.config.values
        if values.get("rotary_dim") is None:
            if values.get("partial_rotary_factor") is None:
                raise self.refuse("bailing_moe without rotary_dim and partial_rotary_factor")
            return super().read_rope(default_theta)
        n_rot = self.config.integer("rotary_dim")
        self.default_part = n_rot / self.head_dim
        rope = super().read_rope(default_theta)
        if rope.n_rot != n_rot:
            raise self.refuse("bailing_moe whose rotary_dim and partial_rotary_factor differ")
        return rope

    def attention(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        theirs = theirs.removesuffix("self_attn") + "attention"
        shape = (self.n_q + 2 * self.n_kv, self.n_embd)
        name = f"{theirs}.query_key_value"
        yield from self.linear(weights, name, f"{block}.attn_qkv", shape, self.qkv_bias)
        for part in ("query", "key"):
            weight = weights.take(f"{theirs}.{part}_layernorm.weight", self.head_dim)
            yield from_weight(f"{block}.attn_{part[0]}_norm.weight", weight)
        shape = (self.n_embd, self.n_q)
        name = f"{theirs}.dense"
        yield from self.linear(weights, name, f"{block}.attn_output", shape, self.o_bias)
