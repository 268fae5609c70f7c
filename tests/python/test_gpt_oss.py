"""gpt-oss: experts as published, in MXFP4; and what its configuration may leave out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import reference
from families import TOKENS, golden, logits, quiet, tensors_of
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf
from safetensors.numpy import load_file, save_file

from powerinfer_cpp import Llama, ModelFormatError, UnsupportedModelError

MXFP4 = gguf.GGMLQuantizationType.MXFP4
METHOD = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
# The values of codes in transformers' order, which is also that of a GGUF.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def published(folder: Path) -> tuple[Path, Path]:
    """The checkpoint with experts in MXFP4, and one of numbers with the same values."""
    packed = golden("gpt-oss", folder / "packed", quantization_config=METHOD)
    plain = golden("gpt-oss", folder / "plain")
    theirs = load_file(packed / "model.safetensors")
    values = dict(theirs)
    rng = np.random.default_rng(5)
    for name in [n for n in theirs if n.endswith(("gate_up_proj", "down_proj"))]:
        n, row, n_rows = theirs.pop(name).shape
        shape = (n, n_rows, row // 32)
        codes = rng.integers(0, 16, (*shape, 16, 2)).astype(np.uint8)
        scales = rng.integers(124, 128, shape).astype(np.uint8)
        theirs[f"{name}_blocks"] = codes[..., 0] | codes[..., 1] << 4  # neighbours in a byte
        theirs[f"{name}_scales"] = scales
        powers = np.exp2(scales.astype(np.float32) - 127)
        exact = E2M1[codes].reshape(*shape, 32) * powers[..., None]
        matrices = exact.reshape(n, n_rows, row).swapaxes(1, 2)
        values[name] = np.ascontiguousarray(matrices).astype(np.float16)
        assert np.array_equal(values[name], matrices)
    save_file(theirs, packed / "model.safetensors")
    save_file(values, plain / "model.safetensors")
    return packed, plain


def test_published_experts_keep_their_values(tmp_path: Path) -> None:
    packed, plain = published(tmp_path)
    exact = convert(plain, outtype="f32", outfile=tmp_path / "plain.gguf", log=quiet)
    path = convert(packed, outtype="f32", outfile=tmp_path / "packed.gguf", log=quiet)
    wanted, found = tensors_of(exact), {t.name: t for t in gguf.GGUFReader(path).tensors}
    assert set(found) == set(wanted)
    kept = [name for name, tensor in found.items() if tensor.tensor_type == MXFP4]
    assert len(kept) == 6 and all(name.endswith("_exps.weight") for name in kept)
    for name in kept:
        assert np.array_equal(gguf.quants.dequantize(found[name].data, MXFP4), wanted[name])
    with Gguf(path) as file:
        assert file.metadata["general.file_type"] == gguf.LlamaFileType.MOSTLY_MXFP4_MOE
        assert file.metadata["general.quantization_version"] == 2
    # Inputs of products with blocks are rounded to 8 bits.
    assert 0 < reference.relative_error(logits(path), logits(exact)) < 3e-2
    # Turned matrices are in the file's format, with the same values.
    aware = convert(packed, outtype="f32", bundle=True, outfile=tmp_path / "b.gguf", log=quiet)
    assert reference.relative_error(logits(aware), logits(exact)) < 3e-2


def test_damaged_blocks_are_refused(tmp_path: Path) -> None:
    packed, _ = published(tmp_path)
    weights = load_file(packed / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj"
    blocks, scales = weights[f"{name}_blocks"], weights[f"{name}_scales"]
    for changes, words in (
        ({f"{name}_scales": None}, f"lacks tensor {name}_scales"),
        ({f"{name}_blocks": None}, f"lacks tensor {name} "),
        ({f"{name}_scales": scales[:, :-1]}, f"{name}_scales has"),
        ({f"{name}_blocks": blocks.astype(np.float32)}, f"{name}_blocks does not hold bytes"),
        ({"model.norm.weight": np.ones(32, np.uint8)}, "model.norm.weight has element type U8"),
    ):
        save_file(
            {n: w for n, w in {**weights, **changes}.items() if w is not None},
            packed / "model.safetensors",
        )
        with pytest.raises((ModelFormatError, UnsupportedModelError), match=words):
            convert(packed, outfile=tmp_path / "a.gguf", log=quiet)


def keys(folder: Path, **changes: Any) -> dict[str, Any]:
    path = convert(golden("gpt-oss", folder, **changes), outfile=folder / "a.gguf", log=quiet)
    with Gguf(path) as file:
        return dict(file.metadata)


def test_keys(tmp_path: Path) -> None:
    found = keys(tmp_path / "m")
    for key, value in {
        "expert_count": 3,
        "expert_used_count": 2,
        "expert_feed_forward_length": 32,
        "attention.key_length": 10,
        "attention.sliding_window": 7,
        "attention.sliding_window_pattern": None,
        "rope.scaling.yarn_beta_fast": 8.0,
    }.items():
        assert found.get(f"gpt-oss.{key}") == value, key
    assert found["powerinfer.rope.yarn_truncate"] is False
    assert "powerinfer.ffn.activation" not in found


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"swiglu_limit": 5.0}, "swiglu_limit of 5"),
        ({"swiglu_alpha": 1.0}, "swiglu_alpha of 1"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config of 'gptq'"),
        ({"num_local_experts": 4}, "router.weight has shape"),
        ({"intermediate_size": 64}, "gate_up_proj has shape"),
    ],
)
def test_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=words) as caught:
        keys(tmp_path / "m", **changes)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


def test_what_a_configuration_leaves_out(tmp_path: Path) -> None:
    """Without a rotation the model's own YaRN; without kinds of layers a window in every second."""
    found = keys(tmp_path / "a", rope_scaling=None, rope_theta=None, layer_types=None)
    assert found["gpt-oss.rope.freq_base"] == 150000.0
    assert found["gpt-oss.rope.scaling.type"] == "yarn"
    assert found["gpt-oss.rope.scaling.factor"] == 32.0
    assert found["gpt-oss.rope.scaling.original_context_length"] == 4096
    assert found["powerinfer.rope.yarn_truncate"] is False
    assert found["gpt-oss.attention.sliding_window"] == 7
    assert "gpt-oss.attention.sliding_window_pattern" not in found
    rounded = {"rope_type": "yarn", "factor": 4.0, "truncate": True}
    assert "powerinfer.rope.yarn_truncate" not in keys(tmp_path / "b", rope_scaling=rounded)
    everywhere = keys(tmp_path / "c", layer_types=["sliding_attention"] * 2)
    assert everywhere["gpt-oss.attention.sliding_window_pattern"] == 0


def test_sinks_and_rounding_change_results(tmp_path: Path) -> None:
    """A sink that outweighs all scores leaves nothing of the values; one that is far below them
    leaves all. What YaRN rounds shows."""
    folder = golden("gpt-oss", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    sinks = [name for name in weights if name.endswith("sinks")]
    found = {}
    for value in (-1e4, 0.0, 100.0, 1e4):
        changed = {n: np.full_like(weights[n], value) for n in sinks}
        save_file({**weights, **changed}, folder / "model.safetensors")
        path = convert(folder, outtype="f32", outfile=tmp_path / f"{value}.gguf", log=quiet)
        found[value] = logits(path)
        assert np.isfinite(found[value]).all()
    assert np.array_equal(found[100.0], found[1e4])
    assert reference.relative_error(found[0.0], found[-1e4]) > 1e-2
    assert reference.relative_error(found[0.0], found[1e4]) > 1e-2
    # Without values, attention gives its bias, whatever came before.
    with Llama(tmp_path / "10000.0.gguf", n_ctx=64, verbose=False, type_k=0, type_v=0) as llm:
        llm.eval(TOKENS[-1:])
        alone = llm.scores[0].astype(np.float64)
    assert reference.relative_error(alone, found[1e4][-1]) < 2e-5
