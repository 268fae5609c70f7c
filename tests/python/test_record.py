"""The engine's recordings of its feed-forward blocks, against independent forward passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import reference
from families import TOKENS, quiet, smallthinker
from powerinfer_cpp.convert import convert
from powerinfer_cpp.convert.embed import embed
from powerinfer_cpp.convert.writer import float32, string
from powerinfer_cpp.core.gguf import Gguf

from powerinfer_cpp import Llama

IDS = [1, 40, 41, 260, 270, 33, 280, 299, 7, 7, 150, 45]


def opened(path: Path, **options: Any) -> Llama:
    """With exact keys and values."""
    options = {"record": "fired+input", "sparse": "exact", "type_k": 0, "type_v": 0, **options}
    return Llama(str(path), n_ctx=64, verbose=False, **options)


def recorded(path: Path, ids: list[int] = IDS, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    with opened(path, **options) as llm:
        llm.eval(ids)
        return llm.activations(), llm.ffn_inputs()


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


@pytest.mark.parametrize("activation", ["relu", "drelu"])
@pytest.mark.parametrize("neuron_aware", [False, True])
@pytest.mark.parametrize("sparse", ["off", "exact"])
def test_against_a_numpy_forward(
    activation: str, neuron_aware: bool, sparse: str, tmp_path: Path
) -> None:
    cfg = checkpoints.config(hidden_act="relu", mlp_bias=True)
    weights = checkpoints.weights(cfg)
    folder = checkpoints.save(tmp_path / "model", cfg, weights)
    if neuron_aware:
        checkpoints.predictors(tmp_path / "predictor", cfg)
    path = convert(
        folder,
        tmp_path / "predictor" if neuron_aware else None,
        outfile=tmp_path / "out.gguf",
        outtype="f32",
        activation=activation,
        log=quiet,
    )
    blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    reference.logits(cfg, weights, IDS, activation, blocks)
    fired, inputs = recorded(path, sparse=sparse)
    expected = np.array([h != 0 for _, _, h in blocks])
    assert fired.dtype == bool and fired.shape == expected.shape == (2, len(IDS), 96)
    assert 0.1 < expected.mean() < 0.6
    # In float32 a value that is all but zero may come out on its other side.
    assert np.count_nonzero(fired != expected) <= 1
    residual = np.array([x for x, _, _ in blocks])
    assert inputs.dtype == np.float32 and relative(inputs, residual) < 2e-6

    with Gguf(path) as gguf:
        key = string("powerinfer.predictor.input", "normed")
        embed(gguf, tmp_path / "normed.gguf", [key], [])
    same, normed = recorded(tmp_path / "normed.gguf", sparse=sparse)
    assert np.array_equal(same, fired)
    assert relative(normed, np.array([y for _, y, _ in blocks])) < 2e-6


def test_threshold_of_a_smooth_activation(tmp_path: Path) -> None:
    """CATS: in exact mode, |silu(gate)| below the file's threshold counts as zero; off has all."""
    cfg = checkpoints.config()
    weights = checkpoints.weights(cfg)
    folder = checkpoints.save(tmp_path / "model", cfg, weights)
    checkpoints.predictors(tmp_path / "predictor", cfg)
    path = convert(
        folder, tmp_path / "predictor", outfile=tmp_path / "a.gguf", outtype="f32", log=quiet
    )
    with Gguf(path) as gguf:
        embed(gguf, tmp_path / "cats.gguf", [float32("powerinfer.ffn.threshold", 0.2)], [])
    blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    reference.logits(cfg, weights, IDS, "silu", blocks)
    gate = blocks[0][1] @ weights["model.layers.0.mlp.gate_proj.weight"].T.astype(np.float64)
    expected = np.abs(gate / (1 + np.exp(-gate))) >= 0.2
    fired, _ = recorded(tmp_path / "cats.gguf")
    assert 0.2 < expected.mean() < 0.8 and np.count_nonzero(fired[0] != expected) <= 1
    assert recorded(tmp_path / "cats.gguf", sparse="off")[0].all()


@pytest.mark.parametrize("options", [{}, {"n_batch": 5}, {"n_ubatch": 3}, {"n_threads": 3}])
def test_mixture(options: dict[str, int], tmp_path: Path) -> None:
    cfg, weights = smallthinker(tmp_path / "model")
    path = convert(tmp_path / "model", outfile=tmp_path / "out.gguf", outtype="f32", log=quiet)
    n_expert, n_ff = cfg["moe_num_primary_experts"], cfg["moe_ffn_hidden_size"]
    expected = np.zeros((cfg["num_hidden_layers"], len(TOKENS), n_expert, n_ff), bool)
    reference.smallthinker_logits(cfg, weights, TOKENS, expected)
    fired, inputs = recorded(path, TOKENS, **options)
    assert fired.shape == expected.shape and np.count_nonzero(fired != expected) <= 1
    assert expected.any(-1).sum(-1).max() == cfg["moe_num_active_primary_experts"]
    assert inputs.shape == (cfg["num_hidden_layers"], len(TOKENS), cfg["hidden_size"])


def test_the_last_eval_alone(model_path: Path) -> None:
    """The recordings do not depend on how a prompt is split into calls."""
    with opened(model_path, n_batch=16) as llm:
        ids = llm.tokenize(b"Once upon a time there was a dragon who liked to play with a red ball")
        assert len(ids) > 16
        llm.eval(ids)
        fired, inputs = llm.activations(), llm.ffn_inputs()
        counts = llm._loop.opened._session.firing_counts()
        assert np.array_equal(counts[:, 0], fired.sum(1))
        llm.reset()
        llm.eval(ids[:3])
        assert llm.activations().shape == (4, 3, 1024)
        for i, token in enumerate(ids[3:], 3):
            llm.eval([token])
            assert np.array_equal(llm.activations()[:, 0], fired[:, i])
            assert np.array_equal(llm.ffn_inputs()[:, 0], inputs[:, i])
        llm("The", max_tokens=3)
        assert llm.activations().shape[1] == 1
        assert np.array_equal(fired.mean((1, 2)) > 0.02, [True] * 4)


def test_refusals(model_path: Path) -> None:
    for sparse in ("auto", "predictor"):
        with pytest.raises(ValueError, match="record needs sparse off or exact"):
            opened(model_path, sparse=sparse)
    with pytest.raises(ValueError, match="record must be one of off, fired, fired\\+input"):
        opened(model_path, record="all")
    with opened(model_path, record="fired") as llm:
        with pytest.raises(ValueError, match="nothing is recorded"):
            llm.activations()
        llm.eval([1])
        with pytest.raises(ValueError, match='record="fired\\+input"'):
            llm.ffn_inputs()
    with opened(model_path, record="off", sparse="auto") as llm:
        llm.eval([1])
        with pytest.raises(ValueError, match='record="fired"'):
            llm.activations()


@pytest.mark.shared
@pytest.mark.peer("transformers")
def test_against_transformers(shared: Path, tmp_path: Path) -> None:
    """The checkpoint of the default model: every neuron of every layer at every token."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    folder = shared / "models" / "stories-relu"
    path = convert(folder, outfile=tmp_path / "f32.gguf", outtype="f32", log=quiet)
    with opened(path, n_threads=2) as llm:
        ids = llm.tokenize((shared / "text" / "stories-valid.txt").read_bytes()[:150])
        llm.eval(ids)
        fired, inputs = llm.activations(), llm.ffn_inputs()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    down: list[np.ndarray] = []
    residual: list[np.ndarray] = []
    for layer in model.model.layers:
        layer.mlp.down_proj.register_forward_pre_hook(lambda _m, x: down.append(x[0][0].numpy()))
        layer.post_attention_layernorm.register_forward_pre_hook(
            lambda _m, x: residual.append(x[0][0].numpy())
        )
    with torch.no_grad():
        model(torch.tensor([ids]))
    expected = np.array(down) != 0
    assert np.count_nonzero(fired != expected) <= 1e-5 * expected.size
    assert relative(inputs, np.array(residual)) < 2e-5
