"""llama.cpp's POST /completion: its fields, and its answers whole and streamed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving
from powerinfer_cpp.server.dialects.asked import TimeLimit
from powerinfer_cpp.server.dialects.native import nested

from powerinfer_cpp import Llama

PROMPT = "Once upon a time"
BODY = {"prompt": PROMPT, "n_predict": 12, "seed": 5}


@pytest.fixture(scope="module")
def running(model_path: Path) -> Iterator[serving.InThread]:
    with serving.in_thread(model_path, n_parallel=4) as found:
        yield found


@pytest.fixture(scope="module")
def llm(model_path: Path) -> Iterator[Llama]:
    with Llama(model_path, n_ctx=256, verbose=False) as found:
        yield found


def events(answer: Any) -> list[dict[str, Any]]:
    """The events of a stream, which has no mark of its end."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    parts = answer.text.strip().split("\n\n")
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def test_the_whole_answer(running: serving.InThread, llm: Llama) -> None:
    want = llm(PROMPT, max_tokens=12, seed=5)
    found = running.post("completion", BODY).json()
    assert found["content"] == want["choices"][0]["text"]
    n = want["usage"]["prompt_tokens"]
    assert (found["tokens_evaluated"], found["tokens_predicted"]) == (n, 12)
    assert (found["stop"], found["stop_type"], found["stopping_word"]) == (True, "limit", "")
    assert (found["index"], found["model"], found["truncated"]) == (0, "model", False)
    assert found["tokens"] == [] and found["tokens_cached"] == n + 12
    assert found["has_new_line"] == ("\n" in found["content"])
    assert found["prompt"].endswith(PROMPT) and found["timings"]["predicted_n"] == 12
    settings = found["generation_settings"]
    assert (settings["seed"], settings["n_predict"], settings["stream"]) == (5, 12, False)
    assert (settings["mirostat"], settings["repeat_last_n"], settings["n_ctx"]) == (0, 64, 256)
    assert "completion_probabilities" not in found


def test_a_stream_has_the_same(running: serving.InThread) -> None:
    body = {**BODY, "n_probs": 2, "return_tokens": True, "timings_per_token": True}
    whole = running.post("completion", body).json()
    *parts, last = events(running.post("completion", {**body, "stream": True}))
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert sum((part["tokens"] for part in parts), []) == whole["tokens"]
    told = sum((part.get("completion_probabilities", []) for part in parts), [])
    assert told == whole.pop("completion_probabilities") and len(told) == 12
    assert all(part["stop"] is False and part["index"] == 0 for part in parts)
    assert all(part["timings"]["predicted_ms"] >= 0 for part in parts)
    settings = {**whole["generation_settings"], "stream": True}
    as_whole = {**whole, "content": "", "tokens": [], "generation_settings": settings}
    assert last == {**as_whole, "timings": last["timings"]}


def test_prompts(running: serving.InThread, llm: Llama) -> None:
    ids = llm._prompts.ids(PROMPT)
    text = running.post("completion", BODY).json()
    for same in (ids, {"prompt_string": PROMPT}, [ids], [PROMPT]):
        found = running.post("completion", {**BODY, "prompt": same}).json()
        found = found[0] if isinstance(found, list) else found
        assert found["content"] == text["content"] and found["prompt"] == text["prompt"]
    # A text at the beginning gets BOS, one behind it none.
    a, b = (llm.tokenize(part, add_bos=False) for part in (b"the dog", b"a cat"))
    bos = [llm.token_bos()]
    for mixed, want in ((["the dog", *b], bos + a + b), ([*a, "a cat", *b], a + b + b)):
        found = running.post("completion", {**BODY, "prompt": mixed}).json()
        expected = running.post("completion", {**BODY, "prompt": want}).json()
        assert found["tokens_evaluated"] == len(want)
        assert found["content"] == expected["content"]
    several = running.post("completion", {**BODY, "prompt": [PROMPT, ids, ["the dog", *b]]}).json()
    assert [each["index"] for each in several] == [0, 1, 2]
    assert [each["content"] for each in several[:2]] == [text["content"]] * 2
    two = running.post("completion", {**BODY, "n_cmpl": 2}).json()
    other = running.post("completion", {**BODY, "seed": 6}).json()
    assert [each["content"] for each in two] == [text["content"], other["content"]]
    stream = events(running.post("completion", {**BODY, "prompt": [PROMPT] * 2, "stream": True}))
    for i in (0, 1):
        assert "".join(e["content"] for e in stream if e["index"] == i) == text["content"]
    assert sum(event["stop"] for event in stream) == 2


def test_fields_of_sampling(running: serving.InThread, llm: Llama) -> None:
    """Each does what the same argument of create_completion does."""
    given = {
        "temperature": 1.3, "top_k": 20, "top_p": 0.8, "min_p": 0.01, "typical_p": 0.9,
        "repeat_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.3,
        "top_n_sigma": 2.0, "xtc_probability": 0.5, "xtc_threshold": 0.05, "dynatemp_range": 0.4,
        "dynatemp_exponent": 1.5, "dry_multiplier": 0.8, "dry_base": 1.6, "dry_allowed_length": 1,
        "dry_penalty_last_n": 30, "dry_sequence_breakers": ["."],
        "samplers": ["top_k", "temperature"],
    }  # fmt: skip
    for name, value in given.items():
        want = llm(PROMPT, max_tokens=12, seed=5, **{name: value})["choices"][0]["text"]
        found = running.post("completion", {**BODY, name: value}).json()
        assert found["content"] == want, name
        assert found["generation_settings"][name] == pytest.approx(value), name
    want = llm(PROMPT, max_tokens=12, seed=5, mirostat_mode=2, mirostat_tau=2.0)
    found = running.post("completion", {**BODY, "mirostat": 2, "mirostat_tau": 2.0}).json()
    assert found["content"] == want["choices"][0]["text"]
    assert running.post("completion", {**BODY, "temperature": -1}).status_code == 200


def test_repeat_last_n(running: serving.InThread, model_path: Path) -> None:
    body = {**BODY, "n_predict": 40, "temperature": 0, "repeat_penalty": 1.8}
    found = {}
    for n in (0, 3, 64, -1):
        answer = running.post("completion", {**body, "repeat_last_n": n}).json()
        found[n] = answer["content"]
        assert answer["generation_settings"]["repeat_last_n"] == n
        with Llama(model_path, n_ctx=256, last_n_tokens_size=n, verbose=False) as llm:
            want = llm(PROMPT, max_tokens=40, temperature=0, repeat_penalty=1.8)
        assert found[n] == want["choices"][0]["text"], n
    assert len({found[0], found[3], found[64]}) > 1


def test_probabilities(running: serving.InThread, llm: Llama) -> None:
    body = {**BODY, "n_predict": 3, "temperature": 0, "n_probs": 4}
    found = running.post("completion", body).json()["completion_probabilities"]
    want = llm(PROMPT, max_tokens=3, temperature=0, logprobs=4)["choices"][0]["logprobs"]
    assert [each["logprob"] for each in found] == pytest.approx(want["token_logprobs"], abs=1e-6)
    for each in found:
        assert set(each) == {"id", "token", "bytes", "logprob", "top_logprobs"}
        assert len(each["top_logprobs"]) == 4
        assert each["top_logprobs"][0] == {k: v for k, v in each.items() if k != "top_logprobs"}
        assert bytes(each["bytes"]).decode() == each["token"]
    also = running.post("completion", {**body, "n_probs": None, "logprobs": 4}).json()
    assert also["completion_probabilities"] == found
    refused = serving.refused(running.post("completion", {**body, "post_sampling_probs": True}))
    assert refused["param"] == "post_sampling_probs"
    allowed = {**BODY, "post_sampling_probs": True}
    assert running.post("completion", allowed).status_code == 200


def test_biases(running: serving.InThread, llm: Llama) -> None:
    """As pairs and as a dict, by ids and by texts, with numbers and false."""
    body = {**BODY, "temperature": 0, "return_tokens": True}
    first = running.post("completion", body).json()["tokens"][0]
    cat = llm.tokenize(b"cat", add_bos=False)
    for form in ([[first, False]], {str(first): False}, [[float(first), -1000]]):
        assert running.post("completion", {**body, "logit_bias": form}).json()["tokens"][0] != first
    for form in ([["cat", 1000.0]], {"cat": 1000.0}):
        found = running.post("completion", {**body, "logit_bias": form}).json()["tokens"]
        assert set(found) <= set(cat), form
    for bad in (
        [[1]],
        [[1, True]],
        [[-1, 1.0]],
        [[320000, 1.0]],
        [[1.5, 1]],
        [["a", "b"]],
        3,
        {"-1": 1},
    ):
        assert running.post("completion", {**body, "logit_bias": bad}).status_code == 400, bad
    end = {"logit_bias": [[llm.token_eos(), 1000.0]], "n_predict": 4}
    ended = running.post("completion", {**body, **end}).json()
    assert (ended["stop_type"], ended["content"], ended["tokens"]) == ("eos", "", [llm.token_eos()])
    going = running.post("completion", {**body, **end, "ignore_eos": True}).json()
    assert (going["stop_type"], going["tokens_predicted"]) == ("limit", 4)


def test_ends(running: serving.InThread) -> None:
    text = running.post("completion", {**BODY, "n_predict": 40}).json()["content"]
    word = text[5:8]
    for stop in (word, ["never there", word]):
        found = running.post("completion", {**BODY, "n_predict": 40, "stop": stop}).json()
        assert (found["stop_type"], found["stopping_word"]) == ("word", word)
        assert found["content"] == text[: text.index(word)]
    none = running.post("completion", {**BODY, "n_predict": 0}).json()
    assert (none["content"], none["stop_type"], none["truncated"]) == ("", "limit", False)
    assert (
        running.post("completion", {**BODY, "n_predict": None, "max_tokens": 3}).json()[
            "tokens_predicted"
        ]
        == 3
    )
    full = running.post("completion", {"prompt": PROMPT, "ignore_eos": True, "seed": 1}).json()
    assert (full["stop_type"], full["truncated"]) == ("limit", True)
    assert full["tokens_evaluated"] + full["tokens_predicted"] == 256


def test_grammars(running: serving.InThread) -> None:
    grammar = {**BODY, "grammar": 'root ::= "yes" | "no"'}
    assert running.post("completion", grammar).json()["content"] in ("yes", "no")
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    found = running.post("completion", {**BODY, "n_predict": 40, "json_schema": schema}).json()
    assert json.loads(found["content"])["a"] in (1, 2)
    error = serving.refused(running.post("completion", {**grammar, "json_schema": schema}))
    assert "exclude each other" in error["message"]
    assert running.post("completion", {**BODY, "grammar": ""}).status_code == 200


def test_time_limit(running: serving.InThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends a text that has a line break, and no other."""
    now = [0.0]
    monkeypatch.setattr("powerinfer_cpp.server.dialects.asked.time.monotonic", lambda: now[0])

    limit = TimeLimit(lambda token, first: b"\n" if token == 9 else b"a", 1.0)
    said = []
    for i, ids in enumerate(([9], [9, 1], [9, 1, 9], [9, 1, 9, 1])):
        now[0] = 0.7 * i
        said.append(limit(np.array(ids), np.zeros(1)))
    assert said == [False, False, True, True]
    body = {**BODY, "t_max_predict_ms": 1, "n_cmpl": 2}
    error = serving.refused(running.post("completion", body))
    assert error["param"] == "t_max_predict_ms"
    assert running.post("completion", {**body, "t_max_predict_ms": 0}).status_code == 200


def test_response_fields(running: serving.InThread) -> None:
    fields = ["content", "generation_settings/n_predict", "nothing", "content/x"]
    found = running.post("completion", {**BODY, "response_fields": fields}).json()
    assert set(found) == {"content", "generation_settings/n_predict"}
    assert found["generation_settings/n_predict"] == 12
    assert nested({"a": {"b": None}}, ["a/b", "a"]) == {"a/b": None, "a": {"b": None}}


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"prompt": 3}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[1], 2]}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, "prompt"),
        ({"n_predict": -2}, "n_predict"),
        ({"n_cmpl": 0}, "n_cmpl"),
        ({"n_probs": 1000}, "n_probs"),
        ({"min_keep": 5}, "min_keep"),
        ({"repeat_last_n": -2}, "repeat_last_n"),
        ({"stop": ["x"] * 40}, "stop"),
        ({"chat_template": "x"}, "chat_template"),
        ({"lora": [{"id": 3, "scale": 1.0}]}, "lora"),
    ],
)
def test_what_is_refused(running: serving.InThread, wrong: dict[str, Any], name: str) -> None:
    for stream in (False, True):
        answer = running.post("completion", {**BODY, **wrong, "stream": stream})
        assert serving.refused(answer)["param"] == name


def test_what_has_no_effect(running: serving.InThread) -> None:
    """Fields of llama.cpp that ask for nothing here, and unknown ones."""
    want = running.post("completion", BODY).json()["content"]
    extra = {"id_slot": 2, "cache_prompt": False, "n_keep": 5, "unknown": [], "min_keep": 0}
    assert running.post("completion", {**BODY, **extra}).json()["content"] == want
    assert math.isfinite(running.post("completion", BODY).json()["timings"]["prompt_ms"])


def test_the_other_routes_stay(running: serving.InThread) -> None:
    """/completions is OpenAI's, with and without /v1; /completion has no /v1."""
    for path in ("completions", "v1/completions"):
        assert running.post(path, {"prompt": "a", "max_tokens": 1}).json()["choices"]
    assert running.post("v1/completion", BODY).status_code == 404
