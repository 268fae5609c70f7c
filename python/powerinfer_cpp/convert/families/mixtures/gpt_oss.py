"""gpt-oss: sinks, biases everywhere, and experts that are published in MXFP4."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...config import Config
from ...formats import format_by_name
from ...rope import Rope
from ...stored import Stored, decoded
from ...tensors import Output, Weights, from_weight
from ...weight import Weight, widen
from ...writer import Entry, uint32
from ..family import read_window
from ..llama import Llama

_BLOCK = 32  # weights that share an exponent
# What the model has if config.json says nothing of its rotation.
_ROPE = {"rope_type": "yarn", "factor": 32.0, "truncate": False}
_ROPE |= {"original_max_position_embeddings": 4096}


class GptOss(Llama):
    architecture = "gpt-oss"
    pairs = False
    default_theta = 150000.0
    default_eps = 1e-5
    default_activation = "swiglu_oai"
    has_rope_factors = False
    window_period = 2

    def __init__(self, config: Config):
        super().__init__(config)
        self.activation = self.default_activation  # hidden_act is not used by the model's own code
        self.qkv_bias = self.o_bias = config.flag("attention_bias", True)
        self.n_expert = config.integer("num_local_experts", "num_experts")
        self.n_expert_used = config.integer("num_experts_per_tok", "experts_per_token")
        config.known("experts_per_token", "num_experts", "initial_context_length")
        for key, constant in (("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)):
            if (value := config.number(key, default=constant)) != constant:
                raise self.refuse(f"gpt-oss with a {key} of {value:g}")
        packing = config.values.get("quantization_config")
        if packing is not None:
            method = packing.get("quant_method") if isinstance(packing, dict) else packing
            if method != "mxfp4":
                raise self.refuse(f"gpt-oss with a quantization_config of {method!r}")
            config.known("quantization_config")

    def read_rope(self, default_theta: float = 10000.0) -> Rope:
        if not any(self.config.values.get(key) for key in ("rope_parameters", "rope_scaling")):
            self.config = self.config.completed(rope_parameters=_ROPE)
        return super().read_rope(default_theta)

    def read_window(self) -> tuple[int, list[bool]]:
        window, slides = read_window(self.config, self.n_layer, self.n_ctx, missing=128)
        if window and self.config.values.get("layer_types") is None:
            slides = [layer % 2 == 0 for layer in range(self.n_layer)]
        return window, slides

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        yield uint32("gpt-oss.expert_feed_forward_length", self.n_ff)

    def layer(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        yield from self.norm(weights, f"{theirs}.input_layernorm", f"{block}.attn_norm")
        yield from self.attention(weights, f"{theirs}.self_attn", block)
        sinks = weights.take(f"{theirs}.self_attn.sinks", self.n_head)
        yield from_weight(f"{block}.attn_sinks.weight", sinks)
        name = f"{theirs}.post_attention_layernorm"
        yield from self.norm(weights, name, f"{block}.post_attention_norm")
        router = f"{theirs}.mlp.router"
        weight = weights.take(f"{router}.weight", self.n_expert, self.n_embd)
        yield from_weight(f"{block}.ffn_gate_inp.weight", weight, exact=True)
        bias = weights.take(f"{router}.bias", self.n_expert)
        yield from_weight(f"{block}.ffn_gate_inp.bias", bias)
        yield from self.all_experts(weights, f"{theirs}.mlp.experts", block, transpose_down)

    def all_experts(
        self, weights: Weights, theirs: str, block: str, turn: bool
    ) -> Iterator[Output]:
        """Experts of all forms. The rows of gate and up take turns in one tensor."""
        n, n_ff, width = self.n_expert, self.n_ff, self.n_embd
        both = _matrices(weights, f"{theirs}.gate_up_proj", n, 2 * n_ff, width)
        bias = weights.take(f"{theirs}.gate_up_proj_bias", n, 2 * n_ff)
        for first, part in enumerate(("gate", "up")):
            yield _every_second(f"{block}.ffn_{part}_exps.weight", both, first)
            yield _chosen(f"{block}.ffn_{part}_exps.bias", bias, slice(first, None, 2))
        down = _matrices(weights, f"{theirs}.down_proj", n, width, n_ff)
        name = f"{block}.ffn_down{'_t' if turn else ''}_exps"
        yield _turned(f"{name}.weight", down) if turn else replace(down, name=f"{name}.weight")
        bias = weights.take(f"{theirs}.down_proj_bias", n, width)
        yield _chosen(f"{name}.bias", bias, slice(None))


def _chosen(name: str, bias: Weight, columns: slice) -> Output:
    """Some columns of a bias [experts, columns]."""
    found = range(bias.shape[1])[columns]

    def rows(a: int, b: int) -> np.ndarray:
        return widen(np.ascontiguousarray(bias.stored()[a:b, columns]), bias.bf16)

    return Output(name, (bias.shape[0], len(found)), rows, exact=True)


def _matrices(weights: Weights, theirs: str, n: int, n_rows: int, row: int) -> Output:
    """The matrices [n, n_rows, row] of all experts: as published, in MXFP4, or as numbers, which
    are stored with rows and columns exchanged."""
    if f"{theirs}_blocks" in weights and row % _BLOCK == 0:
        shape = (n, n_rows, row // _BLOCK)
        blocks = weights.take_bytes(f"{theirs}_blocks", *shape, _BLOCK // 2)
        return _packed(theirs, blocks, weights.take_bytes(f"{theirs}_scales", *shape))
    weight = weights.take(theirs, n, row, n_rows)

    def rows(a: int, b: int) -> np.ndarray:
        stored = weight.stored()
        found = [
            stored[i, :, max(a - i * n_rows, 0) : min(b - i * n_rows, n_rows)].T
            for i in range(a // n_rows, -(-b // n_rows))
        ]
        return widen(np.concatenate(found), weight.bf16)

    return Output(theirs, (n, n_rows, row), rows)


def _packed(name: str, blocks: Weight, scales: Weight) -> Output:
    """Matrices in MXFP4. The checkpoint's bytes hold neighbours, the lower nibble first; a GGUF's
    hold weights i and i + 16 of a block."""
    n, n_rows, per_row, half = blocks.shape
    shape = (n, n_rows, per_row * _BLOCK)

    def packed(a: int, b: int) -> np.ndarray:
        theirs = blocks.stored().reshape(n * n_rows, per_row, half)[a:b]
        codes = np.stack((theirs & 15, theirs >> 4), axis=-1).reshape(-1, _BLOCK)
        ours = np.empty((len(codes), 1 + half), dtype=np.uint8)
        ours[:, 0] = scales.stored().reshape(n * n_rows, per_row)[a:b].reshape(-1)
        ours[:, 1:] = codes[:, :half] | codes[:, half:] << 4
        return ours.reshape(-1)

    fmt = format_by_name("MXFP4")
    values = decoded(Stored(name, shape, fmt, packed)).rows
    return Output(name, shape, values, own_format=fmt.name, packed=packed)


def _every_second(name: str, both: Output, first: int) -> Output:
    """Every second row of the matrices, from `first` on."""
    n, n_rows, row = both.shape

    def rows(a: int, b: int) -> np.ndarray:
        return both.rows(2 * a, 2 * b)[first::2]

    def packed(a: int, b: int) -> np.ndarray:
        assert both.packed is not None
        pairs = both.packed(2 * a, 2 * b).reshape(b - a, 2, -1)
        return np.ascontiguousarray(pairs[:, first]).reshape(-1)

    kept = packed if both.packed is not None else None
    return Output(name, (n, n_rows // 2, row), rows, own_format=both.own_format, packed=kept)


def _turned(name: str, matrices: Output) -> Output:
    """Each matrix turned: its columns are rows, in the file's format."""
    n, height, width = matrices.shape

    def rows(a: int, b: int) -> np.ndarray:
        found = [
            matrices.rows(i * height, (i + 1) * height)[
                :, max(a - i * width, 0) : min(b - i * width, width)
            ].T
            for i in range(a // width, -(-b // width))
        ]
        return np.ascontiguousarray(np.concatenate(found))

    return Output(name, (n, width, height), rows)
