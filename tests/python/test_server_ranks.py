"""Scores of texts from a server: as `Llama.rank` gives them, in the shapes of Jina, Cohere,
text-embeddings-inference and vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving
from families import quiet
from gguf_files import changed
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.errors import UnsupportedModelError
from powerinfer_cpp.server.settings import Settings
from serving import refused
from small_encoders import N_CTX, make
from test_rankers import DOCUMENTS, QUERY
from test_vectors import Converted, converted

from powerinfer_cpp import Llama

PATHS = ("v1/rerank", "rerank", "v1/reranking", "reranking", "v2/rerank")
LONG_TEXT = "the bear and the frog " * 200


def ranking(folder: Path, name: str) -> Converted:
    checkpoint = make(folder / name, name)
    rank = name == "qwen3-rank"  # nothing but the option says so
    path = convert(folder / name, rank=rank, outtype="f32", outfile=folder / "m.gguf", log=quiet)
    return Converted(path, checkpoint)


@pytest.fixture(scope="module", params=["bert-rank", "modernbert-rank", "qwen3-rank"])
def ranker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Converted:
    return ranking(tmp_path_factory.mktemp("ranks"), request.param)


@pytest.fixture(scope="module")
def running(ranker: Converted) -> Iterator[serving.InThread]:
    with serving.in_thread(ranker.path, n_threads=1, n_ctx_vectors=N_CTX) as found:
        yield found


@pytest.fixture(scope="module")
def alone(ranker: Converted) -> Iterator[Llama]:
    with Llama(ranker.path, n_threads=1, verbose=False) as llm:
        yield llm


def results(answer: Any) -> list[tuple[int, float]]:
    """Indices and scores of an answer, in its order."""
    assert answer.status_code == 200, answer.text
    return [(each["index"], each["relevance_score"]) for each in answer.json()["results"]]


def best_first(scores: list[float]) -> list[tuple[int, float]]:
    return sorted(enumerate(scores), key=lambda each: (-each[1], each[0]))


def test_the_best_first(running: serving.InThread, alone: Llama) -> None:
    want = best_first(alone.rank(QUERY, DOCUMENTS))
    body = {"query": QUERY, "documents": DOCUMENTS, "model": "any"}
    for path in PATHS:
        answer = running.post(path, body)
        assert results(answer) == want
        found = answer.json()
        assert found["object"] == "list" and found["model"] == "model" and found["id"]
        assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > 0
        assert found["meta"]["api_version"] == {"version": "2"}
        assert found["meta"]["billed_units"] == {"search_units": 1}
        assert all(set(each) == {"index", "relevance_score"} for each in found["results"])
    assert results(running.post("rerank", {**body, "top_n": 2})) == want[:2]
    assert results(running.post("rerank", {**body, "top_n": 99})) == want
    raw = best_first(alone.rank(QUERY, DOCUMENTS, raw_scores=True))
    assert results(running.post("rerank", {**body, "raw_scores": True})) == raw


def test_documents(running: serving.InThread, alone: Llama) -> None:
    """Texts, or objects with a text, also in the answer."""
    want = best_first(alone.rank(QUERY, DOCUMENTS))
    mixed = [{"text": text, "id": 7} if i % 2 else text for i, text in enumerate(DOCUMENTS)]
    body = {"query": {"text": QUERY}, "documents": mixed, "return_documents": True}
    answer = running.post("rerank", body)
    assert results(answer) == want
    shown = [each["document"] for each in answer.json()["results"]]
    assert shown == [{"text": DOCUMENTS[i]} for i, _ in want]


def test_equal_ones_keep_their_order(running: serving.InThread) -> None:
    documents = ["frog", "bear", "frog", "bear", "frog"] * 9
    found = results(running.post("rerank", {"query": QUERY, "documents": documents}))
    for one, next_ in zip(found, found[1:], strict=False):
        assert one[1] > next_[1] or (one[1] == next_[1] and one[0] < next_[0])
    assert len({score for _, score in found}) == 2


def test_long_documents(running: serving.InThread, alone: Llama) -> None:
    """They are cut, and the query never."""
    documents = [LONG_TEXT, "b"]
    want = best_first(alone.rank(QUERY, documents))
    assert results(running.post("rerank", {"query": QUERY, "documents": documents})) == want
    short = {"query": QUERY, "documents": documents, "max_tokens_per_doc": 3}
    n = running.post("rerank", short).json()["usage"]["total_tokens"]
    least = running.post("rerank", {**short, "documents": ["", ""]}).json()["usage"]
    assert least["total_tokens"] < n <= least["total_tokens"] + 6
    for body in ({"documents": ["a"]}, {"texts": ["a"]}):
        found = running.post("rerank", {"query": LONG_TEXT, **body})
        assert found.status_code == (413 if "texts" in body else 400)
        assert "the query leaves no room" in found.text
    asked = {"query": QUERY, "documents": documents, "truncate": False}
    error = refused(running.post("rerank", asked))
    assert error["code"] == "context_length_exceeded" and "a pair of" in error["message"]


def test_tei(running: serving.InThread, alone: Llama) -> None:
    body = {"query": QUERY, "texts": DOCUMENTS}
    for fields, raw in (({}, False), ({"raw_scores": True, "return_text": True}, True)):
        want = best_first(alone.rank(QUERY, DOCUMENTS, raw_scores=raw))
        found = running.post("rerank", {**body, **fields})
        assert found.status_code == 200, found.text
        shown = [{"index": i, "score": score} for i, score in want]
        if raw:
            shown = [{**each, "text": DOCUMENTS[each["index"]]} for each in shown]
        assert found.json() == shown
        fewer = running.post("rerank", {**body, **fields, "top_n": 2})  # LiteLLM sends it here, too
        assert fewer.json() == shown[:2]
    for fields, status in (
        ({"texts": []}, 422),
        ({"texts": ["a"], "truncation_direction": "left"}, 422),
        ({"texts": [LONG_TEXT], "truncate": False}, 413),
    ):
        found = running.post("rerank", {"query": QUERY, **fields})
        assert found.status_code == status, found.text
        assert set(found.json()) == {"error", "error_type"}
    info = running.get("info").json()
    assert set(info["model_type"]) == {"reranker"}
    for path in ("embed", ""):
        found = running.post(path, {"inputs": "a"})
        assert found.status_code == 424 and found.json()["error_type"] == "Backend"


def test_score(running: serving.InThread, alone: Llama) -> None:
    want = alone.rank(QUERY, DOCUMENTS)
    found = running.post("v1/score", {"text_1": QUERY, "text_2": DOCUMENTS}).json()
    assert [each["score"] for each in found["data"]] == want
    assert [each["index"] for each in found["data"]] == list(range(len(want)))
    pairs = {"text_1": ["a", QUERY], "text_2": ["b", "c"]}
    found = running.post("score", pairs).json()
    each = [alone.rank("a", ["b"])[0], alone.rank(QUERY, ["c"])[0]]
    assert [one["score"] for one in found["data"]] == each
    one = running.post("score", {"text_1": "a", "text_2": "b"}).json()
    assert one["data"] == [{"index": 0, "object": "score", "score": each[0]}]
    for body in (
        {"text_1": ["a", "b"], "text_2": ["c"]},
        {"text_1": [], "text_2": ["c"]},
        {"text_1": "a", "text_2": []},
        {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 5},
    ):
        refused(running.post("v1/score", body))


def test_instructions(running: serving.InThread, alone: Llama, ranker: Converted) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS, "instruction": "Find frogs"}
    if ranker.checkpoint.config["model_type"] == "qwen3":
        want = best_first(alone.rank(QUERY, DOCUMENTS, instruction="Find frogs"))
        assert results(running.post("rerank", body)) == want
    else:
        assert "no place for one" in refused(running.post("rerank", body))["message"]


def test_what_is_refused(running: serving.InThread) -> None:
    for fields, param in (
        ({"documents": []}, "documents"),
        ({}, "documents"),
        ({"documents": [{"title": "x"}]}, "documents[0]"),
        ({"documents": ["a"], "top_n": 0}, "top_n"),
        ({"documents": ["a"], "max_tokens_per_doc": 0}, "max_tokens_per_doc"),
        ({"documents": ["a"] * 2049}, "documents"),
        ({"documents": ["a"], "query": {"x": 1}}, "query"),
    ):
        assert refused(running.post("rerank", {"query": "a", **fields}))["param"] == param
    both = running.post("rerank", {"query": "a", "documents": ["a"], "texts": ["b"]})
    assert both.status_code == 422 and "not both" in both.json()["error"]
    message = refused(running.post("v1/embeddings", {"input": "a"}))["message"]
    assert "ranks texts, and gives no vectors" in message
    said = {"messages": [{"role": "user", "content": "hi"}]}
    message = refused(running.post("v1/chat/completions", said))["message"]
    assert message == "this model gives scores of pairs of texts, and writes no texts"


def test_what_is_told_of_it(running: serving.InThread) -> None:
    props, listed = running.get("props").json(), running.get("v1/models").json()
    for found in (props, listed["data"][0]):
        assert found["capabilities"] == ["rerank"] and found["pooling"] == "rank"
        assert found["dimensions"] is None and found["max_tokens"] == running.model.n_ctx
    assert listed["models"][0]["capabilities"] == ["rerank"]
    for path in ("slots", "metrics", "view", "health"):
        assert running.get(path).status_code == 200, path


def test_models_that_do_not_rank(model_path: Path, tmp_path: Path) -> None:
    bert = converted(tmp_path, "bert")
    for path in (model_path, bert.path):
        with serving.in_thread(path) as running:
            for route in PATHS:
                answer = running.post(route, {"query": "a", "documents": ["b"]})
                assert "a model that ranks" in refused(answer, 501)["message"]
            refused(running.post("score", {"text_1": "a", "text_2": "b"}), 501)
    with (
        pytest.raises(UnsupportedModelError, match="does not rank texts"),
        serving.in_thread(bert.path, pooling_type=4),
    ):
        pass


def test_what_shows_at_the_start(tmp_path: Path) -> None:
    """A ranker without a template of pairs, and one whose labels are no scores."""
    made = ranking(tmp_path, "qwen3-rank")
    for keys, words in (
        ({"tokenizer.chat_template.rerank": None}, "no template of pairs"),
        ({"qwen3.classifier.output_labels": ["a", "b"]}, "a head with 2 labels"),
    ):
        path = changed(made.path, tmp_path / "changed.gguf", keys)
        with (
            pytest.raises(UnsupportedModelError, match=words),
            serving.in_thread(path),
        ):
            pass


def test_what_answers_keep(ranker: Converted) -> None:
    settings = Settings(max_recorded=2 << 20)
    with serving.in_thread(ranker.path, settings) as running:
        body = {"query": "a", "documents": ["b" * 700_000] * 2, "return_documents": True}
        answer = running.post("rerank", body)
        assert answer.status_code == 429, answer.text[:300]
        assert results(running.post("rerank", {**body, "return_documents": False}))


def test_vectors_of_a_ranker(ranker: Converted) -> None:
    """Another pooling than the file's."""
    with serving.in_thread(ranker.path, pooling_type=1) as running:
        found = running.post("v1/embeddings", {"input": "a"}).json()["data"][0]["embedding"]
        assert np.linalg.norm(found) == pytest.approx(1, abs=1e-5)
        refused(running.post("rerank", {"query": "a", "documents": ["b"]}), 501)
        assert running.get("props").json()["capabilities"] == ["embedding"]
