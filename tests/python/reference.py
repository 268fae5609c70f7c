"""Llama's forward pass in float64 numpy, on a Hugging Face checkpoint's own names and layout.

Written from the architecture's description, not from the engine: rotary embedding in halves (as
transformers has it), so that a wrong permutation in the converter shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

ACTIVATIONS = {
    "silu": lambda gate, up: gate / (1 + np.exp(-gate)) * up,
    "relu": lambda gate, up: np.maximum(gate, 0) * up,
    "drelu": lambda gate, up: np.maximum(gate, 0) * np.maximum(up, 0),
}


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def rotate(x: np.ndarray, theta: float) -> np.ndarray:
    """x [n_tokens, n_head, head_dim], element i turned with element i + head_dim/2."""
    half = x.shape[-1] // 2
    angle = np.arange(len(x))[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def logits(
    config: dict[str, Any], weights: dict[str, np.ndarray], tokens: list[int], activation: str
) -> np.ndarray:
    """float64 [n_tokens, n_vocab]."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    n_head, n_kv = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // n_head
    theta = (config.get("rope_parameters") or config).get("rope_theta", 10000.0)
    eps, n = config["rms_norm_eps"], len(tokens)

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    future = np.triu(np.full((n, n), -np.inf), 1)
    x = w["model.embed_tokens.weight"][tokens]
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        y = rms_norm(x, w[f"{layer}.input_layernorm.weight"], eps)
        q, k, v = (
            linear(y, f"{layer}.self_attn.{part}_proj").reshape(n, heads, head_dim)
            for part, heads in (("q", n_head), ("k", n_kv), ("v", n_kv))
        )
        q, k = rotate(q, theta), rotate(k, theta)
        k, v = (np.repeat(part, n_head // n_kv, axis=1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(head_dim) + future
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        x = x + linear(
            np.einsum("hqk,khd->qhd", share, v).reshape(n, -1), f"{layer}.self_attn.o_proj"
        )
        y = rms_norm(x, w[f"{layer}.post_attention_layernorm.weight"], eps)
        h = ACTIVATIONS[activation](
            linear(y, f"{layer}.mlp.gate_proj"), linear(y, f"{layer}.mlp.up_proj")
        )
        x = x + linear(h, f"{layer}.mlp.down_proj")
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return rms_norm(x, w["model.norm.weight"], eps) @ w[head].T


def relative_error(ours: np.ndarray, reference: np.ndarray) -> float:
    return float(np.linalg.norm(ours - reference) / np.linalg.norm(reference))
