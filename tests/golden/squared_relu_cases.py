"""Checkpoints of make_golden.py: families whose activation is squared ReLU.

As in its CASES: what differs from BASE, of which Jais 2 and Nemotron take nothing.
"""

from __future__ import annotations

from typing import Any

TINY: dict[str, Any] = {"intermediate_size": 40, "num_key_value_heads": 2}
SQUARED_RELU: dict[str, dict[str, Any]] = {
    "arcee": {
        "seed": 45,
        **TINY,
        "model_type": "arcee",
        "architectures": ["ArceeForCausalLM"],
        "hidden_act": "relu2",
        "head_dim": 12,
        "n_tokens": 16,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "bitnet": {
        "seed": 46,
        **TINY,
        "model_type": "bitnet",
        "architectures": ["BitNetForCausalLM"],
        "hidden_act": "relu2",
        "n_tokens": 16,
    },
    "jais2": {
        "seed": 60,
        "vocab_size": 300,
        "hidden_size": 32,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "max_position_embeddings": 128,
        "layer_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "model_type": "jais2",
        "architectures": ["Jais2ForCausalLM"],
        "hidden_act": "relu2",
        "tie_word_embeddings": False,
        "n_tokens": 16,
    },
    # A cap that is smaller than usual, so that it shows.
    "nanochat": {
        "seed": 61,
        **TINY,
        "model_type": "nanochat",
        "architectures": ["NanoChatForCausalLM"],
        "hidden_act": "relu2",
        "rms_norm_eps": 1e-6,
        "attention_bias": True,
        "final_logit_softcapping": 3.0,
        "tie_word_embeddings": False,
        "n_tokens": 16,
    },
    "nemotron": {
        "seed": 47,
        "vocab_size": 300,
        "hidden_size": 32,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rope_theta": 10000.0,
        "model_type": "nemotron",
        "architectures": ["NemotronForCausalLM"],
        "hidden_act": "relu2",
        "norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "tie_word_embeddings": False,
        "n_tokens": 16,
    },
}
