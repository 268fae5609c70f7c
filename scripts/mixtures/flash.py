"""Qwen3.8 Flash Next for make_mixture.py: Qwen3.6's layers between four residual streams, and a
table of n-grams, of which a token reads some rows.

The streams are alike, and what reads them takes half of each: their norms have weights of 2, so a
layer reads what it would read of a single stream. What n-grams and mixing add is next to nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
from powerinfer_cpp.convert.formats import format_by_name
from powerinfer_cpp.convert.stored import Stored
from powerinfer_cpp.convert.writer import Entry, array, uint32

from .hybrid import SETS, TAPS, TURNS, Hybrid, Qwen, silu
from .plain import SCALE, Shape

STREAMS, RANK = 4, 320
ORDER, HEADS = 3, 8  # n-grams of two and three tokens, and hashes of each
KEPT, BLOCK = 2048, 16  # positions that the indexer keeps, in blocks of so many
INDEX_HEADS, INDEX_DIM = 16, 128
SLAB = 4096  # rows of the table before they are used again


class Flash(Qwen):
    architecture = "qwen4exp"

    def __init__(self, args: argparse.Namespace, shape: Shape) -> None:
        self.row = shape.embd // self.gram_heads
        self.table = format_by_name("Q8_0" if self.row % 32 == 0 else "F16")
        super().__init__(args, shape)

    @property
    def gram_heads(self) -> int:
        return (ORDER - 1) * HEADS

    def _mixer(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        # The sigmoid of the gate has another size than silu.
        return {**super()._mixer(rng), "out": self._out(rng, self.inner, 0.54)}

    def _turned(self, layer: int, x: np.ndarray) -> np.ndarray | float:
        if self.kinds()[layer] != "D":
            return 0.0
        m = self.sets[layer % SETS]
        value, z = (self._decoded(m[name], self.shape.embd) for name in ("turned", "z"))
        y = self._folded(silu(x @ value.T), 1 / (1 + np.exp(-(x @ z.T))))
        out = self._decoded(m["out"], self.inner)[:, :TURNS]
        return np.float32(self.args.turn) * (y @ out.T)

    def _last(self) -> Iterator[Stored]:
        yield from self._mix("output_hc", False)

    def _mix(self, name: str, injects: bool = True) -> Iterator[Stored]:
        width = STREAMS * self.shape.embd
        yield self._floats(f"{name}_norm.weight", np.full(width, 2.0))
        yield self._small(f"{name}_down.weight", RANK, width)
        yield self._small(f"{name}_up.weight", width, RANK)
        if injects:
            yield self._small(f"{name}_inject.weight", STREAMS, width)

    def _before(self, i: int, block: str) -> Iterator[Stored]:
        yield from self._mix(f"{block}.hc_attn")
        yield from self._mix(f"{block}.hc_ffn")
        if i == 0:
            yield from self._grams(block)
        if self.kinds()[i] == "D":
            return
        n = self.shape.embd
        yield self._small(f"{block}.indexer.q_proj.weight", INDEX_HEADS * INDEX_DIM, n)
        yield self._small(f"{block}.indexer.k_proj.weight", INDEX_DIM, n)
        for part in ("q", "k"):
            yield self._floats(f"{block}.indexer.{part}_norm.weight", np.ones(INDEX_DIM))

    def _grams(self, block: str) -> Iterator[Stored]:
        n, width = self.shape.embd, STREAMS * self.shape.embd
        yield self._rows_of_table()
        yield self._small(f"{block}.ple_key.weight", width, n)
        yield self._small(f"{block}.ple_value.weight", n, n)
        conv = np.full((width, TAPS), SCALE)
        yield self._floats(f"{block}.ple_conv1d.weight", conv)
        for part in ("key", "query", "conv"):
            yield self._floats(f"{block}.ple_norm_{part}.weight", np.ones(width))

    def _rows_of_table(self) -> Stored:
        rng = np.random.default_rng(self.args.seed)
        values = self._normal(rng, SLAB, self.row)
        slab = self._in(self.table, values)

        def rows(a: int, b: int) -> np.ndarray:
            return slab[np.arange(a, b) % SLAB].reshape(-1)

        shape = (self.gram_heads * self.args.grams, self.row)
        return Stored("per_layer_token_embd.weight", shape, self.table, rows)

    def _own_keys(self, arch: str) -> Iterator[Entry]:
        yield from super()._own_keys(arch)
        n = self.args.grams
        yield uint32(f"{arch}.hyper_connection.count", STREAMS)
        yield uint32(f"{arch}.hyper_connection.low_rank", RANK)
        yield uint32(f"{arch}.attention.indexer.head_count", INDEX_HEADS)
        yield uint32(f"{arch}.attention.indexer.key_length", INDEX_DIM)
        yield uint32(f"{arch}.attention.indexer.top_k", KEPT)
        ratios = [0 if kind == "D" else BLOCK for kind in self.kinds()]
        yield array(f"{arch}.attention.compress_ratios", "INT32", ratios)
        yield uint32(f"{arch}.embedding_length_per_layer_input", self.row)
        ple = f"{arch}.ple"
        yield array(f"{ple}.layers", "INT32", [0])
        yield uint32(f"{ple}.ngram_size", ORDER)
        yield uint32(f"{ple}.heads_per_ngram", HEADS)
        yield uint32(f"{ple}.conv_kernel", TAPS)
        yield uint32(f"{ple}.eos_token_id", 2)
        odd = np.random.default_rng(self.args.seed).integers(1 << 43, 1 << 44, ORDER) * 2 + 1
        yield array(f"{ple}.layer_multipliers", "UINT64", [int(i) for i in odd])
        heads = self.gram_heads
        yield array(f"{ple}.head_offsets", "UINT64", [n * head for head in range(heads)])
        yield array(f"{ple}.head_vocab_sizes", "UINT64", [n - head for head in range(heads)])


# Layers, experts, used, width and experts' width so that the sums are the published 125 and 51
# billion, of which 6 are used.
FLASH: dict[str, tuple[type[Hybrid], Shape]] = {
    "qwen3.8-flash-next": (Flash, Shape(48, 512, 10, 2560, 640, 16, 2, 248320)),
    "flash-small": (Flash, Shape(4, 32, 4, 256, 256, 2, 1, 1024)),
}
