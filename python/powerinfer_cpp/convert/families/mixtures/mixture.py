"""Mixtures of experts: Llama whose layers choose experts, beside layers with one block and experts
that every token computes."""

from collections.abc import Iterator

from ....core.errors import ModelFormatError
from ...activations import RELUS
from ...config import Config
from ...rope import Rope
from ...tensors import Output, Weights, from_weight, transposed
from ...weight import Weight
from ...writer import Entry, boolean, float32, uint32
from ..family import read_window
from ..llama import Llama, Qwen2, Qwen3, stacked_experts

SIGMOID = 2  # expert_gating_func


class Mixture(Llama):
    """A subclass names config.json's keys and the checkpoint's tensors.

    n_ff is the width of an expert.
    """

    expert_keys = ("num_experts", "num_local_experts")  # how many there are,
    used_keys = ("num_experts_per_tok",)  # are chosen,
    width_keys = ("moe_intermediate_size",)  # and how wide one is
    moe = "mlp"  # of a layer, in the checkpoint; the next ones inside it:
    router = "gate"
    expert = "experts.{i}.{part}.weight"
    all_experts = ("experts.gate_up_proj", "experts.down_proj")  # newer: all of a layer in one
    choice_bias = ""  # added to the scores of experts, when they are chosen
    choice_bias_name = "exp_probs_b.bias"  # GGUF's
    shared = ""  # of a layer: the experts that every token computes
    gating: int | None = None  # None: softmax
    normalises = True  # weights sum to 1, where a GGUF does not say
    default_normalise = False  # and where config.json does not
    expert_parts = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}

    def __init__(self, config: Config):
        super().__init__(config)
        self.n_expert = config.integer_of_layers(*self.expert_keys)
        self.n_expert_used = config.integer_of_layers(*self.used_keys)
        self.n_ff = self.read_n_ff_expert()
        self.n_shared, self.n_ff_shared = 0, 0  # together as wide
        self.dense = self.dense_layers()
        if all(self.dense):
            raise self.refuse(f"{self.architecture} without a layer of experts")
        self.normalise = self.normalises
        self.expert_scale = 1.0
        self.groups = (1, 1)  # and those of which experts are chosen

    def read_n_ff(self) -> int:
        return self.config.integer("intermediate_size", default=self.read_n_ff_expert())

    def read_n_ff_expert(self) -> int:
        return self.config.integer_of_layers(*self.width_keys)

    def dense_layers(self) -> list[bool]:
        """Which layers have no experts."""
        return [False] * self.n_layer

    def read_normalise(self) -> None:
        """For architectures of which llama.cpp's files do not say it."""
        self.normalise = self.config.flag("norm_topk_prob", self.default_normalise)
        if self.normalise != self.normalises:
            self.notes.append(
                f"llama.cpp takes norm_topk_prob of {self.architecture} to be "
                f"{str(self.normalises).lower()}, which gives other text"
            )

    def share(self, n_shared: int) -> None:
        """Sets how many experts every token computes."""
        self.n_shared, self.n_ff_shared = n_shared, n_shared * self.n_ff

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        key = f"{self.architecture}.expert"
        yield uint32(f"{key}_feed_forward_length", self.n_ff)
        leading = [*self.dense, False].index(False)
        if leading:
            yield uint32(f"{self.architecture}.leading_dense_block_count", leading)
        if self.n_shared:
            yield uint32(f"{key}_shared_count", self.n_shared)
        if self.n_ff_shared:
            yield uint32(f"{key}_shared_feed_forward_length", self.n_ff_shared)
        if self.gating is not None:
            yield uint32(f"{key}_gating_func", self.gating)
        if self.normalise != self.normalises or self.gating is not None:
            yield boolean(f"{key}_weights_norm", self.normalise)
        if self.expert_scale != 1:
            yield float32(f"{key}_weights_scale", self.expert_scale)
        if self.groups[0] > 1:
            yield uint32(f"{key}_group_count", self.groups[0])
            yield uint32(f"{key}_group_used_count", self.groups[1])

    def ffn(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        i = int(block.removeprefix("blk."))
        if i < self.n_layer and self.dense[i]:  # the layer behind them has experts
            yield from super().ffn(weights, theirs, block, transpose_down)
            return
        moe = f"{theirs}.{self.moe}"
        names = (f"{moe}.{self.router}", f"{moe}.{self.expert}")
        if f"{moe}.{self.all_experts[0]}" in weights:
            yield self.router_of(weights, names[0], block)
            yield from self.fused_experts(weights, moe, block, transpose_down)
        else:
            yield from self.experts(weights, *names, block, transpose_down)
        if self.choice_bias:
            bias = self.take_choice_bias(weights, f"{moe}.{self.choice_bias}")
            yield from_weight(f"{block}.{self.choice_bias_name}", bias)
        if self.n_ff_shared:
            yield from self.shared_expert(weights, f"{theirs}.{self.shared}", block, transpose_down)

    def fused_experts(self, weights: Weights, moe: str, block: str, turn: bool) -> Iterator[Output]:
        """Experts of checkpoints that have those of a layer in one tensor, gates before ups."""
        n, n_ff = self.n_expert, self.n_ff
        both = weights.take(f"{moe}.{self.all_experts[0]}", n, 2 * n_ff, self.n_embd)
        down = weights.take(f"{moe}.{self.all_experts[1]}", n, self.n_embd, n_ff)
        for part, first in (("gate", 0), ("up", n_ff)):
            found = [both.of(i).between(first, first + n_ff) for i in range(n)]
            yield stacked_experts(block, part, found, turn)
        yield stacked_experts(block, "down", [down.of(i) for i in range(n)], turn)

    def take_choice_bias(self, weights: Weights, theirs: str) -> Weight:
        return weights.take(theirs, self.n_expert)

    def shared_expert(
        self, weights: Weights, theirs: str, block: str, turn: bool
    ) -> Iterator[Output]:
        """Its matrices. turn: down by neurons, if some are zero."""
        for part in ("gate", "up", "down") if self.gated else ("up", "down"):
            shape = (self.n_ff_shared, self.n_embd)
            shape = shape[::-1] if part == "down" else shape
            name, ours = f"{theirs}.{part}_proj", f"{block}.ffn_{part}_shexp"
            if part == "down" and turn and self.activation in RELUS and not self.mlp_bias:
                weight = weights.take(f"{name}.weight", *shape)
                yield transposed(f"{block}.ffn_down_t_shexp.weight", weight)
            else:
                yield from self.linear(weights, name, ours, shape, self.mlp_bias)


class QwenMoe(Mixture):
    """What Qwen 2 and 3 share."""

    def __init__(self, config: Config):
        super().__init__(config)
        self.read_normalise()

    def dense_layers(self) -> list[bool]:
        config = self.config
        step = config.integer("decoder_sparse_step", default=1)
        plain = config.values.get("mlp_only_layers") or []
        if not isinstance(plain, list) or not all(type(i) is int for i in plain):
            raise ModelFormatError(f"{config.path}: mlp_only_layers must be a list of integers")
        return [i in plain or (i + 1) % step != 0 for i in range(self.n_layer)]


class Qwen3Moe(QwenMoe, Qwen3):
    architecture = "qwen3moe"


class GatedSharedExpert:
    """What the shared expert gives is multiplied by a number that the row says."""

    n_embd: int

    def shared_expert(
        self, weights: Weights, theirs: str, block: str, turn: bool
    ) -> Iterator[Output]:
        yield from super().shared_expert(weights, theirs, block, turn)  # type: ignore[misc]
        weight = weights.take(f"{theirs}_gate.weight", 1, self.n_embd)
        yield from_weight(f"{block}.ffn_gate_inp_shexp.weight", weight.of(0))


class Qwen2Moe(GatedSharedExpert, QwenMoe, Qwen2):
    architecture = "qwen2moe"
    shared = "mlp.shared_expert"
    normalises = False

    def __init__(self, config: Config):
        super().__init__(config)
        self.qkv_bias, self.o_bias = config.flag("qkv_bias", True), False
        self.n_ff_shared = config.integer("shared_expert_intermediate_size")

    def read_window(self) -> tuple[int, list[bool]]:
        """Unless config.json names them, the even layers before max_window_layers have it."""
        config = self.config
        if not config.flag("use_sliding_window"):
            return super().read_window()
        n = config.integer("max_window_layers", default=28, least=0)
        kinds = [i % 2 == 0 and i < n for i in range(self.n_layer)]
        names = ["sliding_attention" if slides else "full_attention" for slides in kinds]
        return read_window(config.completed(layer_types=names), self.n_layer, self.n_ctx)


class WholeRowNorms:
    """Norms over all heads of queries, and over all of keys."""

    head_dim: int

    def head_norm(self, weights: Weights, theirs: str, heads: int, ours: str) -> Output:
        return from_weight(ours, weights.take(f"{theirs}_norm.weight", heads * self.head_dim))


class Olmoe(WholeRowNorms, Mixture):
    architecture = "olmoe"
    pairs = False
    default_eps = 1e-5
    width_keys = ("intermediate_size",)
    normalises = False

    def __init__(self, config: Config):
        super().__init__(config)
        self.head_norms = True
        self.read_normalise()


class MiniMaxM2(WholeRowNorms, Mixture):
    architecture = "minimax-m2"
    pairs = False
    default_theta = 5000000.0
    rotates_partly = True
    width_keys = ("intermediate_size",)
    moe = "block_sparse_moe"
    choice_bias = "e_score_correction_bias"
    gating = SIGMOID
    expert_parts = {"gate": "w1", "up": "w3", "down": "w2"}

    def __init__(self, config: Config):
        super().__init__(config)
        self.qkv_bias = self.o_bias = False
        self.head_norms = config.flag("use_qk_norm", True)
        if config.values.get("scoring_func") not in (None, "sigmoid"):
            raise self.refuse(f"{self.architecture} whose scores are no sigmoids (scoring_func)")
        if config.values.get("qk_norm_type") not in (None, "per_layer"):
            raise self.refuse(f"{self.architecture} with norms of each head (qk_norm_type)")
        if not config.flag("use_routing_bias", True):
            self.choice_bias = ""
        config.known("use_mtp", "num_mtp_modules")

    def read_rope(self, default_theta: float = 10000.0) -> Rope:
        n_rot = self.config.integer("rotary_dim", default=self.head_dim)
        self.default_part = n_rot / self.head_dim
        return super().read_rope(default_theta)


class GuessesBehind(Mixture):
    """The layer that predicts further tokens stands behind the others."""

    guess_names = tuple(
        f"mtp.layers.0.{name}.weight" for name in ("eh_proj", "enorm", "hnorm", "final_layernorm")
    )
    last_guess_norm = "nextn.shared_head_norm"  # GGUF's name of final_layernorm

    def guessing_layer(self, weights: Weights, block: str) -> Iterator[Output]:
        theirs = "mtp.layers.0"
        names = {name: f"{theirs}.{name}" for name in ("eh_proj", "enorm", "hnorm")}
        yield from self.joined(weights, names, block)
        name = f"{theirs}.final_layernorm"
        yield from self.norm(weights, name, f"{block}.{self.last_guess_norm}")
        yield from self.layer(weights, theirs, block, False)


class GroupedMixture(Mixture):
    """The router of DeepSeek V3: sigmoids, a bias for the choice, groups of experts, a scale."""

    expert_keys = ("n_routed_experts", "num_local_experts")
    shared_keys = ("n_shared_experts",)
    choice_bias = "gate.e_score_correction_bias"
    shared = "mlp.shared_experts"
    gating = SIGMOID
    # What a missing key means.
    default_normalise = True
    default_dense = 0
    default_shared = 0
    default_scale = 1.0

    def __init__(self, config: Config):
        super().__init__(config)
        self.normalise = config.flag("norm_topk_prob", self.default_normalise)
        self.expert_scale = config.number("routed_scaling_factor", default=self.default_scale)
        self.groups = (
            config.integer("n_group", default=1),
            config.integer("topk_group", default=1),
        )
        self.share(config.integer(*self.shared_keys, default=self.default_shared, least=0))
        if config.values.get("scoring_func") not in (None, "sigmoid", "noaux_tc"):
            raise self.refuse(f"{self.architecture} whose scores are no sigmoids (scoring_func)")
        if config.values.get("topk_method") not in (None, "noaux_tc"):
            raise self.refuse(f"{self.architecture} that chooses in another way (topk_method)")

    def dense_layers(self) -> list[bool]:
        n = self.config.integer("first_k_dense_replace", default=self.default_dense, least=0)
        return [i < n for i in range(self.n_layer)]


class Glm4Moe(GroupedMixture):
    """GLM-4.5 to 4.7."""

    architecture = "glm4moe"
    pairs = False
    default_eps = 1e-5
    default_part = 0.5
    rotates_partly = True
    ffn_norm = "post_attention_norm"
    default_dense = 1
    default_shared = 1

    def __init__(self, config: Config):
        super().__init__(config)
        self.o_bias = False
        self.head_norms = config.flag("use_qk_norm")


class SolarOpen(Glm4Moe):
    """Solar Open: no norms of heads, no dense layers."""

    default_part = 1.0
    default_theta = 1000000.0
    default_dense = 0


class Dots1(GroupedMixture):
    architecture = "dots1"
    pairs = False
    default_normalise = False

    def __init__(self, config: Config):
        super().__init__(config)
        self.head_norms = True
        if config.integer("moe_layer_freq", default=1) != 1:
            raise self.refuse("dots1 with experts in some layers only (moe_layer_freq)")

    def read_window(self) -> tuple[int, list[bool]]:
        first = self.config.integer("max_window_layers", default=62, least=0)
        return read_window(self.config, self.n_layer, self.n_ctx, first, missing=4096)
