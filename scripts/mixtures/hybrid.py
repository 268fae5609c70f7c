"""Ordinary GGUFs of mixtures most of whose layers fold the past into a state.

Their streams do not depend on the context either: what comes out of Mamba-2 is only its way past
the state (C is 0), delta nets forget within a position, and attention adds next to nothing. All
sizes are the published ones, so all of it is computed. One group of heads turns the stream, the
others give 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from statistics import NormalDist

import numpy as np
from powerinfer_cpp.convert.formats import Format, encode
from powerinfer_cpp.convert.stored import Stored
from powerinfer_cpp.convert.writer import Entry, array, boolean, float32, string, uint32

from .plain import FIRST, SCALE, SETS, Plain, Shape, normed

TURNS = 512  # values of a mixer that turn the stream: a group of Mamba-2, four heads of a delta net
TAPS = 4

# Nemotron 3: which neurons fire.
CONST = 32  # columns of the stream with a constant, through which rows of up have a bias
LEVEL = 3.0  # the constant, in units of the other columns' standard deviation
DENSITY = 0.10  # the mean rate at which a neuron fires
SKEW = 2.0  # rates are in proportion to exp(-SKEW u), u uniform from 0 to 1
BLOCK = 16  # neurons that have a direction in common
COMMON = 0.19  # its share of the square of a row: then 30% of the blocks are all zero
SAMPLE = 48  # tokens of which firings are counted


class Hybrid(Plain):
    """What both families have in common. A layer's kind is "M" or "D" for a state, "*" for
    attention, "E" for experts alone; Qwen's layers have experts in addition."""

    const = 0
    inner: int  # values of a mixer that folds

    def kinds(self) -> str:
        """The kind of each layer."""
        raise NotImplementedError

    def _set_numbers(self) -> list[int]:
        return sorted({i % SETS for i, kind in enumerate(self.kinds()) if kind in "MD"})

    def _turned(self, layer: int, x: np.ndarray) -> np.ndarray | float:
        if self.kinds()[layer] not in "MD":
            return 0.0
        m = self.sets[layer % SETS]
        value, z = (self._decoded(m[name], self.shape.embd) for name in ("turned", "z"))
        y = self._folded(silu(x @ value.T), silu(x @ z.T))
        out = self._decoded(m["out"], self.inner)[:, :TURNS]
        return np.float32(self.args.turn) * (y @ out.T)

    def _folded(self, value: np.ndarray, z: np.ndarray) -> np.ndarray:
        """What the mixer gives before its output matrix, with norm weights of 1."""
        raise NotImplementedError

    def _folding(self, arch: str, state: int, groups: int, heads: int) -> Iterator[Entry]:
        """The sizes of mixers that fold."""
        yield uint32(f"{arch}.ssm.conv_kernel", TAPS)
        yield uint32(f"{arch}.ssm.state_size", state)
        yield uint32(f"{arch}.ssm.group_count", groups)
        yield uint32(f"{arch}.ssm.time_step_rank", heads)
        yield uint32(f"{arch}.ssm.inner_size", self.inner)

    def _rows(self, rng: np.random.Generator, n: int, scale: float = 1) -> np.ndarray:
        """Encoded rows of n_embd columns."""
        return self._encoded(self._normal(rng, n, self.shape.embd, scale))

    def _out(self, rng: np.random.Generator, inner: int, size: float) -> np.ndarray:
        """The encoded output matrix of a mixer, whose first TURNS values have this size."""
        out = np.zeros((self.shape.embd, inner), np.float32)
        out[:, :TURNS] = self._normal(rng, self.shape.embd, TURNS) / np.float32(size)
        out[: self.const] = 0
        return self._encoded(out)

    def _small(self, name: str, n: int, cols: int) -> Stored:
        """A matrix that gives next to nothing."""
        rng = np.random.default_rng([self.args.seed, *name.split(".")[-2].encode()])
        values = self._normal(rng, n, cols, SCALE)
        values[: self.const] = 0
        return self._kept(name, self._encoded(values), cols)

    def _matrix(self, name: str, rows: np.ndarray, cols: int) -> Stored:
        return Stored(name, (len(rows), cols), self.fmt, lambda a, b: rows[a:b].reshape(-1))

    def _attention_of(self, block: str, head: int, q_rows: int) -> Iterator[Stored]:
        s = self.shape
        for name, n in (("q", q_rows), ("k", s.kv * head), ("v", s.kv * head)):
            yield self._small(f"{block}.attn_{name}.weight", n, s.embd)
        yield self._small(f"{block}.attn_output.weight", s.embd, s.heads * head)

    def _conv(self, block: str, channels: int, taken: slice) -> Stored:
        """A convolution that takes each position as it is, of these channels only."""
        conv = np.zeros((channels, TAPS), np.float32)
        conv[taken, -1] = 1
        return self._floats(f"{block}.ssm_conv1d.weight", conv)

    def _embedding(self, a: int, b: int) -> np.ndarray:
        return self.rows[(np.arange(a, b) - FIRST) % len(self.rows)].reshape(-1)

    def _ends(self) -> Iterator[Stored]:
        s = self.shape
        head = encode(self.head, normed(self.end) / np.float32(np.sqrt(s.embd)))
        # Benchmarks take any tokens: those beyond the sequence are the same ones again.
        yield Stored("token_embd.weight", (s.vocab, s.embd), self.fmt, self._embedding)
        yield from self._last()
        yield self._vocabulary(
            "output.weight", head.reshape(len(self.end), -1), FIRST + 1, self.head
        )

    def _last(self) -> Iterator[Stored]:
        """What is before the head."""
        yield self._floats("output_norm.weight", np.ones(self.shape.embd))

    def _matrices(
        self, name: str, n: int, cols: int, slab: np.ndarray, fmt: Format, begin: int
    ) -> Stored:
        """A matrix of rows of the slab, from a row on."""

        def rows(a: int, b: int) -> np.ndarray:
            return slab[(np.arange(a, b) + begin) % len(slab)].reshape(-1)

        return Stored(f"{name}.weight", (n, cols), fmt, rows)


class Nemotron(Hybrid):
    """Nemotron 3 Nano. Its neurons square what ReLU lets through, and few of them fire."""

    architecture = "nemotron_h_moe"
    const = CONST
    heads, groups, state, shared = 64, 8, 128, 3712
    inner = 64 * 64
    channels = inner + 2 * groups * state

    def kinds(self) -> str:
        published = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
        return published[: self.shape.layers]

    def _head_format(self) -> Format:
        return self.fmt

    def _tokens(self, rng: np.random.Generator) -> np.ndarray:
        x = super()._tokens(rng)
        x[:, :CONST] = LEVEL * x.std()
        return x

    def _routers(self, rng: np.random.Generator, scale: float = 1.5) -> np.ndarray:
        routers = super()._routers(rng, scale)  # small: of sigmoids, which would all be 1
        routers[..., :CONST] = 0
        return routers

    def _routes(self, layer: int) -> bool:
        return self.kinds()[layer] == "E"

    def _mixer(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        rows = self._rows(rng, self.inner + self.channels + self.heads)
        return {
            "in": rows,
            "z": rows[:TURNS],
            "turned": rows[self.inner : self.inner + TURNS],
            "out": self._out(rng, self.inner, 1),
        }

    def _folded(self, value: np.ndarray, z: np.ndarray) -> np.ndarray:
        return normed(value * z)

    def _make_slabs(self, rng: np.random.Generator) -> None:
        s = self.shape
        n = max(self.shared, s.embd, s.ff)
        n = -(-n // BLOCK) * BLOCK
        common = np.repeat(self._normal(rng, n // BLOCK, s.embd, COMMON**0.5), BLOCK, 0)
        up = common + self._normal(rng, n, s.embd, (1 - COMMON) ** 0.5)
        up[:, :CONST] = 0
        self.up = self._encoded(up)
        rates = np.exp(-SKEW * (rng.permutation(n) + 0.5) / n)
        rates *= DENSITY / rates.mean()
        self.quantiles = np.array([NormalDist().inv_cdf(p) for p in rates], np.float32)
        # Down as matrices, and as rows of neurons.
        for cols in (s.ff, self.shared, s.embd):
            self._slab(rng, n, cols, self.down)

    @cache  # noqa: B019 (lives as long as the program)
    def _up(self, layer: int) -> np.ndarray:
        """The slab of up with the biases of a layer."""
        s = self.shape
        level = float(self.x[0, 0]) / float(self.growth[layer])
        # Of the product of a row with the other columns, and what the constant ones must hold.
        spread = np.sqrt(max(0.0, 1 - CONST / s.embd * level**2))
        values = np.repeat((self.quantiles * spread / (CONST * level))[:, None], CONST, 1)
        up = self.up.copy()
        first = self._encoded(values.astype(np.float32))
        up[:, : first.shape[1]] = first
        return up

    def firing(self) -> str:
        """What is true of the neurons of chosen experts, by some tokens of the sequence."""
        s, x = self.shape, self.x[:: max(1, len(self.x) // SAMPLE)].copy()
        fired, zero = [], []
        for layer in range(s.layers):
            x += self.growth[layer] * self._turned(layer, normed(x))
            if not self._routes(layer):
                continue
            fires = normed(x) @ self._decoded(self._up(layer), s.embd).T > 0
            fired.append(fires.mean())
            zero.append(1 - fires.reshape(len(x), -1, BLOCK).any(2).mean())
            self._up.cache_clear()
        return (
            f"of the neurons of an expert {np.mean(fired):.1%} fire ({min(fired):.1%} to "
            f"{max(fired):.1%} by layer); of blocks of {BLOCK} {np.mean(zero):.1%} are all zero"
        )

    def _feed_forward(self, i: int) -> Iterator[Stored]:
        s, block = self.shape, f"blk.{i}"
        yield self._floats(f"{block}.ffn_gate_inp.weight", self.routers[i])
        yield self._floats(f"{block}.exp_probs_b.bias", np.zeros(s.experts))
        yield self._of_experts(f"{block}.ffn_up_exps", i, s.ff, s.embd, True)
        yield self._matrices(f"{block}.ffn_up_shexp", self.shared, s.embd, self._up(i), self.fmt, 0)
        for end, ff in (("exps", s.ff), ("shexp", self.shared)):
            name, n, cols = f"{block}.ffn_down_{end}", s.embd, ff
            if self.args.rows:
                name, n, cols = f"{block}.ffn_down_t_{end}", ff, s.embd
            if end == "exps":
                yield self._of_experts(name, i, n, cols, False)
            else:
                slab = self.slabs[cols, self.down.name]
                yield self._matrices(name, n, cols, slab, self.down, i)

    def _of_experts(self, name: str, layer: int, n: int, cols: int, up: bool) -> Stored:
        """Rows of a slab, from another block on for every expert."""
        fmt = self.fmt if up else self.down

        def rows(a: int, b: int) -> np.ndarray:
            slab = self._up(layer) if up else self.slabs[cols, fmt.name]
            at = np.arange(a, b)
            return slab[(at + (at // n) * 37 * BLOCK + layer * 11 * BLOCK) % len(slab)].reshape(-1)

        return Stored(f"{name}.weight", (self.shape.experts, n, cols), fmt, rows)

    def _mamba(self, i: int) -> Iterator[Stored]:
        s, block, m = self.shape, f"blk.{i}", self.sets[i % SETS]
        rng = np.random.default_rng([self.args.seed, i])
        per_group = self.inner // self.groups
        yield self._matrix(f"{block}.ssm_in.weight", m["in"], s.embd)
        # Nothing of C: the state takes in and forgets as usual, and gives 0.
        yield self._conv(block, self.channels, slice(0, self.channels - self.groups * self.state))
        yield self._floats(f"{block}.ssm_conv1d.bias", np.zeros(self.channels))
        yield self._floats(f"{block}.ssm_dt.bias", rng.uniform(-6, -2, self.heads))
        yield self._floats(f"{block}.ssm_a", -rng.uniform(1, 16, (self.heads, 1)))
        past = np.zeros((self.heads, 1))
        past[: self.heads // self.groups] = 1
        yield self._floats(f"{block}.ssm_d", past)
        weight = np.full((self.groups, per_group), self.growth[i] * self.args.turn)
        yield self._floats(f"{block}.ssm_norm.weight", weight)
        yield self._matrix(f"{block}.ssm_out.weight", m["out"], self.inner)

    def tensors(self) -> Iterator[Stored]:
        yield from self._ends()
        for i, kind in enumerate(self.kinds()):
            yield self._floats(f"blk.{i}.attn_norm.weight", np.ones(self.shape.embd))
            if kind == "M":
                yield from self._mamba(i)
            elif kind == "E":
                yield from self._feed_forward(i)
            else:
                yield from self._attention_of(f"blk.{i}", 128, self.shape.heads * 128)

    def _own_keys(self, arch: str) -> Iterator[Entry]:
        s, kinds = self.shape, self.kinds()
        widths = [s.ff if kind == "E" else 0 for kind in kinds]
        heads = [s.kv if kind == "*" else 0 for kind in kinds]
        yield array(f"{arch}.feed_forward_length", "INT32", widths)
        yield array(f"{arch}.attention.head_count_kv", "INT32", heads)
        yield uint32(f"{arch}.attention.key_length", 128)
        yield uint32(f"{arch}.attention.value_length", 128)
        yield uint32(f"{arch}.rope.dimension_count", 128)
        yield boolean(f"{arch}.rope.scaling.finetuned", False)
        yield float32(f"{arch}.attention.layer_norm_epsilon", 1e-5)
        yield uint32(f"{arch}.vocab_size", s.vocab)
        yield from self._folding(arch, self.state, self.groups, self.heads)
        yield uint32(f"{arch}.expert_shared_feed_forward_length", self.shared)
        yield uint32(f"{arch}.expert_shared_count", 1)
        yield uint32(f"{arch}.expert_group_count", 1)
        yield uint32(f"{arch}.expert_group_used_count", 1)
        yield uint32(f"{arch}.expert_gating_func", 2)
        yield boolean(f"{arch}.expert_weights_norm", True)
        yield float32(f"{arch}.expert_weights_scale", 2.5)
        if self.args.rows:
            yield uint32("powerinfer.version", 1)
            yield string("powerinfer.ffn.activation", "relu2")


class Qwen(Hybrid):
    """Qwen3.6-35B-A3B: three layers with gated delta nets, then one with gated attention."""

    architecture = "qwen35moe"
    k_heads, v_heads, wide, head_dim = 16, 32, 128, 256
    inner = 32 * 128
    keys_dim = 16 * 128

    def kinds(self) -> str:
        return "".join("*" if i % 4 == 3 else "D" for i in range(self.shape.layers))

    def _mixer(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        # Queries are the keys, so that each finds what its own position has just stored.
        keys, values = self._rows(rng, self.keys_dim), self._rows(rng, self.inner)
        gate = self._rows(rng, self.inner)
        # A head's values have the size 1 behind their norm, and silu of the gate 0.6.
        return {
            "qkv": np.concatenate([keys, keys, values]),
            "gate": gate,
            "turned": values[:TURNS],
            "z": gate[:TURNS],
            "out": self._out(rng, self.inner, 0.6),
        }

    def _folded(self, value: np.ndarray, z: np.ndarray) -> np.ndarray:
        heads = value.reshape(len(value), -1, self.wide)
        return normed(heads).reshape(value.shape) * z

    def _make_slabs(self, rng: np.random.Generator) -> None:
        s = self.shape
        for cols, fmt in ((s.embd, self.fmt), (s.ff, self.fmt), (s.ff, self.down)):
            self._slab(rng, max(s.ff, s.embd), cols, fmt)

    def _delta_net(self, i: int) -> Iterator[Stored]:
        s, block, m = self.shape, f"blk.{i}", self.sets[i % SETS]
        channels = 2 * self.keys_dim + self.inner
        yield self._matrix(f"{block}.attn_qkv.weight", m["qkv"], s.embd)
        yield self._matrix(f"{block}.attn_gate.weight", m["gate"], s.embd)
        for name in ("beta", "alpha"):
            yield self._small(f"{block}.ssm_{name}.weight", self.v_heads, s.embd)
        yield self._conv(block, channels, slice(0, channels))
        # The state's factor is exp(-2 softplus(10)) = 2e-9 at each position.
        yield self._floats(f"{block}.ssm_dt.bias", np.full(self.v_heads, 10.0))
        yield self._floats(f"{block}.ssm_a", np.full(self.v_heads, -2.0))
        weight = np.full(self.wide, self.growth[i] * self.args.turn)
        yield self._floats(f"{block}.ssm_norm.weight", weight)
        yield self._matrix(f"{block}.ssm_out.weight", m["out"], self.inner)

    def _feed_forward(self, i: int) -> Iterator[Stored]:
        s, block = self.shape, f"blk.{i}"
        yield self._floats(f"{block}.ffn_gate_inp.weight", self.routers[i])
        down = self.down if i % 2 == 0 else self.fmt
        for name, n, cols, fmt in (
            ("gate", s.ff, s.embd, self.fmt),
            ("up", s.ff, s.embd, self.fmt),
            ("down", s.embd, s.ff, down),
        ):
            slab = self.slabs[cols, fmt.name]
            yield self._experts(f"ffn_{name}_exps", i, n, cols, fmt)
            yield self._matrices(f"{block}.ffn_{name}_shexp", n, cols, slab, fmt, 16 * i)
        yield self._floats(f"{block}.ffn_gate_inp_shexp.weight", np.zeros((1, s.embd)))

    def tensors(self) -> Iterator[Stored]:
        s = self.shape
        yield from self._ends()
        for i, kind in enumerate(self.kinds()):
            yield from self._before(i, f"blk.{i}")
            if kind == "D":
                yield from self._delta_net(i)
            else:
                for name in ("attn_q_norm", "attn_k_norm"):
                    yield self._floats(f"blk.{i}.{name}.weight", np.ones(self.head_dim))
                yield from self._attention_of(
                    f"blk.{i}", self.head_dim, 2 * s.heads * self.head_dim
                )
            yield from self._feed_forward(i)

    def _before(self, _i: int, block: str) -> Iterator[Stored]:
        """What is before the blocks of a layer."""
        for name in ("attn_norm", "post_attention_norm"):
            yield self._floats(f"{block}.{name}.weight", np.ones(self.shape.embd))

    def _own_keys(self, arch: str) -> Iterator[Entry]:
        s = self.shape
        yield uint32(f"{arch}.attention.head_count_kv", s.kv)
        yield uint32(f"{arch}.attention.key_length", self.head_dim)
        yield uint32(f"{arch}.attention.value_length", self.head_dim)
        yield float32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-6)
        yield uint32(f"{arch}.rope.dimension_count", 64)
        yield array(f"{arch}.rope.dimension_sections", "INT32", [11, 11, 10, 0])
        yield float32(f"{arch}.rope.freq_base", 1e7)
        yield uint32(f"{arch}.full_attention_interval", 4)
        yield from self._folding(arch, self.wide, self.k_heads, self.v_heads)
        yield uint32(f"{arch}.expert_shared_feed_forward_length", s.ff)


HYBRIDS: dict[str, tuple[type[Hybrid], Shape]] = {
    "nemotron-3-nano": (Nemotron, Shape(52, 128, 6, 2688, 1856, 32, 2, 131072)),
    "qwen3.6-35b-a3b": (Qwen, Shape(40, 256, 8, 2048, 512, 16, 2, 248320)),
}


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))
