"""Checkpoints of make_golden.py: mixtures of experts of several families, dense ones, GPT-2,
StarCoder 2.

As in its CASES: what differs from BASE.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 300,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_inner": 64,
    "n_positions": 128,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "n_tokens": 24,
}
STARCODER2: dict[str, Any] = {
    "seed": 48,
    "model_type": "starcoder2",
    "architectures": ["Starcoder2ForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "hidden_act": "gelu_pytorch_tanh",
    "norm_epsilon": 1e-5,
    "rope_theta": 10000.0,
    "sliding_window": 7,
    "use_bias": True,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "n_tokens": 20,
}
TINY: dict[str, Any] = {
    "intermediate_size": 24,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "n_tokens": 12,
}
MIXTURE: dict[str, Any] = {**TINY, "num_experts_per_tok": 2}
GRANITE: dict[str, Any] = {
    "attention_multiplier": 0.6,
    "embedding_multiplier": 6.0,
    "residual_multiplier": 0.6,
    "logits_scaling": 3.0,
}
ALPHA: dict[str, Any] = {"type": "dynamic", "factor": 1.0, "alpha": 100.0}
MIXTURES: dict[str, dict[str, Any]] = {
    "qwen3-moe-dense": {
        **MIXTURE,
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "head_dim": 12,
        "moe_intermediate_size": 8,
        "num_experts": 4,
        "norm_topk_prob": False,
        "mlp_only_layers": [0],
    },
    "qwen2-moe": {
        **MIXTURE,
        "model_type": "qwen2_moe",
        "architectures": ["Qwen2MoeForCausalLM"],
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 16,
        "num_experts": 4,
        "norm_topk_prob": False,
        "decoder_sparse_step": 2,
    },
    "olmoe": {
        **MIXTURE,
        "num_key_value_heads": 4,
        "model_type": "olmoe",
        "architectures": ["OlmoeForCausalLM"],
        "intermediate_size": 8,
        "num_experts": 5,
        "norm_topk_prob": False,
    },
    "glm4-moe": {
        **MIXTURE,
        "model_type": "glm4_moe",
        "architectures": ["Glm4MoeForCausalLM"],
        "head_dim": 12,
        "moe_intermediate_size": 8,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "n_group": 2,
        "topk_group": 1,
        "routed_scaling_factor": 1.5,
        "first_k_dense_replace": 1,
        "use_qk_norm": True,
        "attention_bias": True,
    },
    "dots1": {
        **MIXTURE,
        "num_key_value_heads": 4,
        "model_type": "dots1",
        "architectures": ["Dots1ForCausalLM"],
        "moe_intermediate_size": 8,
        "n_routed_experts": 4,
        "n_shared_experts": 2,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        "sliding_window": 7,
        "max_window_layers": 1,
    },
    "minimax-m2": {
        **MIXTURE,
        "model_type": "minimax_m2",
        "architectures": ["MiniMaxM2ForCausalLM"],
        "intermediate_size": 8,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 12,
        "rotary_dim": 6,
        "num_local_experts": 5,
    },
    "hy-v3": {
        **MIXTURE,
        "seed": 133,
        "model_type": "hy_v3",
        "architectures": ["HYV3ForCausalLM"],
        "head_dim": 16,
        "moe_intermediate_size": 8,
        "num_experts": 4,
        "num_shared_experts": 2,
        "router_scaling_factor": 1.5,
    },
    "ernie": {
        **TINY,
        "model_type": "ernie4_5",
        "architectures": ["Ernie4_5ForCausalLM"],
        "head_dim": 12,
        "use_bias": True,
    },
    "ernie-moe": {
        **TINY,
        "model_type": "ernie4_5_moe",
        "architectures": ["Ernie4_5_MoeForCausalLM"],
        "moe_intermediate_size": 8,
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
    },
    "hunyuan": {
        **TINY,
        "model_type": "hunyuan_v1_dense",
        "architectures": ["HunYuanDenseV1ForCausalLM"],
        "head_dim": 12,
        "rope_scaling": ALPHA,
    },
    "hunyuan-moe": {
        **TINY,
        "model_type": "hunyuan_v1_moe",
        "architectures": ["HunYuanMoEV1ForCausalLM"],
        "head_dim": 8,
        "intermediate_size": 8,
        "num_experts": 4,
        "moe_topk": [2, 2],
        "rope_scaling": ALPHA,
    },
    "granite": {
        **TINY,
        **GRANITE,
        "model_type": "granite",
        "architectures": ["GraniteForCausalLM"],
    },
    "granite-moe": {
        **MIXTURE,
        **GRANITE,
        "model_type": "granitemoeshared",
        "architectures": ["GraniteMoeSharedForCausalLM"],
        "intermediate_size": 8,
        "num_local_experts": 4,
        "shared_intermediate_size": 12,
    },
    "phimoe": {
        **MIXTURE,
        "model_type": "phimoe",
        "architectures": ["PhimoeForCausalLM"],
        "intermediate_size": 8,
        "num_local_experts": 4,
        "attention_bias": True,
        "lm_head_bias": True,
        "router_jitter_noise": 0.2,  # more than usual, so that it shows
        "n_ctx": 64,  # transformers never takes the long factors
        "original_max_position_embeddings": 64,
        "rope_scaling": {
            "type": "longrope",
            "original_max_position_embeddings": 64,
            "short_factor": [1.0, 1.1, 1.2, 2.5],
            "long_factor": [1.0, 2.0, 4.0, 12.5],
            "short_mscale": 1.25,
            "long_mscale": 1.25,
        },
    },
    # Its rows of gates and ups are whole blocks of MXFP4.
    "gpt-oss": {
        "model_type": "gpt_oss",
        "architectures": ["GptOssForCausalLM"],
        "intermediate_size": 32,
        "num_key_value_heads": 1,
        "head_dim": 10,
        "num_local_experts": 3,
        "num_experts_per_tok": 2,
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "full_attention"],
        "attention_bias": True,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 8.0,
            "truncate": False,
        },
        "n_tokens": 16,
    },
}
# Dense families, and Gemma 4; their seeds do not depend on what stands before them.
_MORE = json.loads((Path(__file__).parent / "tiny_cases.json").read_text())
_USUAL = {**TINY, "intermediate_size": 20, "n_tokens": 14}
MIXTURES |= {name: {**_USUAL, "seed": 101 + i, **_MORE[name]} for i, name in enumerate(_MORE)}
