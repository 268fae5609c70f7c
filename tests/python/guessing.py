"""Small models with a layer that guesses tokens (multi-token prediction), and random weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import checkpoints
import delta_net_reference
import mamba_models
import numpy as np
from families import GOLDEN, quiet
from powerinfer_cpp.convert import convert

BASE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 24,
    "partial_rotary_factor": 0.25,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 12,
    "architectures": ["Model"],
    "mtp_num_hidden_layers": 1,
}
EXPERTS = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
    "norm_topk_prob": True,
}
DELTA_NETS: dict[str, dict[str, Any]] = {
    "dense": {**BASE, "model_type": "qwen3_5_text"},
    "mixture": {**BASE, **EXPERTS, "model_type": "qwen3_5_moe_text"},
    "next": {**BASE, **EXPERTS, "model_type": "qwen3_next"},
}
MAMBAS = ("nemotron-moe", "nemotron-narrow")
KINDS = (*DELTA_NETS, *MAMBAS)


def make(kind: str, folder: Path) -> tuple[Path, dict[str, Any], dict[str, np.ndarray]]:
    """A GGUF of one of KINDS, and the checkpoint's configuration and weights."""
    if kind in MAMBAS:
        more = {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}
        cfg, weights = mamba_models.read(mamba_models.checkpoint(kind, folder / "model", **more))
    else:
        cfg = DELTA_NETS[kind]
        weights = delta_net_reference.random_weights(cfg, seed=len(kind))
        checkpoints.save(folder / "model", cfg, weights)
        shutil.copy(GOLDEN / "tokenizer.model", folder / "model")
    path = convert(folder / "model", outtype="f32", outfile=folder / "a.gguf", log=quiet)
    return path, cfg, weights


def expected(
    kind: str, cfg: dict[str, Any], weights: dict[str, np.ndarray], tokens: list[int]
) -> np.ndarray:
    """float64 [n_tokens - 1, n_vocab]: what is guessed behind each token but the first."""
    module = mamba_models if kind in MAMBAS else delta_net_reference
    return module.guesses(cfg, weights, tokens)
