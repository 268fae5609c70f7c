"""Families other than Llama: conversion, refusals, and neuron-aware files.

test_golden.py compares their logits with transformers'; here stand the parts that no checkpoint
of tests/golden has, and SmallThinker, which transformers does not know. test_rope.py has RoPE,
test_older_checkpoints.py older names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import checkpoints
import gguf
import numpy as np
import pytest
import reference
from families import TOKENS, VARIANTS, golden, logits, quiet, smallthinker, tensors_of
from gguf_files import changed
from powerinfer_cpp.convert import convert
from powerinfer_cpp.convert.activations import default_activation
from powerinfer_cpp.convert.families import FAMILIES
from powerinfer_cpp.core.gguf import Gguf

from powerinfer_cpp import Llama, ModelFormatError, OutOfMemoryError, UnsupportedModelError

# ---- SmallThinker, against our own float64 reference ----


@pytest.mark.parametrize("name", VARIANTS)
def test_smallthinker_against_the_reference(name: str, tmp_path: Path) -> None:
    cfg, weights = smallthinker(tmp_path / "model", **VARIANTS[name])
    path = convert(tmp_path / "model", outtype="f32", outfile=tmp_path / "a.gguf", log=quiet)
    want = reference.smallthinker_logits(cfg, weights, TOKENS)
    assert reference.relative_error(logits(path), want) < 2e-5
    with Gguf(path) as file:
        found = file.metadata
    assert found["smallthinker.expert_gating_func"] == (1 if name == "softmax" else 2)
    assert found.get("smallthinker.attention.sliding_window") == {
        "window": 5,
        "wide window": 4096,
    }.get(name)
    assert found["smallthinker.expert_feed_forward_length"] == 24
    assert "powerinfer.ffn.activation" not in found


def test_a_layout_that_gguf_cannot_tell(tmp_path: Path) -> None:
    for i, changes in enumerate(
        (
            {"rope_layout": [0] * 5},
            {"sliding_window_layout": [1] * 5},
            {"moe_layer_layout": [0] * 5},
        )
    ):
        smallthinker(tmp_path / str(i), **changes)
        with pytest.raises(UnsupportedModelError, match="is not supported"):
            convert(tmp_path / str(i), outfile=tmp_path / "a.gguf", log=quiet)


# ---- Keys ----

KEYS: dict[str, dict[str, Any]] = {
    "mistral-window": {
        "general.architecture": "llama",
        "llama.attention.sliding_window": 7,
        "powerinfer.ffn.activation": None,
    },
    "mixtral": {
        "general.architecture": "llama",
        "llama.expert_count": 4,
        "llama.expert_used_count": 2,
        "llama.feed_forward_length": 24,
    },
    "qwen2-yarn": {
        "qwen2.rope.scaling.type": "yarn",
        "qwen2.rope.scaling.factor": 4.0,
        "qwen2.rope.scaling.original_context_length": 32,
        "qwen2.rope.scaling.attn_factor": None,
    },
    "qwen3": {"qwen3.attention.key_length": 12, "qwen3.rope.dimension_count": 12},
    "qwen3-moe": {
        "qwen3moe.expert_count": 4,
        "qwen3moe.expert_used_count": 2,
        "qwen3moe.expert_feed_forward_length": 16,
        "powerinfer.ffn.activation": None,
    },
    "llama-linear": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
    "llama-llama3": {"llama.rope.scaling.type": None, "llama.rope.freq_base": 50000.0},
    "llama-longrope": {
        "llama.rope.scaling.type": "longrope",
        "llama.rope.scaling.factor": None,
        "llama.rope.scaling.original_context_length": 8,
        "llama.rope.scaling.attn_factor": np.float32(np.sqrt(1 + np.log(2) / np.log(8))),
    },
    "llama-dynamic": {
        "llama.rope.scaling.type": None,
        "powerinfer.rope.dynamic_factor": 4.0,
        "llama.context_length": 16,
    },
    "phi3-window": {
        "phi3.attention.sliding_window": 7,
        "phi3.rope.scaling.type": None,
        "powerinfer.ffn.activation": None,
    },
    "phi3-short": {
        "phi3.rope.dimension_count": 6,
        "phi3.feed_forward_length": 40,
        "phi3.rope.scaling.original_context_length": 128,
        "phi3.rope.scaling.attn_factor": np.float32(np.sqrt(1 + np.log(4) / np.log(128))),
    },
    "stablelm": {
        "stablelm.rope.dimension_count": 4,
        "stablelm.attention.layer_norm_epsilon": np.float32(1e-5),
        "powerinfer.ffn.activation": None,
    },
    "deepseek-v2": {
        "deepseek2.attention.q_lora_rank": None,
        "deepseek2.expert_gating_func": 1,
        "deepseek2.expert_group_count": 3,
        "deepseek2.expert_weights_norm": False,
        "powerinfer.ffn.activation": None,
    },
    "falcon-7b": {
        "falcon.tensor_data_layout": "jploski",
        "falcon.attention.head_count_kv": 1,
        "powerinfer.ffn.activation": None,
    },
    "falcon-40b": {"falcon.attention.head_count_kv": 2, "powerinfer.ffn.activation": "relu"},
    "opt": {
        "opt.context_length": 128,
        "opt.rope.freq_base": None,
        "opt.attention.layer_norm_epsilon": np.float32(1e-5),
        "powerinfer.ffn.activation": None,
    },
    "gemma": {
        "gemma.attention.key_length": 12,
        "gemma.attention.sliding_window": None,
        "powerinfer.ffn.activation": None,
    },
    "gemma2": {
        "gemma2.attn_logit_softcapping": 4.0,
        "gemma2.final_logit_softcapping": 6.0,
        "gemma2.attention.sliding_window": 7,
        "gemma2.attention.sliding_window_pattern": None,  # as usual: every second layer
        "gemma2.attention.scale": None,  # as usual: 1 / sqrt(head_dim)
    },
    "gemma3": {
        "gemma3.attention.sliding_window": 7,
        "gemma3.attention.sliding_window_pattern": 3,
        "gemma3.attention.scale": np.float32(20**-0.5),
        "gemma3.rope.freq_base": 500000.0,
        "gemma3.rope.freq_base_swa": 10000.0,
        "gemma3.rope.scaling.type": "linear",
        "gemma3.rope.scaling.factor": 8.0,
        "gemma3.attn_logit_softcapping": None,
        "gemma3.final_logit_softcapping": None,
    },
    "arcee": {
        "arcee.attention.key_length": 12,
        "arcee.rope.dimension_count": 12,
        "arcee.rope.scaling.type": "yarn",
        "arcee.attention.layer_norm_rms_epsilon": np.float32(1e-5),
        "powerinfer.ffn.activation": None,
    },
    "bitnet": {
        "bitnet.hidden_activation": "relu2",
        "bitnet.attention.layer_norm_rms_epsilon": np.float32(1e-5),
        "powerinfer.ffn.activation": None,
    },
    "nemotron": {
        "nemotron.attention.key_length": None,
        "nemotron.rope.dimension_count": 4,
        "nemotron.attention.layer_norm_epsilon": np.float32(1e-5),
        "powerinfer.ffn.activation": None,
    },
    "gpt2": {
        "gpt2.context_length": 128,
        "gpt2.feed_forward_length": 64,
        "gpt2.rope.freq_base": None,
        "powerinfer.ffn.activation": None,
    },
    "starcoder2": {
        "starcoder2.attention.head_count_kv": 2,
        "starcoder2.attention.layer_norm_epsilon": np.float32(1e-5),
        "starcoder2.attention.sliding_window": 7,
        "starcoder2.rope.dimension_count": 8,
        "powerinfer.ffn.activation": None,
    },
    "qwen3-moe-dense": {
        "qwen3moe.feed_forward_length": 24,
        "qwen3moe.expert_feed_forward_length": 8,
        "qwen3moe.leading_dense_block_count": 1,
        "qwen3moe.expert_weights_norm": False,
    },
    "qwen2-moe": {
        "qwen2moe.expert_shared_feed_forward_length": 16,
        "qwen2moe.expert_weights_norm": None,
    },
    "glm4-moe": {
        "glm4moe.block_count": 2,
        "glm4moe.rope.dimension_count": 6,
        "glm4moe.expert_shared_count": 1,
        "glm4moe.leading_dense_block_count": 1,
        "glm4moe.expert_gating_func": 2,
        "glm4moe.expert_weights_norm": True,
        "glm4moe.expert_weights_scale": 1.5,
        "glm4moe.expert_group_count": 2,
        "glm4moe.expert_group_used_count": 1,
    },
    "minimax-m2": {"minimax-m2.rope.dimension_count": 6, "minimax-m2.expert_gating_func": 2},
    "ernie-moe": {
        "ernie4_5-moe.interleave_moe_layer_step": 1,
        "ernie4_5-moe.expert_shared_count": 2,
        "ernie4_5-moe.expert_shared_feed_forward_length": 16,
    },
    "hunyuan": {
        "hunyuan-dense.rope.freq_base": np.float32(10000 * 100 ** (12 / 10)),
        "hunyuan-dense.rope.scaling.type": None,
    },
    "granite": {
        "granite.attention.scale": np.float32(0.6),
        "granite.embedding_scale": 6.0,
        "granite.residual_scale": np.float32(0.6),
        "granite.logit_scale": 3.0,
    },
    "phimoe": {
        "phimoe.rope.scaling.attn_factor": 1.25,
        "powerinfer.router.mixer": np.float32(0.4),
    },
    "qwen2-window": {
        "qwen2.attention.sliding_window": 5,
        "qwen2.attention.sliding_window_pattern": [False, True],
    },
}


@pytest.mark.parametrize("name", KEYS)
def test_keys(name: str, tmp_path: Path) -> None:
    path = convert(golden(name, tmp_path / name), outfile=tmp_path / "a.gguf", log=quiet)
    with Gguf(path) as file:
        found = file.metadata
    assert {key: found.get(key) for key in KEYS[name]} == KEYS[name]


def test_every_family_has_a_default_activation() -> None:
    names = {family.architecture for family in FAMILIES.values() if isinstance(family, type)}
    # Where a model_type stands for several architectures, a function chooses.
    for name in {*names, "granitehybrid", "nemotron_h", "nemotron_h_moe"}:
        assert default_activation(name)
        assert default_activation(name, pwri=True)


# ---- Windows ----


@pytest.mark.parametrize(
    ("name", "changes", "window"),
    [
        ("mistral-window", {"sliding_window": 128}, None),  # as wide as the context
        ("mistral-window", {"sliding_window": None}, None),
        ("mixtral", {"sliding_window": 9}, 9),
        ("qwen3", {"sliding_window": 9}, None),
        ("qwen3", {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 2}, None),
        ("qwen3", {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 0}, 9),
        (
            "qwen3",
            {
                "sliding_window": 9,
                "use_sliding_window": True,
                "layer_types": ["full_attention"] * 2,
            },
            None,
        ),
        ("qwen3", {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 1}, 9),
        ("llama-linear", {"sliding_window": 9}, None),
        ("gemma3", {"sliding_window": 4096}, 4096),  # layers with a window have their own RoPE
    ],
)
def test_sliding_window(
    name: str, changes: dict[str, Any], window: int | None, tmp_path: Path
) -> None:
    folder = golden(name, tmp_path / "model", **changes)
    path = convert(folder, vocab_only=True, outfile=tmp_path / "a.gguf", log=quiet)
    with Gguf(path) as file:
        arch = file.value("general.architecture")
        assert file.value(f"{arch}.attention.sliding_window") == window


@pytest.mark.parametrize(
    ("kinds", "pattern"),
    [
        ("ssf", 3),
        ("sss", None),  # as usual, since the first layer that sees all is the sixth
        ("fff", 1),
        ("sfs", 2),
        ("ffs", [False, False, True]),
    ],
)
def test_patterns_of_windows(kinds: str, pattern: Any, tmp_path: Path) -> None:
    """Keys for which layers have a window; the engine reads them as transformers reads the list."""
    names = {"s": "sliding_attention", "f": "full_attention"}
    folder = golden("gemma3", tmp_path / "m", layer_types=[names[kind] for kind in kinds])
    path = convert(folder, outtype="f32", outfile=tmp_path / "a.gguf", log=quiet)
    with Gguf(path) as file:
        assert file.value("gemma3.attention.sliding_window_pattern") == pattern
    flags = changed(
        path,
        tmp_path / "flags.gguf",
        keys={"gemma3.attention.sliding_window_pattern": [kind == "s" for kind in kinds]},
    )
    assert np.array_equal(logits(path), logits(flags))


def test_a_window_that_is_not_used_is_told(tmp_path: Path) -> None:
    lines: list[str] = []
    folder = golden("llama-linear", tmp_path / "model", sliding_window=9)
    convert(folder, outfile=tmp_path / "a.gguf", log=lines.append)
    assert any("sliding_window" in line for line in lines)


# ---- What must be refused ----

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "qwen3",
        {"layer_types": ["full_attention"], "sliding_window": 9, "use_sliding_window": True},
        "layer_types",
    ),
    ("qwen3", {"hidden_act": "quick_gelu"}, "'quick_gelu'"),
    ("qwen3", {"num_key_value_heads": 3}, "not a multiple"),
    ("mixtral", {"num_local_experts": 5}, "gate.weight has shape"),
    ("mixtral", {"num_experts_per_tok": 0}, "num_experts_per_tok"),
    ("qwen3-moe", {"mlp_only_layers": [1]}, r"layers\.1\.mlp\.gate_proj"),
    ("qwen3-moe", {"mlp_only_layers": ["1"]}, "must be a list of integers"),
    ("qwen3-moe", {"decoder_sparse_step": 2}, r"layers\.0\.mlp\.gate_proj"),
    ("qwen3-moe", {"num_experts": 5}, "gate.weight has shape"),
    ("glm4-moe", {"scoring_func": "softmax"}, "scoring_func"),
    ("glm4-moe", {"n_shared_experts": 2}, "shared_experts.gate_proj.weight has shape"),
    ("glm4-moe", {"first_k_dense_replace": 2}, "without a layer of experts"),
    ("hy-v3", {"route_norm": False}, "hy_v3 without route_norm"),
    ("hy-v3", {"num_shared_experts": 1}, "shared_mlp.gate_proj.weight has shape"),
    ("qwen3-5", {"output_gate_type": "sigmoid"}, "another output_gate_type"),
    ("dots1", {"topk_method": "greedy"}, "topk_method"),
    ("dots1", {"moe_layer_freq": 2}, "moe_layer_freq"),
    ("olmoe", {"clip_qkv": 8.0}, "clip_qkv"),
    ("minimax-m2", {"scoring_func": "softmax"}, "scoring_func"),
    ("minimax-m2", {"qk_norm_type": "per_head"}, "qk_norm_type"),
    ("ernie-moe", {"moe_gate": "sinkhorn"}, "moe_gate"),
    ("ernie-moe", {"moe_layer_end_index": 0}, "without a layer of experts"),
    ("ernie-moe", {"moe_layer_start_index": 0}, r"layers\.0\.mlp\.gate\.weight"),
    ("hunyuan", {"use_cla": True}, "use_cla"),
    ("hunyuan", {"rope_scaling": {"type": "linear", "alpha": 2.0, "factor": 2.0}}, "alpha"),
    ("hunyuan-moe", {"moe_topk": [2, 1]}, "moe_topk must be an integer"),
    ("phimoe", {"router_jitter_noise": 0}, "router_jitter_noise must be positive"),
    ("falcon-7b", {"alibi": True}, "alibi"),
    ("falcon-7b", {"bias": True}, "biases"),
    ("falcon-7b", {"parallel_attn": False}, "parallel_attn"),
    ("falcon-7b", {"activation": "gelu_10"}, "activation 'gelu_10'"),
    ("falcon-40b", {"num_kv_heads": 4}, "query_key_value.weight has shape"),
    ("opt", {"do_layer_norm_before": False}, "after its blocks"),
    ("opt", {"word_embed_proj_dim": 16}, "word_embed_proj_dim"),
    ("opt", {"enable_bias": False}, "enable_bias"),
    ("opt", {"_remove_final_layer_norm": True}, "after its blocks"),
    ("opt", {"max_position_embeddings": 100}, "embed_positions.weight has shape"),
    ("llama-linear", {"rope_scaling": {"type": "ntk", "factor": 2}}, "'ntk'"),
    ("llama-dynamic", {"rope_scaling": {"type": "dynamic"}}, "factor must be a number"),
    ("phi3-long", {"original_max_position_embeddings": None}, "must be a number"),
    ("phi3-long", {"partial_rotary_factor": 0.5}, "short_factor must be a list of 2 numbers"),
    ("phi3-long", {"partial_rotary_factor": 0.4}, "a rotation of 3 of 8 values"),
    ("phi3-long", {"rope_scaling": {"type": "linear", "factor": 2}}, "other than longrope"),
    ("phi3-long", {"rope_scaling": {"type": "yarn", "factor": 2}}, "other than longrope"),
    ("stablelm", {"partial_rotary_factor": 2}, "a rotation of 32 of 16 values"),
    (
        "stablelm",
        {
            "rope_scaling": {
                "type": "longrope",
                "original_max_position_embeddings": 8,
                "short_factor": [1, 1],
                "long_factor": [1, 1],
            }
        },
        "stablelm with longrope",
    ),
    ("stablelm", {"qk_layernorm": True}, "q_layernorm.norms.0.weight"),
    ("stablelm", {"use_parallel_residual": True}, "post_attention_layernorm"),
    ("gemma2", {"use_bidirectional_attention": True}, "both directions"),
    ("gemma2", {"sliding_window": "wide"}, "sliding_window must be an integer"),
    ("gemma2", {"attn_logit_softcapping": -1}, "attn_logit_softcapping must be positive"),
    ("gemma3", {"rope_parameters": {"sliding_attention": {"rope_type": "yarn"}}}, "scaled RoPE"),
    ("gemma3", {"text_config": 1}, "text_config must be an object"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx"),
    ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights"),
    ("gpt2", {"add_cross_attention": True}, "cross attention"),
    ("gpt2", {"n_positions": 100}, "wpe.weight has shape"),
    ("starcoder2", {"norm_type": "rms_norm"}, "starcoder2 with norm_type 'rms_norm'"),
    ("starcoder2", {"use_bias": False}, "does not explain"),
    ("llama-linear", {"rope_scaling": {"type": "linear"}}, "factor must be a number"),
    ("llama-linear", {"rope_scaling": {"type": "linear", "factor": -1}}, "factor must be positive"),
    ("llama-linear", {"rope_scaling": "linear"}, "must be an object"),
    ("llama-linear", {"partial_rotary_factor": 0.5}, "llama with partial rotation"),
    (
        "qwen2-yarn",
        {"rope_parameters": {"rope_type": "yarn", "factor": 2, "truncate": 0}},
        "truncate",
    ),
    ("smollm3", {"use_sliding_window": True}, "smollm3 with a sliding window"),
    ("ministral3", {"text_config": {"model_type": "mistral4"}}, "no vocab_size"),
    ("olmo3", {"layer_types": ["full_attention"]}, "layer_types must have a value for each"),
    ("cohere2", {"position_embedding_type": "alibi"}, "positions other than rope_gptj"),
    ("apertus", {"post_norm": True}, "post_norm on"),
    ("apertus", {"qk_norm": False}, "qk_norm off"),
    ("gemma4", {"attention_bias": True}, "gemma4 with biases"),
    ("gemma4", {"rope_parameters": {"rope_type": "default"}}, "rope_parameters of both kinds"),
    ("gemma4", {"use_bidirectional_attention": "all"}, "both directions"),
    (
        "gemma4-embeddings",
        {"vocab_size_per_layer_input": 200},
        "vocab_size_per_layer_input 200 is not vocab_size 300",
    ),
    (
        "gemma4-embeddings",
        {"vocab_size_per_layer_input": None},
        "vocab_size_per_layer_input 262144, the default, is not vocab_size 300",
    ),
    ("gemma4-mixture", {"num_experts": 4}, "router.proj.weight has shape"),
]


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED)
def test_refused(name: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = golden(name, tmp_path / "model", **changes)
    with pytest.raises(ModelFormatError, match=words) as caught:
        convert(folder, outfile=tmp_path / "a.gguf", log=quiet)
    assert "\n" not in str(caught.value) and not list(tmp_path.glob("*.gguf*"))


def test_gguf_that_contradicts_itself(tmp_path: Path) -> None:
    def without(part: str):
        return lambda name, data: None if part in name else data

    def added(path: Path, name: str) -> dict[str, np.ndarray]:
        return {name: tensors_of(path)["output_norm.weight"].copy()}

    for name, keys, tensors, extra, words in (
        ("phi3-short", {}, without("factors_short"), "", '"rope_factors_short.weight"'),
        ("phi3-short", {}, without("factors_long"), "", '"rope_factors_long.weight"'),
        ("phi3-short", {"phi3.rope.scaling.factor": 2.0}, None, "", "two kinds of RoPE"),
        ("phi3-short", {"powerinfer.rope.dynamic_factor": 2.0}, None, "", "two kinds of RoPE"),
        ("phi3-short", {"powerinfer.rope.dynamic_factor": 0.5}, None, "", "dynamic_factor"),
        ("phi3-short", {"phi3.rope.dimension_count": 8}, None, "", "has shape .3., expected .4."),
        ("phi3-short", {"phi3.feed_forward_length": 39}, None, "", "ffn_gate.weight"),
        ("phi3-short", {}, without("attn_qkv"), "", "attn_q.weight"),
        ("llama-dynamic", {"llama.rope.dimension_count": 2}, None, "", "single frequency"),
        ("stablelm", {}, without("blk.1.ffn_norm"), "", "blk.1.ffn_norm.weight"),
        ("stablelm", {}, without("blk.0.ffn_norm"), "", "not that of layer 0"),
        ("stablelm-parallel", {}, without("blk.0.attn_k_norm"), "", "blk.0.attn_k_norm.weight"),
        ("stablelm-parallel", {}, None, "blk.1.ffn_norm.weight", "not that of layer 0"),
        (
            "qwen3-moe",
            {"qwen3moe.expert_count": 0, "qwen3moe.expert_used_count": 0},
            None,
            "",
            "qwen3moe.expert_count is missing",
        ),
        ("qwen3-moe", {"qwen3moe.expert_used_count": 5}, None, "", "expert_used_count"),
        ("gemma4", {"gemma4.attention.key_length_swa": 12}, None, "", "value_length_swa"),
        ("gemma4", {"gemma4.rope.dimension_count_swa": 10}, None, "", "dimension_count_swa"),
        ("gemma4", {"gemma4.rope.dimension_count_swa": 5}, None, "", "must be even"),
        ("gemma4", {"gemma4.attention.shared_kv_layers": 1}, None, "", "no earlier layer of its"),
        ("gemma4", {}, without("blk.0.attn_k."), "", "blk.0.attn_k.weight"),
        (
            "gemma4-embeddings",
            {"gemma4.attention.head_count_kv": [1, 1, 1, 2]},
            None,
            "",
            "layers 1 and 3 share keys and values",
        ),
        ("gemma4-embeddings", {}, without("per_layer_token"), "", "per_layer_token_embd.weight"),
        ("gemma4-mixture", {}, without("ffn_gate_inp.scale"), "", "ffn_gate_inp.scale"),
        ("gemma4-mixture", {}, without("post_ffw_norm_2"), "", "post_ffw_norm_2.weight"),
        ("qwen3-moe", {}, without("blk.1.ffn_gate_inp"), "", "blk.1.ffn_gate_inp.weight"),
    ):
        path = tmp_path / f"{name}.gguf"
        if not path.exists():
            convert(golden(name, tmp_path / name), outtype="f32", outfile=path, log=quiet)
        more = added(path, extra) if extra else None
        kept = tensors or (lambda _name, data: data)
        changed(path, tmp_path / "bad.gguf", keys, kept, more)
        with pytest.raises(ModelFormatError, match=words) as caught:
            Llama(tmp_path / "bad.gguf", n_ctx=64, verbose=False)
        assert "bad.gguf" in str(caught.value) and "\n" not in str(caught.value)


# ---- Neuron-aware files ----


@pytest.mark.parametrize(
    "name",
    [
        *("falcon-7b", "falcon-40b", "opt", "qwen2-yarn", "qwen3", "mixtral", "qwen3-moe"),
        *("phi3-short", "stablelm", "stablelm-parallel", "gemma", "gemma2", "gemma3", "gpt2"),
        *("olmoe", "hunyuan", "granite-moe", "gpt-oss", "muse-glimmer"),
        *("glm4", "olmo3", "cohere2", "starcoder2", "mellum", "granite-moe-swa"),
    ],
)
def test_neuron_aware(name: str, tmp_path: Path) -> None:
    folder = golden(name, tmp_path / "model")
    dense = convert(folder, outtype="f32", outfile=tmp_path / "dense.gguf", log=quiet)
    with Gguf(dense) as file:
        arch = file.value("general.architecture")
        experts = file.value(f"{arch}.expert_count", 0)
        width = file.value(f"{arch}.feed_forward_length")
        n_ff = file.value(f"{arch}.expert_feed_forward_length", width)
    lead, rng, parts = (experts,) if experts else (), np.random.default_rng(0), {}
    (tmp_path / "p").mkdir()
    for layer in range(2):
        parts[layer] = {
            "fc1.weight": rng.standard_normal((*lead, 8, 32)).astype(np.float16),
            "fc2.weight": rng.standard_normal((*lead, n_ff, 8)).astype(np.float16),
        }
        checkpoints.save_torch(tmp_path / "p" / f"model_{layer}.pt", parts[layer])
    aware = convert(
        folder, tmp_path / "p", outtype="f32", outfile=tmp_path / "aware.gguf", log=quiet
    )
    ours, theirs = tensors_of(aware), tensors_of(dense)
    suffix = "_exps" if experts else ""
    for layer in range(2):
        down = theirs[f"blk.{layer}.ffn_down{suffix}.weight"]
        turned = ours[f"blk.{layer}.ffn_down_t{suffix}.weight"]
        assert np.array_equal(turned, down.swapaxes(-1, -2))
        for part in ("fc1", "fc2"):
            found = ours[f"blk.{layer}.{part}{suffix}.weight"]
            assert np.array_equal(found, parts[layer][f"{part}.weight"])
        bias = f"blk.{layer}.ffn_down{suffix}.bias"
        has_bias = name in ("opt", "gpt2", "gpt-oss", "starcoder2")
        assert (bias in theirs) == (f"blk.{layer}.ffn_down_t{suffix}.bias" in ours) == has_bias
        assert bias not in ours
    assert Gguf(aware).value("powerinfer.version") == 1
    with Llama(
        aware, n_ctx=64, logits_all=True, verbose=False, sparse="off", type_k=0, type_v=0
    ) as llm:
        llm.eval(TOKENS)
        same = llm.scores[: len(TOKENS)].astype(np.float64)
    # The same products in another order.
    assert reference.relative_error(same, logits(dense)) < 2e-5


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "gpt2"])
def test_neurons_on_the_disk(name: str, tmp_path: Path) -> None:
    """The same bits with the least memory, where a norm follows the sum of the neurons, too."""
    folder = golden(name, tmp_path / "model")
    path = convert(folder, outtype="f32", bundle=True, outfile=tmp_path / "a.gguf", log=quiet)
    options = {"n_ctx": 64, "verbose": False, "type_k": 0, "type_v": 0}
    with pytest.raises(OutOfMemoryError) as caught:
        Llama(path, ram_budget=1e-3, **options)
    least = re.search(r"at least (\d+) bytes", str(caught.value))
    assert least
    scores = 4096  # of the last token
    with Llama(path, ram_budget=(int(least[1]) + scores) / (1 << 30), **options) as llm:
        assert sum(llm.plan()["storage"].values()) > 0
        llm.eval(TOKENS)
        assert np.array_equal(llm.scores[len(TOKENS) - 1].astype(np.float64), logits(path)[-1])


def test_experts_in_slabs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = golden("mixtral", tmp_path / "model")
    whole = convert(folder, outfile=tmp_path / "whole.gguf", log=quiet)
    for rows in (1, 7, 24, 25, 60):
        monkeypatch.setattr("powerinfer_cpp.convert.stored.SLAB", 32 * rows)
        slabs = convert(folder, outfile=tmp_path / "slabs.gguf", log=quiet)
        assert whole.read_bytes() == slabs.read_bytes()


def test_what_stays_f32(tmp_path: Path) -> None:
    for name, tensor in (("mixtral", "blk.0.ffn_gate_inp.weight"), ("opt", "position_embd.weight")):
        path = convert(
            golden(name, tmp_path / name), outtype="q8_0", outfile=tmp_path / "a", log=quiet
        )
        types = {t.name: t.type_name for t in Gguf(path).tensors}
        assert types[tensor] == "F32" and types["token_embd.weight"] == "Q8_0"


def test_the_gguf_package_reads_every_family(tmp_path: Path) -> None:
    for name in KEYS:
        path = convert(golden(name, tmp_path / name), outfile=tmp_path / "a.gguf", log=quiet)
        assert {t.name for t in gguf.GGUFReader(path).tensors} == {
            t.name for t in Gguf(path).tensors
        }
