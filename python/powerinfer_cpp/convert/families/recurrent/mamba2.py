"""Families with Mamba-2 in layers of their own kinds.

Nemotron-H and Nemotron 3: layers of one mixer each, which is Mamba-2, attention without positions,
a block that squares what ReLU lets through, or experts of this kind. Falcon-H1: Mamba-2 and
attention side by side in each layer, and a multiplier for everything.
"""

import re
from collections.abc import Iterator

from ....core.errors import ModelFormatError
from ...config import Config, section_number
from ...tensors import Output, Weights, from_weight, scaled
from ...writer import Entry, array, float32, replaced, uint32
from ..family import Family
from ..llama import Llama, stacked_experts
from ..mixtures.mixture import GroupedMixture
from .states import ATTENTION, MAMBA, MAMBA_KEYS, read_mamba

# Letters and names of the mixers.
_MIXERS = {
    **dict.fromkeys(("M", *MAMBA), "mamba"),
    **dict.fromkeys(("*", *ATTENTION), "attention"),
    **dict.fromkeys(("-", "mlp"), "mlp"),
    **dict.fromkeys(("E", "moe"), "moe"),
}


def nemotron_h(config: Config) -> Family:
    """With the architecture that has a place for its layers."""
    return NemotronHMoe(config) if "moe" in _mixers(config) else NemotronH(config)


def _mixers(config: Config) -> list[str]:
    """The kind of each layer. Raises ModelFormatError for unknown ones."""
    keys = ("hybrid_override_pattern", "layers_block_type", "layer_types")
    found = [v for v in map(config.values.get, keys) if v is not None]
    if not found or not isinstance(found[0], str | list):
        raise ModelFormatError(f"{config.path}: no {keys[0]} that names the kinds of layers")
    for kind in found[0]:
        if not isinstance(kind, str) or kind not in _MIXERS:
            raise ModelFormatError(f"{config.path}: {keys[0]} has {kind!r}, which is no kind")
    kinds = [_MIXERS[kind] for kind in found[0]]
    n_layer = config.integer("num_hidden_layers", default=max(1, len(kinds)))
    if len(kinds) != n_layer:
        raise ModelFormatError(
            f"{config.path}: {keys[0]} names {len(kinds)} layers of {n_layer} (num_hidden_layers)"
        )
    return kinds


# Of the layer that predicts further tokens, which the checkpoint has as two.
_GUESSING = {
    "eh_proj": "mtp.layers.0.eh_proj",
    "enorm": "mtp.layers.0.enorm",
    "hnorm": "mtp.layers.0.hnorm",
    "shared_head_norm": "mtp.layers.1.final_layernorm",
}


class NemotronH(Llama):
    architecture = "nemotron_h"
    pairs = False
    default_activation = "relu2"
    activation_key = "mlp_hidden_act"
    gated = False
    prefix = "backbone"
    root = "backbone."
    first = "embeddings.weight"
    last_norm = "norm_f"
    mlp = "mixer"

    def __init__(self, config: Config):
        self.mixers = _mixers(config)
        super().__init__(
            config.completed(
                num_hidden_layers=len(self.mixers),
                head_dim=config.values.get("attention_head_dim"),
            )
        )
        if self.activation != "relu2":
            raise self.refuse(f"{self.architecture} with {self.activation}")
        names = {
            "n_head": "mamba_num_heads",
            "head_dim": "mamba_head_dim",
            "n_group": "n_groups",
            "n_state": "ssm_state_size",
            "taps": "conv_kernel",
            "conv_bias": "use_conv_bias",
        }
        self.mamba = read_mamba(config, names)
        # Of the layers that this model does not have.
        if "moe" not in self.mixers:
            config.known("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "n_group")
            config.known("topk_group", "norm_topk_prob", "routed_scaling_factor")
            for part in ("intermediate_size", "shared_expert_intermediate_size", "latent_size"):
                config.known(f"moe_{part}")
            config.known("moe_shared_expert_overlap")

    def uses_rope(self) -> bool:
        return False

    def read_norm_eps(self) -> float:
        self.config.known("norm_eps")  # no code reads it
        return self.config.number("layer_norm_epsilon", "rms_norm_eps", default=1e-5)

    def entries(self) -> Iterator[Entry]:
        return replaced(super().entries(), self._own_entries())

    def _own_entries(self) -> Iterator[Entry]:
        arch = self.architecture
        widths = {"mlp": self.n_ff_dense, "moe": self.n_ff}
        ffs = [widths.get(kind, 0) for kind in self.mixers] + [self.n_ff] * self.guesses
        yield array(f"{arch}.feed_forward_length", "INT32", ffs)
        heads = [self.n_head_kv if kind == "attention" else 0 for kind in self.mixers]
        heads += [self.n_head_kv] * self.guesses
        yield array(f"{arch}.attention.head_count_kv", "INT32", heads)
        yield uint32(f"{arch}.attention.key_length", self.head_dim)
        yield uint32(f"{arch}.attention.value_length", self.head_dim)
        yield float32(f"{arch}.attention.layer_norm_epsilon", self.norm_eps)
        yield from self.mamba.entries(arch)

    def head(self, weights: Weights) -> Iterator[Output]:
        """Its own if there is one: transformers ties none of these, whatever config.json says."""
        self.said_tied = self.said_tied and "lm_head.weight" not in weights
        yield from super().head(weights)

    def layer(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        yield from self.norm(weights, f"{theirs}.norm", f"{block}.attn_norm")
        kind = self.mixers[int(block.removeprefix("blk."))]
        if kind == "mamba":
            yield from self.mamba.outputs(weights, f"{theirs}.mixer", block, self.n_embd)
        elif kind == "attention":
            yield from self.attention(weights, f"{theirs}.mixer", block)
        else:
            yield from self.ffn(weights, theirs, block, transpose_down)


class NemotronHMoe(GroupedMixture, NemotronH):
    """Experts may have a narrower input of their own (moe_latent_size)."""

    architecture = "nemotron_h_moe"
    moe = "mixer"
    shared = "mixer.shared_experts"
    all_experts = ("experts.up_proj", "experts.down_proj")
    default_shared = 1
    guess_names = (
        *(f"{name}.weight" for name in _GUESSING.values()),
        "mtp.layers.0.mixer.q_proj.weight",
        "mtp.layers.1.mixer.gate.weight",
    )
    guess_parts = 2

    def __init__(self, config: Config):
        super().__init__(config)
        if self.n_shared:
            self.n_ff_shared = config.integer("moe_shared_expert_intermediate_size")
        self.latent = config.integer("moe_latent_size", default=0, least=0)
        config.known("moe_shared_expert_intermediate_size", "moe_shared_expert_overlap")
        if self.mlp_bias:
            raise self.refuse(f"{self.architecture} with mlp_bias")

    def read_n_ff(self) -> int:
        return self.config.integer("intermediate_size", default=self.read_n_ff_expert())

    def dense_layers(self) -> list[bool]:
        return [kind != "moe" for kind in self.mixers]

    def entries(self) -> Iterator[Entry]:
        # The first layers have no feed-forward block at all.
        leading = f"{self.architecture}.leading_dense_block_count"
        yield from (entry for entry in super().entries() if entry.key != leading)
        if self.latent:
            yield uint32(f"{self.architecture}.moe_latent_size", self.latent)

    @property
    def n_expert_in(self) -> int:
        return self.latent or self.n_embd

    def ffn(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        yield from super().ffn(weights, theirs, block, transpose_down)
        i = int(block.removeprefix("blk."))
        if self.latent and (i == self.n_layer or self.mixers[i] == "moe"):
            shape = (self.latent, self.n_embd)
            for name, ours, size in (
                ("fc1_latent_proj", "ffn_latent_down", shape),
                ("fc2_latent_proj", "ffn_latent_up", shape[::-1]),
            ):
                yield from self.linear(weights, f"{theirs}.mixer.{name}", f"{block}.{ours}", size)

    def knows_guesses(self) -> bool:
        kinds = self.config.values.get("mtp_hybrid_override_pattern", "*E")
        return super().knows_guesses() and kinds == "*E" and self.n_nextn < 2

    def guessing_layer(self, weights: Weights, block: str) -> Iterator[Output]:
        attention, experts = "mtp.layers.0", "mtp.layers.1"
        yield from self.joined(weights, _GUESSING, block)
        yield from self.norm(weights, f"{attention}.norm", f"{block}.attn_norm")
        yield from self.attention(weights, f"{attention}.mixer", block)
        yield from self.norm(weights, f"{experts}.norm", f"{block}.post_attention_norm")
        yield from self.ffn(weights, experts, block, False)

    def fused_experts(self, weights: Weights, moe: str, block: str, turn: bool) -> Iterator[Output]:
        n = self.n_expert
        up = weights.take(f"{moe}.{self.all_experts[0]}", n, self.n_ff, self.n_expert_in)
        down = weights.take(f"{moe}.{self.all_experts[1]}", n, self.n_expert_in, self.n_ff)
        for part, weight in (("up", up), ("down", down)):
            yield stacked_experts(block, part, [weight.of(i) for i in range(n)], turn)


class FalconH1(Llama):
    """The multipliers become factors of the weights, as llama.cpp's files have them."""

    architecture = "falcon-h1"
    pairs = False
    default_eps = 1e-5
    default_theta = 100000.0
    last_norm = "final_layernorm"
    mlp = "feed_forward"

    def __init__(self, config: Config):
        super().__init__(config)
        normed = config.flag("mamba_rms_norm")
        if normed and config.flag("mamba_norm_before_gate", True):
            raise self.refuse("falcon_h1 with norms before gates (mamba_norm_before_gate)")
        config.known("mamba_norm_before_gate", "mamba_use_mlp", "mlp_expansion_factor")
        self.mamba = read_mamba(config, MAMBA_KEYS, normed)
        inner = config.integer("mamba_d_ssm", default=self.mamba.inner)
        if inner != self.mamba.inner:
            raise self.refuse(f"falcon_h1 with mamba_d_ssm {inner} of {self.mamba.inner} values")
        if self.qkv_bias or self.mlp_bias or config.flag("projectors_bias"):
            raise self.refuse("falcon_h1 with biases")
        self.read_multipliers()

    def read_multipliers(self) -> None:
        def number(name: str) -> float:
            return self.config.number(f"{name}_multiplier", default=1.0)

        attention = number("attention_in")
        gate, down = self.several("mlp_multipliers", 2)
        self.factors = {
            "attn_q": attention,
            "attn_k": attention * number("key"),
            "attn_v": attention,
            "attn_output": number("attention_out"),
            "ffn_gate": gate,
            "ffn_down": down,
            "ffn_down_t": down,
            "token_embd": number("embedding"),
            "output": number("lm_head"),
        }
        into = number("ssm_in")
        self.mamba_factors = tuple(into * factor for factor in self.several("ssm_multipliers", 5))
        self.mamba_out = number("ssm_out")

    def several(self, key: str, n: int) -> list[float]:
        values = self.config.values.get(key)
        if values is None:
            return [1.0] * n
        if not isinstance(values, list) or len(values) != n:
            raise self.refuse(f"{key} other than a list of {n} numbers")
        found = {f"{key}[{i}]": value for i, value in enumerate(values)}
        return [section_number(str(self.config.path), found, name) for name in found]

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        yield from self.mamba.entries(self.architecture)

    def outputs(self, weights: Weights, transpose_down: bool) -> Iterator[Output]:
        for output in super().outputs(weights, transpose_down):
            name = re.sub(r"(blk\.\d+\.)?(.+)\.weight", r"\2", output.name)
            factor = self.factors.get(name, 1.0)
            yield output if factor == 1 else scaled(output, factor)

    def embedding(self, weights: Weights, theirs: str) -> Output:
        self.table = weights.take(f"{theirs}.weight", self.n_vocab, self.n_embd)
        return from_weight("token_embd.weight", self.table)

    def head(self, weights: Weights) -> Iterator[Output]:
        """Even if it is the embedding: that has another factor."""
        found = list(super().head(weights))
        same = self.factors["output"] == self.factors["token_embd"]
        yield from found if found or same else [from_weight("output.weight", self.table)]

    def layer(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        yield from self.norm(weights, f"{theirs}.input_layernorm", f"{block}.attn_norm")
        yield from self.attention(weights, f"{theirs}.self_attn", block)
        factors = (self.mamba_factors, self.mamba_out)
        yield from self.mamba.outputs(weights, f"{theirs}.mamba", block, self.n_embd, *factors)
        # llama.cpp's files have it under this name, without an end.
        norm = weights.take(f"{theirs}.pre_ff_layernorm.weight", self.n_embd)
        yield from_weight(f"{block}.ffn_norm", norm)
        yield from self.ffn(weights, theirs, block, transpose_down)
