"""Log-probabilities against float64 numpy, and as read by lm-evaluation-harness."""

from __future__ import annotations

import math
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import reference
import tiny
from powerinfer_cpp.text.logprobs import choice, likeliest, token_name

from powerinfer_cpp import Llama


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory):
    path = tiny.make(tmp_path_factory.mktemp("logprobs"))
    with Llama(path, n_ctx=128, type_k=0, type_v=0, verbose=False) as opened:
        yield opened


def expected(ids: list[int]) -> np.ndarray:
    """float64 [n, n_vocab]: log-probabilities after each id."""
    x = reference.logits(tiny.CONFIG, checkpoints.weights(tiny.CONFIG), ids, "silu")
    x -= x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def name(llm: Llama, token: int) -> str:
    return token_name(llm.detokenize([token], special=True))


def test_of_a_completion(llm: Llama) -> None:
    done = llm(tiny.PROMPT, max_tokens=8, temperature=0, logprobs=3)
    found = done["choices"][0]["logprobs"]
    assert set(found) == {"text_offset", "tokens", "token_logprobs", "top_logprobs"}
    ids = llm.input_ids[: llm.n_tokens].tolist()
    n_prompt = done["usage"]["prompt_tokens"]
    want = expected(ids)
    n = done["usage"]["completion_tokens"]
    assert {len(values) for values in found.values()} == {n}
    for i in range(n - 1):  # the last token was never computed
        row, token = want[n_prompt + i - 1], ids[n_prompt + i]
        assert found["token_logprobs"][i] == pytest.approx(row[token], abs=1e-3)
        best = np.argsort(-row)[:3]
        assert found["top_logprobs"][i] == pytest.approx(
            {name(llm, int(b)): row[b] for b in best}, abs=1e-3
        )
        assert found["tokens"][i] == name(llm, token)
    assert found["text_offset"][0] == len(tiny.PROMPT)


def test_the_logits_are_the_models_own(llm: Llama) -> None:
    options = {"max_tokens": 1, "logprobs": 1, "temperature": 0}
    plain = llm(tiny.PROMPT, **options)["choices"][0]["logprobs"]
    changed = llm(tiny.PROMPT, logit_bias={7: 100}, **options)["choices"][0]["logprobs"]
    assert changed["tokens"] == [name(llm, 7)]
    assert changed["token_logprobs"][0] < plain["token_logprobs"][0]
    best = max(changed["top_logprobs"][0], key=changed["top_logprobs"][0].get)
    assert best == plain["tokens"][0] and len(changed["top_logprobs"][0]) == 2
    nothing = llm(tiny.PROMPT, max_tokens=2, logprobs=0)["choices"][0]["logprobs"]
    assert [len(top) for top in nothing["top_logprobs"]] == [1, 1]
    for wrong in (-1, "2", True):
        with pytest.raises(ValueError, match="logprobs must be"):
            llm(tiny.PROMPT, logprobs=wrong)


@pytest.mark.parametrize("n_batch", [512, 7])
def test_echo(llm: Llama, n_batch: int) -> None:
    text = "a small model tells \u20ac a story " * 3
    with Llama(
        llm.model_path, n_ctx=256, n_batch=n_batch, type_k=0, type_v=0, verbose=False
    ) as other:
        done = other(text, max_tokens=1, temperature=0, logprobs=10, echo=True)
        found = done["choices"][0]["logprobs"]
        ids = other.tokenize(text.encode())
    want = expected(ids)
    assert len(found["tokens"]) == len(ids) + 1
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    for i, token in enumerate(ids[1:], 1):
        assert found["token_logprobs"][i] == pytest.approx(want[i - 1, token], abs=1e-3)
        assert len(found["top_logprobs"][i]) in (10, 11)
    assert found["text_offset"][-1] == len(text)
    said = done["choices"][0]["text"]
    assert said.startswith(text)
    for begin, end, token in zip(
        found["text_offset"][1:], found["text_offset"][2:], found["tokens"][1:], strict=False
    ):
        assert said[begin:end] == token or token.startswith("bytes:")


def harness(found: dict, context_length: int) -> tuple[float, bool]:
    """The values that lm-evaluation-harness's client `gguf` reads from logprobs."""
    at = 0
    while found["text_offset"][at] < context_length:
        at += 1
    greedy = all(
        max(top, key=top.get) == token
        for token, top in zip(found["tokens"][at:], found["top_logprobs"][at:], strict=True)
    )
    return sum(found["token_logprobs"][at:-1]), greedy


@pytest.mark.parametrize("after", [" jumps over", " the lazy dog.", "!"])
def test_what_a_harness_reads(llm: Llama, after: str) -> None:
    done = llm(tiny.PROMPT + after, max_tokens=1, temperature=0.0, logprobs=10, echo=True)
    total, _ = harness(done["choices"][0]["logprobs"], len(tiny.PROMPT))
    ids = llm.tokenize((tiny.PROMPT + after).encode())
    n = len(llm.tokenize(tiny.PROMPT.encode()))
    assert llm.detokenize(ids[:n]) == tiny.PROMPT.encode()
    rows = expected(ids)
    assert total == pytest.approx(sum(rows[i - 1, ids[i]] for i in range(n, len(ids))), abs=1e-2)


def test_a_harness_sees_greedy_text(llm: Llama) -> None:
    prompt = llm.tokenize(tiny.PROMPT.encode())
    said = []
    for token in llm.generate(prompt, temp=0):
        said.append(token)
        if len(said) == 6:
            break
    done = llm([*prompt, *said], max_tokens=1, temperature=0.0, logprobs=10, echo=True)
    total, greedy = harness(done["choices"][0]["logprobs"], len(tiny.PROMPT))
    assert greedy and total < 0
    other = [*prompt, *said[:-1], said[-1] ^ 1]
    done = llm(other, max_tokens=1, temperature=0.0, logprobs=10, echo=True)
    assert not harness(done["choices"][0]["logprobs"], len(tiny.PROMPT))[1]


def test_an_end_token_counts_where_a_harness_expects_one(llm: Llama) -> None:
    options = {"max_tokens": 1, "logit_bias": {llm.token_eos(): 1000}, "logprobs": 2}
    with_echo = llm(tiny.PROMPT, echo=True, **options)["choices"][0]
    assert with_echo["logprobs"]["tokens"][-1] == "</s>" and with_echo["text"] == tiny.PROMPT
    assert llm(tiny.PROMPT, **options)["choices"][0]["logprobs"]["tokens"] == []


@pytest.mark.parametrize("stop", [[], ["wor"], ["\u20ac"]])
def test_streams_and_stops(llm: Llama, stop: list[str]) -> None:
    said = "hello \u20ac world"
    options = {"stop": stop, "logprobs": 2, "max_tokens": 30}
    whole = llm("a", logits_processor=tiny.Say(llm._model, said), **options)["choices"][0]
    chunks = [
        c["choices"][0]
        for c in llm("a", logits_processor=tiny.Say(llm._model, said), stream=True, **options)
    ]
    for key in whole["logprobs"]:
        assert [v for c in chunks for v in c["logprobs"][key]] == whole["logprobs"][key]
    offsets = whole["logprobs"]["text_offset"]
    assert all(1 <= offset <= 1 + len(whole["text"]) for offset in offsets)
    if not stop:
        assert len(offsets) == len(said.encode()) and "bytes:\\xe2" in whole["logprobs"]["tokens"]
    echoed = list(llm("a", stream=True, echo=True, logprobs=1, max_tokens=2))
    assert echoed[0]["choices"][0]["text"] == "a"
    assert echoed[0]["choices"][0]["logprobs"]["token_logprobs"][0] is None


def test_of_a_chat(llm: Llama) -> None:
    options = {"logprobs": True, "top_logprobs": 2, "max_tokens": 5, "temperature": 0}
    messages = [{"role": "user", "content": "hello"}]
    done = llm.create_chat_completion(messages, **options)
    content = done["choices"][0]["logprobs"]["content"]
    assert len(content) == done["usage"]["completion_tokens"]
    for entry in content:
        assert set(entry) == {"token", "bytes", "logprob", "top_logprobs"}
        assert entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0]["bytes"] == entry["bytes"]
        assert math.isclose(entry["top_logprobs"][0]["logprob"], entry["logprob"])
    chunks = llm.create_chat_completion(messages, stream=True, **options)
    parts = [c["choices"][0]["logprobs"] for c in chunks]
    assert [e for p in parts if p for e in p["content"]] == content


def test_names_of_tokens() -> None:
    assert token_name(b" a") == " a" and token_name("\u20ac".encode()) == "\u20ac"
    assert token_name(b"\xe2\x82") == "bytes:\\xe2\\x82"


def test_with_logits_all(llm: Llama) -> None:
    want = llm(tiny.PROMPT, max_tokens=2, temperature=0, logprobs=1, echo=True)
    with Llama(
        Path(llm.model_path), n_ctx=64, logits_all=True, type_k=0, type_v=0, verbose=False
    ) as other:
        got = other(tiny.PROMPT, max_tokens=2, temperature=0, logprobs=1, echo=True)
    assert got["choices"] == want["choices"]


def test_the_likeliest_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a stable sort: with equal logits, few blocks, and more than there are."""
    rng = np.random.default_rng(0)
    for n in (1, 300, 40_000):
        for logits in (
            rng.standard_normal(n).astype(np.float32),
            rng.integers(0, 5, n).astype(np.float32),
            np.zeros(n, np.float32),
            np.where(rng.random(n) < 0.999, -np.inf, 1).astype(np.float32),
        ):
            order = np.argsort(-logits, kind="stable")
            for most in (0, 1, 7, 100, n + 1):
                assert likeliest(logits, most).tolist() == order[:most].tolist()
    broken = np.full(3000, np.nan, np.float32)
    assert len(likeliest(broken, 5)) == 5
    # Only a part of the vocabulary is sorted.
    sizes: list[int] = []
    partition = np.partition
    monkeypatch.setattr(np, "partition", lambda x, *at: sizes.append(len(x)) or partition(x, *at))
    likeliest(rng.standard_normal(150_000).astype(np.float32), 20)
    assert sizes and max(sizes) < 1000


def test_a_choice_takes_little(llm: Llama) -> None:
    """Its candidates are an array, and as exact as a float64 softmax."""
    logits = (np.random.default_rng(1).standard_normal(50_000) * 4).astype(np.float32)
    found = choice(7, logits, 100)
    assert found.likely is not None and found.likely.nbytes == 100 * 12
    x = logits.astype(np.float64)
    x -= np.log(np.exp(x - x.max()).sum()) + x.max()
    assert found.logprob == pytest.approx(x[7], abs=1e-5)
    best = np.argsort(-x, kind="stable")[:100]
    assert found.top is not None and [token for token, _ in found.top] == best.tolist()
    assert [p for _, p in found.top] == pytest.approx(x[best].tolist(), abs=1e-5)
