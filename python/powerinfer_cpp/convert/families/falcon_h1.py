"""Falcon-H1: Mamba-2 and attention side by side in each layer, and a multiplier for everything."""

import re
from collections.abc import Iterator

from ..config import Config, section_number
from ..tensors import Output, Weights, from_weight, scaled
from ..writer import Entry
from .llama import Llama
from .recurrent import read_mamba


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
        names = {
            "n_head": "mamba_n_heads",
            "head_dim": "mamba_d_head",
            "n_group": "mamba_n_groups",
            "n_state": "mamba_d_state",
            "taps": "mamba_d_conv",
            "conv_bias": "mamba_conv_bias",
        }
        normed = config.flag("mamba_rms_norm")
        if normed and config.flag("mamba_norm_before_gate", True):
            raise self.refuse("falcon_h1 with norms before gates (mamba_norm_before_gate)")
        config.known("mamba_norm_before_gate", "mamba_use_mlp")
        self.mamba = read_mamba(config, names, normed)
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
