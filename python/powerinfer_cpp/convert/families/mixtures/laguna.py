"""Laguna: a gate of what heads give, layers that differ in heads, windows and rotation."""

from collections.abc import Iterator

from ....core.errors import ModelFormatError
from ...config import Config
from ...rope import by_layer_type
from ...tensors import Output, Weights
from ...weight import Weight
from ...writer import Entry, float32, of_layers, replaced, uint32
from ..dense.near_llama import layer_windows
from .mixture import SIGMOID, Mixture

_PER_HEAD = {True: True, "per-head": True, "per-element": False}  # values of `gating`
_ROPE = {
    "full_attention": {"rope_theta": 500000.0, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_theta": 10000.0},
}


class Laguna(Mixture):
    architecture = "laguna"
    pairs = False
    has_rope_factors = False
    rotates_partly = True
    lists_windows = True
    gating = SIGMOID
    choice_bias = "experts.e_score_correction_bias"
    shared = "mlp.shared_expert"

    def __init__(self, config: Config):
        config = config.completed(head_dim=128, sliding_window=512)
        if config.values.get("rope_parameters") is None:
            config.values["rope_parameters"] = _ROPE
        full, windowed = by_layer_type(config)
        super().__init__(full)
        assert self.rope
        self.local = self.rope
        if windowed is not None:
            self.config = windowed
            self.local = self.read_rope()
            self.config = full
        if self.window and self.local.kind != "none":
            raise self.refuse("laguna with scaled RoPE in layers with a window")
        self.head_norms = True
        self.layer_heads = self.read_layer_heads()
        self.gate_per_head = self.read_gating()
        self.n_ff_shared = config.integer("shared_expert_intermediate_size", default=512, least=0)
        self.expert_scale = config.number("moe_routed_scaling_factor", default=1.0)
        if config.values.get("moe_router_logit_softcapping"):
            raise self.refuse("laguna with capped scores of experts (moe_router_logit_softcapping)")
        if config.flag("moe_apply_router_weight_on_input"):
            raise self.refuse("laguna with weighed inputs (moe_apply_router_weight_on_input)")

    def read_window(self) -> tuple[int, list[bool]]:
        """Without layer_types every layer sees all positions."""
        return layer_windows(self.config, self.n_layer, 0)

    def read_layer_heads(self) -> list[int]:
        key = "num_attention_heads_per_layer"
        heads = self.config.layer_switches(key, self.n_layer) or [self.n_head] * self.n_layer
        if not all(type(n) is int and n > 0 and n % self.n_head_kv == 0 for n in heads):
            raise ModelFormatError(
                f"{self.config.path}: {key} must have multiples of {self.n_head_kv} key-value heads"
            )
        return heads

    def read_gating(self) -> bool:
        """Whether a gate is for a whole head, and not for each of its values."""
        gating = self.config.values.get("gating", True)
        if not isinstance(gating, bool | str) or gating not in _PER_HEAD:
            raise self.refuse(f"laguna with gating {gating!r}")
        of_layers = self.config.layer_switches("gating_types", self.n_layer) or []
        kind = "per_head" if _PER_HEAD[gating] else "per_element"
        if other := [of_layer for of_layer in of_layers if of_layer != kind]:
            raise self.refuse(f"laguna with gating {gating!r} and gating_types {other[0]!r}")
        return _PER_HEAD[gating]

    def dense_layers(self) -> list[bool]:
        kinds = self.config.layer_switches("mlp_layer_types", self.n_layer)
        if kinds is None:
            return [i == 0 for i in range(self.n_layer)]
        if other := [kind for kind in kinds if kind not in ("dense", "sparse")]:
            raise self.refuse(f"laguna with layers of kind {other[0]!r} (mlp_layer_types)")
        return [kind == "dense" for kind in kinds]

    def entries(self) -> Iterator[Entry]:
        key = f"{self.architecture}.attention.head_count"
        yield from replaced(super().entries(), [of_layers(key, self.layer_heads)])
        yield float32(f"{self.architecture}.rope.freq_base_swa", self.local.theta)
        yield uint32(f"{self.architecture}.rope.dimension_count_swa", self.local.n_rot)

    def head_entries(self) -> Iterator[Entry]:
        """Always: the first layer's heads may be others than config.json's."""
        yield uint32(f"{self.architecture}.attention.key_length", self.head_dim)
        yield uint32(f"{self.architecture}.attention.value_length", self.head_dim)

    def heads_of(self, block: str) -> int:
        return self.layer_heads[int(block.removeprefix("blk."))]

    def attention(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        yield from super().attention(weights, theirs, block)
        n = self.heads_of(block) * (1 if self.gate_per_head else self.head_dim)
        name = f"{theirs}.g_proj"
        yield from self.linear(weights, name, f"{block}.attn_gate", (n, self.n_embd))

    def take_choice_bias(self, weights: Weights, theirs: str) -> Weight:
        """Newer transformers write it beside the router's matrix."""
        newer = theirs.replace(".experts.", ".gate.")
        return super().take_choice_bias(weights, newer if newer in weights else theirs)
