"""Step 3.5 and 3.7 Flash (text): layers with a window have more heads and another rotation, what
heads give is gated, and the last layers limit their experts' gates."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from ....core.errors import ModelFormatError
from ...config import Asked, Config
from ...tensors import Output, Weights, from_values, plus_one
from ...writer import Entry, array, of_layers, replaced, uint32
from ..dense.near_llama import layer_windows
from ..llama import stacked_experts
from .mixture import SIGMOID, Mixture
from .windowed import TwoRotations, dense_by_kind

_KINDS = ("full_attention", "sliding_attention")
_FIRST_MIXTURE = 3  # layer, where config.json does not say


class Step(TwoRotations, Mixture):
    architecture = "step35"
    default_eps = 1e-5
    rotates_partly = True
    expert_keys = ("moe_num_experts", "n_routed_experts", "num_local_experts")
    used_keys = ("moe_top_k", "num_experts_per_tok")
    moe = "moe"
    router = "gate"
    choice_bias = "router_bias"
    shared = "share_expert"
    gating = SIGMOID
    # Of the checkpoints that see images.
    left_out = re.compile(r"(model\.)?(vision_model|vit_large_projector)\..+")

    def __init__(self, config: Config):
        text = config.section("text_config")
        if text is not config:
            config.known("vision_config", "projector_bias", "tie_word_embeddings")
        text = text.completed(**_STEP)
        n_layer = text.integer("num_hidden_layers")
        kinds = text.layer_switches("layer_types", n_layer) or [_KINDS[0]] * n_layer
        other = text.section("attention_other_setting")
        found = other.integer("num_attention_heads") if other is not text else None
        n_other = text.integer("num_sliding_attention_heads", default=found or _heads(text))
        text.values["rope_parameters"] = _rotations(text, kinds)
        super().__init__(text)
        self.heads = [n_other if kind == _KINDS[1] else self.n_head for kind in kinds]
        if other is not text:
            for key, usual in (
                ("num_attention_groups", self.n_head_kv),
                ("head_dim", self.head_dim),
            ):
                if other.integer(key, default=usual) != usual:
                    raise self.refuse(f"step35 with another {key} in layers with a window")
            other.known("attention_type")
        if any(n % self.n_head_kv for n in self.heads):
            raise ModelFormatError(
                f"{config.path}: {n_other} heads are not a multiple of {self.n_head_kv} key-value "
                "heads"
            )
        self.head_norms = True
        self.expert_scale = text.number("moe_router_scaling_factor")
        self.n_ff_shared = text.integer("share_expert_dim", "share_expert_dims")
        self.limits = [_limits(text, key, n_layer) for key in ("swiglu_limits", _SHARED_LIMITS)]
        self.check(text)

    def check(self, text: Config) -> None:
        for key in (
            *("use_qk_norm", "use_head_wise_attn_gate", "use_moe", "norm_expert_weight"),
            "zero_centered",
        ):
            if not text.flag(key, True):
                raise self.refuse(f"step35 without {key}")
        if not text.flag("use_moe_router_bias", True):
            self.choice_bias = ""
        if text.values.get("moe_router_activation") not in (None, "sigmoid"):
            raise self.refuse("step35 whose scores are no sigmoids (moe_router_activation)")
        for key, usual in (("moe_every_n_layer", 1), ("moe_layer_offset", 0)):
            if text.integer(key, default=usual, least=0) != usual:
                raise self.refuse(f"step35 with experts in some layers only ({key})")
        if text.number("query_pre_attn_scalar", default=float(self.head_dim)) != self.head_dim:
            raise self.refuse("step35 with another scale of scores (query_pre_attn_scalar)")
        text.known("need_fp32_gate", "mtp_layer_types", "mtp_mlp_layer_types")
        text.known("per_layer_config", "yarn_only_types", "moe_layers_enum", "num_mtp_layers")

    def read_n_head_kv(self) -> int:
        return self.config.integer("num_attention_groups", "num_key_value_heads", default=8)

    def dense_layers(self) -> list[bool]:
        listed: Any = self.config.values.get("moe_layers_enum")
        if self.config.values.get("mlp_layer_types") is not None or listed is None:
            return dense_by_kind(self.config, self.n_layer, _FIRST_MIXTURE)
        names = listed.split(",") if isinstance(listed, str) else listed
        if not isinstance(names, list) or not all(str(i).strip().isdecimal() for i in names):
            raise ModelFormatError(f"{self.config.path}: moe_layers_enum must be a list of layers")
        mixtures = {int(i) for i in names}
        return [i not in mixtures for i in range(self.n_layer)]

    def read_window(self) -> tuple[int, list[bool]]:
        return layer_windows(self.config, self.n_layer, 0)

    def heads_of(self, block: str) -> int:
        return self.heads[int(block.removeprefix("blk."))]

    @property
    def usual_widths(self) -> bool:
        """Whether a half of each head rotates, and the whole one in layers with a window, as
        llama.cpp has it without a key."""
        assert self.rope
        return 2 * self.rope.n_rot == self.head_dim == self.local.n_rot

    def entries(self) -> Iterator[Entry]:
        for entry in replaced(super().entries(), self._own_entries()):
            if entry.key != "step35.rope.dimension_count" or not self.usual_widths:
                yield entry

    def _own_entries(self) -> Iterator[Entry]:
        yield of_layers("step35.attention.head_count", self.heads)
        yield uint32("step35.attention.key_length", self.head_dim)
        yield uint32("step35.attention.value_length", self.head_dim)
        if not self.usual_widths:
            yield uint32("step35.rope.dimension_count_swa", self.local.n_rot)
        for key, values in zip(("exp", "shexp"), self.limits, strict=True):
            if any(values):
                yield array(f"step35.swiglu_clamp_{key}", "FLOAT32", values)

    def outputs(self, weights: Weights, transpose_down: bool) -> Iterator[Output]:
        assert self.rope
        if transpose_down and any(map(any, self.limits)):
            raise self.refuse("neuron rows with limits of gates (swiglu_limits)")
        for output in super().outputs(weights, transpose_down):
            if output.name != "rope_freqs.weight":
                yield output
                continue
            # As long as for a whole head, as llama.cpp has them.
            divisors = np.ones(self.head_dim // 2, np.float32)
            own = self.rope.divisors
            assert own is not None
            divisors[: len(own)] = own
            yield from_values(output.name, divisors)

    def norm(
        self, weights: Weights, theirs: str, ours: str, bias: bool = False
    ) -> Iterator[Output]:
        """They multiply by 1 + weight."""
        yield plus_one(f"{ours}.weight", weights.take(f"{theirs}.weight", self.n_embd))

    def head_norm(self, weights: Weights, theirs: str, _heads: int, ours: str) -> Output:
        return plus_one(ours, weights.take(f"{theirs}_norm.weight", self.head_dim))

    def attention(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        yield from super().attention(weights, theirs, block)
        shape = (self.heads_of(block), self.n_embd)
        yield from self.linear(weights, f"{theirs}.g_proj", f"{block}.attn_gate", shape)

    def experts(
        self, weights: Weights, router: str, expert: str, block: str, turn: bool
    ) -> Iterator[Output]:
        """Those of a layer are in one tensor for each of gate, up and down."""
        yield self.router_of(weights, router, block)
        moe = router.removesuffix(f".{self.router}")
        for part in ("gate", "up", "down"):
            shape = (self.n_ff, self.n_embd)
            shape = shape[::-1] if part == "down" else shape
            all_of = weights.take(f"{moe}.{part}_proj.weight", self.n_expert, *shape)
            experts = [all_of.of(i) for i in range(self.n_expert)]
            yield stacked_experts(block, part, experts, turn)


_SHARED_LIMITS = "swiglu_limits_shared"
# Of what config.json may leave out.
_STEP = {
    "head_dim": 128,
    "moe_intermediate_size": 1280,
    "moe_router_scaling_factor": 1.0,
    "share_expert_dim": 1280,
}


def _heads(text: Config) -> int:
    return text.integer("num_attention_heads")


def _limits(text: Config, key: str, n_layer: int) -> list[float]:
    """A limit for each layer; 0: none."""
    values = text.layer_switches(key, n_layer)
    limits = [0.0 if value is None else value for value in values or [0.0] * n_layer]
    wrong = [v for v in limits if isinstance(v, bool) or not isinstance(v, int | float) or v < 0]
    if wrong:
        raise ModelFormatError(f"{text.path}: {key} has {wrong[0]!r}")
    return [float(value) for value in limits]


def _rotations(text: Config, kinds: list[Any]) -> dict[str, Any]:
    """The rotation of each kind of layers, which published files give for each layer."""
    newer = text.values.get("rope_parameters")
    if isinstance(newer, dict) and all(isinstance(newer.get(kind), dict) for kind in kinds):
        return {kind: newer.get(kind) or newer[kinds[0]] for kind in _KINDS}
    n_layer = len(kinds)
    bases = text.values.get("rope_theta")
    if not isinstance(bases, list):
        bases = [10000.0 if bases is None else bases] * n_layer
    text.values["rope_theta"] = bases
    bases = text.layer_switches("rope_theta", n_layer)
    parts = text.layer_switches("partial_rotary_factors", n_layer)
    scaling = text.values.get("rope_scaling")
    found: dict[str, Any] = {}
    for i, kind in enumerate(kinds):
        own = {"rope_type": "default", "rope_theta": (bases or [])[i]}
        if parts is not None:
            own["partial_rotary_factor"] = parts[i]
        if kind == _KINDS[0] and isinstance(scaling, Asked):
            own = Asked({**own, **scaling}, scaling.asked)
        if found.setdefault(kind, own) != own:
            raise ModelFormatError(
                f"{text.path}: rope_theta and partial_rotary_factors differ in layers of one kind"
            )
    del text.values["rope_theta"]
    text.values.pop("rope_scaling", None)
    return {kind: found.get(kind) or found[kinds[0]] for kind in _KINDS}
