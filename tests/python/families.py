"""Tiny checkpoints of the families other than Llama, and the engine's logits, for tests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import reference
from powerinfer_cpp.core.gguf import Gguf
from safetensors.numpy import load_file, save_file

from powerinfer_cpp import Llama

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
TOKENS = [1, 5, 77, 290, 4, 5, 5, 261, 299, 12, 270, 9, 40]


def quiet(_line: str) -> None:
    pass


def golden(name: str, folder: Path, **changes: Any) -> Path:
    """A checkpoint of tests/golden with its tokenizer; changes: to config.json, None removes."""
    shutil.copytree(GOLDEN / name, folder)
    shutil.copy(GOLDEN / "tokenizer.model", folder)
    path = folder / "config.json"
    cfg = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in cfg.items() if v is not None}))
    return folder


def with_null(folder: Path, *keys: str) -> Path:
    """Sets keys of the checkpoint's config.json to null, which is not the same as missing."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **dict.fromkeys(keys)}))
    return folder


def with_head(folder: Path) -> Path:
    """Gives the checkpoint a head of its own, a copy of the embedding."""
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()
    save_file(weights, folder / "model.safetensors")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": False}))
    return folder


def logits(
    path: Path, tokens: list[int] = TOKENS, sparse: str = "auto", allow_unknown: bool = False
) -> np.ndarray:
    """Logits of every token, with an F32 cache so that only the arithmetic differs."""
    options = {"n_ctx": 64, "logits_all": True, "verbose": False, "type_k": 0, "type_v": 0}
    with Llama(path, sparse=sparse, allow_unknown=allow_unknown, **options) as llm:
        llm.eval(tokens)
        return llm.scores[: len(tokens)].astype(np.float64)


def tensors_of(path: Path) -> dict[str, np.ndarray]:
    with Gguf(path) as file:
        return {t.name: file.data(t).view(np.float32).reshape(t.shape) for t in file.tensors}


SMALLTHINKER: dict[str, Any] = {
    "model_type": "smallthinker",
    "architectures": ["SmallThinkerForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "moe_ffn_hidden_size": 24,
    "moe_num_primary_experts": 6,
    "moe_num_active_primary_experts": 2,
    "moe_primary_router_apply_softmax": False,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_layout": [1] * 5,
    "sliding_window_layout": [0] * 5,
    "sliding_window_size": 4096,
    "tie_word_embeddings": False,
}
SLIDING = {"rope_layout": [0, 1, 1, 1, 0], "sliding_window_layout": [0, 1, 1, 1, 0]}
VARIANTS: dict[str, dict[str, Any]] = {
    "sigmoid": {},
    "softmax": {"moe_primary_router_apply_softmax": True},
    "window": {**SLIDING, "sliding_window_size": 5},
    "wide window": SLIDING,
}


def smallthinker(folder: Path, **changes: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    cfg = {**SMALLTHINKER, **changes}
    weights = reference.smallthinker_weights(cfg)
    checkpoints.save(folder, cfg, weights)
    shutil.copy(GOLDEN / "tokenizer.model", folder)
    return cfg, weights


# What Ling 2 calls the tensors and keys of GLM-4.5, whose rotation and router it has.
_OF_LING = {
    "model.embed_tokens": "model.word_embeddings",
    "self_attn.o_proj": "attention.dense",
    "self_attn.q_norm": "attention.query_layernorm",
    "self_attn.k_norm": "attention.key_layernorm",
    "gate.e_score_correction_bias": "gate.expert_bias",
}


def ling(folder: Path, **changes: Any) -> np.ndarray:
    """Makes a checkpoint of Ling 2 from GLM-4.5's; returns what transformers computes with that."""
    golden("glm4-moe", folder)
    weights: dict[str, np.ndarray] = {}
    for name, w in load_file(folder / "model.safetensors").items():
        for theirs, ours in _OF_LING.items():
            name = name.replace(theirs, ours)
        weights[name] = w
    for name in [name for name in weights if ".q_proj." in name]:
        parts = [weights.pop(name.replace(".q_proj.", f".{part}_proj.")) for part in "qkv"]
        fused = name.replace("self_attn.q_proj", "attention.query_key_value")
        weights[fused] = np.concatenate(parts)
    save_file(weights, folder / "model.safetensors")
    cfg = json.loads((folder / "config.json").read_text())
    for theirs, ours in (
        ("n_routed_experts", "num_experts"),
        ("n_shared_experts", "num_shared_experts"),
        ("attention_bias", "use_qkv_bias"),
    ):
        cfg[ours] = cfg.pop(theirs)
    cfg |= {"model_type": "bailing_moe", "architectures": ["BailingMoeV2ForCausalLM"]}
    cfg |= {"rotary_dim": cfg["head_dim"] // 2, "score_function": "sigmoid", **changes}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in cfg.items() if v is not None}))
    return np.load(folder / "expected.npz")["logits"]


def turbo_mixtral(folder: Path, ranks: tuple[int, ...] = (8, 8, 8, 8)) -> Path:
    """Mixtral's golden checkpoint under the names of TurboSparse-Mixtral."""
    golden("mixtral", folder, model_type="turbosparsemixtral", hidden_act="relu")
    weights, rng = load_file(folder / "model.safetensors"), np.random.default_rng(0)
    for layer in range(2):
        for expert, rank in enumerate(ranks):
            name = f"model.layers.{layer}.block_sparse_moe.experts.{expert}.predictor"
            for part, shape in (("fc1", (rank, 32)), ("fc2", (24, rank))):
                weights[f"{name}.{part}.weight"] = rng.standard_normal(shape).astype(np.float32)
    save_file(weights, folder / "model.safetensors")
    return folder


def falcon_weights(cfg: dict[str, Any]) -> dict[str, np.ndarray]:
    """Random weights of the 40B style."""
    rng = np.random.default_rng(0)
    e, f, v = cfg["hidden_size"], cfg["ffn_hidden_size"], cfg["vocab_size"]
    qkv = e + 2 * e // cfg["num_attention_heads"] * cfg["num_kv_heads"]
    found = {"transformer.word_embeddings.weight": (v, e), "transformer.ln_f.weight": (e,)}
    for i in range(cfg["num_hidden_layers"]):
        layer = f"transformer.h.{i}"
        found |= {f"{layer}.{norm}.weight": (e,) for norm in ("ln_attn", "ln_mlp")}
        found[f"{layer}.self_attention.query_key_value.weight"] = (qkv, e)
        found[f"{layer}.self_attention.dense.weight"] = (e, e)
        found[f"{layer}.mlp.dense_h_to_4h.weight"] = (f, e)
        found[f"{layer}.mlp.dense_4h_to_h.weight"] = (e, f)
    weights = {}
    for name, shape in found.items():
        values = rng.standard_normal(shape).astype(np.float32)
        weights[name] = values * 1.5 / np.sqrt(e) if len(shape) > 1 else 1 + values / 5
        if len(shape) == 1:
            weights[name.replace("weight", "bias")] = np.zeros(shape, np.float32)
    return weights
