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


def frequencies(theta: float, head_dim: int) -> np.ndarray:
    """Radians per position of each pair, [head_dim / 2]."""
    half = head_dim // 2
    return theta ** (-np.arange(half) / half)


def turn(x: np.ndarray, frequency: np.ndarray, magnitude: float = 1.0) -> np.ndarray:
    """Rotates x [n_tokens, n_head, head_dim], element i with element i + head_dim/2, and scales."""
    half = x.shape[-1] // 2
    angle = np.arange(len(x))[:, None] * frequency
    cos, sin = magnitude * np.cos(angle)[:, None], magnitude * np.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def rotate(x: np.ndarray, theta: float) -> np.ndarray:
    return turn(x, frequencies(theta, x.shape[-1]))


def logits(
    config: dict[str, Any],
    weights: dict[str, np.ndarray],
    tokens: list[int],
    activation: str,
    blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray]] | None = None,
    turns: tuple[np.ndarray, float] | None = None,
) -> np.ndarray:
    """float64 [n_tokens, n_vocab]. blocks: gets each layer's residual before its feed-forward block
    and the norm of it, [n_tokens, n_embd], and what enters the down projection. turns: frequencies
    and magnitude in place of the config's. Heads and neurons of a layer are as many as its weights
    have; heads are as wide in all layers."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    theta = (config.get("rope_parameters") or config).get("rope_theta", 10000.0)
    turns = turns or (frequencies(theta, head_dim), 1.0)
    eps, n = config["rms_norm_eps"], len(tokens)

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    future = np.triu(np.full((n, n), -np.inf), 1)
    x = w["model.embed_tokens.weight"][tokens]
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        y = rms_norm(x, w[f"{layer}.input_layernorm.weight"], eps)
        q, k, v = (
            linear(y, f"{layer}.self_attn.{part}_proj").reshape(n, -1, head_dim) for part in "qkv"
        )
        q, k = turn(q, *turns), turn(k, *turns)
        k, v = (np.repeat(part, q.shape[1] // k.shape[1], axis=1) for part in (k, v))
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
        if blocks is not None:
            blocks.append((x, y, h))
        x = x + linear(h, f"{layer}.mlp.down_proj")
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return rms_norm(x, w["model.norm.weight"], eps) @ w[head].T


def relative_error(ours: np.ndarray, reference: np.ndarray) -> float:
    return float(np.linalg.norm(ours - reference) / np.linalg.norm(reference))


# ---- SmallThinker ----


def smallthinker_weights(config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 weights by the names of SmallThinker's checkpoints."""
    rng = np.random.default_rng(seed)
    e, f, v = config["hidden_size"], config["moe_ffn_hidden_size"], config["vocab_size"]
    q = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]

    def normal(*shape: int, scale: float = 1.5) -> np.ndarray:
        return (scale * rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    found = {
        "model.embed_tokens.weight": normal(v, e, scale=3),
        "model.norm.weight": 1 + normal(e),
        "lm_head.weight": normal(v, e, scale=3),
    }
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        found |= {
            f"{layer}.input_layernorm.weight": 1 + normal(e),
            f"{layer}.post_attention_layernorm.weight": 1 + normal(e),
            f"{layer}.self_attn.q_proj.weight": normal(q, e),
            f"{layer}.self_attn.k_proj.weight": normal(kv, e),
            f"{layer}.self_attn.v_proj.weight": normal(kv, e),
            f"{layer}.self_attn.o_proj.weight": normal(e, q),
        }
        moe = f"{layer}.block_sparse_moe"
        n_expert = config["moe_num_primary_experts"]
        found[f"{moe}.primary_router.weight"] = normal(n_expert, e, scale=0.5)
        for x in range(n_expert):
            found[f"{moe}.experts.{x}.gate.weight"] = normal(f, e)
            found[f"{moe}.experts.{x}.up.weight"] = normal(f, e)
            found[f"{moe}.experts.{x}.down.weight"] = normal(e, f)
    return found


def smallthinker_logits(
    config: dict[str, Any],
    weights: dict[str, np.ndarray],
    tokens: list[int],
    fired: np.ndarray | None = None,
) -> np.ndarray:
    """float64 [n_tokens, n_vocab]: experts chosen from the raw input of the layer. fired: bool
    [n_layer, n_tokens, n_expert, n_ff], set where something else than zero goes down."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    n_head, n_kv = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim, eps, n = config["head_dim"], config["rms_norm_eps"], len(tokens)
    used = config["moe_num_active_primary_experts"]
    distance = np.arange(n)[:, None] - np.arange(n)[None]
    x = w["model.embed_tokens.weight"][tokens]
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        moe = f"{layer}.block_sparse_moe"
        scores = x @ w[f"{moe}.primary_router.weight"].T
        y = rms_norm(x, w[f"{layer}.input_layernorm.weight"], eps)
        q, k, v = (
            (y @ w[f"{layer}.self_attn.{part}_proj.weight"].T).reshape(n, heads, head_dim)
            for part, heads in (("q", n_head), ("k", n_kv), ("v", n_kv))
        )
        if config["rope_layout"][i]:
            q, k = rotate(q, config["rope_theta"]), rotate(k, config["rope_theta"])
        width = config["sliding_window_size"] if config["sliding_window_layout"][i] else n
        seen = (distance >= 0) & (distance < width)
        k, v = (np.repeat(part, q.shape[1] // k.shape[1], axis=1) for part in (k, v))
        dots = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(head_dim)
        dots = np.where(seen, dots, -np.inf)
        share = np.exp(dots - dots.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        attended = np.einsum("hqk,khd->qhd", share, v).reshape(n, -1)
        x = x + attended @ w[f"{layer}.self_attn.o_proj.weight"].T
        y = rms_norm(x, w[f"{layer}.post_attention_layernorm.weight"], eps)
        out = np.zeros_like(x)
        for t in range(n):
            chosen = np.argsort(-scores[t])[:used]
            if config["moe_primary_router_apply_softmax"]:
                part = np.exp(scores[t, chosen] - scores[t].max())
            else:
                part = 1 / (1 + np.exp(-scores[t, chosen]))
            for x_id, weight in zip(chosen, part / part.sum(), strict=True):
                expert = f"{moe}.experts.{x_id}"
                gate = np.maximum(w[f"{expert}.gate.weight"] @ y[t], 0)
                up = w[f"{expert}.up.weight"] @ y[t]
                if fired is not None:
                    fired[i, t, x_id] = gate * up != 0
                out[t] += weight * (w[f"{expert}.down.weight"] @ (gate * up))
        x = x + out
    return rms_norm(x, w["model.norm.weight"], eps) @ w["lm_head.weight"].T
