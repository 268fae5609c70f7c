"""LFM2, LFM2-MoE and LFM3: short convolutions in most layers, attention in the others."""

from collections.abc import Iterator

from ...config import Config
from ...rope import by_layer_type
from ...tensors import Output, Weights, from_weight
from ...writer import Entry, array, float32, of_layers, replaced, uint32
from ..dense.near_llama import layer_windows
from ..llama import Llama
from ..mixtures.mixture import SIGMOID, Mixture
from .states import convolution

# Of the first checkpoints. No code reads them: what they say of the model is always so, or said
# elsewhere.
_UNUSED = (
    "block_dim",
    "block_mlp_init_scale",
    "block_norm_eps",
    "block_out_init_scale",
    "block_use_swiglu",
    "block_use_xavier_init",
    "conv_dim",
    "conv_dim_out",
    "conv_use_xavier_init",
    "num_heads",
    "theta",
    "use_pos_enc",
)


class Lfm2(Llama):
    architecture = "lfm2"
    pairs = False
    default_theta = 1000000.0
    default_eps = 1e-5
    has_rope_factors = False
    tied = True
    attention_out = "out_proj"
    ffn_parts = {"gate": "w1", "up": "w3", "down": "w2"}
    kinds: tuple[str, ...] = ("conv", "full_attention")  # of layers

    def __init__(self, config: Config):
        super().__init__(config)
        if config.flag("conv_bias"):
            raise self.refuse(f"{self.architecture} with biases (conv_bias)")
        self.tied = config.flag("tie_embedding", self.tied)
        self.said_tied = self.said_tied or config.values.get("tie_embedding") is not None
        self.head_norms = True
        self.taps = config.integer("conv_L_cache", default=3, least=2)
        self.recurrent = self.read_kinds()
        config.known(*_UNUSED)

    def read_norm_eps(self) -> float:
        return self.config.number("norm_eps", default=self.default_eps)

    def read_n_ff(self) -> int:
        """Two thirds of what config.json has, times a factor, up to a multiple."""
        config = self.config
        n = config.integer("block_ff_dim", "intermediate_size")
        config.known("intermediate_size")
        adjusts = config.flag("block_auto_adjust_ff_dim", True)
        multiple = config.integer("block_multiple_of", default=256)
        factor = config.number("block_ffn_dim_multiplier", default=1.0)
        if not adjusts:
            return n
        n = int(factor * int(2 * n / 3))
        return -(-n // multiple) * multiple

    def read_kinds(self) -> list[bool]:
        """Which layers have a convolution."""
        config, n = self.config, self.n_layer
        attends = config.values.get("full_attn_idxs")
        kinds = config.layer_switches("layer_types", n)
        if kinds is None:
            attends = range(n) if attends is None else attends
            kinds = ["full_attention" if i in attends else "conv" for i in range(n)]
        if unknown := [kind for kind in kinds if kind not in self.kinds]:
            raise self.refuse(f"{self.architecture} with layers of kind {unknown[0]!r}")
        return [kind == "conv" for kind in kinds]

    def entries(self) -> Iterator[Entry]:
        heads = [0 if recurs else self.n_head_kv for recurs in self.recurrent]
        own = [
            of_layers(f"{self.architecture}.attention.head_count_kv", heads),
            uint32(f"{self.architecture}.shortconv.l_cache", self.taps),
        ]
        return replaced(super().entries(), own)

    def outputs(self, weights: Weights, transpose_down: bool) -> Iterator[Output]:
        yield self.embedding(weights, "model.embed_tokens")
        for i in range(self.n_layer):
            yield from self.layer(weights, f"model.layers.{i}", f"blk.{i}", transpose_down)
        # llama.cpp's name for what is the norm before the head.
        yield from self.norm(weights, "model.embedding_norm", "token_embd_norm")
        yield from self.head(weights)

    def layer(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        yield from self.norm(weights, f"{theirs}.operator_norm", f"{block}.attn_norm")
        yield from self.part(weights, theirs, block)
        yield from self.norm(weights, f"{theirs}.ffn_norm", f"{block}.ffn_norm")
        yield from self.ffn(weights, theirs, block, transpose_down)

    def part(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        """What stands before the feed-forward block, behind its norm."""
        if self.recurrent[int(block.removeprefix("blk."))]:
            yield from self.short_convolution(weights, f"{theirs}.conv", f"{block}.shortconv")
        else:
            yield from self.attention(weights, f"{theirs}.self_attn", block)

    def short_convolution(self, weights: Weights, theirs: str, ours: str) -> Iterator[Output]:
        n = self.n_embd
        yield from self.linear(weights, f"{theirs}.in_proj", f"{ours}.in_proj", (3 * n, n))
        yield convolution(weights, f"{theirs}.conv", f"{ours}.conv", n, self.taps)
        yield from self.linear(weights, f"{theirs}.out_proj", f"{ours}.out_proj", (n, n))

    def head_norm(self, weights: Weights, theirs: str, _heads: int, ours: str) -> Output:
        return from_weight(ours, weights.take(f"{theirs}_layernorm.weight", self.head_dim))

    def ffn(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        def name(part: str) -> str:
            return f"{theirs}.feed_forward.{self.ffn_parts[part]}"

        shape = (self.n_ff_dense, self.n_embd)
        for part in ("gate", "up"):
            yield from self.linear(weights, name(part), f"{block}.ffn_{part}", shape)
        yield from self.down(weights, name("down"), block, transpose_down, bias=False)


class Lfm2Moe(Mixture, Lfm2):
    architecture = "lfm2moe"
    moe = "feed_forward"
    choice_bias = "expert_bias"
    gating = SIGMOID
    expert_parts = Lfm2.ffn_parts

    def __init__(self, config: Config):
        super().__init__(config)
        self.normalise = config.flag("norm_topk_prob", True)
        self.expert_scale = config.number("routed_scaling_factor", default=1.0)
        if not config.flag("use_expert_bias", True):
            self.choice_bias = ""

    def dense_layers(self) -> list[bool]:
        n = self.config.integer("num_dense_layers", default=2, least=0)
        return [i < n for i in range(self.n_layer)]


class Lfm3(Lfm2):
    """Norms also behind both parts, gates of heads, and attention with a window in some layers."""

    architecture = "lfm3"
    has_rope_factors = True
    attention_out = "o_proj"
    kinds = ("conv", "full_attention", "sliding_attention")

    def __init__(self, config: Config):
        config = config.completed(**_LFM3)
        if config.values.get("rope_parameters") is None:
            config.values["rope_parameters"] = _ROTATIONS
        if config.values.get("layer_types") is None:
            n_layer = config.integer("num_hidden_layers")
            config.values["layer_types"] = [_kind_of_lfm3(i) for i in range(n_layer)]
        full, windowed = by_layer_type(config)
        super().__init__(full)
        if windowed is None:
            raise self.refuse("lfm3 without rope_parameters of both kinds of attention")
        self.config = windowed
        self.local = self.read_rope(self.default_theta)
        self.config = full
        if self.local.kind != "none" or self.local.divisors is not None:
            raise self.refuse("lfm3 with scaled RoPE in layers with a window")
        self.sandwiches = full.flag("use_sandwich_norm", True)
        self.gates = full.flag("use_attention_gate", True)

    def read_n_ff(self) -> int:
        return self.config.integer("intermediate_size")

    def read_window(self) -> tuple[int, list[bool]]:
        return layer_windows(self.config, self.n_layer, 0)

    def pattern_entries(self) -> Iterator[Entry]:
        yield array("lfm3.attention.sliding_window_pattern", "BOOL", self.slides)

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        yield float32("lfm3.rope.freq_base_swa", self.local.theta)

    def outputs(self, weights: Weights, transpose_down: bool) -> Iterator[Output]:
        assert self.rope
        yield from self.rope.outputs()
        yield from super().outputs(weights, transpose_down)

    def part(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        yield from super().part(weights, theirs, block)
        if self.sandwiches:
            yield from self.norm(
                weights, f"{theirs}.post_operator_norm", f"{block}.post_attention_norm"
            )

    def attention(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        yield from super().attention(weights, theirs, block)
        if self.gates:
            # Published checkpoints have the one name, transformers' module the other.
            name = "g_proj" if f"{theirs}.g_proj.weight" in weights else "gate_proj"
            shape = (self.n_head, self.n_embd)
            yield from self.linear(weights, f"{theirs}.{name}", f"{block}.attn_gate", shape)

    def head_norm(self, weights: Weights, theirs: str, heads: int, ours: str) -> Output:
        return Llama.head_norm(self, weights, theirs, heads, ours)

    def ffn(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        yield from super().ffn(weights, theirs, block, transpose_down)
        if self.sandwiches:
            yield from self.norm(weights, f"{theirs}.post_ffn_norm", f"{block}.post_ffw_norm")


def _kind_of_lfm3(layer: int) -> str:
    """Of a layer, where config.json does not say."""
    if layer % 4 == 2:
        return "full_attention"
    return "sliding_attention" if layer > 0 and layer % 4 == 0 else "conv"


# What config.json may leave out.
_LFM3 = {
    "conv_L_cache": 7,
    "head_dim": 128,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "sliding_window": 256,
}
_ROTATIONS = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {
        "rope_type": "proportional",
        "rope_theta": 1000000.0,
        "partial_rotary_factor": 0.5,
    },
}
