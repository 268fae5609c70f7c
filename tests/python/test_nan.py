"""Models that compute NaN: an error says so, and nothing is told as if all were well."""

from __future__ import annotations

from pathlib import Path

import checkpoints
import numpy as np
import pytest
import tiny
from families import golden, logits, quiet
from gguf_files import changed
from powerinfer_cpp.convert import convert

from powerinfer_cpp import Llama, LlamaGrammar


def spoilt(folder: Path, tensor: str) -> Path:
    """A mixture with one NaN in a tensor."""
    golden("mixtral", folder / "model")
    path = convert(folder / "model", outfile=folder / "good.gguf", outtype="f32", log=quiet)

    def spoil(name: str, data: np.ndarray) -> np.ndarray:
        if name == tensor:
            data = data.copy()
            data.reshape(-1)[0] = np.nan
        return data

    found = changed(path, folder / "bad.gguf", tensors=spoil)
    assert not np.isnan(logits(path)).any()
    return found


def damaged(path: Path, tensor: str, at: int) -> Path:
    """A copy with a NaN in one tensor, stored as F32."""

    def damage(name: str, data: np.ndarray) -> np.ndarray:
        if name == tensor:
            data = data.copy()
            data.reshape(-1)[at] = np.nan
        return data

    return changed(path, path.with_suffix(".bad.gguf"), tensors=damage)


@pytest.mark.parametrize("dense", [True, False], ids=["matrices", "neurons"])
@pytest.mark.parametrize("kind", ["relu", "drelu", "relu2"])
@pytest.mark.parametrize("matrix", ["gate", "up"])
def test_a_damaged_row_of_a_neuron(matrix: str, kind: str, dense: bool, tmp_path: Path) -> None:
    """It must not pass for a neuron that does not fire."""
    cfg = checkpoints.config(hidden_act="silu" if dense else "relu")
    checkpoints.save(tmp_path / "model", cfg, checkpoints.weights(cfg))
    options = {"outtype": "f32", "log": quiet, "dense": dense, "activation": kind}
    path = convert(tmp_path / "model", outfile=tmp_path / "good.gguf", **options)
    for sparse in ("off",) if dense else ("off", "exact"):
        assert not np.isnan(logits(path, sparse=sparse)).any()
        bad = damaged(path, f"blk.1.ffn_{matrix}.weight", at=7 * 64 + 5)
        computed = np.isnan(logits(bad, sparse=sparse)).all(axis=1)
        # Where its gate is 0, the up row of a neuron is not needed.
        assert computed.all() if matrix == "gate" or dense else computed.any()


def test_a_damaged_predictor_hides_no_neuron(tmp_path: Path) -> None:
    path = tiny.noisy(tmp_path)
    bad = damaged(path, "blk.0.fc1.weight", at=3)
    bad = damaged(bad, "blk.1.fc1.weight", at=3)
    whole = logits(path, sparse="exact")
    assert not np.array_equal(logits(path, sparse="predictor"), whole)
    assert np.array_equal(logits(bad, sparse="predictor"), whole)


@pytest.mark.parametrize("tensor", ["output_norm.weight", "blk.0.ffn_gate_inp.weight"])
def test_a_model_that_computes_nan(tensor: str, tmp_path: Path) -> None:
    """A router that computes NaN chooses no experts; its tokens must not pass for computed."""
    path = spoilt(tmp_path, tensor)
    assert np.isnan(logits(path)).all()
    with Llama(path, n_ctx=64, verbose=False) as llm:
        for options in (
            {"temperature": 0},
            {"temperature": 1.0, "repeat_penalty": 1.1},
            {"logit_bias": {5: 3.0}},
            {"grammar": LlamaGrammar.from_string('root ::= "a"+')},
        ):
            with pytest.raises(ValueError, match="no token can be chosen: the logits are NaN"):
                llm("the quick brown fox", max_tokens=4, **options)
