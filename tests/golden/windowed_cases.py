"""Checkpoints of make_golden.py: mixtures with sliding windows, and Granite with them.

As in its CASES: what differs from BASE. Prompts are longer than windows. Rows are whole groups of 8
values, so that a device computes them.
"""

from __future__ import annotations

from typing import Any

_TINY: dict[str, Any] = {
    "intermediate_size": 24,
    "num_key_value_heads": 2,
    "sliding_window": 7,
    "pad_token_id": 0,
    "n_tokens": 13,
}
_MIXTURE: dict[str, Any] = {
    **_TINY,
    "moe_intermediate_size": 8,
    "num_experts_per_tok": 2,
    "head_dim": 16,
}
_SLIDES = {"layer_types": ["sliding_attention", "full_attention"]}
_GRANITE: dict[str, Any] = {
    **_TINY,
    "attention_multiplier": 0.6,
    "embedding_multiplier": 6.0,
    "residual_multiplier": 0.6,
    "logits_scaling": 3.0,
    "layer_types": ["full_attention", "sliding_attention"],
    "layer_rope_theta": [0, 10000.0],
}
WINDOWED: dict[str, dict[str, Any]] = {
    "trinity": {
        **_MIXTURE,
        **_SLIDES,
        "model_type": "afmoe",
        "architectures": ["AfmoeForCausalLM"],
        "num_dense_layers": 1,
        "num_experts": 4,
        "num_shared_experts": 1,
        "route_scale": 2.0,
        "mup_enabled": True,
    },
    "exaone-moe": {
        **_MIXTURE,
        "model_type": "exaone_moe",
        "architectures": ["ExaoneMoeForCausalLM"],
        "sliding_window_pattern": "LG",
        **_SLIDES,
        "first_k_dense_replace": 1,
        "num_experts": 6,
        "num_shared_experts": 1,
        "n_group": 2,
        "topk_group": 1,
        "routed_scaling_factor": 1.5,
    },
    "mellum": {
        **_MIXTURE,
        **_SLIDES,
        "model_type": "mellum",
        "architectures": ["MellumForCausalLM"],
        "num_experts": 4,
        "norm_topk_prob": True,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 20000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
        },
    },
    # Keys are wider than values, a third of them rotates, and key heads differ between layers.
    "mimo-v2": {
        **_MIXTURE,
        "model_type": "mimo_v2_flash",
        "architectures": ["MiMoV2FlashForCausalLM"],
        "num_key_value_heads": 1,
        "head_dim": 24,
        "v_head_dim": 16,
        "layer_types": ["full_attention", "sliding_attention"],
        "mlp_layer_types": ["dense", "sparse"],
        "n_routed_experts": 4,
        "attention_value_scale": 0.707,
        "rope_theta": 50000.0,
        "attention_bias": True,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "default",
                "rope_theta": 50000.0,
                "partial_rotary_factor": 0.334,
            },
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": 1000.0,
                "partial_rotary_factor": 0.334,
            },
        },
    },
    # The first layer sees all positions and rotates, because it is dense; the last does not.
    "cohere2-moe": {
        **_TINY,
        "num_experts_per_tok": 2,
        "head_dim": 8,
        "model_type": "cohere2_moe",
        "architectures": ["Cohere2MoeForCausalLM"],
        "num_hidden_layers": 3,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "intermediate_size": 8,
        "prefix_dense_intermediate_size": 24,
        "num_experts": 4,
        "num_shared_experts": 2,
        "expert_selection_fn": "sigmoid",
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.25,
        "rms_norm_eps": None,
        "rope_theta": 50000.0,
    },
    "granite-swa": {
        **_GRANITE,
        "model_type": "granite_swa",
        "architectures": ["GraniteSWAForCausalLM"],
    },
    "granite-moe-swa": {
        **_GRANITE,
        "model_type": "granitemoe_swa",
        "architectures": ["GraniteMoeSWAForCausalLM"],
        "intermediate_size": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 16,
    },
    # Of the tower for images as little as transformers builds.
    "step3": {
        "model_type": "step3p7",
        "architectures": ["Step3p7ForConditionalGeneration"],
        "image_token_id": 299,
        "text_config": {
            "model_type": "step3p5",
            "vocab_size": 300,
            "hidden_size": 32,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_attention_groups": 2,
            "attention_other_setting": {
                "attention_type": "sliding_attention",
                "num_attention_heads": 4,
                "num_attention_groups": 2,
                "head_dim": 16,
            },
            "head_dim": 16,
            "layer_types": ["full_attention", "sliding_attention"],
            "sliding_window": 7,
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5,
            "moe_layers_enum": "1",
            "moe_num_experts": 4,
            "moe_top_k": 2,
            "moe_intermediate_size": 8,
            "moe_router_scaling_factor": 2.0,
            "share_expert_dim": 8,
            "swiglu_limits": [0.0, 0.6],
            "swiglu_limits_shared": [0.5, 0.8],
            "rope_theta": [20000.0, 1000.0],
            "partial_rotary_factors": [0.5, 1.0],
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 2.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 32.0,
                "original_max_position_embeddings": 32,
            },
            "tie_word_embeddings": False,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "vision_config": {
            "hidden_size": 4,
            "mlp_ratio": 1.0,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "image_size": 8,
            "patch_size": 4,
        },
        "n_tokens": 13,
    },
}
# Seeds that do not depend on what stands before.
WINDOWED = {name: {"seed": 301 + i, **case} for i, (name, case) in enumerate(WINDOWED.items())}
