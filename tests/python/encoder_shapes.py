"""Names and shapes of the tensors of encoders' checkpoints, for small_encoders.py."""

from __future__ import annotations

from typing import Any

Shapes = dict[str, tuple[int, ...]]


def linear(name: str, rows: int, cols: int, bias: bool = True) -> Shapes:
    found: Shapes = {f"{name}.weight": (rows, cols)}
    return found | ({f"{name}.bias": (rows,)} if bias else {})


def norm(name: str, width: int, bias: bool = True) -> Shapes:
    found: Shapes = {f"{name}.weight": (width,)}
    return found | ({f"{name}.bias": (width,)} if bias else {})


# Of BERT's relatives: layers, and q, k, v, o, norm, up, down, norm in them.
BERT_NAMES = (
    "encoder.layer",
    *(f"attention.self.{name}" for name in ("query", "key", "value")),
    *("attention.output.dense", "attention.output.LayerNorm"),
    *("intermediate.dense", "output.dense", "output.LayerNorm"),
)
NAMES = {
    "bert": BERT_NAMES,
    "roberta": BERT_NAMES,
    "xlm-roberta": BERT_NAMES,
    "distilbert": (
        "transformer.layer",
        *(f"attention.{name}" for name in ("q_lin", "k_lin", "v_lin", "out_lin")),
        *("sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm"),
    ),
    "mpnet": (
        "encoder.layer",
        *(f"attention.attn.{name}" for name in "qkvo"),
        *("attention.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"),
    ),
}


def bert_shapes(cfg: dict[str, Any]) -> Shapes:
    kind = cfg["model_type"]
    layers, q, k, v, o, norm_1, up, down, norm_2 = NAMES[kind]
    n = cfg.get("hidden_size") or cfg["dim"]
    n_ff = cfg.get("intermediate_size") or cfg["hidden_dim"]
    found: Shapes = {
        "embeddings.word_embeddings.weight": (cfg["vocab_size"], n),
        "embeddings.position_embeddings.weight": (cfg["max_position_embeddings"], n),
        **norm("embeddings.LayerNorm", n),
    }
    if "type_vocab_size" in cfg:
        found["embeddings.token_type_embeddings.weight"] = (cfg["type_vocab_size"], n)
    for i in range(cfg.get("num_hidden_layers") or cfg["n_layers"]):
        layer = f"{layers}.{i}"
        for name in (q, k, v, o):
            found |= linear(f"{layer}.{name}", n, n)
        found |= norm(f"{layer}.{norm_1}", n) | norm(f"{layer}.{norm_2}", n)
        found |= linear(f"{layer}.{up}", n_ff, n) | linear(f"{layer}.{down}", n, n_ff)
    if kind == "mpnet":
        heads = cfg["num_attention_heads"]
        found["encoder.relative_attention_bias.weight"] = (32, heads)
    return found


def nomic_shapes(cfg: dict[str, Any]) -> Shapes:
    n, n_ff = cfg["n_embd"], cfg["n_inner"]
    found: Shapes = {
        "embeddings.word_embeddings.weight": (cfg["vocab_size"], n),
        "embeddings.token_type_embeddings.weight": (cfg["type_vocab_size"], n),
        **norm("emb_ln", n),
    }
    for i in range(cfg["n_layer"]):
        layer = f"encoder.layers.{i}"
        found |= linear(f"{layer}.attn.Wqkv", 3 * n, n, False)
        found |= linear(f"{layer}.attn.out_proj", n, n, False)
        found |= linear(f"{layer}.mlp.fc11", n_ff, n, False)
        found |= linear(f"{layer}.mlp.fc12", n_ff, n, False)
        found |= linear(f"{layer}.mlp.fc2", n, n_ff, False)
        found |= norm(f"{layer}.norm1", n) | norm(f"{layer}.norm2", n)
    return found


def gte_shapes(cfg: dict[str, Any]) -> Shapes:
    n, n_ff = cfg["hidden_size"], cfg["intermediate_size"]
    found: Shapes = {
        "embeddings.word_embeddings.weight": (cfg["vocab_size"], n),
        **norm("embeddings.LayerNorm", n),
    }
    if cfg["type_vocab_size"]:
        found["embeddings.token_type_embeddings.weight"] = (cfg["type_vocab_size"], n)
    for i in range(cfg["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        found |= linear(f"{layer}.attention.qkv_proj", 3 * n, n)
        found |= linear(f"{layer}.attention.o_proj", n, n)
        found |= linear(f"{layer}.mlp.up_gate_proj", 2 * n_ff, n, False)
        found |= linear(f"{layer}.mlp.down_proj", n, n_ff)
        found |= norm(f"{layer}.attn_ln", n) | norm(f"{layer}.mlp_ln", n)
    return found


def modern_shapes(cfg: dict[str, Any]) -> Shapes:
    n, n_ff = cfg["hidden_size"], cfg["intermediate_size"]
    bias = cfg["norm_bias"]
    found: Shapes = {
        "embeddings.tok_embeddings.weight": (cfg["vocab_size"], n),
        **norm("embeddings.norm", n, bias),
        **norm("final_norm", n, bias),
    }
    for i in range(cfg["num_hidden_layers"]):
        layer = f"layers.{i}"
        found |= norm(f"{layer}.attn_norm", n, bias) if i else {}
        found |= norm(f"{layer}.mlp_norm", n, bias)
        found |= linear(f"{layer}.attn.Wqkv", 3 * n, n, False)
        found |= linear(f"{layer}.attn.Wo", n, n, False)
        found |= linear(f"{layer}.mlp.Wi", 2 * n_ff, n, False)
        found |= linear(f"{layer}.mlp.Wo", n, n_ff, False)
    return found


def decoder_shapes(cfg: dict[str, Any]) -> Shapes:
    """Layers of Llama, Gemma 3 and Qwen 3."""
    n, n_ff, dim = cfg["hidden_size"], cfg["intermediate_size"], cfg["head_dim"]
    q, kv = cfg["num_attention_heads"] * dim, cfg["num_key_value_heads"] * dim
    kind = cfg["model_type"]
    found: Shapes = {"embed_tokens.weight": (cfg["vocab_size"], n), "norm.weight": (n,)}
    for i in range(cfg["num_hidden_layers"]):
        layer = f"layers.{i}"
        norms = ["input_layernorm", "post_attention_layernorm"]
        if kind == "gemma3_text":
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        for name in norms:
            found |= norm(f"{layer}.{name}", n, False)
        if kind in ("gemma3_text", "qwen3"):
            for name in ("q_norm", "k_norm"):
                found |= norm(f"{layer}.self_attn.{name}", dim, False)
        for name, rows, cols in (
            *(("self_attn.q_proj", q, n), ("self_attn.k_proj", kv, n), ("self_attn.v_proj", kv, n)),
            *(("self_attn.o_proj", n, q), ("mlp.gate_proj", n_ff, n), ("mlp.up_proj", n_ff, n)),
            ("mlp.down_proj", n, n_ff),
        ):
            found |= linear(f"{layer}.{name}", rows, cols, False)
    return found


SHAPES = {
    **dict.fromkeys(NAMES, bert_shapes),
    "nomic_bert": nomic_shapes,
    "new": gte_shapes,
    "modernbert": modern_shapes,
    **dict.fromkeys(("eurobert", "llama_bidirec", "gemma3_text", "qwen3"), decoder_shapes),
}
