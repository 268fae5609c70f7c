"""Kimi Linear and Ling 3: any cut of a prompt, other layouts of checkpoints and files, layers for
drafts, and what is refused.

test_golden.py compares them with transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
from families import golden, logits, quiet, tensors_of
from gguf_files import changed, raw, values
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.profile import importance
from powerinfer_cpp.quantize import quantize
from safetensors.numpy import load_file, save_file

from powerinfer_cpp import Llama, ModelFormatError

NAMES = {"kimi-linear": "kimi-linear", "bailing-hybrid": "bailingmoe3"}
LONG = [1] + [(37 * i * i + 11 * i) % 290 + 4 for i in range(270)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("kimi")
    return {name: converted(golden(name, folder / name)) for name in NAMES}


def converted(folder: Path, **options: Any) -> Path:
    return convert(folder, outtype="f32", outfile=folder / "m.gguf", log=quiet, **options)


def last(path: Path, parts: list[list[int]], **options: Any) -> np.ndarray:
    with Llama(path, n_ctx=300, verbose=False, **options) as llm:
        for part in parts:
            llm.eval(part)
        return llm.scores[sum(map(len, parts)) - 1].copy()


@pytest.mark.parametrize("name", NAMES)
def test_any_cut_gives_the_same_bits(files: dict[str, Path], name: str) -> None:
    whole = last(files[name], [LONG], n_threads=1)
    assert np.isfinite(whole).all()
    for cuts in ([1], [17, 65], [256]):
        ends = [0, *cuts, len(LONG)]
        parts = [LONG[a:b] for a, b in zip(ends, ends[1:], strict=False)]
        assert np.array_equal(last(files[name], parts, n_threads=2), whole)
    assert np.array_equal(last(files[name], [LONG], n_ubatch=5), whole)


def test_keys(files: dict[str, Path]) -> None:
    for name, want in (
        (
            "kimi-linear",
            {
                "attention.head_count_kv": [0, 1],
                "rope.dimension_count": 8,
                "rope.freq_base": None,
                "ssm.conv_kernel": 4,
                "kda.head_dim": 8,
                "kda.safe_gate": None,
                "attention.key_length": 24,
                "attention.value_length": 8,
                "attention.q_lora_rank": None,
                "expert_used_count": 2,
                "expert_gating_func": 2,
                "leading_dense_block_count": 1,
            },
        ),
        (
            "bailing-hybrid",
            {
                "attention.head_count_kv": [0, 1],
                "rope.dimension_count": 8,
                "ssm.conv_kernel": 3,
                "kda.head_dim": 16,
                "kda.safe_gate": True,
                "kda.gate_lower_bound": -3.0,
                "attention.q_lora_rank": 16,
                "expert_group_count": 3,
                "expert_shared_count": 2,
            },
        ),
    ):
        with Gguf(files[name]) as file:
            found = file.metadata
        assert {key: found.get(f"{NAMES[name]}.{key}") for key in want} == want
    kimi, ling = (tensors_of(files[name]) for name in NAMES)
    assert kimi["blk.0.ssm_conv1d_q.weight"].shape == (16, 1, 4)
    assert (kimi["blk.0.ssm_a"] < 0).all() and (ling["blk.0.ssm_a"] > 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_neuron_rows(files: dict[str, Path], name: str, tmp_path: Path) -> None:
    path = converted(golden(name, tmp_path / "model"), bundle=True)
    assert reference.relative_error(logits(path), logits(files[name])) < 2e-5


@pytest.mark.parametrize("name", NAMES)
def test_small_tensors_stay_exact(files: dict[str, Path], name: str, tmp_path: Path) -> None:
    path = tmp_path / "q.gguf"
    quantize(files[name], path, "F16", log=quiet)
    kinds = {tensor: kind for tensor, (kind, *_) in raw(path).items()}
    for part in ("ssm_conv1d_q.weight", "ssm_a", "ssm_dt.bias", "ssm_norm.weight"):
        assert kinds[f"blk.0.{part}"] == "F32"
    assert kinds["blk.0.ssm_f_a.weight"] == "F16"
    assert reference.relative_error(logits(path), logits(files[name])) < 2e-3


def test_squares_of_inputs(files: dict[str, Path]) -> None:
    """An importance matrix has those of delta attention, too."""
    model = Model(str(files["kimi-linear"]))
    found = importance.measure(model, [np.array(LONG[:40], np.int32)], "text").inputs
    widths = {name: inputs.sums.shape[-1] for name, inputs in found.items()}
    names = ("attn_q", "ssm_beta", "ssm_f_a", "ssm_g_a", "attn_output")
    assert [widths.get(f"blk.0.{name}.weight") for name in names] == [24, 24, 24, 24, 16]


def test_decays_without_a_bound(tmp_path: Path) -> None:
    """They have Kimi's form then, whatever the sign of ssm_a is in a file."""
    path = converted(golden("bailing-hybrid", tmp_path / "model", kda_safe_gate=False))
    plain = values(path)["blk.0.ssm_a"]
    assert (plain > 0).all()
    turned = changed(
        path,
        tmp_path / "turned.gguf",
        tensors=lambda name, data: -data if name == "blk.0.ssm_a" else data,
    )
    assert np.array_equal(logits(turned), logits(path))


def test_lists_of_layers_in_other_forms(tmp_path: Path) -> None:
    plain = raw(converted(golden("kimi-linear", tmp_path / "plain")))
    sizes = {"linear_head_dim": 8, "linear_num_heads": 2, "linear_conv_kernel_dim": 4}
    kinds = {"layer_types": ["linear_attention", "full_attention"]}
    for i, changes in enumerate((kinds, {"linear_attn_config": None, **sizes, **kinds})):
        assert raw(converted(golden("kimi-linear", tmp_path / str(i), **changes))) == plain


def test_published_names_of_dense_layers(files: dict[str, Path], tmp_path: Path) -> None:
    folder = golden("kimi-linear", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    saved = "model.layers.0.block_sparse_moe."
    assert any(name.startswith(saved) for name in weights)
    renamed = {n.replace(saved, "model.layers.0.mlp."): w for n, w in weights.items()}
    save_file(renamed, folder / "model.safetensors")
    assert raw(converted(folder)) == raw(files["kimi-linear"])


def test_tensors_with_other_dimensions_of_1(files: dict[str, Path], tmp_path: Path) -> None:
    """llama.cpp's converter writes them with two, three and four dimensions."""
    path = files["kimi-linear"]

    def reshaped(name: str, data: np.ndarray) -> np.ndarray:
        if "ssm_conv1d" in name:
            return data.reshape(1, *data.shape) if "_k" in name else data.reshape(-1, 4)
        return data.reshape(1, 1, -1, 1) if name.endswith("ssm_a") else data

    other = changed(path, tmp_path / "other.gguf", tensors=reshaped)
    assert np.array_equal(logits(other), logits(path))


def test_tensors_decide_of_which_kind_a_layer_is(files: dict[str, Path], tmp_path: Path) -> None:
    """llama.cpp's converter takes the last layers of an incomplete group for attention."""
    path = files["kimi-linear"]
    other = changed(path, tmp_path / "other.gguf", {"kimi-linear.attention.head_count_kv": 1})
    assert np.array_equal(logits(other), logits(path))


def test_layers_that_guess_tokens_are_not_computed(files: dict[str, Path], tmp_path: Path) -> None:
    folder = golden("bailing-hybrid", tmp_path / "model", num_nextn_predict_layers=1)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.2.eh_proj.weight"] = np.ones((24, 48), np.float16)
    save_file(weights, folder / "model.safetensors")
    assert raw(converted(folder)) == raw(files["bailing-hybrid"])

    keys = {
        "bailingmoe3.block_count": 3,
        "bailingmoe3.nextn_predict_layers": 1,
        "bailingmoe3.attention.head_count_kv": [0, 1, 1],
    }
    added = {
        "blk.2.nextn.eh_proj.weight": np.ones((24, 48), np.float32),
        "blk.2.layer_output_norm.weight": np.ones(24, np.float32),
        "blk.2.attn_gate.weight": np.ones((3, 24), np.float32),
    }
    path = files["bailing-hybrid"]
    with_guesses = changed(path, tmp_path / "guesses.gguf", keys, added=added)
    assert np.array_equal(logits(with_guesses), logits(path))


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("kimi-linear", {"mla_use_nope": False}, "mla_use_nope"),
    ("kimi-linear", {"moe_router_activation_func": "softmax"}, "moe_router_activation_func"),
    ("kimi-linear", {"linear_attn_config": 3}, "linear_attn_config must be an object"),
    ("kimi-linear", {"linear_attn_config": {"kda_layers": [1], "full_attn_layers": [1]}}, "once"),
    ("kimi-linear", {"linear_attn_config": {"kda_layers": [0], "full_attn_layers": [1]}}, "once"),
    ("kimi-linear", {"linear_attn_config": {"kda_layers": 1, "full_attn_layers": "a"}}, "once"),
    ("kimi-linear", {"layer_types": ["linear_attention", "sliding"]}, "layers of kind 'sliding'"),
    ("kimi-linear", {"attention_bias": True}, "attention_bias"),
    ("bailing-hybrid", {"score_function": "softmax"}, "score_function"),
    ("bailing-hybrid", {"no_kda_lora": False}, "no_kda_lora"),
    ("bailing-hybrid", {"use_gated_attention": False}, "use_gated_attention"),
    ("bailing-hybrid", {"kda_lower_bound": 0.0}, "kda_lower_bound must be negative"),
    ("bailing-hybrid", {"moe_shared_expert_intermediate_size": 9}, "shared expert"),
    ("bailing-hybrid", {"expert_swiglu_limit_list": [0, 7.0]}, "expert_swiglu_limit_list"),
    ("bailing-hybrid", {"layer_group_size": 3}, "lacks tensor model.layers.1.attention.q_proj"),
]


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED)
def test_refused(name: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = golden(name, tmp_path / "model", **changes)
    with pytest.raises(ModelFormatError, match=words) as caught:
        converted(folder)
    assert "\n" not in str(caught.value) and not list(folder.glob("*.gguf*"))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("kda.head_dim", 0, "kda.head_dim"),
        ("kda.head_dim", 9, "has shape"),
        ("kda.head_dim", None, "kda.head_dim"),
        ("kda.gate_lower_bound", 0.0, "gate_lower_bound"),
        ("kda.gate_lower_bound", 1.0, "gate_lower_bound"),
        ("kda.gate_lower_bound", None, "gate_lower_bound"),
        ("ssm.conv_kernel", 40, "ssm.conv_kernel"),
        ("ssm.conv_kernel", 4, "has shape"),
        ("attention.head_count_kv", [0, 0], "which has attention"),
        ("attention.kv_lora_rank", 12, "are not those of a latent of 12"),
        ("swiglu_clamp_exp", [0.0, -7.0], "swiglu_clamp_exp"),
        ("leading_dense_block_count", 0, "is 0, but layer 0 has no experts"),
    ],
)
def test_keys_of_a_gguf(
    files: dict[str, Path], key: str, value: Any, words: str, tmp_path: Path
) -> None:
    other = changed(files["bailing-hybrid"], tmp_path / "other.gguf", {f"bailingmoe3.{key}": value})
    with pytest.raises(ModelFormatError, match=words) as caught:
        Llama(other, n_ctx=32, verbose=False)
    assert "\n" not in str(caught.value)


def test_limits_of_gates(files: dict[str, Path], tmp_path: Path) -> None:
    """Files of llama.cpp have them; transformers does not know them."""
    path, key = files["bailing-hybrid"], "bailingmoe3.swiglu_clamp_"
    for which in ("exp", "shexp"):
        low = changed(path, tmp_path / "low.gguf", {f"{key}{which}": [0.0, 0.01]})
        assert not np.array_equal(logits(low), logits(path)), which
        high = changed(path, tmp_path / "high.gguf", {f"{key}{which}": [0.0, 1e6]})
        assert np.array_equal(logits(high), logits(path)), which


def test_a_missing_tensor_is_named(files: dict[str, Path], tmp_path: Path) -> None:
    parts = ("ssm_a", "ssm_dt.bias", "ssm_conv1d_k.weight", "ssm_f_a.weight", "ssm_g_b.weight")
    for part in (*parts, "attn_v.weight", "ssm_norm.weight"):
        name = f"blk.0.{part}"
        broken = changed(
            files["kimi-linear"],
            tmp_path / "broken.gguf",
            tensors=lambda found, data, name=name: None if found == name else data,
        )
        with pytest.raises(ModelFormatError, match=name):
            Llama(broken, n_ctx=32, verbose=False)
