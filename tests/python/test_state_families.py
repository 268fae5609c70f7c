"""LFM3: keys, variants and layouts of checkpoints, and what is refused.

test_golden.py compares its logits with transformers', test_states.py walks over its sequences.
"""

from __future__ import annotations

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
