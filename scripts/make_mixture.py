#!/usr/bin/env python3
"""Writes a mixture of experts with random weights and a chosen activation density.

    scripts/make_mixture.py 47b.gguf --tokens 47b.ids                 # 8 x 7B at Q4_0: 29 GB
    scripts/make_mixture.py real.gguf --corr 0.8 --rho 0.7            # predictors that err, topics
    scripts/make_mixture.py small.gguf --embd 512 --layers 4 --ff 1408 --heads 8 --kv 8 --rank 256

    scripts/make_mixture.py q.gguf --plain qwen3-30b --router qwen3   # an ordinary GGUF: 17 GB
    scripts/make_mixture.py n.gguf --plain nemotron-3-nano --down Q8_0 --rows --experts 64

For speed and memory, not for text. With --plain the file is an ordinary one (mixtures/plain.py,
mixtures/hybrid.py), whose router follows a stated law (mixtures/routers.py); the other options of
shape and density are not for it. The neurons of nemotron-3-nano fire by themselves: 32 columns of
the stream hold a constant, by which a row of up has a bias. Their rates are in proportion to
exp(-2 u), with u uniform from 0 to 1, and 0.10 in the mean. Each 16 neurons share a direction,
which is 0.19 of the squares of their rows, so that 30% of these blocks are all zero; what is true
of the file is printed. --layers takes its first layers, --experts fewer experts of each: a token
reads as many bytes, and the file is smaller. Without --plain the file is a bundled one, with a
predictor for each expert, from which a model runs that is larger than memory. It goes straight to
the disk; the script takes some 700 MB at the default shape.

The activation is dReLU: neuron n fires where both its gate and its up row give more than 0. The
first 32 columns of the model's stream hold a constant, by which a row has a bias. So gate row n is
positive with a chosen probability: by an exponential law, in which 26% of the neurons fire in 80%
of all cases. Gates have a low rank, so that a predictor of that rank can find their sign: exactly,
or (--corr below 1) with errors, and a lower threshold, as trained ones have. Experts share their
values: each has the rows in an order of its own, and for gates and predictor another order of the
columns, so that no expert's firings say anything about another's. The router's biases make some
experts more popular than others (--skew).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from statistics import NormalDist

import numpy as np
from mixtures.flash import FLASH
from mixtures.hybrid import HYBRIDS, Nemotron
from mixtures.plain import FIRST, SHAPES, Plain
from mixtures.routers import KINDS, table
from powerinfer_cpp.convert.bundles import bundled
from powerinfer_cpp.convert.formats import encode, format_by_name
from powerinfer_cpp.convert.stored import Stored
from powerinfer_cpp.convert.writer import array, float32, string, uint32, write_gguf

CONST = 32  # columns with the constant: a block of the formats
LEVEL = 3.0  # the constant, in units of the other columns' standard deviation
SKEW = 6.2  # exp(-SKEW u): the first 26% of the neurons make 80% of the firings
UP = 1.0  # of an up row, its bias in units of its standard deviation
OUT = 0.01  # what attention and experts add to the stream, so that densities hold in all layers
MARGIN = 0.66  # how much lower the threshold of predictors that err is, in the same units
TOPICS = 64
TOPIC_TOKENS = 200  # of the token file
SLAB = 2048  # rows that are made at a time

# Encoded rows a to b of an expert's matrix, from layer, expert, a and b.
Rows = Callable[[int, int, int, int], np.ndarray]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("out", type=Path)
    add("--embd", type=int, default=4096)
    add("--layers", type=int, help="32; of --plain: its first ones (all of them)")
    add("--experts", type=int, help="of a layer: 8; of --plain: as many as it has")
    add("--used", type=int, default=2, help="experts of a token")
    add("--ff", type=int, default=14336, help="neurons of an expert")
    add("--heads", type=int, default=32)
    add("--kv", type=int, default=8, help="heads of keys and values")
    add("--vocab", type=int, help="32000; of --plain: as many as it has")
    add("--type", default="Q4_0", help="of all matrices, in blocks of 32 or without blocks")
    add("--density", type=float, default=0.10, help="mean share of an expert's neurons that fire")
    add("--layer-skew", type=float, default=0.5, help="s: from 1 - s times that to 1 + s")
    add("--rank", type=int, default=1024, help="of predictors, a multiple of 32; 0: none")
    add("--corr", type=float, default=1.0, help="correlation of predictors with the gates")
    add("--rho", type=float, default=0.0, help="share of a token's embedding that its topic has")
    add("--skew", type=float, default=0.5, help="of the router: 0: all experts are equally popular")
    add("--tokens", type=Path, help="writes 4096 ids here, with a new topic every 200")
    add(
        "--plain",
        choices=[*SHAPES, *HYBRIDS, *FLASH],
        help="an ordinary GGUF with the sizes of this one",
    )
    add("--router", choices=KINDS, default="qwen3", help="of --plain: what its choices are like")
    add("--down", help="of --plain: format of down in every other layer, as K_M files have; "
        "nemotron-3-nano: in all layers")  # fmt: skip
    add("--rows", action="store_true", help="of nemotron-3-nano: neuron rows, as convert.py makes")
    add("--grams", type=int, default=1000, help="of qwen3.8-flash-next: thousands of rows that a "
        "hash of n-grams chooses from; published are 20,000")  # fmt: skip
    add("--turn", type=float, default=0.33, help="of --plain: how much a layer changes the stream")
    add("--n", type=int, default=4096, help="of --plain: tokens of the sequence")
    add("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.rows and args.plain != "nemotron-3-nano":
        parser.error("--rows is for --plain nemotron-3-nano, whose neurons can be left out")
    if not args.plain:
        args.layers, args.experts = args.layers or 32, args.experts or 8
        args.vocab = args.vocab or 32000
    args.grams *= 1000
    args.format = format_by_name(args.type)
    if CONST % args.format.block or args.embd % CONST or args.rank % CONST:
        parser.error("formats need blocks of at most 32; --embd and --rank are multiples of 32")
    return args


class Mixture:
    """The tensors of the model. Rows are made when they are written."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.fmt = args, args.format
        self.width = args.embd
        # After RMSNorm: a constant column, and the standard deviation over tokens of the product
        # with a random row whose squares sum up to 1.
        self.level = LEVEL / np.sqrt((CONST * LEVEL**2 + self.width - CONST) / self.width)
        self.spread = np.sqrt((self.width - CONST) / self.width) * self.level / LEVEL
        rng = self.rng("shared")
        self.order = rng.permutation(args.ff)
        self.rank = (args.rank - CONST) // 2 if args.rank else self.width // 8
        self.basis = self.random(rng, self.rank, self.width)
        self.basis[:, :CONST] = 0
        self.topic = rng.integers(0, TOPICS, args.vocab)
        up = self.biases(np.full(SLAB, 0.5)) + np.float32(UP * self.unit)
        mixes = [self.random(rng, n, self.rank) for n in self.pieces(args.ff)]
        self.gate = self.joined(mix @ self.basis for mix in mixes)
        self.up = self.joined(
            with_bias(self.random(rng, n, self.width), up[:n]) for n in self.pieces(args.ff)
        )
        self.down = self.joined(
            with_bias(self.random(rng, n, self.width, OUT / np.sqrt(args.ff * args.density)), 0)
            for n in self.pieces(args.ff)
        )
        if args.rank:
            # fc2 . relu(fc1 . x) is gate . x, since fc1 has each direction with both signs.
            fc1 = np.zeros((args.rank, self.width), np.float32)
            fc1[: self.rank], fc1[self.rank : 2 * self.rank] = self.basis, -self.basis
            fc1[2 * self.rank :, :CONST] = np.eye(CONST)
            self.fc1 = self.encoded(fc1)
            self.fc2 = self.joined(self.seen(rng, mix) for mix in mixes)

    def rng(self, *what: object) -> np.random.Generator:
        return np.random.default_rng([self.args.seed, *"-".join(map(str, what)).encode()])

    @staticmethod
    def random(rng: np.random.Generator, n: int, cols: int, scale: float = 1) -> np.ndarray:
        """Rows whose squares sum up to scale**2."""
        return rng.standard_normal((n, cols), np.float32) * np.float32(scale / np.sqrt(cols))

    @staticmethod
    def pieces(n: int) -> list[int]:
        return [min(SLAB, n - a) for a in range(0, n, SLAB)]

    def encoded(self, values: np.ndarray) -> np.ndarray:
        return encode(self.fmt, values).reshape(len(values), -1)

    def joined(self, parts: Iterator[np.ndarray]) -> np.ndarray:
        return np.concatenate([self.encoded(part) for part in parts])

    def seen(self, rng: np.random.Generator, mix: np.ndarray) -> np.ndarray:
        """Rows of fc2, without their biases."""
        corr = self.args.corr
        noise = self.random(rng, len(mix), self.rank, np.sqrt(1 - corr**2))
        own = np.float32(corr) * mix + noise
        return np.concatenate([own, -own, np.zeros((len(mix), CONST), np.float32)], axis=1)

    @property
    def unit(self) -> float:
        """What the constant columns of a row hold to shift its products by their deviation."""
        return self.spread / (CONST * self.level)

    def biases(self, rates: np.ndarray) -> np.ndarray:
        """What they hold for a product that is positive at these rates."""
        quantile = np.array([NormalDist().inv_cdf(p) for p in rates])
        return (quantile * self.unit).astype(np.float32)

    @cache  # noqa: B019 (lives as long as the program)
    def gate_biases(self, layer: int) -> np.ndarray:
        """[ff], for a layer's density."""
        args = self.args
        place = 2 * layer / (args.layers - 1) - 1 if args.layers > 1 else 0
        density = args.density * (1 + args.layer_skew * place) / NormalDist().cdf(UP)
        law = np.exp(-SKEW * self.order / args.ff)
        scale = density / law.mean()
        for _ in range(60):
            rates = np.clip(scale * law, 1e-5, 0.95)
            scale *= density / rates.mean()
        return self.biases(rates)

    def constant(self, values: np.ndarray) -> np.ndarray:
        """Encoded blocks of CONST equal values."""
        return self.encoded(np.repeat(values[:, None], CONST, 1))

    def expert_rows(self, layer: int, expert: int) -> np.ndarray:
        return self.rng("rows", layer, expert).permutation(self.args.ff)

    def columns(self, layer: int, expert: int) -> np.ndarray:
        """The order of an expert's blocks of columns; the constant ones stay first."""
        order = self.rng("columns", layer, expert).permutation(self.width // CONST - 1) + 1
        return np.concatenate([[0], order])

    def experts(self, name: str, rows: int, cols: int, layer: int, make: Rows) -> Stored:
        """A stack of matrices."""

        def read(a: int, b: int) -> np.ndarray:
            found = []
            for e in range(a // rows, -(-b // rows)):
                begin, end = max(a - e * rows, 0), min(b - e * rows, rows)
                found.append(np.ascontiguousarray(make(layer, e, begin, end)).reshape(-1))
            return np.concatenate(found)

        shape = (self.args.experts, rows, cols)
        return Stored(f"blk.{layer}.{name}_exps.weight", shape, self.fmt, read)

    def shuffled(self, shared: np.ndarray, layer: int, expert: int) -> np.ndarray:
        """Rows with the expert's order of columns."""
        blocks = shared.reshape(len(shared), self.width // CONST, -1)
        return blocks[:, self.columns(layer, expert)]

    def gate_of(self, layer: int, expert: int, a: int, b: int) -> np.ndarray:
        ids = self.expert_rows(layer, expert)[a:b]
        blocks = self.shuffled(self.gate[ids], layer, expert)
        blocks[:, 0] = self.constant(self.gate_biases(layer)[ids])
        return blocks

    def up_of(self, layer: int, expert: int, a: int, b: int) -> np.ndarray:
        return self.up[self.expert_rows(layer, expert)[a:b]]

    def down_of(self, layer: int, expert: int, a: int, b: int) -> np.ndarray:
        return self.down[self.expert_rows(layer, expert)[a:b]]

    def fc1_of(self, layer: int, expert: int, a: int, b: int) -> np.ndarray:
        return self.shuffled(self.fc1[a:b], layer, expert)

    def fc2_of(self, layer: int, expert: int, a: int, b: int) -> np.ndarray:
        ids = self.expert_rows(layer, expert)[a:b]
        rows = self.fc2[ids].reshape(len(ids), self.args.rank // CONST, -1)
        margin = np.float32(MARGIN * self.unit if self.args.corr < 1 else 0)
        rows[:, -1] = self.constant(self.gate_biases(layer)[ids] + margin)
        return rows

    def matrix(self, name: str, n: int, cols: int, scale: float = 1) -> Stored:
        """A random matrix; scale 0: one that leaves the constant columns of the stream alone."""

        @cache
        def whole() -> np.ndarray:
            values = self.random(self.rng(name.split(".")[-2]), n, cols, scale or OUT)
            if scale == 0:
                values[:CONST] = 0
            return self.encoded(values)

        return self.kept(name, (n, cols), whole)

    def kept(self, name: str, shape: tuple[int, int], whole: Callable[[], np.ndarray]) -> Stored:
        return Stored(name, shape, self.fmt, lambda a, b: whole()[a:b].reshape(-1))

    def vocabulary(
        self, name: str, make: Callable[[np.random.Generator, np.ndarray], np.ndarray]
    ) -> Stored:
        """A matrix with a row for each token. make(rng, tokens): some of its rows."""

        def read(a: int, b: int) -> np.ndarray:
            return np.concatenate(
                [
                    self.encoded(make(self.rng(name, i), np.arange(i, min(i + SLAB, b)))).ravel()
                    for i in range(a, b, SLAB)
                ]
            )

        return Stored(name, (self.args.vocab, self.width), self.fmt, read)

    def embedding(self, rng: np.random.Generator, tokens: np.ndarray) -> np.ndarray:
        own = rng.standard_normal((len(tokens), self.width), np.float32)
        topics = self.rng("topics").standard_normal((TOPICS, self.width), np.float32)
        rho = self.args.rho
        values = np.float32(np.sqrt(1 - rho)) * own
        values += np.float32(np.sqrt(rho)) * topics[self.topic[tokens]]
        values[:, :CONST] = LEVEL
        return values

    def router(self, layer: int) -> np.ndarray:
        args, rng = self.args, self.rng("router", layer)
        popular = (rng.permutation(args.experts) + 0.5) / args.experts
        return with_bias(self.random(rng, args.experts, self.width),
                         args.skew * self.biases(popular))  # fmt: skip

    def tensors(self) -> Iterator[Stored]:
        args, width = self.args, self.width
        head = width // args.heads

        def floats(name: str, values: np.ndarray) -> Stored:
            flat = np.ascontiguousarray(values, np.float32)
            read = lambda a, b: (flat if flat.ndim == 1 else flat[a:b]).reshape(-1).view(np.uint8)  # noqa: E731
            return Stored(name, flat.shape, format_by_name("F32"), read)

        attention = [
            self.matrix("blk.0.attn_q.weight", width, width),
            self.matrix("blk.0.attn_k.weight", args.kv * head, width),
            self.matrix("blk.0.attn_v.weight", args.kv * head, width),
            self.matrix("blk.0.attn_output.weight", width, width, 0),
        ]
        yield self.vocabulary("token_embd.weight", self.embedding)
        yield floats("output_norm.weight", np.ones(width))
        yield self.vocabulary("output.weight", lambda rng, t: self.random(rng, len(t), width))
        for i in range(args.layers):
            for name in ("attn_norm", "ffn_norm"):
                yield floats(f"blk.{i}.{name}.weight", np.ones(width))
            for shared in attention:
                name = shared.name.replace("blk.0.", f"blk.{i}.")
                yield Stored(name, shared.shape, shared.format, shared.rows)
            yield floats(f"blk.{i}.ffn_gate_inp.weight", self.router(i))
            yield self.experts("ffn_gate", args.ff, width, i, self.gate_of)
            yield self.experts("ffn_up", args.ff, width, i, self.up_of)
            yield self.experts("ffn_down_t", args.ff, width, i, self.down_of)
            if args.rank:
                yield self.experts("fc1", args.rank, width, i, self.fc1_of)
                yield self.experts("fc2", args.ff, args.rank, i, self.fc2_of)

    def token_file(self) -> np.ndarray:
        rng = self.rng("tokens")
        topics = rng.integers(0, TOPICS, 4096 // TOPIC_TOKENS + 1)
        known = [np.flatnonzero(self.topic == t) for t in range(TOPICS)]
        known = [ids[ids >= 3] if (ids >= 3).any() else np.array([3]) for ids in known]
        return np.concatenate([rng.choice(known[t], TOPIC_TOKENS) for t in topics])[:4096]


def with_bias(rows: np.ndarray, bias: np.ndarray | float) -> np.ndarray:
    rows[:, :CONST] = bias if np.isscalar(bias) else np.asarray(bias)[:, None]
    return rows


def keys(args: argparse.Namespace) -> list:
    n_words = args.vocab - 3 - 256
    if n_words < 0:
        raise SystemExit("--vocab must be at least 259")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    tokens += [f"▁w{i}" for i in range(n_words)]
    sizes = {
        "context_length": 4096,
        "embedding_length": args.embd,
        "block_count": args.layers,
        "feed_forward_length": args.ff,
        "expert_count": args.experts,
        "expert_used_count": args.used,
        "rope.dimension_count": args.embd // args.heads,
        "attention.head_count": args.heads,
        "attention.head_count_kv": args.kv,
    }
    return [
        string("general.name", "synthetic mixture"),
        *(uint32(f"llama.{key}", value) for key, value in sizes.items()),
        float32("llama.attention.layer_norm_rms_epsilon", 1e-5),
        uint32("powerinfer.version", 1),
        string("powerinfer.ffn.activation", "drelu"),
        string("tokenizer.ggml.model", "llama"),
        array("tokenizer.ggml.tokens", "STRING", tokens),
        array("tokenizer.ggml.scores", "FLOAT32", [-float(i) for i in range(len(tokens))]),
        array("tokenizer.ggml.token_type", "INT32", [2, 3, 3] + [6] * 256 + [1] * n_words),
        uint32("tokenizer.ggml.bos_token_id", 1),
        uint32("tokenizer.ggml.eos_token_id", 2),
    ]


def main() -> None:
    args = arguments()
    if args.plain:
        with_states = {**HYBRIDS, **FLASH}
        kind, shape = with_states.get(args.plain) or (Plain, SHAPES[args.plain])
        plain = kind(args, shape)
        print(table(plain.uses(), plain.guessed))
        if isinstance(plain, Nemotron):
            print(plain.firing())
        write_gguf(args.out, plain.architecture, plain.keys(), list(plain.tensors()))
        if args.tokens:
            np.savetxt(args.tokens, FIRST + np.arange(args.n), fmt="%d")
        return
    mixture = Mixture(args)
    tensors, bundles = bundled(list(mixture.tensors()), args.layers)
    write_gguf(args.out, "llama", keys(args) + bundles, tensors)
    if args.tokens:
        np.savetxt(args.tokens, mixture.token_file(), fmt="%d")


if __name__ == "__main__":
    main()
