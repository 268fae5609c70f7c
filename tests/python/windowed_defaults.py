"""What transformers takes for missing keys of families with windows, beside those of Llama's
(test_convert_unread.py)."""

from __future__ import annotations

from typing import Any

GRANITE: dict[str, Any] = {
    "attention_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
}
WINDOWED: dict[str, dict[str, Any]] = {
    "afmoe": {
        "num_experts_per_tok": 6,
        "rms_norm_eps": 1e-5,
        "mup_enabled": False,
        "num_dense_layers": 1,
        "sliding_window": 1024,
        "layer_types": ["sliding_attention"] * 2,
        "route_scale": 1.0,
    },
    "exaone_moe": {
        "num_experts_per_tok": 8,
        "rms_norm_eps": 1e-5,
        "first_k_dense_replace": 1,
        "layer_types": ["sliding_attention"] * 2,
        "n_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "sliding_window": 4096,
    },
    "mellum": {
        "num_experts_per_tok": 8,
        "intermediate_size": 7168,
        "layer_types": ["full_attention"] * 2,
        "norm_topk_prob": True,
        "sliding_window": 1024,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 500000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    "mimo_v2_flash": {
        "num_experts_per_tok": 8,
        "rms_norm_eps": 1e-5,
        "attention_value_scale": 0.707,
        "layer_types": ["full_attention", "sliding_attention"],
        "mlp_layer_types": ["dense", "sparse"],
        "sliding_window": 129,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": 0.334}
            for kind, base in (("full_attention", 5e4), ("sliding_attention", 1e4))
        },
    },
    "cohere2_moe": {
        "num_experts_per_tok": 2,
        "expert_selection_fn": "softmax",
        "layer_norm_eps": 1e-5,
        "layer_types": ["sliding_attention"] * 3,
        "logit_scale": 0.0625,
        "mlp_layer_types": ["sparse"] * 3,
        "rms_norm_eps": None,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
    "granite_swa": {
        **GRANITE,
        "rms_norm_eps": 1e-5,
        "layer_rope_theta": None,
        "layer_types": ["full_attention", "sliding_attention"],
        "sliding_window": 128,
        "tie_word_embeddings": True,
    },
    "granitemoe_swa": {
        "num_experts_per_tok": 2,
        **GRANITE,
        "layer_rope_theta": None,
        "layer_types": ["full_attention", "sliding_attention"],
        "sliding_window": 128,
    },
    "step3p7": {},  # everything is in text_config
}
