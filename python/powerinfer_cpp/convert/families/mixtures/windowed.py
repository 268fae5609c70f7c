"""Mixtures with sliding windows in most layers: Trinity, K-EXAONE, Mellum 2, MiMo V2, Command A+,
and what Step 3.5 shares with them."""

from collections.abc import Iterator
from typing import Any

from ....core.errors import ModelFormatError
from ...config import Config
from ...rope import by_layer_type
from ...tensors import Output, Weights, from_weight
from ...weight import Weight
from ...writer import Entry, boolean, float32, of_layers, replaced, uint32
from ..dense.near_llama import Cohere2, Exaone4, layer_kinds, layer_windows, rotation_entries
from ..llama import Llama, NormsAround
from .mixture import SIGMOID, GroupedMixture, Mixture

_PERIOD = 4  # the last layer of each sees all positions, where config.json does not say
_OF_CHOSEN = 3  # expert_gating_func: a softmax over the chosen experts


def dense_by_kind(config: Config, n_layer: int, n_dense: int) -> list[bool]:
    """Which layers have no experts, by mlp_layer_types; without it the first n_dense."""
    kinds = config.layer_switches("mlp_layer_types", n_layer)
    if kinds is None:
        return [i < n_dense for i in range(n_layer)]
    if wrong := [kind for kind in kinds if kind not in ("dense", "sparse")]:
        raise ModelFormatError(f"{config.path}: mlp_layer_types has {wrong[0]!r}")
    return [kind == "dense" for kind in kinds]


class Trinity(NormsAround, Mixture):
    """Norms before and behind both parts, a gate for what the heads give, and a rotation only in
    layers with a window."""

    architecture = "afmoe"
    norms_around = ("input", "post_attention", "pre_mlp", "post_mlp")
    pairs = False
    default_eps = 1e-5
    has_rope_factors = False
    window_period = _PERIOD
    router = "router.gate"
    choice_bias = "expert_bias"
    shared = "mlp.shared_experts"
    gating = SIGMOID

    def __init__(self, config: Config):
        config = config.completed(**_TRINITY)
        super().__init__(config)
        self.head_norms = True
        self.share(config.integer("num_shared_experts", least=0))
        self.expert_scale = config.number("route_scale")
        self.normalise = config.flag("route_norm", True)
        if config.values.get("score_func") not in (None, "sigmoid"):
            raise self.refuse("afmoe whose scores are no sigmoids (score_func)")
        for key in ("n_group", "topk_group", "num_expert_groups", "num_limited_groups"):
            if config.integer(key, default=1) != 1:
                raise self.refuse(f"afmoe with groups of experts ({key})")
        config.known("load_balance_coeff")
        self.scales_embedding = config.flag("mup_enabled")
        if not self.scales_embedding:
            self.notes.append(
                "llama.cpp multiplies afmoe's embeddings by the root of their width even without "
                "mup_enabled, which gives other text"
            )

    def dense_layers(self) -> list[bool]:
        n_dense = self.config.integer("num_dense_layers", default=0, least=0)
        return [i < n_dense for i in range(self.n_layer)]

    def read_window(self) -> tuple[int, list[bool]]:
        period = self.config.integer("global_attn_every_n_layers", default=_PERIOD)
        return layer_windows(self.config, self.n_layer, period)

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        if not self.scales_embedding:  # our own key
            yield float32("afmoe.embedding_scale", 1.0)

    def attention(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        yield from super().attention(weights, theirs, block)
        shape = (self.n_q, self.n_embd)
        yield from self.linear(weights, f"{theirs}.gate_proj", f"{block}.attn_gate", shape)


# Of what config.json may leave out, here and below.
_TRINITY = {
    "head_dim": 128,
    "moe_intermediate_size": 1408,
    "mup_enabled": False,
    "num_dense_layers": 1,
    "num_experts": 64,
    "num_experts_per_tok": 6,
    "num_shared_experts": 2,
    "route_scale": 1.0,
    "sliding_window": 1024,
}


class ExaoneMoe(GroupedMixture, Exaone4):
    """EXAONE 4's attention, with norms before both parts."""

    architecture = "exaone-moe"
    expert_keys = ("num_experts",)
    shared_keys = ("num_shared_experts",)
    choice_bias = "e_score_correction_bias"
    default_dense = 1
    default_shared = 1
    default_normalise = True
    default_scale = 2.5

    def __init__(self, config: Config):
        super().__init__(config.completed(**_EXAONE))

    def dense_layers(self) -> list[bool]:
        n_dense = sum(super().dense_layers())
        return dense_by_kind(self.config, self.n_layer, n_dense)

    def layer(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        yield from Llama.layer(self, weights, theirs, block, transpose_down)

    def take_choice_bias(self, weights: Weights, theirs: str) -> Weight:
        inside = f"{theirs.removesuffix(self.choice_bias)}gate.{self.choice_bias}"
        return super().take_choice_bias(weights, inside if inside in weights else theirs)


_EXAONE = {
    "moe_intermediate_size": 1024,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 32,
}


class TwoRotations(Llama):
    """Layers with a window have a rotation of their own, which is not scaled."""

    pairs = False
    lists_windows = True

    def __init__(self, config: Config):
        config, windowed = by_layer_type(config)
        super().__init__(config)
        assert self.rope
        self.local = self.rope
        if windowed is not None:
            self.config = windowed
            self.local = self.read_rope(self.default_theta)
            self.config = config
        if self.window and (self.local.kind != "none" or self.local.divisors is not None):
            raise self.refuse(f"{self.architecture} with scaled RoPE in layers with a window")

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        if self.window:
            yield float32(f"{self.architecture}.rope.freq_base_swa", self.local.theta)


class Mellum(TwoRotations, Mixture):
    """Qwen 3's mixtures with windows."""

    architecture = "mellum"
    expert_keys = ("num_local_experts", "num_experts")
    has_rope_factors = False
    default_theta = 500000.0

    def __init__(self, config: Config):
        config = config.completed(**_MELLUM)
        if config.values.get("rope_parameters") is None:
            config.values["rope_parameters"] = _MELLUM_ROTATIONS
        super().__init__(config)
        self.head_norms = True
        self.normalise = config.flag("norm_topk_prob", True)
        config.known("mtp_layer_types", "mtp_mlp_layer_types", "num_mtp_layers")

    def read_n_ff(self) -> int:
        return self.config.integer("intermediate_size")

    def dense_layers(self) -> list[bool]:
        return dense_by_kind(self.config, self.n_layer, 0)

    def read_window(self) -> tuple[int, list[bool]]:
        return layer_windows(self.config, self.n_layer, 0)


_MELLUM = {
    "head_dim": 128,
    "intermediate_size": 7168,
    "moe_intermediate_size": 896,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 4,
    "sliding_window": 1024,
}
_MELLUM_ROTATIONS = {
    "full_attention": {"rope_type": "default", "rope_theta": 500000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}


class MiMoV2(TwoRotations, GroupedMixture):
    """Values narrower than keys and multiplied by a factor; in layers with a window sinks, and
    another number of key heads."""

    architecture = "mimo2"
    expert_keys = ("num_local_experts", "n_routed_experts")
    has_rope_factors = False
    default_eps = 1e-5
    default_theta = 5000000.0
    default_part = 0.334
    rotates_partly = True
    default_normalise = True

    def __init__(self, config: Config):
        config = config.completed(**_MIMO)
        if config.values.get("rope_parameters") is None:
            config.values["rope_parameters"] = _mimo_rotations(config)
        super().__init__(config)
        self.o_bias = False
        self.v_head_dim = config.integer("v_head_dim")
        for key, usual in (
            ("swa_head_dim", self.head_dim),
            ("swa_v_head_dim", self.v_head_dim),
            ("swa_num_attention_heads", self.n_head),
        ):
            if config.integer(key, default=usual) != usual:
                raise self.refuse(f"mimo2 with other heads in layers with a window ({key})")
        n_kv = config.integer("swa_num_key_value_heads", default=2 * self.n_head_kv)
        self.slides = self.slides or [False] * self.n_layer
        self.kv_heads = [n_kv if slides else self.n_head_kv for slides in self.slides]
        if any(self.n_head % n for n in self.kv_heads):
            raise ModelFormatError(
                f"{config.path}: {self.n_head} heads are not a multiple of {n_kv} key-value heads"
            )
        self.sinks = (
            config.flag("add_full_attention_sink_bias"),
            config.flag("add_swa_attention_sink_bias", True),
        )
        scale = config.values.get("attention_value_scale")
        self.value_scale = 1.0 if scale is None else config.number("attention_value_scale")
        config.known("attention_chunk_size", "hybrid_block_size")
        if self.n_shared:
            raise self.refuse("mimo2 with experts that every token computes (n_shared_experts)")

    def read_norm_eps(self) -> float:
        return self.config.number("rms_norm_eps", "layernorm_epsilon", default=self.default_eps)

    def read_window(self) -> tuple[int, list[bool]]:
        """sliding_window_size does not count a position itself."""
        config = self.config.completed()
        size = config.values.get("sliding_window_size")
        if size is not None:
            config.values["sliding_window"] = config.integer("sliding_window_size") + 1
        if config.values.get("layer_types") is None:
            flags = config.layer_switches("hybrid_layer_pattern", self.n_layer)
            if flags is None:
                flags = [i > 0 and (i + 1) % 6 != 0 for i in range(self.n_layer)]
            config.values["layer_types"] = layer_kinds([bool(flag) for flag in flags])
        config.known("hybrid_layer_pattern", "sliding_window")
        return layer_windows(config, self.n_layer, 0)

    def dense_layers(self) -> list[bool]:
        flags = self.config.layer_switches("moe_layer_freq", self.n_layer)
        if flags is None or self.config.values.get("mlp_layer_types") is not None:
            return dense_by_kind(self.config, self.n_layer, 1)
        return [not flag for flag in flags]

    def entries(self) -> Iterator[Entry]:
        return replaced(super().entries(), self._own_entries())

    def _own_entries(self) -> Iterator[Entry]:
        yield of_layers("mimo2.attention.head_count_kv", self.kv_heads)
        yield uint32("mimo2.attention.key_length", self.head_dim)
        yield uint32("mimo2.attention.value_length", self.v_head_dim)
        if self.value_scale != 1:
            yield float32("mimo2.attention.value_scale", self.value_scale)

    def attention(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        i = int(block.removeprefix("blk."))
        n_q, n_kv = self.n_head * self.head_dim, self.kv_heads[i]
        heads = {"q": n_q, "k": n_kv * self.head_dim, "v": n_kv * self.v_head_dim}
        if f"{theirs}.qkv_proj.weight" in weights:  # MiMo V2.5
            shape = (sum(heads.values()), self.n_embd)
            yield from self.linear(
                weights, f"{theirs}.qkv_proj", f"{block}.attn_qkv", shape, self.qkv_bias
            )
        else:
            for part, n in heads.items():
                name, shape = f"{theirs}.{part}_proj", (n, self.n_embd)
                yield from self.linear(weights, name, f"{block}.attn_{part}", shape, self.qkv_bias)
        shape = (self.n_embd, self.n_head * self.v_head_dim)
        yield from self.linear(weights, f"{theirs}.o_proj", f"{block}.attn_output", shape)
        if self.sinks[self.slides[i]]:
            newer = f"{theirs}.sinks"
            name = newer if newer in weights else f"{theirs}.attention_sink_bias"
            yield from_weight(f"{block}.attn_sinks.weight", weights.take(name, self.n_head))


_MIMO = {
    "attention_value_scale": 0.707,
    "head_dim": 192,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 4,
    "sliding_window": 129,
    "v_head_dim": 128,
}


def _mimo_rotations(config: Config) -> dict[str, Any]:
    """Of published files, as newer ones have them."""
    part = config.number("partial_rotary_factor", default=0.334)
    bases = {
        "full_attention": config.number("rope_theta", default=5000000.0),
        "sliding_attention": config.number("swa_rope_theta", default=10000.0),
    }
    config.known("partial_rotary_factor", "rope_theta", "swa_rope_theta")
    return {
        kind: {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": part}
        for kind, base in bases.items()
    }


class Cohere2Moe(Mixture, Cohere2):
    """Attention and experts read one norm; what experts and the shared ones give is averaged."""

    architecture = "cohere2moe"
    lists_windows = True
    expert_keys = ("num_experts",)
    width_keys = ("intermediate_size",)
    shared = "mlp.shared_experts"

    def __init__(self, config: Config):
        config = config.completed(**_COHERE)
        self.n_dense = config.integer("first_k_dense_replace", default=0, least=0)
        super().__init__(config)
        self.centred = config.values.get("rms_norm_eps") is None
        self.norm_epsilon = f"layer_norm_{'' if self.centred else 'rms_'}epsilon"
        self.share(config.integer("num_shared_experts", least=0))
        kind = config.values.get("expert_selection_fn")
        if kind not in ("softmax", "sigmoid"):
            raise self.refuse(f"cohere2_moe with an expert_selection_fn of {kind!r}")
        self.gating = SIGMOID if kind == "sigmoid" else _OF_CHOSEN
        self.normalise = kind == "sigmoid" and config.flag("norm_topk_prob", True)
        config.known("norm_topk_prob")
        how = config.values.get("shared_expert_combination_strategy")
        if how not in ("average", "sum"):
            raise self.refuse(f"a shared_expert_combination_strategy of {how!r}")
        self.averages = how == "average"
        if self.n_shared and not self.averages:
            self.notes.append(
                "llama.cpp averages what experts and shared experts give, where this model adds "
                "it, which gives other text"
            )

    def read_norm_eps(self) -> float:
        if self.config.values.get("rms_norm_eps") is None:
            return super().read_norm_eps()
        self.config.known("layer_norm_eps")
        return self.config.number("rms_norm_eps")

    def read_n_ff(self) -> int:
        return self.config.integer(
            "prefix_dense_intermediate_size", default=self.read_n_ff_expert()
        )

    def read_window(self) -> tuple[int, list[bool]]:
        """The dense layers at the front have a period of their own."""
        config = self.config.completed()
        if config.values.get("layer_types") is None:
            front = config.integer("prefix_dense_sliding_window_pattern", default=1)
            period = config.integer("sliding_window_pattern", default=_PERIOD)
            slides = [(i + 1) % front != 0 for i in range(self.n_dense)]
            slides += [(i + 1) % period != 0 for i in range(self.n_layer - self.n_dense)]
            config.values["layer_types"] = layer_kinds(slides[: self.n_layer])
        config.known("sliding_window_pattern")
        return layer_windows(config, self.n_layer, 0)

    def dense_layers(self) -> list[bool]:
        return dense_by_kind(self.config, self.n_layer, self.n_dense)

    def rotating(self) -> list[bool]:
        """Layers with a window, and of the others dense ones at the front."""
        front = self.config.integer("prefix_dense_sliding_window_pattern", default=1)
        slides = self.slides or [False] * self.n_layer
        return [s or (dense and front == 1) for s, dense in zip(slides, self.dense, strict=True)]

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        leading = [*self.dense, False].index(False)
        slides = self.slides or [False] * self.n_layer
        usual = [s or i < leading for i, s in enumerate(slides)]
        yield from rotation_entries(self.rotating(), usual)
        if self.n_shared and not self.averages:
            yield boolean("powerinfer.experts.average", False)


_COHERE = {
    "expert_selection_fn": "softmax",
    "head_dim": 128,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_shared_experts": 0,
    "shared_expert_combination_strategy": "average",
}
