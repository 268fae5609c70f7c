"""Qwen3-Next and Qwen 3.5 in float64 numpy, position by position, on a checkpoint's own names.

Written from the published formulas (arXiv 2412.06464), not from the engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from reference import rms_norm, rotate


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _silu(x: np.ndarray) -> np.ndarray:
    return x * _sigmoid(x)


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)


def random_weights(config: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Random float32 weights by the names of a checkpoint. States fade over 2 to 50 positions."""
    rng = np.random.default_rng(seed)
    e, v = config["hidden_size"], config["vocab_size"]
    head, n_head = config["head_dim"], config["num_attention_heads"]
    kv = config["num_key_value_heads"] * head
    heads = config["linear_num_value_heads"]
    k_dim = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    v_dim = heads * config["linear_value_head_dim"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (v, e), "lm_head": (v, e)}
    vectors = {"model.norm.weight": e}
    layers = [(f"model.layers.{i}", kind) for i, kind in enumerate(config["layer_types"])]
    if config.get("mtp_num_hidden_layers"):
        layers.append(("mtp.layers.0", "full_attention"))
        shapes["mtp.fc"] = (e, 2 * e)
        for norm in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
            vectors[f"mtp.{norm}.weight"] = e
    for layer, kind in layers:
        for norm in ("input_layernorm", "post_attention_layernorm"):
            vectors[f"{layer}.{norm}.weight"] = e
        if kind == "full_attention":
            part = f"{layer}.self_attn"
            shapes[f"{part}.q_proj"] = (2 * n_head * head, e)
            shapes[f"{part}.k_proj"] = shapes[f"{part}.v_proj"] = (kv, e)
            shapes[f"{part}.o_proj"] = (e, n_head * head)
            vectors[f"{part}.q_norm.weight"] = vectors[f"{part}.k_norm.weight"] = head
        else:
            part = f"{layer}.linear_attn"
            if config["model_type"] == "qwen3_next":
                shapes[f"{part}.in_proj_qkvz"] = (2 * k_dim + 2 * v_dim, e)
                shapes[f"{part}.in_proj_ba"] = (2 * heads, e)
            else:
                shapes[f"{part}.in_proj_qkv"] = (2 * k_dim + v_dim, e)
                shapes[f"{part}.in_proj_z"] = (v_dim, e)
                shapes[f"{part}.in_proj_b"] = shapes[f"{part}.in_proj_a"] = (heads, e)
            taps = config["linear_conv_kernel_dim"]
            shapes[f"{part}.conv1d"] = (2 * k_dim + v_dim, 1, taps)
            shapes[f"{part}.out_proj"] = (e, v_dim)
            vectors[f"{part}.dt_bias"] = vectors[f"{part}.A_log"] = heads
            vectors[f"{part}.norm.weight"] = config["linear_value_head_dim"]
        if "num_experts" not in config:
            blocks = {f"{layer}.mlp": config["intermediate_size"]}
        else:
            moe, n = f"{layer}.mlp", config["num_experts"]
            blocks = {f"{moe}.experts.{x}": config["moe_intermediate_size"] for x in range(n)}
            blocks[f"{moe}.shared_expert"] = config["shared_expert_intermediate_size"]
            shapes[f"{moe}.gate"], shapes[f"{moe}.shared_expert_gate"] = (n, e), (1, e)
        for block, ff in blocks.items():
            shapes[f"{block}.gate_proj"] = shapes[f"{block}.up_proj"] = (ff, e)
            shapes[f"{block}.down_proj"] = (e, ff)
    found = {}
    for name, shape in shapes.items():
        scale = 3 if shape == (v, e) else 1.5
        found[f"{name}.weight"] = scale * rng.standard_normal(shape) / np.sqrt(shape[-1])
    for name, n in vectors.items():
        found[name] = 0.3 * rng.standard_normal(n)
        if name.endswith("linear_attn.norm.weight"):
            found[name] += 1
        if name.endswith("A_log"):
            found[name] = rng.uniform(-3.5, -0.5, n)
    return {name: values.astype(np.float32) for name, values in found.items()}


def logits(
    config: dict[str, Any],
    weights: dict[str, np.ndarray],
    tokens: list[int],
    inputs: dict[str, np.ndarray] | None = None,
) -> np.ndarray:
    """float64 [n_tokens, n_vocab]. inputs: gets what the first and the last matrices of delta nets
    read, by the names of these."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    return _last(config, w, tokens, inputs) @ w["lm_head.weight"].T


def guesses(
    config: dict[str, Any], weights: dict[str, np.ndarray], tokens: list[int]
) -> np.ndarray:
    """float64 [n_tokens - 1, n_vocab]: what the layer of multi-token prediction says of the token
    behind tokens[i + 1], from the model's row i."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    eps, layer = config["rms_norm_eps"], "mtp.layers.0"

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return rms_norm(x, 1 + w[f"{name}.weight"], eps)

    token = norm(w["model.embed_tokens.weight"][tokens[1:]], "mtp.pre_fc_norm_embedding")
    row = norm(_last(config, w, tokens)[:-1], "mtp.pre_fc_norm_hidden")
    x = np.concatenate([token, row], -1) @ w["mtp.fc.weight"].T
    x = x + _attention(config, w, f"{layer}.self_attn", norm(x, f"{layer}.input_layernorm"))
    y = norm(x, f"{layer}.post_attention_layernorm")
    x = x + _feed_forward(config, w, f"{layer}.mlp", y)
    return norm(x, "mtp.norm") @ w["lm_head.weight"].T


def _last(
    config: dict[str, Any],
    w: dict[str, np.ndarray],
    tokens: list[int],
    inputs: dict[str, np.ndarray] | None = None,
) -> np.ndarray:
    """What the head reads, float64 [n_tokens, n_embd]. inputs: as in `logits`."""
    eps = config["rms_norm_eps"]
    x = w["model.embed_tokens.weight"][tokens]
    for i, kind in enumerate(config["layer_types"]):
        layer = f"model.layers.{i}"
        y = rms_norm(x, 1 + w[f"{layer}.input_layernorm.weight"], eps)
        if kind == "full_attention":
            x = x + _attention(config, w, f"{layer}.self_attn", y)
        else:
            name = f"{layer}.linear_attn"
            out = _delta_net(config, w, name, y)
            x = x + out @ w[f"{name}.out_proj.weight"].T
            if inputs is not None:
                inputs |= {f"{name}.in_proj_qkv": y, f"{name}.out_proj": out}
        y = rms_norm(x, 1 + w[f"{layer}.post_attention_layernorm.weight"], eps)
        x = x + _feed_forward(config, w, f"{layer}.mlp", y)
    return rms_norm(x, 1 + w["model.norm.weight"], eps)


def _attention(
    config: dict[str, Any], w: dict[str, np.ndarray], name: str, y: np.ndarray
) -> np.ndarray:
    n, d, eps = len(y), config["head_dim"], config["rms_norm_eps"]
    both = (y @ w[f"{name}.q_proj.weight"].T).reshape(n, -1, 2 * d)
    q, gate = both[..., :d], both[..., d:]
    k, v = ((y @ w[f"{name}.{part}_proj.weight"].T).reshape(n, -1, d) for part in "kv")
    q = rms_norm(q, 1 + w[f"{name}.q_norm.weight"], eps)
    k = rms_norm(k, 1 + w[f"{name}.k_norm.weight"], eps)
    turning = int(config["partial_rotary_factor"] * d)
    q, k = (
        np.concatenate([rotate(part[..., :turning], config["rope_theta"]), part[..., turning:]], -1)
        for part in (q, k)
    )
    k, v = (np.repeat(part, q.shape[1] // k.shape[1], axis=1) for part in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(d) + np.triu(np.full((n, n), -np.inf), 1)
    share = np.exp(scores - scores.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    out = np.einsum("hqk,khd->qhd", share, v) * _sigmoid(gate)
    return out.reshape(n, -1) @ w[f"{name}.o_proj.weight"].T


def _delta_net(
    config: dict[str, Any], w: dict[str, np.ndarray], name: str, y: np.ndarray
) -> np.ndarray:
    n, n_k = len(y), config["linear_num_key_heads"]
    heads = config["linear_num_value_heads"]
    d, dv = config["linear_key_head_dim"], config["linear_value_head_dim"]
    per = heads // n_k  # heads of values that a head of keys serves
    if config["model_type"] == "qwen3_next":
        all_parts = (y @ w[f"{name}.in_proj_qkvz.weight"].T).reshape(n, n_k, -1)
        parts = np.split(all_parts, [d, 2 * d, 2 * d + per * dv], axis=-1)
        q, k, v, z = (part.reshape(n, -1) for part in parts)
        mixed = np.concatenate([q, k, v], -1)
        ba = (y @ w[f"{name}.in_proj_ba.weight"].T).reshape(n, n_k, 2, per)
        b, a = ba[:, :, 0].reshape(n, -1), ba[:, :, 1].reshape(n, -1)
    else:
        mixed, z, b, a = (y @ w[f"{name}.in_proj_{p}.weight"].T for p in ("qkv", "z", "b", "a"))
    conv = w[f"{name}.conv1d.weight"][:, 0]
    taps = conv.shape[1]
    padded = np.concatenate([np.zeros((taps - 1, mixed.shape[1])), mixed])
    mixed = _silu(sum(padded[j : j + n] * conv[:, j] for j in range(taps)))
    q, k, v = np.split(mixed, [n_k * d, 2 * n_k * d], axis=-1)
    q, k = (_unit(part.reshape(n, n_k, d)).repeat(per, axis=1) for part in (q, k))
    v, z = v.reshape(n, heads, dv), z.reshape(n, heads, dv)
    decay = np.exp(-np.exp(w[f"{name}.A_log"]) * np.log1p(np.exp(a + w[f"{name}.dt_bias"])))
    beta = _sigmoid(b)
    state, out = np.zeros((heads, d, dv)), np.zeros((n, heads, dv))
    for t in range(n):
        state *= decay[t, :, None, None]
        change = beta[t, :, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
        state += k[t][:, :, None] * change[:, None]
        out[t] = np.einsum("hkv,hk->hv", state, q[t] / np.sqrt(d))
    out = rms_norm(out, w[f"{name}.norm.weight"], config["rms_norm_eps"]) * _silu(z)
    return out.reshape(n, -1)


def _block(w: dict[str, np.ndarray], name: str, y: np.ndarray) -> np.ndarray:
    gate, up = (y @ w[f"{name}.{part}_proj.weight"].T for part in ("gate", "up"))
    return (_silu(gate) * up) @ w[f"{name}.down_proj.weight"].T


def _feed_forward(
    config: dict[str, Any], w: dict[str, np.ndarray], name: str, y: np.ndarray
) -> np.ndarray:
    if "num_experts" not in config:
        return _block(w, name, y)
    scores = y @ w[f"{name}.gate.weight"].T
    share = np.exp(scores - scores.max(-1, keepdims=True))
    chosen = np.argsort(-share, axis=-1, kind="stable")[:, : config["num_experts_per_tok"]]
    out = _block(w, f"{name}.shared_expert", y)
    out *= _sigmoid(y @ w[f"{name}.shared_expert_gate.weight"].T)
    for t, experts in enumerate(chosen):
        for x in experts:
            part = share[t, x] / share[t, experts].sum()
            out[t] += part * _block(w, f"{name}.experts.{x}", y[t])
    return out
