"""Vectors of texts from a server: the bits of single texts, whatever is asked beside them, in the
shapes of OpenAI's clients and of text-embeddings-inference. test_server_ranks.py has scores."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import serving
from gguf_files import Spliced, changed
from powerinfer_cpp.cli import main as command
from powerinfer_cpp.core.errors import UnsupportedModelError
from powerinfer_cpp.server import run
from powerinfer_cpp.server.dialects.dialect import TEI
from powerinfer_cpp.server.errors import Refusal
from powerinfer_cpp.server.settings import Settings
from powerinfer_cpp.server.vectors import CALL_SECONDS, LEAST_TOKENS
from serving import PROMPT, refused, wait_for
from test_vectors import Converted, converted

from powerinfer_cpp import Llama

# Of many lengths, so that calls of the engine have several, in another order.
TEXTS = [
    *("the small bear", "", "frog " * 60, "a", "the river of frogs, and 1 ball. " * 7),
    *(f"the bear {i} and {'frog ' * (7 * i % 23)}" for i in range(40)),
]
LONG_TEXT = "the bear " * 300
WIDTH = 24
N_CTX = 320  # of the tiny models


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    return converted(tmp_path_factory.mktemp("vectors"), "bert")


@pytest.fixture(scope="module")
def running(bert: Converted) -> Iterator[serving.InThread]:
    with serving.in_thread(bert.path, n_threads=1) as found:
        yield found


@pytest.fixture(scope="module")
def alone(bert: Converted) -> Iterator[Llama]:
    with bert.open() as llm:
        yield llm


def vectors(answer: Any) -> np.ndarray:
    """Those of an answer, float32 [texts, width]."""
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [each["index"] for each in data] == list(range(len(data)))
    return np.array([each["embedding"] for each in data], np.float32)


def unit(llm: Llama, texts: list[str], **options: Any) -> np.ndarray:
    """Of each text alone, of length 1."""
    found = [llm.embed(text, normalize=True, **options) for text in texts]
    return np.array(found, np.float32)


# ---- OpenAI's ----


def test_many_texts(
    running: serving.InThread, alone: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several in a call of the engine, each with the bits that it has alone."""
    calls: list[int] = []
    computed = running.model.vectors.computed

    def counted(asked: Any, group: list[int]) -> Any:
        calls.append(len(group))
        return computed(asked, group)

    monkeypatch.setattr(running.model.vectors, "computed", counted)
    client = running.openai()
    want = unit(alone, TEXTS)
    floats = client.embeddings.create(model="m", input=TEXTS, encoding_format="float")
    assert sum(calls) == len(TEXTS) and len(calls) < len(TEXTS) / 2
    packed = client.embeddings.create(model="m", input=TEXTS)  # asks for base64
    for found in (floats, packed):
        assert [each.index for each in found.data] == list(range(len(TEXTS)))
        got = np.array([each.embedding for each in found.data], np.float32)
        assert (got == want).all()
    n = sum(len(alone.tokenize(text.encode(), special=True)) for text in TEXTS)
    assert floats.usage.prompt_tokens == floats.usage.total_tokens == n
    one = client.embeddings.create(model="m", input=TEXTS[0])
    assert (np.array(one.data[0].embedding, np.float32) == want[0]).all()
    ids = [alone.tokenize(text.encode()) for text in TEXTS[:2]]
    assert (vectors(running.post("embeddings", {"input": ids})) == want[:2]).all()
    assert (vectors(running.post("embeddings", {"input": ids[0]})) == want[:1]).all()


def test_the_empty_text_is_its_template(running: serving.InThread, bert: Converted) -> None:
    found = vectors(running.post("v1/embeddings", {"input": ["", "a"]}))
    want = bert.want([""])
    assert np.allclose(found[0], want[0] / np.linalg.norm(want[0]), atol=1e-5)
    error = refused(running.post("v1/embeddings", {"input": [[5, 6], []]}))
    assert error["message"].startswith("input[1] has no tokens")


def test_shorter_vectors(running: serving.InThread, alone: Llama) -> None:
    want = np.array([alone.embed(text) for text in TEXTS[:3]], np.float32)
    for n in (1, 5, WIDTH):
        found = vectors(running.post("v1/embeddings", {"input": TEXTS[:3], "dimensions": n}))
        cut = want[:, :n] / np.linalg.norm(want[:, :n], axis=1, keepdims=True)
        assert found.shape == (3, n) and np.allclose(found, cut, atol=1e-6)
    for n in (0, -1, WIDTH + 1):
        error = refused(running.post("v1/embeddings", {"input": "a", "dimensions": n}))
        assert error["message"] == f"dimensions must be 1 to {WIDTH}, not {n}"
        assert error["param"] == "dimensions"


def test_lengths(running: serving.InThread, alone: Llama, bert: Converted) -> None:
    raw = np.array(alone.embed(TEXTS[0]), np.float32)

    def asked(**fields: Any) -> np.ndarray:
        return vectors(running.post("v1/embeddings", {"input": TEXTS[0], **fields}))[0]

    for fields in ({"normalized": False}, {"normalize": False}, {"embd_normalize": -1}):
        assert (asked(**fields) == raw).all()
    assert (asked(normalized=False, dimensions=7) == raw[:7]).all()
    for fields in ({"normalized": True}, {"embd_normalize": 2}, {}):
        assert (asked(**fields) == unit(alone, TEXTS[:1])[0]).all()
    for norm in (1, 3, 64):
        assert np.linalg.norm(asked(embd_normalize=norm), ord=norm) == pytest.approx(1, abs=1e-5)
    assert np.abs(asked(embd_normalize=0)).max() == pytest.approx(32760)
    for norm in (-2, 65):
        refused(running.post("v1/embeddings", {"input": "a", "embd_normalize": norm}))
    with serving.in_thread(bert.path, Settings(embd_normalize=-1)) as other:
        assert (vectors(other.post("v1/embeddings", {"input": TEXTS[0]}))[0] == raw).all()


def test_prompts(running: serving.InThread, alone: Llama, tmp_path: Path) -> None:
    """What stands before a text, by any of its names."""
    named = dict(alone.prompts)
    assert set(named) == {"query", "document"}
    for fields, prompt in (
        ({"prompt_name": "query"}, named["query"]),
        ({"prompt": "ball "}, "ball "),
        ({"task": "document"}, named["document"]),
        ({"input_type": "query"}, named["query"]),
        ({"input_type": "search_query"}, named["query"]),
        ({"input_type": "passage"}, named["document"]),
        ({"input_type": "search_document"}, named["document"]),
        ({"input_type": "classification"}, ""),
        ({}, ""),
    ):
        found = vectors(running.post("v1/embeddings", {"input": TEXTS[:3], **fields}))
        assert (found == unit(alone, TEXTS[:3], prompt=prompt)).all(), fields
    for fields, words in (
        ({"prompt_name": "other"}, "prompt_name must be one of the model's prompts (query, docum"),
        ({"task": "other"}, "task must be one of the model's (query, document), not 'other'"),
        ({"input_type": "other"}, "input_type must be one of"),
        ({"prompt": "x", "task": "query"}, "give one of prompt, task"),
    ):
        error = refused(running.post("v1/embeddings", {"input": "a", **fields}))
        assert error["message"].startswith(words)


def test_long_texts(running: serving.InThread, alone: Llama, bert: Converted) -> None:
    """Refused with both numbers, or cut in front of the last token of the template."""
    n = len(alone.tokenize(LONG_TEXT.encode()))
    body = {"input": ["a", LONG_TEXT]}
    for fields in ({}, {"truncate": False}, {"truncate": "NONE"}):
        error = refused(running.post("v1/embeddings", {**body, **fields}))
        assert error["code"] == "context_length_exceeded" and "input[1]" in error["message"]
        assert f" {n} tokens exceeds the {N_CTX} " in error["message"]
    want = unit(alone, ["a", LONG_TEXT])
    for fields in ({"truncate": True}, {"truncate": "END"}, {"truncate_prompt_tokens": -1}):
        assert (vectors(running.post("v1/embeddings", {**body, **fields})) == want).all()
    ids = alone.tokenize(LONG_TEXT.encode())
    found = vectors(running.post("v1/embeddings", {**body, "truncate_prompt_tokens": 9}))
    short = running.post("v1/embeddings", {"input": [ids[:8] + ids[-1:]]})
    assert (found[1] == vectors(short)[0]).all() and (found[0] == want[0]).all()
    for fields in ({"truncate": "START"}, {"truncate": "x"}, {"truncate_prompt_tokens": 0}):
        refused(running.post("v1/embeddings", {**body, **fields}))
    with serving.in_thread(bert.path, Settings(truncate=True)) as other:
        assert (vectors(other.post("v1/embeddings", body)) == want).all()
        refused(other.post("v1/embeddings", {**body, "truncate": False}))


def test_ids_of_another_vocabulary(running: serving.InThread) -> None:
    """LangChain sends tiktoken's, unless it is told not to."""
    for given in ([5, 10**6], [[5], [100257]], [-1]):
        message = refused(running.post("v1/embeddings", {"input": given}))["message"]
        assert "ids of another vocabulary: send texts" in message
        assert "(LangChain: check_embedding_ctx_length=False)" in message


def test_too_much(bert: Converted) -> None:
    settings = Settings(max_inputs=30, max_recorded=20 * WIDTH * 24)
    with serving.in_thread(bert.path, settings) as running:
        assert len(vectors(running.post("v1/embeddings", {"input": ["a"] * 20}))) == 20
        error = refused(running.post("v1/embeddings", {"input": ["a"] * 21}))
        assert "--max-recorded" in error["message"]
        fewer = {"input": ["a"] * 30, "dimensions": 3}
        assert vectors(running.post("v1/embeddings", fewer)).shape == (30, 3)
        for body in ({"input": ["a"] * 31}, {"input": []}, {"input": ["a", 3]}):
            refused(running.post("v1/embeddings", body))
        refused(running.post("v1/embeddings", {"input": "a", "encoding_format": "int8"}))
        tei = running.post("embed", {"inputs": ["a"] * 31})
        assert tei.status_code == 413 and tei.json()["error_type"] == "Validation"


def test_a_vector_of_each_token(bert: Converted) -> None:
    with serving.in_thread(bert.path, pooling_type=0) as running, bert.open(pooling_type=0) as llm:
        found = running.post("v1/embeddings", {"input": TEXTS[:4]}).json()["data"]
        for text, each in zip(TEXTS, found, strict=False):
            want = np.array(llm.embed(text, normalize=True), np.float32)
            assert (np.array(each["embedding"], np.float32) == want).all()
        error = refused(running.post("v1/embeddings", {"input": "a", "encoding_format": "base64"}))
        assert error["param"] == "encoding_format"
        assert running.get("props").json()["pooling"] == "none"


# ---- text-embeddings-inference's ----


def test_tei(running: serving.InThread, alone: Llama) -> None:
    want = unit(alone, TEXTS[:5])
    raw = np.array([alone.embed(text) for text in TEXTS[:5]], np.float32)
    for path in ("embed", ""):
        for fields, wanted in (
            ({}, want),
            ({"normalize": False}, raw),
            ({"prompt_name": "query"}, unit(alone, TEXTS[:5], prompt_name="query")),
            ({"normalize": False, "dimensions": 3}, raw[:, :3]),
        ):
            found = running.post(path, {"inputs": TEXTS[:5], **fields})
            assert found.status_code == 200, found.text
            assert (np.array(found.json(), np.float32) == wanted).all()
    one = running.post("embed", {"inputs": TEXTS[0]}).json()
    assert (np.array(one, np.float32) == want[:1]).all()
    cut = running.post("embed", {"inputs": LONG_TEXT, "truncate": True, "model": "any"}).json()
    assert (np.array(cut, np.float32) == unit(alone, [LONG_TEXT])).all()
    info = running.get("info").json()
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert info["max_input_length"] == N_CTX and info["max_client_batch_size"] == 2048


def test_errors_of_tei(running: serving.InThread) -> None:
    for body, status in (
        ({"inputs": LONG_TEXT}, 413),
        ({"inputs": "a", "dimensions": 99}, 422),
        ({"inputs": "a", "prompt_name": "x"}, 422),
        ({"inputs": "a", "truncation_direction": "Left"}, 422),
        ({"inputs": 5}, 422),
        (b"{", 422),
    ):
        for path in ("embed", ""):
            found = running.post(path, body)
            error = found.json()
            assert found.status_code == status, found.text
            assert set(error) == {"error", "error_type"} and error["error_type"] == "Validation"
            assert error["error"]
    for status, kind in ((429, "Overloaded"), (503, "Unhealthy"), (500, "Backend")):
        answer = TEI.refused(Refusal(status, "words"))
        assert json.loads(answer.body) == {"error": "words", "error_type": kind}
        assert answer.status_code == (424 if status == 500 else status)
    rank = running.post("rerank", {"query": "a", "texts": ["b"]})
    assert rank.status_code == 424 and rank.json()["error_type"] == "Backend"


def test_keys_for_what_shares_the_path_of_the_page(bert: Converted) -> None:
    """Whoever may read the page may not compute."""
    with serving.in_thread(bert.path, Settings(api_keys=("k",))) as running:
        assert running.get("").status_code == 200
        for path in ("", "embed", "v1/embeddings", "rerank"):
            body = {"inputs": "a", "input": "a", "query": "a", "documents": ["b"]}
            assert running.post(path, body).status_code == 401, path
        known = {"authorization": "Bearer k"}
        assert running.post("", {"inputs": "a"}, headers=known).status_code == 200
    with serving.in_thread(bert.path) as running:
        elsewhere = {"sec-fetch-site": "cross-site"}
        assert running.post("", {"inputs": "a"}, headers=elsewhere).status_code == 403


# ---- Models that give no text ----


def test_it_writes_no_texts(running: serving.InThread) -> None:
    said = [{"role": "user", "content": "hi"}]
    for path, body in (
        ("v1/chat/completions", {"messages": said}),
        ("v1/completions", {"prompt": "hi"}),
        ("v1/completions", {"prompt": "hi", "stream": True}),
        ("v1/responses", {"input": "hi"}),
        ("v1/messages", {"messages": said, "max_tokens": 5}),
        ("v1/messages/count_tokens", {"messages": said}),
        ("completion", {"prompt": "hi"}),
        ("infill", {"input_prefix": "hi", "input_suffix": "ho"}),
        ("apply-template", {"messages": said}),
    ):
        answer = running.post(path, body)
        error = refused(answer)
        assert error["message"] == "this model gives vectors of texts, and writes no texts", path
    for path in ("slots", "metrics", "view", "tokenizer_info", "lora-adapters", "health"):
        assert running.get(path).status_code == 200, path
    assert refused(running.get("view/stream"), 501)
    ids = running.post("tokenize", {"content": "the bear", "add_special": True}).json()["tokens"]
    assert len(ids) >= 4
    assert "the bear" in running.post("detokenize", {"tokens": ids}).json()["content"]


def test_what_is_told_of_it(running: serving.InThread) -> None:
    told = {
        "capabilities": ["embedding"],
        "pooling": "mean",
        "dimensions": WIDTH,
        "max_tokens": N_CTX,
        "prompts": ["query", "document"],
    }
    props, listed = running.get("props").json(), running.get("v1/models").json()
    for found in (props, listed["data"][0], running.get("v1/models/model").json()):
        assert {name: found[name] for name in told} == told
        assert found["chat_format"] is None
    assert listed["models"][0]["capabilities"] == ["embedding"]
    assert listed["data"][0]["architecture"]["output_modalities"] == ["embedding"]
    assert props["default_generation_settings"]["n_ctx"] == N_CTX
    before = running.model.vectors.counts.n_tokens
    n = running.post("v1/embeddings", {"input": TEXTS[:4]}).json()["usage"]["total_tokens"]
    assert running.model.vectors.counts.n_tokens == before + n
    assert f'powerinfer:vectors_tokens_total{{model="model"}} {before + n}.0' in (
        running.get("metrics").text
    )


def test_a_model_of_texts_tells_it_too(model_path: Path) -> None:
    with serving.in_thread(model_path) as running:
        found = running.get("v1/models").json()
        assert found["models"][0]["capabilities"] == ["completion"]
        assert running.get("props").json()["pooling"] == "mean"
        assert running.get("info").json()["model_type"] == {"embedding": {"pooling": "mean"}}


def test_it_takes_no_memory_for_texts(bert: Converted) -> None:
    """Neither for texts that are written at the same time, nor for their contexts."""
    plans = []
    for options in ({"n_parallel": 1, "n_ctx": 64}, {"n_parallel": 64, "n_ctx": 4096}):
        with serving.in_thread(bert.path, **options) as running:
            plans.append(running.get("props").json()["plan"]["total"])
            assert running.model.n_ctx == N_CTX
    assert plans[0] == plans[1]


def test_fewer_tokens(bert: Converted) -> None:
    with serving.in_thread(bert.path, n_ctx_vectors=12) as running:
        message = refused(running.post("v1/embeddings", {"input": LONG_TEXT}))["message"]
        assert "exceeds the 12 of" in message
    with serving.in_thread(bert.path, n_ctx_vectors=10**6) as running:
        assert running.model.n_ctx == N_CTX  # it has no more positions


def test_a_file_that_does_not_say_what_it_is(tmp_path: Path, alone: Llama) -> None:
    """As llama.cpp writes some: the engine knows it by the architecture."""
    made = converted(tmp_path, "llama-embed")
    keys = {"llama-embed.attention.causal": None, "powerinfer.embedding.max_tokens": None}
    path = changed(made.path, tmp_path / "m.gguf", keys)
    with serving.in_thread(path, n_ctx=96) as running, made.open() as llm:
        found = vectors(running.post("v1/embeddings", {"input": TEXTS[:2]}))
        assert (found == unit(llm, TEXTS[:2])).all() and running.model.n_ctx == 96
        refused(running.post("v1/completions", {"prompt": "x"}))


def test_pooling_as_the_file_says(model_path: Path, tmp_path: Path) -> None:
    """Of a model that writes texts; ids have the EOS that the file asks for."""
    keys = {"llama.pooling_type": 3, "tokenizer.ggml.add_eos_token": True}
    without = changed(model_path, tmp_path / "w.gguf", {"tokenizer.ggml.add_eos_token": None})
    says = Spliced(without).write(tmp_path / "m.gguf", keys)
    with Llama(says, embedding=True, n_ctx=256, verbose=False) as llm:
        want, ids = unit(llm, [PROMPT]), llm.tokenize(PROMPT.encode())
    with serving.in_thread(says) as running:
        found = running.post("v1/embeddings", {"input": [PROMPT]})
        assert (vectors(found) == want).all() and found.json()["usage"]["total_tokens"] == len(ids)
    nothing = Spliced(model_path).write(tmp_path / "r.gguf", {"llama.pooling_type": 4})
    with serving.in_thread(nothing) as running:
        assert "--pooling" in refused(running.post("v1/embeddings", {"input": "a"}), 501)["message"]
    with (
        pytest.raises(UnsupportedModelError, match="does not rank texts"),
        serving.in_thread(model_path, pooling_type=4),
    ):
        pass


# ---- Clients beside each other ----


def slowly(running: serving.InThread, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Makes each call take a while; the calls, by the lengths of their texts."""
    calls: list[list[int]] = []
    computed = running.model.vectors.computed

    def slow(asked: Any, group: list[int]) -> Any:
        calls.append([len(asked.ids[i]) for i in group])
        time.sleep(0.03)
        return computed(asked, group)

    monkeypatch.setattr(running.model.vectors, "computed", slow)
    return calls


def test_a_client_goes(running: serving.InThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two calls of the engine; what is left of its texts is not computed."""
    calls = slowly(running, monkeypatch)
    client = running.ask("v1/embeddings", {"input": ["the bear " * 20] * 800})
    wait_for(lambda: len(calls) > 2)
    client.close()
    wait_for(lambda: running.server._preparing._embedding.n_held == 0)
    n = len(calls)
    assert n < 25  # of 50
    assert len(vectors(running.post("v1/embeddings", {"input": ["a"]}))) == 1
    assert len(calls) == n + 1


def test_nobody_else_waits_for_a_call(bert: Converted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even who wants the next one, whose server goes on meanwhile."""
    with serving.in_thread(bert.path) as running:
        began = threading.Event()
        opened = running.model.vectors.open()
        computed = opened.computed

        def slow(*of: Any) -> Any:
            began.set()
            time.sleep(2)
            return computed(*of)

        monkeypatch.setattr(opened, "computed", slow)
        with running.ask("v1/embeddings", {"input": "a"}):
            assert began.wait(serving.SECONDS)
            with running.ask("v1/embeddings", {"input": "b"}):
                shares = running.server._preparing._embedding
                wait_for(lambda: shares.n_waiting)
                begin = time.monotonic()
                assert running.get("health").status_code == 200
                assert time.monotonic() - begin < 1.5 and shares.n_waiting


def test_clients_take_turns(bert: Converted, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short request does not wait for all of a long one."""
    with serving.in_thread(bert.path, Settings(api_keys=("k", "l"))) as running:
        calls = slowly(running, monkeypatch)
        body = json.dumps({"input": ["the bear " * 20] * 800}).encode()
        with running.connect(serving.request("v1/embeddings", body, authorization="Bearer k")):
            wait_for(lambda: len(calls) > 2)
            other = {"authorization": "Bearer l"}
            assert vectors(running.post("v1/embeddings", {"input": "a"}, headers=other)).any()
            assert [2] not in calls[3:8] and [3] in calls and len(calls) < 15


def test_calls_are_short_while_texts_are_written(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that who writes gets the processor back."""
    with serving.in_thread(model_path, n_threads=1) as running:
        texts = [f"{PROMPT} {i} times" for i in range(60)]
        calls: list[int] = []
        opened = running.model.vectors.open()
        computed = opened.computed

        def slow(ids: Any, types: Any) -> Any:
            calls.append(sum(map(len, ids)))
            time.sleep(0.001 * calls[-1])
            return computed(ids, types)

        monkeypatch.setattr(opened, "computed", slow)
        idle = vectors(running.post("v1/embeddings", {"input": texts}))
        n_idle = max(calls)
        calls.clear()
        monkeypatch.setattr(running.server.models, "writing", lambda: {"somebody"})
        monkeypatch.setattr(running.server._preparing._embedding, "_wait", lambda sender: 0.0)
        assert (vectors(running.post("v1/embeddings", {"input": texts})) == idle).all()
        assert LEAST_TOKENS / 2 < max(calls) <= CALL_SECONDS / 0.001 < n_idle


def test_base64_is_float32(running: serving.InThread, alone: Llama) -> None:
    body = {"input": TEXTS[0], "encoding_format": "base64", "dimensions": 3}
    data = base64.b64decode(running.post("v1/embeddings", body).json()["data"][0]["embedding"])
    assert len(data) == 12 and np.linalg.norm(np.frombuffer(data, "<f4")) == pytest.approx(1)


def test_a_model_that_closes(bert: Converted) -> None:
    """Calls that run end first."""
    with serving.in_thread(bert.path) as running:
        client = running.ask("v1/embeddings", {"input": ["the bear " * 40] * 2000})
        wait_for(lambda: running.model.vectors.counts.n_texts > 0)
    client.close()


def test_a_server_that_ends(bert: Converted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose call runs, and who waits for one, is told so at once."""
    with serving.in_thread(bert.path) as running:
        opened, computed, began = running.model.vectors.open(), [], threading.Event()

        def slow(ids: Any, _types: Any) -> Any:
            began.set()
            time.sleep(3)
            computed.append(len(ids))
            return np.zeros((len(ids), WIDTH), np.float32)

        monkeypatch.setattr(opened, "computed", slow)
        with running.ask("v1/embeddings", {"input": "a"}) as first:
            assert began.wait(serving.SECONDS)
            with running.ask("v1/embeddings", {"input": "b"}) as second:
                wait_for(lambda: running.server._preparing._embedding.n_waiting)
                running.uvicorn.servers[0].get_loop().call_soon_threadsafe(running.server.end)
                for client in (first, second):
                    assert client.recv(12) == b"HTTP/1.1 503"
                assert not computed
    assert computed == [1]  # the one that ran, before the model was closed


def test_several_models(bert: Converted, model_path: Path, alone: Llama, tmp_path: Path) -> None:
    """Each has its own context; an error names what a model is."""
    with serving.in_thread({"text": model_path, "vectors": bert.path}, n_ctx=512) as running:
        found = running.post("v1/embeddings", {"input": TEXTS[:3], "model": "vectors"})
        assert (vectors(found) == unit(alone, TEXTS[:3])).all()
        said = {"prompt": PROMPT, "max_tokens": 3}
        assert running.post("v1/completions", {**said, "model": "text"}).status_code == 200
        refused(running.post("v1/completions", {**said, "model": "vectors"}))
        assert running.server.models.get("text").n_ctx == 512
        assert running.server.models.get("vectors").n_ctx == N_CTX
        with pytest.raises(openai.BadRequestError, match="writes no texts"):
            running.openai().completions.create(model="vectors", prompt="x")


# ---- Commands ----


def test_commands_say_what_it_is(
    bert: Converted, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n"))
    for words in (["complete", "-m", bert.path, "-p", "hi"], ["chat", "-m", bert.path]):
        assert command([str(word) for word in words]) == 1
        out, err = capfd.readouterr()
        assert not out and len(err.splitlines()) == 1 and "Traceback" not in err
        assert "this model gives vectors of texts, and writes no texts" in err
    assert command(["serve", "--plan", str(bert.path), "-c", "9999"]) == 0
    assert f"{N_CTX} tokens of a text (-c)" in capfd.readouterr().out
    assert command(["serve", "--plan", str(bert.path), "--rerank"]) != 0
    assert "does not rank texts" in capfd.readouterr().err


def test_options_of_serve(
    bert: Converted, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[dict[str, Any], Settings]] = []
    monkeypatch.setattr(
        run, "run", lambda _paths, options, settings, *_rest: given.append((options, settings))
    )
    lines = ("", "--truncate --embd-normalize -1 --pooling none -c 40", "--reranking")
    for line in lines:
        assert command(["serve", str(bert.path), *line.split()]) == 0
    options, settings = zip(*given, strict=True)
    assert [of["pooling_type"] for of in options] == [-1, 0, 4]
    assert [(of["n_ctx"], of["n_ctx_vectors"]) for of in options] == [
        (None, None),
        (40, 40),
        (None, None),
    ]
    assert [(of.truncate, of.embd_normalize) for of in settings] == [
        (False, 2),
        (True, -1),
        (False, 2),
    ]
    # Beside a model that writes, whose context does not become a short one.
    assert command(["serve", f"a={bert.path}", f"b={model_path}"]) == 0
    assert given[-1][0]["n_ctx"] == 1024 and given[-1][0]["n_ctx_vectors"] is None
    for wrong in (["--embd-normalize", "65"], ["--pooling", "max"], ["--embd-normalize", "x"]):
        assert command(["serve", str(bert.path), *wrong]) == 2


def test_a_server_says_what_it_serves(bert: Converted) -> None:
    with serving.program(bert.path, "--truncate") as program:
        found = vectors(program.post("v1/embeddings", {"input": LONG_TEXT}))
        assert found.shape == (1, WIDTH)
        program.process.terminate()
        _, err = program.process.communicate(timeout=serving.SECONDS)
    words = "this model gives vectors of texts, and writes no texts (POST /v1/embeddings)"
    assert err.splitlines() == [f"bert: {words}"]
