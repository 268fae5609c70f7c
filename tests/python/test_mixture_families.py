"""Mixtures of the families beside Mixtral: other forms of their checkpoints, and what a GGUF must
not contradict. test_golden.py compares their logits with transformers'."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
from families import golden, ling, logits, quiet
from gguf_files import changed
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf
from safetensors.numpy import load_file, save_file

from powerinfer_cpp import ModelFormatError

Weights = dict[str, np.ndarray]


def converted(folder: Path, **options: Any) -> tuple[bytes, list[str]]:
    """The GGUF's bytes, and the notes."""
    notes: list[str] = []
    path = convert(folder, outfile=folder.parent / "out.gguf", log=notes.append, **options)
    return path.read_bytes(), notes


def with_weights(folder: Path, change: Callable[[Weights], Weights]) -> Path:
    weights = load_file(folder / "model.safetensors")
    save_file(change(dict(weights)), folder / "model.safetensors")
    return folder


# ---- Checkpoints ----


def in_one(weights: Weights) -> Weights:
    """The experts of each layer in two tensors, as newer checkpoints have them."""
    found = {name: w for name, w in weights.items() if ".experts." not in name}
    for layer in sorted({name.split(".experts.")[0] for name in weights if ".experts." in name}):
        n = sum(name.startswith(f"{layer}.experts.") for name in weights) // 3

        def all_of(part: str, layer: str = layer, n: int = n) -> list[np.ndarray]:
            return [weights[f"{layer}.experts.{i}.{part}_proj.weight"] for i in range(n)]

        pairs = zip(all_of("gate"), all_of("up"), strict=True)
        found[f"{layer}.experts.gate_up_proj"] = np.stack([np.concatenate(p) for p in pairs])
        found[f"{layer}.experts.down_proj"] = np.stack(all_of("down"))
    return found


@pytest.mark.parametrize("bundle", [False, True])
@pytest.mark.parametrize("name", ["qwen3-moe-dense", "glm4-moe"])
def test_experts_of_a_layer_in_one_tensor(name: str, bundle: bool, tmp_path: Path) -> None:
    folder = golden(name, tmp_path / "model")
    apart = converted(folder, bundle=bundle)
    assert converted(with_weights(folder, in_one), bundle=bundle) == apart


def test_layers_that_predict_further_tokens(tmp_path: Path) -> None:
    folder = golden("glm4-moe", tmp_path / "model")
    plain, _ = converted(folder)

    def longer(weights: Weights) -> Weights:
        last = {n: w for n, w in weights.items() if n.startswith("model.layers.1.")}
        more = {n.replace("layers.1.", "layers.2."): w.copy() for n, w in last.items()}
        return weights | more | {"model.layers.2.eh_proj.weight": np.ones((32, 64), np.float16)}

    with_weights(folder, longer)
    with pytest.raises(ModelFormatError, match=r"model\.layers\.2\."):
        converted(folder)
    config = folder / "config.json"
    config.write_text(config.read_text()[:-1] + ', "num_nextn_predict_layers": 1}')
    found, notes = converted(folder)
    assert found == plain and any("predict further tokens" in note for note in notes)


def test_weights_that_llama_cpp_takes_otherwise(tmp_path: Path) -> None:
    for name, told in (("qwen3-moe-dense", True), ("qwen3-moe", False), ("olmoe", False)):
        _, notes = converted(golden(name, tmp_path / name))
        assert any("norm_topk_prob" in note for note in notes) == told


def test_solar(tmp_path: Path) -> None:
    """The file of a GLM-4.5 without dense layers and norms of heads."""

    def in_all_layers(weights: Weights) -> Weights:
        found = {n: w for n, w in weights.items() if not re.search(r"layers\.0\.mlp|[qk]_norm", n)}
        last = {n: w for n, w in found.items() if ".layers.1.mlp." in n}
        return found | {n.replace(".layers.1.", ".layers.0."): w.copy() for n, w in last.items()}

    said = {"first_k_dense_replace": 0, "use_qk_norm": False, "partial_rotary_factor": 1.0}
    glm = golden("glm4-moe", tmp_path / "glm" / "m", **said, rope_theta=1e6)
    left_out = dict.fromkeys((*said, "rope_theta"))
    solar = golden("glm4-moe", tmp_path / "solar" / "m", **left_out, model_type="solar_open")
    files = [converted(with_weights(each, in_all_layers))[0] for each in (glm, solar)]
    assert files[0] == files[1]
    assert np.isfinite(logits(tmp_path / "solar" / "out.gguf")).all()


def test_ling(tmp_path: Path) -> None:
    """GLM-4.5's tensors by the names of Ling 2, which has the same formulas."""
    want = ling(tmp_path / "m")
    tokens = np.load(tmp_path / "m" / "expected.npz")["tokens"].tolist()
    path = convert(tmp_path / "m", outtype="f32", outfile=tmp_path / "a.gguf", log=quiet)
    assert reference.relative_error(logits(path, tokens), want) < 2e-5
    with Gguf(path) as file:
        found = file.metadata
    assert found["general.architecture"] == "bailingmoe2"
    assert found["bailingmoe2.rope.dimension_count"] == 6
    assert found["bailingmoe2.expert_group_count"] == 2
    assert found["bailingmoe2.expert_gating_func"] == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["BailingMoeForCausalLM"]}, "other than BailingMoeV2ForCausalLM"),
        ({"rotary_dim": None}, "without rotary_dim and partial_rotary_factor"),
        ({"partial_rotary_factor": 1.0}, "rotary_dim and partial_rotary_factor differ"),
        ({"score_function": "softmax"}, "score_function"),
        ({"use_qk_norm": False}, "without use_qk_norm"),
        ({"num_shared_experts": 0}, "does not explain"),
    ],
)
def test_ling_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    ling(tmp_path / "m", **changes)
    with pytest.raises(ModelFormatError, match=words) as caught:
        convert(tmp_path / "m", outfile=tmp_path / "a.gguf", log=quiet)
    assert "\n" not in str(caught.value)


# ---- GGUFs ----


@pytest.mark.parametrize(
    ("name", "keys", "words"),
    [
        ("glm4-moe", {"glm4moe.leading_dense_block_count": 2}, "but layer 1 has a router"),
        ("glm4-moe", {"glm4moe.expert_shared_feed_forward_length": 9}, "shexp.weight"),
        ("dots1", {"dots1.expert_shared_feed_forward_length": 0}, "shexp.weight"),
        ("glm4-moe", {"glm4moe.expert_group_count": 3}, "expert_group_count"),
        ("glm4-moe", {"glm4moe.expert_gating_func": 9}, "expert_gating_func 9"),
        ("olmoe", {"olmoe.expert_count": 0, "olmoe.expert_used_count": 0}, "olmoe.expert_count"),
        ("ernie-moe", {"ernie4_5-moe.interleave_moe_layer_step": 1 << 31}, "interleave_moe_layer"),
        ("granite", {"granite.logit_scale": float("nan")}, "granite.logit_scale"),
        ("phimoe", {"powerinfer.router.mixer": -1.0}, "powerinfer.router.mixer"),
    ],
)
def test_keys_that_contradict_the_file(
    name: str, keys: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = convert(golden(name, tmp_path / "m"), outfile=tmp_path / "a.gguf", log=quiet)
    with pytest.raises(ModelFormatError, match=words) as caught:
        logits(changed(path, tmp_path / "bad.gguf", keys=keys))
    assert "bad.gguf" in str(caught.value) and "\n" not in str(caught.value)


def test_granite_without_positions(tmp_path: Path) -> None:
    """The same as with rotations that are too slow to matter."""
    path = convert(
        golden("granite", tmp_path / "m"), outtype="f32", outfile=tmp_path / "a.gguf", log=quiet
    )
    none = changed(path, tmp_path / "b.gguf", keys={"granite.rope.scaling.finetuned": False})
    keys = {"granite.rope.scaling.type": "linear", "granite.rope.scaling.factor": 1e6}
    slow = changed(path, tmp_path / "c.gguf", keys=keys)
    want = logits(none)
    assert reference.relative_error(logits(slow), want) < 1e-3
    assert reference.relative_error(logits(path), want) > 1e-2
