"""LFM3 and OLMo Hybrid: keys, variants and layouts of checkpoints, and what is refused.

test_golden.py compares their logits with transformers', test_states.py walks over their sequences.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import TOKENS, golden, logits, quiet
from gguf_files import changed, raw
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf
from reference import relative_error
from safetensors.numpy import load_file, save_file
from test_lora_families import adapter, computed, term

from powerinfer_cpp import Llama, ModelFormatError

FULL = {"rope_type": "proportional", "rope_theta": 50000.0, "partial_rotary_factor": 0.5}


def converted(folder: Path) -> Path:
    out = folder.with_suffix(".gguf")
    return convert(folder, dense=True, outtype="f32", outfile=out, log=quiet)


def keys_of(path: Path) -> dict[str, Any]:
    with Gguf(path) as file:
        return dict(file.metadata)


KEYS: dict[str, dict[str, Any]] = {
    "lfm3": {
        "attention.head_count_kv": [0, 1, 1],
        "attention.sliding_window": 6,
        "attention.sliding_window_pattern": [False, False, True],
        "rope.dimension_count": 16,
        "rope.freq_base": 50000.0,
        "rope.freq_base_swa": 500.0,
        "shortconv.l_cache": 7,
    },
    "olmo-hybrid": {
        "ssm.conv_kernel": 3,
        "ssm.state_size": 8,
        "ssm.group_count": 2,
        "ssm.time_step_rank": 6,
        "ssm.inner_size": 96,
        "ssm.beta_scale": 2.0,
        "attention.recurrent_layers": [True, False],
        "rope.freq_base": 50000.0,
    },
}


@pytest.mark.parametrize("name", KEYS)
def test_keys(name: str, tmp_path: Path) -> None:
    found = keys_of(converted(golden(name, tmp_path / name)))
    assert {key: found.get(f"{name}.{key}") for key in KEYS[name]} == KEYS[name]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("lfm3", {"conv_bias": True}, "conv_bias"),
    ("lfm3", {"layer_types": ["conv", "full_attention", "moe"]}, "layers of kind 'moe'"),
    ("lfm3", {"rope_parameters": {"rope_theta": 10000.0}}, "rope_parameters of both kinds"),
    (
        "lfm3",
        {"rope_parameters": {"full_attention": FULL, "sliding_attention": FULL}},
        "scaled RoPE in layers with a window",
    ),
    ("lfm3", {"use_sandwich_norm": False}, "does not explain"),
    ("lfm3", {"use_attention_gate": False}, "does not explain"),
    ("lfm3", {"conv_L_cache": 5}, "conv.conv.weight has shape"),
    ("olmo-hybrid", {"hidden_act": "gelu"}, "olmo_hybrid with hidden_act 'gelu'"),
    ("olmo-hybrid", {"linear_num_value_heads": 5}, "is not a multiple of"),
    ("olmo-hybrid", {"linear_num_key_heads": 3}, "q_proj.weight has shape"),
    ("olmo-hybrid", {"linear_conv_kernel_dim": 4}, "q_conv1d.weight has shape"),
    ("olmo-hybrid", {"layer_types": ["linear_attention", "mamba"]}, "layers of kind 'mamba'"),
]


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED)
def test_refused(name: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = golden(name, tmp_path / "model", **changes)
    with pytest.raises(ModelFormatError, match=words) as caught:
        converted(folder)
    assert "\n" not in str(caught.value) and not list(tmp_path.glob("*.gguf*"))


# ---- LFM3 ----


def test_lfm3_without_gates_or_norms(tmp_path: Path) -> None:
    """A file without them has none; half of them is an error."""
    folder = golden("lfm3", tmp_path / "m", use_sandwich_norm=False, use_attention_gate=False)
    path = folder / "model.safetensors"
    extra = ("post_operator_norm", "post_ffn_norm", "gate_proj")
    weights = load_file(path)
    save_file({n: w for n, w in weights.items() if not any(e in n for e in extra)}, path)
    plain = logits(converted(folder))
    whole = converted(golden("lfm3", tmp_path / "whole"))
    assert relative_error(plain, logits(whole)) > 0.1
    gone = ("post_attention_norm", "post_ffw_norm", "attn_gate")

    def without(name: str, layers: str = "012") -> Path:
        def kept(tensor: str, data: np.ndarray) -> np.ndarray | None:
            _, layer, rest = (*tensor.split(".", 2), "", "")[:3]
            lost = layer in layers and any(part in rest for part in gone)
            return None if layer and lost else data

        return changed(whole, tmp_path / f"{name}.gguf", tensors=kept)

    assert np.array_equal(logits(without("all")), plain)
    with pytest.raises(ModelFormatError, match=r"blk\.2\.attn_gate\.weight"):
        logits(without("half", "2"))


def test_lfm3_as_transformers_names_it(tmp_path: Path) -> None:
    folder = golden("lfm3", tmp_path / "m")
    path = folder / "model.safetensors"
    plain = raw(converted(folder))
    weights = load_file(path)
    save_file({name.replace("gate_proj", "g_proj"): w for name, w in weights.items()}, path)
    assert raw(converted(folder)) == plain


# ---- OLMo Hybrid ----


def test_convolutions_in_any_parts(tmp_path: Path) -> None:
    """By rows of queries, keys and values, as published, in one, and under transformers' names."""
    folder = golden("olmo-hybrid", tmp_path / "m")
    path = folder / "model.safetensors"
    plain = raw(converted(folder))
    weights = load_file(path)
    net = "model.layers.0.linear_attn"
    names = [f"{net}.{part}_conv1d.weight" for part in "qkv"]
    whole = np.concatenate([weights.pop(name) for name in names])
    parts = np.split(whole, [16, 32])
    save_file({**weights, **dict(zip(names, parts, strict=True))}, path)
    assert raw(converted(folder)) == plain
    for published, ours in (
        ("attention_layer_norm", "input_layernorm"),
        ("feedforward_layer_norm", "post_attention_layernorm"),
    ):
        weights = {name.replace(published, ours): w for name, w in weights.items()}
    save_file({**weights, f"{net}.conv1d.weight": whole}, path)
    assert raw(converted(folder)) == plain
    save_file({**weights, **dict(zip(names, [*parts[:2], parts[2][1:]], strict=True))}, path)
    with pytest.raises(ModelFormatError, match="have 127 rows together, expected 128"):
        converted(folder)


NONE: list[dict[str, Any]] = [
    {"rope_parameters": {"rope_type": "default", "rope_theta": None}},
    {"rope_parameters": None, "rope_theta": None},
]


def test_rotation_of_olmo_hybrid(tmp_path: Path) -> None:
    """A base of null is none, and no description the usual one, as in transformers."""
    rotated = converted(golden("olmo-hybrid", tmp_path / "a"))
    key = "olmo-hybrid.rope.freq_base"
    still = changed(rotated, tmp_path / "still.gguf", keys={key: None})
    assert relative_error(logits(still), logits(rotated)) > 0.01
    for i, changes in enumerate(NONE):
        folder = golden("olmo-hybrid", tmp_path / str(i))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        path = converted(folder)
        assert key not in keys_of(path)
        assert np.array_equal(logits(path), logits(still))
    usual = keys_of(converted(golden("olmo-hybrid", tmp_path / "b", rope_parameters=None)))
    assert usual[key] == 10000.0


def test_factor_of_beta(tmp_path: Path) -> None:
    """Files say it; other factors are other models."""
    folder = golden("olmo-hybrid", tmp_path / "m", linear_allow_neg_eigval=False)
    one = converted(folder)
    key = "olmo-hybrid.ssm.beta_scale"
    two = converted(golden("olmo-hybrid", tmp_path / "two"))
    assert keys_of(one)[key] == 1 and relative_error(logits(one), logits(two)) > 0.01
    assert np.array_equal(logits(changed(two, tmp_path / "a.gguf", keys={key: None})), logits(two))
    assert np.array_equal(logits(changed(one, tmp_path / "b.gguf", keys={key: 2.0})), logits(two))
    with pytest.raises(ModelFormatError, match="beta_scale"):
        Llama(changed(two, tmp_path / "c.gguf", keys={key: 3.0}), n_ctx=32, verbose=False)


def test_an_adapter_of_one_part(tmp_path: Path) -> None:
    """Of what the file has as one matrix: the other rows stay as they are."""
    base, merged = (golden("olmo-hybrid", tmp_path / part) for part in ("base", "merged"))
    weights = load_file(merged / "model.safetensors")
    name = "model.layers.0.linear_attn.v_proj"
    a, b = term(weights[f"{name}.weight"])
    peft = adapter(tmp_path / "peft", {f"base_model.model.{name}": (a, b)})
    weights[f"{name}.weight"] = weights[f"{name}.weight"].astype(np.float32) + 2 * b @ a
    save_file(weights, merged / "model.safetensors")
    plain, want = converted(base), computed(converted(merged), TOKENS, {})
    out = convert(peft, base=plain, outfile=tmp_path / "adapter.gguf", log=quiet)
    assert relative_error(computed(plain, TOKENS, {out: 1.0}), want) < 2e-5
    assert relative_error(computed(plain, TOKENS, {}), want) > 0.01


def test_a_prompt_in_parts(tmp_path: Path) -> None:
    """The window and the states give the same bits however a prompt is cut."""
    options = {"n_ctx": 64, "logits_all": True, "verbose": False}
    for name in KEYS:
        path = converted(golden(name, tmp_path / name))
        found = []
        for at_once in (1, 5, 64):
            with Llama(path, **options) as llm:
                for i in range(0, len(TOKENS), at_once):
                    llm.eval(TOKENS[i : i + at_once])
                found.append(llm.scores[: len(TOKENS)].copy())
        assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])
