"""Jina's embeddings 3 against float64 numpy: XLM-RoBERTa with RoPE, and adapters of tasks that
change the tables, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
from families import quiet
from gguf_files import changed, raw, values
from lora_files import written
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf
from reference import relative_error, rotate
from scipy.special import erf

from powerinfer_cpp import Llama, ModelFormatError, UnsupportedModelError

Weights = dict[str, np.ndarray]
LIMIT = 1e-5  # of F32 arithmetic
TASKS = ["retrieval.query", "separation", "text-matching"]
PROMPT = "Find this: "
RANK = 3
ALPHA = 2.0
CONFIG: dict[str, Any] = {
    "architectures": ["XLMRobertaModel"],
    "model_type": "xlm-roberta",
    "vocab_size": 310,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 322,
    "type_vocab_size": 2,
    "pad_token_id": 1,
    "position_embedding_type": "rotary",
    "rotary_emb_base": 20000.0,
    "lora_adaptations": TASKS,
    "lora_rank": RANK,
    "lora_alpha": ALPHA,
    "lora_dropout_p": 0.0,
    "emb_pooler": "mean",
    "task_instructions": {"retrieval.query": PROMPT, "separation": ""},
}


def random_weights() -> Weights:
    """By the checkpoint's names, with a slice of each task in the factors."""
    rng = np.random.default_rng(4)
    n, n_ff = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    found: Weights = {}

    def normal(*shape: int) -> np.ndarray:
        return (1.2 / np.sqrt(shape[-1]) * rng.standard_normal(shape)).astype(np.float32)

    def matrix(name: str, rows: int, cols: int, table: bool = False) -> None:
        name = f"roberta.{name}.parametrizations.weight"
        found[f"{name}.original"] = normal(rows, cols)
        a, b = ((rows, RANK), (RANK, cols)) if table else ((RANK, cols), (rows, RANK))
        found[f"{name}.0.lora_A"] = normal(len(TASKS), *a)
        found[f"{name}.0.lora_B"] = normal(len(TASKS), *b)

    def norm(name: str) -> None:
        found[f"roberta.{name}.weight"] = 1 + normal(n)
        found[f"roberta.{name}.bias"] = normal(n)

    matrix("embeddings.word_embeddings", CONFIG["vocab_size"], n, table=True)
    matrix("embeddings.token_type_embeddings", CONFIG["type_vocab_size"], n, table=True)
    norm("emb_ln")
    for i in range(CONFIG["num_hidden_layers"]):
        layer = f"encoder.layers.{i}"
        for name, rows, cols in (
            ("mixer.Wqkv", 3 * n, n),
            ("mixer.out_proj", n, n),
            ("mlp.fc1", n_ff, n),
            ("mlp.fc2", n, n_ff),
        ):
            matrix(f"{layer}.{name}", rows, cols)
            found[f"roberta.{layer}.{name}.bias"] = normal(rows)
        norm(f"{layer}.norm1")
        norm(f"{layer}.norm2")
    found["roberta.pooler.dense.weight"] = normal(n, n)  # which nothing reads
    found["roberta.pooler.dense.bias"] = normal(n)
    return found


def of_task(weights: Weights, shares: dict[str, float]) -> Weights:
    """The model's weights with these shares of the tasks' adapters."""
    found: Weights = {}
    for name, value in weights.items():
        name = name.removeprefix("roberta.")
        module, _, part = name.partition(".parametrizations.weight.")
        if part not in ("", "original"):
            continue
        found[f"{module}.weight" if part else name] = value.astype(np.float64)
        for task, share in shares.items() if part else ():
            a, b = (
                weights[f"roberta.{module}.parametrizations.weight.0.lora_{side}"].astype(float)
                for side in "AB"
            )
            first, second = (a, b) if module.startswith("embeddings.") else (b, a)
            i = TASKS.index(task)
            found[f"{module}.weight"] += share * ALPHA / RANK * first[i] @ second[i]
    return found


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + erf(x / np.sqrt(2))) / 2


def vector(w: Weights, ids: list[int], types: list[int]) -> np.ndarray:
    return rows(w, ids, types).mean(0)


def rows(w: Weights, ids: list[int], types: list[int]) -> np.ndarray:
    c = CONFIG

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + c["layer_norm_eps"])
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    x = w["embeddings.word_embeddings.weight"][ids]
    x = norm("emb_ln", x + w["embeddings.token_type_embeddings.weight"][types])
    for i in range(c["num_hidden_layers"]):
        layer = f"encoder.layers.{i}"
        parts = np.split(linear(f"{layer}.mixer.Wqkv", x), 3, -1)
        q, k, v = (part.reshape(len(ids), c["num_attention_heads"], -1) for part in parts)
        q, k = rotate(q, c["rotary_emb_base"]), rotate(k, c["rotary_emb_base"])
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        y = np.einsum("hqk,khd->qhd", share, v).reshape(len(ids), -1)
        x = norm(f"{layer}.norm1", x + linear(f"{layer}.mixer.out_proj", y))
        y = linear(f"{layer}.mlp.fc2", gelu(linear(f"{layer}.mlp.fc1", x)))
        x = norm(f"{layer}.norm2", x + y)
    return x


def checkpoint(folder: Path, config: dict[str, Any], weights: Weights) -> Path:
    checkpoints.save(folder, config, weights)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    return folder


def converted(folder: Path, outtype: str = "f32") -> Path:
    return convert(folder, outtype=outtype, outfile=folder.with_suffix(".gguf"), log=quiet)


def adapter_of(path: Path, task: str) -> Path:
    return path.with_name(f"lora-{task}-{path.name}")


@pytest.fixture(scope="module")
def weights() -> Weights:
    return random_weights()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, weights: Weights) -> Path:
    return converted(checkpoint(tmp_path_factory.mktemp("jina") / "m", CONFIG, weights))


def opened(path: Path, **options: Any) -> Llama:
    how = {"n_ctx": 300, "type_k": 0, "type_v": 0, "verbose": False, **options}
    return Llama(path, embedding=True, **how)


IDS = [[1] + [(37 * i * i + 11 * i + n) % 290 + 4 for i in range(n - 1)] for n in (1, 7, 65, 257)]


def vectors(llm: Llama) -> np.ndarray:
    return np.array([item["embedding"] for item in llm.create_embedding(IDS)["data"]])


def check(found: np.ndarray, weights: Weights) -> None:
    for ours, ids in zip(found, IDS, strict=True):
        assert relative_error(ours, vector(weights, ids, [0] * len(ids))) < LIMIT


def test_without_an_adapter(path: Path, weights: Weights) -> None:
    with opened(path) as llm:
        check(vectors(llm), of_task(weights, {}))


@pytest.mark.parametrize("task", TASKS)
def test_of_a_task(path: Path, weights: Weights, task: str) -> None:
    found = []
    for threads in (1, 2):
        with opened(path, n_threads=threads, lora_path=adapter_of(path, task)) as llm:
            found.append(vectors(llm))
    assert np.array_equal(*found)
    check(found[0], of_task(weights, {task: 1.0}))


def test_changed_between_calls(path: Path, weights: Weights) -> None:
    shares = dict(zip(TASKS, (0.5, -0.25, 1.0), strict=True))
    with opened(path) as llm:
        plain = vectors(llm)
        llm.set_adapters({adapter_of(path, task): share for task, share in shares.items()})
        check(vectors(llm), of_task(weights, shares))
        llm.set_adapters({})
        assert np.array_equal(vectors(llm), plain)


def test_each_table_counts(path: Path, weights: Weights, tmp_path: Path) -> None:
    """An adapter of one table alone, also in F16."""
    whole = values(adapter_of(path, TASKS[0]))
    for table, theirs in (
        ("token_embd", "embeddings.word_embeddings"),
        ("token_types", "embeddings.token_type_embeddings"),
    ):
        some = {name: value for name, value in whole.items() if name.startswith(table)}
        assert len(some) == 2
        only = of_task(weights, {})
        name = f"{theirs}.weight"
        only[name] = of_task(weights, {TASKS[0]: 1.0})[name]
        file = written(tmp_path / f"{table}.gguf", some, ALPHA, "jina-bert-v3")
        with opened(path, lora_path=file) as llm:
            found = vectors(llm)
        check(found, only)
        half = changed(
            file, tmp_path / "half.gguf", tensors=lambda _name, data: data.astype(np.float16)
        )
        with opened(path, lora_path=half) as llm:
            assert 0 < relative_error(vectors(llm), found) < 1e-2


def test_what_files_say(path: Path) -> None:
    with Gguf(path) as model:
        assert model.value("jina-bert-v3.context_length") == 320
        assert model.value("powerinfer.embedding.prompt_names") == ["retrieval.query", "separation"]
    for task, prompt in (
        ("retrieval.query", PROMPT),
        ("separation", None),
        ("text-matching", None),
    ):
        with Gguf(adapter_of(path, task)) as adapter:
            assert adapter.value("adapter.lora.task_name") == task
            assert adapter.value("adapter.lora.prompt_prefix") == prompt
            assert adapter.value("adapter.lora.alpha") == ALPHA
    n, n_vocab = CONFIG["hidden_size"], CONFIG["vocab_size"]
    shapes = {name: shape for name, (_, shape, _) in raw(adapter_of(path, TASKS[0])).items()}
    # Fastest first; of the embedding the factors stand the other way round, as in llama.cpp's.
    assert shapes["token_embd.weight.lora_a"] == (RANK, n_vocab)
    assert shapes["token_embd.weight.lora_b"] == (RANK, n)
    assert shapes["token_types.weight.lora_a"] == (n, RANK)
    assert shapes["token_types.weight.lora_b"] == (RANK, 2)


def test_another_format_of_the_model(path: Path, weights: Weights, tmp_path: Path) -> None:
    """Adapters stay F32."""
    made = converted(checkpoint(tmp_path / "m", CONFIG, weights), "f16")
    for task in TASKS:
        assert raw(adapter_of(made, task)) == raw(adapter_of(path, task))


def test_without_adapters_in_the_checkpoint(path: Path, weights: Weights, tmp_path: Path) -> None:
    plain = {name: value.astype(np.float32) for name, value in of_task(weights, {}).items()}
    made = converted(checkpoint(tmp_path / "m", CONFIG, plain))
    assert raw(made) == raw(path)
    assert sorted(tmp_path.glob("*.gguf")) == [made]


def test_scores(tmp_path: Path, weights: Weights) -> None:
    """Of a ranker: of the first row, by a matrix with tanh and another one."""
    plain = {n: w.astype(np.float32) for n, w in of_task(weights, {}).items() if "pooler" not in n}
    rng, width = np.random.default_rng(6), CONFIG["hidden_size"]
    for name, n in (("dense", width), ("out_proj", 1)):
        plain[f"classifier.{name}.weight"] = rng.standard_normal((n, width)).astype(np.float32)
        plain[f"classifier.{name}.bias"] = rng.standard_normal(n).astype(np.float32)
    kind = {"architectures": ["XLMRobertaForSequenceClassification"], "id2label": {"0": "A"}}
    checkpoints.save(tmp_path / "ranker", {**CONFIG, **kind}, plain)
    documents = ["the cat", "", "a dog and a bear " * 9]
    with opened(converted(tmp_path / "ranker")) as llm:
        found = llm.rank("the dog", documents, raw_scores=True)
        query = llm.tokenize(b"the dog")
        pairs = [(query, llm.tokenize(document.encode())[1:]) for document in documents]
    for score, (before, behind) in zip(found, pairs, strict=True):
        x = rows(plain, before + behind, [0] * len(before) + [1] * len(behind))[0]
        x = np.tanh(plain["classifier.dense.weight"] @ x + plain["classifier.dense.bias"])
        want = plain["classifier.out_proj.weight"] @ x + plain["classifier.out_proj.bias"]
        assert score == pytest.approx(want[0], rel=LIMIT)


FACTOR = "roberta.encoder.layers.1.mlp.fc1.parametrizations.weight.0.lora_"


@pytest.mark.parametrize(
    ("config", "changes", "said"),
    [
        ({"lora_adaptations": ["../a", "b", "c"]}, {}, "'../a' is no name for an adapter's file"),
        ({"lora_adaptations": ["a", "b", "a"]}, {}, "'a' is no name .* or stands there twice"),
        ({"lora_adaptations": "abc"}, {}, "lora_adaptations is not a list"),
        ({"lora_adaptations": ["a", "b"]}, {}, "a matrix for each of 2 tasks"),
        ({"lora_rank": 4}, {}, "lora_rank is 4"),
        ({"task_instructions": {"a": 1}}, {}, "task_instructions are not texts"),
        ({}, {f"{FACTOR}A": None}, "lora_A of encoder.layers.1.mlp.fc1.weight is missing"),
        ({}, {f"{FACTOR}B": np.ones((3, 47, RANK))}, "does not fit the base model's"),
        ({}, {f"{FACTOR}A": np.ones((3, RANK))}, "a matrix for each of 3 tasks"),
    ],
)
def test_broken_checkpoints(
    tmp_path: Path, weights: Weights, config: Any, changes: dict[str, Any], said: str
) -> None:
    tensors = {name: value for name, value in (weights | changes).items() if value is not None}
    with pytest.raises(ModelFormatError, match=said):
        converted(checkpoint(tmp_path / "m", CONFIG | config, tensors))
    assert not list(tmp_path.glob("*.gguf"))


@pytest.mark.parametrize(
    ("name", "a", "b", "said"),
    [
        ("token_embd", (RANK, 32), (310, RANK), r"lora_a.*\[32, 3\], expected"),
        ("token_embd", (309, RANK), (32, RANK), r"lora_a.*\[3, 309\], expected"),
        ("token_embd", (310, RANK), (31, RANK), r"lora_b.*\[3, 31\], expected"),
        ("token_types", (RANK, 32), (3, RANK), r"lora_b.*\[3, 3\], expected"),
        ("token_types", (RANK, 31), (2, RANK), r"lora_a.*\[31, 3\], expected"),
    ],
)
def test_broken_adapters(path: Path, tmp_path: Path, name: str, a: Any, b: Any, said: str) -> None:
    factors = {f"{name}.weight.lora_a": np.ones(a), f"{name}.weight.lora_b": np.ones(b)}
    file = written(tmp_path / "bad.gguf", factors, architecture="jina-bert-v3")
    with opened(path) as llm, pytest.raises(ModelFormatError, match=said):
        llm.open_adapter(file)


def test_values_that_are_not_finite(path: Path, tmp_path: Path) -> None:
    factors = {"token_types.weight.lora_a": np.ones((RANK, 32))}
    factors["token_types.weight.lora_b"] = np.ones((2, RANK))
    factors["token_types.weight.lora_a"][2, 5] = np.nan
    file = written(tmp_path / "bad.gguf", factors, architecture="jina-bert-v3")
    with opened(path) as llm, pytest.raises(ModelFormatError, match="not finite in row 2"):
        llm.open_adapter(file)


def test_learned_positions_beside_rope(tmp_path: Path, weights: Weights) -> None:
    config = CONFIG | {"position_embedding_type": "relative_key"}
    with pytest.raises(UnsupportedModelError, match="position_embedding_type"):
        converted(checkpoint(tmp_path / "m", config, weights))
