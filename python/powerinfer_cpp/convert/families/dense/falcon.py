"""Falcon, 7B and 40B style: fused queries, keys and values, parallel attention and FFN."""

from collections.abc import Iterator

import numpy as np

from ...config import Config
from ...tensors import Output, Weights
from ...writer import Entry, string
from ..family import Family


def regrouped(n_head: int, n_head_kv: int, head_dim: int) -> np.ndarray:
    """Row order from groups of (queries, key, value) to all queries, all keys, all values.

    Row r of the result is row order[r] of the checkpoint.
    """
    rows = np.arange((n_head + 2 * n_head_kv) * head_dim)
    groups = rows.reshape(n_head_kv, n_head // n_head_kv + 2, head_dim)
    parts = (groups[:, :-2], groups[:, -2], groups[:, -1])
    return np.concatenate([part.reshape(-1) for part in parts])


class Falcon(Family):
    architecture = "falcon"
    names = {
        "n_embd": ("hidden_size", "n_embed"),
        "n_layer": ("num_hidden_layers", "n_layer"),
        "n_head": ("num_attention_heads", "n_head"),
        "n_ctx": ("max_position_embeddings", "max_sequence_length"),
    }
    default_ctx = 2048
    tied = True
    root, first, layers = "transformer.", "word_embeddings.weight", "h."

    def __init__(self, config: Config):
        super().__init__(config)
        self.norm_eps = config.number("layer_norm_epsilon", default=1e-5)
        self.activation = config.activation("activation", "gelu")
        self.rope = self.read_rope()
        if config.flag("alibi"):
            raise self.refuse("falcon with alibi positions")
        if config.flag("bias"):
            raise self.refuse("falcon with biases")
        parallel = config.flag("parallel_attn", True)
        if not (self.is_new or parallel):
            raise self.refuse("falcon with parallel_attn off")

    @property
    def is_new(self) -> bool:
        """The 40B style: several groups of heads, each with a key and a value."""
        refined = self.config.model_type() == "RefinedWeb"
        return self.config.flag("new_decoder_architecture", refined)

    def read_n_head_kv(self) -> int:
        self.config.known("multi_query", "num_kv_heads", "n_head_kv")  # each for one style
        if self.is_new:
            return self.config.integer("num_kv_heads", "n_head_kv", default=self.n_head)
        return 1 if self.config.flag("multi_query", True) else self.n_head

    def read_n_ff(self) -> int:
        return self.config.integer("ffn_hidden_size", default=4 * self.n_embd)

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        yield string("falcon.tensor_data_layout", "jploski")

    def outputs(self, weights: Weights, transpose_down: bool) -> Iterator[Output]:
        yield self.embedding(weights, "transformer.word_embeddings")
        order = regrouped(self.n_head, self.n_head_kv, self.head_dim)
        for i in range(self.n_layer):
            theirs, block = f"transformer.h.{i}", f"blk.{i}"
            if f"{theirs}.ln_attn.weight" in weights:  # attention's input has its own norm
                yield from self.norm(weights, f"{theirs}.ln_mlp", f"{block}.attn_norm", True)
                yield from self.norm(weights, f"{theirs}.ln_attn", f"{block}.attn_norm_2", True)
            else:
                name = f"{theirs}.input_layernorm"
                yield from self.norm(weights, name, f"{block}.attn_norm", True)
            for name, ours, shape, rows in (
                ("self_attention.query_key_value", "attn_qkv", (len(order), self.n_embd), order),
                ("self_attention.dense", "attn_output", (self.n_embd, self.n_q), None),
                ("mlp.dense_h_to_4h", "ffn_up", (self.n_ff, self.n_embd), None),
            ):
                yield from self.linear(
                    weights, f"{theirs}.{name}", f"{block}.{ours}", shape, order=rows
                )
            name = f"{theirs}.mlp.dense_4h_to_h"
            yield from self.down(weights, name, block, transpose_down, False)
        yield from self.norm(weights, "transformer.ln_f", "output_norm", True)
        yield from self.head(weights)
