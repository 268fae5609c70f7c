"""Llama and similar families: RMSNorm, rotary positions, a gated FFN or experts."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..config import Config
from ..tensors import Output, Weights, from_weight, row_order, stacked, transposed
from ..weight import Weight
from ..writer import Entry, array
from .family import Family, read_window


def interleaved(n_head: int, head_dim: int) -> np.ndarray:
    """Row order [n_head * head_dim] that makes the elements of a rotation neighbours.

    transformers rotates element i of a head with element i + head_dim/2; GGUF's llama rotates 2i
    with 2i + 1. Row r of the result is row order[r] of the checkpoint.
    """
    rows = np.arange(n_head * head_dim).reshape(n_head, 2, head_dim // 2)
    return rows.swapaxes(1, 2).reshape(-1)


class Llama(Family):
    architecture = "llama"
    norm_epsilon = "layer_norm_rms_epsilon"
    pairs = True  # GGUF rotates neighbours; False: halves, as the checkpoint does
    default_theta = 10000.0
    default_eps = 1e-6
    default_activation = "silu"
    has_rope_factors = True
    norm_bias = False
    ffn_norm = "ffn_norm"  # GGUF's name of the norm before the feed-forward block
    parallel = False  # attention and FFN read the same norm's output
    gates_attention = False  # behind each head's query are as many rows of a gate
    activation_key = "hidden_act"
    prefix = "model"  # of the checkpoint's names
    attention_out = "o_proj"  # its output matrix in the checkpoint
    last_norm = "norm"
    mlp = "mlp"  # of a layer, in the checkpoint
    gated = True  # feed-forward blocks have a gate
    expert_parts = {"gate": "gate", "up": "up", "down": "down"}

    def __init__(self, config: Config):
        super().__init__(config)
        self.norm_eps = self.read_norm_eps()
        if config.values.get("hidden_act") == "fatrelu":  # ProSparse: ReLU with a threshold
            self.activation = "relu"
            self.threshold = config.number("hidden_act_param")
        else:
            self.activation = config.activation(self.activation_key, self.default_activation)
        rotates = self.uses_rope()
        if rotates and self.head_dim % 2:
            raise self.refuse(f"an odd head_dim, {self.head_dim},")
        self.rope = self.read_rope(self.default_theta) if rotates else None
        self.window, self.slides = self.read_window()
        bias = config.flag("attention_bias")
        self.qkv_bias, self.o_bias = bias, bias
        self.mlp_bias = config.flag("mlp_bias")
        self.head_bias = False
        self.head_norms = False

    def uses_rope(self) -> bool:
        """Whether queries and keys rotate by their positions, in any layer."""
        return True

    def read_norm_eps(self) -> float:
        return self.config.number("rms_norm_eps", default=self.default_eps)

    def read_window(self) -> tuple[int, list[bool]]:
        """None: transformers' Llama ignores sliding_window, and so does PowerInfer's Bamboo."""
        if self.config.values.get("sliding_window") is not None:
            self.notes.append("this family's attention does not slide: sliding_window is not used")
        return 0, []

    def outputs(self, weights: Weights, transpose_down: bool) -> Iterator[Output]:
        yield self.embedding(weights, f"{self.prefix}.{self.first.removesuffix('.weight')}")
        if self.rope:
            yield from self.rope.outputs()
        for i in range(self.n_layer):
            yield from self.layer(weights, f"{self.prefix}.layers.{i}", f"blk.{i}", transpose_down)
        if self.guesses:
            yield from self.guessing_layer(weights, f"blk.{self.n_layer}")
        yield from self.last(weights)
        yield from self.head(weights)

    def last(self, weights: Weights) -> Iterator[Output]:
        """What is between the last layer and the head."""
        name = f"{self.prefix}.{self.last_norm}"
        yield from self.norm(weights, name, "output_norm", self.norm_bias)

    def guessing_layer(self, weights: Weights, block: str) -> Iterator[Output]:
        """The layer that predicts further tokens (`take_guesses`)."""
        raise NotImplementedError

    def joined(self, weights: Weights, names: dict[str, str], block: str) -> Iterator[Output]:
        """What is before and behind that layer; names: the checkpoint's of the GGUF's."""
        for ours, theirs in names.items():
            name = f"{block}.nextn.{ours}"
            if ours == "eh_proj":
                shape = (self.n_embd, 2 * self.n_embd)
                yield from self.linear(weights, theirs, name, shape)
            else:
                yield from self.norm(weights, theirs, name)

    def head(self, weights: Weights) -> Iterator[Output]:
        yield from super().head(weights)
        if self.head_bias:
            yield from_weight("output.bias", weights.take("lm_head.bias", self.n_vocab))

    def layer(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        name = f"{theirs}.input_layernorm"
        yield from self.norm(weights, name, f"{block}.attn_norm", self.norm_bias)
        yield from self.attention(weights, f"{theirs}.self_attn", block)
        if not self.parallel:
            name = f"{theirs}.post_attention_layernorm"
            yield from self.norm(weights, name, f"{block}.{self.ffn_norm}", self.norm_bias)
        yield from self.ffn(weights, theirs, block, transpose_down)

    def attention(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        n_head = self.heads_of(block)
        for part, heads, turns in (
            ("q", n_head * (2 if self.gates_attention else 1), True),
            ("k", self.n_head_kv, True),
            ("v", self.n_head_kv, False),
        ):
            order = self.rotated(heads) if turns else None
            shape = (heads * self.head_dim, self.n_embd)
            name = f"{theirs}.{part}_proj"
            yield from self.linear(
                weights, name, f"{block}.attn_{part}", shape, self.qkv_bias, order
            )
            if turns and self.head_norms:
                name = f"{block}.attn_{part}_norm.weight"
                yield self.head_norm(weights, f"{theirs}.{part}", heads, name)
        shape = (self.n_embd, n_head * self.head_dim)
        name = f"{theirs}.{self.attention_out}"
        yield from self.linear(weights, name, f"{block}.attn_output", shape, self.o_bias)

    def heads_of(self, _block: str) -> int:
        """Heads of queries in a layer."""
        return self.n_head

    def rotated(self, heads: int) -> np.ndarray | None:
        """The order of the rows of heads that rotate; None: that of the checkpoint."""
        return interleaved(heads, self.head_dim) if self.pairs else None

    def head_norm(self, weights: Weights, theirs: str, _heads: int, ours: str) -> Output:
        """The norm over each head of queries or keys."""
        return from_weight(ours, weights.take(f"{theirs}_norm.weight", self.head_dim))

    def ffn(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        for part in ("gate", "up") if self.gated else ("up",):
            name, shape = f"{theirs}.{self.mlp}.{part}_proj", (self.n_ff_dense, self.n_embd)
            yield from self.linear(weights, name, f"{block}.ffn_{part}", shape, self.mlp_bias)
        name = f"{theirs}.{self.mlp}.down_proj"
        yield from self.down(weights, name, block, transpose_down, self.mlp_bias)
        if self.keep_predictors:
            name = f"{theirs}.{self.mlp}.predictor"
            yield from self.own_predictor(weights, name, f"{block}.{{part}}.weight")

    @property
    def n_expert_in(self) -> int:
        """Width of what experts read and give."""
        return self.n_embd

    def experts(
        self, weights: Weights, router: str, expert: str, block: str, turn: bool
    ) -> Iterator[Output]:
        """The router and the experts' matrices, stacked.

        expert: the checkpoint's name, with {i} for the expert and {part} for its names of gate, up
        and down (expert_parts).
        """
        yield self.router_of(weights, router, block)
        for part in ("gate", "up", "down") if self.gated else ("up", "down"):
            shape = (self.n_ff, self.n_expert_in)
            shape = shape[::-1] if part == "down" else shape
            theirs = self.expert_parts[part]
            names = [expert.format(i=i, part=theirs) for i in range(self.n_expert)]
            yield stacked_experts(block, part, [weights.take(n, *shape) for n in names], turn)

    def router_of(self, weights: Weights, theirs: str, block: str) -> Output:
        weight = weights.take(f"{theirs}.weight", self.n_expert, self.n_embd)
        return from_weight(f"{block}.ffn_gate_inp.weight", weight, exact=True)


def stacked_experts(block: str, part: str, experts: list[Weight], turn: bool) -> Output:
    """Gates, ups or downs of a layer's experts as one tensor; turn: down by neurons."""
    by_neuron = turn and part == "down"
    name = f"{block}.ffn_{part}{'_t' if by_neuron else ''}_exps.weight"
    return stacked(name, [(transposed if by_neuron else from_weight)(name, w) for w in experts])


class NormsAround(Llama):
    """Norms before and behind both parts."""

    # In the checkpoint, in their order; Gemma 2's.
    norms_around = ("input", "post_attention", "pre_feedforward", "post_feedforward")

    def layer(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        before, behind, before_ffn, behind_ffn = (
            f"{theirs}.{name}_layernorm" for name in self.norms_around
        )
        yield from self.norm(weights, before, f"{block}.attn_norm")
        yield from self.attention(weights, f"{theirs}.self_attn", block)
        yield from self.norm(weights, behind, f"{block}.post_attention_norm")
        yield from self.norm(weights, before_ffn, f"{block}.ffn_norm")
        yield from self.ffn(weights, theirs, block, transpose_down)
        yield from self.norm(weights, behind_ffn, f"{block}.post_ffw_norm")


class Bamboo(Llama):
    """Bamboo, and TurboSparse-Mistral, which has the same model_type and holds its predictors."""

    architecture = "bamboo"
    may_hold_predictors = True

    def __init__(self, config: Config):
        super().__init__(config)
        if self.activation == "relu":
            self.activation = "drelu"  # Bamboo's own code applies hidden_act to gate and to up


class Mistral(Llama):
    default_window: int | None = 4096

    def read_window(self) -> tuple[int, list[bool]]:
        return read_window(self.config, self.n_layer, self.n_ctx, missing=self.default_window)


class Mixtral(Mistral):
    default_theta = 1000000.0
    default_eps = 1e-5
    default_window = None
    expert_parts = {"gate": "w1", "up": "w3", "down": "w2"}

    def __init__(self, config: Config):
        super().__init__(config)
        self.n_expert = config.integer("num_local_experts", "num_experts")
        self.n_expert_used = config.integer("num_experts_per_tok")

    def ffn(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        moe = f"{theirs}.block_sparse_moe"
        expert = f"{moe}.experts.{{i}}.{{part}}.weight"
        yield from self.experts(weights, f"{moe}.gate", expert, block, transpose_down)


class TurboSparseMixtral(Mixtral):
    """Mixtral with ReLU on gate and up, and a predictor for each expert."""

    may_hold_predictors = True

    def __init__(self, config: Config):
        super().__init__(config)
        if self.activation == "relu":
            self.activation = "drelu"  # its own code applies hidden_act to both

    def ffn(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        yield from super().ffn(weights, theirs, block, transpose_down)
        if not self.keep_predictors:
            return
        found = []
        for i in range(self.n_expert):
            name = f"{theirs}.block_sparse_moe.experts.{i}.predictor"
            found.append(list(self.own_predictor(weights, name, f"{block}.{{part}}_exps.weight")))
        for parts in zip(*found, strict=True):
            if len({part.shape for part in parts}) > 1:
                raise self.refuse(f"{parts[0].name} with ranks that differ from expert to expert")
            yield replace(stacked(parts[0].name, parts), predictor=True)


class Qwen2(Llama):
    architecture = "qwen2"
    pairs = False

    def __init__(self, config: Config):
        super().__init__(config)
        self.qkv_bias = True

    def read_window(self) -> tuple[int, list[bool]]:
        if not self.config.flag("use_sliding_window"):
            self.config.known("sliding_window", "max_window_layers")
            return 0, []
        first = self.config.integer("max_window_layers", default=28, least=0)
        return read_window(self.config, self.n_layer, self.n_ctx, first, missing=4096)


class Qwen3(Qwen2):
    architecture = "qwen3"

    def __init__(self, config: Config):
        super().__init__(config)
        self.qkv_bias = self.o_bias  # attention_bias
        self.head_norms = True
        # Of a model that ranks: the tokens whose logits are the scores for and against.
        self.labels: tuple[int, int] | None = None

    def outputs(self, weights: Weights, transpose_down: bool) -> Iterator[Output]:
        head = "lm_head.weight" if "lm_head.weight" in weights else f"{self.root}{self.first}"
        table = weights.peek(head)
        yield from super().outputs(weights, transpose_down)
        if self.labels is not None and table is not None:
            rows = row_order("cls.output.weight", table, np.array(self.labels))
            yield replace(rows, exact=True)

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        if self.labels is not None:
            yield array(f"{self.architecture}.classifier.output_labels", "STRING", ["yes", "no"])

    def ranks_by(self, yes: int, no: int) -> None:
        """The model ranks, and the logits of these tokens are its scores."""
        self.labels, self.ranks = (yes, no), True
