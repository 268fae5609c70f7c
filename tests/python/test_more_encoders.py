"""Jina's second and third embedding models and Nomic's with experts, against float64 numpy; what
texts share."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import tiny
from gguf_files import changed, values
from more_encoders import (
    JINA,
    KINDS,
    LAYERS,
    MOE,
    TEXTS,
    WIDTH,
    Weights,
    jina,
    jina_shapes,
    linear,
    moe,
    moe_shapes,
    product,
    written,
)
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.session import Session

from powerinfer_cpp import Llama, ModelFormatError, UnsupportedModelError


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Weights, list[str]]]:
    found = {}
    for name, (cfg, shapes, _) in KINDS.items():
        folder, weights = written(tmp_path_factory.mktemp("more") / name, cfg, shapes)
        notes: list[str] = []
        found[name] = (convert(folder, outtype="f32", log=notes.append), weights, notes)
    return found


def vectors(path: Path, n_threads: int = 1) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """Of all texts together, of each alone, and their ids."""
    with Llama(str(path), embedding=True, n_threads=n_threads, n_ctx=512, verbose=False) as llm:
        together = np.array(llm.embed(TEXTS))
        alone = np.array([llm.embed(text) for text in TEXTS])
        ids = [llm.tokenize(text.encode()) for text in TEXTS]
    return together, alone, ids


def off(ours: np.ndarray, reference: np.ndarray) -> float:
    return float(np.linalg.norm(ours - reference) / np.linalg.norm(reference))


@pytest.mark.parametrize("name", KINDS)
def test_vectors(made: dict[str, Any], name: str) -> None:
    path, weights, notes = made[name]
    together, alone, ids = vectors(path)
    assert all(of[0] == 2 and of[-1] == 3 for of in ids)  # [CLS] and [SEP]
    reference = KINDS[name][2]
    wanted = np.array([reference(weights, of).mean(0) for of in ids])
    assert off(together, wanted) < 2e-6
    assert np.array_equal(together, alone)
    assert np.array_equal(together, vectors(path, 2)[0])
    assert [note for note in notes if "the adapter of a task" not in note] == []


@pytest.mark.parametrize(
    ("name", "kind", "dense", "score"),
    [
        ("jina", "JinaBert", "pooler.dense", "classifier"),
        ("jina-3", "XLMRoberta", "classifier.dense", "classifier.out_proj"),
    ],
)
def test_scores(tmp_path: Path, name: str, kind: str, dense: str, score: str) -> None:
    """Of the first row, by a matrix with tanh and another one."""
    cfg, shapes, reference = KINDS[name]
    kinds = {"architectures": [f"{kind}ForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    shapes = {n: of for n, of in shapes.items() if "pooler" not in n}
    head = linear(dense, WIDTH, WIDTH) | linear(score, 1, WIDTH)
    folder, weights = written(tmp_path / name, {**cfg, **kinds}, shapes | head)
    path = convert(folder, outtype="f32", log=lambda _: None)
    documents = ["the river", "", "frogs and bears " * 20]
    with Llama(str(path), embedding=True, n_ctx=512, verbose=False) as llm:
        raw = llm.rank("small bear", documents, raw_scores=True)
        usual = llm.rank("small bear", documents)
        best = llm.rank("small bear", documents, top_n=1)
        for wrong in (0, -1):
            with pytest.raises(ValueError, match="top_n must be at least 1"):
                llm.rank("small bear", documents, top_n=wrong)
        query = llm.tokenize(b"small bear")
        ids = [query + llm.tokenize(document.encode())[1:] for document in documents]
    wanted = []
    for of in ids:
        types = [0] * len(query) + [1] * (len(of) - len(query))
        rows = reference(weights, of, types) if name == "jina" else reference(weights, of)
        wanted.append(product(weights, score, np.tanh(product(weights, dense, rows[0])))[0])
    assert off(np.array(raw), np.array(wanted)) < 2e-6
    assert off(np.array(usual), 1 / (1 + np.exp(-np.array(wanted)))) < 2e-6
    top = int(np.argmax(usual))
    assert best == [s if i == top else -math.inf for i, s in enumerate(usual)]


@pytest.mark.parametrize("of_gguf", [False, True])
def test_adapters_of_peft(made: dict[str, Any], tmp_path: Path, of_gguf: bool) -> None:
    path, weights, _ = made["jina-code"]
    rng = np.random.default_rng(8)
    changed_by: dict[str, np.ndarray] = {}
    merged = dict(weights)
    for module in ("encoder.layer.1.attention.self.query", "encoder.layer.0.mlp.up_gated_layer"):
        rows, columns = weights[f"{module}.weight"].shape
        a, b = (rng.standard_normal(n).astype(np.float32) for n in ((3, columns), (rows, 3)))
        changed_by[f"base_model.model.{module}.lora_A.weight"] = a
        changed_by[f"base_model.model.{module}.lora_B.weight"] = b
        merged[f"{module}.weight"] = weights[f"{module}.weight"] + 0.5 * (b @ a)
    folder = tmp_path / "peft"
    folder.mkdir()
    checkpoints.save_safetensors(folder / "adapter_model.safetensors", changed_by, "F32")
    (folder / "adapter_config.json").write_text(json.dumps({"r": 3, "lora_alpha": 1.5}))
    base = path if of_gguf else path.parent / "jina-code"
    adapter = convert(folder, base=base, log=lambda _: None)
    how: dict[str, Any] = {"embedding": True, "n_ctx": 512, "verbose": False}
    with Llama(str(path), lora_path=str(adapter), **how) as llm:
        found = np.array(llm.embed(TEXTS))
        ids = [llm.tokenize(text.encode()) for text in TEXTS]
    assert off(found, np.array([jina(merged, of).mean(0) for of in ids])) < 2e-6


def test_each_step_counts(made: dict[str, Any]) -> None:
    """The reference moves by far more than the limit when something is left out."""
    ids = [2, 5, 9, 30, 7, 3]
    for name, parts in (
        ("jina-code", ("layer_norm_q", "layer_norm_1", "output.LayerNorm", "down_layer.bias")),
        ("moe", ("experts.bias", "router", "fc1.bias", "Wqkv.bias")),
    ):
        weights, reference = made[name][1], KINDS[name][2]
        whole = reference(weights, ids).mean(0)
        for part in parts:
            less = {n: 0.5 * w if part in n else w for n, w in weights.items()}
            assert off(reference(less, ids).mean(0), whole) > 1e-3, part


def test_files_of_llama_cpp(made: dict[str, Any], tmp_path: Path) -> None:
    """Its converter leaves the rows of gates and of what they multiply in one matrix, in the order
    that the checkpoint has them."""
    path = made["jina-code"][0]
    tensors = values(path)
    fused = {}
    for i in range(LAYERS):
        fused[f"blk.{i}.ffn_up.weight"] = np.concatenate(
            [tensors[f"blk.{i}.ffn_{part}.weight"] for part in ("up", "gate")]
        )

    def replaced(name: str, data: np.ndarray) -> np.ndarray | None:
        return fused.get(name, None if "ffn_gate" in name else data)

    theirs = changed(path, tmp_path / "theirs.gguf", tensors=replaced)
    assert np.array_equal(vectors(theirs)[0], vectors(path)[0])


def test_a_bias_of_experts_that_adds_nothing(tmp_path: Path) -> None:
    """llama.cpp has no place for it."""
    folder, weights = written(tmp_path / "moe", MOE, moe_shapes())
    quiet = {n: np.zeros_like(w) if "experts.bias" in n else w for n, w in weights.items()}
    checkpoints.save_safetensors(folder / "model.safetensors", quiet, "F32")
    path = convert(folder, outtype="f32", log=lambda _: None)
    assert not [name for name in values(path) if name.endswith("exps.bias")]
    together, _, ids = vectors(path)
    assert off(together, np.array([moe(quiet, of).mean(0) for of in ids])) < 2e-6


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("jina", {"feed_forward_type": "reglu"}, "feed_forward_type 'reglu'"),
        ("jina", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("moe", {"moe_normalize_expert_weights": True}, "moe_normalize_expert_weights"),
        ("moe", {"num_shared_experts": 1}, "num_shared_experts"),
        ("moe", {"expert_choice_router": True}, "expert_choice_router"),
        ("moe", {"activation_function": "swiglu"}, "activation_function 'swiglu'"),
        ("moe", {"ffn_div": 2}, "ffn_div"),
    ],
)
def test_refused(tmp_path: Path, name: str, values: dict[str, Any], message: str) -> None:
    folder, _ = written(tmp_path / "refused", {**KINDS[name][0], **values}, KINDS[name][1])
    with pytest.raises(UnsupportedModelError, match=message):
        convert(folder)


def test_a_neuron_aware_file_is_refused(tmp_path: Path) -> None:
    folder, _ = written(tmp_path / "jina", JINA, jina_shapes(False))
    with pytest.raises(UnsupportedModelError, match="neuron-aware file of jina-bert-v2"):
        convert(folder, bundle=True)


def test_layers_of_experts_are_those_of_the_key(made: dict[str, Any], tmp_path: Path) -> None:
    key = "nomic-bert-moe.moe_every_n_layers"
    wrong = changed(made["moe"][0], tmp_path / "wrong.gguf", {key: 1})
    with pytest.raises(ModelFormatError, match=f"{key} is 1, but layer"):
        Llama(str(wrong), embedding=True, verbose=False)


# ---- What texts begin with -----------------------------------------------------------------------


@pytest.mark.parametrize("n_batch", [256, 128])
def test_a_common_beginning_is_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_batch: int
) -> None:
    """Where only the last row counts, the bits are those of each text alone."""
    path = tiny.make(tmp_path)
    rng = np.random.default_rng(5)
    first = [1, *rng.integers(3, 260, 71).tolist()]
    texts = [first + rng.integers(3, 260, n).tolist() for n in rng.integers(1, 40, 40)]
    texts[7] = first + texts[8][72:]  # the same once more
    computed = 0
    evaluate = Session.eval

    def counted(self: Session, tokens: np.ndarray, *more: Any, **named: Any) -> None:
        nonlocal computed
        computed += len(tokens)
        evaluate(self, tokens, *more, **named)

    monkeypatch.setattr(Session, "eval", counted)
    how: dict[str, Any] = {"n_ctx": 128, "n_batch": n_batch, "verbose": False}
    with Llama(str(path), embedding=True, pooling_type=3, **how) as llm:
        together, n_together = llm.embed(texts), computed
        alone = [llm.embed(text) for text in texts]
        assert n_together == 72 + sum(len(text) - 72 for text in texts)
        assert computed == n_together + sum(len(text) for text in texts)
        # A text that is what the others begin with, and texts that share less than a page.
        for group in ([first, *texts[:3]], [text[20:] for text in texts[:3]]):
            assert llm.embed(group) == [llm.embed(text) for text in group]
    assert together == alone


def test_a_mean_needs_all_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    first = [1, *rng.integers(3, 260, 71).tolist()]
    texts = [first + rng.integers(3, 260, n).tolist() for n in (3, 9, 20)]
    with Llama(str(tiny.make(tmp_path)), embedding=True, n_ctx=128, verbose=False) as llm:
        assert llm.embed(texts) == [llm.embed(text) for text in texts]
