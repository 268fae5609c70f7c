"""Dense families near Llama: SmolLM3, OLMo 2 and 3, EXAONE 4, Ministral 3, Seed-OSS, GLM-4,
Cohere 2, Apertus."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ....core.errors import ModelFormatError
from ...config import Config
from ...rope import Rope, by_layer_type
from ...tensors import Output, Weights, from_weight
from ...weight import widen
from ...writer import Entry, array, float32
from ..llama import Llama, Mistral, NormsAround
from .phi3 import fused_ffn

_PERIOD = 4  # of layers of another kind, where config.json does not say


def layer_windows(
    config: Config, n_layer: int, period: int, last_sees_all: bool = False
) -> tuple[int, list[bool]]:
    """The window in positions, 0 for none, and which layers have it: layer_types, or all but the
    last of each period (last_sees_all: never the last one).

    Unlike read_window() it keeps windows that are as long as the context: other things may follow
    from them. Raises ModelFormatError if layers have a window without a size.
    """
    kinds = config.layer_switches("layer_types", n_layer)
    slides = [(i + 1) % period != 0 for i in range(n_layer)] if period else [False] * n_layer
    if kinds is not None:
        slides = [kind == "sliding_attention" for kind in kinds]
    if last_sees_all:
        slides[-1] = False
    width = config.values.get("sliding_window")
    if not any(slides):
        return 0, []
    if width is None:
        raise ModelFormatError(f"{config.path}: layers have a window, but sliding_window is null")
    return config.integer("sliding_window"), slides


def layer_kinds(slides: list[bool]) -> list[str]:
    """What layer_types says of such windows."""
    return [f"{'sliding' if window else 'full'}_attention" for window in slides]


def rotation_entries(rotates: list[bool], usual: list[bool]) -> Iterator[Entry]:
    """Our own key for layers that rotate otherwise than the architecture's usually do."""
    if rotates != usual:
        yield array("powerinfer.rope.layers", "BOOL", rotates)


class SmolLm3(Llama):
    """Every fourth layer has no positions."""

    architecture = "smollm3"
    tied = True

    def __init__(self, config: Config):
        super().__init__(config)
        period = config.integer("no_rope_layer_interval", default=_PERIOD)
        flags = config.layer_switches("no_rope_layers", self.n_layer)
        self.rotates = [bool((i + 1) % period) for i in range(self.n_layer)]
        if flags is not None:
            self.rotates = [bool(flag) for flag in flags]

    def read_window(self) -> tuple[int, list[bool]]:
        if self.config.flag("use_sliding_window"):
            raise self.refuse("smollm3 with a sliding window")
        self.config.known("sliding_window", "max_window_layers")
        return 0, []

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        usual = [bool((i + 1) % _PERIOD) for i in range(self.n_layer)]
        yield from rotation_entries(self.rotates, usual)


class Ministral3(Mistral):
    """Ministral 3, and the text part of Mistral 3, which sees images."""

    architecture = "mistral3"
    default_window = None
    default_eps = 1e-5
    left_out = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\..+")

    def __init__(self, config: Config):
        text = config.section("text_config")
        self.log_multiplier = 0.0
        super().__init__(text)
        if text is not config:
            kind = text.model_type()
            if kind not in ("ministral3", "mistral"):
                raise self.refuse(f"mistral3 around {kind}")
            config.known("vision_config", "tie_word_embeddings")
            for key in ("image_token_index", "projector_hidden_act", "spatial_merge_size"):
                config.known(key)
            config.known("multimodal_projector_bias", "vision_feature_layer")
            self.notes.append("only the text part is converted, without the images' tower")
        rope = text.section("rope_parameters").values
        beta = rope.get("llama_4_scaling_beta") if rope is not text.values else None
        self.growth = (
            0.0 if beta is None else text.section("rope_parameters").number("llama_4_scaling_beta")
        )

    def read_rope(self, default_theta: float = 10000.0) -> Rope:
        """llama.cpp has a key for mscale_all_dim, by which it divides YaRN's own factor."""
        rope = super().read_rope(default_theta)
        values = self.config.values.get("rope_parameters") or {}
        both = [values.get("mscale"), values.get("mscale_all_dim")]
        if rope.kind != "yarn" or not all(both):
            return rope
        self.log_multiplier = float(both[1])
        own = 0.1 * self.log_multiplier * math.log(rope.factor) + 1 if rope.factor > 1 else 1.0
        return replace(rope, attention_factor=_nearly_one(rope.attention_factor * own))

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        if self.log_multiplier:
            yield float32("mistral3.rope.scaling.yarn_log_multiplier", self.log_multiplier)
        if self.growth:
            yield float32("mistral3.attention.temperature_scale", self.growth)


def _nearly_one(value: float) -> float:
    return 1.0 if math.isclose(value, 1.0, rel_tol=1e-9) else value


class SeedOss(Llama):
    architecture = "seed_oss"
    pairs = False
    has_rope_factors = False
    ffn_norm = "post_attention_norm"

    def __init__(self, config: Config):
        super().__init__(config)
        self.o_bias = config.flag("attention_out_bias")


class Glm4(NormsAround):
    """Norms before and behind both parts; gate and up in one tensor; half of a head rotates."""

    architecture = "glm4"
    norms_around = ("input", "post_self_attn", "post_attention", "post_mlp")
    pairs = False  # neighbours, as in the GGUF
    default_part = 0.5
    default_eps = 1.5625e-07
    rotates_partly = True
    has_rope_factors = False

    def __init__(self, config: Config):
        super().__init__(config)
        self.o_bias = False

    def ffn(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        return fused_ffn(self, weights, theirs, block, transpose_down)


class Olmo2(Llama):
    """Norms behind both parts only, and over the whole rows of queries and keys."""

    architecture = "olmo2"
    pairs = False
    lists_windows = True
    default_eps = 1e-5
    has_rope_factors = False

    def __init__(self, config: Config):
        super().__init__(config)
        self.head_norms = True

    def head_norm(self, weights: Weights, theirs: str, heads: int, ours: str) -> Output:
        return from_weight(ours, weights.take(f"{theirs}_norm.weight", heads * self.head_dim))

    def layer(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        yield from self.attention(weights, f"{theirs}.self_attn", block)
        name = f"{theirs}.post_attention_layernorm"
        yield from self.norm(weights, name, f"{block}.post_attention_norm")
        yield from self.ffn(weights, theirs, block, transpose_down)
        name = f"{theirs}.post_feedforward_layernorm"
        yield from self.norm(weights, name, f"{block}.post_ffw_norm")


class Olmo3(Olmo2):
    """Windows, in whose layers the rotation is not scaled."""

    default_theta = 500000.0

    def __init__(self, config: Config):
        config, windowed = by_layer_type(config.completed(sliding_window=4096))
        super().__init__(config)
        assert self.rope
        self.local = self.rope
        if windowed is not None:
            self.config = windowed
            self.local = self.read_rope(self.default_theta)
            self.config = config
            if self.local.kind != "none":
                raise self.refuse("olmo3 with scaled RoPE in layers with a window")

    def read_window(self) -> tuple[int, list[bool]]:
        return layer_windows(self.config, self.n_layer, _PERIOD)

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        if self.window:
            yield float32("olmo2.rope.freq_base_swa", self.local.theta)


class Exaone4(Olmo2):
    """Norms of each head of queries and keys; a model with windows rotates only there."""

    architecture = "exaone4"
    has_rope_factors = True

    def head_norm(self, weights: Weights, theirs: str, heads: int, ours: str) -> Output:
        return Llama.head_norm(self, weights, theirs, heads, ours)

    def __init__(self, config: Config):
        super().__init__(config.completed(sliding_window=4096))

    def read_window(self) -> tuple[int, list[bool]]:
        pattern = self.config.values.get("sliding_window_pattern")
        if self.config.values.get("sliding_window") is None:  # null: no layer has one
            self.config.known("layer_types")
            return 0, []
        if not isinstance(pattern, str) or not re.fullmatch("[LG]+", pattern):
            period = self.config.integer("sliding_window_pattern", default=_PERIOD, least=0)
            return layer_windows(self.config, self.n_layer, period)
        width, slides = layer_windows(self.config, self.n_layer, _PERIOD)
        if self.config.values.get("layer_types") is None and width:
            slides = [pattern[i % len(pattern)] == "L" for i in range(self.n_layer)]
        return (width, slides) if any(slides) else (0, [])

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        usual = self.slides or [True] * self.n_layer
        local = self.config.values.get("sliding_window") is not None
        rotates = (self.slides or [False] * self.n_layer) if local else usual
        yield from rotation_entries(rotates, usual)


class Cohere2(Llama):
    """Attention and feed-forward block read one LayerNorm; layers with a window rotate."""

    architecture = "cohere2"
    norm_epsilon = "layer_norm_epsilon"
    pairs = False  # neighbours, as in the GGUF
    parallel = True
    has_rope_factors = False
    tied = True
    window_period = _PERIOD

    def __init__(self, config: Config):
        super().__init__(config.completed(sliding_window=4096, logit_scale=0.0625))
        self.logit_scale = self.config.number("logit_scale")
        if self.config.values.get("position_embedding_type") not in (None, "rope_gptj"):
            raise self.refuse("cohere2 with positions other than rope_gptj")
        # Of the first checkpoints, whose model is the same.
        config.known("layer_switch", "order_of_interleaved_layers", "use_embedding_sharing")
        config.known("use_gated_activation", "use_parallel_block", "use_parallel_embedding")

    def read_norm_eps(self) -> float:
        return self.config.number("layer_norm_eps", default=1e-5)

    def read_window(self) -> tuple[int, list[bool]]:
        period = self.config.integer("sliding_window_pattern", default=_PERIOD)
        return layer_windows(self.config, self.n_layer, period)

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        yield float32(f"{self.architecture}.logit_scale", self.logit_scale)


class Apertus(Llama):
    """No gate, and xIELU, whose parameters each layer has as tensors."""

    architecture = "apertus"
    pairs = False
    default_eps = 1e-5
    default_activation = "xielu"

    def __init__(self, config: Config):
        super().__init__(config)
        if not config.flag("qk_norm", True) or config.flag("post_norm"):
            raise self.refuse("apertus with qk_norm off or post_norm on")
        self.head_norms = True
        self.xielu: dict[str, list[float]] = {}  # parameter -> a value for each layer

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        for name, values in self.xielu.items():
            yield array(f"xielu.{name}", "FLOAT32", values)

    def layer(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        yield from self.norm(weights, f"{theirs}.attention_layernorm", f"{block}.attn_norm")
        yield from self.attention(weights, f"{theirs}.self_attn", block)
        yield from self.norm(weights, f"{theirs}.feedforward_layernorm", f"{block}.ffn_norm")
        yield from self.ffn(weights, theirs, block, transpose_down)

    def ffn(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        if transpose_down and self.activation == "xielu":
            raise self.refuse("neuron rows with xielu")
        self._read_xielu(weights, f"{theirs}.mlp.act_fn")
        name, shape = f"{theirs}.mlp.up_proj", (self.n_ff, self.n_embd)
        yield from self.linear(weights, name, f"{block}.ffn_up", shape, self.mlp_bias)
        name = f"{theirs}.mlp.down_proj"
        yield from self.down(weights, name, block, transpose_down, self.mlp_bias)

    def _read_xielu(self, weights: Weights, theirs: str) -> None:
        for name, shape in (("alpha_p", (1,)), ("alpha_n", (1,)), ("beta", ()), ("eps", ())):
            if self.activation != "xielu" or weights.of_adapter:
                weights.drop(f"{theirs}.{name}")  # another one was asked for, or there is none
                continue
            weight = weights.take(f"{theirs}.{name}", *shape)
            value = float(np.ravel(widen(weight.stored(), weight.bf16))[0])
            self.xielu.setdefault(name, []).append(value)
