"""convert: what a checkpoint says beyond what a family reads, and what has one obvious meaning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
from families import GOLDEN, golden, quiet
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf
from safetensors.numpy import load_file, save_file
from windowed_defaults import GRANITE, WINDOWED

from powerinfer_cpp import ModelFormatError, UnsupportedModelError


def change(folder: Path, file: str, **values: Any) -> None:
    """Sets keys of a JSON file in the folder, which need not exist."""
    path = folder / file
    old = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**old, **values}))


def converted(folder: Path, **options: Any) -> tuple[bytes, list[str]]:
    """The GGUF's bytes, and the notes."""
    notes: list[str] = []
    path = convert(folder, outfile=folder.parent / "out.gguf", log=notes.append, **options)
    return path.read_bytes(), notes


def keys_of(folder: Path, **options: Any) -> dict[str, Any]:
    with Gguf(convert(folder, outfile=folder.parent / "out.gguf", log=quiet, **options)) as file:
        return {key: file.value(key) for key in file.metadata}


def with_weights(folder: Path, change: Any) -> Path:
    weights = load_file(folder / "model.safetensors")
    save_file(change(dict(weights)), folder / "model.safetensors")
    return folder


# ---- Keys ----

DECISIVE = [
    ("llama-relu-gqa", "is_causal", False),
    ("llama-relu-gqa", "attn_logit_softcapping", 30.0),
    ("llama-relu-gqa", "embedding_multiplier", 12.0),
    ("llama-relu-gqa", "layer_types", ["full_attention", "sliding_attention"]),
    ("llama-relu-gqa", "no_rope_layers", [1, 0]),
    ("llama-relu-gqa", "quantization_config", {"quant_method": "gptq"}),
    ("llama-relu-gqa", "rope_scaling", {"factor": 3.0}),
    ("llama-relu-gqa", "rope_parameters", {"rope_theta": 500000.0, "low_freq_factor": 2.0}),
    ("llama-relu-gqa", "num_experts", 8),
    ("mistral-window", "logits_scaling", 8.0),
    ("mistral-window", "clip_qkv", 6.0),
    ("falcon-7b", "sliding_window", 64),
    ("falcon-40b", "residual_multiplier", 0.22),
    ("gpt2", "rope_scaling", {"rope_type": "linear", "factor": 2.0}),
    ("opt", "partial_rotary_factor", 0.5),
    ("mixtral", "shared_expert_intermediate_size", 16),
    ("qwen3-moe", "routed_scaling_factor", 2.5),
    ("olmoe", "shared_expert_intermediate_size", 8),
    ("minimax-m2", "shared_intermediate_size", 8),
    ("granite", "num_local_experts", 4),
    ("hunyuan-moe", "n_group", 2),
    ("stablelm", "alibi", True),
    ("gemma2", "attention_multiplier", 0.1),
    ("phi3-window", "use_qk_norm", True),
    ("smollm3", "attention_multiplier", 0.1),
    ("ministral3", "clip_qkv", 6.0),
    ("seed-oss", "use_qk_norm", True),
    ("glm4", "no_rope_layers", [1, 0]),
    ("olmo3", "residual_multiplier", 0.22),
    ("exaone4", "num_experts", 8),
    ("cohere2", "use_qk_norm", True),
    ("apertus", "sliding_window_size", 9),
    ("qwen3-next", "residual_multiplier", 0.22),
    ("qwen3-5", "num_experts", 8),
    ("lfm2", "clip_qkv", 6.0),
    ("lfm2-moe", "shared_expert_intermediate_size", 8),
    ("gemma4", "attention_multiplier", 0.1),
    ("gemma4-embeddings", "n_shared_experts", 1),
]


@pytest.mark.parametrize(("name", "key", "value"), DECISIVE)
def test_keys_that_change_results(name: str, key: str, value: Any, tmp_path: Path) -> None:
    folder = golden(name, tmp_path / "model")
    plain, _ = converted(folder)
    change(folder, "config.json", **{key: value})
    with pytest.raises(UnsupportedModelError, match=rf"config\.json: {key}.*--allow-unknown"):
        converted(folder)
    found, notes = converted(folder, allow_unknown=True)
    assert found == plain
    assert any("without keys that change results" in note and key in note for note in notes)


def test_values_that_change_nothing(tmp_path: Path) -> None:
    folder = golden("llama-relu-gqa", tmp_path / "model")
    plain, before = converted(folder)
    change(
        folder,
        "config.json",
        is_causal=True,
        attn_logit_softcapping=None,
        residual_multiplier=1.0,
        layer_types=["full_attention"] * 2,
        no_rope_layers=[1, 1],
        rope_interleaved=False,
        rope_scaling={},
        rope_parameters={"rope_theta": 500000.0, "rope_type": "default", "factor": 1.0},
        use_cache=True,
        attention_dropout=0.1,
        pretraining_tp=2,
        id2label={"0": "a"},
        _name_or_path="somewhere",
        num_experts=0,
    )
    assert converted(folder) == (plain, before)


def test_unknown_keys_are_one_note(tmp_path: Path) -> None:
    folder = golden("qwen2-yarn", tmp_path / "model")
    plain, before = converted(folder)
    change(folder, "config.json", **{f"purpose_{i}": i for i in range(7)})
    found, notes = converted(folder)
    assert found == plain
    (note,) = [note for note in notes if note not in before]
    assert "purpose_4 and 2 more" in note and "purpose_5" not in note


def test_keys_inside_other_objects(tmp_path: Path) -> None:
    folder = golden("gemma3", tmp_path / "model")
    cfg = json.loads((folder / "config.json").read_text())
    text = {**cfg, "logit_scale": 0.5}
    outer = {"model_type": "gemma3", "vision_config": {"hidden_size": 8}, "mm_tokens_per_image": 9}
    (folder / "config.json").write_text(json.dumps({**outer, "text_config": text}))
    with pytest.raises(UnsupportedModelError, match=r"text_config\.logit_scale 0\.5"):
        converted(folder)
    del text["logit_scale"]
    (folder / "config.json").write_text(json.dumps({**outer, "text_config": text}))
    _, notes = converted(folder)
    assert not any("keys" in note for note in notes)
    both = {"full_attention": {"rope_theta": 5e5, "low_freq_factor": 1.0}, "sliding_attention": {}}
    text["rope_parameters"], text["rope_scaling"] = both, None
    (folder / "config.json").write_text(json.dumps({**outer, "text_config": text}))
    with pytest.raises(UnsupportedModelError, match=r"full_attention\.low_freq_factor"):
        converted(folder)


def test_two_rotations_that_differ(tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 4.0}
    folder = golden("llama-linear", tmp_path / "model", rope_parameters={**scaling, "factor": 2.0})
    with pytest.raises(ModelFormatError, match="rope_parameters and rope_scaling differ"):
        converted(folder)
    change(folder, "config.json", rope_parameters={**scaling, "rope_theta": 10000.0})
    assert converted(folder)[0] == converted(golden("llama-linear", tmp_path / "b" / "model"))[0]


# ---- Tensors ----


def test_unknown_tensors(tmp_path: Path) -> None:
    folder = golden("llama-relu-gqa", tmp_path / "model")
    plain, before = converted(folder)
    buffers = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32),
        "model.layers.1.self_attn.masked_bias": np.array(-1e9, np.float32),
    }
    with_weights(folder, lambda w: w | buffers)
    assert converted(folder) == (plain, before)
    with_weights(folder, lambda w: w | {"model.layers.0.self_attn.sinks": np.ones(4, np.float32)})
    with pytest.raises(ModelFormatError, match=r"layers\.0\.self_attn\.sinks.*--allow-unknown"):
        converted(folder)
    found, notes = converted(folder, allow_unknown=True)
    assert found == plain and any("self_attn.sinks" in note for note in notes)


@pytest.mark.parametrize("kind", [np.bool_, np.uint8, np.int64])
def test_types_of_tensors_that_nobody_needs(kind: type, tmp_path: Path) -> None:
    folder = golden("gpt2", tmp_path / "model")
    plain, _ = converted(folder)
    mask = np.tril(np.ones((1, 1, 128, 128))).astype(kind)
    with_weights(folder, lambda w: w | {"transformer.h.0.attn.bias": mask})
    assert converted(folder)[0] == plain
    needed = "transformer.h.1.mlp.c_fc.bias"
    with_weights(folder, lambda w: w | {needed: w[needed].astype(kind)})
    with pytest.raises(UnsupportedModelError, match=rf"{needed} has element type"):
        converted(folder)


@pytest.mark.parametrize("kind", [np.bool_, np.uint8, np.int16])
def test_types_in_torch_files(kind: type, tmp_path: Path) -> None:
    folder = golden("gpt2", tmp_path / "model")
    plain, _ = converted(folder)
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.0.attn.bias"] = np.ones((1, 1, 128, 128)).astype(kind)
    (folder / "model.safetensors").unlink()
    checkpoints.save_torch(folder / "pytorch_model.bin", weights)
    assert converted(folder)[0] == plain
    weights["transformer.h.0.ln_1.bias"] = weights["transformer.h.0.ln_1.bias"].astype(kind)
    checkpoints.save_torch(folder / "pytorch_model.bin", weights)
    with pytest.raises(UnsupportedModelError, match=r"ln_1\.bias has element type"):
        converted(folder)


@pytest.mark.parametrize(
    ("name", "root", "prefix"),
    [
        ("llama-silu-tied", "model.", ""),
        ("llama-silu-tied", "model.", "transformer."),
        ("qwen3", "model.", ""),
        ("falcon-7b", "transformer.", ""),
        ("gpt2", "transformer.", "model."),
        ("opt", "model.decoder.", ""),
        ("stablelm", "model.", "language_model.model."),
    ],
)
def test_names_with_another_prefix(name: str, root: str, prefix: str, tmp_path: Path) -> None:
    folder = golden(name, tmp_path / "model")
    plain, _ = converted(folder)

    def renamed(weights: dict[str, Any]) -> dict[str, Any]:
        return {
            prefix + n.removeprefix(root) if n.startswith(root) else n: w
            for n, w in weights.items()
        }

    assert converted(with_weights(folder, renamed))[0] == plain


@pytest.mark.parametrize("said", ["missing", "null"])
def test_a_model_without_a_head(said: str, tmp_path: Path) -> None:
    folder = golden("llama-silu-tied", tmp_path / "model")
    plain, _ = converted(folder)
    cfg = json.loads((folder / "config.json").read_text())
    cfg.pop("tie_word_embeddings")
    cfg |= {"tie_word_embeddings": None} if said == "null" else {}
    (folder / "config.json").write_text(json.dumps(cfg))
    found, notes = converted(folder)
    assert found == plain and any("used as the head" in note for note in notes)
    change(folder, "config.json", tie_word_embeddings=False)
    with pytest.raises(ModelFormatError, match="lacks tensor lm_head.weight"):
        converted(folder)


# ---- Pooling ----


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, 1),
        ({"pooling_mode_cls_token": True}, 2),
        ({"pooling_mode_lasttoken": True, "include_prompt": True}, 3),
        ({"pooling_mode": "lasttoken"}, 3),
        ({"pooling_mode_max_tokens": True}, None),
    ],
)
def test_pooling(settings: dict[str, Any], kind: int | None, tmp_path: Path) -> None:
    folder = golden("qwen3", tmp_path / "model")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    if kind is None:
        with pytest.raises(
            UnsupportedModelError, match="pooling by max_tokens makes other vectors"
        ):
            converted(folder)
    assert keys_of(folder, allow_unknown=kind is None).get("qwen3.pooling_type") == kind


def test_modules_of_embeddings(tmp_path: Path) -> None:
    folder = golden("qwen3", tmp_path / "model")
    (folder / "P").mkdir()
    (folder / "P" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    kind = "sentence_transformers.models."
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": kind + "Transformer"},
        {"idx": 1, "name": "1", "path": "P", "type": kind + "Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    assert keys_of(folder)["qwen3.pooling_type"] == 2
    modules.append({"idx": 2, "name": "2", "path": "2_LayerNorm", "type": kind + "LayerNorm"})
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UnsupportedModelError, match="module LayerNorm changes embeddings"):
        converted(folder)
    assert keys_of(folder, allow_unknown=True)["qwen3.pooling_type"] == 2


# ---- Any key lost or of another type ----

NAMES = sorted(path.parent.name for path in GOLDEN.glob("*/config.json"))
_LLAMA = {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "rope_scaling": None}
_LLAMA |= {"rope_parameters": None, "tie_word_embeddings": False}
# What transformers' configurations take for a missing key, where that is another model.
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "bamboo": _LLAMA,
    "mistral": {**_LLAMA, "sliding_window": 4096},
    "mixtral": {**_LLAMA, "rms_norm_eps": 1e-5, "rope_theta": 1e6},
    "qwen2": {
        **_LLAMA,
        "use_sliding_window": False,
        "max_window_layers": 28,
        "sliding_window": 4096,
    },
    "qwen3": _LLAMA,
    # No layer has intermediate_size.
    "qwen3_moe": {**_LLAMA, "intermediate_size": 16, "norm_topk_prob": False},
    "phi3": {**_LLAMA, "rms_norm_eps": 1e-5, "sliding_window": None},
    "qwen2_moe": {**_LLAMA, "norm_topk_prob": False},
    "olmoe": {**_LLAMA, "rms_norm_eps": 1e-5, "norm_topk_prob": False},
    "qwen3_next": {**_LLAMA, "intermediate_size": 8, "norm_topk_prob": True},
    "qwen3_5_text": {**_LLAMA, "tie_word_embeddings": True},
    "qwen3_5_moe_text": {**_LLAMA, "tie_word_embeddings": True},
    "qwen4_exp_text": {**_LLAMA, "output_gate_type": "silu"},
    "lfm2": {**_LLAMA, "norm_eps": 1e-5, "rope_theta": 1e6, "tie_word_embeddings": True},
    "lfm2_moe": {
        **_LLAMA,
        "norm_eps": 1e-5,
        "rope_theta": 1e6,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": True,
    },
    "lfm3": {
        "norm_eps": 1e-5,
        "sliding_window": 256,
        "layer_types": ["conv", "conv", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_theta": 10000.0},
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": 1e6,
                "partial_rotary_factor": 0.5,
            },
        },
        "tie_word_embeddings": True,
    },
    "olmo_hybrid": {**_LLAMA, "rope_parameters": {"rope_theta": 10000.0}},
    "glm4_moe": {**_LLAMA, "rms_norm_eps": 1e-5, "routed_scaling_factor": 1.0, "n_group": 1},
    "dots1": {
        **_LLAMA,
        "intermediate_size": 8,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
        "sliding_window": 4096,
        "max_window_layers": 62,
    },
    "minimax_m2": {**_LLAMA, "rope_theta": 5e6, "rotary_dim": 12},
    "ernie4_5": {**_LLAMA, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": True},
    "ernie4_5_moe": {
        **_LLAMA,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "tie_word_embeddings": True,
    },
    "hunyuan_v1_dense": {**_LLAMA, "rms_norm_eps": 1e-5},
    "hunyuan_v1_moe": {**_LLAMA, "rms_norm_eps": 1e-5},
    "laguna": {
        **_LLAMA,
        "rope_parameters": {
            "full_attention": {"rope_theta": 500000.0, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        },
        "layer_types": ["full_attention"] * 2,
        "sliding_window": 512,
        "num_attention_heads_per_layer": [4, 4],
        "moe_routed_scaling_factor": 1.0,
    },
    "hy_v3": {
        **_LLAMA,
        "rms_norm_eps": 1e-5,
        "rope_theta": 11158840.0,
        "router_scaling_factor": 2.826,
    },
    "muse_glimmer": {},  # its keys are in text_config
    "granite": {**_LLAMA, **GRANITE},
    "granitemoeshared": {**_LLAMA, **GRANITE},
    "phimoe": {
        **_LLAMA,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "router_jitter_noise": 0.01,
    },
    **dict.fromkeys(("apertus", "ministral3", "nemotron", "olmo2", "seed_oss"), _LLAMA),
    "arcee": {**_LLAMA, "rms_norm_eps": 1e-5, "hidden_act": "relu2"},
    "jais2": {**_LLAMA, "layer_norm_eps": 1e-5, "hidden_act": "relu2"},
    "nanochat": {
        **_LLAMA,
        "hidden_act": "relu2",
        "attention_bias": False,
        "final_logit_softcapping": 15.0,
    },
    "bitnet": {**_LLAMA, "rms_norm_eps": 1e-5, "rope_theta": 5e5},
    "glm4": {**_LLAMA, "rms_norm_eps": 1.5625e-07},
    "smollm3": {**_LLAMA, "no_rope_layers": None, "rope_theta": 2e6},
    "gemma": {**_LLAMA, "hidden_act": "gelu_pytorch_tanh"},
    "gemma2": {
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3_text": {
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_scaling": None,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "sliding_window_pattern": 6,
    },
    "falcon": {"activation": "gelu"},
    "gpt2": {},
    "gpt_oss": {
        **_LLAMA,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "opt": {},
    "starcoder2": {**_LLAMA, "sliding_window": None, "tie_word_embeddings": True},
    "stablelm": {"partial_rotary_factor": 0.25},
    "deepseek_v2": {**_LLAMA, "routed_scaling_factor": 1.0, "topk_method": "greedy"},
    "deepseek_v3": {**_LLAMA, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5},
    "kimi_linear": {**_LLAMA, "rms_norm_eps": 1e-5, "routed_scaling_factor": 2.446},
    "bailing_hybrid": {
        **_LLAMA,
        "rope_theta": 6e6,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "kda_lower_bound": -5.0,
    },
    # No layer has intermediate_size.
    "mistral4": {
        **_LLAMA,
        "intermediate_size": 8,
        "rope_parameters": {
            "type": "yarn",
            "rope_theta": 10000.0,
            "factor": 128.0,
            "original_max_position_embeddings": 8192,
            "mscale_all_dim": 1.0,
            "mscale": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
    "olmo3": {
        **_LLAMA,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "sliding_window": 4096,
        "layer_types": ["sliding_attention"] * 2,
    },
    "exaone4": {
        **_LLAMA,
        "rms_norm_eps": 1e-5,
        "sliding_window": 4096,
        "layer_types": ["sliding_attention"] * 2,
    },
    "cohere2": {
        **_LLAMA,
        "logit_scale": 0.0625,
        "layer_norm_eps": 1e-5,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "tie_word_embeddings": True,
    },
    "gemma4_text": {
        "rms_norm_eps": 1e-6,
        "sliding_window": 512,
        "final_logit_softcapping": None,
        "num_kv_shared_layers": 0,
    },
}
DEFAULTS |= {name: {**_LLAMA, **keys} for name, keys in WINDOWED.items()}
# What null means beside that.
NULLS: dict[str, dict[str, dict[str, Any]]] = {
    "exaone4": {
        "sliding_window": {"sliding_window": None, "layer_types": ["full_attention"] * 2},
    },
    "exaone_moe": {
        "sliding_window": {"sliding_window": None, "layer_types": ["full_attention"] * 2},
    },
    "mimo_v2_flash": {"attention_value_scale": {"attention_value_scale": 1.0}},
}


def outcome(folder: Path) -> bytes | None:
    """The GGUF, or None if it is refused with one sentence."""
    try:
        return converted(folder)[0]
    except ModelFormatError as error:
        assert "\n" not in str(error) and str(folder) in str(error)
        return None


def rewritten(folder: Path, cfg: dict[str, Any]) -> bytes | None:
    (folder / "config.json").write_text(json.dumps(cfg))
    return outcome(folder)


def variants(value: Any) -> list[Any]:
    found = [None, str(value), [value], {"a": value}, True]
    if isinstance(value, int | float) and not isinstance(value, bool):
        found += [float(value), -value, 0, value * 1e300, float("nan")]
    return [v for v in found if type(v) is not type(value) or v != value]


def check_family(name: str, folder: Path, least: int = 1) -> None:
    """Every least-th change of every key of a configuration: the same model, or a sentence."""
    golden(name, folder)
    cfg = json.loads((folder / "config.json").read_text())
    plain = rewritten(folder, cfg)
    assert plain is not None
    defaults = DEFAULTS[cfg["model_type"]]
    turn = sum(map(ord, name))
    for key, value in cfg.items():
        if key in ("model_type", "max_position_embeddings", "torch_dtype"):
            continue
        lost = {k: v for k, v in cfg.items() if k != key}
        for changed in ("lost", *variants(value)):
            turn += 1
            if turn % least:
                continue
            # Other values that are right in themselves are other models.
            if key in ("bos_token_id", "eos_token_id", "pad_token_id", "architectures"):
                rewritten(folder, {**cfg, key: changed} if changed != "lost" else lost)
                continue
            if changed is True and isinstance(value, bool):
                continue
            got = rewritten(folder, lost if changed == "lost" else {**cfg, key: changed})
            allowed = [None, plain]
            if (changed == "lost" or changed is None) and key in defaults:
                allowed.append(rewritten(folder, {**cfg, key: defaults[key]}))
            if changed is None and key in NULLS.get(cfg["model_type"], {}):
                allowed.append(rewritten(folder, {**cfg, **NULLS[cfg["model_type"]][key]}))
            if changed is None and key == "sliding_window":
                allowed.append(rewritten(folder, {**cfg, key: 1 << 20}))
            if changed == 0 and key.endswith("softcapping"):
                continue  # 0 and null: no cap
            if changed is None and key.endswith("softcapping"):
                continue
            if changed in (0, 0.0) and key == "max_window_layers":
                continue
            assert got in allowed, (name, key, changed)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_key_lost_or_of_another_type(name: str, tmp_path: Path) -> None:
    check_family(name, tmp_path / "model")


@pytest.mark.parametrize("name", ["mixtral", "gemma2", "stablelm", "falcon-40b", "llama-linear"])
def test_some_keys_lost_or_of_another_type(name: str, tmp_path: Path) -> None:
    check_family(name, tmp_path / "model", least=17)
