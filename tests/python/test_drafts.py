"""Drafts change the time of a text, and nothing else."""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import tiny
from circles import pick
from powerinfer_cpp.cli import main
from powerinfer_cpp.cli.drafting import add_draft_arguments, draft_of
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.sequences.context import Context
from powerinfer_cpp.llama_speculative import (
    LlamaDraftModel,
    LlamaModelDecoding,
    LlamaPromptLookupDecoding,
)
from powerinfer_cpp.run.drafts import DraftFile, Drafts, LlamaDraftMtp

from powerinfer_cpp import Llama

PROMPTS = [
    "Once upon a time",
    "One day, a cat and a dog",
    "red blue red blue red blue red",
    "Tom had a ball. Tom had a ball. Tom had",
]
SAMPLINGS = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repeat_penalty": 1.3},
    {"temperature": 0.9, "seed": 1},
    {"temperature": 1.5, "seed": 2, "top_k": 0, "frequency_penalty": 0.5},
]


class Fixed(LlamaDraftModel):
    """Guesses what a text has at this place."""

    def __init__(self, ids: list[int], right: int = 99) -> None:
        self.ids, self.right, self.calls = ids, right, 0

    def __call__(self, input_ids: np.ndarray, /, **_: object) -> np.ndarray:
        self.calls += 1
        found = np.array(self.ids[len(input_ids) : len(input_ids) + 12], dtype=np.intc)
        found[self.right :] += 1
        return found


class Noise(LlamaDraftModel):
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, input_ids: np.ndarray, /, **_: object) -> np.ndarray:
        return self.rng.integers(-2, 40000, 7).astype(np.intc)  # some are no tokens


def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """No draft is left out because it does not pay."""
    monkeypatch.setattr(Drafts, "TRIAL", 1 << 30)


@pytest.fixture(scope="module")
def drafts(model_path: Path) -> dict[str, Callable[[], object]]:
    return {
        "lookup": LlamaPromptLookupDecoding,
        "long lookup": lambda: LlamaPromptLookupDecoding(3, 40),
        "model": lambda: str(model_path),
        "noise": Noise,
    }


@pytest.mark.parametrize("sparse", ["auto", "off", "exact"])
@pytest.mark.parametrize("kind", ["lookup", "long lookup", "model", "noise"])
def test_texts_are_the_same(
    kind: str,
    sparse: str,
    drafts: dict[str, Callable[[], object]],
    model_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    eager(monkeypatch)
    fields = {"n_ctx": 256, "verbose": False, "sparse": sparse}
    with (
        Llama(model_path, **fields) as plain,
        Llama(model_path, draft_model=drafts[kind](), **fields) as drafting,
    ):
        every = tuple(itertools.product(PROMPTS, SAMPLINGS))
        for prompt, sampling in pick(tuple(zip(PROMPTS, SAMPLINGS, strict=True)), every):
            more = {"max_tokens": 40, "logprobs": 2, **sampling}
            expected, found = plain(prompt, **more), drafting(prompt, **more)
            assert found["choices"] == expected["choices"], (prompt, sampling)
            assert drafting.n_tokens == plain.n_tokens


def padded(folder: Path, n_vocab: int, **special: int) -> Path:
    """A tiny model of 300 tokens and rows that pad the embedding, which its head likes best.
    special: ids of further tokens."""
    cfg = checkpoints.config(vocab_size=n_vocab, num_key_value_heads=2)
    weights = checkpoints.weights(cfg)
    weights["lm_head.weight"][300:] *= 9
    checkpoints.save(folder, cfg, weights)
    if special:
        (folder / "added_tokens.json").write_text(json.dumps(special))
    path = folder.parent / f"{folder.name}.gguf"
    return convert(folder, outfile=path, outtype="f32", log=lambda _line: None)


@pytest.mark.parametrize("wrapped", [False, True])
def test_rows_that_pad_a_vocabulary(wrapped: bool, tmp_path: Path) -> None:
    few, many = padded(tmp_path / "few", 301), padded(tmp_path / "many", 420)
    never = dict.fromkeys(range(300, 420), -1e9)  # padding is no text
    fields = {"n_ctx": 64, "n_threads": 1, "verbose": False}
    for target, draft in ((few, many), (many, few)):
        guess = (
            LlamaModelDecoding(draft, p_min=0, **fields) if wrapped else DraftFile(draft, p_min=0)
        )
        with Llama(target, **fields) as plain, Llama(target, draft_model=guess, **fields) as llm:
            bias = {i: v for i, v in never.items() if i < llm.n_vocab()}
            more = {"max_tokens": 20, "temperature": 0, "logit_bias": bias}
            want = plain("the quick", **more)["choices"]
            assert llm("the quick", **more)["choices"] == want
            found = llm._runtime.draft
            for text in (b"the", b"lazy dog", b"a child tells"):
                assert (found(np.array(llm.tokenize(text), np.intc), most=9) < 300).all()
            beyond = np.array([1, 5, 410], np.intc)  # a token that the smaller one lacks
            assert not found(beyond, most=9).size or draft == many


def test_vocabularies_that_differ(tmp_path: Path) -> None:
    model = padded(tmp_path / "a", 320, **{"<one>": 300})
    more = {"<one>": 300} | {f"<{i}>": 301 + i for i in range(140)}
    for name, special in (("b", {"<two>": 300}), ("c", more)):
        draft = padded(tmp_path / name, 450, **special)
        with pytest.raises(ValueError, match="another vocabulary than .*(token 300 is|140 tokens)"):
            Llama(model, draft_model=str(draft), n_ctx=64, verbose=False)
    added = padded(tmp_path / "d", 330, **{"<one>": 300, "<two>": 301})
    Llama(model, draft_model=str(added), n_ctx=64, verbose=False).close()


def test_the_context_is_the_one_without_drafts(model_path: Path) -> None:
    """Between tokens, too: what was guessed is no part of the sequence."""
    fields = {"n_ctx": 128, "verbose": False, "seed": 3}
    with Llama(model_path, **fields) as plain:
        prompt = plain.tokenize(PROMPTS[0].encode())
        steps = plain.generate(prompt, temp=0)
        text = [next(steps) for _ in range(30)]
        after = plain.scores[plain.n_tokens - 1].copy()
    for right in (99, 3, 0):
        guess = Fixed(prompt + text, right)
        with Llama(model_path, draft_model=guess, **fields) as llm:
            _ = llm.scores
            steps = llm.generate(prompt, temp=0)
            for i, token in enumerate(text):
                assert next(steps) == token
                assert llm.n_tokens == len(prompt) + i
                assert llm.input_ids[: llm.n_tokens].tolist() == (prompt + text)[: llm.n_tokens]
                if i == 12:  # other calls in between
                    state = llm.save_state()
                    assert state.n_tokens == len(prompt) + i
                if i == 17:
                    llm.reset()
                if i == 22:
                    llm.eval(prompt)
            assert np.array_equal(llm.scores[llm.n_tokens - 1], after)
            assert guess.calls < 20 if right == 99 else guess.calls
            llm.load_state(state)
            again = llm.generate([text[12]], temp=0, reset=False)
            assert [next(again) for _ in range(5)] == text[13:18]


def test_fewer_passes(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A right guess saves passes."""
    eager(monkeypatch)
    passes = []
    ahead = Context.eval_ahead
    monkeypatch.setattr(
        Context, "eval_ahead", lambda self, *ids: (passes.append(len(ids[1])), ahead(self, *ids))
    )
    with Llama(model_path, n_ctx=128, verbose=False) as plain:
        prompt = plain.tokenize(b"Once upon a time")
        steps = plain.generate(prompt, temp=0)
        text = [next(steps) for _ in range(60)]
    guess = Fixed(prompt + text)
    with Llama(model_path, n_ctx=128, verbose=False, draft_model=guess) as llm:
        steps = llm.generate(prompt, temp=0)
        assert [next(steps) for _ in range(60)] == text
        assert llm.stats()["n_gen"] == 59
    assert len(passes) < 12
    assert passes[:3] == [0, 3, 6]


def test_what_does_not_pay_is_left_out() -> None:
    class Always(LlamaDraftModel):
        calls = 0

        def __call__(self, input_ids: np.ndarray, /, **_: object) -> np.ndarray:
            self.calls += 1
            return np.zeros(10, dtype=np.intc)

    wrong = Always()
    drafts = Drafts(wrong, 512, 100)
    seconds = 0.0
    for _ in range(1000):  # nothing is accepted, and two rows take twice as long
        n = len(drafts.propose([1], 99))
        seconds += 1 + n
        drafts.computed(n, 1 + n)
    assert wrong.calls < 40
    assert seconds < 1050

    right = Always()
    drafts = Drafts(right, 512, 100)
    passes = 0
    for _ in range(100):
        n = len(drafts.propose([1], 99))
        drafts.computed(n, 1 + n / 10)
        passes += 1 + n
        for _ in range(n):
            drafts.advanced()
    assert passes > 900


def test_lookup() -> None:
    lookup = LlamaPromptLookupDecoding(max_ngram_size=3, num_pred_tokens=4)

    def guess(*ids: int) -> list[int]:
        return lookup(np.array(ids, dtype=np.intc)).tolist()

    assert guess(1) == []
    assert guess(1, 2, 3) == []
    assert guess(1, 2, 3, 1) == [2, 3, 1]
    assert guess(5, 6, 7, 8, 9, 5, 6) == [7, 8, 9, 5]
    assert guess(5, 6, 7, 1, 6, 8, 2, 5, 6) == [7, 1, 6, 8]  # two tokens rather than one
    assert guess(5, 6, 7, 1, 5, 6, 8, 2, 5, 6) == [8, 2, 5, 6]  # the latest place
    assert guess(4, 4, 4, 4) == [4]
    for bad in ({"max_ngram_size": 0}, {"num_pred_tokens": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            LlamaPromptLookupDecoding(**bad)


def test_refused(model_path: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="another vocabulary"):
        Llama(model_path, draft_model=tiny.make(tmp_path), verbose=False)
    with pytest.raises(ValueError, match="draft_model must be"):
        Llama(model_path, draft_model=7, verbose=False)
    with pytest.raises(OSError, match="no.gguf"):
        Llama(model_path, draft_model=tmp_path / "no.gguf", verbose=False)


def test_a_llama_of_ones_own(model_path: Path) -> None:
    with Llama(model_path, n_ctx=64, verbose=False) as small:
        draft = LlamaModelDecoding(small, num_pred_tokens=5, p_min=0)
        assert len(draft(np.array(small.tokenize(b"Once")), most=30)) == 5
        with Llama(model_path, n_ctx=64, verbose=False, draft_model=draft) as llm:
            text = llm(PROMPTS[0], max_tokens=20, temperature=0)
        assert small(PROMPTS[0], max_tokens=20, temperature=0)["choices"] == text["choices"]


# ---- Options of the commands ----


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_draft_arguments(parser)
    return argparse.Namespace(threads=1, **vars(parser.parse_args(words)))


@pytest.mark.parametrize(
    ("words", "kind", "n"),
    [
        ("", None, 0),
        ("--spec-type none", None, 0),
        ("--lookup", LlamaPromptLookupDecoding, 10),
        ("--spec-default", LlamaPromptLookupDecoding, 10),
        ("--spec-type ngram-simple --spec-ngram-simple-size-m 5", LlamaPromptLookupDecoding, 5),
        ("--spec-type ngram-mod,ngram-cache --draft 3", LlamaPromptLookupDecoding, 3),
        ("--lookup --spec-type ngram-map-k --spec-ngram-mod-n-max 7", LlamaPromptLookupDecoding, 7),
        ("--spec-type draft-mtp --draft-max 3", LlamaDraftMtp, 1),
        ("-md FILE", DraftFile, 10),
        ("--spec-draft-model FILE --spec-type draft-simple", DraftFile, 10),
        ("--model-draft FILE --spec-type none --spec-draft-n-max 4", DraftFile, 4),
    ],
)
def test_options(words: str, kind: type | None, n: int, model_path: Path) -> None:
    draft = draft_of(options(*words.replace("FILE", str(model_path)).split()))
    if kind is None:
        assert draft is None
        return
    assert isinstance(draft, kind) and draft.num_pred_tokens == n
    assert not isinstance(draft, DraftFile) or draft.path == str(model_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--spec-type draft-simple", "needs -md FILE"),
        ("--spec-type draft-mtp -md x", "not from several"),
        ("--spec-type draft-mtp,ngram-mod", "not from several"),
        ("--spec-type draft-simple,ngram-simple -md x", "not from several"),
        ("--spec-type ngram-simple -md x", "not from several"),
        ("--spec-type draft-simple --lookup", "not from several"),
        ("--spec-type guess", "'guess' is none of none, draft-simple, draft-mtp, ngram-simple"),
    ],
)
def test_options_that_do_not_go_together(words: str, said: str) -> None:
    with pytest.raises(argparse.ArgumentError, match=said):
        draft_of(options(*words.split()))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("complete --spec-draft-hf o/n", "the draft model is a file"),
        ("complete -hfd o/n", "the draft model is a file"),
        ("chat -ngld 3", "the CPU computes the draft model"),
        ("chat -ctkd q8_0", "the CPU computes the draft model"),
        ("complete --draft-min 2", "short guesses are checked, too"),
        ("chat --spec-ngram-simple-size-n 4", "--lookup takes the longest match"),
        ("complete -lcs file", "--lookup keeps nothing"),
        ("complete --spec-type draft-eagle3", "needs heads"),
        ("serve -md file --lookup", "not allowed with"),
        ("serve --spec-draft-hf o/n", "the draft model is a file"),
    ],
)
def test_what_commands_say(
    words: str, said: str, model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), "-m", str(model_path)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.mark.parametrize("words", ["--spec-type ngram-simple", "--spec-default", "-md x"])
def test_main_names_the_commands(words: str, main_path: Path) -> None:
    done = subprocess.run([main_path, *words.split()], capture_output=True, text=True)
    assert done.returncode == 2 and "`powerinfer complete` and `powerinfer chat`" in done.stderr
