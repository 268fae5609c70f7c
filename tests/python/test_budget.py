"""The RAM budget: use stays below it, requests that do not fit are refused, nothing leaks.

Run as a program with the path of a model it fills sessions under twenty budgets (seven in the
quick circle) and prints, as JSON, what that took. With --stored it does so under budgets that leave
neurons on the disk.
"""

from __future__ import annotations

import gc
import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
from circles import pick
from families import quiet
from powerinfer_cpp._native import lib
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.core.plan import memory_plan
from powerinfer_cpp.core.sequences.context import Context
from powerinfer_cpp.core.session import Session

from powerinfer_cpp import Llama, LlamaRAMCache, ModelFormatError, OutOfMemoryError

# A session of 7 MiB, 4 of them keys and values, in which every page gets written.
N_CTX, N_BATCH = 256, 64
FIELDS = {"n_ctx": N_CTX, "n_batch": N_BATCH, "n_ubatch": N_BATCH, "n_logits": N_BATCH}
FIELDS |= {"type_k": 0, "type_v": 0, "n_threads": 2}
# What no plan counts, over what the interpreter and the library took before the first model: the
# vocabulary, headers, stacks of threads and what malloc keeps. Measured over all cases: 0.3 MiB.
UNCOUNTED = 1 << 20
OF_SESSION = ("kv", "scratch", "results")


def sizes(path: str) -> tuple[int, int]:
    """Bytes of the weights and of a session, as planned."""
    plan = memory_plan(path, {}, FIELDS)
    session = sum(plan["ram"][part] for part in OF_SESSION)
    return plan["total"] - session, session


def anonymous() -> int:
    """Bytes of this process without files behind them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def fill(session: Session) -> None:
    """Computes a full context and keeps as many logits as possible."""
    ids, keep = np.arange(N_CTX, dtype=np.int32) % 300, np.ones(N_BATCH, dtype=bool)
    session.truncate(0)
    for first in range(0, N_CTX, N_BATCH):
        session.eval(ids[first : first + N_BATCH], keep)


def open_and_fill(model: Model, n: int) -> tuple[list[Session], str]:
    """n sessions, or as many as the budget allows and the error of the next one."""
    sessions: list[Session] = []
    try:
        for _ in range(n):
            sessions.append(Session(model, **FIELDS))
            fill(sessions[-1])
    except OutOfMemoryError as error:
        return sessions, str(error)
    return sessions, ""


BUDGETS = pick(range(0, 20, 3), range(20))


def child(path: str) -> list[dict[str, Any]]:
    weights, session = sizes(path)
    before, found = anonymous(), []
    for i, n in itertools.product(BUDGETS, range(1, 5)):
        budget = weights + i * session * 9 // 38  # up to four and a half sessions
        use_mmap = (i + n) % 2 == 1
        model = Model(path, ram_budget=budget, use_mmap=use_mmap)
        sessions, why = open_and_fill(model, n)
        taken, reserved = anonymous() - before, lib.pi_model_reserved(model.handle)
        row = {"budget": budget, "asked": n, "opened": len(sessions), "why": why}
        row |= {"taken": taken, "reserved": reserved, "use_mmap": use_mmap}
        if sessions:  # one that is closed makes room for another
            sessions.pop().close()
            again, row["again"] = open_and_fill(model, 1)
            sessions += again
            row["after"] = anonymous() - before
        for part in (*sessions, model):
            part.close()
        found.append(row)
    return found


def stored_child(path: str) -> list[dict[str, Any]]:
    """Rows for budgets from the least one to what all of the model takes."""
    least, all_of_it = bounds(path)
    Model(path, ram_budget=least, session=FIELDS).close()  # writes the bundled file
    before, found = anonymous(), []
    for i in range(11):
        budget = least + (all_of_it - least) * i // 10
        model = Model(path, ram_budget=budget, session=FIELDS)
        session = Session(model, **FIELDS)
        fill(session)
        taken, reserved = anonymous() - before, lib.pi_model_reserved(model.handle)
        stored = bool(model.plan(**FIELDS)["storage"])
        found.append({"budget": budget, "taken": taken, "reserved": reserved, "stored": stored})
        session.close()
        model.close()
    return found


def bounds(path: str) -> tuple[int, int]:
    """The least budget of a model and a session, and the least that takes all neurons into RAM."""
    return tuple(memory_plan(path, {"ram_budget": n}, FIELDS)["total"] for n in (1, 1 << 40))


SHAPE = {"intermediate_size": 1024, "head_dim": 256, "num_key_value_heads": 4}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that can run from storage."""
    import tiny

    return tiny.noisy(tmp_path_factory.mktemp("budget"), **SHAPE)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without neuron rows, which cannot."""
    folder, cfg = tmp_path_factory.mktemp("plain"), checkpoints.config(**SHAPE)
    checkpoints.save(folder / "model", cfg, checkpoints.weights(cfg))
    return convert(folder / "model", outfile=folder / "plain.gguf", outtype="f32", log=quiet)


def rows_of_child(path: Path, *options: str) -> list[dict[str, Any]]:
    line = [sys.executable, __file__, str(path), *options]
    done = subprocess.run(line, capture_output=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_sessions_under_budgets(plain: Path) -> None:
    weights, session = sizes(str(plain))
    assert session > 5 * UNCOUNTED  # or nothing is shown
    rows, opened = rows_of_child(plain), set()
    assert len(rows) == 4 * len(BUDGETS)
    for row in rows:
        room = (row["budget"] - weights) // session
        assert row["opened"] == min(row["asked"], room), row
        assert row["reserved"] == weights + row["opened"] * session <= row["budget"], row
        assert row["taken"] <= row["reserved"] + UNCOUNTED, row
        # What is reserved is used, or the ledger would be a guess.
        used = row["taken"] + (weights if row["use_mmap"] else 0)
        assert used > 0.9 * row["reserved"], row
        if row["opened"] < row["asked"]:
            mib = f"{session / 2**20:.0f} MiB"
            assert f"would take {mib} of RAM" in row["why"], row
            assert f"of the {row['budget'] / 2**20:.0f} MiB that may be used" in row["why"], row
        else:
            assert row["why"] == ""
        if row["opened"]:
            assert row["again"] == "" and row["after"] <= row["reserved"] + UNCOUNTED, row
        opened.add(row["opened"])
    assert opened == {0, 1, 2, 3, 4}


def test_neurons_on_the_disk_under_budgets(path: Path) -> None:
    rows = rows_of_child(path, "--stored")
    stored = [row["stored"] for row in rows]  # until the cache has room for all
    assert stored == sorted(stored, reverse=True) and stored[4] and not stored[-1]
    for row in rows:
        assert row["reserved"] <= row["budget"], row
        assert row["taken"] <= row["reserved"] + UNCOUNTED, row
    # More of the budget is more of the cache.
    assert rows[9]["taken"] > rows[0]["taken"]
    assert rows[9]["reserved"] > 0.9 * rows[9]["budget"]


# ---- to the byte ----


def opened(path: Path, budget: int) -> Model:
    return Model(str(path), ram_budget=budget)


def reserved(model: Model) -> int:
    return lib.pi_model_reserved(model.handle)


def test_a_byte_too_few(plain: Path) -> None:
    weights, session = sizes(str(plain))
    with pytest.raises(OutOfMemoryError, match="MiB"):
        opened(plain, weights - 1)
    model = opened(plain, weights)
    assert reserved(model) == weights == lib.pi_model_budget(model.handle)
    with pytest.raises(OutOfMemoryError, match="MiB"):
        Session(model, **FIELDS)
    model = opened(plain, weights + session - 1)
    with pytest.raises(OutOfMemoryError, match="MiB"):
        Session(model, **FIELDS)
    assert reserved(model) == weights
    model = opened(plain, weights + session)
    kept = Session(model, **FIELDS)
    assert reserved(model) == weights + session == memory_plan(str(plain), {}, FIELDS)["total"]
    kept.close()


def test_a_byte_less_than_the_least(path: Path, tmp_path: Path) -> None:
    """For a model that can run from storage."""
    model = str(shutil.copy(path, tmp_path / "model.gguf"))
    least, _ = bounds(model)
    with pytest.raises(OutOfMemoryError, match=f"needs at least {least} bytes"):
        Model(model, ram_budget=least - 1, session=FIELDS)
    with pytest.raises(OutOfMemoryError, match="may not be written"):
        Model(model, ram_budget=least, session=FIELDS, bundle=False)
    assert list(tmp_path.iterdir()) == [tmp_path / "model.gguf"]
    opened = Model(model, ram_budget=least, session=FIELDS)
    kept = Session(opened, **FIELDS)
    assert reserved(opened) == least == lib.pi_model_budget(opened.handle)
    with pytest.raises(OutOfMemoryError, match="MiB"):
        Session(opened, **FIELDS)
    fill(kept)
    kept.close()


def test_weights_that_fit_without_a_session(path: Path) -> None:
    """Nobody said which session will be opened, and there is no room for the default one."""
    weights, session = sizes(str(path))
    model = opened(path, weights)
    assert reserved(model) == weights
    with pytest.raises(OutOfMemoryError, match="MiB"):
        Session(model, **FIELDS)


@pytest.mark.parametrize(
    "fields",
    [{}, {"type_k": 8, "type_v": 8}, {"n_seq": 3}, {"record": 3, "sparse": 2}, {"n_ctx": 100}],
)
def test_the_plan_is_what_is_taken(path: Path, model_path: Path, fields: dict[str, int]) -> None:
    for file in (path, model_path):
        model, fields = Model(str(file)), {**FIELDS, **fields}
        session = Session(model, **fields)
        assert reserved(model) == memory_plan(str(file), {}, fields)["total"]
        session.close()
        assert reserved(model) < memory_plan(str(file), {}, fields)["total"]


def test_four_do_not_fit_where_one_does(plain: Path) -> None:
    weights, session = sizes(str(plain))
    model = opened(plain, weights + 2 * session - 1)
    first = Session(model, **FIELDS)
    for _ in range(3):
        with pytest.raises(OutOfMemoryError, match="MiB"):
            Session(model, **FIELDS)
        assert reserved(model) == weights + session
    fill(first)  # whom the refusals left alone
    first.close()
    Session(model, **FIELDS).close()


def test_the_ledger_ends_where_it_began(plain: Path) -> None:
    weights, session = sizes(str(plain))
    model = opened(plain, weights + 2 * session)
    for _ in range(3):
        sessions = [Session(model, **FIELDS) for _ in range(2)]
        with pytest.raises(OutOfMemoryError):
            Session(model, **FIELDS)
        with pytest.raises(ValueError, match="n_batch"):
            Session(model, **{**FIELDS, "n_batch": 0})
        fill(sessions[0])
        state = sessions[0].save()
        sessions[1].load(state)
        for broken in (b"", state[:-1], bytes(300), state.replace(b"PIseq05", b"PIseq01", 1)):
            with pytest.raises(ModelFormatError):
                sessions[1].load(broken)
        assert reserved(model) == weights + 2 * session
        sessions.pop().close()
        assert reserved(model) == weights + session
        del sessions  # and without close
        gc.collect()
        assert reserved(model) == weights


def test_a_llama_takes_its_plan(plain: Path) -> None:
    """The budget is usable to the last byte, also after requests, states and refusals."""
    with Llama(plain, n_ctx=64, n_batch=16, verbose=False) as llm:
        total = llm.plan()["total"]
    exactly, less = ({"ram_budget": n / 2**30, "verbose": False} for n in (total, total - 1))
    with pytest.raises(OutOfMemoryError, match="MiB"):
        Llama(plain, n_ctx=64, n_batch=16, **less)
    with Llama(plain, n_ctx=64, n_batch=16, **exactly) as llm:
        assert llm.plan()["budget"] == total == reserved(llm._model)
        llm("the quick brown fox", max_tokens=8)
        state = llm.save_state()
        state.llama_state = state.llama_state[:-1]
        with pytest.raises(ModelFormatError):
            llm.load_state(state)
        llm("the quick brown fox", max_tokens=8)
        assert reserved(llm._model) == total
    fields = {"n_ctx": 64, "n_batch": 16, "embedding": True}
    with Llama(plain, verbose=False, **fields) as llm:
        total = llm.plan()["total"]  # with room for several texts at once
    with Llama(plain, **fields, verbose=False, ram_budget=total / 2**30) as llm:
        llm.embed("the quick")
        with pytest.raises(OutOfMemoryError, match="MiB"):  # a second session
            llm("the quick brown fox", max_tokens=8)
        llm.embed("the quick")


# ---- what Python keeps ----

PROMPT = "the quick brown fox"
OPTIONS: dict[str, Any] = {"n_ctx": 96, "n_batch": 16, "verbose": False}


def with_room(path: Path, n_bytes: int, **options: Any) -> Llama:
    """A Llama with a budget of n_bytes more than its plan."""
    options = {**OPTIONS, **options}
    with Llama(path, **options) as llm:
        budget = llm.plan()["total"] + n_bytes
    return Llama(path, ram_budget=budget / 2**30, **options)


def left(llm: Llama) -> int:
    return lib.pi_model_budget(llm._model.handle) - reserved(llm._model)


@pytest.mark.parametrize("logits_all", [True, False])
def test_scores_are_taken_from_the_budget(path: Path, logits_all: bool) -> None:
    row, ids = 320 * 4, [1, *range(10, 30)]
    with with_room(path, 6 * row, logits_all=logits_all) as llm:
        assert llm.n_vocab() * 4 == row
        steps = [ids[:6]] if logits_all else [[i] for i in ids[:6]]  # a row of each eval, or all
        for _ in range(3):  # the same rows again
            llm.reset()
            for step in steps:
                llm.eval(step)
            assert left(llm) == 0
        want = llm.scores[:6].copy()
        assert want.any(axis=1).all()
        with pytest.raises(OutOfMemoryError, match="scores.*MiB"):
            llm.eval(ids[6:8])
        assert llm.n_tokens == 6 and llm._loop.opened._session.length() == 6
        assert np.array_equal(llm.scores[:6], want)
        llm.reset()
        llm.eval(ids[:6])
        assert np.array_equal(llm.scores[5], want[5])
    with Llama(path, **OPTIONS) as llm:
        llm.eval(ids[:6])
        assert np.array_equal(llm.scores[5], want[5])


def test_scores_that_do_not_fit(path: Path) -> None:
    """Each request is refused."""
    with with_room(path, 0) as llm:
        llm(PROMPT, max_tokens=8, temperature=0)
        for _ in range(2):
            with pytest.raises(OutOfMemoryError, match="scores.*MiB"):
                _ = llm.scores


@pytest.mark.parametrize("asked_for", ["eval", "scores"])
def test_refused_scores_leave_completions_alone(path: Path, asked_for: str) -> None:
    """These need no memory."""
    with with_room(path, 0) as llm:
        want = llm(PROMPT, max_tokens=8, temperature=0)["choices"]
    with with_room(path, 0) as llm:
        if asked_for == "scores":
            llm(PROMPT, max_tokens=2)
        for _ in range(2):
            with pytest.raises(OutOfMemoryError, match="scores.*MiB"):
                llm.eval([1, 10]) if asked_for == "eval" else llm.scores.any()
            assert llm.n_tokens == 0 or asked_for == "scores"
        assert llm(PROMPT, max_tokens=8, temperature=0)["choices"] == want


def test_scores_are_given_back(path: Path) -> None:
    model = Model(str(path))
    weights = reserved(model)
    context = Context(model, True, **{**FIELDS, "n_logits": 0})
    session = reserved(model) - weights
    context.eval(np.arange(20, dtype=np.int32))
    assert reserved(model) - weights - session >= 20 * model.n_vocab * 4
    context.close()
    assert reserved(model) == weights


def text(llm: Llama, prompt: str) -> str:
    done = llm(prompt, max_tokens=8, temperature=0, logit_bias={llm.token_eos(): -1000})
    return done["choices"][0]["text"]


@pytest.fixture(scope="module")
def cached(path: Path) -> tuple[list[str], list[str], int]:
    """Prompts of which each goes on with the one before, their answers, and the bytes of the
    largest state."""
    prompts, answers = [PROMPT], []
    for i in range(3):
        with Llama(path, **OPTIONS) as llm:
            answers.append(text(llm, prompts[-1]))
            size = llm.save_state().n_bytes
        if i < 2:
            prompts.append(prompts[-1] + " a story")
    return prompts, answers, size


def test_cached_states_are_taken_from_the_budget(path: Path, cached: tuple) -> None:
    prompts, answers, size = cached
    cache = LlamaRAMCache()
    with with_room(path, 10 * size) as llm:
        total = reserved(llm._model)
        llm.set_cache(cache)
        for _ in range(2):
            assert [text(llm, prompt) for prompt in prompts] == answers
            assert reserved(llm._model) == total + cache.cache_size
        assert cache.cache_size > 2 * size
        cache.capacity_bytes = size
        text(llm, "the lazy dog")
        assert reserved(llm._model) == total + cache.cache_size <= total + size
        llm.set_cache(None)
        del cache
        gc.collect()
        assert reserved(llm._model) == total


def test_cached_states_that_do_not_fit(path: Path, cached: tuple) -> None:
    """With room for no state, for one that is not the largest, and for one."""
    prompts, answers, size = cached
    for room in (0, size // 2, size - 1):
        cache = LlamaRAMCache()
        with with_room(path, room) as llm:
            llm.set_cache(cache)
            for _ in range(2):
                assert [text(llm, prompt) for prompt in prompts] == answers
                assert cache.cache_size <= room and left(llm) >= 0


def test_the_last_state_takes_the_place_of_older_ones(path: Path, cached: tuple) -> None:
    """Also the state that its own text continued from."""
    prompts, answers, size = cached
    cache = LlamaRAMCache()
    with with_room(path, size + 1) as llm:
        llm.set_cache(cache)
        for prompt, answer in zip(prompts, answers, strict=True):
            llm.reset()  # so that what is there has to come out of the cache
            assert text(llm, prompt) == answer
            assert cache.cache_size > 0 and llm.tokenize(prompt.encode()) in cache
            assert [s.n_tokens for s in cache._states.values()] == [llm.n_tokens]
            assert left(llm) == size + 1 - cache.cache_size


def test_a_state_that_never_fits_leaves_the_others(path: Path, cached: tuple) -> None:
    prompts, _answers, size = cached
    cache = LlamaRAMCache()
    with with_room(path, size) as llm:
        llm.set_cache(cache)
        text(llm, prompts[0])
        kept = cache.cache_size
        assert 0 < kept == size - left(llm)
        text(llm, prompts[-1] + " of a dog")
        assert cache.cache_size == kept


if __name__ == "__main__":
    print(json.dumps((stored_child if "--stored" in sys.argv else child)(sys.argv[1])))
