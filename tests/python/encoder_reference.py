"""Models that give vectors and scores of texts, in float64 numpy, on a checkpoint's own names.

Written from the papers and from what the configurations say, not from the engine or the converter.
test_vectors.py compares it with transformers, too. Weights have the names of encoder_shapes.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from encoder_shapes import NAMES
from reference import rms_norm, rotate
from scipy.special import erf

Weights = dict[str, np.ndarray]


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu": gelu,
    "gelu_pytorch_tanh": gelu_tanh,
    "silu": silu,
    "Identity": lambda x: x,
    "Tanh": np.tanh,
}


def linear(w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)


def layer_norm(w: Weights, name: str, x: np.ndarray, eps: float) -> np.ndarray:
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    return x * w[f"{name}.weight"] + w.get(f"{name}.bias", 0.0)


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float,
    farthest: int | None = None,
    causal: bool = False,
    bias: np.ndarray | float = 0.0,
) -> np.ndarray:
    """[n, heads * dim] of q, k, v [n, heads, dim]. farthest: steps to a position that is seen, on
    both sides; bias: [heads, n, n], added to the scores."""
    n = len(q)
    k, v = (np.repeat(part, q.shape[1] // part.shape[1], axis=1) for part in (k, v))
    steps = np.arange(n)[None] - np.arange(n)[:, None]
    scores = np.einsum("qhd,khd->hqk", q, k) * scale + bias
    unseen = np.zeros((n, n), bool)
    if farthest is not None:
        unseen |= abs(steps) > farthest
    if causal:
        unseen |= steps > 0
    scores = np.where(unseen, -np.inf, scores)
    share = np.exp(scores - scores.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", share, v).reshape(n, -1)


def split(x: np.ndarray, heads: int) -> np.ndarray:
    return x.reshape(len(x), heads, -1)


def mpnet_bucket(steps: int) -> int:
    """Of a position so many steps behind a row: T5's 32 buckets, half of them for each side."""
    distance, side = abs(steps), 16 if steps > 0 else 0
    if distance < 8:
        return side + distance
    far = np.log(np.float32(distance) / np.float32(8)) / np.float32(math.log(128 / 8))
    return side + min(8 + int(far * np.float32(8)), 15)


def bert(cfg: dict[str, Any], w: Weights, ids: list[int], types: list[int]) -> np.ndarray:
    kind, n = cfg["model_type"], len(ids)
    layers, q_name, k_name, v_name, o_name, norm_1, up, down, norm_2 = NAMES[kind]
    heads = cfg.get("num_attention_heads") or cfg["n_heads"]
    act = ACTIVATIONS[cfg.get("hidden_act") or cfg["activation"]]
    eps = cfg.get("layer_norm_eps", 1e-12)
    first = 0 if kind in ("bert", "distilbert") else cfg["pad_token_id"] + 1
    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.position_embeddings.weight"][first : first + n]
    if "embeddings.token_type_embeddings.weight" in w:
        x = x + w["embeddings.token_type_embeddings.weight"][types]
    x = layer_norm(w, "embeddings.LayerNorm", x, eps)
    bias: np.ndarray | float = 0.0
    if kind == "mpnet":
        buckets = [[mpnet_bucket(j - i) for j in range(n)] for i in range(n)]
        bias = w["encoder.relative_attention_bias.weight"][np.array(buckets)].transpose(2, 0, 1)
    for i in range(cfg.get("num_hidden_layers") or cfg["n_layers"]):
        layer = f"{layers}.{i}"
        q, k, v = (split(linear(w, f"{layer}.{m}", x), heads) for m in (q_name, k_name, v_name))
        attended = attend(q, k, v, q.shape[-1] ** -0.5, bias=bias)
        y = linear(w, f"{layer}.{o_name}", attended)
        x = layer_norm(w, f"{layer}.{norm_1}", x + y, eps)
        y = linear(w, f"{layer}.{down}", act(linear(w, f"{layer}.{up}", x)))
        x = layer_norm(w, f"{layer}.{norm_2}", x + y, eps)
    return x


def nomic(cfg: dict[str, Any], w: Weights, ids: list[int], types: list[int]) -> np.ndarray:
    eps, theta = cfg["layer_norm_epsilon"], cfg["rotary_emb_base"]
    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.token_type_embeddings.weight"][types]
    x = layer_norm(w, "emb_ln", x, eps)
    for i in range(cfg["n_layer"]):
        layer = f"encoder.layers.{i}"
        q, k, v = np.split(linear(w, f"{layer}.attn.Wqkv", x), 3, -1)
        q, k, v = (split(part, cfg["n_head"]) for part in (q, k, v))
        attended = attend(rotate(q, theta), rotate(k, theta), v, q.shape[-1] ** -0.5)
        x = layer_norm(w, f"{layer}.norm1", x + linear(w, f"{layer}.attn.out_proj", attended), eps)
        up, gate = linear(w, f"{layer}.mlp.fc11", x), linear(w, f"{layer}.mlp.fc12", x)
        y = linear(w, f"{layer}.mlp.fc2", up * silu(gate))
        x = layer_norm(w, f"{layer}.norm2", x + y, eps)
    return x


def gte(cfg: dict[str, Any], w: Weights, ids: list[int], types: list[int]) -> np.ndarray:
    eps, theta = cfg["layer_norm_eps"], cfg["rope_theta"]
    x = w["embeddings.word_embeddings.weight"][ids]
    if cfg["type_vocab_size"]:
        x = x + w["embeddings.token_type_embeddings.weight"][types]
    x = layer_norm(w, "embeddings.LayerNorm", x, eps)
    for i in range(cfg["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        q, k, v = np.split(linear(w, f"{layer}.attention.qkv_proj", x), 3, -1)
        q, k, v = (split(part, cfg["num_attention_heads"]) for part in (q, k, v))
        attended = attend(rotate(q, theta), rotate(k, theta), v, q.shape[-1] ** -0.5)
        y = linear(w, f"{layer}.attention.o_proj", attended)
        x = layer_norm(w, f"{layer}.attn_ln", x + y, eps)
        up, gate = np.split(linear(w, f"{layer}.mlp.up_gate_proj", x), 2, -1)
        y = linear(w, f"{layer}.mlp.down_proj", up * gelu(gate))
        x = layer_norm(w, f"{layer}.mlp_ln", x + y, eps)
    return x


def modern_bert(cfg: dict[str, Any], w: Weights, ids: list[int], _types: list[int]) -> np.ndarray:
    eps, act = cfg["norm_eps"], ACTIVATIONS[cfg["hidden_activation"]]
    x = layer_norm(w, "embeddings.norm", w["embeddings.tok_embeddings.weight"][ids], eps)
    for i in range(cfg["num_hidden_layers"]):
        layer = f"layers.{i}"
        if "layer_types" in cfg:
            everywhere = cfg["layer_types"][i] == "full_attention"
        else:
            everywhere = i % cfg["global_attn_every_n_layers"] == 0
        theta = cfg["global_rope_theta" if everywhere else "local_rope_theta"]
        y = layer_norm(w, f"{layer}.attn_norm", x, eps) if i else x
        q, k, v = np.split(linear(w, f"{layer}.attn.Wqkv", y), 3, -1)
        q, k, v = (split(part, cfg["num_attention_heads"]) for part in (q, k, v))
        farthest = None if everywhere else cfg["local_attention"] // 2
        attended = attend(rotate(q, theta), rotate(k, theta), v, q.shape[-1] ** -0.5, farthest)
        x = x + linear(w, f"{layer}.attn.Wo", attended)
        y = layer_norm(w, f"{layer}.mlp_norm", x, eps)
        a, b = np.split(linear(w, f"{layer}.mlp.Wi", y), 2, -1)
        x = x + linear(w, f"{layer}.mlp.Wo", act(a) * b)
    return layer_norm(w, "final_norm", x, eps)


def decoder(cfg: dict[str, Any], w: Weights, ids: list[int], _types: list[int]) -> np.ndarray:
    """Layers of Llama, Gemma 3 and Qwen 3; all but the last see both sides."""
    kind, eps, dim = cfg["model_type"], cfg["rms_norm_eps"], cfg["head_dim"]
    gemma = kind == "gemma3_text"
    act = ACTIVATIONS[cfg["hidden_activation"] if gemma else cfg["hidden_act"]]

    def norm(name: str, y: np.ndarray) -> np.ndarray:
        return rms_norm(y, w[f"{name}.weight"] + float(gemma), eps)

    x = w["embed_tokens.weight"][ids] * (math.sqrt(cfg["hidden_size"]) if gemma else 1)
    for i in range(cfg["num_hidden_layers"]):
        layer = f"layers.{i}"
        slides = gemma and cfg["layer_types"][i] == "sliding_attention"
        theta = cfg["rope_local_base_freq" if slides else "rope_theta"]
        y = norm(f"{layer}.input_layernorm", x)
        q, k, v = (
            linear(w, f"{layer}.self_attn.{part}_proj", y).reshape(len(ids), -1, dim)
            for part in "qkv"
        )
        if f"{layer}.self_attn.q_norm.weight" in w:
            q, k = norm(f"{layer}.self_attn.q_norm", q), norm(f"{layer}.self_attn.k_norm", k)
        q, k = rotate(q, theta), rotate(k, theta)
        scale = cfg.get("query_pre_attn_scalar", dim) ** -0.5
        farthest = cfg["sliding_window"] // 2 if slides else None
        attended = attend(q, k, v, scale, farthest, causal=kind == "qwen3")
        y = linear(w, f"{layer}.self_attn.o_proj", attended)
        x = x + (norm(f"{layer}.post_attention_layernorm", y) if gemma else y)
        name = "pre_feedforward_layernorm" if gemma else "post_attention_layernorm"
        y = norm(f"{layer}.{name}", x)
        gate, up = linear(w, f"{layer}.mlp.gate_proj", y), linear(w, f"{layer}.mlp.up_proj", y)
        y = linear(w, f"{layer}.mlp.down_proj", act(gate) * up)
        x = x + (norm(f"{layer}.post_feedforward_layernorm", y) if gemma else y)
    return norm("norm", x)


_OF = {
    **dict.fromkeys(NAMES, bert),
    "nomic_bert": nomic,
    "new": gte,
    "modernbert": modern_bert,
    **dict.fromkeys(("eurobert", "llama_bidirec", "gemma3_text", "qwen3"), decoder),
}


def doubles(weights: Weights) -> Weights:
    return {name: value.astype(np.float64) for name, value in weights.items()}


def rows(
    cfg: dict[str, Any], weights: Weights, ids: list[int], types: list[int] | None = None
) -> np.ndarray:
    """float64 [n, width]: what is pooled."""
    return _OF[cfg["model_type"]](cfg, doubles(weights), ids, types or [0] * len(ids))


def pooled(found: np.ndarray, kind: str) -> np.ndarray:
    return {"mean": found.mean(0), "cls": found[0], "lasttoken": found[-1]}[kind]


def vector(checkpoint: Any, ids: list[int], kind: str | None = None) -> np.ndarray:
    """float64: the vector of a text, as sentence-transformers makes it, not scaled."""
    x = pooled(rows(checkpoint.config, checkpoint.weights, ids), kind or checkpoint.pooling)
    for weights, act in checkpoint.dense:
        x = ACTIVATIONS[act](linear(doubles(weights), "linear", x))
    return x


def score(checkpoint: Any, ids: list[int], types: list[int]) -> float:
    """A ranker's logit."""
    cfg, w = checkpoint.config, doubles(checkpoint.weights)
    found = rows(cfg, w, ids, types)
    if cfg["model_type"] == "bert":
        x = np.tanh(linear(w, "bert.pooler.dense", found[0]))
        return float(linear(w, "classifier", x)[0])
    if cfg["model_type"] == "modernbert":
        x = gelu(linear(w, "head.dense", pooled(found, cfg["classifier_pooling"])))
        return float(linear(w, "classifier", layer_norm(w, "head.norm", x, cfg["norm_eps"]))[0])
    x = np.tanh(linear(w, "classifier.dense", found[0]))
    return float(linear(w, "classifier.out_proj", x)[0])


def yes_or_no(checkpoint: Any, ids: list[int], yes: int, no: int) -> float:
    """The difference of two logits behind the last row, of a model with a tied head."""
    last = rows(checkpoint.config, checkpoint.weights, ids)[-1]
    head = checkpoint.weights["embed_tokens.weight"].astype(np.float64)
    return float(last @ (head[yes] - head[no]))
