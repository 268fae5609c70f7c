"""Small GGUF files with made-up activation statistics, for the tests of placement and plots.

Written with the gguf package. Weights are zero: only header, rates and keys matter here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

SKEW = 6.2  # with exp(-SKEW u) the first 26% of the neurons make 80% of the firings


def rates(n: int, density: float, rng: np.random.Generator) -> np.ndarray:
    """float32 [n]: firings per token by the exponential law, in no order."""
    law = np.exp(-SKEW * (np.arange(n) + 0.5) / n)
    return rng.permutation(np.clip(law * density / law.mean(), 1e-5, 0.95)).astype(np.float32)


def uneven(n_layer: int, n: int, seed: int = 0) -> list[np.ndarray]:
    """Rates of layers with densities as in OPT: many layers hardly fire, a few fire a lot."""
    rng = np.random.default_rng(seed)
    densities = np.minimum(0.04 * rng.lognormal(0, 1.2, n_layer), 0.5)
    return [rates(n, density, rng) for density in densities]


def write(
    path: Path,
    by_layer: Sequence[np.ndarray],
    *,
    n_embd: int = 64,
    n_ff: int = 0,
    rank: int = 0,
    gated: bool = True,
    tied: bool = False,
    with_rates: bool = True,
    arrays: dict[str, Sequence[float]] | None = None,
    keys: dict[str, Any] | None = None,
) -> Path:
    """A neuron-aware llama (`gated`) in F16 with rates float32 [n_ff], or [n_expert, n_ff].

    rank: of the predictors. n_ff: unless that of the rates. arrays: keys of float32 lists; keys:
    u64 and string ones.
    """
    by_layer = [np.asarray(r, np.float32) for r in by_layer]
    n_expert = by_layer[0].shape[0] if by_layer[0].ndim == 2 else 0
    n_ff = n_ff or by_layer[0].shape[-1]
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {
        "context_length": 128,
        "embedding_length": n_embd,
        "block_count": len(by_layer),
        "feed_forward_length": n_ff,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        **({"expert_count": n_expert, "expert_used_count": 2} if n_expert else {}),
    }.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_uint32("powerinfer.version", 1)
    writer.add_string("powerinfer.ffn.activation", "relu")
    for key, values in (arrays or {}).items():
        writer.add_array(key, [float(v) for v in values])
    for key, value in (keys or {}).items():
        writer.add_string(key, value) if isinstance(value, str) else writer.add_uint64(key, value)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([2, 3, 3] + [6] * 256)

    def add(name: str, *shape: int, dtype: type = np.float16) -> None:
        writer.add_tensor(name, np.zeros(shape, dtype))

    def vector(name: str, n: int) -> None:
        add(name, n, dtype=np.float32)

    add("token_embd.weight", len(tokens), n_embd)
    vector("output_norm.weight", n_embd)
    if not tied:
        add("output.weight", len(tokens), n_embd)
    stack, end = ((n_expert,), "_exps") if n_expert else ((), "")
    for i, rate in enumerate(by_layer):
        block = f"blk.{i}."
        vector(block + "attn_norm.weight", n_embd)
        vector(block + "ffn_norm.weight", n_embd)
        add(block + "attn_q.weight", n_embd, n_embd)
        add(block + "attn_k.weight", n_embd // 2, n_embd)
        add(block + "attn_v.weight", n_embd // 2, n_embd)
        add(block + "attn_output.weight", n_embd, n_embd)
        if n_expert:
            add(block + "ffn_gate_inp.weight", n_expert, n_embd, dtype=np.float32)
        for name in ("gate", "up", "down_t") if gated else ("up", "down_t"):
            add(f"{block}ffn_{name}{end}.weight", *stack, n_ff, n_embd)
        if rank:
            add(f"{block}fc1{end}.weight", *stack, rank, n_embd)
            add(f"{block}fc2{end}.weight", *stack, n_ff, rank)
        if with_rates:
            writer.add_tensor(f"{block}ffn_rate{end}", rate)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
