"""Muse Glimmer and Laguna: gates with a matrix of their own, windows that no key names, rotations
by kind of layer. test_golden.py compares their logits with transformers'."""

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
from safetensors.numpy import load_file, save_file

from powerinfer_cpp import Llama, ModelFormatError

KEYS: dict[str, dict[str, Any]] = {
    "muse-glimmer": {
        "muse-glimmer.attention.sliding_window": 7,
        "muse-glimmer.attention.sliding_window_pattern": [True, False],
        "muse-glimmer.attention.key_length": 16,
        "muse-glimmer.logit_scale": np.float32(0.6),
        "muse-glimmer.final_logit_softcapping": 6.0,
        "powerinfer.rope.layers": None,
        "powerinfer.post_norm_epsilon": None,
        "powerinfer.ffn.activation": None,
    },
    "laguna": {
        "laguna.attention.head_count": [2, 4],
        "laguna.attention.sliding_window": 7,
        "laguna.attention.sliding_window_pattern": [False, True],
        "laguna.rope.dimension_count": 8,
        "laguna.rope.dimension_count_swa": 16,
        "laguna.rope.freq_base_swa": 1000.0,
        "laguna.rope.scaling.attn_factor": None,
        "laguna.expert_gating_func": 2,
        "laguna.expert_weights_scale": 1.5,
        "laguna.expert_shared_feed_forward_length": 8,
        "laguna.expert_shared_count": None,
        "laguna.leading_dense_block_count": 1,
    },
}


def made(name: str, folder: Path, **changes: Any) -> Path:
    checkpoint = golden(name, folder / "checkpoint", **changes)
    return convert(checkpoint, outtype="f32", outfile=folder / "a.gguf", log=quiet)


def with_text(**changes: Any) -> dict[str, Any]:
    """The configuration of Muse Glimmer with other keys of its text; None removes."""
    path = Path(__file__).parents[1] / "golden" / "muse-glimmer" / "config.json"
    text = {**json.loads(path.read_text())["text_config"], **changes}
    return {"text_config": {key: value for key, value in text.items() if value is not None}}


@pytest.mark.parametrize("name", KEYS)
def test_keys(name: str, tmp_path: Path) -> None:
    with Gguf(made(name, tmp_path)) as file:
        found = file.metadata
    assert {key: found.get(key) for key in KEYS[name]} == KEYS[name]


def test_what_the_text_of_muse_says(tmp_path: Path) -> None:
    usual = with_text(layer_types=None, layer_rope_theta=None, post_norm_eps=None)
    path = made("muse-glimmer", tmp_path)
    plain = path.read_bytes()
    assert made("muse-glimmer", tmp_path / "usual", **usual).read_bytes() == plain
    other = with_text(layer_rope_theta=[0, 10000.0], post_norm_eps=1e-3)
    with Gguf(made("muse-glimmer", tmp_path / "other", **other)) as file:
        assert file.value("powerinfer.rope.layers") == [False, True]
        assert file.value("powerinfer.post_norm_epsilon") == np.float32(1e-3)
    far = logits(tmp_path / "other" / "a.gguf")
    assert reference.relative_error(far, logits(path)) > 0.01


def test_windows_that_no_key_names(tmp_path: Path) -> None:
    """Muse Glimmer counts from the last layer, Laguna from the first; of two layers each they have
    the other's."""
    for name, missing in (("muse-glimmer", [True, False]), ("laguna", [False, True])):
        path = made(name, tmp_path / name)
        pattern = f"{name}.attention.sliding_window_pattern"
        none = changed(path, tmp_path / f"{name}-none.gguf", keys={pattern: None})
        same = changed(path, tmp_path / f"{name}-same.gguf", keys={pattern: missing})
        turned = changed(path, tmp_path / f"{name}-turned.gguf", keys={pattern: missing[::-1]})
        assert np.array_equal(logits(none), logits(same))
        assert reference.relative_error(logits(turned), logits(same)) > 0.01


def test_a_gate_for_each_value(tmp_path: Path) -> None:
    """The same bits as with one for each head, where a head's rows are alike."""
    path = made("laguna", tmp_path)
    gates = {n: w for n, w in tensors_of(path).items() if "attn_gate" in n}
    assert [len(w) for w in gates.values()] == [2, 4]
    wide = changed(
        path,
        tmp_path / "wide.gguf",
        tensors=lambda name, data: data if name not in gates else np.repeat(gates[name], 16, 0),
    )
    assert np.array_equal(logits(wide), logits(path))


def test_matrices_without_rows(tmp_path: Path) -> None:
    """As transformers saves a shared expert of no neurons."""
    plain = made("laguna", tmp_path).read_bytes()
    file = tmp_path / "checkpoint" / "model.safetensors"
    empty = np.zeros((0, 32), np.float16)
    save_file({**load_file(file), "model.layers.0.mlp.shared_expert.up_proj.weight": empty}, file)
    path = convert(tmp_path / "checkpoint", outtype="f32", outfile=tmp_path / "a.gguf", log=quiet)
    assert path.read_bytes() == plain


def test_magnitude_of_yarn(tmp_path: Path) -> None:
    """llama.cpp does not read yarn_attn_factor, whatever its files say there."""
    path = made("laguna", tmp_path)
    said = changed(path, tmp_path / "b.gguf", keys={"laguna.rope.scaling.yarn_attn_factor": 1.0})
    assert np.array_equal(logits(said), logits(path))
    rope = json.loads((tmp_path / "checkpoint" / "config.json").read_text())["rope_parameters"]
    rope["full_attention"]["attention_factor"] = 1.0
    with Gguf(made("laguna", tmp_path / "one", rope_parameters=rope)) as file:
        found = file.value("laguna.rope.scaling.attn_factor")
    assert found == np.float32(1 / (1 + 0.1 * np.log(4)))


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("laguna", {"gating": "per-layer"}, "laguna with gating 'per-layer'"),
    ("laguna", {"gating_types": ["per_head", "per_element"]}, "gating_types 'per_element'"),
    ("laguna", {"gating": "per-element"}, "g_proj.weight has shape"),
    ("laguna", {"moe_router_logit_softcapping": 30.0}, "moe_router_logit_softcapping"),
    ("laguna", {"moe_apply_router_weight_on_input": True}, "moe_apply_router_weight_on_input"),
    ("laguna", {"num_attention_heads_per_layer": [2, 3]}, "multiples of 2 key-value heads"),
    ("laguna", {"mlp_layer_types": ["dense", "wide"]}, "layers of kind 'wide'"),
    (
        "laguna",
        {"rope_parameters": {"sliding_attention": {"rope_type": "yarn", "factor": 2.0}}},
        "laguna with scaled RoPE",
    ),
    ("muse-glimmer", {"text_config": 1}, "text_config must be an object"),
    ("muse-glimmer", with_text(layer_rope_theta=[1e4, 5e5]), "layer_rope_theta of 500000.0"),
    ("muse-glimmer", with_text(layer_types=["full_attention"]), "layer_types must have a value"),
]


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED)
def test_refused(name: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=words) as caught:
        made(name, tmp_path, **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "keys", "tensor", "words"),
    [
        ("muse-glimmer", {}, "blk.1.attn_gate.weight", "blk.1.attn_gate.weight"),
        ("muse-glimmer", {"powerinfer.post_norm_epsilon": -1.0}, "", "post_norm_epsilon"),
        ("laguna", {"laguna.rope.dimension_count_swa": 5}, "", "must be even"),
        ("laguna", {"laguna.rope.dimension_count_swa": 18}, "", "dimension_count_swa"),
        ("laguna", {"laguna.attention.head_count": [4, 2]}, "", "attn_q.weight"),
        ("laguna", {"laguna.attention.head_count": [3, 4]}, "", "cannot share"),
    ],
)
def test_files_that_contradict_themselves(
    name: str, keys: dict[str, Any], tensor: str, words: str, tmp_path: Path
) -> None:
    path = made(name, tmp_path)
    changed(
        path,
        tmp_path / "bad.gguf",
        keys=keys,
        tensors=lambda name, data: None if name == tensor else data,
    )
    with pytest.raises(ModelFormatError, match=words) as caught:
        Llama(tmp_path / "bad.gguf", n_ctx=64, verbose=False)
    assert "bad.gguf" in str(caught.value) and "\n" not in str(caught.value)
