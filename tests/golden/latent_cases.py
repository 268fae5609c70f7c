"""Checkpoints of make_golden.py: attention over latents. As in CASES: what differs from BASE."""

from __future__ import annotations

from typing import Any

# Attention over latents; the first layer is dense.
LATENT: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "q_lora_rank": 12,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "moe_intermediate_size": 8,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "n_tokens": 13,
}
# Scores are scaled by what YaRN scales cosine and sine by elsewhere.
LATENT_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 8,
    "mscale": 0.8,
    "mscale_all_dim": 0.8,
}
LATENTS: dict[str, dict[str, Any]] = {
    # Of a group the best expert decides, as in the large model of the family.
    "deepseek-v2": {
        **LATENT,
        "model_type": "deepseek_v2",
        "architectures": ["DeepseekV2ForCausalLM"],
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "q_lora_rank": None,
        "n_shared_experts": 2,
        "n_group": 3,
        "topk_group": 2,
        "topk_method": "group_limited_greedy",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.5,
    },
    "deepseek-v3": {
        **LATENT,
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "n_group": 2,
        "topk_group": 1,
        "routed_scaling_factor": 2.5,
        "rope_scaling": LATENT_YARN,
    },
    "mistral4": {
        **LATENT,
        "model_type": "mistral4",
        "architectures": ["Mistral4ForCausalLM"],
        "first_k_dense_replace": 0,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "rope_parameters": {**LATENT_YARN, "rope_theta": 10000.0, "llama_4_scaling_beta": 0.4},
    },
}
