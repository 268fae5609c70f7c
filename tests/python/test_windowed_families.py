"""Mixtures with sliding windows, and Granite with them: keys, other forms of their checkpoints, and
what is refused. test_golden.py compares their logits with transformers'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
from families import golden, logits, quiet, tensors_of
from gguf_files import changed
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf

from powerinfer_cpp import Llama, ModelFormatError

SAME = 2e-5  # of float32 sums in another order

KEYS: dict[str, dict[str, Any]] = {
    "trinity": {
        "afmoe.attention.sliding_window": 7,
        "afmoe.attention.sliding_window_pattern": 2,
        "afmoe.expert_gating_func": 2,
        "afmoe.expert_weights_norm": True,
        "afmoe.expert_weights_scale": 2.0,
        "afmoe.expert_shared_count": 1,
        "afmoe.leading_dense_block_count": 1,
        "afmoe.embedding_scale": None,
    },
    "exaone-moe": {
        "exaone-moe.attention.sliding_window_pattern": [True, False],
        "exaone-moe.expert_group_count": 2,
        "exaone-moe.expert_group_used_count": 1,
        "powerinfer.rope.layers": None,
    },
    "mellum": {
        "mellum.rope.freq_base": 20000.0,
        "mellum.rope.freq_base_swa": 1000.0,
        "mellum.rope.scaling.type": "yarn",
        "mellum.attention.sliding_window_pattern": [True, False],
    },
    "mimo-v2": {
        "mimo2.attention.head_count_kv": [1, 2],
        "mimo2.attention.key_length": 24,
        "mimo2.attention.value_length": 16,
        "mimo2.attention.value_scale": np.float32(0.707),
        "mimo2.rope.dimension_count": 8,
        "mimo2.rope.freq_base_swa": 1000.0,
    },
    "cohere2-moe": {
        "cohere2moe.attention.layer_norm_epsilon": np.float32(1e-5),
        "cohere2moe.feed_forward_length": 24,
        "cohere2moe.expert_feed_forward_length": 8,
        "cohere2moe.expert_shared_feed_forward_length": 16,
        "cohere2moe.expert_gating_func": 2,
        "cohere2moe.logit_scale": 0.25,
        "powerinfer.rope.layers": None,
        "powerinfer.experts.average": None,
    },
    "granite-moe-swa": {
        "granite_swa.attention.sliding_window_pattern": [False, True],
        "granite_swa.attention.rope_pattern": [False, True],
        "granite_swa.attention.scale": np.float32(0.6),
        "granite_swa.expert_shared_feed_forward_length": 16,
    },
    "step3": {
        "general.architecture": "step35",
        "step35.attention.head_count": [2, 4],
        "step35.attention.head_count_kv": 2,
        "step35.rope.dimension_count": None,  # llama.cpp halves it for layers without a window
        "step35.rope.freq_base_swa": 1000.0,
        "step35.swiglu_clamp_exp": [0.0, float(np.float32(0.6))],
        "step35.swiglu_clamp_shexp": [0.5, float(np.float32(0.8))],
    },
}


def converted(folder: Path, **options: Any) -> Path:
    return convert(folder, outfile=folder.with_suffix(".gguf"), log=quiet, **options)


@pytest.mark.parametrize("name", KEYS)
def test_keys(name: str, tmp_path: Path) -> None:
    with Gguf(converted(golden(name, tmp_path / name))) as file:
        found = file.metadata
    assert {key: found.get(key) for key in KEYS[name]} == KEYS[name]


def text_config(folder: Path, **changes: Any) -> Path:
    """Changes keys of the text part; None removes."""
    path = folder / "config.json"
    cfg = json.loads(path.read_text())
    part = {**cfg["text_config"], **changes}
    cfg["text_config"] = {key: value for key, value in part.items() if value is not None}
    path.write_text(json.dumps(cfg))
    return folder


# ---- Other forms of the same model ----


def test_step_as_transformers_writes_it(tmp_path: Path) -> None:
    """Rotations by kind of layer, kinds of blocks, and another name for the heads; or flat."""
    want = converted(golden("step3", tmp_path / "a" / "m")).read_bytes()
    text = json.loads((tmp_path / "a" / "m" / "config.json").read_text())["text_config"]
    rotations = {
        "full_attention": {
            **text["rope_scaling"],
            "rope_theta": 20000.0,
            "partial_rotary_factor": 0.5,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
    }
    changes = dict.fromkeys(("rope_theta", "rope_scaling", "partial_rotary_factors"))
    changes |= dict.fromkeys(("moe_layers_enum", "attention_other_setting"))
    newer = text_config(
        golden("step3", tmp_path / "b" / "m"),
        **changes,
        rope_parameters=rotations,
        mlp_layer_types=["dense", "sparse"],
        num_sliding_attention_heads=4,
        swiglu_limits=[None, 0.6],
    )
    assert converted(newer).read_bytes() == want
    flat = golden("step3", tmp_path / "c" / "m")
    del text["pad_token_id"]  # which is not looked for in a part
    (flat / "config.json").write_text(json.dumps(text))
    assert converted(flat).read_bytes() == want


def test_step_with_lists_that_count_further_layers(tmp_path: Path) -> None:
    want = converted(golden("step3", tmp_path / "a" / "m")).read_bytes()
    cfg = json.loads((tmp_path / "a" / "m" / "config.json").read_text())["text_config"]
    lists = ("layer_types", "rope_theta", "partial_rotary_factors", "swiglu_limits")
    longer = {key: [*cfg[key], cfg[key][-1]] for key in lists}
    more = text_config(golden("step3", tmp_path / "b" / "m"), **longer, num_nextn_predict_layers=1)
    assert converted(more).read_bytes() == want


def test_step_with_other_widths_of_rotation(tmp_path: Path) -> None:
    """Those that llama.cpp takes for granted may also be said."""
    plain = converted(golden("step3", tmp_path / "a"), outtype="f32")
    whole = text_config(golden("step3", tmp_path / "b"), partial_rotary_factors=[1.0, 0.5])
    other = converted(whole, outtype="f32")
    with Gguf(other) as file:
        assert file.value("step35.rope.dimension_count") == 16
        assert file.value("step35.rope.dimension_count_swa") == 8
    assert reference.relative_error(logits(other), logits(plain)) > 1e-2
    said = {"step35.rope.dimension_count": 8, "step35.rope.dimension_count_swa": 16}
    assert np.array_equal(logits(changed(plain, tmp_path / "c.gguf", said)), logits(plain))


def test_mimo_as_published(tmp_path: Path) -> None:
    """Its own names for kinds of layers, rotations and windows, which count from 0."""
    want = converted(golden("mimo-v2", tmp_path / "a" / "m")).read_bytes()
    older = golden(
        "mimo-v2",
        tmp_path / "b" / "m",  # a file has the folder's name
        layer_types=None,
        mlp_layer_types=None,
        rope_parameters=None,
        rope_theta=50000.0,
        swa_rope_theta=1000.0,
        partial_rotary_factor=0.334,
        hybrid_layer_pattern=[0, 1],
        moe_layer_freq=[0, 1],
        sliding_window_size=6,
        swa_num_key_value_heads=2,
        swa_num_attention_heads=4,
        swa_head_dim=24,
        swa_v_head_dim=16,
    )
    assert converted(older).read_bytes() == want


def test_factors_of_values(tmp_path: Path) -> None:
    """As if the values' matrices were multiplied."""
    path = converted(golden("mimo-v2", tmp_path / "a"), outtype="f32")
    plain = changed(
        path,
        tmp_path / "b.gguf",
        {"mimo2.attention.value_scale": None},
        lambda name, data: data * np.float32(0.707) if ".attn_v." in name else data,
    )
    assert reference.relative_error(logits(plain), logits(path)) < SAME


def test_how_command_a_joins_its_experts(tmp_path: Path) -> None:
    """Half of routed and shared experts is added, or all of both."""
    mean = converted(golden("cohere2-moe", tmp_path / "a"), outtype="f32")
    changes = {"shared_expert_combination_strategy": "sum"}
    both = converted(golden("cohere2-moe", tmp_path / "b", **changes), outtype="f32")
    assert Gguf(both).value("powerinfer.experts.average") is False
    halved = changed(
        both,
        tmp_path / "c.gguf",
        tensors=lambda name, data: data / 2 if "_down_" in name else data,
    )
    assert reference.relative_error(logits(halved), logits(mean)) < SAME
    assert reference.relative_error(logits(both), logits(mean)) > 1e-2


def test_command_a_with_other_norms_and_scores(tmp_path: Path) -> None:
    folder = golden("cohere2-moe", tmp_path / "a", rms_norm_eps=1e-6, expert_selection_fn="softmax")
    with Gguf(converted(folder)) as file:
        assert file.value("cohere2moe.attention.layer_norm_rms_epsilon") == np.float32(1e-6)
        assert file.value("cohere2moe.attention.layer_norm_epsilon") is None
        assert file.value("cohere2moe.expert_gating_func") == 3


def test_trinity_without_a_factor_of_embeddings(tmp_path: Path) -> None:
    notes: list[str] = []
    folder = golden("trinity", tmp_path / "a", mup_enabled=False)
    path = convert(folder, outfile=tmp_path / "a.gguf", log=notes.append)
    assert Gguf(path).value("afmoe.embedding_scale") == 1.0
    assert any("mup_enabled" in note for note in notes)


def test_granite_that_rotates_everywhere(tmp_path: Path) -> None:
    path = converted(golden("granite-swa", tmp_path / "a"), outtype="f32")
    folder = golden("granite-swa", tmp_path / "b", layer_rope_theta=None)
    everywhere = converted(folder, outtype="f32")
    assert Gguf(everywhere).value("granite_swa.attention.rope_pattern") is None
    assert reference.relative_error(logits(everywhere), logits(path)) > 1e-2


def test_fused_matrices_of_granite(tmp_path: Path) -> None:
    """As llama.cpp has them: gates, then ups, in one tensor."""
    path = converted(golden("granite-moe-swa", tmp_path / "a"), outtype="f32")
    found = tensors_of(path)
    assert found["blk.0.ffn_gate_up_exps.weight"].shape == (4, 16, 32)
    shared = found["blk.1.ffn_up_shexp.weight"]
    assert shared.shape == (32, 32)
    apart = changed(
        path,
        tmp_path / "b.gguf",
        tensors=lambda name, data: data[16:] if "ffn_up_shexp" in name else data,
        added={
            f"blk.{i}.ffn_gate_shexp.weight": found[f"blk.{i}.ffn_up_shexp.weight"][:16]
            for i in (0, 1)
        },
    )
    assert np.array_equal(logits(apart), logits(path))


# ---- What is refused ----

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("trinity", {"score_func": "softmax"}, "score_func"),
    ("trinity", {"n_group": 2}, "n_group"),
    ("exaone-moe", {"mlp_layer_types": ["dense", "other"]}, "mlp_layer_types has 'other'"),
    ("exaone-moe", {"num_experts": 5}, "gate.weight has shape"),
    (
        "mellum",
        {"rope_parameters": {"sliding_attention": {"rope_type": "yarn", "factor": 2.0}}},
        "scaled RoPE in layers with a window",
    ),
    ("mimo-v2", {"swa_head_dim": 16}, "swa_head_dim"),
    ("mimo-v2", {"n_shared_experts": 1}, "n_shared_experts"),
    ("mimo-v2", {"swa_num_key_value_heads": 3}, "not a multiple"),
    ("cohere2-moe", {"expert_selection_fn": "relu"}, "'relu'"),
    ("cohere2-moe", {"shared_expert_combination_strategy": "max"}, "'max'"),
    ("granite-swa", {"layer_rope_theta": [1000.0, 10000.0]}, "several bases"),
    ("step3", {"text_config": {}}, "no num_hidden_layers"),
]


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED)
def test_refused(name: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = golden(name, tmp_path / "model", **changes)
    with pytest.raises(ModelFormatError, match=words) as caught:
        converted(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_head_wise_attn_gate": False}, "use_head_wise_attn_gate"),
        ({"moe_router_activation": "softmax"}, "moe_router_activation"),
        ({"query_pre_attn_scalar": 64}, "query_pre_attn_scalar"),
        ({"moe_layers_enum": "1,x"}, "moe_layers_enum must be a list"),
        ({"swiglu_limits": [0.0, -1.0]}, "swiglu_limits has -1.0"),
        ({"layer_types": ["full_attention"] * 2}, "differ in layers of one kind"),
        ({"attention_other_setting": {"num_attention_groups": 1}}, "no num_attention_heads"),
    ],
)
def test_refused_of_step(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = text_config(golden("step3", tmp_path / "model"), **changes)
    with pytest.raises(ModelFormatError, match=words):
        converted(folder)


@pytest.mark.parametrize(
    ("name", "keys", "words"),
    [
        ("step3", {"step35.swiglu_clamp_exp": [0.5, -0.5]}, "swiglu_clamp_exp is negative"),
        ("step3", {"step35.swiglu_clamp_exp": [0.5] * 3}, "swiglu_clamp_exp is neither"),
        ("step3", {"step35.rope.dimension_count_swa": 3}, "dimension_count_swa must be even"),
        ("step3", {"powerinfer.ffn.activation": "drelu"}, "with the activation drelu"),
        ("granite-swa", {"granite_swa.attention.rope_pattern": [True]}, "rope_pattern is not"),
        ("mellum", {"mellum.rope.freq_base_swa": 0.0}, "freq_base_swa"),
    ],
)
def test_keys_that_contradict_the_file(
    name: str, keys: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = converted(golden(name, tmp_path / "m"))
    with pytest.raises(ModelFormatError, match=words) as caught:
        logits(changed(path, tmp_path / "bad.gguf", keys=keys))
    assert "bad.gguf" in str(caught.value) and "\n" not in str(caught.value)


def test_a_factor_of_values_and_a_bias(tmp_path: Path) -> None:
    path = converted(golden("mimo-v2", tmp_path / "m"))
    bias = {"blk.0.attn_output.bias": np.zeros(32, np.float32)}
    with pytest.raises(ModelFormatError, match=r"value_scale with attn_output\.bias"):
        logits(changed(path, tmp_path / "bad.gguf", added=bias))


# ---- Files of llama.cpp's converter ----


@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    [
        *("afmoe", "exaone_moe", "granite_swa", "granitemoe_swa"),
        *("mellum", "step3p7", "mimo_v2_flash", "cohere2_moe"),
    ],
)
def test_files_of_llama_cpp(name: str, shared: Path) -> None:
    fixtures = shared / "fixtures"
    expected = np.load(fixtures / "hf3" / name / "expected.npz")
    options = {"n_ctx": 320, "logits_all": True, "verbose": False, "type_k": 0, "type_v": 0}
    with Llama(fixtures / "gguf3" / f"{name}.gguf", sparse="off", **options) as llm:
        for kind, want in (("tokens", "logits_dense"), ("tokens_long", "logits_long_last")):
            llm.reset()
            llm.eval([int(token) for token in expected[kind]])
            n, rows = len(expected[kind]), len(expected[want])
            got = llm.scores[n - rows : n].astype(np.float64)
            assert reference.relative_error(got, expected[want]) < SAME
