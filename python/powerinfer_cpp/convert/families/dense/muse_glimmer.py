"""Muse Glimmer (text): gated attention, norms before and behind both parts, layers without
positions."""

import re
from collections.abc import Iterator

import numpy as np

from ...config import Config
from ...tensors import Output, Weights, from_values, plus_one
from ...writer import Entry, float32
from ..llama import NormsAround
from .near_llama import layer_windows, rotation_entries

_PERIOD = 4  # of layers, counted from the last one, which sees all and does not rotate
_POST_EPS = 1e-8  # of norms behind both parts, for which llama.cpp has no key


class MuseGlimmer(NormsAround):
    architecture = "muse-glimmer"
    activation_key = "hidden_activation"
    default_eps = 1e-5
    has_rope_factors = False
    lists_windows = True
    # Of the checkpoints that see images.
    left_out = re.compile(r"(model\.)?vision_(tower|adapter|projection)\..+")

    def __init__(self, config: Config):
        text = config.section("text_config")
        if text is not config:
            tied = config.values.get("tie_word_embeddings")
            text = text.completed(tie_word_embeddings=tied)
            config.known("vision_config", "out_hidden_size")
            config.known("projector_hidden_size", "projector_hidden_act")
        super().__init__(text.completed(head_dim=128, num_key_value_heads=2, sliding_window=2048))
        self.head_norms = True
        self.q_scale = text.number("qk_scale_factor", default=3.87)
        self.logit_scale = text.number("output_multiplier", default=0.19611613513818404)
        self.logit_cap = text.number("final_logit_softcapping", default=20.0)
        self.post_eps = text.number("post_norm_eps", default=_POST_EPS)
        self.rotates = self.read_rotates()
        if text is not config:
            self.notes.append("only the text part is converted, without the images' tower")

    def _usual(self) -> list[bool]:
        return [(self.n_layer - 1 - i) % _PERIOD != 0 for i in range(self.n_layer)]

    def read_window(self) -> tuple[int, list[bool]]:
        config = self.config.completed()
        if config.values.get("layer_types") is None:
            kinds = {True: "sliding_attention", False: "full_attention"}
            config.values["layer_types"] = [kinds[slides] for slides in self._usual()]
        return layer_windows(config, self.n_layer, 0)

    def read_rotates(self) -> list[bool]:
        """Which layers rotate: those whose base is not 0."""
        bases = self.config.layer_switches("layer_rope_theta", self.n_layer)
        if bases is None:
            return self._usual()
        assert self.rope
        if other := [base for base in bases if base not in (0, self.rope.theta)]:
            raise self.refuse(
                f"{self.architecture} with a layer_rope_theta of {other[0]!r} beside a rope_theta "
                f"of {self.rope.theta}"
            )
        return [base != 0 for base in bases]

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        yield float32(f"{self.architecture}.logit_scale", self.logit_scale)
        yield float32(f"{self.architecture}.final_logit_softcapping", self.logit_cap)
        if self.post_eps != _POST_EPS:
            yield float32("powerinfer.post_norm_epsilon", self.post_eps)
        yield from rotation_entries(self.rotates, self.slides or [False] * self.n_layer)

    def norm(
        self, weights: Weights, theirs: str, ours: str, bias: bool = False
    ) -> Iterator[Output]:
        """All but the last norm multiply by 1 + weight."""
        if ours == "output_norm":
            yield from super().norm(weights, theirs, ours, bias)
        else:
            yield plus_one(f"{ours}.weight", weights.take(f"{theirs}.weight", self.n_embd))

    def attention(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        yield from super().attention(weights, theirs, block)
        shape = (self.n_q, self.n_embd)
        yield from self.linear(weights, f"{theirs}.gate_proj", f"{block}.attn_gate", shape)

    def head_norm(self, weights: Weights, theirs: str, _heads: int, ours: str) -> Output:
        """The model has no weights here, and multiplies queries by a factor."""
        del weights
        factor = self.q_scale if theirs.endswith("q") else 1.0
        return from_values(ours, np.full(self.head_dim, factor, np.float32))
