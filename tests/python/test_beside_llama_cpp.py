"""What callers of `Llama` get, here and from llama-cpp-python with the same file."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import golden, quiet
from gguf_files import changed
from powerinfer_cpp.convert import convert
from reference import relative_error

from powerinfer_cpp import Llama

pytestmark = pytest.mark.peer("llama_cpp")

# F32 caches, so that only the order of sums differs. llama.cpp rounds n_ctx up to 256.
OPTIONS: dict[str, Any] = {"n_ctx": 256, "verbose": False, "type_k": 0, "type_v": 0}
ROUNDING = 2e-5
TEMPLATE = """{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""
CHAT = [{"role": "system", "content": "be"}, {"role": "user", "content": "the cat"}]
PROMPT = "the cat said"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beside")
    plain = golden("llama-silu-tied", folder / "model", max_position_embeddings=256)
    plain = convert(plain, outtype="f32", outfile=folder / "plain.gguf", log=quiet)
    return changed(plain, folder / "model.gguf", {"tokenizer.chat_template": TEMPLATE})


@pytest.fixture  # anew for each test: llama-cpp-python's `sample` goes on with an old sampler
def both(path: Path) -> Iterator[tuple[Llama, Any]]:
    import llama_cpp

    theirs = llama_cpp.Llama(str(path), n_threads=1, logits_all=True, **OPTIONS)
    with Llama(path, logits_all=True, **OPTIONS) as ours:
        yield ours, theirs
    theirs.close()


def answer(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key not in ("id", "created", "model")}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"echo": True},
        {"stop": ["e", "\n", "zz"]},
        {"logit_bias": {"40": 4.0, "50": 4.0}},
        {"suffix": None},
        {"max_tokens": 1},
        {"max_tokens": 100},
        {"max_tokens": None},
        {"prompt": [1, 5, 6]},
    ],
    ids=str,
)
def test_completions(options: dict[str, Any], both: tuple[Llama, Any]) -> None:
    call = {"prompt": PROMPT, "temperature": 0, "max_tokens": 20, **options}
    ours, theirs = (answer(llm.create_completion(**call)) for llm in both)
    assert ours == theirs


@pytest.mark.parametrize(
    "options",
    [
        {"repeat_penalty": 1.3},
        {"presence_penalty": 1.5},
        {"frequency_penalty": 0.8, "presence_penalty": -0.4, "repeat_penalty": 1.1},
    ],
    ids=str,
)
def test_penalties(options: dict[str, Any], both: tuple[Llama, Any]) -> None:
    """Behind a prompt without text: llama-cpp-python penalises only what it has generated. Here, as
    in llama.cpp's programs, the prompt's tokens count as well."""
    call = {"prompt": [1], "temperature": 0, "max_tokens": 40}
    ours, theirs, plain = (
        answer(llm(**call, **more))["choices"][0]["text"]
        for llm, more in ((both[0], options), (both[1], options), (both[0], {}))
    )
    assert ours == theirs != plain


def test_chats(both: tuple[Llama, Any]) -> None:
    call = {"messages": CHAT, "temperature": 0, "max_tokens": 20}
    ours, theirs = (answer(llm.create_chat_completion(**call)) for llm in both)
    assert ours == theirs and ours["choices"][0]["message"]["content"]


@pytest.mark.parametrize("chat", [False, True])
def test_streams(chat: bool, both: tuple[Llama, Any]) -> None:
    """The same text, not in the same pieces: llama-cpp-python also sends chunks without text."""
    found = []
    for llm in both:
        call = {"temperature": 0, "max_tokens": 20, "stream": True}
        chunks = llm.create_chat_completion(CHAT, **call) if chat else llm(PROMPT, **call)
        chunks = [answer(chunk) for chunk in chunks]
        parts = [chunk["choices"][0] for chunk in chunks]
        pieces = [part["delta"].get("content", "") if chat else part["text"] for part in parts]
        assert all(part["finish_reason"] is None for part in parts[:-1]) and "".join(pieces)
        keys = {frozenset(chunk) for chunk in chunks}, {frozenset(part) for part in parts}
        found.append(["".join(pieces), keys, chunks[0], chunks[-1]])
    assert found[0] == found[1]


def test_logprobs(both: tuple[Llama, Any]) -> None:
    """Of tokens that are whole characters: llama-cpp-python has no names for others."""
    ours, theirs = (
        llm(PROMPT, temperature=0, max_tokens=20, logprobs=3)["choices"][0]["logprobs"]
        for llm in both
    )
    assert ours.keys() == theirs.keys() and ours["text_offset"] == theirs["text_offset"]
    assert np.allclose(ours["token_logprobs"], theirs["token_logprobs"], atol=1e-4)
    whole = 0
    for i, token in enumerate(ours["tokens"]):
        if not token.startswith("bytes:"):
            assert theirs["tokens"][i] == token
            whole += 1
        for name, value in theirs["top_logprobs"][i].items():
            assert not name or abs(ours["top_logprobs"][i][name] - value) < 1e-4
    assert whole >= 3


@pytest.mark.parametrize("normalize", [False, True])
def test_embeddings(normalize: bool, path: Path) -> None:
    import llama_cpp

    theirs = llama_cpp.Llama(str(path), n_threads=1, embedding=True, **OPTIONS)
    with Llama(path, embedding=True, **OPTIONS) as ours:
        for text in ("the cat", "a"):
            found, want = (np.array(llm.embed(text, normalize=normalize)) for llm in (ours, theirs))
            assert found.shape == want.shape and relative_error(found, want) < ROUNDING
        call = ["the cat", "the dog said"]
        found, want = (answer(llm.create_embedding(call)) for llm in (ours, theirs))
        assert found["usage"] == want["usage"] and found["object"] == want["object"]
        for one, other in zip(found["data"], want["data"], strict=True):
            assert one.keys() == other.keys() and one["index"] == other["index"]
            assert np.shape(one["embedding"]) == np.shape(other["embedding"])
    theirs.close()


def test_tokens(both: tuple[Llama, Any]) -> None:
    """Of UTF-8: llama.cpp takes a wrong byte for the first of several, and loses a space there."""
    ours, theirs = both
    for text in (b"", b" ", b"  the</s> cat", "Gr\u00fc\u00dfe \u4f60\n".encode()):
        for options in ({}, {"add_bos": False}, {"special": True}):
            ids = ours.tokenize(text, **options)
            assert ids == theirs.tokenize(text, **options), (text, options)
            assert ours.detokenize(ids) == theirs.detokenize(ids)
            assert ours.detokenize(ids, special=True) == theirs.detokenize(ids, special=True)
            cut = {"tokens": ids[1:], "prev_tokens": ids[:1]}
            assert ours.detokenize(**cut) == theirs.detokenize(**cut)
    for name in ("n_embd", "n_vocab", "n_ctx", "token_bos", "token_eos", "token_nl"):
        assert getattr(ours, name)() == getattr(theirs, name)(), name


METHODS = (
    *("__call__", "create_completion", "create_chat_completion", "generate", "sample", "eval"),
    *("tokenize", "detokenize", "embed", "create_embedding", "load_state", "set_cache"),
    *("set_seed", "logits_to_logprobs", "longest_token_prefix"),
)


def places(method: Any) -> list[str]:
    found = inspect.signature(method).parameters.items()
    return [name for name, p in found if p.kind == p.POSITIONAL_OR_KEYWORD]


@pytest.mark.parametrize("method", METHODS)
def test_arguments_have_their_places(method: str) -> None:
    """Up to the first that is only a keyword here: tfs_z, which has no effect. `generate` has kept
    its own place of `reset`, behind the penalties: docs/llama-cpp-python.md says so."""
    import llama_cpp

    ours, theirs = (places(getattr(kind, method)) for kind in (Llama, llama_cpp.Llama))
    if method == "generate":
        assert theirs.index("reset") == 8 and ours.index("reset") == 10
        for names in (ours, theirs):
            names.remove("reset")
    shared = list(takewhile(ours.__contains__, theirs))
    assert ours[: len(shared)] == shared
    if len(shared) < len(theirs):
        assert method in ("generate", "sample") and shared[-1] == "presence_penalty"


def test_generate_with_all_keywords(both: tuple[Llama, Any]) -> None:
    import llama_cpp

    from powerinfer_cpp import LlamaGrammar

    found, rules = [], 'root ::= ("cat" | "dog") (" " [a-d]+)'
    for llm, kind in zip(both, (LlamaGrammar, llama_cpp.LlamaGrammar), strict=True):
        old = {"tfs_z": 0.9, "mirostat_mode": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1}
        grammar = kind.from_string(rules, verbose=False)
        by_place = ([1, 5, 6], 40, 0.95, 0.05, 1.0, 0.0, 1.1)
        old |= {"reset": True, "frequency_penalty": 0.1, "presence_penalty": 0.2}
        ids = llm.generate(*by_place, penalize_nl=False, grammar=grammar, **old)
        found.append(llm.detokenize(list(islice(ids, 12))))
    assert found[0] == found[1] and found[0][:3] in (b"cat", b"dog")


def test_metadata(both: tuple[Llama, Any]) -> None:
    """llama.cpp writes six places of a number behind its point."""
    ours, theirs = (llm.metadata for llm in both)
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert ours[key] == value or abs(float(ours[key]) - float(value)) < 1e-6, key


def test_eval_and_states(both: tuple[Llama, Any]) -> None:
    found = []
    for llm in both:
        llm.reset()
        llm.eval([1, 5, 6, 7])
        state, chosen = llm.save_state(), llm.sample(temp=0.0)
        llm.eval([chosen, 8])
        after = llm.n_tokens
        llm.load_state(state)
        ids = [list(map(int, llm.eval_tokens)), llm.input_ids[:4].tolist()]
        found.append([chosen, after, llm.n_tokens, ids, np.array(llm.scores[:4], np.float64)])
    assert found[0][:4] == found[1][:4]
    assert relative_error(found[0][4], found[1][4]) < ROUNDING
