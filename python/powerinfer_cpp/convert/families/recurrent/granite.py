"""Granite 3 and 4: Llama with four multipliers, dense or with experts, and with Mamba-2
in the place of attention in most layers."""

from collections.abc import Iterator
from typing import Any, ClassVar

from ....core.errors import ModelFormatError
from ...activations import RELUS
from ...config import Asked, Config
from ...tensors import Output, Weights, from_weight, transposed
from ...writer import Entry, array, boolean, float32, replaced
from ..dense.near_llama import layer_kinds, layer_windows
from ..family import Family
from ..llama import Llama
from ..mixtures.mixture import Mixture
from .states import ATTENTION, MAMBA, MAMBA_KEYS, Mamba2, read_mamba


class Granite(Llama):
    architecture = "granite"

    def __init__(self, config: Config):
        super().__init__(config)
        self.multipliers = {
            "attention.scale": config.number("attention_multiplier", default=1.0),
            "embedding_scale": config.number("embedding_multiplier", default=1.0),
            "residual_scale": config.number("residual_multiplier", default=1.0),
            "logit_scale": config.number("logits_scaling", default=1.0),
        }

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        for key, value in self.multipliers.items():
            yield float32(f"{self.architecture}.{key}", value)


class GraniteMoe(Mixture, Granite):
    """Also with an expert that every token computes (granitemoeshared)."""

    architecture = "granitemoe"
    expert_keys = ("num_local_experts",)
    width_keys = ("intermediate_size",)
    moe = "block_sparse_moe"
    router = "router.layer"
    all_experts = ("input_linear.weight", "output_linear.weight")
    shared = "shared_mlp"

    def __init__(self, config: Config):
        super().__init__(config)
        self.n_ff_shared = config.integer("shared_intermediate_size", default=0, least=0)

    def shared_expert(
        self, weights: Weights, theirs: str, block: str, turn: bool
    ) -> Iterator[Output]:
        n = self.n_ff_shared
        yield from gate_and_up(weights, theirs, f"{block}.ffn_{{part}}_shexp", n, self.n_embd)
        down = weights.take(f"{theirs}.output_linear.weight", self.n_embd, n)
        turn = turn and self.activation in RELUS
        name = f"{block}.ffn_down{'_t' if turn else ''}_shexp.weight"
        yield (transposed if turn else from_weight)(name, down)


def gate_and_up(
    weights: Weights, theirs: str, ours: str, n_ff: int, n_embd: int
) -> Iterator[Output]:
    """The two of a block that the checkpoint has in one matrix; ours: has {part} for them."""
    both = weights.take(f"{theirs}.input_linear.weight", 2 * n_ff, n_embd)
    for part, first in (("gate", 0), ("up", n_ff)):
        name = ours.format(part=part) + ".weight"
        yield from_weight(name, both.between(first, first + n_ff))


class WithSinks(Granite):
    """Windows in most layers, a sink for each head, and a rotation in some layers."""

    architecture = "granite_swa"
    default_eps = 1e-5
    lists_windows = True
    has_rope_factors = False
    tied = True
    defaults: ClassVar[dict[str, Any]] = {"sliding_window": 128, "num_key_value_heads": 4}

    def __init__(self, config: Config):
        self.config = config = config.completed(**self.defaults)
        bases = config.layer_switches("layer_rope_theta", config.integer("num_hidden_layers"))
        self.rotates = None if bases is None else [base != 0 for base in bases]
        found = {base for base in bases or [] if base != 0}
        if len(found) > 1:
            raise self.refuse("granite_swa with several bases in layer_rope_theta")
        if found:  # its base counts, whatever rope_parameters have
            base = found.pop()
            whole = config.values.get("rope_parameters")
            if isinstance(whole, Asked):
                changed = Asked({**whole, "rope_theta": base}, whole.asked)
                config.values["rope_parameters"] = changed
            config.values["rope_theta"] = base
        config.known("no_rope_layers", "rope_theta")
        super().__init__(config)

    def read_window(self) -> tuple[int, list[bool]]:
        config = self.config
        if config.values.get("layer_types") is None:
            config = config.completed()
            config.values["layer_types"] = layer_kinds([i % 4 != 0 for i in range(self.n_layer)])
        return layer_windows(config, self.n_layer, 0)

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        if self.rotates is not None:
            yield array("granite_swa.attention.rope_pattern", "BOOL", self.rotates)

    def attention(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        yield from super().attention(weights, theirs, block)
        sinks = weights.take(f"{theirs}.sinks", self.n_head)
        yield from_weight(f"{block}.attn_sinks.weight", sinks)


class GraniteMoeWithSinks(WithSinks, GraniteMoe):
    """Gate and up of experts are in one tensor, as llama.cpp has them for this architecture."""

    default_eps = 1e-6
    tied = False
    router = "router"
    all_experts = ("experts.gate_up_proj", "experts.down_proj")
    defaults: ClassVar[dict[str, Any]] = {
        "sliding_window": 128,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }

    def fused_experts(self, weights: Weights, moe: str, block: str, turn: bool) -> Iterator[Output]:
        if turn:
            yield from super().fused_experts(weights, moe, block, turn)
            return
        n, ff, n_embd = self.n_expert, self.n_ff, self.n_embd
        for theirs, ours, shape in (
            (self.all_experts[0], "ffn_gate_up_exps", (n, 2 * ff, n_embd)),
            (self.all_experts[1], "ffn_down_exps", (n, n_embd, ff)),
        ):
            yield from_weight(f"{block}.{ours}.weight", weights.take(f"{moe}.{theirs}", *shape))

    def shared_expert(
        self, weights: Weights, theirs: str, block: str, turn: bool
    ) -> Iterator[Output]:
        if turn:
            yield from super().shared_expert(weights, theirs, block, turn)
            return
        for name, ours, shape in (
            ("input_linear", "ffn_up_shexp", (2 * self.n_ff_shared, self.n_embd)),
            ("output_linear", "ffn_down_shexp", (self.n_embd, self.n_ff_shared)),
        ):
            yield from self.linear(weights, f"{theirs}.{name}", f"{block}.{ours}", shape)


def granite_hybrid(config: Config) -> Family:
    """With experts or without."""
    n_expert = config.integer("num_local_experts", default=0, least=0)
    return GraniteHybridMoe(config) if n_expert else GraniteHybrid(config)


class GraniteHybrid(Granite):
    """Without experts the shared one is the feed-forward block. Without Mamba-2 layers the
    architecture is that of the other models."""

    def __init__(self, config: Config):
        n_layer = config.integer("num_hidden_layers")
        kinds = config.layer_switches("layer_types", n_layer) or [MAMBA[0]] * n_layer
        if wrong := [kind for kind in kinds if kind not in (*MAMBA, *ATTENTION)]:
            raise ModelFormatError(f"{config.path}: layer_types has {wrong[0]!r}")
        self.is_mamba = [kind in MAMBA for kind in kinds]
        super().__init__(config)
        self.mamba: Mamba2 | None = None
        if any(self.is_mamba):
            self.architecture = "granitehybrid"
            self.mamba = self.read_mamba(config)
        else:
            for key in ("n_heads", "d_head", "n_groups", "d_state", "d_conv", "conv_bias"):
                config.known(f"mamba_{key}")
            config.known("mamba_expand", "mamba_chunk_size", "mamba_proj_bias", "time_step_limit")
        config.known("intermediate_size", "num_local_experts", "num_experts_per_tok")
        if config.values.get("normalization_function") not in (None, "rmsnorm"):
            raise self.refuse("granitemoehybrid with norms of another kind")
        config.known("init_method")

    def read_mamba(self, config: Config) -> Mamba2:
        n_head = config.integer("mamba_n_heads", default=128)
        inner = config.integer("mamba_expand", default=2) * self.n_embd
        if config.values.get("mamba_d_head") == "auto":
            config.values["mamba_d_head"] = max(1, inner // n_head)
        return read_mamba(config, MAMBA_KEYS)

    def uses_rope(self) -> bool:
        kind = self.config.values.get("position_embedding_type")
        if kind not in (None, "nope", "rope"):
            raise self.refuse(f"position_embedding_type {kind!r}")
        return kind == "rope"

    def read_n_ff(self) -> int:
        return self.config.integer("shared_intermediate_size")

    def entries(self) -> Iterator[Entry]:
        return replaced(super().entries(), self._own_entries())

    def _own_entries(self) -> Iterator[Entry]:
        arch = self.architecture
        if self.mamba:
            heads = [0 if mamba else self.n_head_kv for mamba in self.is_mamba]
            yield array(f"{arch}.attention.head_count_kv", "INT32", heads)
            yield from self.mamba.entries(arch)
        if self.mamba or not self.rope:
            yield boolean(f"{arch}.rope.scaling.finetuned", self.rope is not None)

    def layer(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        i = int(block.removeprefix("blk."))
        if not (self.mamba and self.is_mamba[i]):
            yield from super().layer(weights, theirs, block, transpose_down)
            return
        yield from self.norm(weights, f"{theirs}.input_layernorm", f"{block}.attn_norm")
        yield from self.mamba.outputs(weights, f"{theirs}.mamba", block, self.n_embd)
        yield from self.norm(weights, f"{theirs}.post_attention_layernorm", f"{block}.ffn_norm")
        yield from self.ffn(weights, theirs, block, transpose_down)

    def ffn(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        mlp, n_ff = f"{theirs}.shared_mlp", self.n_ff_dense
        yield from gate_and_up(weights, mlp, f"{block}.ffn_{{part}}", n_ff, self.n_embd)
        yield from self.down(weights, f"{mlp}.output_linear", block, transpose_down, False)


class GraniteHybridMoe(GraniteMoe, GraniteHybrid):
    pass
