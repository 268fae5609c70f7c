"""Checkpoints of Jina's second and third embedding models and of Nomic's with experts, and what
they give in float64 numpy.

The reference computes on the checkpoint's own names, from what their published code does.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
from scipy.special import erf

Weights = dict[str, np.ndarray]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCAB = [*SPECIAL, *"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz")]
TEXTS = ["a bear", "the small frog of the river", "", "unballing " * 30, "x y z"]
WIDTH, N_FF, LAYERS = 24, 20, 3

JINA: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["JinaBertModel"],
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 6,  # of which ALiBi needs slopes between those of 4 and of 8
    "intermediate_size": N_FF,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
    "vocab_size": len(VOCAB),
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
    "emb_pooler": "mean",
}
MOE: dict[str, Any] = {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    **{"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 3, "n_inner": N_FF, "n_positions": 512},
    "activation_function": "gelu",
    "layer_norm_epsilon": 1e-5,
    **{"rotary_emb_base": 10000, "rotary_emb_fraction": 1.0},
    **{"qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True},
    **{"num_experts": 5, "moe_top_k": 2, "moe_every_n_layers": 2, "num_shared_experts": 0},
    **{"moe_normalize_expert_weights": False, "expert_choice_router": False, "ffn_div": 1},
    "type_vocab_size": 1,
    "vocab_size": len(VOCAB),
}

JINA_3: dict[str, Any] = {
    "model_type": "xlm-roberta",
    "architectures": ["XLMRobertaModel"],
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 3,
    "intermediate_size": N_FF,
    "hidden_act": "gelu",
    "max_position_embeddings": 514,
    "layer_norm_eps": 1e-5,
    "type_vocab_size": 1,
    "vocab_size": len(VOCAB),
    "pad_token_id": 1,
    **{"position_embedding_type": "rotary", "rotary_emb_base": 20000.0},
}


# ---- Checkpoints ---------------------------------------------------------------------------------


def linear(name: str, rows: int, columns: int, bias: bool = True) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns), **({f"{name}.bias": (rows,)} if bias else {})}


def norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}


def jina_shapes(code: bool) -> dict[str, tuple[int, ...]]:
    found = {
        "embeddings.word_embeddings.weight": (len(VOCAB), WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        **norm("embeddings.LayerNorm"),
    }
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        names = (*(f"self.{part}" for part in ("query", "key", "value")), "output.dense")
        for name in names:
            found |= linear(f"{layer}.attention.{name}", WIDTH, WIDTH)
        found |= norm(f"{layer}.attention.output.LayerNorm")
        up, down = ("up_gated_layer", "down_layer") if code else ("gated_layers", "wo")
        found |= linear(f"{layer}.mlp.{up}", 2 * N_FF, WIDTH, False)
        found |= linear(f"{layer}.mlp.{down}", WIDTH, N_FF)
        ends = ("attention.self.layer_norm_q", "attention.self.layer_norm_k")
        for name in (*ends, "layer_norm_1", "layer_norm_2") if code else ("mlp.layernorm",):
            found |= norm(f"{layer}.{name}")
    return found


def moe_shapes() -> dict[str, tuple[int, ...]]:
    found = {
        "embeddings.word_embeddings.weight": (len(VOCAB), WIDTH),
        "embeddings.token_type_embeddings.weight": (1, WIDTH),
        **norm("emb_ln"),
    }
    n = MOE["num_experts"]
    for i in range(LAYERS):
        layer = f"encoder.layers.{i}"
        found |= linear(f"{layer}.attn.Wqkv", 3 * WIDTH, WIDTH)
        found |= linear(f"{layer}.attn.out_proj", WIDTH, WIDTH)
        found |= norm(f"{layer}.norm1") | norm(f"{layer}.norm2")
        if i % 2:
            found |= linear(f"{layer}.mlp.router.layer", n, WIDTH, False)
            found |= {f"{layer}.mlp.experts.mlp.w{j}": (n * N_FF, WIDTH) for j in (1, 2)}
            found[f"{layer}.mlp.experts.bias"] = (WIDTH,)
        else:
            found |= linear(f"{layer}.mlp.fc1", N_FF, WIDTH)
            found |= linear(f"{layer}.mlp.fc2", WIDTH, N_FF)
    return found


def jina_3_shapes() -> dict[str, tuple[int, ...]]:
    """Without adapters, which test_jina_embeddings3.py has."""
    found = {
        "roberta.embeddings.word_embeddings.weight": (len(VOCAB), WIDTH),
        "roberta.embeddings.token_type_embeddings.weight": (1, WIDTH),
        **norm("roberta.emb_ln"),
    }
    for i in range(LAYERS):
        layer = f"roberta.encoder.layers.{i}"
        for name, rows, columns in (
            ("mixer.Wqkv", 3 * WIDTH, WIDTH),
            ("mixer.out_proj", WIDTH, WIDTH),
            ("mlp.fc1", N_FF, WIDTH),
            ("mlp.fc2", WIDTH, N_FF),
        ):
            found |= linear(f"{layer}.{name}", rows, columns)
        found |= norm(f"{layer}.norm1") | norm(f"{layer}.norm2")
    return found | linear("roberta.pooler.dense", WIDTH, WIDTH)


def written(
    folder: Path, cfg: dict[str, Any], shapes: dict[str, tuple[int, ...]], seed: int = 3
) -> tuple[Path, Weights]:
    """A checkpoint with random weights, and these."""
    rng = np.random.default_rng(seed)
    weights = {
        name: (
            1 + 0.2 * rng.standard_normal(shape)
            if "norm" in name.lower().replace("emb_ln", "norm") and name.endswith("weight")
            else rng.standard_normal(shape) / math.sqrt(shape[-1] if len(shape) > 1 else 9)
        ).astype(np.float32)
        for name, shape in shapes.items()
    }
    folder.mkdir(parents=True)
    checkpoints.save_safetensors(folder / "model.safetensors", weights, "F32")
    (folder / "config.json").write_text(json.dumps(cfg))
    (folder / "vocab.txt").write_text("\n".join(VOCAB))
    pooling = folder / "1_Pooling"
    pooling.mkdir()
    (pooling / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    return folder, weights


# ---- Reference -----------------------------------------------------------------------------------


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + erf(x / math.sqrt(2))) / 2


def product(w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    return x @ w[f"{name}.weight"].T.astype(np.float64) + w.get(f"{name}.bias", 0.0)


def normed(w: Weights, name: str, x: np.ndarray, eps: float) -> np.ndarray:
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    return x * w[f"{name}.weight"] + w[f"{name}.bias"]


def attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, heads: int, bias: np.ndarray | float
) -> np.ndarray:
    q, k, v = (part.reshape(len(part), heads, -1) for part in (q, k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1]) + bias
    share = np.exp(scores - scores.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", share, v).reshape(len(q), -1)


def slopes(heads: int) -> list[float]:
    """As the paper's code finds them (arXiv 2108.12409)."""
    if math.log2(heads).is_integer():
        first = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [first ** (i + 1) for i in range(heads)]
    below = 2 ** math.floor(math.log2(heads))
    return slopes(below) + slopes(2 * below)[0::2][: heads - below]


def jina(w: Weights, ids: list[int], types: list[int] | int = 0) -> np.ndarray:
    eps, heads, n = JINA["layer_norm_eps"], JINA["num_attention_heads"], len(ids)
    steps = abs(np.arange(n)[None] - np.arange(n)[:, None])
    bias = -np.array(slopes(heads))[:, None, None] * steps
    x = w["embeddings.word_embeddings.weight"][ids].astype(np.float64)
    x = x + w["embeddings.token_type_embeddings.weight"][types]
    x = normed(w, "embeddings.LayerNorm", x, eps)
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        own = f"{layer}.attention.self"
        q, k, v = (product(w, f"{own}.{part}", x) for part in ("query", "key", "value"))
        code = f"{own}.layer_norm_q.weight" in w
        if code:
            q, k = (normed(w, f"{own}.layer_norm_{p}", y, eps) for p, y in (("q", q), ("k", k)))
        y = product(w, f"{layer}.attention.output.dense", attend(q, k, v, heads, bias))
        y = normed(w, f"{layer}.attention.output.LayerNorm", x + y, eps)
        x = normed(w, f"{layer}.layer_norm_1", x + y, eps) if code else y
        if code:
            up, gate = np.split(product(w, f"{layer}.mlp.up_gated_layer", x), 2, axis=-1)
            y = product(w, f"{layer}.mlp.down_layer", up * gelu(gate))
            x = normed(w, f"{layer}.layer_norm_2", x + y, eps)
        else:
            gate, up = np.split(product(w, f"{layer}.mlp.gated_layers", x), 2, axis=-1)
            y = product(w, f"{layer}.mlp.wo", up * gelu(gate))
            x = normed(w, f"{layer}.mlp.layernorm", x + y, eps)
    return x


def turned(x: np.ndarray, heads: int, base: float) -> np.ndarray:
    """RoPE with pairs (i, i + half of a head)."""
    n, half = len(x), x.shape[1] // heads // 2
    angles = np.outer(np.arange(n), base ** (-np.arange(half) / half))
    a, b = np.split(x.reshape(n, heads, 2 * half), 2, axis=-1)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1).reshape(n, -1)


def experts(w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    """The sum of the chosen experts times their shares of all, and the bias."""
    n, used = MOE["num_experts"], MOE["moe_top_k"]
    scores = product(w, f"{name}.router.layer", x)
    share = np.exp(scores - scores.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    up, down = (w[f"{name}.experts.mlp.w{j}"].reshape(n, N_FF, WIDTH) for j in (1, 2))
    found = np.tile(w[f"{name}.experts.bias"].astype(np.float64), (len(x), 1))
    for t, row in enumerate(x):
        for e in np.argsort(-share[t])[:used]:
            found[t] += share[t, e] * (gelu(up[e].astype(np.float64) @ row) @ down[e])
    return found


def rotating(
    cfg: dict[str, Any], w: Weights, ids: list[int], attention: str, heads: int, eps: float
) -> np.ndarray:
    """LayerNorm behind both parts, RoPE, no gates; experts where there is a router."""
    base = cfg["rotary_emb_base"]
    x = w["embeddings.word_embeddings.weight"][ids].astype(np.float64)
    x = normed(w, "emb_ln", x + w["embeddings.token_type_embeddings.weight"][0], eps)
    for i in range(LAYERS):
        layer = f"encoder.layers.{i}"
        q, k, v = np.split(product(w, f"{layer}.{attention}.Wqkv", x), 3, axis=-1)
        y = attend(turned(q, heads, base), turned(k, heads, base), v, heads, 0.0)
        y = product(w, f"{layer}.{attention}.out_proj", y)
        x = normed(w, f"{layer}.norm1", x + y, eps)
        if f"{layer}.mlp.router.layer.weight" in w:
            y = experts(w, f"{layer}.mlp", x)
        else:
            y = product(w, f"{layer}.mlp.fc2", gelu(product(w, f"{layer}.mlp.fc1", x)))
        x = normed(w, f"{layer}.norm2", x + y, eps)
    return x


def moe(w: Weights, ids: list[int]) -> np.ndarray:
    return rotating(MOE, w, ids, "attn", MOE["n_head"], MOE["layer_norm_epsilon"])


def jina_3(w: Weights, ids: list[int]) -> np.ndarray:
    heads, eps = JINA_3["num_attention_heads"], JINA_3["layer_norm_eps"]
    named = {name.removeprefix("roberta."): value for name, value in w.items()}
    return rotating(JINA_3, named, ids, "mixer", heads, eps)


KINDS: dict[str, Any] = {
    "jina": (JINA, jina_shapes(False), jina),
    "jina-code": (JINA, jina_shapes(True), jina),
    "moe": (MOE, moe_shapes(), moe),
    "jina-3": (JINA_3, jina_3_shapes(), jina_3),
}
