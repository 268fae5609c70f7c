"""An ordinary GGUF of a mixture with SwiGLU experts and routers that follow a stated law.

Tokens FIRST to FIRST + n - 1 are a sequence (routers.py), and the head's first choice after each of
them is the next one: any engine that generates greedily walks through it and chooses the same
experts. Attention looks at its own position, so the stream of a token does not depend on the
context; it turns the stream by --turn per layer, which makes the next layer's choice less
predictable. Experts add next to nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from powerinfer_cpp.convert.formats import Format, decode, encode, format_by_name
from powerinfer_cpp.convert.stored import Stored
from powerinfer_cpp.convert.writer import Entry, array, boolean, float32, string, uint32

from .routers import KINDS, Uses, describe, tokens

FIRST = 8  # the first token of the sequence
HEAD = 128  # columns of a head
SETS = 6  # layers before attention's matrices are used again
FOCUS = 3.0  # of norms of queries and keys: a position's own score is 11.3 times this
SCALE = 0.003  # of what experts add, beside the stream


@dataclass(frozen=True)
class Shape:
    """Sizes of a published mixture."""

    layers: int
    experts: int
    used: int
    embd: int
    ff: int
    heads: int
    kv: int
    vocab: int


SHAPES = {
    "qwen3-30b": Shape(48, 128, 8, 2048, 768, 32, 4, 151936),
    # Another's sizes with three matrices to an expert, as many bytes as theirs.
    "gpt-oss-20b": Shape(24, 32, 4, 2880, 2880, 64, 8, 201088),
    "small": Shape(4, 32, 4, 256, 256, 4, 2, 1024),
}


class Plain:
    """The tensors. Rows are made when they are written."""

    def __init__(self, args: argparse.Namespace, shape: Shape) -> None:
        # Fewer than are published are for tests and for less memory.
        changed = {name: getattr(args, name) for name in ("layers", "experts", "vocab")}
        shape = replace(shape, **{name: n for name, n in changed.items() if n})
        self.args, self.shape = args, shape
        self.fmt = format_by_name(args.type)
        self.down = format_by_name(args.down or args.type)
        self.head = self._head_format()
        rng = np.random.default_rng(args.seed)
        self.rows = self._encoded(self._tokens(rng))
        self.x = self._decoded(self.rows, shape.embd)
        self.routers = self._routers(rng)
        self.sets = {k: self._mixer(rng) for k in self._set_numbers()}
        self.growth: list[np.float32] = []  # of the stream, by layer
        self.end, self.chosen, self.guessed = self._walk()
        self.slabs: dict[tuple[int, str], np.ndarray] = {}
        self._make_slabs(rng)

    def _head_format(self) -> Format:
        return format_by_name("Q6_K" if self.shape.embd % 256 == 0 else "Q8_0")

    def _tokens(self, rng: np.random.Generator) -> np.ndarray:
        return tokens(KINDS[self.args.router], self.args.n, self.shape.embd, rng)

    def _routers(self, rng: np.random.Generator, scale: float = 4.0) -> np.ndarray:
        s = self.shape
        return self._normal(rng, s.layers * s.experts, s.embd, scale).reshape(
            s.layers, s.experts, s.embd
        )

    def _set_numbers(self) -> list[int]:
        return list(range(min(SETS, self.shape.layers)))

    def _make_slabs(self, rng: np.random.Generator) -> None:
        s = self.shape
        for cols, fmt in ((s.embd, self.fmt), (s.ff, self.fmt), (s.ff, self.down)):
            self._slab(rng, max(s.ff, s.embd), cols, fmt)

    def _slab(self, rng: np.random.Generator, rows: int, cols: int, fmt: Format) -> None:
        slab = encode(fmt, self._normal(rng, rows, cols, SCALE)).reshape(rows, -1)
        self.slabs[cols, fmt.name] = slab

    @staticmethod
    def _normal(rng: np.random.Generator, n: int, cols: int, scale: float = 1) -> np.ndarray:
        return rng.standard_normal((n, cols), np.float32) * np.float32(scale / np.sqrt(cols))

    def _encoded(self, values: np.ndarray) -> np.ndarray:
        return self._in(self.fmt, values)

    @staticmethod
    def _in(fmt: Format, values: np.ndarray) -> np.ndarray:
        return encode(fmt, values).reshape(len(values), -1)

    def _mixer(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """The encoded matrices of an attention: queries of a group are its keys."""
        s = self.shape
        keys = self._encoded(self._normal(rng, s.kv * HEAD, s.embd))
        by_head = keys.reshape(s.kv, 1, HEAD, -1)
        queries = np.broadcast_to(by_head, (s.kv, s.heads // s.kv, *by_head.shape[2:]))
        return {
            "q": queries.reshape(s.heads * HEAD, -1),
            "k": keys,
            "v": self._encoded(self._normal(rng, s.kv * HEAD, s.embd)),
            # All heads of a group bring the same values.
            "output": self._encoded(
                self._normal(rng, s.embd, s.heads * HEAD, self.args.turn * np.sqrt(s.kv / s.heads))
            ),
        }

    def _walk(self) -> tuple[np.ndarray, np.ndarray, float]:
        """The streams at the end, all choices [tokens, layers, used], and the share of them that
        the stream of the layer before would have chosen."""
        x = self.x.copy()
        chosen: list[np.ndarray] = []
        right, before = 0, None
        for layer in range(self.shape.layers):
            self.growth.append(np.sqrt(np.mean(x * x)))
            x += self.growth[-1] * self._turned(layer, normed(x))
            if not self._routes(layer):
                continue
            choose = partial(self._choose, self.routers[layer])
            chosen.append(choose(x))
            if before is not None:
                guess = choose(before)
                right += sum(
                    len(np.intersect1d(a, b)) for a, b in zip(guess, chosen[-1], strict=True)
                )
            before = x.copy()
        guesses = (len(chosen) - 1) * len(x) * self.shape.used
        return x, np.stack(chosen, 1), right / max(1, guesses)

    def _routes(self, layer: int) -> bool:
        """Does the layer have experts?"""
        return layer < self.shape.layers

    def _turned(self, layer: int, x: np.ndarray) -> np.ndarray | float:
        """What the layer's mixer adds to a stream of size 1. It is in proportion to the stream, by
        the weights of the norm before attention."""
        s, m = self.shape, self.sets[layer % SETS]
        values = self._decoded(m["v"], s.embd)
        out = self._decoded(m["output"], s.heads * HEAD)
        out = out.reshape(s.embd, s.kv, s.heads // s.kv, HEAD).sum(2).reshape(s.embd, -1)
        return (x @ values.T) @ out.T

    def _choose(self, router: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The experts that these streams choose, in ascending order."""
        used = self.shape.used
        return np.sort(np.argpartition(-(normed(x) @ router.T), used - 1)[:, :used])

    def _decoded(self, rows: np.ndarray, cols: int) -> np.ndarray:
        return decode(self.fmt.type, rows.reshape(-1), len(rows) * cols).reshape(-1, cols)

    def uses(self) -> Uses:
        """What can be said of the choices."""
        return describe(self.chosen, self.shape.experts, len(self.x) // 4)

    def _kept(self, name: str, rows: np.ndarray, cols: int) -> Stored:
        return Stored(name, (len(rows), cols), self.fmt, lambda a, b: rows[a:b].reshape(-1))

    @staticmethod
    def _floats(name: str, values: np.ndarray) -> Stored:
        flat = np.ascontiguousarray(values, np.float32)

        def part(a: int, b: int) -> np.ndarray:
            return (flat if flat.ndim == 1 else flat[a:b]).reshape(-1).view(np.uint8)

        return Stored(name, flat.shape, format_by_name("F32"), part)

    def _vocabulary(self, name: str, known: np.ndarray, first: int, fmt: Format) -> Stored:
        """A row for each token: encoded ones of the sequence, zeros for the others."""
        s = self.shape

        def rows(a: int, b: int) -> np.ndarray:
            values = np.zeros((b - a, known.shape[1]), np.uint8)
            begin, end = max(a, first), min(b, first + len(known))
            if begin < end:
                values[begin - a : end - a] = known[begin - first : end - first]
            return values.reshape(-1)

        return Stored(name, (s.vocab, s.embd), fmt, rows)

    def _experts(self, name: str, layer: int, n: int, cols: int, fmt: Format) -> Stored:
        """Rows of the slab, from another one on for every expert."""
        slab = self.slabs[cols, fmt.name]

        def rows(a: int, b: int) -> np.ndarray:
            at = np.arange(a, b)
            return slab[(at + (at // n) * 37 + layer * 11) % len(slab)].reshape(-1)

        shape = (self.shape.experts, n, cols)
        return Stored(f"blk.{layer}.{name}.weight", shape, fmt, rows)

    def tensors(self) -> Iterator[Stored]:
        """All tensors, in the order of the file."""
        s = self.shape
        head = encode(self.head, normed(self.end) / np.float32(np.sqrt(s.embd)))
        head = head.reshape(len(self.end), -1)
        yield self._vocabulary("token_embd.weight", self.rows, FIRST, self.fmt)
        yield self._floats("output_norm.weight", np.ones(s.embd))
        yield self._vocabulary("output.weight", head, FIRST + 1, self.head)
        for i in range(s.layers):
            yield self._floats(f"blk.{i}.attn_norm.weight", np.full(s.embd, self.growth[i]))
            yield self._floats(f"blk.{i}.ffn_norm.weight", np.ones(s.embd))
            for name in ("attn_q_norm", "attn_k_norm"):
                yield self._floats(f"blk.{i}.{name}.weight", np.full(HEAD, np.sqrt(FOCUS)))
            for name, rows in self.sets[i % SETS].items():
                cols = s.heads * HEAD if name == "output" else s.embd
                yield self._kept(f"blk.{i}.attn_{name}.weight", rows, cols)
            yield self._floats(f"blk.{i}.ffn_gate_inp.weight", self.routers[i])
            # In K_M files half of the layers have another format for down.
            down = self.down if i % 2 == 0 else self.fmt
            yield self._experts("ffn_gate_exps", i, s.ff, s.embd, self.fmt)
            yield self._experts("ffn_up_exps", i, s.ff, s.embd, self.fmt)
            yield self._experts("ffn_down_exps", i, s.embd, s.ff, down)

    architecture = "qwen3moe"

    def keys(self) -> list[Entry]:
        """The metadata."""
        s, arch = self.shape, self.architecture
        words = ["<unk>", "<s>", "</s>", *(f"<pad{i}>" for i in range(3, FIRST))]
        words += [f"<{i}>" for i in range(s.vocab - FIRST)]
        # Tokens of type 4 are found in a text as they are.
        kinds = [2, 3, 3] + [5] * (FIRST - 3) + [4] * (s.vocab - FIRST)
        return [
            string("general.name", f"synthetic mixture, router {self.args.router}"),
            uint32(f"{arch}.context_length", 32768),
            uint32(f"{arch}.embedding_length", s.embd),
            uint32(f"{arch}.block_count", s.layers),
            uint32(f"{arch}.expert_count", s.experts),
            uint32(f"{arch}.expert_used_count", s.used),
            uint32(f"{arch}.expert_feed_forward_length", s.ff),
            uint32(f"{arch}.attention.head_count", s.heads),
            *self._own_keys(arch),
            string("tokenizer.ggml.model", "llama"),
            array("tokenizer.ggml.tokens", "STRING", words),
            array("tokenizer.ggml.scores", "FLOAT32", [-float(i) for i in range(s.vocab)]),
            array("tokenizer.ggml.token_type", "INT32", kinds),
            uint32("tokenizer.ggml.bos_token_id", 1),
            uint32("tokenizer.ggml.eos_token_id", 2),
            boolean("tokenizer.ggml.add_bos_token", False),
            boolean("tokenizer.ggml.add_space_prefix", False),
        ]

    def _own_keys(self, arch: str) -> Iterator[Entry]:
        s = self.shape
        yield uint32(f"{arch}.feed_forward_length", s.ff)
        yield uint32(f"{arch}.attention.head_count_kv", s.kv)
        yield uint32(f"{arch}.attention.key_length", HEAD)
        yield uint32(f"{arch}.attention.value_length", HEAD)
        yield float32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-6)
        yield float32(f"{arch}.rope.freq_base", 1e6)


def normed(x: np.ndarray) -> np.ndarray:
    """RMSNorm with weights 1."""
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + np.float32(1e-6))
