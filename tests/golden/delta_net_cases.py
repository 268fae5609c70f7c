"""Checkpoints of make_golden.py: gated delta nets and short convolutions.

As in its CASES: what differs from BASE.
"""

from __future__ import annotations

from typing import Any

# A layer with a state, then one of attention; heads of attention and of the state of other widths.
DELTA_NET: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "rms_norm_eps": 1e-6,
    "pad_token_id": 0,
    "n_tokens": 20,
}
EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 10,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
CONVOLUTION: dict[str, Any] = {
    "intermediate_size": 24,
    "num_key_value_heads": 2,
    "norm_eps": 1e-5,
    "rms_norm_eps": None,
    "conv_L_cache": 3,
    "layer_types": ["conv", "full_attention"],
    "pad_token_id": 0,
    "n_tokens": 20,
}
OWN: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 24,
    "intermediate_size": 24,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "n_tokens": 20,
}
DELTA_NETS: dict[str, dict[str, Any]] = {
    "qwen3-next": {
        **DELTA_NET,
        **EXPERTS,
        "model_type": "qwen3_next",
        "architectures": ["Qwen3NextForCausalLM"],
        "linear_value_head_dim": 12,
        "linear_conv_kernel_dim": 3,
        "norm_topk_prob": True,
        "tie_word_embeddings": False,
    },
    "qwen3-5": {
        **DELTA_NET,
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        "linear_num_value_heads": 6,
        "attention_bias": True,
        "layer_types": ["full_attention", "linear_attention"],
        "full_attention_interval": None,
    },
    "qwen3-5-moe": {
        **DELTA_NET,
        **EXPERTS,
        "model_type": "qwen3_5_moe_text",
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "intermediate_size": None,
        "num_experts": 5,
        "num_experts_per_tok": 3,
        "linear_num_value_heads": 6,
    },
    "lfm2": {
        **CONVOLUTION,
        "model_type": "lfm2",
        "architectures": ["Lfm2ForCausalLM"],
        "block_ff_dim": 30,
        "block_ffn_dim_multiplier": 1.1,
        "block_multiple_of": 8,
        "conv_L_cache": 4,
    },
    "lfm2-moe": {
        **CONVOLUTION,
        "model_type": "lfm2_moe",
        "architectures": ["Lfm2MoeForCausalLM"],
        "moe_intermediate_size": 8,
        "num_dense_layers": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "routed_scaling_factor": 1.5,
    },
    "lfm3": {
        "seed": 62,
        **OWN,
        "model_type": "lfm3",
        "architectures": ["Lfm3ForCausalLM"],
        "num_hidden_layers": 3,
        "head_dim": 16,
        "norm_eps": 1e-5,
        "conv_L_cache": 7,
        "layer_types": ["conv", "full_attention", "sliding_attention"],
        "sliding_window": 6,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": 50000.0,
                "partial_rotary_factor": 0.5,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        },
        "tie_word_embeddings": True,
    },
    # The models were trained without positions; these have them.
    "olmo-hybrid": {
        "seed": 63,
        **OWN,
        "model_type": "olmo_hybrid",
        "architectures": ["OlmoHybridForCausalLM"],
        "num_hidden_layers": 2,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_conv_kernel_dim": 3,
        "linear_key_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_value_head_dim": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
        "tie_word_embeddings": False,
    },
}
