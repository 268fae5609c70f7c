"""Families with Mamba-2 layers: Nemotron-H and Nemotron 3, Granite 4 and Falcon-H1."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import mamba_models as models
import numpy as np
import pytest
from families import quiet, tensors_of
from gguf_files import changed, raw
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf
from reference import relative_error
from safetensors.numpy import load_file, save_file
from test_family_formats import compare_with_llama_cpp

from powerinfer_cpp import Llama, ModelFormatError, UnsupportedModelError

TOKENS = [1, *(int(t) for t in np.random.default_rng(0).integers(3, 300, 69))]
FIELDS: dict[str, Any] = {"n_ctx": 128, "verbose": False, "type_k": 0, "type_v": 0}
ROUNDING = 2e-5
# With neuron rows.
NEMOTRON = [name for name in models.MODELS if "nemotron" in name]


def scores(path: Path, at_once: int = 128, **options: Any) -> np.ndarray:
    """Logits of every token, float32, of `at_once` tokens per call."""
    with Llama(path, logits_all=True, **FIELDS, **options) as llm:
        for i in range(0, len(TOKENS), at_once):
            llm.eval(TOKENS[i : i + at_once])
        return llm.scores[: len(TOKENS)].copy()


def made(folder: Path, out: Path, **options: Any) -> Path:
    return convert(folder, outfile=out, log=quiet, **{"outtype": "f32", **options})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dense file of each model; its checkpoint is beside it, in a folder of its name."""
    folder = tmp_path_factory.mktemp("mamba")
    found = {}
    for seed, name in enumerate(models.MODELS):
        checkpoint = models.checkpoint(name, folder / name, seed)
        found[name] = made(checkpoint, folder / f"{name}.gguf", dense=True)
    return found


@pytest.fixture(scope="module")
def expected(files: dict[str, Path]) -> dict[str, np.ndarray]:
    return {
        name: models.logits(*models.read(path.with_suffix("")), TOKENS)
        for name, path in files.items()
    }


# ---- Logits ----


@pytest.mark.parametrize("name", models.MODELS)
def test_logits(name: str, files: dict[str, Path], expected: dict[str, np.ndarray]) -> None:
    found = scores(files[name])
    assert relative_error(found, expected[name]) < ROUNDING
    for options in ({"at_once": 1}, {"at_once": 7}, {"n_threads": 2}, {"n_ubatch": 3}):
        assert np.array_equal(found, scores(files[name], **options)), options


GENERIC = """
import json, sys
import numpy as np
from powerinfer_cpp import Llama
for model, tokens, out in json.loads(sys.argv[1]):
    with Llama(model, n_ctx=128, logits_all=True, verbose=False, type_k=0, type_v=0) as llm:
        llm.eval(tokens)
        np.save(out, llm.scores[: len(tokens)])
"""


def test_generic_kernels(
    files: dict[str, Path], expected: dict[str, np.ndarray], tmp_path: Path
) -> None:
    cases = [(str(path), TOKENS, str(tmp_path / f"{name}.npy")) for name, path in files.items()]
    command = [sys.executable, "-c", GENERIC, json.dumps(cases)]
    subprocess.run(command, check=True, env={**os.environ, "GGML_ISA": "generic"})
    for name, want in expected.items():
        assert relative_error(np.load(tmp_path / f"{name}.npy"), want) < ROUNDING, name


@pytest.mark.parametrize("name", ["nemotron", "nemotron-moe", "granite-moe", "falcon"])
def test_sequences_beside_each_other(name: str, files: dict[str, Path]) -> None:
    """A second text, and the first once more, leave no trace."""
    want = scores(files[name])
    with Llama(files[name], logits_all=True, **FIELDS) as llm:
        llm.eval(TOKENS[:20])
        llm.reset()
        llm.eval(TOKENS[30:50])
        llm.reset()
        llm.eval(TOKENS)
        assert np.array_equal(llm.scores[: len(TOKENS)], want)


# What differs from MODELS, where llama.cpp refuses a file or computes otherwise: it rotates in
# mixtures of granitemoe whatever they say.
BESIDE: dict[str, dict[str, Any]] = {
    "nemotron": {},
    "nemotron-wide": {"conv_kernel": 4, "use_conv_bias": True, "ssm_state_size": 32},
    "nemotron-moe": {},
    "nemotron-narrow": {},
    "granite": {},
    "granite-moe": {"mamba_conv_bias": True},
    "granite-attention": {},
    "granite-attention-moe": {"position_embedding_type": "rope"},
    "falcon": {},
    "falcon-normed": {},
}


@pytest.mark.peer("llama_cpp")
@pytest.mark.parametrize("name", BESIDE)
def test_llama_cpp_computes_the_same(name: str, tmp_path: Path) -> None:
    folder = models.checkpoint(name, tmp_path / "m", **BESIDE[name])
    compare_with_llama_cpp(made(folder, tmp_path / "m.gguf", dense=True))


# ---- Neuron rows ----


@pytest.mark.parametrize("kind", ["rows", "bundles"])
@pytest.mark.parametrize("name", NEMOTRON)
def test_exact_mode_is_the_model(
    name: str, kind: str, files: dict[str, Path], expected: dict[str, np.ndarray], tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    if kind == "rows":
        convert(files[name], outfile=path, log=quiet)
    else:
        made(files[name].with_suffix(""), path, bundle=True)
    names = "".join(raw(path))
    assert ("ffn_down_t" if kind == "rows" else "ffn_bundle") in names
    for sparse in ("off", "exact"):
        found = scores(path, sparse=sparse)
        assert relative_error(found, expected[name]) < ROUNDING
        for options in ({"at_once": 1}, {"at_once": 5}, {"n_threads": 2}):
            assert np.array_equal(found, scores(path, sparse=sparse, **options))
    back = convert(path, dense=True, outfile=tmp_path / "back.gguf", log=quiet)
    assert np.array_equal(scores(back), scores(files[name]))


@pytest.mark.parametrize("name", NEMOTRON)
def test_some_neurons_are_zero(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    path = convert(files[name], outfile=tmp_path / "rows.gguf", log=quiet)
    with Llama(path, sparse="exact", **FIELDS) as llm:
        llm.create_completion(TOKENS[:9], max_tokens=12, logit_bias={2: -100})
        fired = llm.stats()["share_fired"]
    for share, kind in zip(fired, models.kinds_of(models.MODELS[name]), strict=True):
        assert 0 < share < 1 if kind in ("mlp", "moe") else share == 0


@pytest.mark.parametrize("name", ["nemotron-moe", "nemotron-narrow", "granite-moe"])
def test_experts_on_the_disk(name: str, tmp_path: Path) -> None:
    """The same bits with less memory than the weights take."""
    wide = {"n_routed_experts": 32, "moe_intermediate_size": 1024}
    if name == "granite-moe":
        wide = {"num_local_experts": 40, "intermediate_size": 768}
    path = made(models.checkpoint(name, tmp_path / "m", **wide), tmp_path / "m.gguf", dense=True)
    small = {"n_batch": 16, "n_ubatch": 16}
    want = scores(path, at_once=16, **small)
    budget = (path.stat().st_size * 0.75 + 2e6) / (1 << 30)
    with Llama(path, ram_budget=budget, **FIELDS, **small) as llm:
        assert sum(llm.plan()["storage"].values()) > 0
    for at_once in (1, 16):
        assert np.array_equal(want, scores(path, at_once, ram_budget=budget, **small))


def test_narrow_experts(files: dict[str, Path], tmp_path: Path) -> None:
    dense = files["nemotron-narrow"]
    assert tensors_of(dense)["blk.2.ffn_latent_down.weight"].shape == (20, 32)
    path = changed(dense, tmp_path / "b.gguf", keys={"nemotron_h_moe.moe_latent_size": 33})
    with pytest.raises(ModelFormatError, match="moe_latent_size"):
        scores(path)


# ---- Files ----


def keys_of(path: Path) -> dict[str, Any]:
    with Gguf(path) as file:
        return {key: file.value(key) for key in file.metadata}


def test_keys_and_names(files: dict[str, Path]) -> None:
    """As llama.cpp's converter writes them."""
    keys = keys_of(files["nemotron-groups"])
    assert keys["general.architecture"] == "nemotron_h_moe"
    arch = "nemotron_h_moe"
    assert keys[f"{arch}.feed_forward_length"] == [0, 24, 0, 40, 24]
    assert keys[f"{arch}.attention.head_count_kv"] == [0, 0, 1, 0, 0]
    assert keys[f"{arch}.ssm.inner_size"] == 64 and keys[f"{arch}.ssm.time_step_rank"] == 4
    assert keys[f"{arch}.ssm.group_count"] == 1 and keys[f"{arch}.ssm.state_size"] == 8
    assert keys[f"{arch}.expert_group_count"] == 3
    assert keys[f"{arch}.expert_group_used_count"] == 2
    assert f"{arch}.leading_dense_block_count" not in keys
    assert keys_of(files["nemotron"])["general.architecture"] == "nemotron_h"
    shapes = {name: value.shape for name, value in tensors_of(files["nemotron-wide"]).items()}
    assert shapes["blk.1.ssm_in.weight"] == (80 + 80 + 2 * 66 + 4, 32)
    assert shapes["blk.1.ssm_conv1d.weight"] == (80 + 2 * 66, 3)
    assert shapes["blk.1.ssm_a"] == shapes["blk.1.ssm_d"] == (4, 1)
    assert shapes["blk.1.ssm_norm.weight"] == (2, 40)
    assert "blk.1.ssm_conv1d.bias" not in shapes
    for name, arch in (
        ("granite", "granitehybrid"),
        ("granite-moe", "granitehybrid"),
        ("granite-attention", "granite"),
        ("granite-attention-moe", "granitemoe"),
    ):
        keys = keys_of(files[name])
        assert keys["general.architecture"] == arch
        turns = keys.get(f"{arch}.rope.scaling.finetuned", True)
        assert turns == (models.MODELS[name]["position_embedding_type"] == "rope")
    assert keys_of(files["granite"])["granitehybrid.attention.head_count_kv"] == [0, 1, 0, 0]
    names = tensors_of(files["falcon"])
    assert "blk.0.ffn_norm" in names and "blk.0.ssm_norm.weight" not in names


@pytest.mark.parametrize("outtype", ["f16", "q8_0"])
def test_small_tensors_stay_f32(outtype: str, files: dict[str, Path], tmp_path: Path) -> None:
    folder = files["granite-moe"].with_suffix("")
    for source in (folder, files["granite-moe"]):
        path = convert(source, outtype=outtype, dense=True, outfile=tmp_path / "a", log=quiet)
        found = {name: kind for name, (kind, *_) in raw(path).items() if ".ssm_" in name}
        assert found.pop("blk.0.ssm_in.weight") == outtype.upper()
        matrices = re.compile(r".+\.ssm_(in|out)\.weight")
        assert {found[name] for name in found if not matrices.fullmatch(name)} == {"F32"}


def test_norm_with_a_usual_name(files: dict[str, Path], tmp_path: Path) -> None:
    """Falcon-H1's second norm also with an end of its name."""

    norms = {n: v for n, v in tensors_of(files["falcon"]).items() if n.endswith(".ffn_norm")}
    path = changed(
        files["falcon"],
        tmp_path / "a.gguf",
        tensors=lambda name, data: None if name in norms else data,
        added={f"{name}.weight": value for name, value in norms.items()},
    )
    assert np.array_equal(scores(path), scores(files["falcon"]))


def test_kinds_by_tensors(files: dict[str, Path], tmp_path: Path) -> None:
    """llama.cpp's converter does not know newer names of layers, and writes no key heads."""
    key = "granitehybrid.attention.head_count_kv"
    path = changed(files["granite-moe"], tmp_path / "a.gguf", keys={key: [0, 0, 0]})
    assert np.array_equal(scores(path), scores(files["granite-moe"]))


def test_drafting_layers_are_left_out(files: dict[str, Path], tmp_path: Path) -> None:
    folder = models.checkpoint("nemotron-moe", tmp_path / "m", num_nextn_predict_layers=1)
    weights = load_file(folder / "model.safetensors")
    weights["mtp.layers.0.eh_proj.weight"] = np.ones((32, 64), np.float32)
    save_file(weights, folder / "model.safetensors")
    notes: list[str] = []
    path = convert(folder, outtype="f32", outfile=tmp_path / "a.gguf", log=notes.append)
    assert any("mtp" in note for note in notes)
    assert not any("eh_proj" in name for name in raw(path))


def test_a_head_of_its_own(files: dict[str, Path], tmp_path: Path) -> None:
    """transformers ties no Nemotron, so a head counts although config.json calls it tied."""
    folder = files["nemotron"].with_suffix("")
    other = tmp_path / "nemotron"
    shutil.copytree(folder, other)
    cfg = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (other / "config.json").write_text(json.dumps(cfg))
    path = made(other, tmp_path / "nemotron.gguf", dense=True)
    assert path.read_bytes() == files["nemotron"].read_bytes()


# Of published checkpoints, beyond those that MODELS has.
PUBLISHED: dict[str, dict[str, Any]] = {
    "nemotron": {
        "num_hidden_layers": 4,
        "chunk_size": 128,
        "expand": 2,
        "hidden_dropout": 0.0,
        "mamba_ssm_cache_dtype": "float32",
        "norm_eps": 1e-5,
        "num_logits_to_keep": 1,
        "partial_rotary_factor": 1.0,
        "rescale_prenorm_residual": True,
        "residual_in_fp32": False,
        "rope_theta": 10000,
        "sliding_window": None,
        "time_step_floor": 0.0001,
        "time_step_max": 0.1,
        "time_step_min": 0.001,
        "use_mamba_kernels": True,
    },
    "granite": {
        "init_method": "mup",
        "mamba_chunk_size": 256,
        "mamba_expand": 2,
        "normalization_function": "rmsnorm",
        "rope_scaling": None,
        "rope_theta": 10000,
        "router_aux_loss_coef": 0.01,
    },
    "falcon": {
        "mamba_chunk_size": 256,
        "mamba_d_ssm": 48,
        "mamba_expand": 2,
        "mamba_use_mlp": True,
        "mlp_expansion_factor": 8,
        "num_logits_to_keep": 1,
        "time_step_rank": "auto",
    },
}
PUBLISHED["nemotron-moe"] = {**PUBLISHED["nemotron"], "moe_shared_expert_overlap": True}


@pytest.mark.parametrize("name", PUBLISHED)
def test_keys_of_published_checkpoints(name: str, tmp_path: Path) -> None:
    notes: list[list[str]] = [[], []]
    for i, keys in enumerate(({}, PUBLISHED[name])):
        folder = models.checkpoint(name, tmp_path / str(i) / "m", 0, **keys)
        convert(folder, outfile=tmp_path / f"{i}.gguf", log=notes[i].append)
    assert notes[0] == notes[1] and not any("key" in note for note in notes[0])
    assert (tmp_path / "0.gguf").read_bytes() == (tmp_path / "1.gguf").read_bytes()


# ---- What is refused ----

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("nemotron", {"time_step_limit": [0.001, 0.1]}, "time_step_limit"),
    ("nemotron", {"use_bias": True}, "use_bias"),
    ("nemotron", {"mamba_hidden_act": "gelu"}, "mamba_hidden_act"),
    ("nemotron", {"mlp_hidden_act": "silu"}, "silu"),
    ("nemotron", {"hybrid_override_pattern": "M-*"}, "not explain"),
    ("nemotron", {"hybrid_override_pattern": "M-*X"}, "'X'"),
    ("nemotron", {"n_groups": 2}, "groups"),
    ("nemotron-moe", {"scoring_func": "softmax"}, "scoring_func"),
    ("granite", {"layer_types": ["mamba", "mlp", "mamba", "mamba"]}, "'mlp'"),
    ("granite", {"position_embedding_type": "alibi"}, "'alibi'"),
    ("falcon", {"projectors_bias": True}, "biases"),
    ("falcon", {"mamba_rms_norm": True, "mamba_norm_before_gate": True}, "before gates"),
    ("falcon", {"mamba_d_ssm": 40}, "mamba_d_ssm"),
    ("falcon", {"ssm_multipliers": [1.0, 2.0]}, "ssm_multipliers"),
    ("falcon", {"mlp_multipliers": [1.0, "a"]}, "mlp_multipliers"),
]


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED)
def test_checkpoints_that_are_refused(
    name: str, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = models.checkpoint(name, tmp_path / "m")
    cfg = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**cfg, **changes}))
    with pytest.raises((ModelFormatError, UnsupportedModelError), match=words):
        made(folder, tmp_path / "a.gguf")


@pytest.mark.parametrize("limit", [[0.0, "Infinity"], [0, {"__float__": "Infinity"}], None])
def test_infinity_in_other_forms(limit: Any, files: dict[str, Path], tmp_path: Path) -> None:
    folder = models.checkpoint("nemotron", tmp_path / "nemotron", 0, time_step_limit=limit)
    path = made(folder, tmp_path / "nemotron.gguf", dense=True)
    assert path.read_bytes() == files["nemotron"].read_bytes()


BAD_KEYS: list[tuple[str, Any]] = [
    ("ssm.inner_size", 25),
    ("ssm.inner_size", 0),
    ("ssm.time_step_rank", 0),
    ("ssm.time_step_rank", 5),
    ("ssm.group_count", 2),
    ("ssm.group_count", 1 << 30),
    ("ssm.state_size", 0),
    ("ssm.state_size", (1 << 31) - 1),
    ("ssm.conv_kernel", 1),
    ("ssm.conv_kernel", 17),
    ("ssm.conv_kernel", None),
]


@pytest.mark.parametrize(("key", "value"), BAD_KEYS)
def test_bad_sizes(key: str, value: Any, files: dict[str, Path], tmp_path: Path) -> None:
    path = changed(files["nemotron"], tmp_path / "a.gguf", keys={f"nemotron_h.{key}": value})
    with pytest.raises(ModelFormatError, match=r"ssm[._]"):
        scores(path)
