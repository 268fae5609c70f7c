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
from dataclasses import dataclass
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
    # Others' sizes with three matrices to an expert, as many bytes as theirs.
    "gpt-oss-20b": Shape(24, 32, 4, 2880, 2880, 64, 8, 201088),
    "nemotron-3-nano": Shape(23, 128, 6, 2688, 1248, 32, 2, 131072),
    "small": Shape(4, 32, 4, 256, 256, 4, 2, 1024),
}


class Plain:
    """The tensors. Rows are made when they are written."""

    def __init__(self, args: argparse.Namespace, shape: Shape) -> None:
        self.args, self.shape = args, shape
        self.fmt = format_by_name(args.type)
        self.down = format_by_name(args.down or args.type)
        self.head = format_by_name("Q6_K" if shape.embd % 256 == 0 else "Q8_0")
        rng = np.random.default_rng(args.seed)
        self.rows = self._encoded(tokens(KINDS[args.router], args.n, shape.embd, rng))
        self.x = self._decoded(self.rows, shape.embd)
        self.routers = self._normal(rng, shape.layers * shape.experts, shape.embd, 4.0).reshape(
            shape.layers, shape.experts, shape.embd
        )
        self.sets = [self._attention(rng) for _ in range(SETS)]
        self.growth: list[np.float32] = []  # of the stream, by layer
        self.end, self.chosen, self.guessed = self._walk()
        rows = max(shape.ff, shape.embd)
        self.slabs = {
            (cols, fmt.name): encode(fmt, self._normal(rng, rows, cols, SCALE)).reshape(rows, -1)
            for cols, fmt in ((shape.embd, self.fmt), (shape.ff, self.fmt), (shape.ff, self.down))
        }

    @staticmethod
    def _normal(rng: np.random.Generator, n: int, cols: int, scale: float = 1) -> np.ndarray:
        return rng.standard_normal((n, cols), np.float32) * np.float32(scale / np.sqrt(cols))

    def _encoded(self, values: np.ndarray) -> np.ndarray:
        return encode(self.fmt, values).reshape(len(values), -1)

    def _attention(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Encoded matrices: queries of a group are its keys."""
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
        s, x = self.shape, self.x.copy()
        chosen = np.empty((len(x), s.layers, s.used), np.int16)
        right, before = 0, None
        for layer in range(s.layers):
            m = self.sets[layer % SETS]
            values = self._decoded(m["v"], s.embd)
            out = self._decoded(m["output"], s.heads * HEAD)
            out = out.reshape(s.embd, s.kv, s.heads // s.kv, HEAD).sum(2).reshape(s.embd, -1)
            # In proportion to the stream: by the weights of the norm before attention.
            self.growth.append(np.sqrt(np.mean(x * x)))
            x += self.growth[-1] * (normed(x) @ values.T) @ out.T
            choose = partial(self._choose, self.routers[layer])
            chosen[:, layer] = choose(x)
            if before is not None:
                guess = choose(before)
                right += sum(
                    len(np.intersect1d(a, b)) for a, b in zip(guess, chosen[:, layer], strict=True)
                )
            before = x.copy()
        return x, chosen, right / max(1, (s.layers - 1) * len(x) * s.used)

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

    def keys(self) -> list[Entry]:
        """The metadata."""
        s = self.shape
        words = ["<unk>", "<s>", "</s>", *(f"<pad{i}>" for i in range(3, FIRST))]
        words += [f"<{i}>" for i in range(s.vocab - FIRST)]
        sizes = {
            "context_length": 32768,
            "embedding_length": s.embd,
            "block_count": s.layers,
            "feed_forward_length": s.ff,
            "expert_count": s.experts,
            "expert_used_count": s.used,
            "expert_feed_forward_length": s.ff,
            "attention.head_count": s.heads,
            "attention.head_count_kv": s.kv,
            "attention.key_length": HEAD,
            "attention.value_length": HEAD,
        }
        # Tokens of type 4 are found in a text as they are.
        kinds = [2, 3, 3] + [5] * (FIRST - 3) + [4] * (s.vocab - FIRST)
        return [
            string("general.name", f"synthetic mixture, router {self.args.router}"),
            *(uint32(f"qwen3moe.{key}", value) for key, value in sizes.items()),
            float32("qwen3moe.attention.layer_norm_rms_epsilon", 1e-6),
            float32("qwen3moe.rope.freq_base", 1e6),
            string("tokenizer.ggml.model", "llama"),
            array("tokenizer.ggml.tokens", "STRING", words),
            array("tokenizer.ggml.scores", "FLOAT32", [-float(i) for i in range(s.vocab)]),
            array("tokenizer.ggml.token_type", "INT32", kinds),
            uint32("tokenizer.ggml.bos_token_id", 1),
            uint32("tokenizer.ggml.eos_token_id", 2),
            boolean("tokenizer.ggml.add_bos_token", False),
            boolean("tokenizer.ggml.add_space_prefix", False),
        ]


def normed(x: np.ndarray) -> np.ndarray:
    """RMSNorm with weights 1."""
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + np.float32(1e-6))
