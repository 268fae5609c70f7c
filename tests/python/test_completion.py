"""Completions of `Llama`: their dicts, and where a text ends."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import tiny
from powerinfer_cpp.text.completion import TextStream, Writer
from tiny import BYTE, PROMPT, greedy, text

from powerinfer_cpp import ContextOverflowError, Llama


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("completion"))


@pytest.fixture
def llm(path: Path):
    with Llama(path, n_ctx=128, verbose=False) as opened:
        yield opened


def test_completion_dict(llm: Llama, path: Path) -> None:
    done = llm(PROMPT, max_tokens=8, temperature=0)
    assert done == llm.create_completion(PROMPT, max_tokens=8, temperature=0) | {
        "id": done["id"],
        "created": done["created"],
    }
    assert done["id"].startswith("cmpl-") and done["object"] == "text_completion"
    assert abs(done["created"] - time.time()) < 60 and done["model"] == str(path)
    n = len(llm.tokenize(PROMPT.encode()))
    assert done["usage"] == {"prompt_tokens": n, "completion_tokens": 8, "total_tokens": n + 8}
    (choice,) = done["choices"]
    assert set(choice) == {"text", "index", "logprobs", "finish_reason"}
    assert (
        choice["finish_reason"] == "length" and choice["index"] == 0 and choice["logprobs"] is None
    )
    ids = greedy(llm, llm.tokenize(PROMPT.encode()), 8)
    assert choice["text"] == llm.detokenize(ids).decode("utf-8", "ignore")


def test_stream_equals_the_whole(llm: Llama) -> None:
    for seed in range(5):
        whole = llm(PROMPT, max_tokens=40, temperature=1.5, seed=seed)
        chunks = list(llm(PROMPT, max_tokens=40, temperature=1.5, seed=seed, stream=True))
        assert "".join(text(c) for c in chunks) == text(whole)
        reasons = [c["choices"][0]["finish_reason"] for c in chunks]
        assert reasons[-1] == whole["choices"][0]["finish_reason"] and set(reasons[:-1]) <= {None}
        assert len({c["id"] for c in chunks}) == 1 and all("usage" not in c for c in chunks)


def test_prompts(llm: Llama) -> None:
    ids = llm.tokenize(PROMPT.encode())
    answers = [
        llm(p, max_tokens=5, temperature=0) for p in (PROMPT, PROMPT.encode(), ids, f"<s>{PROMPT}")
    ]
    assert len({text(a) for a in answers[:3]}) == 1
    assert answers[3]["usage"]["prompt_tokens"] - len(ids) in (0, 1)  # one BOS, not two
    assert llm("", max_tokens=2)["usage"]["prompt_tokens"] == 1
    assert text(llm(PROMPT, max_tokens=5, temperature=0, echo=True)) == PROMPT + text(answers[0])
    assert text(llm(ids, max_tokens=5, temperature=0, echo=True)) == PROMPT + text(answers[0])
    assert llm(b"\xff\xfe\x00", max_tokens=2)["usage"]["completion_tokens"] == 2


def test_max_tokens_and_the_context(llm: Llama) -> None:
    prompt = [1] * 100
    bias = {llm.token_eos(): -1000}
    for n in (None, 0, -1, 1000):
        done = llm(prompt, max_tokens=n, logit_bias=bias)
        assert done["usage"]["completion_tokens"] == 28
        assert done["choices"][0]["finish_reason"] == "length"
    with pytest.raises(ContextOverflowError, match="128 tokens"):
        llm([1] * 128)
    with pytest.raises(ContextOverflowError):
        llm([1] * 128, stream=True)


def test_end_tokens(llm: Llama) -> None:
    done = llm(PROMPT, max_tokens=5, logit_bias={"2": 1000})
    assert text(done) == "" and done["choices"][0]["finish_reason"] == "stop"
    assert done["usage"]["completion_tokens"] == 0
    with pytest.raises(ValueError, match="logit_bias"):
        llm(PROMPT, logit_bias={100000: 1})


def test_seeds(llm: Llama, path: Path) -> None:
    def said(model: Llama, **options) -> str:
        return text(model(PROMPT, max_tokens=12, temperature=1.5, **options))

    assert said(llm, seed=3) == said(llm, seed=3) != said(llm, seed=4)
    with Llama(path, seed=9, verbose=False) as a, Llama(path, seed=9, verbose=False) as b:
        assert [said(a), said(a)] == [said(b), said(b)]


def test_what_is_not_there_yet_is_refused(llm: Llama) -> None:
    for option in ({"tfs_z": 0.5},):
        with pytest.raises(ValueError, match=f"{next(iter(option))} is not supported"):
            llm(PROMPT, **option)
    with pytest.raises(ValueError, match="stop must be"):
        llm(PROMPT, stop=[3])
    assert (
        text(llm(PROMPT, suffix="", logprobs=None, grammar=None, tfs_z=1.0, max_tokens=1))
        is not None
    )


def test_the_default_model_tells_a_story(model_path: Path) -> None:
    with Llama(model_path, verbose=False) as llm:
        said = text(llm("Once upon a time", max_tokens=40, temperature=0))
    assert "there was" in said and len(said.split()) > 15


# ---- Where a text ends ----


def forced(llm: Llama, said: str, **options) -> dict | list[dict]:
    """A completion in which the model says `said`, one byte a token, then other things."""
    ids = [BYTE + b for b in said.encode()]
    assert llm.detokenize(ids) == said.encode()
    count = iter(range(10**6))

    def force(_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        step = next(count)
        scores[:] = -np.inf
        scores[ids[step] if step < len(ids) else BYTE + ord("x")] = 0
        return scores

    done = llm("a", logits_processor=force, **options)
    return list(done) if options.get("stream") else done


@pytest.mark.parametrize(
    ("said", "stop", "want", "reason"),
    [
        ("hello END more", ["END"], "hello ", "stop"),
        ("hello END more", "END", "hello ", "stop"),
        ("aaab", ["aab"], "a", "stop"),
        ("one two", ["two", "ne"], "o", "stop"),
        ("ENDEN", ["ENDING"], "ENDEN", "length"),
        ("caf\u00e9 \u20ac \U0001f600!", ["!"], "caf\u00e9 \u20ac \U0001f600", "stop"),
        ("\u20ac\u20ad", ["\u20ad"], "\u20ac", "stop"),
        ("no stop", [""], "no stop", "length"),
    ],
)
def test_stop_strings(llm: Llama, said: str, stop: object, want: str, reason: str) -> None:
    n = len(said.encode())
    done = forced(llm, said, stop=stop, max_tokens=n)
    assert text(done) == want and done["choices"][0]["finish_reason"] == reason
    chunks = forced(llm, said, stop=stop, max_tokens=n, stream=True)
    assert (
        "".join(map(text, chunks)) == want and chunks[-1]["choices"][0]["finish_reason"] == reason
    )
    assert all("\ufffd" not in text(c) for c in chunks)


def test_a_character_cut_by_max_tokens(llm: Llama) -> None:
    assert text(forced(llm, "ab\u20ac", max_tokens=4)) == "ab"


def test_text_stream_holds_back_as_little_as_it_can() -> None:
    stream = TextStream([b"END", b"\n\n"])
    assert [stream.push(p) for p in (b"a E", b"N", b"x", b"\n", b"b\xe2\x82", b"\xac")] == [
        "a ",
        "",
        "ENx",
        "",
        "\nb",
        "\u20ac",
    ]
    assert stream.push(b" EN") == " " and stream.finish() == "EN" and stream.stop is None


def test_which_stop_text_was_found() -> None:
    for order in ([b"ab", b"abc"], [b"abc", b"ab"]):
        stream = TextStream(order)
        assert stream.push(b"xabc") == "x" and stream.stop == order[0]
    writer = Writer(9, [b"c", b"ab"])
    first, held, last = (writer.push(data) for data in (b"x", b"a", b"bc"))
    assert held is None and first is not None and first.stop is None
    assert last is not None and (last.text, last.reason, last.stop) == ("", "stop", "ab")
    last = Writer(1, [b"ab"]).push(b"a")
    assert last is not None and (last.text, last.reason, last.stop) == ("a", "length", None)
