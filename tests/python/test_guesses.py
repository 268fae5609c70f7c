"""The layer that models bring along to guess tokens (multi-token prediction): what it says against
float64 recurrences, and texts that it drafts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import guessing
import numpy as np
import pytest
import reference
from families import golden, ling, logits, quiet
from gguf_files import changed, raw, values
from powerinfer_cpp.cli import main
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.errors import ContextOverflowError, UnsupportedModelError
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.core.sampling import Sampling
from powerinfer_cpp.core.session import Session, as_tokens
from powerinfer_cpp.llama_speculative import LlamaDraftMtp
from powerinfer_cpp.run.drafts import Drafts
from powerinfer_cpp.server.served import ServedModel
from safetensors.numpy import load_file, save_file
from test_delta_nets import with_least_memory
from test_scheduler import Desk
from test_served_drafts import texts_of

from powerinfer_cpp import Llama, ModelFormatError

TOKENS = [1] + [(37 * i * i + 11 * i) % 290 + 4 for i in range(140)]
EXACT = {"type_k": 0, "type_v": 0}  # keys and values in F32
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.2, "seed": 2, "top_k": 0, "repeat_penalty": 1.1},
]


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return guessing.make("dense", tmp_path_factory.mktemp("dense"))[0]


@pytest.mark.parametrize("kind", guessing.KINDS)
def test_against_the_recurrence(kind: str, tmp_path: Path) -> None:
    path, cfg, weights = guessing.make(kind, tmp_path)
    want = guessing.expected(kind, cfg, weights, TOKENS)
    plain = Session(Model(str(path)), n_ctx=160, **EXACT)
    plain.eval(np.array(TOKENS, np.int32))
    model = Model(str(path), nextn=True)
    assert model.guesses and not Model(str(path)).guesses
    first: list[np.ndarray] = []
    for n_threads, cut in ((1, 160), (2, 160), (2, 7), (1, 1)):
        session = Session(model, n_ctx=160, n_threads=n_threads, **EXACT)
        found: list[np.ndarray] = []
        for begin in range(0, len(TOKENS), cut):
            part = np.array(TOKENS[begin : begin + cut], np.int32)
            session.eval(part)
            end = begin + len(part)
            if end % 7 == 0 and end < len(TOKENS) and cut < 160:
                token, probability = session.guess(TOKENS[end])
                ours = session.guessed_logits()
                assert token == ours.argmax()
                of_best = 1 / np.exp(ours.astype(float) - ours.max()).sum()
                assert probability == pytest.approx(of_best, rel=1e-4)
                assert reference.relative_error(ours[None], want[end - 1 : end]) < 2e-5
                found.append(ours.copy())
        assert session.length() == len(TOKENS)
        assert np.array_equal(session.logits(len(part) - 1), plain.logits(len(TOKENS) - 1))
        session.guess(9)
        last = session.guessed_logits().copy()
        assert np.array_equal(session.logits(len(part) - 1), plain.logits(len(TOKENS) - 1))
        first = first or [last]
        assert np.array_equal(last, first[0])
        if found:
            first += found if len(first) == 1 else []
            assert all(map(np.array_equal, found, first[1:]))


def lucky(known: list[int], counts: list[int]) -> Callable[..., tuple[int, float]]:
    """Session.guess that computes the guess, and then says what the text has there instead, seven
    times of ten; else something wrong. counts: of both."""
    rng, compute = np.random.default_rng(0), Session.guess

    def guess(session: Session, token: int, sequence: int = 0) -> tuple[int, float]:
        compute(session, token, sequence)
        n = session.length(sequence) + 1
        if n >= len(known):
            return 0, 0.0
        right = bool(rng.random() < 0.7)
        counts[right] += 1
        return known[n] if right else (known[n] + 1) % 300, 1.0

    return guess


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_texts_are_the_same(
    sampling: dict[str, Any], n_threads: int, dense: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several turns, with saved states between; and the layer knows all positions afterwards."""
    monkeypatch.setattr(Drafts, "TRIAL", 1 << 30)  # none is left out because it does not pay
    fields = {"n_ctx": 256, "verbose": False, "n_threads": n_threads}
    more = {"max_tokens": 40, "logprobs": 2, **sampling}
    turns = ["Once upon a time", " and then there was", " the end of"]
    wanted: list[Any] = []
    with Llama(dense, **fields) as plain:
        text = ""
        for turn in turns:
            text += turn
            found = plain(text, **more)["choices"]
            text += found[0]["text"]
            wanted.append((found, plain.input_ids[: plain.n_tokens].tolist()))
    counts, compute = [0, 0], Session.guess
    with Llama(dense, draft_model=LlamaDraftMtp(), **fields) as llm:
        text = ""
        for turn, (want, ids) in zip(turns, wanted, strict=True):
            text += turn
            monkeypatch.setattr(Session, "guess", lucky(ids, counts))
            found = llm(text, **more)["choices"]
            assert found == want
            assert llm.input_ids[: llm.n_tokens].tolist() == ids
            text += found[0]["text"]
            monkeypatch.setattr(Session, "guess", compute)
            state = llm.save_state()
            llm.reset()
            llm.load_state(state)
            context = llm._loop.opened
            assert context is not None
            whole = Session(llm._model, n_ctx=256)
            whole.eval(np.array(ids, np.int32))
            assert context.guess(5) == whole.guess(5)
            assert np.array_equal(context._session.guessed_logits(), whole.guessed_logits())
    assert min(counts) > 10


@pytest.mark.parametrize("n_kv", [None, 128])
def test_served_texts(n_kv: int | None, dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several at the same time, each with guesses of its own sequence; and with little room."""
    monkeypatch.setattr(Drafts, "TRIAL", 1 << 30)
    prompts = ["Once upon", "The dog", "A red ball and"]
    wanted, known = [], []
    with Llama(dense, n_ctx=128, verbose=False) as llm:
        for prompt in prompts:
            wanted.append(llm(prompt, max_tokens=60, temperature=0)["choices"][0]["text"])
            known.append(llm.input_ids[: llm.n_tokens].tolist())
    compute, counts = Session.guess, [0, 0]

    def guess(session: Session, token: int, sequence: int = 0) -> tuple[int, float]:
        compute(session, token, sequence)
        n = session.length(sequence)
        same = (ids for ids in known if session.match(as_tokens(ids[:n]), None, sequence) == n)
        ids = next(same, [])
        right = n % 3 > 0 and n + 1 < len(ids)
        counts[right] += 1
        return ids[n + 1] if right else 299, 1.0

    monkeypatch.setattr(Session, "guess", guess)
    desk = Desk()
    with ServedModel(
        dense,
        desk.deliver,
        n_ctx=128,
        n_kv=n_kv,
        n_parallel=3,
        draft_model=LlamaDraftMtp(),
        verbose=False,
    ) as served:
        surest = Sampling(temperature=0.0)
        requests = [served.request(each, max_tokens=60, params=surest) for each in prompts]
        assert [text for text, _ in texts_of(desk, served, requests)] == wanted
        accepted = sum({id(u.ticket): u.ticket.n_accepted for u in desk.updates}.values())
    assert accepted > 10 and min(counts) > 5


def test_a_command(
    dense: Path, model_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    words = ["complete", "-p", "Once", "-n", "12", "--temp", "0", "-m"]
    assert main([*words, str(dense)]) == 0
    text = capsysbinary.readouterr().out
    more = ["--spec-type", "draft-mtp", "--draft-p-min", "0"]
    assert main([*words, str(dense), *more]) == 0
    assert capsysbinary.readouterr().out == text
    assert main([*words, str(model_path), *more]) == 1
    said = capsysbinary.readouterr().err
    assert b"no layer that guesses tokens" in said and said.count(b"\n") == 1


def test_what_does_not_pay_is_left_out() -> None:
    asked = 0

    def guess(_token: int) -> tuple[int, float]:
        nonlocal asked
        asked += 1
        return 3, 0.9 if asked % 2 else 0.1  # every second one is no guess

    drafts, seconds = Drafts(LlamaDraftMtp(), 16, 300), 0.0
    for _ in range(1000):  # a guess takes a fifth of a pass, and none is right
        before = asked
        n = len(drafts.propose(np.array([1], np.intc), 99, guess=guess))
        took = 1 + 0.2 * (asked - before) + 0.1 * n
        drafts.computed(n, took)
        seconds += took
    assert asked < 60 and seconds < 1020


# ---- What is refused, and what is left out ----


def test_refused(dense: Path, model_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="no layer that guesses tokens") as caught:
        Llama(model_path, draft_model=LlamaDraftMtp(), verbose=False)
    assert "\n" not in str(caught.value)
    model = Model(str(dense), nextn=True)
    session = Session(model, n_ctx=2)
    with pytest.raises(ValueError, match="whose last row is known"):
        session.guess(5)
    session.eval(np.array([1], np.int32))
    for token in (-1, 300):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            session.guess(token)
    with pytest.raises(ValueError, match="no sequence 1"):
        session.guess(5, 1)
    session.eval(np.array([1], np.int32))
    with pytest.raises(ContextOverflowError):
        session.guess(5)
    assert session.length() == 2
    with pytest.raises(UnsupportedModelError, match="without a layer that guesses"):
        without = Session(Model(str(dense)), n_ctx=2)
        without.eval(np.array([1], np.int32))
        without.guess(5)


def test_states_are_of_one_kind(dense: Path) -> None:
    """A state with keys and values of the layer fits no session without it, nor the reverse."""
    sessions = [Session(Model(str(dense), nextn=nextn), n_ctx=8) for nextn in (False, True)]
    for session in sessions:
        session.eval(np.array([1, 5], np.int32))
    for a, b in (sessions, sessions[::-1]):
        with pytest.raises(ModelFormatError, match="with or without the layer that guesses"):
            b.load(a.save())


def test_not_from_storage(dense: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A model that would run from storage with it runs without, and says so."""
    path = guessing.make("mixture", tmp_path)[0]
    fields: dict[str, Any] = {"n_ctx": 64, "verbose": False}
    with Llama(path, **fields) as llm:
        want = llm("Once", max_tokens=8, temperature=0)["choices"]
        budget = sum(llm.plan()["ram"].values())
    with caplog.at_level(logging.WARNING):
        few = (budget + 1000) / (1 << 30)
        with Llama(path, ram_budget=few, draft_model=LlamaDraftMtp(), **fields) as llm:
            assert not llm._model.guesses
            assert llm("Once", max_tokens=8, temperature=0)["choices"] == want
    assert any("no tokens are guessed" in record.message for record in caplog.records)


@pytest.mark.parametrize("bundle", [False, True])
def test_neuron_rows_from_storage(bundle: bool, dense: Path, tmp_path: Path) -> None:
    """The layer has none: it is never computed from storage."""
    path = convert(dense, bundle=bundle, outfile=tmp_path / "b.gguf", log=quiet)
    want = logits(path, sparse="off")
    assert reference.relative_error(want, logits(dense)) < 2e-5
    with_least_memory(path, want, "neurons", scores=1 << 15)
    guesses = []
    for each in (dense, path):
        session = Session(Model(str(each), nextn=True), n_ctx=64, **EXACT)
        session.eval(np.array(TOKENS[:20], np.int32))
        session.guess(9)
        guesses.append(session.guessed_logits().copy())
    assert reference.relative_error(guesses[1], guesses[0]) < 2e-5


# ---- Files ----


@pytest.mark.parametrize("kind", ["dense", "nemotron-moe"])
def test_keys_and_names(kind: str, tmp_path: Path) -> None:
    """As llama.cpp has them."""
    path, cfg, _ = guessing.make(kind, tmp_path)
    arch = {"dense": "qwen35"}.get(kind, "nemotron_h_moe")
    with Gguf(path) as file:
        found = file.metadata
        names = {tensor.name for tensor in file.tensors}
    n = 3 if kind == "dense" else 4
    assert found[f"{arch}.block_count"] == n + 1 and found[f"{arch}.nextn_predict_layers"] == 1
    want = {f"blk.{n}.nextn.{p}.weight" for p in ("eh_proj", "enorm", "hnorm", "shared_head_norm")}
    assert want | {f"blk.{n}.{p}.weight" for p in ("attn_norm", "post_attention_norm")} <= names
    if kind == "dense":
        assert found[f"{arch}.attention.recurrent_layers"] == [True, False, True, False]
    else:
        assert found[f"{arch}.feed_forward_length"] == [24, 0, 0, 24, 24]
        assert found[f"{arch}.attention.head_count_kv"] == [0, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("make", "norm"),
    [(partial(golden, "hy-v3"), "nextn.shared_head_norm"), (ling, "layer_output_norm")],
)
def test_a_layer_behind_the_others(make: Callable[..., object], norm: str, tmp_path: Path) -> None:
    """As Hy3 and Ling 2 have it: text is what it is without, guesses do not depend on calls."""
    make(tmp_path / "plain")
    plain = convert(tmp_path / "plain", outtype="f32", outfile=tmp_path / "a.gguf", log=quiet)
    make(tmp_path / "more", num_nextn_predict_layers=1)
    file, rng = tmp_path / "more" / "model.safetensors", np.random.default_rng(5)
    weights = load_file(file)
    for name in [name for name in weights if ".layers.1." in name]:
        weights[name.replace(".layers.1.", ".layers.2.")] = weights[name].copy()
    for name, shape in (
        ("eh_proj", (32, 64)),
        ("enorm", 32),
        ("hnorm", 32),
        ("final_layernorm", 32),
    ):
        weights[f"model.layers.2.{name}.weight"] = rng.standard_normal(shape).astype(np.float16)
    save_file(weights, file)
    path = convert(tmp_path / "more", outtype="f32", outfile=tmp_path / "b.gguf", log=quiet)
    assert f"blk.2.{norm}.weight" in raw(path)
    want = logits(plain)
    assert np.array_equal(logits(path), want)
    model, guesses = Model(str(path), nextn=True), []
    for cut in (60, 1):
        session = Session(model, n_ctx=64, **EXACT)
        for begin in range(0, 60, cut):
            session.eval(np.array(TOKENS[begin : begin + cut], np.int32))
        session.guess(9)
        guesses.append(session.guessed_logits().copy())
    assert np.array_equal(*guesses) and np.isfinite(guesses[0]).all()


def test_matrices_of_its_own(dense: Path, tmp_path: Path) -> None:
    """Some layers have an embedding and a head of their own."""
    found = values(dense)
    own = {"embed_tokens": "token_embd.weight", "shared_head_head": "output.weight"}
    added = {f"blk.3.nextn.{a}.weight": found[b][::-1].copy() for a, b in own.items()}
    path = changed(dense, tmp_path / "own.gguf", added=added)
    logits_of = []
    for each, token in ((dense, 9), (path, 299 - 9)):
        session = Session(Model(str(each), nextn=True), n_ctx=8, **EXACT)
        session.eval(np.array([1], np.int32))
        session.guess(token)
        logits_of.append(session.guessed_logits().copy())
    assert np.array_equal(logits_of[1], logits_of[0][::-1])


@pytest.mark.parametrize("gone", ["mtp.norm.weight", "mtp.layers.0.self_attn.q_proj.weight"])
def test_a_part_of_the_layer_is_left_out(gone: str, tmp_path: Path) -> None:
    guessing.make("dense", tmp_path)
    file = tmp_path / "model" / "model.safetensors"
    weights = load_file(file)
    del weights[gone]
    save_file(weights, file)
    notes: list[str] = []
    path = convert(tmp_path / "model", outtype="f32", outfile=tmp_path / "b.gguf", log=notes.append)
    assert any("mtp" in note for note in notes)
    assert not any("nextn" in name for name in raw(path))


def test_a_damaged_file(dense: Path, tmp_path: Path) -> None:
    def without(name: str) -> Callable[[str, np.ndarray], np.ndarray | None]:
        return lambda n, data: None if n == name else data

    for name in ("blk.3.nextn.hnorm.weight", "blk.3.attn_k.weight", "blk.3.ffn_up.weight"):
        path = changed(dense, tmp_path / "a.gguf", tensors=without(name))
        with pytest.raises(ModelFormatError, match=f'"{name}" is missing'):
            Model(str(path), nextn=True)
        Model(str(path))
