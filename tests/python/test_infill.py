"""Text in the middle: FIM tokens of files, the prompt around them, `suffix` of completions."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import serving
import tiny
from gguf_files import changed
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.server.dialects.asked import Indentation
from powerinfer_cpp.text.infill import FimTokens, fim_tokens
from sentencepiece import SentencePieceProcessor

from powerinfer_cpp import Llama

FIRST = 300  # these tokens of the tiny model have no text
CODE_LLAMA = ["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"]
QWEN = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
ENDS = ["<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
CONTROL = 3  # pi_token types, as in GGUF
PREFIX, SUFFIX = "the dog said", "and the cat  slept </s>"


def with_tokens(source: Path, target: Path, texts: list[str], keys: dict[str, Any] | None = None):
    """A copy of the tiny model with these control tokens, from FIRST on."""
    with Gguf(source) as gguf:
        tokens = list(gguf.metadata["tokenizer.ggml.tokens"])
        types = list(gguf.metadata["tokenizer.ggml.token_type"])
    tokens[FIRST : FIRST + len(texts)] = texts
    types[FIRST : FIRST + len(texts)] = [CONTROL] * len(texts)
    named = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    return changed(source, target, {**named, **(keys or {})})


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def path(plain: Path) -> Path:
    return with_tokens(plain, plain.with_name("fim.gguf"), CODE_LLAMA)


@pytest.fixture(scope="module")
def llm(path: Path):
    with Llama(path, n_ctx=128, verbose=False) as opened:
        yield opened


def keys(*ids: int, names: str = "fim_pre fim_suf fim_mid") -> dict[str, int]:
    pairs = zip(names.split(), ids, strict=True)
    return {f"tokenizer.ggml.{name}_token_id": id_ for name, id_ in pairs}


@pytest.mark.parametrize(
    ("texts", "given", "want"),
    [
        (CODE_LLAMA, {}, (0, 1, 2)),
        ([QWEN[2], QWEN[0], QWEN[1]], {}, (1, 2, 0)),
        (["<fim_prefix>", "<fim_suffix>", "<fim_middle>"], {}, (0, 1, 2)),
        (["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"], {}, (0, 1, 2)),
        (["a1", "b1", "c1"], keys(302, 300, 301), (2, 0, 1)),
        (["a1", "b1", "c1"], keys(300, 301, 302, names="prefix suffix middle"), (0, 1, 2)),
        # The key counts where there is a text as well, and the text where there is no key.
        ([*QWEN, "a1"], keys(303, names="fim_pre"), (3, 1, 2)),
        (QWEN[:2], {}, None),
    ],
)
def test_fim_tokens(
    texts: list[str], given: dict[str, int], want: Any, plain: Path, tmp_path: Path
) -> None:
    file = with_tokens(plain, tmp_path / "x.gguf", texts, given)
    found = FimTokens(*(FIRST + i for i in want)) if want else None
    with Gguf(file) as gguf:
        assert fim_tokens(gguf, 320) == found


@pytest.mark.peer("llama_cpp")
@pytest.mark.parametrize("texts", [CODE_LLAMA, QWEN + ENDS, ["<fim-suffix>", "<PRE>", "<MID>"]])
def test_they_are_those_of_llama_cpp(texts: list[str], plain: Path, tmp_path: Path) -> None:
    import llama_cpp

    file = with_tokens(plain, tmp_path / "x.gguf", texts)
    theirs = llama_cpp.Llama(str(file), vocab_only=True, verbose=False)
    vocab = theirs._model.vocab
    named = (llama_cpp.llama_vocab_fim_pre, llama_cpp.llama_vocab_fim_suf)
    ids = [find(vocab) for find in (*named, llama_cpp.llama_vocab_fim_mid)]
    with Gguf(file) as gguf:
        assert fim_tokens(gguf, 320) == FimTokens(*ids)
    with Llama(file, vocab_only=True, verbose=False) as ours:
        for i in range(FIRST, FIRST + len(texts)):
            if texts[i - FIRST] != "▁<EOT>":  # which llama.cpp knows by its key alone
                assert ours._model.ends(i) == llama_cpp.llama_vocab_is_eog(vocab, i)


@pytest.mark.peer("transformers")
def test_ids_are_those_of_code_llama(llm: Llama) -> None:
    """Of transformers' tokenizer, where the suffix begins with a space: to others it adds one."""
    from test_spm_json import extracted
    from transformers import CodeLlamaTokenizer

    vocab, merges = extracted(checkpoints.tokenizer())
    vocab |= {text: FIRST + i for i, text in enumerate(CODE_LLAMA)}
    theirs = CodeLlamaTokenizer(vocab=vocab, merges=[tuple(pair) for pair in merges])
    for prefix, suffix in ((PREFIX, " and the cat"), ("a", " b"), ("the  ", " dog.")):
        assert llm._prompts.infill_ids(prefix, suffix) == theirs(prefix, suffix=suffix)["input_ids"]


@pytest.mark.parametrize("suffix", ["x", " x", "  x", "\nthe dog.", " ", "the cat  slept", ""])
def test_a_suffix_gets_no_space(suffix: str, llm: Llama) -> None:
    """As Code Llama was trained: ids of sentencepiece behind another character."""
    model = SentencePieceProcessor(model_proto=checkpoints.tokenizer())
    mark = model.encode("\u263a")
    want = model.encode("\u263a" + suffix)
    assert want[: len(mark)] == mark and len(mark) == 4  # a space and three bytes
    ids = llm._prompts.infill_ids("a", suffix)
    assert ids[ids.index(FIRST + 1) + 1 : -1] == want[len(mark) :]


def test_the_prompt_of_a_suffix(llm: Llama, path: Path) -> None:
    before = llm.tokenize(PREFIX.encode(), add_bos=False)
    behind = llm._prompts.infill_ids("", SUFFIX)[3:-1]
    assert llm.detokenize(behind) == SUFFIX.encode()  # no added space, and </s> is text
    want = [llm.token_bos(), FIRST, *before, FIRST + 1, *behind, FIRST + 2]
    assert llm._prompts.infill_ids(PREFIX, SUFFIX) == want
    assert llm._prompts.infill_ids(before, behind) == want
    options = {"max_tokens": 6, "seed": 1}
    found = llm(PREFIX, suffix=SUFFIX, **options)
    assert found["choices"] == llm(want, **options)["choices"]
    placed = llm(PREFIX, suffix=SUFFIX, logprobs=1, **options)["choices"][0]["logprobs"]
    assert len(placed["tokens"]) == 6 and placed["text_offset"][0] == len(PREFIX)
    assert found["usage"]["prompt_tokens"] == len(want)
    parts = llm(PREFIX, SUFFIX, stream=True, **options)
    text = found["choices"][0]["text"]
    assert "".join(part["choices"][0]["text"] for part in parts) == text
    assert llm(PREFIX, SUFFIX, echo=True, **options)["choices"][0]["text"] == PREFIX + text
    assert llm(PREFIX, "", **options)["choices"] == llm(PREFIX, **options)["choices"]
    with Llama(path, n_ctx=128, verbose=False, spm_infill=True) as other:
        swapped = [llm.token_bos(), FIRST + 1, *behind, FIRST, *before, FIRST + 2]
        assert other._prompts.infill_ids(PREFIX, SUFFIX) == swapped


def test_what_comes_after_the_middle_ends_it(plain: Path, tmp_path: Path) -> None:
    file = with_tokens(plain, tmp_path / "x.gguf", QWEN + ENDS)
    with Llama(file, n_ctx=64, verbose=False) as llm:
        assert [llm._model.ends(FIRST + i) for i in range(6)] == [False] * 3 + [True] * 3
        done = llm(PREFIX, "x", logit_bias={FIRST + 3: 1000}, max_tokens=4)["choices"][0]
        assert (done["text"], done["finish_reason"]) == ("", "stop")
    named = keys(300, 301, 302, names="fim_pad fim_rep fim_sep")
    with Llama(with_tokens(plain, file, ["a1", "b1", "c1"], named), verbose=False) as llm:
        assert [llm._model.ends(FIRST + i) for i in range(3)] == [True] * 3


@pytest.mark.parametrize("name", ["fim_pad", "fim_rep", "fim_sep", "fim_pre", "fim_suf", "fim_mid"])
def test_a_token_that_is_none(
    name: str, plain: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = with_tokens(plain, tmp_path / "bad.gguf", QWEN, keys(320, names=name))
    with caplog.at_level(logging.WARNING), Llama(file, n_ctx=64, verbose=False):
        pass
    assert f"bad.gguf: tokenizer.ggml.{name}_token_id: there is no token 320" in caplog.text


def test_what_cannot_be(llm: Llama, plain: Path, tmp_path: Path) -> None:
    other = Llama(plain, n_ctx=64, verbose=False)
    with other, pytest.raises(ValueError, match=r"tiny\.gguf has no FIM tokens"):
        other(PREFIX, suffix="x")
    with pytest.raises(ValueError, match="echo has no logprobs"):
        llm(PREFIX, suffix="x", echo=True, logprobs=0)
    file = with_tokens(plain, tmp_path / "bad.gguf", QWEN, keys(320, names="fim_suf"))
    other = Llama(file, n_ctx=64, verbose=False)
    with other:  # its text says which token it is
        assert other._prompts.fim_tokens == llm._prompts.fim_tokens


# ---- The server ----


@pytest.fixture(scope="module")
def running(path: Path):
    with serving.in_thread(path, n_parallel=2, n_ctx=128) as found:
        yield found


def test_suffix_of_a_completion(running: serving.InThread, llm: Llama) -> None:
    client = running.openai()
    options = {"max_tokens": 6, "seed": 1, "temperature": 0.8}
    want = llm(PREFIX, suffix=SUFFIX, **options)
    made = client.completions.create(model="x", prompt=PREFIX, suffix=SUFFIX, **options)
    assert made.choices[0].text == want["choices"][0]["text"]
    assert made.usage.prompt_tokens == want["usage"]["prompt_tokens"]
    again = client.completions.create(model="x", prompt=PREFIX, suffix=SUFFIX, echo=True, **options)
    assert again.choices[0].text == PREFIX + want["choices"][0]["text"]
    probs = client.completions.create(
        model="x", prompt=PREFIX, suffix="x", logprobs=1, max_tokens=1
    )
    assert probs.choices[0].logprobs.text_offset == [len(PREFIX)]
    body = {"prompt": PREFIX, "suffix": "x", "echo": True, "logprobs": 1}
    assert "echo has no logprobs" in running.post("v1/completions", body).json()["error"]["message"]


def test_infill(running: serving.InThread, llm: Llama) -> None:
    ids = llm._prompts.infill_ids(PREFIX + "the c", SUFFIX)
    want = llm(ids, max_tokens=6, seed=1)["choices"][0]["text"]
    body = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "prompt": "the c", "n_predict": 6}
    body |= {"seed": 1, "input_extra": [], "cache_prompt": True}
    found = running.post("infill", body).json()
    assert (found["content"], found["stop"], found["stop_type"]) == (want, True, "limit")
    assert (found["tokens_evaluated"], found["tokens_predicted"]) == (len(ids), 6)
    lines = running.post("infill", {**body, "stream": True}).text.strip().split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert "".join(event["content"] for event in events) == want
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    settings = {**found["generation_settings"], "stream": True}
    timings = events[-1]["timings"]
    last = {**found, "content": "", "timings": timings, "generation_settings": settings}
    assert events[-1] == last
    cut = running.post("infill", {**body, "stop": want[1:3]}).json()
    assert (cut["content"], cut["stop_type"], cut["stopping_word"]) == (want[:1], "word", want[1:3])
    # Nothing behind it is infill, too.
    end = running.post("infill", {"input_prefix": "a", "n_predict": 2, "seed": 1}).json()
    ids = llm._prompts.infill_ids("a", "")
    assert end["content"] == llm(ids, max_tokens=2, seed=1)["choices"][0]["text"]
    assert running.post("infill", {**body, "n_predict": -2}).status_code == 400
    assert running.post("infill", {**body, "n_predict": 0}).json()["content"] == ""


def test_what_editors_name_as_samplers(running: serving.InThread) -> None:
    """The names of llama.vim's and llama.vscode's requests."""
    body = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "n_predict": 4, "top_k": 1}
    want = running.post("infill", {**body, "samplers": ["top_k", "top_p"]}).json()
    assert want["tokens_predicted"] == 4
    for samplers in (["top_k", "top_p", "infill"], "kpi"):
        found = running.post("infill", {**body, "samplers": samplers}).json()
        assert found["content"] == want["content"]
        assert found["generation_settings"]["samplers"] == ["top_k", "top_p"]
    wrong = running.post("completion", {"prompt": "x", "samplers": ["infill"]})
    assert wrong.status_code == 400


FILES = [("a.py", "the dog"), ("b/c.py", "a cat\n")]


@pytest.mark.parametrize("tokens", [QWEN, QWEN + ENDS, [*QWEN, "<|file_sep|>"]])
def test_files_of_a_repository(tokens: list[str], plain: Path, tmp_path: Path) -> None:
    with Llama(with_tokens(plain, tmp_path / "x.gguf", tokens), n_ctx=64, verbose=False) as llm:
        alone = llm._prompts.infill_ids(PREFIX, SUFFIX)
        bos = [llm.token_bos()] if alone[0] == llm.token_bos() else []
        ids = {text: FIRST + i for i, text in enumerate(tokens)}
        found = llm._prompts.infill_ids(PREFIX, SUFFIX, FILES)
        assert found[: len(bos)] == bos and found[-len(alone) + len(bos) :] == alone[len(bos) :]
        others = found[len(bos) : len(found) - len(alone) + len(bos)]
        text = llm.detokenize(others, special=True).decode()
        shape = text.split("<|file_sep|>")
        if "<|file_sep|>" not in ids:
            assert text == "--- a.py ---\nthe dog\n\n--- b/c.py ---\na cat\n\n\n"
        else:
            assert shape[1:] == ["a.py\nthe dog", "b/c.py\na cat\n", "file\n"]
            assert shape[0] == ("<|repo_name|>repository\n" if "<|repo_name|>" in ids else "")
        # The end of the files stays where room is short.
        for most in range(len(found) + 2):
            cut = llm._prompts.infill_ids(PREFIX, SUFFIX, FILES, most)
            left = max(0, min(len(others), most - len(alone)))
            assert cut == [*bos, *others[len(others) - left :], *alone[len(bos) :]]


def test_indentation() -> None:
    """A line that has fewer spaces or tabs in front ends the text, but for the first."""
    pieces = [b"x\n", b"a", b"  b", b"\n", b"  ", b"\t", b"c", b" d\n", b"\n", b" e", b""]
    text = [1, 2, 3, 4, 5, 6, 3, 7, 8, 9]
    found = {}
    for least in (1, 2, 3, 4):
        each = Indentation(lambda token, _: pieces[token], least)
        each.n_prompt = 2
        ids = np.array([0, 0, *text])
        ends = [n for n in range(3, len(ids) + 1) if each(ids[:n], ids)]
        found[least] = ends[:1]
    # Behind the prompt: "a  b\n  \tc  b d\n" would go on; the line of " e" has one space.
    assert found == {1: [], 2: [12], 3: [12], 4: [8]}
    each = Indentation(lambda token, _: b"\nx", 1)
    each.n_prompt = 3
    assert not each(np.array([0, 0, 0]), np.zeros(1))  # nothing is written yet


def test_the_server_keeps_room_for_the_text(running: serving.InThread, llm: Llama) -> None:
    extra = [{"filename": f"f{i}.py", "text": "the dog and the cat " * 9} for i in range(9)]
    body = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "n_predict": 20, "input_extra": extra}
    found = running.post("infill", body).json()
    assert found["tokens_evaluated"] == 128 - 20 and not found["truncated"]
    for wrong in ([{"text": 3}], [3], "x"):
        assert running.post("infill", {**body, "input_extra": wrong}).status_code == 400


def test_a_server_without_fim_tokens(plain: Path) -> None:
    with serving.in_thread(plain, n_parallel=1, n_ctx=64) as running:
        found = running.post("infill", {"input_prefix": "a"})
        assert found.status_code == 400 and "no FIM tokens" in found.json()["error"]["message"]
        found = running.post("v1/completions", {"prompt": "a", "suffix": "b"})
        assert found.status_code == 400 and found.json()["error"]["param"] == "suffix"
