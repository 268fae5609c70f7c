"""Checkpoints that were trained to be sparse: ProSparse and Turbo Sparse."""

from __future__ import annotations

import json
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import reference
from families import GOLDEN, TOKENS, golden, logits, quiet, turbo_mixtral
from gguf_files import raw, values
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf
from safetensors.numpy import load_file, save_file

from powerinfer_cpp import Llama, ModelFormatError, UnsupportedModelError

PROSPARSE = {"model_type": "sparsellama", "architectures": ["SparseLlamaForCausalLM"]}


def test_prosparse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FATReLU is part of the model in every mode, up to its threshold a gate counts as 0."""
    cfg = checkpoints.config(hidden_act="fatrelu", hidden_act_param=0.6, **PROSPARSE)
    weights = checkpoints.weights(cfg)
    folder = checkpoints.save(tmp_path / "model", cfg, weights)
    path = convert(folder, outtype="f32", outfile=tmp_path / "out.gguf", log=quiet)
    keys = Gguf(path).metadata
    assert keys["general.architecture"] == "llama"
    assert keys["powerinfer.ffn.activation"] == "relu"
    assert keys["powerinfer.ffn.threshold"] == np.float32(0.6)
    assert "blk.1.ffn_down_t.weight" in raw(path)
    monkeypatch.setitem(reference.ACTIVATIONS, "fatrelu", lambda g, u: np.where(g > 0.6, g, 0) * u)
    want = reference.logits(cfg, weights, TOKENS, "fatrelu")
    assert reference.relative_error(want, reference.logits(cfg, weights, TOKENS, "relu")) > 0.01
    for sparse in ("off", "exact", "auto"):
        with Llama(
            path, n_ctx=64, logits_all=True, verbose=False, sparse=sparse, type_k=0, type_v=0
        ) as llm:
            llm.eval(TOKENS)
            assert reference.relative_error(llm.scores[: len(TOKENS)], want) < 2e-5
    with pytest.raises(UnsupportedModelError, match="FATReLU threshold in a dense GGUF"):
        convert(folder, dense=True, outfile=tmp_path / "dense.gguf", log=quiet)
    plain = convert(folder, activation="relu", outfile=tmp_path / "plain.gguf", log=quiet)
    assert "powerinfer.ffn.threshold" not in Gguf(plain).metadata


@pytest.mark.parametrize("value", ["absent", 0, -1, float("nan"), float("inf"), "0.01", True])
def test_a_threshold_that_is_none(value: object, tmp_path: Path) -> None:
    cfg = checkpoints.config(hidden_act="fatrelu", hidden_act_param=value, **PROSPARSE)
    folder = checkpoints.save(tmp_path / "model", cfg, checkpoints.weights(checkpoints.config()))
    if value == "absent":
        (folder / "config.json").write_text(
            json.dumps({k: v for k, v in cfg.items() if k != "hidden_act_param"})
        )
    with pytest.raises(ModelFormatError, match=r"config.json: .*hidden_act_param"):
        convert(folder, outfile=tmp_path / "out.gguf", log=quiet)


def test_other_checkpoints_of_that_name(tmp_path: Path) -> None:
    """A SparseLlamaForCausalLM other than ProSparse is refused: its code is unknown."""
    folder = checkpoints.model(tmp_path / "model", **{**PROSPARSE, "model_type": "sparse_llama"})
    with pytest.raises(UnsupportedModelError, match="--activation reads it as a Llama"):
        convert(folder, outfile=tmp_path / "out.gguf", log=quiet)
    path = convert(folder, activation="relu", outtype="f32", outfile=tmp_path / "a", log=quiet)
    cfg = checkpoints.config()
    want = reference.logits(cfg, checkpoints.weights(cfg), TOKENS, "relu")
    assert reference.relative_error(logits(path), want) < 2e-5


def test_turbo_sparse_mixtral(tmp_path: Path) -> None:
    folder = turbo_mixtral(tmp_path / "model")
    path = convert(folder, outtype="f32", outfile=tmp_path / "out.gguf", log=quiet)
    keys, found = Gguf(path).metadata, values(path)
    assert keys["powerinfer.ffn.activation"] == "drelu" and keys["llama.expert_count"] == 4
    assert keys["powerinfer.predictor.input"] == "normed"
    theirs = load_file(folder / "model.safetensors")
    for part in ("fc1", "fc2"):
        name = f"model.layers.1.block_sparse_moe.experts.{{}}.predictor.{part}.weight"
        want = np.stack([theirs[name.format(e)] for e in range(4)])
        assert np.array_equal(found[f"blk.1.{part}_exps.weight"], want)
    # dReLU on Mixtral's own tensors, which are those of another test's comparison.
    plain = golden("mixtral", tmp_path / "plain")
    dense = convert(plain, activation="drelu", outtype="f32", outfile=tmp_path / "d", log=quiet)
    ours = convert(folder, dense=True, outtype="f32", outfile=tmp_path / "o", log=quiet)
    assert raw(ours) == raw(dense) and np.array_equal(logits(ours), logits(dense))
    # The prediction matters; with all neurons predicted, and without predictors, it is the model.
    errors = []
    for options in (
        {"sparse": "exact"},
        {"sparse": "predictor", "sparse_threshold": -1e30},
        {"sparse": "predictor"},
    ):
        with Llama(
            path, n_ctx=64, logits_all=True, verbose=False, type_k=0, type_v=0, **options
        ) as llm:
            llm.eval(TOKENS)
            errors.append(reference.relative_error(llm.scores[: len(TOKENS)], logits(dense)))
    assert max(errors[:2]) < 2e-5 and errors[2] > 0.01
    turbo_mixtral(tmp_path / "ranks", (8, 8, 4, 8))
    with pytest.raises(UnsupportedModelError, match="fc1_exps.weight with ranks that differ"):
        convert(tmp_path / "ranks", outfile=tmp_path / "out.gguf", log=quiet)


def test_turbo_sparse_mistral(tmp_path: Path) -> None:
    """A Bamboo that holds its own predictors; those of a folder replace them."""
    folder = golden("bamboo", tmp_path / "model")
    weights, rng = load_file(folder / "model.safetensors"), np.random.default_rng(0)
    cfg = json.loads((folder / "config.json").read_text())
    width, n_ff = cfg["hidden_size"], cfg["intermediate_size"]
    for part, shape in (("fc1", (8, width)), ("fc2", (n_ff, 8))):
        name = f"model.layers.0.mlp.predictor.{part}.weight"
        weights[name] = rng.standard_normal(shape).astype(np.float32)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ModelFormatError, match="lacks tensor model.layers.1.mlp.predictor.fc1"):
        convert(folder, outfile=tmp_path / "out.gguf", log=quiet)
    for layer in range(1, cfg["num_hidden_layers"]):
        for part in ("fc1", "fc2"):
            name = f"model.layers.{{}}.mlp.predictor.{part}.weight"
            weights[name.format(layer)] = weights[name.format(0)] + np.float32(layer)
    save_file(weights, folder / "model.safetensors")
    path = convert(folder, outtype="f32", outfile=tmp_path / "out.gguf", log=quiet)
    found, keys = values(path), Gguf(path).metadata
    assert keys["powerinfer.ffn.activation"] == "drelu"
    assert keys["powerinfer.predictor.input"] == "normed"
    for part in ("fc1", "fc2"):
        want = weights[f"model.layers.1.mlp.predictor.{part}.weight"]
        assert np.array_equal(found[f"blk.1.{part}.weight"], want)
    expected = np.load(GOLDEN / "bamboo" / "expected.npz")
    tokens = [int(t) for t in expected["tokens"]]
    with Llama(
        path, n_ctx=128, logits_all=True, verbose=False, sparse="exact", type_k=0, type_v=0
    ) as llm:
        llm.eval(tokens)
        ours = llm.scores[: len(tokens)]
    assert reference.relative_error(ours, expected["logits"].astype(np.float64)) < 2e-5
    checkpoints.predictors(tmp_path / "p", cfg, ranks=(16,) * cfg["num_hidden_layers"])
    other = convert(folder, tmp_path / "p", outfile=tmp_path / "other.gguf", log=quiet)
    assert raw(other)["blk.0.fc1.weight"][1] == (width, 16)
    assert "powerinfer.predictor.input" not in Gguf(other).metadata
