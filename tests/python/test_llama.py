"""The contract of `Llama`, on a tiny random model."""

from __future__ import annotations

import contextlib
import inspect
import multiprocessing
import os
import signal
import threading
import time
import warnings
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import reference
from families import quiet
from gguf_files import changed
from powerinfer_cpp.completion import TextStream
from powerinfer_cpp.convert import convert
from powerinfer_cpp.gguf import Gguf

from powerinfer_cpp import (
    Cancelled,
    ContextOverflowError,
    DeviceError,
    Llama,
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    ModelFormatError,
    OutOfMemoryError,
    StoppingCriteriaList,
    answers,
)

CONFIG = checkpoints.config(num_key_value_heads=2)
PROMPT = "the quick brown fox"
BYTE = 4  # token of byte 0, behind <unk>, <s>, </s> and <name>


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    checkpoints.save(folder / "model", CONFIG, checkpoints.weights(CONFIG))
    return convert(folder / "model", outtype="f32", log=quiet)


@pytest.fixture
def llm(path: Path):
    with Llama(path, n_ctx=128, verbose=False) as opened:
        yield opened


def in_child(work) -> bool:
    """Whether work() holds in a child of fork(), which ends as Python does. One that hangs is
    killed."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        status = 1
        with contextlib.suppress(BaseException):
            status = 0 if work() else 1
        os._exit(status)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_children_of_fork(path: Path) -> None:
    """They compute, close and end; they have none of the threads."""
    with Llama(path, n_ctx=128, n_threads=2, verbose=False) as llm:
        want = text(llm(PROMPT, max_tokens=8, temperature=0))
        assert in_child(lambda: llm.close() is None)
        assert in_child(lambda: text(llm(PROMPT, max_tokens=8, temperature=0)) == want)
        assert in_child(
            lambda: (
                llm.reset() is None
                and text(llm(PROMPT, max_tokens=8, temperature=0)) == want
                and in_child(lambda: text(llm("the lazy dog", max_tokens=2)) is not None)
            )
        )
        # A process that just ends closes what is open.
        child = multiprocessing.get_context("fork").Process(target=llm.tokenize, args=(b"fox",))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert text(llm(PROMPT, max_tokens=8, temperature=0)) == want


def text(completion: dict) -> str:
    return completion["choices"][0]["text"]


# ---- Text and tokens ----


def test_tokens_and_text(llm: Llama) -> None:
    ids = llm.tokenize(PROMPT.encode())
    assert ids[0] == llm.token_bos() == 1 and llm.token_eos() == 2
    assert ids[1:] == llm.tokenize(PROMPT.encode(), add_bos=False)
    assert llm.detokenize(ids) == PROMPT.encode()
    assert llm.detokenize(ids[1:]) == b" " + PROMPT.encode()
    assert llm.detokenize(ids[1:], prev_tokens=ids[:1]) == b" " + PROMPT.encode()
    assert llm.tokenize(b"") == [1] and llm.tokenize(b"", add_bos=False) == []
    assert llm.tokenize(b"<s>", add_bos=False, special=True) == [1]
    assert 1 not in llm.tokenize(b"<s>", add_bos=False)
    assert llm.detokenize([1], special=True) == b"<s>" and llm.detokenize([1]) == b""
    every = bytes(range(256))
    assert llm.detokenize(llm.tokenize(every)) == every
    with pytest.raises(TypeError, match="bytes"):
        llm.tokenize("text")
    with pytest.raises(ValueError):
        llm.detokenize([CONFIG["vocab_size"]])


def test_sizes_and_metadata(llm: Llama, path: Path) -> None:
    assert (llm.n_ctx(), llm.n_vocab(), llm.n_embd()) == (128, CONFIG["vocab_size"], 64)
    assert llm.context_params.n_ctx == 128
    assert llm.metadata["general.architecture"] == "llama"
    assert llm.metadata["llama.block_count"] == "2"
    assert llm.metadata["tokenizer.ggml.add_bos_token"] == "true"
    assert "tokenizer.ggml.tokens" not in llm.metadata
    with Llama(path, n_ctx=0, verbose=False) as whole:
        assert whole.n_ctx() == CONFIG["max_position_embeddings"]


def test_plan(llm: Llama) -> None:
    plan = llm.plan()
    assert plan["total"] == sum(plan["ram"].values()) <= plan["budget"]
    assert plan["ram"]["ffn"] == 2 * 3 * 64 * 96 * 4
    # Layers, k and v, positions, heads, F16; and what says which token is on which page.
    assert 0 <= plan["ram"]["kv"] - 2 * 2 * 128 * 2 * 16 * 2 < 1024


def test_vocabulary_alone(path: Path) -> None:
    with Llama(path, vocab_only=True, verbose=False) as llm:
        assert llm.detokenize(llm.tokenize(b"a story")) == b"a story"
        assert llm.n_ctx() == CONFIG["max_position_embeddings"] and llm.n_tokens == 0
        with pytest.raises(ValueError, match="vocab_only"):
            llm.eval([1])
        with pytest.raises(ValueError, match="vocab_only"):
            llm("x")


# ---- eval and scores ----


def test_scores_of_every_token(path: Path) -> None:
    tokens = [1, *range(10, 60)]
    want = reference.logits(CONFIG, checkpoints.weights(CONFIG), tokens, "silu")
    with Llama(
        path, n_ctx=64, n_batch=7, logits_all=True, verbose=False, type_k=0, type_v=0
    ) as llm:
        llm.eval(tokens)
        assert llm.n_tokens == len(tokens) and llm.input_ids[: len(tokens)].tolist() == tokens
        assert llm.scores.shape == (64, CONFIG["vocab_size"]) and llm.scores.dtype == np.float32
        assert reference.relative_error(llm.scores[: len(tokens)], want) < 2e-5
        once = llm.scores[: len(tokens)].copy()
        llm.reset()
        for token in tokens:
            llm.eval([token])
        assert np.array_equal(llm.scores[: len(tokens)], once)


@pytest.mark.parametrize(
    "options", [{"n_threads": 1}, {"n_threads": 3}, {"n_batch": 5}, {"n_ubatch": 4}]
)
def test_bits_do_not_depend_on(options: dict, llm: Llama, path: Path) -> None:
    tokens = [1, *range(20, 90)]
    llm.eval(tokens)
    with Llama(path, n_ctx=128, verbose=False, **options) as other:
        other.eval(tokens)
        assert np.array_equal(other.scores[70], llm.scores[70])


def test_only_the_last_row_of_an_eval(llm: Llama) -> None:
    llm.eval([1, 5, 6])
    llm.eval([7])
    filled = np.flatnonzero(np.abs(llm.scores[:10]).max(axis=1))
    assert filled.tolist() == [2, 3]


def test_scores_asked_for_after_generating(llm: Llama) -> None:
    prompt = llm.tokenize(PROMPT.encode())
    llm(prompt, max_tokens=3, temperature=0)
    row = llm.scores[llm.n_tokens - 1].copy()
    ids = llm.input_ids[: llm.n_tokens].tolist()
    llm.reset()
    llm.eval(ids)
    assert np.array_equal(llm.scores[len(ids) - 1], row)


def test_tokens_that_cannot_be(llm: Llama) -> None:
    for tokens in ([-1], [CONFIG["vocab_size"]], [1 << 40], [0.5]):
        with pytest.raises(ValueError):
            llm.eval(tokens)
    llm.eval([])
    assert llm.n_tokens == 0
    with pytest.raises(ContextOverflowError, match="129 tokens"):
        llm.eval([1] * 129)
    llm.eval([1] * 128)
    with pytest.raises(ContextOverflowError):
        llm.eval([1])
    assert llm.n_tokens == 128


# ---- generate and sample ----


def greedy(llm: Llama, prompt: list[int], n: int) -> list[int]:
    """What eval and argmax give, without generate."""
    llm.reset()
    ids, pending = [], prompt
    for _ in range(n):
        llm.eval(pending)
        pending = [int(np.argmax(llm.scores[llm.n_tokens - 1]))]
        ids += pending
    return ids


def take(steps, n: int) -> list[int]:
    return [next(steps) for _ in range(n)]


def test_generate_is_eval_and_argmax(llm: Llama) -> None:
    prompt = llm.tokenize(PROMPT.encode())
    want = greedy(llm, prompt, 12)
    assert take(llm.generate(prompt, temp=0), 12) == want


def test_generate_reuses_the_longest_prefix(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    session = llm._context._session
    real = session.eval
    monkeypatch.setattr(
        session, "eval", lambda t, *a, **k: (computed.append(len(t)), real(t, *a, **k))[1]
    )
    first = take(llm.generate([1, 10, 11, 12, 13], temp=0), 3)
    assert computed == [5, 1, 1]
    take(llm.generate([1, 10, 11, 12, 13, first[0], 99], temp=0), 1)
    assert computed[3:] == [1]
    same = take(llm.generate([1, 10, 11, 12, 13], temp=0), 3)
    assert computed[4:] == [1, 1, 1] and same == first


def test_generate_goes_on_without_reset(llm: Llama) -> None:
    want = take(llm.generate([1, 10, 11], temp=0), 1)
    llm.reset()
    llm.eval([1, 10])
    assert take(llm.generate([11], temp=0, reset=False), 1) == want and llm.n_tokens == 3


def test_generators_take_turns(llm: Llama) -> None:
    prompts = [[1, 10, 11], [1, 30, 31, 32]]
    want = [greedy(llm, p, 8) for p in prompts]
    both = [llm.generate(p, temp=0) for p in prompts]
    got: list[list[int]] = [[], []]
    for _ in range(8):
        for ids, steps in zip(got, both, strict=True):
            ids.append(next(steps))
    assert got == want


def test_ids_sent_into_a_generator(llm: Llama) -> None:
    steps = llm.generate([1, 10], temp=0)
    first = next(steps)
    second = steps.send([40, 41])
    assert llm.input_ids[: llm.n_tokens].tolist() == [1, 10, first, 40, 41]
    assert second == greedy(llm, [1, 10, first, 40, 41], 1)[0]


def test_the_context_ends(llm: Llama) -> None:
    steps = llm.generate([1] * 126, temp=0)
    take(steps, 3)
    with pytest.raises(ContextOverflowError):
        next(steps)
    with pytest.raises(ValueError, match="at least one token"):
        next(llm.generate([]))


def test_sample(llm: Llama) -> None:
    with pytest.raises(ValueError, match="no logits"):
        llm.sample()
    llm.eval([1, 10, 11])
    best = int(np.argmax(llm.scores[2]))
    assert llm.sample(temp=0) == best == llm.sample(top_k=1) == llm.sample(temp=0, idx=2)
    llm.set_seed(5)
    drawn = [llm.sample(temp=2.0) for _ in range(20)]
    llm.set_seed(5)
    assert drawn == [llm.sample(temp=2.0) for _ in range(20)] and len(set(drawn)) > 3


def test_processors_and_criteria(llm: Llama) -> None:
    seen: list[tuple[int, ...]] = []

    def force(ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        assert (
            ids.dtype == np.intc
            and scores.dtype == np.float32
            and scores.shape == (CONFIG["vocab_size"],)
        )
        seen.append(tuple(ids))
        out = np.full_like(scores, -np.inf)
        out[50 + len(seen)] = 0
        return out

    steps = llm.generate([1, 10], temp=1.0, logits_processor=LogitsProcessorList([force]))
    assert take(steps, 3) == [51, 52, 53]
    assert seen == [(1, 10), (1, 10, 51), (1, 10, 51, 52)]
    stop = StoppingCriteriaList([lambda ids, logits: len(ids) >= 5])
    assert len(list(llm.generate([1, 10], temp=0, stopping_criteria=stop))) == 3
    done = llm(
        [1, 10], max_tokens=20, temperature=0, stopping_criteria=lambda ids, logits: len(ids) >= 5
    )
    assert done["choices"][0]["finish_reason"] == "stop" and done["usage"]["completion_tokens"] == 3
    never = MinTokensLogitsProcessor(5, 51)
    assert 51 not in take(llm.generate([1, 10], top_k=1, logits_processor=never), 5)
    with pytest.raises(ValueError, match="must return"):
        next(llm.generate([1], logits_processor=lambda ids, scores: scores[:5]))


# ---- Completion ----


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
    assert stream.push(b" EN") == " " and stream.finish() == "EN" and not stream.stopped


def test_seeds(llm: Llama, path: Path) -> None:
    def said(model: Llama, **options) -> str:
        return text(model(PROMPT, max_tokens=12, temperature=1.5, **options))

    assert said(llm, seed=3) == said(llm, seed=3) != said(llm, seed=4)
    with Llama(path, seed=9, verbose=False) as a, Llama(path, seed=9, verbose=False) as b:
        assert [said(a), said(a)] == [said(b), said(b)]


def test_what_is_not_there_yet_is_refused(llm: Llama) -> None:
    for option in ({"suffix": "x"}, {"mirostat_mode": 2}, {"tfs_z": 0.5}):
        with pytest.raises(ValueError, match=f"{next(iter(option))} is not supported"):
            llm(PROMPT, **option)
    with pytest.raises(ValueError, match="stop must be"):
        llm(PROMPT, stop=[3])
    assert (
        text(llm(PROMPT, suffix="", logprobs=None, grammar=None, tfs_z=1.0, max_tokens=1))
        is not None
    )


# ---- Constructor and lifetime ----


def test_keywords(path: Path) -> None:
    with pytest.warns(UserWarning, match="'max_new_tokens' has no effect"):
        Llama(path, verbose=False, max_new_tokens=5).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Llama(
            path,
            verbose=False,
            n_parts=-1,
            f16_kv=True,
            rope_freq_scale=1.0,
            rope_freq_base=10000.0,
            lora_path=None,
            lora_base=None,
            kv_overrides={},
            yarn_ext_factor=-1.0,
            yarn_attn_factor=1.0,
            yarn_beta_fast=32.0,
            yarn_beta_slow=1.0,
            yarn_orig_ctx=0,
            rope_scaling_type=-1,
            flash_attn=True,
            seed=-1,
            n_batch=8,
            vram_budget=0,
        ).close()
    for options, message in (
        ({"lora_path": "x"}, "lora_path is not supported"),
        ({"kv_overrides": {"llama.rope.freq_base": 1.0}}, "kv_overrides is not supported"),
        ({"rope_freq_base": 20000.0}, "rope_freq_base is not supported"),
        ({"rope_freq_scale": 0.5}, "rope_freq_scale is not supported"),
        ({"rope_scaling_type": 2}, "rope_scaling_type is not supported"),
        ({"yarn_ext_factor": 1.0}, "yarn_ext_factor is not supported"),
        ({"yarn_orig_ctx": 4096}, "yarn_orig_ctx is not supported"),
        ({"n_ctx": 64.5}, "n_ctx must be a whole number, not 64.5"),
        ({"n_batch": "8"}, "n_batch must be a whole number, not '8'"),
        ({"seed": 1.5}, "seed must be a whole number, not 1.5"),
        ({"sparse": "predictor"}, "no predictors"),
        ({"sparse": "maybe"}, "sparse must be one of auto, off, exact, predictor"),
        ({"pooling_type": 4}, "pooling_type"),
        ({"chat_format": "klingon"}, "chat_format 'klingon' is unknown; known are llama-2"),
        ({"record": "fired"}, "record"),
        ({"n_ctx": -1}, "n_ctx"),
        ({"n_ctx": 1 << 40}, "n_ctx"),
        ({"n_batch": 0}, "n_batch"),
        ({"n_threads": -1}, "n_threads"),
        ({"ram_budget": -1}, "ram_budget"),
        ({"type_k": 2}, "type"),
    ):
        with pytest.raises(ValueError, match=message):
            Llama(path, verbose=False, **options)
    with pytest.raises(DeviceError, match="cuda0"):
        Llama(path, verbose=False, device="cuda0")
    Llama(path, verbose=False, sparse="off", device="cpu").close()


def test_positions_of_a_context(path: Path, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    """512 unless asked, and no more than the model was trained on; beyond these it is said once."""
    found = {}
    for trained in (256, 4096):
        file = changed(path, tmp_path / "trained.gguf", {"llama.context_length": trained})
        with Llama(file, verbose=True) as llm:
            found[trained] = llm.n_ctx()
            llm(PROMPT, max_tokens=2)
    assert found == {256: 256, 4096: 512}
    assert "training" not in capfd.readouterr().err
    with Llama(path, n_ctx=300) as llm:
        assert llm.n_ctx() == 300
        llm(PROMPT, max_tokens=2)
    said = [line for line in capfd.readouterr().err.splitlines() if "training" in line]
    assert len(said) == 1 and "a context of 300 positions goes beyond the 256" in said[0]


def test_options_for_a_gpu_are_said_to_be_in_vain(path: Path, capfd: pytest.CaptureFixture) -> None:
    Llama(path, n_gpu_layers=-1, vram_budget=8).close()
    lines = [line for line in capfd.readouterr().err.splitlines() if "without effect" in line]
    assert len(lines) == 1 and lines[0].startswith("n_gpu_layers and vram_budget: ")
    Llama(path, n_gpu_layers=-1, vram_budget=8, verbose=False).close()
    Llama(path, vram_budget=0).close()
    assert "without effect" not in capfd.readouterr().err


def test_repr(path: Path) -> None:
    llm = Llama(path, n_ctx=64, verbose=False, sparse="off")
    head = f"<Llama '{path}': llama with silu, 2 layers, "
    assert repr(llm) == f"{head}0.1 million weights, 64 positions, sparse='off'>"
    llm.close()
    assert repr(llm) == f"<Llama '{path}', closed>"
    with Llama(path, vocab_only=True, verbose=False) as vocabulary:
        assert repr(vocabulary).endswith("the vocabulary only>")
    with Llama(path, embedding=True, n_ctx=64, verbose=False) as embedder:
        assert "embeddings, 64 positions" in repr(embedder)


def test_numbers_of_numpy(path: Path) -> None:
    """Where an int is taken, one of numpy is."""
    plain = {"n_ctx": 64, "n_batch": 16, "n_ubatch": 16, "n_threads": 1, "seed": 5}
    plain |= {"last_n_tokens_size": 32, "type_k": 0, "type_v": 0}
    calls = {"max_tokens": 5, "seed": 7, "top_k": 20, "logprobs": 2}
    with (
        Llama(path, verbose=False, **plain) as a,
        Llama(path, verbose=False, **{k: np.int64(v) for k, v in plain.items()}) as b,
    ):
        for llm, kind in ((a, int), (b, np.int64)):
            options = {name: kind(value) for name, value in calls.items()}
            ids = [kind(token) for token in llm.tokenize(PROMPT.encode())]
            llm.set_seed(kind(3))
            options["logit_bias"] = {kind(9): 1.0}
            llm.found = (
                llm(ids, **options)["choices"],
                llm(PROMPT, max_tokens=kind(0))["choices"],
                llm.create_chat_completion(
                    [{"role": "user", "content": "x"}],
                    max_tokens=kind(3),
                    seed=kind(1),
                    logprobs=True,
                    top_logprobs=kind(2),
                )["choices"],
                llm.detokenize(ids),
            )
            llm.eval(ids)
        assert a.found == b.found
        for options, name in (
            ({"max_tokens": 1.5}, "max_tokens"),
            ({"max_tokens": np.float32(2)}, "max_tokens"),
            ({"max_tokens": "5"}, "max_tokens"),
            ({"seed": 1.5}, "seed"),
            ({"top_k": 1.5}, "top_k"),
            ({"logprobs": 1.5}, "logprobs"),
            ({"logit_bias": {1.5: 1.0}}, "logit_bias"),
        ):
            with pytest.raises(ValueError, match=f"{name} must be a whole number"):
                a(PROMPT, **options)
        with pytest.raises(ValueError, match="a token id must be a whole number, not 1.5"):
            a.detokenize([1.5])


def test_a_text_with_more_tokens_than_bytes(path: Path, tmp_path: Path) -> None:
    """The space before a text is three byte tokens where the vocabulary has no piece for it."""
    with Gguf(path) as gguf:
        pieces = gguf.metadata["tokenizer.ggml.tokens"]
    pieces = [p.replace("\u2581", f"#{i}#") for i, p in enumerate(pieces)]
    file = changed(path, tmp_path / "bytes.gguf", {"tokenizer.ggml.tokens": pieces})
    with Llama(file, vocab_only=True, verbose=False) as llm:
        ids = llm.tokenize(b"\x01", add_bos=False)
        assert ids == [BYTE + byte for byte in "\u2581\x01".encode()]


def test_types_are_those_of_the_calls() -> None:
    """py.typed says that annotations are for type checkers; these name every argument."""
    package = Path(inspect.getfile(Llama)).parent
    assert (package / "py.typed").exists()
    named = {"self", "prompt", "suffix", "max_tokens", "temperature", "top_p", "stream"}
    for method, options, written in (
        (Llama.create_completion, answers.CompletionOptions, named),
        (Llama.create_chat_completion, answers.ChatOptions, {"self", "messages", "stream"}),
    ):
        given = {*written, *options.__annotations__}
        assert given == set(inspect.signature(method).parameters)
    with_dicts = (
        answers.Completion,
        answers.CompletionChunk,
        answers.ChatCompletion,
        answers.ChatChunk,
    )
    assert all("choices" in kind.__annotations__ for kind in with_dicts)


def test_dicts_are_those_of_the_types(llm: Llama) -> None:
    def keys(kind: type) -> set[str]:
        return set(kind.__annotations__)

    whole = llm(PROMPT, max_tokens=3, logprobs=1)
    assert set(whole) == keys(answers.Completion) and set(whole["usage"]) == keys(answers.Usage)
    assert set(whole["choices"][0]) == keys(answers.CompletionChoice)
    assert set(whole["choices"][0]["logprobs"]) == keys(answers.CompletionLogprobs)
    assert set(next(llm(PROMPT, stream=True))) == keys(answers.CompletionChunk)
    messages = [{"role": "user", "content": "x"}]
    whole = llm.create_chat_completion(messages, max_tokens=3, logprobs=True)
    assert set(whole) == keys(answers.ChatCompletion)
    assert set(whole["choices"][0]) == keys(answers.ChatChoice)
    assert set(whole["choices"][0]["message"]) == keys(answers.ChatMessage)
    logprobs = whole["choices"][0]["logprobs"]
    assert set(logprobs) == keys(answers.ChatLogprobs)
    assert set(logprobs["content"][0]) == keys(answers.ChosenLogprob)
    for chunk in llm.create_chat_completion(messages, max_tokens=3, stream=True):
        assert set(chunk) == keys(answers.ChatChunk)
        assert set(chunk["choices"][0]) == keys(answers.ChatChunkChoice)
        assert set(chunk["choices"][0]["delta"]) <= keys(answers.ChatDelta)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none.gguf"):
        Llama(tmp_path / "none.gguf", verbose=False)
    with pytest.raises(IsADirectoryError):
        Llama(tmp_path, verbose=False)
    (tmp_path / "empty").touch()
    with pytest.raises((OSError, ModelFormatError), match="empty"):
        Llama(tmp_path / "empty", verbose=False)


def test_a_budget_that_is_too_small(path: Path) -> None:
    with pytest.raises(OutOfMemoryError, match="MiB"):
        Llama(path, verbose=False, ram_budget=1e-4)
    with pytest.raises(OutOfMemoryError):
        Llama(path, verbose=False, ram_budget=0.001, n_ctx=100000)


def test_progress(path: Path) -> None:
    seen: list[float] = []
    Llama(path, verbose=False, progress_callback=seen.append).close()
    assert seen == sorted(seen) and seen[-1] == 1.0
    with pytest.raises(Cancelled):
        Llama(path, verbose=False, progress_callback=lambda share: False)

    def broken(_share: float) -> bool:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Llama(path, verbose=False, progress_callback=broken)


def test_verbose(path: Path, capfd: pytest.CaptureFixture) -> None:
    Llama(path, verbose=False).close()
    assert capfd.readouterr() == ("", "")
    Llama(path, verbose=True).close()
    out, err = capfd.readouterr()
    assert out == "" and 0 < err.count("\n") < 20


def test_close(path: Path) -> None:
    llm = Llama(path, verbose=False)
    stream = llm(PROMPT, stream=True)
    next(stream)
    scores = llm.scores
    llm.close()
    llm.close()
    assert scores.shape[0] == 256  # the array outlives the model
    for call in (
        lambda: llm(PROMPT),
        lambda: llm.eval([1]),
        lambda: llm.tokenize(b"x"),
        lambda: next(stream),
    ):
        with pytest.raises(ValueError, match="closed"):
            call()
    with Llama(path, verbose=False) as other:
        del other
    Llama.__del__(Llama.__new__(Llama))


def test_threads_queue(llm: Llama) -> None:
    prompts = [f"{PROMPT} {i}" for i in range(4)]
    want = [text(llm(p, max_tokens=10, temperature=0)) for p in prompts]
    got: dict[int, list[str]] = {}

    def work(i: int) -> None:
        whole = [text(llm(prompts[i], max_tokens=10, temperature=0)) for _ in range(3)]
        pieces = llm(prompts[i], max_tokens=10, temperature=0, stream=True)
        got[i] = [*whole, "".join(map(text, pieces))]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == {i: [want[i]] * 4 for i in range(4)}


def test_other_threads_run_while_it_computes(model_path: Path) -> None:
    """The GIL is released: another thread counts on while a long prompt is computed."""
    with Llama(model_path, n_ctx=1024, n_threads=1, verbose=False) as llm:
        counts, done = [0], threading.Event()

        def count() -> None:
            while not done.is_set():
                counts[0] += 1

        thread = threading.Thread(target=count)
        thread.start()
        before = counts[0]
        llm._context.eval(np.ones(1000, dtype=np.int32))  # two calls of the engine
        during = counts[0] - before
        done.set()
        thread.join()
    assert during > 1000


def test_the_default_model_tells_a_story(model_path: Path) -> None:
    with Llama(model_path, verbose=False) as llm:
        said = text(llm("Once upon a time", max_tokens=40, temperature=0))
    assert "there was" in said and len(said.split()) > 15
