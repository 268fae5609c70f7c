"""Qwen3-Next and Qwen 3.5: long texts against a float64 recurrence, other layouts of checkpoints
and files, and what is refused.

test_golden.py compares short texts with transformers.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import checkpoints
import delta_net_reference
import numpy as np
import pytest
import reference
from families import GOLDEN, TOKENS, golden, logits, quiet
from gguf_files import changed, raw, values
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.profile import importance
from powerinfer_cpp.quantize import quantize
from safetensors.numpy import load_file, save_file
from test_family_formats import compare_with_llama_cpp

from powerinfer_cpp import Llama, ModelFormatError, OutOfMemoryError, UnsupportedModelError

CONFIG: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 24,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
EXPERTS = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
    "norm_topk_prob": True,
}
# Heads of keys and of values, and their widths: one or many values a lane of a kernel, and a head
# of values that is as wide as published ones.
SHAPES: dict[str, tuple[str, tuple[int, int, int, int], dict[str, Any]]] = {
    "next": ("qwen3_next", (2, 6, 12, 12), EXPERTS),
    "next, one head of keys": ("qwen3_next", (1, 3, 20, 9), EXPERTS),
    "dense": ("qwen3_5_text", (3, 6, 16, 16), {}),
    "as many values as keys": ("qwen3_5_text", (4, 4, 7, 18), {}),
    "published width": ("qwen3_5_text", (1, 2, 128, 128), {}),
    "mixture": ("qwen3_5_moe_text", (2, 8, 8, 33), EXPERTS),
    # Of norms alone: that of queries and keys is fixed.
    "another epsilon": ("qwen3_5_text", (2, 4, 4, 5), {"rms_norm_eps": 1e-3}),
}
N_LONG = 260
LONG = [1] + [(37 * i * i + 11 * i) % 290 + 4 for i in range(N_LONG - 1)]


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    kind, (k, v, k_dim, v_dim), more = SHAPES[name]
    return {
        **CONFIG,
        **more,
        "model_type": kind,
        "architectures": ["Model"],
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_key_heads": k,
        "linear_num_value_heads": v,
        "linear_key_head_dim": k_dim,
        "linear_value_head_dim": v_dim,
        **changes,
    }


def all_logits(path: Path, at_once: int = N_LONG, **options: Any) -> np.ndarray:
    fields = {"n_ctx": 512, "logits_all": True, "verbose": False, "type_k": 0, "type_v": 0}
    with Llama(path, **fields, **options) as llm:
        for begin in range(0, N_LONG, at_once):
            llm.eval(LONG[begin : begin + at_once])
        return llm.scores[:N_LONG].copy()


def made(
    name: str, folder: Path, **changes: Any
) -> tuple[Path, dict[str, Any], dict[str, np.ndarray]]:
    """A file, and its configuration and weights."""
    cfg = config_of(name, **changes)
    weights = delta_net_reference.random_weights(cfg, seed=len(name))
    checkpoints.save(folder / "model", cfg, weights)
    shutil.copy(GOLDEN / "tokenizer.model", folder / "model")
    path = convert(folder / "model", outtype="f32", outfile=folder / "a.gguf", log=quiet)
    return path, cfg, weights


@pytest.mark.parametrize("name", SHAPES)
def test_long_texts_against_the_recurrence(name: str, tmp_path: Path) -> None:
    path, cfg, weights = made(name, tmp_path)
    want = delta_net_reference.logits(cfg, weights, LONG)
    ours = all_logits(path, n_threads=1)
    assert reference.relative_error(ours, want) < 2e-5
    assert np.array_equal(all_logits(path, n_threads=2), ours)
    for at_once in (1, 7, 64):
        assert np.array_equal(all_logits(path, at_once, n_threads=2), ours)


# What differs from SHAPES: llama.cpp has heads of keys and of values of one width, and wants a
# rotation's sections inside it.
SECTIONS = {"rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 1]}}
BESIDE: dict[str, dict[str, Any]] = {
    "next": {},
    "next, one head of keys": {"linear_value_head_dim": 20},
    "dense": SECTIONS,
    "published width": SECTIONS,
    "mixture": {"linear_value_head_dim": 8, **SECTIONS},
}


@pytest.mark.peer("llama_cpp")
@pytest.mark.parametrize("name", BESIDE)
def test_llama_cpp_computes_the_same(name: str, tmp_path: Path) -> None:
    compare_with_llama_cpp(made(name, tmp_path, **BESIDE[name])[0])


def test_squares_of_inputs(tmp_path: Path) -> None:
    """As an importance matrix has them, of layers whose attention is a delta net."""
    path, cfg, weights = made("dense", tmp_path)
    want: dict[str, np.ndarray] = {}
    delta_net_reference.logits(cfg, weights, LONG[:90], want)
    found = importance.measure(Model(str(path)), [np.array(LONG[:90], np.int32)], "text").inputs
    for theirs, names in (
        ("in_proj_qkv", ("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta")),
        ("out_proj", ("ssm_out",)),
    ):
        for layer in (0, 2):
            squares = (want[f"model.layers.{layer}.linear_attn.{theirs}"] ** 2).sum(0)
            if theirs == "out_proj":  # heads of values in tiles
                squares = squares.reshape(3, 2, 16).swapaxes(0, 1).reshape(-1)
            for name in names:
                got = found[f"blk.{layer}.{name}.weight"]
                assert reference.relative_error(got.sums[0], squares) < 1e-3
                assert got.counts.tolist() == [90]


# ---- Where weights are ----


@pytest.mark.parametrize("name", ["dense", "mixture"])
def test_neuron_rows(name: str, tmp_path: Path) -> None:
    """The same from the disk, with the least memory, to the bit. Shared experts whose matrices stay
    in memory are beside those that do not."""
    dense, *_ = made(name, tmp_path)
    aware = convert(dense, bundle=True, outfile=tmp_path / "b.gguf", log=quiet)
    want = logits(aware, sparse="off")
    assert reference.relative_error(want, logits(dense)) < 2e-5
    with_least_memory(aware, want, "neurons")


def test_experts_on_the_disk(tmp_path: Path) -> None:
    path, *_ = made("mixture", tmp_path)
    with_least_memory(path, logits(path), "experts")


def with_least_memory(
    path: Path, want: np.ndarray, kind: str, scores: int = 1 << 18, **fields: int
) -> None:
    """scores: room for those of every token."""
    options = {"n_ctx": 64, "verbose": False, "type_k": 0, "type_v": 0, "logits_all": True}
    options |= fields
    with pytest.raises(OutOfMemoryError, match=f"with the {kind} on the disk") as caught:
        Llama(path, ram_budget=1e-3, sparse="off", **options)
    least = re.search(r"at least (\d+) bytes", str(caught.value))
    assert least
    with Llama(
        path, ram_budget=(int(least[1]) + scores) / (1 << 30), sparse="off", **options
    ) as llm:
        assert sum(llm.plan()["storage"].values()) > 0
        llm.eval(TOKENS)
        assert np.array_equal(llm.scores[: len(TOKENS)], want)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_K_M"])
def test_quantised(kind: str, tmp_path: Path) -> None:
    """What is left beside the rounding of weights is that of inputs to 8 bits. The reference with
    rounded inputs is 3 to 4% away from itself with these weights."""
    cfg = config_of("dense", hidden_size=64, intermediate_size=64)
    weights = delta_net_reference.random_weights(cfg, seed=3)
    checkpoints.save(tmp_path / "model", cfg, weights)
    shutil.copy(GOLDEN / "tokenizer.model", tmp_path / "model")
    path = converted(tmp_path / "model")
    quantize(path, tmp_path / "q.gguf", kind, log=quiet)
    kinds = {name: kind for name, (kind, *_) in raw(tmp_path / "q.gguf").items()}
    for name in ("ssm_conv1d.weight", "ssm_a", "ssm_dt.bias", "ssm_norm.weight"):
        assert kinds[f"blk.0.{name}"] == "F32"
    decoded = values(tmp_path / "q.gguf")
    plain = changed(
        tmp_path / "q.gguf",
        tmp_path / "plain.gguf",
        tensors=lambda name, _data: decoded[name].astype(np.float32),
    )
    assert reference.relative_error(logits(tmp_path / "q.gguf"), logits(plain)) < 8e-2


# ---- Checkpoints ----


def converted(folder: Path, notes: list[str] | None = None) -> Path:
    log = quiet if notes is None else notes.append
    return convert(folder, outtype="f32", outfile=folder.parent / f"{folder.name}.gguf", log=log)


@pytest.mark.parametrize("name", ["qwen3-5", "qwen3-5-moe"])
def test_checkpoints_that_see_images(name: str, tmp_path: Path) -> None:
    plain = raw(converted(golden(name, tmp_path / "plain")))
    folder = golden(name, tmp_path / "images")
    text = json.loads((folder / "config.json").read_text())
    outer = {
        "model_type": text["model_type"].removesuffix("_text"),
        "text_config": {**text, "mtp_num_hidden_layers": 1, "attn_output_gate": True},
        "vision_config": {"depth": 1, "rope_parameters": {"rope_type": "axial"}},
        "image_token_id": 286,
        "tie_word_embeddings": text["tie_word_embeddings"],
    }
    (folder / "config.json").write_text(json.dumps(outer))
    weights = {
        key.replace("model.", "model.language_model.", 1): value
        for key, value in load_file(folder / "model.safetensors").items()
    }
    weights["model.visual.blocks.0.attn.qkv.weight"] = np.ones((4, 4), np.float16)
    weights["model.visual.pos_embed.weight"] = np.ones((4, 4), np.float16)
    weights["mtp.fc.weight"] = np.ones((4, 4), np.float16)
    weights["mtp.layers.0.input_layernorm.weight"] = np.ones(4, np.float16)
    save_file(weights, folder / "model.safetensors")
    notes: list[str] = []
    assert raw(converted(folder, notes)) == plain
    assert any("mtp" in note for note in notes) and any("text part" in note for note in notes)
    assert not any("unknown" in note for note in notes)


def test_experts_in_two_tensors(tmp_path: Path) -> None:
    folder = golden("qwen3-5-moe", tmp_path / "model")
    plain = raw(converted(folder))
    weights = load_file(folder / "model.safetensors")
    for i in range(2):
        experts = f"model.layers.{i}.mlp.experts"
        parts = {
            part: np.stack([weights.pop(f"{experts}.{x}.{part}_proj.weight") for x in range(5)])
            for part in ("gate", "up", "down")
        }
        weights[f"{experts}.gate_up_proj"] = np.concatenate([parts["gate"], parts["up"]], 1)
        weights[f"{experts}.down_proj"] = parts["down"]
    save_file(weights, folder / "model.safetensors")
    assert raw(converted(folder)) == plain


def test_keys(tmp_path: Path) -> None:
    for name, prefix, want in (
        (
            "qwen3-next",
            "qwen3next",
            {
                "ssm.conv_kernel": 3,
                "ssm.state_size": 8,
                "ssm.group_count": 2,
                "ssm.time_step_rank": 4,
                "ssm.inner_size": 48,
                "full_attention_interval": 2,
                "attention.recurrent_layers": [True, False],
                "rope.dimension_count": 4,
                "expert_shared_feed_forward_length": 10,
                "expert_weights_norm": None,
            },
        ),
        (
            "qwen3-5",
            "qwen35",
            {
                "attention.recurrent_layers": [False, True],
                "rope.dimension_sections": [11, 11, 10, 0],
                "attention.key_length": 16,
            },
        ),
    ):
        with Gguf(converted(golden(name, tmp_path / name))) as file:
            found = file.metadata
        assert {key: found.get(f"{prefix}.{key}") for key in want} == want


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3-next", {"attn_output_gate": False}, "whose attention has no gate"),
    ("qwen3-next", {"linear_num_value_heads": 5}, "is not a multiple of"),
    ("qwen3-next", {"linear_num_key_heads": 4}, "in_proj_qkvz.weight has shape"),
    ("qwen3-next", {"full_attention_interval": 1}, "q_proj.weight"),
    ("qwen3-next", {"linear_conv_kernel_dim": 4}, "conv1d.weight has shape"),
    ("qwen3-5", {"layer_types": ["chunked", "full_attention"]}, "layers of kind 'chunked'"),
    ("qwen3-5", {"rope_parameters": {"mrope_section": 3}}, "mrope_section must be a list"),
    ("qwen3-5", {"text_config": 1}, "text_config must be an object"),
]


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED)
def test_refused(name: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = golden(name, tmp_path / "model", **changes)
    with pytest.raises(ModelFormatError, match=words) as caught:
        converted(folder)
    assert "\n" not in str(caught.value) and not list(tmp_path.glob("*.gguf*"))


# ---- Files ----


def test_older_files_of_qwen3_next(tmp_path: Path) -> None:
    """Queries, keys, values and gates of each head of keys together, in ssm_in."""
    path = converted(golden("qwen3-next", tmp_path / "model"))
    found, n_k, d, per = values(path), 2, 8, 2 * 12
    n = n_k * d
    qkv, z = found["blk.0.attn_qkv.weight"], found["blk.0.attn_gate.weight"]
    parts = [qkv[:n], qkv[n : 2 * n], qkv[2 * n :], z]
    widths = (d, d, per, per)
    by_head = np.concatenate(
        [part.reshape(n_k, w, -1) for part, w in zip(parts, widths, strict=True)], axis=1
    )
    gone = ("blk.0.attn_qkv.weight", "blk.0.attn_gate.weight")
    older = changed(
        path,
        tmp_path / "older.gguf",
        {"qwen3next.attention.recurrent_layers": None},  # older files have the interval only
        tensors=lambda name, data: None if name in gone else data,
        added={"blk.0.ssm_in.weight": by_head.reshape(-1, qkv.shape[1])},
    )
    assert np.array_equal(logits(older), logits(path))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("ssm.time_step_rank", 5, "do not fit"),
        ("ssm.group_count", 0, "ssm.group_count"),
        ("ssm.group_count", 3, "do not fit"),
        ("ssm.state_size", 9, "has shape"),
        ("ssm.inner_size", 0, "ssm.inner_size"),
        ("ssm.inner_size", 47, "do not fit"),
        ("ssm.conv_kernel", 40, "ssm.conv_kernel"),
        ("ssm.conv_kernel", 2, "has shape"),
        ("ssm.state_size", None, "ssm.state_size"),
        ("attention.recurrent_layers", [True], "a flag for each layer"),
        ("attention.recurrent_layers", [False, True], "attn_q"),
        ("attention.recurrent_layers", 3, "a flag for each layer"),
        ("full_attention_interval", 0, "full_attention_interval"),
    ],
)
def test_keys_of_a_gguf(key: str, value: Any, words: str, tmp_path: Path) -> None:
    path = converted(golden("qwen3-next", tmp_path / "model"))
    other = changed(path, tmp_path / "other.gguf", {f"qwen3next.{key}": value})
    with pytest.raises(ModelFormatError, match=words) as caught:
        Llama(other, n_ctx=32, verbose=False)
    assert "\n" not in str(caught.value)


def test_layers_that_guess_tokens_are_not_computed(tmp_path: Path) -> None:
    path = converted(golden("qwen3-5", tmp_path / "model"))
    flags = {
        "qwen35.block_count": 3,
        "qwen35.nextn_predict_layers": 1,
        "qwen35.attention.recurrent_layers": [False, True, False],
    }
    added = {
        "blk.2.nextn.eh_proj.weight": np.ones((24, 48), np.float32),
        "blk.2.attn_norm.weight": np.ones(24, np.float32),
    }
    with_guesses = changed(path, tmp_path / "guesses.gguf", flags, added=added)
    assert np.array_equal(logits(with_guesses), logits(path))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    path = converted(golden("qwen3-5", tmp_path / "model"))
    for part in (
        "ssm_a",
        "ssm_dt.bias",
        "ssm_conv1d.weight",
        "ssm_beta.weight",
        "attn_gate.weight",
    ):
        name = f"blk.1.{part}"
        broken = changed(
            path,
            tmp_path / "broken.gguf",
            tensors=lambda found, data, name=name: None if found == name else data,
        )
        with pytest.raises(ModelFormatError, match=name):
            Llama(broken, n_ctx=32, verbose=False)
    with pytest.raises(UnsupportedModelError, match="ssm_ba"):
        other = changed(
            path, tmp_path / "more.gguf", added={"blk.1.ssm_ba.weight": np.ones((12, 24), "f4")}
        )
        Llama(other, n_ctx=32, verbose=False)
