"""Families near Llama of 2025, and Gemma 4: keys, which layers rotate and see a window, xIELU.

test_golden.py compares their logits with transformers', test_families.py has what is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
from families import golden, logits, quiet, with_null
from gguf_files import changed
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf

from powerinfer_cpp import Llama, ModelFormatError, UnsupportedModelError

KEYS: dict[str, dict[str, Any]] = {
    "smollm3": {"powerinfer.rope.layers": [False, True], "powerinfer.ffn.activation": None},
    "ministral3": {
        "mistral3.rope.scaling.type": "yarn",
        "mistral3.rope.scaling.yarn_log_multiplier": 0.5,
        "mistral3.rope.scaling.attn_factor": None,
        "mistral3.attention.temperature_scale": np.float32(0.3),
        "mistral3.attention.key_length": 12,
    },
    "seed-oss": {"seed_oss.rope.dimension_count": 12},
    "glm4": {"glm4.rope.dimension_count": 6, "glm4.feed_forward_length": 20},
    "olmo3": {
        "olmo2.attention.sliding_window": 5,
        "olmo2.attention.sliding_window_pattern": [True, False],
        "olmo2.rope.freq_base_swa": 500000.0,
        "olmo2.rope.scaling.attn_factor": np.float32(1.5 / (0.1 * np.log(4) + 1)),
    },
    "exaone4": {
        "exaone4.attention.sliding_window_pattern": [False, True],
        "powerinfer.rope.layers": None,
    },
    "cohere2": {
        "cohere2.logit_scale": 0.25,
        "cohere2.attention.sliding_window_pattern": 2,
        "cohere2.attention.layer_norm_epsilon": np.float32(1e-5),
    },
    "apertus": {"xielu.beta": [0.5, 0.5], "powerinfer.ffn.activation": None},
    "gemma4": {
        "gemma4.attention.head_count_kv": [2, 1],
        "gemma4.attention.key_length": 16,
        "gemma4.attention.key_length_swa": 8,
        "gemma4.attention.sliding_window_pattern": [True, False],
        "gemma4.rope.dimension_count": 16,
        "gemma4.rope.dimension_count_swa": 8,
        "gemma4.rope.freq_base": 1e6,
        "gemma4.rope.freq_base_swa": 10000.0,
        "gemma4.final_logit_softcapping": 6.0,
        "powerinfer.ffn.activation": None,
    },
    "gemma4-mixture": {
        "gemma4.attention.head_count_kv": 1,
        "gemma4.feed_forward_length": 16,
        "gemma4.expert_feed_forward_length": 12,
        "gemma4.expert_count": 3,
    },
    "gemma4-embeddings": {
        "gemma4.feed_forward_length": [12, 12, 24, 24],
        "gemma4.attention.shared_kv_layers": 2,
        "gemma4.embedding_length_per_layer_input": 4,
    },
}


@pytest.mark.parametrize("name", KEYS)
def test_keys(name: str, tmp_path: Path) -> None:
    path = convert(golden(name, tmp_path / name), outfile=tmp_path / "a.gguf", log=quiet)
    with Gguf(path) as file:
        found = file.metadata
    assert {key: found.get(key) for key in KEYS[name]} == KEYS[name]


@pytest.mark.parametrize(
    ("name", "changes", "key", "value"),
    [
        ("smollm3", {"no_rope_layers": None}, "powerinfer.rope.layers", None),
        (
            "smollm3",
            {"no_rope_layers": None, "no_rope_layer_interval": 1},
            "powerinfer.rope.layers",
            [False, False],
        ),
        ("exaone4", {"sliding_window": None}, "exaone4.attention.sliding_window", 4096),
        (  # layers that see all positions do not rotate, even where no layer has the window
            "exaone4",
            {"layer_types": ["full_attention"] * 2},
            "powerinfer.rope.layers",
            [False, False],
        ),
        (
            "exaone4",
            {"layer_types": None, "sliding_window_pattern": "LG"},
            "exaone4.attention.sliding_window_pattern",
            [True, False],
        ),
        (
            "olmo3",
            {
                "rope_parameters": {
                    "sliding_attention": {"rope_theta": 7e4, "rope_type": "default"},
                    "full_attention": {"rope_theta": 5e5, "rope_type": "default"},
                },
                "rope_scaling": None,
            },
            "olmo2.rope.freq_base_swa",
            7e4,
        ),
        (
            "cohere2",
            {"sliding_window_pattern": 4},
            "cohere2.attention.sliding_window_pattern",
            None,
        ),
    ],
)
def test_which_layers_slide_and_rotate(
    name: str, changes: dict[str, Any], key: str, value: Any, tmp_path: Path
) -> None:
    folder = golden(name, tmp_path / "model", **changes)
    path = convert(folder, outtype="f32", outfile=tmp_path / "a.gguf", log=quiet)
    with Gguf(path) as file:
        assert file.value(key) == value
    logits(path)


def test_null_for_a_window(tmp_path: Path) -> None:
    """No layer of EXAONE 4 has one, and all rotate; in the others it contradicts layer_types."""
    folder = with_null(golden("exaone4", tmp_path / "exaone4"), "sliding_window")
    with Gguf(convert(folder, outfile=tmp_path / "a.gguf", log=quiet)) as file:
        assert file.value("exaone4.attention.sliding_window") is None
        assert file.value("powerinfer.rope.layers") is None
    for name in ("olmo3", "cohere2", "gemma4"):
        folder = with_null(golden(name, tmp_path / name), "sliding_window")
        with pytest.raises(ModelFormatError, match="layers have a window, but sliding_window is"):
            convert(folder, outfile=tmp_path / "a.gguf", log=quiet)


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("gemma4", {"1": {"head_dim": 16, "num_key_value_heads": 1}}),
        ("gemma4-embeddings", {"1": {"head_dim": 16}, "3": {"head_dim": 16}}),
    ],
)
def test_heads_of_each_layer(name: str, heads: dict[str, Any], tmp_path: Path) -> None:
    """transformers 5.24 writes the heads of layers that see all positions so."""
    newer = {"global_head_dim": 99, "num_global_key_value_heads": 99, "per_layer_config": heads}
    files = [
        convert(
            golden(name, tmp_path / kind / "m", **changes),
            outfile=tmp_path / f"{kind}.gguf",
            log=quiet,
        )
        for kind, changes in (("older", {}), ("newer", newer))
    ]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_rotating_layers_as_the_file_says(tmp_path: Path) -> None:
    path = convert(golden("smollm3", tmp_path / "m"), outfile=tmp_path / "a.gguf", log=quiet)
    all_rotate = changed(path, tmp_path / "b.gguf", keys={"powerinfer.rope.layers": [True, True]})
    assert reference.relative_error(logits(all_rotate), logits(path)) > 0.01
    for wrong in ([True], [1, 0], True):
        changed(path, tmp_path / "bad.gguf", keys={"powerinfer.rope.layers": wrong})
        with pytest.raises(ModelFormatError, match=r"powerinfer\.rope\.layers is not a flag for"):
            Llama(tmp_path / "bad.gguf", n_ctx=64, verbose=False)


def test_windows_of_layers_that_guess_tokens(tmp_path: Path) -> None:
    """A list of windows may have those of NextN layers, which are not computed."""
    path = convert(golden("exaone4", tmp_path / "m"), outfile=tmp_path / "a.gguf", log=quiet)
    pattern = "exaone4.attention.sliding_window_pattern"
    more = {"exaone4.block_count": 3, "exaone4.nextn_predict_layers": 1}
    layer = {"blk.2.nextn.eh_proj.weight": np.ones((4, 4), np.float32)}
    for flags in ([False, True], [False, True, True]):
        changed(path, tmp_path / "b.gguf", keys={**more, pattern: flags}, added=layer)
        assert (logits(tmp_path / "b.gguf") == logits(path)).all()
    flags = [False, True, True, True]
    changed(path, tmp_path / "b.gguf", keys={**more, pattern: flags}, added=layer)
    with pytest.raises(ModelFormatError, match="neither a number nor a flag for each layer"):
        Llama(tmp_path / "b.gguf", n_ctx=64, verbose=False)


def test_xielu(tmp_path: Path) -> None:
    folder = golden("apertus", tmp_path / "m")
    path = convert(folder, outtype="f32", outfile=tmp_path / "a.gguf", log=quiet)
    for keys, words in (
        ({"xielu.alpha_p": None}, "xielu.alpha_p. is missing"),
        ({"xielu.eps": [0.5]}, "xielu.eps is neither a number nor one for each layer"),
    ):
        changed(path, tmp_path / "bad.gguf", keys=keys)
        with pytest.raises(ModelFormatError, match=words):
            Llama(tmp_path / "bad.gguf", n_ctx=64, verbose=False)
    with pytest.raises(UnsupportedModelError, match="neuron rows with xielu"):
        convert(folder, bundle=True, outfile=tmp_path / "b.gguf", log=quiet)
    with pytest.raises(UnsupportedModelError, match="neuron rows with xielu"):
        convert(path, outfile=tmp_path / "b.gguf", log=quiet)
    # With ReLU in its place it is a model as others are.
    relu = convert(folder, activation="relu", outtype="f32", outfile=tmp_path / "r", log=quiet)
    rows = convert(relu, outfile=tmp_path / "rows.gguf", log=quiet)
    assert reference.relative_error(logits(rows), logits(relu)) < 2e-5
    other = golden("opt", tmp_path / "opt")
    path = convert(other, activation="xielu", outfile=tmp_path / "o.gguf", log=quiet)
    with pytest.raises(UnsupportedModelError, match="opt has no xielu"):
        Llama(path, n_ctx=64, verbose=False)
