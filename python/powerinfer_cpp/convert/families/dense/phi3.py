"""Phi-3, Phi-3.5, Phi-4: Llama with fused matrices; longer contexts by LongRoPE."""

from collections.abc import Iterator

import numpy as np

from ...config import Config
from ...tensors import Output, Weights, row_order
from ..family import Family
from ..llama import Mistral


class Phi3(Mistral):
    architecture = "phi3"
    pairs = False
    rotates_partly = True
    default_eps = 1e-5
    default_window = None

    def __init__(self, config: Config):
        super().__init__(config)
        plain = self.rope and self.rope.kind == "none" and self.rope.divisors is None
        if self.rope and self.rope.kind != "longrope" and not plain:
            raise self.refuse("phi3 with a rope scaling other than longrope")

    def attention(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        for name, ours, shape in (
            ("qkv_proj", "attn_qkv", (self.n_q + 2 * self.n_kv, self.n_embd)),
            ("o_proj", "attn_output", (self.n_embd, self.n_q)),
        ):
            yield from self.linear(weights, f"{theirs}.{name}", f"{block}.{ours}", shape)

    def ffn(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        return fused_ffn(self, weights, theirs, block, transpose_down)


def fused_ffn(
    family: Family, weights: Weights, theirs: str, block: str, transpose_down: bool
) -> Iterator[Output]:
    """A feed-forward block whose gate and up are one matrix, gates first.

    As llama.cpp has them; in neuron-aware files a neuron's rows are apart.
    """
    n_ff = family.n_ff
    both = weights.take(f"{theirs}.mlp.gate_up_proj.weight", 2 * n_ff, family.n_embd)
    first = {"gate": 0, "up": n_ff} if transpose_down else {"up": 0}
    for part, row in first.items():
        order = np.arange(row, row + 2 * n_ff // len(first))
        yield row_order(f"{block}.ffn_{part}.weight", both, order)
    yield from family.down(weights, f"{theirs}.mlp.down_proj", block, transpose_down, False)
