"""Kimi Linear and Ling 3: Kimi's delta attention (arXiv 2510.26692) in most layers, attention over
latents in the others, and experts beside a shared one."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ....core.errors import ModelFormatError
from ...config import Config
from ...tensors import Output, Weights, computed, from_weight
from ...writer import Entry, array, boolean, float32, replaced, uint32
from ..mixtures.deepseek import DeepSeekV3
from .states import column, convolution

_KINDS = ("linear_attention", "full_attention")
_WIDEST_BOUND = 1e6


class _KimiDelta(DeepSeekV3):
    """A subclass reads the sizes of its delta attention."""

    expert_keys = ("num_experts", "num_local_experts")
    other_names: dict[str, str] = {}  # config.json's, of what the base class reads
    n_delta_head: int
    delta_dim: int
    taps: int
    of_log: tuple[int, ...] = ()  # dimensions of a decay's logarithm before and behind the heads'
    sign = -1  # of decays, in a GGUF

    def __init__(self, config: Config):
        found = {ours: config.values.get(name) for name, ours in self.other_names.items()}
        super().__init__(config.completed(**{k: v for k, v in found.items() if v is not None}))
        self.read_delta()
        self.recurrent = self.read_kinds()

    def read_delta(self) -> None:
        """The sizes of delta attention."""
        raise NotImplementedError

    def read_kinds(self) -> list[bool]:
        """Which layers have delta attention."""
        kinds = self.config.layer_switches("layer_types", self.n_layer) or self.missing_kinds()
        if unknown := [kind for kind in kinds if kind not in _KINDS]:
            raise self.refuse(f"{self.architecture} with layers of kind {unknown[0]!r}")
        return [kind == _KINDS[0] for kind in kinds]

    def missing_kinds(self) -> list[str]:
        """The layers' kinds where config.json has no layer_types."""
        raise NotImplementedError

    def entries(self) -> Iterator[Entry]:
        return replaced(super().entries(), self.own_entries())

    def own_entries(self) -> Iterator[Entry]:
        key = self.architecture
        heads = [0 if recurs else self.n_head_kv for recurs in self.recurrent]
        yield array(f"{key}.attention.head_count_kv", "INT32", heads)
        yield uint32(f"{key}.attention.value_length", self.v_dim)  # as llama.cpp writes it
        yield uint32(f"{key}.rope.dimension_count", self.head_dim)
        yield uint32(f"{key}.ssm.conv_kernel", self.taps)
        yield uint32(f"{key}.kda.head_dim", self.delta_dim)

    def head(self, weights: Weights) -> Iterator[Output]:
        """transformers ties nothing here: the head of a checkpoint is no copy of the embedding."""
        self.tied = self.tied and "lm_head.weight" not in weights
        return super().head(weights)

    def attention(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        if self.recurrent[int(block.removeprefix("blk."))]:
            yield from self.delta(weights, theirs, block)
        else:
            yield from super().attention(weights, theirs, block)

    def delta(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        n_head, d = self.n_delta_head, self.delta_dim
        width = n_head * d
        for part in ("q", "k", "v"):
            name, shape = f"{block}.attn_{part}", (width, self.n_embd)
            yield from self.linear(weights, f"{theirs}.{part}_proj", name, shape)
            name = f"{block}.ssm_conv1d_{part}"
            found = convolution(weights, f"{theirs}.{part}_conv1d", name, width, self.taps)
            yield replace(found, shape=(width, 1, self.taps))
        shape = (n_head, self.n_embd)
        yield from self.linear(weights, f"{theirs}.b_proj", f"{block}.ssm_beta", shape)
        yield from self.decays_and_gates(weights, theirs, block)
        bias = weights.take(f"{theirs}.dt_bias", width)
        yield from_weight(f"{block}.ssm_dt.bias", bias)
        before, behind = self.of_log[:2], self.of_log[2:]
        log = weights.take(f"{theirs}.A_log", *before, n_head, *behind).reshaped(n_head)
        yield column(computed(f"{block}.ssm_a", log, lambda x: self.sign * np.exp(x)))
        yield from_weight(f"{block}.ssm_norm.weight", weights.take(f"{theirs}.o_norm.weight", d))
        shape, name = (self.n_embd, width), f"{theirs}.{self.attention_out}"
        yield from self.linear(weights, name, f"{block}.attn_output", shape)

    def decays_and_gates(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        """The matrices that make them."""
        raise NotImplementedError


class KimiLinear(_KimiDelta):
    """Its attention knows no positions: delta attention does."""

    architecture = "kimi-linear"
    default_eps = 1e-5
    default_ctx = 1048576
    other_names = {
        "model_max_length": "max_position_embeddings",
        "num_experts_per_token": "num_experts_per_tok",
        "num_shared_experts": "n_shared_experts",
        "num_expert_group": "n_group",
        "moe_renormalize": "norm_topk_prob",
    }
    missing = {
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
        "routed_scaling_factor": 2.446,
        "n_group": 1,
        "topk_group": 1,
    }
    moe = "block_sparse_moe"
    shared = "block_sparse_moe.shared_experts"
    expert_parts = {"gate": "w1", "up": "w3", "down": "w2"}
    of_log = (1, 1, 1)

    def uses_rope(self) -> bool:
        if not self.config.flag("mla_use_nope", True):
            raise self.refuse("kimi_linear whose attention rotates (mla_use_nope)")
        return False

    def read_delta(self) -> None:
        config = self.config
        self.expect(moe_router_activation_func="sigmoid")
        config.known("use_grouped_topk", "rope_theta")
        given = config.section("linear_attn_config")
        begin = "linear_" if given is config else ""
        taps = "linear_conv_kernel_dim" if given is config else "short_conv_kernel_size"
        self.delta_dim = given.integer(f"{begin}head_dim", default=128)
        self.n_delta_head = given.integer(f"{begin}num_heads", default=32)
        self.taps = given.integer(taps, default=4)
        self.numbers = [given.values.get(key) for key in ("kda_layers", "full_attn_layers")]

    def missing_kinds(self) -> list[str]:
        """Lists of their numbers from 1 on, or every fourth layer but the first attends."""
        n = self.n_layer
        if None in self.numbers:
            return [_KINDS[i > 0 and i % 4 == 0] for i in range(n)]
        both = [i for numbers in self.numbers if isinstance(numbers, list) for i in numbers]
        if any(type(i) is not int for i in both) or sorted(both) != list(range(1, n + 1)):
            raise ModelFormatError(
                f"{self.config.path}: kda_layers and full_attn_layers of linear_attn_config do not "
                f"have each of the layers 1 to {n} once"
            )
        return [_KINDS[i + 1 in self.numbers[1]] for i in range(n)]

    def ffn(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        """transformers saves dense blocks by the name of mixtures; published files have another."""
        saved = f"{theirs}.{self.moe}.gate_proj.weight" in weights
        self.mlp = self.moe if saved else "mlp"
        yield from super().ffn(weights, theirs, block, transpose_down)

    def decays_and_gates(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        d, width = self.delta_dim, self.n_delta_head * self.delta_dim
        for part in ("f", "g"):
            for name, shape in ((f"{part}_a", (d, self.n_embd)), (f"{part}_b", (width, d))):
                yield from self.linear(
                    weights, f"{theirs}.{name}_proj", f"{block}.ssm_{name}", shape
                )


class BailingHybrid(_KimiDelta):
    """Ling 3, whose attention over latents has a gate for each head."""

    architecture = "bailingmoe3"
    default_theta = 6000000.0
    default_ctx = 262144
    first = "word_embeddings.weight"
    attention_out = "dense"
    choice_bias = "gate.expert_bias"
    other_names = {
        "num_shared_experts": "n_shared_experts",
        "num_mtp_layers": "num_nextn_predict_layers",
    }
    missing = {
        "first_k_dense_replace": 2,
        "n_shared_experts": 1,
        "routed_scaling_factor": 2.5,
        "n_group": 8,
        "topk_group": 4,
        "num_nextn_predict_layers": 1,
    }
    sign = 1

    def read_delta(self) -> None:
        config = self.config
        self.expect(score_function="sigmoid", gated_attention_proj_granularity_type="head_wise")
        for key in ("use_gated_attention", "no_kda_lora"):
            if not config.flag(key, True):
                raise self.refuse(f"{key} false")
        if not config.flag("moe_router_enable_expert_bias", True):
            self.choice_bias = ""
        width = config.integer("moe_shared_expert_intermediate_size", default=self.n_ff, least=0)
        if self.n_shared and width != self.n_ff:
            raise self.refuse("a shared expert of another width (moe_shared_expert_...)")
        config.known("mtp_loss_scaling_factor")
        self.n_delta_head = self.n_head
        self.delta_dim = config.integer("head_dim", default=128)
        self.taps = config.integer("short_conv_kernel_size", default=4)
        self.lower_bound = self.read_lower_bound()

    def read_lower_bound(self) -> float:
        """Of the exponents of decays; 0: there is none, and they have another form."""
        bound = self.config.values.get("kda_lower_bound")
        bound = -5.0 if bound is None else bound
        if not self.config.flag("kda_safe_gate", True):
            return 0.0
        if type(bound) not in (int, float) or not -_WIDEST_BOUND <= bound < 0:
            raise ModelFormatError(
                f"{self.config.path}: kda_lower_bound must be negative, not {bound!r}"
            )
        return float(bound)

    def missing_kinds(self) -> list[str]:
        """The last one of each group attends."""
        size = self.config.integer("layer_group_size", default=6)
        return [_KINDS[(i + 1) % size == 0] for i in range(self.n_layer)]

    def own_entries(self) -> Iterator[Entry]:
        yield from super().own_entries()
        yield boolean(f"{self.architecture}.kda.safe_gate", self.lower_bound < 0)
        if self.lower_bound < 0:
            yield float32(f"{self.architecture}.kda.gate_lower_bound", self.lower_bound)

    def attention(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        theirs = theirs.removesuffix("self_attn") + "attention"
        yield from super().attention(weights, theirs, block)
        if not self.recurrent[int(block.removeprefix("blk."))]:
            shape = (self.n_head, self.n_embd)
            yield from self.linear(weights, f"{theirs}.g_proj", f"{block}.attn_gate", shape)

    def decays_and_gates(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        shape = (self.n_delta_head * self.delta_dim, self.n_embd)
        for part in ("f", "g"):
            yield from self.linear(weights, f"{theirs}.{part}_proj", f"{block}.ssm_{part}_a", shape)
