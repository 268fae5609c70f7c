"""A text depends only on model, options, seed and prompt.

The same request is computed in many situations, each of which has to give the ids, and the bits of
the logits that they were drawn from, that a fresh `Llama` gives. test_masked_rows.py: what that
costs.
"""

from __future__ import annotations

import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from circles import pick
from repeated import (
    MODELS,
    MODES,
    N_PROMPT,
    Q8_0,
    SAMPLINGS,
    WINDOW,
    N,
    Step,
    Subject,
    digest,
    made,
    run,
    stream,
    take,
    tokens,
)

from powerinfer_cpp import Llama, LlamaRAMCache, OutOfMemoryError


@pytest.fixture(scope="module")
def path(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """path(name) is the file of one of MODELS."""
    return made(model_path, tmp_path_factory)


# Every mode in the quick circle, which has the default model in test_from_storage_as_in_memory.
SUBJECTS = pick(
    ["noise-predictor", "window-off", "mixture-auto", "Q8_0 cache-exact"],
    [f"{model}-{mode}" for model in MODELS for mode in MODES],
)


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(request: pytest.FixtureRequest, path: Callable[[str], Path]) -> Subject:
    name, mode = request.param.rsplit("-", 1)
    return Subject(path(name), mode, **(Q8_0 if name.startswith("Q8_0") else {}))


# ---- one request in many situations ----


def again(s: Subject, how: str) -> list[Step]:
    with s.open() as llm:
        run(llm, s.prompt, **SAMPLINGS[how])
        return run(llm, s.prompt, **SAMPLINGS[how])


def after_others(s: Subject, how: str) -> list[Step]:
    with s.open() as llm:
        for other in s.others:
            run(llm, other, **SAMPLINGS[how])
        run(llm, s.turn(how), **SAMPLINGS[how])
        return run(llm, s.prompt, **SAMPLINGS[how])


def after_its_own_ids(s: Subject, how: str) -> list[Step]:
    """The ids of prompt and answer are already computed, with the opposite flags."""
    with s.open() as llm:
        llm.eval(s.prompt, generated=True)
        llm.eval(tokens(s.fresh(how)))
        return run(llm, s.prompt, **SAMPLINGS[how])


def opened(**options: Any) -> Callable[[Subject, str], list[Step]]:
    def case(s: Subject, how: str) -> list[Step]:
        with s.open(**options) as llm:
            return run(llm, s.prompt, **SAMPLINGS[how])

    return case


def two_streams(s: Subject, how: str) -> list[Step]:
    with s.open() as llm:
        llm.set_seed(42)
        ours = stream(llm, s.prompt, **SAMPLINGS[how])
        theirs = stream(llm, s.others[-1], **SAMPLINGS[how])
        found = []
        for _ in range(N):
            found.append(next(ours))
            next(theirs)
        return found


def interrupted(s: Subject, how: str) -> list[Step]:
    """By a completion, an eval, a reset, a loaded state, and by its own prompt."""
    with s.open() as llm:
        llm.eval(s.others[0])
        state = llm.save_state()
        llm.set_seed(42)
        steps = stream(llm, s.prompt, **SAMPLINGS[how])
        disturb: list[Callable[[], Any]] = [
            lambda: llm(s.others[1], max_tokens=3, temperature=0),
            lambda: llm.eval(s.more),
            llm.reset,
            lambda: llm.load_state(state),
            lambda: run(llm, s.prompt, 4, **SAMPLINGS[how]),
            lambda: run(llm, s.turn(how), 2, **SAMPLINGS[how]),
        ]
        found = []
        for i in range(N):
            found.append(next(steps))
            if i % 2:
                disturb[i // 2 % len(disturb)]()
        return found


def loaded(s: Subject, how: str) -> list[Step]:
    """One Llama computes and saves the prompt, another one continues."""
    with s.open() as first, s.open(n_batch=3, n_threads=1) as second:
        first.eval(s.prompt)
        run(second, s.others[0], **SAMPLINGS[how])
        second.load_state(first.save_state())
        return run(second, s.prompt, **SAMPLINGS[how])


def pickled(s: Subject, how: str) -> list[Step]:
    """The state also holds an answer, and the Llama is unpickled."""
    with s.open() as first:
        run(first, s.prompt, **SAMPLINGS[how])
        state, llm = pickle.dumps(first.save_state()), pickle.dumps(first)
    with pickle.loads(llm) as second:
        second.load_state(pickle.loads(state))
        return run(second, s.prompt, **SAMPLINGS[how])


CASES: dict[str, Callable[[Subject, str], list[Step]]] = {
    "again": again,
    "after others": after_others,
    "after its own ids": after_its_own_ids,
    "n_batch=1": opened(n_batch=1),
    "n_batch=2": opened(n_batch=2),
    "n_ubatch=3": opened(n_ubatch=3),
    "1 thread": opened(n_threads=1),
    "4 threads": opened(n_threads=4),
    "n_ctx": opened(n_ctx=N_PROMPT + N),
    "logits_all": opened(logits_all=True),
    "two streams": two_streams,
    "interrupted": interrupted,
    "loaded": loaded,
    "pickled": pickled,
}


@pytest.mark.parametrize("case", CASES)
def test_as_a_fresh_one(subject: Subject, case: str) -> None:
    for how in SAMPLINGS:
        assert CASES[case](subject, how) == subject.fresh(how), how


# ---- from storage ----


class Stored(Subject):
    """Opened with the least budget of RAM and a little more for neurons that stay there."""

    def __init__(self, subject: Subject, more: int):
        self.__dict__.update(subject.__dict__)
        self._more = more

    def open(self, **options: Any) -> Llama:
        with pytest.raises(OutOfMemoryError) as refused:
            super().open(ram_budget=1e-6, **options)
        least = int(re.search(r"needs at least (\d+) bytes", str(refused.value))[1])
        llm = super().open(ram_budget=(least + self._more) / 2**30, **options)
        assert llm.plan()["storage"]["ffn"] > 0
        return llm


def copied(model: Path, folder: Path) -> Path:
    """Bundled files are written beside models."""
    return Path(shutil.copy(model, folder))


LARGER = {"intermediate_size": 2048}
LARGE_MODELS: dict[str, Callable[[Path, Path], Path]] = {
    "default": lambda folder, default: copied(default, folder),
    "noise": lambda folder, _: tiny.noisy(folder, **LARGER),
    "window": lambda folder, _: tiny.noisy(folder, **WINDOW, **LARGER),
}
FROM_STORAGE = pick(
    ("default-auto",),
    ("default-auto", "default-exact", "noise-predictor", "window-off"),
)
# With the least budget there is no room for `scores`, which eval needs.
IN_THE_LEAST = pick(("after others",), ("again", "after others", "1 thread"))
IN_MORE = pick(
    ["n_batch=2", "1 thread", "interrupted", "loaded"],
    [case for case in CASES if case != "logits_all"],
)


@pytest.fixture(scope="module", params=FROM_STORAGE)
def large(
    request: pytest.FixtureRequest, model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Subject:
    name, mode = request.param.rsplit("-", 1)
    return Subject(LARGE_MODELS[name](tmp_path_factory.mktemp("large"), model_path), mode)


@pytest.mark.parametrize(
    ("case", "more"), [*((c, 0) for c in IN_THE_LEAST), *((c, 500_000) for c in IN_MORE)]
)
def test_from_storage_as_in_memory(large: Subject, case: str, more: int) -> None:
    for how in SAMPLINGS:
        want = large.fresh(how)
        assert CASES[case](Stored(large, more), how) == want, how


def test_the_cases_can_fail(path: Callable[[str], Path]) -> None:
    """For each model except the default one, a mode that masks other rows gives other bits."""
    for name in ("noise", "window", "mixture", "Q8_0 cache"):
        options = Q8_0 if name.startswith("Q8_0") else {}
        auto, exact, predictor = (
            Subject(path(name), mode, **options).fresh("greedy")
            for mode in ("auto", "exact", "predictor")
        )
        assert auto[0] == exact[0]  # after the prompt, which auto does not mask
        assert not {d for _, d in auto[1:]} & {d for _, d in exact}
        assert not {d for _, d in predictor} & {d for _, d in auto + exact}


# ---- completions and their cache ----


def completion(llm: Llama, ids: list[int], how: str) -> tuple[str, list[str]]:
    """A text, and digests of all its logits."""
    seen: list[str] = []

    def look(_ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
        seen.append(digest(logits))
        return logits

    sampling = {k.replace("temp", "temperature"): v for k, v in SAMPLINGS[how].items()}
    done = llm(
        ids,
        max_tokens=N,
        seed=42,
        logits_processor=look,
        logit_bias={llm.token_eos(): -1000},
        **sampling,
    )
    assert len(seen) == done["usage"]["completion_tokens"] == N
    return done["choices"][0]["text"], seen


@pytest.mark.parametrize("how", SAMPLINGS)
def test_with_a_cache(subject: Subject, how: str) -> None:
    """Also a cache that two Llamas share: the second one finds the states of the first one."""
    requests = [subject.prompt, subject.turn(how), *subject.others]
    fresh = []
    for ids in requests:
        with subject.open() as llm:
            fresh.append(completion(llm, ids, how))
    cache = LlamaRAMCache()
    with subject.open() as first, subject.open(n_batch=5) as second:
        first.set_cache(cache)
        second.set_cache(cache)
        for llm in (first, second, first):
            assert [completion(llm, ids, how) for ids in requests] == fresh
        assert second.stats()["n_prompt"] == 1


@pytest.mark.parametrize("theirs", ["exact", "predictor"])
def test_a_cache_that_modes_share(path: Callable[[str], Path], theirs: str) -> None:
    """States that do not fit are ignored."""
    subjects = [Subject(path("noise"), mode) for mode in ("auto", theirs)]
    fresh = []
    for s in subjects:
        with s.open() as llm:
            fresh.append(completion(llm, s.prompt, "greedy"))
    cache = LlamaRAMCache()
    for _ in range(2):
        for s, want in zip(subjects, fresh, strict=True):
            with s.open() as llm:
                llm.set_cache(cache)
                assert completion(llm, s.prompt, "greedy") == want


# ---- conversations ----


@pytest.mark.parametrize("how", SAMPLINGS)
def test_second_turn(subject: Subject, how: str) -> None:
    """With or without the first turn in the cache."""
    turn = subject.turn(how)
    with subject.open() as llm:
        fresh = run(llm, turn, **SAMPLINGS[how])
    with subject.open() as llm:
        assert run(llm, subject.prompt, **SAMPLINGS[how]) == subject.fresh(how)
        assert run(llm, turn, **SAMPLINGS[how]) == fresh
        third = turn + tokens(fresh) + subject.more
        after = run(llm, third, 6, **SAMPLINGS[how])
        run(llm, subject.others[-1], **SAMPLINGS[how])
        assert run(llm, turn, **SAMPLINGS[how]) == fresh
    with subject.open() as llm:
        assert run(llm, third, 6, **SAMPLINGS[how]) == after


@pytest.mark.parametrize("how", SAMPLINGS)
def test_going_on_without_reset(subject: Subject, how: str) -> None:
    """generate(reset=False) after an answer: the answer's tokens stay marked as generated."""
    sampling = SAMPLINGS[how]

    def begun(llm: Llama) -> Iterator[Step]:
        first = run(llm, subject.prompt, **sampling)
        assert first == subject.fresh(how)
        llm.set_seed(7)
        return stream(llm, [first[-1][0], *subject.more], reset=False, **sampling)

    with subject.open() as llm:
        want = take(begun(llm), N)
    with subject.open() as llm:
        steps, found = begun(llm), []
        for i in range(N):
            found.append(next(steps))
            if i % 3 == 0:
                llm(subject.others[1], max_tokens=2, temperature=0)
        assert found == want
    with subject.open() as llm:  # without generate for what was there before
        answer = tokens(subject.fresh(how))
        llm.eval(subject.prompt)
        llm.eval(answer[:-1], generated=True)
        llm.set_seed(7)
        steps = stream(llm, [answer[-1], *subject.more], reset=False, **sampling)
        assert take(steps, N) == want


# ---- eval ----


def test_token_by_token(subject: Subject) -> None:
    n = N_PROMPT
    with subject.open(logits_all=True) as llm:
        llm.eval(subject.prompt)
        once = llm.scores[:n].copy()
        llm.reset()
        for token in subject.prompt:
            llm.eval([token])
        assert np.array_equal(llm.scores[:n], once)
        llm.reset()
        llm.eval(subject.prompt[:9])
        llm.eval(subject.prompt[9:])
        assert np.array_equal(llm.scores[:n], once)
    assert digest(once[-1]) == subject.fresh("greedy")[0][1]


def test_eval_of_generated_tokens(subject: Subject) -> None:
    """The same as generate, whether the ids come one by one, together, or after a state."""
    fresh = subject.fresh("drawn")
    answer, want = tokens(fresh)[:-1], [d for _, d in fresh]
    rows = range(N_PROMPT - 1, N_PROMPT + len(answer))
    with subject.open() as llm:
        llm.eval(subject.prompt)
        for i, token in enumerate(answer):
            if i == 5:
                state = llm.save_state()
            llm.eval([token], generated=True)
        assert [digest(llm.scores[row]) for row in rows] == want
    with subject.open(logits_all=True, n_batch=7) as llm:
        llm.eval(subject.prompt)
        llm.eval(answer, generated=True)
        assert [digest(llm.scores[row]) for row in rows] == want
        llm.load_state(pickle.loads(pickle.dumps(state)))
        llm.eval(answer[5:], generated=True)
        assert [digest(llm.scores[row]) for row in rows[6:]] == want[6:]
