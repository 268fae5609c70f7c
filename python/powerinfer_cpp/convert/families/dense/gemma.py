"""Gemma, Gemma 2 and Gemma 3 (text): norms that multiply by 1 + weight, and scaled embeddings."""

import math
import re
from collections.abc import Iterator

from ...config import Config, section_number
from ...rope import by_layer_type
from ...tensors import Output, Weights, plus_one
from ...writer import Entry, float32
from ..llama import Llama, NormsAround


class Gemma(Llama):
    architecture = "gemma"
    pairs = False
    default_activation = "gelu_tanh"
    has_rope_factors = False
    tied = True

    def __init__(self, config: Config):
        super().__init__(config)
        if self.activation == "gelu":
            self.activation = "gelu_tanh"  # what the first configurations mean by it
        if config.activation("hidden_activation", self.activation) != self.activation:
            raise self.refuse("gemma whose hidden_act and hidden_activation differ")
        if config.flag("use_bidirectional_attention") != self.both_sides:
            raise self.refuse(f"{self.architecture} with attention in both directions")

    def norm(
        self, weights: Weights, theirs: str, ours: str, bias: bool = False
    ) -> Iterator[Output]:
        yield plus_one(f"{ours}.weight", weights.take(f"{theirs}.weight", self.n_embd))

    def head_norm(self, weights: Weights, theirs: str, _heads: int, ours: str) -> Output:
        return plus_one(ours, weights.take(f"{theirs}_norm.weight", self.head_dim))


class Gemma2(NormsAround, Gemma):
    """Norms also after attention and FFN; layers with and without a window take turns."""

    architecture = "gemma2"
    activation_key = "hidden_activation"
    window_period = 2
    period_key: str | None = None  # config.json's name of the period
    # Of the sizes that config.json may leave out, and of the largest model, whose attention scores
    # other engines scale by n_embd / n_head.
    defaults = {"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4}
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    wide_heads = 46

    def __init__(self, config: Config):
        config = config.completed(**self.defaults, **self.caps, sliding_window=4096)
        super().__init__(config)
        scalar = config.number("query_pre_attn_scalar", default=256.0)
        self.attention_scale = 1 / math.sqrt(scalar)
        config.known(*self.caps, *([self.period_key] if self.period_key else []))

    def read_window(self) -> tuple[int, list[bool]]:
        config, n = self.config, self.n_layer
        kinds = config.layer_switches("layer_types", n)
        if kinds is None:
            period = self.window_period
            if self.period_key is not None:
                period = config.integer(self.period_key, default=period)
            return config.integer("sliding_window"), [i % period != period - 1 for i in range(n)]
        return config.integer("sliding_window"), [kind == "sliding_attention" for kind in kinds]

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        arch = self.architecture
        wide = self.n_layer == self.wide_heads
        usual = 1 / math.sqrt(self.n_embd // self.n_head if wide else self.head_dim)
        if not math.isclose(self.attention_scale, usual, rel_tol=1e-6):
            yield float32(f"{arch}.attention.scale", self.attention_scale)
        for name, default in self.caps.items():
            cap = self.config.values.get(name)
            found = section_number(str(self.config.path), {name: cap}, name) if cap else 0.0
            if found != (default or 0):
                yield float32(f"{arch}.{name}", found)


class Gemma3(Gemma2):
    """Norms of queries and keys, and RoPE of their own for layers with a window."""

    architecture = "gemma3"
    window_period = 6
    period_key = "sliding_window_pattern"
    default_theta = 1000000.0
    defaults = {**Gemma2.defaults, "vocab_size": 262208, "max_position_embeddings": 131072}
    caps = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    wide_heads = 62
    # Of the checkpoints that see images.
    left_out = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\..+")
    copies_head = False  # a checkpoint that sees images may hold a copy of the embedding

    def __init__(self, config: Config):
        self.config = config
        text = config.section("text_config")
        if text is not config:
            text = text.completed(hidden_size=2304, num_hidden_layers=26, intermediate_size=9216)
        self.local_theta = text.number("rope_local_base_freq", default=10000.0)
        text, windowed = by_layer_type(text)
        if windowed is not None:
            local = windowed.values.get("rope_parameters") or {}
            where = f"{config.path}: sliding_attention"
            self.local_theta = section_number(where, local, "rope_theta", self.local_theta)
            if local.get("rope_type", "default") != "default":
                raise self.refuse("gemma3 with scaled RoPE in layers with a window")
        super().__init__(text)
        self.head_norms = True
        if config.values.get("text_config") is not None:
            config.known("vision_config", "tie_word_embeddings")
            self.copies_head = True
            self.notes.append("only the text part is converted, without the images' tower")

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        yield float32(f"{self.architecture}.rope.freq_base_swa", self.local_theta)

    def outputs(self, weights: Weights, transpose_down: bool) -> Iterator[Output]:
        if self.copies_head:
            weights.drop("lm_head.weight")
        return super().outputs(weights, transpose_down)
