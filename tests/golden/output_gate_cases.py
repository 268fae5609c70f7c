"""Checkpoints of make_golden.py whose attention has a gate behind it with a matrix of its own.

As in its CASES: what differs from BASE; Muse Glimmer takes none of it.
"""

from __future__ import annotations

from typing import Any

_VISION = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "patch_size": 2,
    "pos_emb_height": 2,
    "pos_emb_width": 2,
    "max_position_embeddings": 4,
}
OUTPUT_GATES: dict[str, dict[str, Any]] = {
    # A tower of images, which is left out; a cap that is smaller than usual, so that it shows.
    "muse-glimmer": {
        "seed": 131,
        "model_type": "muse_glimmer",
        "architectures": ["MuseGlimmerForConditionalGeneration"],
        "image_token_id": 299,
        "video_token_id": 298,
        "out_hidden_size": 32,
        "projector_hidden_size": 8,
        "tie_word_embeddings": True,
        "vision_config": _VISION,
        "text_config": {
            "model_type": "muse_glimmer_text",
            "vocab_size": 300,
            "hidden_size": 32,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "hidden_activation": "silu",
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5,
            "post_norm_eps": 1e-8,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
            "layer_rope_theta": [10000.0, 0],
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 7,
            "final_logit_softcapping": 6.0,
            "output_multiplier": 0.6,
            "qk_scale_factor": 1.9,
            "tie_word_embeddings": True,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        "n_tokens": 16,
    },
    "laguna": {
        "seed": 132,
        "model_type": "laguna",
        "architectures": ["LagunaForCausalLM"],
        "intermediate_size": 24,
        "head_dim": 16,
        "num_key_value_heads": 2,
        "num_attention_heads_per_layer": [2, 4],
        "gating": True,
        "layer_types": ["full_attention", "sliding_attention"],
        "sliding_window": 7,
        "rope_theta": None,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 5000.0,
                "partial_rotary_factor": 0.5,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "attention_factor": 1.1386294361119891,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
        },
        "mlp_layer_types": ["dense", "sparse"],
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_routed_scaling_factor": 1.5,
        "pad_token_id": 0,
        "n_tokens": 16,
    },
}
