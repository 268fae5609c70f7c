"""A text depends only on model, options, seed and prompt.

The same request is computed in many situations, each of which has to give the ids, and the bits of
the logits that they were drawn from, that a fresh `Llama` gives. Then what that costs: who is
masked, and what is computed again.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from circles import pick
from families import quiet, turbo_mixtral
from powerinfer_cpp.convert import convert

from powerinfer_cpp import Llama, LlamaRAMCache, OutOfMemoryError

MODES = ("auto", "exact", "predictor", "off")
SAMPLINGS = {"greedy": {"temp": 0.0}, "drawn": {"temp": 0.9, "top_k": 0, "top_p": 0.95}}
# Keys and values lie in pages of 64 positions: a prompt that ends before such a border, an answer
# that goes over it.
N_PROMPT, N = 52, 18
TEXT = (
    b"One day a little fox saw a lazy dog. The quick dog had a red ball, and the fox jumps over it "
    b"to tell a story. They went to the park and the child was very happy. "
) * 2
OTHERS = (b"A small model tells a short story", b"One day a little fox ran", b"The")
MORE = b" The end. Then"

Step = tuple[int, str]  # an id, and a digest of the logits that it was drawn from


def digest(logits: np.ndarray) -> str:
    return hashlib.blake2b(logits.tobytes(), digest_size=8).hexdigest()


def stream(llm: Llama, ids: list[int], **options: Any) -> Iterator[Step]:
    """Generates after ids; the seed is drawn now."""
    seen: list[str] = []

    def look(_ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
        seen.append(digest(logits))
        return logits

    steps = llm.generate(ids, logits_processor=look, **options)
    return ((token, seen[-1]) for token in steps)


def take(steps: Iterator[Step], n: int) -> list[Step]:
    return [next(steps) for _ in range(n)]


def run(llm: Llama, ids: list[int], n: int = N, **options: Any) -> list[Step]:
    llm.set_seed(42)
    return take(stream(llm, ids, **options), n)


def tokens(steps: list[Step]) -> list[int]:
    return [token for token, _ in steps]


class Subject:
    """A model in a mode."""

    def __init__(self, path: Path, sparse: str, **options: Any):
        self._path, self._options = path, {"n_ctx": 160, "sparse": sparse, **options}
        self._fresh: dict[str, list[Step]] = {}
        with self.open() as llm:
            self.prompt = llm.tokenize(TEXT)[:N_PROMPT]
            self.others = [llm.tokenize(text) for text in OTHERS]
            self.others.append(self.prompt[:20] + self.others[0][1:])  # begins as the prompt does
            self.more = llm.tokenize(MORE, add_bos=False)
        assert len(self.prompt) == N_PROMPT and len(self.more) > 4

    def open(self, **options: Any) -> Llama:
        return Llama(self._path, verbose=False, **{**self._options, **options})

    def fresh(self, how: str) -> list[Step]:
        """The result of a new Llama for the prompt."""
        if how not in self._fresh:
            with self.open() as llm:
                self._fresh[how] = run(llm, self.prompt, **SAMPLINGS[how])
        return self._fresh[how]

    def turn(self, how: str) -> list[int]:
        """The prompt of a second turn: the first one's, its answer and a reply."""
        return self.prompt + tokens(self.fresh(how)) + self.more


WINDOW = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 7}
MODELS: dict[str, Callable[[Path, Path], Path]] = {
    "default": lambda _folder, default: default,
    "noise": lambda folder, _: tiny.noisy(folder),
    "window": lambda folder, _: tiny.noisy(folder, **WINDOW),
    "mixture": lambda folder, _: convert(
        turbo_mixtral(folder / "m"), outtype="f32", outfile=folder / "m.gguf", log=quiet
    ),
    "Q8_0 cache": lambda folder, _: tiny.noisy(folder, head_dim=32, num_key_value_heads=2),
}
Q8_0 = {"type_k": 8, "type_v": 8}


@pytest.fixture(scope="module")
def path(model_path: Path, tmp_path_factory: pytest.TempPathFactory):
    """path(name) is the file of one of MODELS."""
    found: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in found:
            found[name] = MODELS[name](tmp_path_factory.mktemp("repeat"), model_path)
        return found[name]

    return get


# Every model and every mode, in the quick circle.
SUBJECTS = pick(
    ["default-auto", "noise-predictor", "window-off", "mixture-auto", "Q8_0 cache-exact"],
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
    ("default-auto", "noise-predictor"),
    ("default-auto", "default-exact", "noise-predictor", "window-off"),
)
# With the least budget there is no room for `scores`, which eval needs.
IN_THE_LEAST = ("again", "after others", "1 thread")
IN_MORE = [case for case in CASES if case != "logits_all"]


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


# ---- what is computed, and by whom ----


@pytest.mark.parametrize("name", ["default", "noise"])
@pytest.mark.parametrize("mode", ["exact", "off", "predictor"])
def test_work_of_a_second_turn(name: str, mode: str, path: Callable[[str], Path]) -> None:
    """It computes the new ids, and the last id of the answer, which was not computed yet."""
    s = Subject(path(name), mode)
    with s.open() as llm:
        answer = tokens(run(llm, s.prompt))
        assert llm.stats()["n_prompt"] == N_PROMPT
        run(llm, s.prompt + answer + s.more, 2)
        assert llm.stats()["n_prompt"] == len(s.more) + 1
        run(llm, s.prompt, 2)
        assert llm.stats()["n_prompt"] == 1


@pytest.mark.parametrize("name", ["default", "noise"])
def test_work_of_a_second_turn_that_was_masked(name: str, path: Callable[[str], Path]) -> None:
    """An answer in a prompt is not masked: it is computed again."""
    s = Subject(path(name), "auto")
    with s.open() as llm:
        answer = tokens(run(llm, s.prompt))
        run(llm, s.prompt + answer + s.more, 2)
        assert llm.stats()["n_prompt"] == N + len(s.more)
        run(llm, s.prompt + answer, 2)  # now it is there as a prompt
        assert llm.stats()["n_prompt"] == 1
        llm.reset()
        answer = tokens(run(llm, s.prompt))
        take(stream(llm, [answer[-1], *s.more], reset=False), 2)
        assert llm.stats()["n_prompt"] == len(s.more) + 1  # continuing costs nothing


def test_auto_masks_what_is_generated(path: Callable[[str], Path]) -> None:
    auto, exact = (Subject(path("noise"), mode) for mode in ("auto", "exact"))
    for s in (auto, exact):
        with s.open() as llm:
            run(llm, s.prompt, 1)
            assert llm.stats()["share_predicted"] == [1.0, 1.0]  # of the prompt
            run(llm, s.prompt)
            shares = llm.stats()["share_predicted"]
        assert max(shares) < 0.9 if s is auto else shares == [1.0, 1.0]
    rows = []
    for s in (auto, exact):
        with s.open(logits_all=True) as llm:
            llm.eval(s.prompt)
            prompt = llm.scores[:N_PROMPT].copy()
            llm.reset()
            llm.eval(s.prompt, generated=True)
            rows.append((prompt, llm.scores[:N_PROMPT].copy()))
    (prompt, generated), (exact_prompt, exact_generated) = rows
    assert np.array_equal(prompt, exact_prompt)
    assert np.array_equal(exact_generated, exact_prompt)
    assert not (generated == exact_prompt).all(axis=1).any()


# ---- ./main ----

CHATML = """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + \
message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ \
'<|im_start|>assistant\\n' }}{% endif %}"""


@pytest.mark.parametrize("mode", MODES)
def test_a_conversation_goes_on(mode: str, main_path: Path, tmp_path: Path) -> None:
    """Two turns of -cnv are one sequence, in which the answer's tokens were generated."""
    path, n = tiny.noisy(tmp_path, CHATML), 12
    line = [main_path, "-m", path, "-cnv", "--temp", "0", "-lv", "4", "--ignore-eos", "-c", "512"]
    done = subprocess.run(
        [*map(str, line), "-n", str(n), "--sparse", mode],
        input=b"the fox\nthe dog\n",
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    read = re.findall(rb"tokens read:([ \d]*)", done.stderr)
    first, second = ([int(i) for i in ids.split()] for ids in read)

    def forbid_end(_ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
        logits[2] = -np.inf
        return logits

    with Llama(path, n_ctx=512, sparse=mode, verbose=False) as llm:

        def answered() -> list[int]:
            """The last token is not computed."""
            answer: list[int] = []
            while True:
                answer.append(llm.sample(temp=0, logits_processor=forbid_end))
                if len(answer) == n:
                    return answer
                llm.eval(answer[-1:], generated=True)

        def conversation(generated: bool) -> list[list[int]]:
            llm.reset()
            llm.eval(first)
            answer = answered()
            llm.eval(answer[-1:], generated=True)
            if not generated:
                llm.reset()
                llm.eval(first + answer)
            llm.eval(second[1:])
            return [answer, answered()]

        answers = conversation(generated=True)
        assert second[0] == answers[0][-1]
        assert done.stdout == b"".join(llm.detokenize(answer) + b"\n" for answer in answers)
        # Under auto it matters, or this would show nothing.
        assert (conversation(generated=False) == answers) == (mode != "auto")
    counted = re.search(rb"prompt eval time = .* / +(\d+) tokens", done.stderr)
    assert int(counted[1]) == len(first) + len(second)  # each once


# ---- audits ----


def rows(llm: Llama, n: int) -> np.ndarray:
    """Logits after n generated tokens behind BOS."""
    ids = [1 + i * i % 250 for i in range(n)]
    llm.reset()
    llm.eval(ids[:1])
    llm.eval(ids[1:], generated=True)
    return llm.scores[n - 1].copy()


@pytest.mark.parametrize("mode", ["auto", "predictor"])
def test_predictors_that_miss_are_told_of_once(
    mode: str, path: Callable[[str], Path], capfd: pytest.CaptureFixture
) -> None:
    """The audit changes nothing else."""
    with Llama(path("noise"), n_ctx=160, sparse=mode) as llm:
        first = rows(llm, 150)
        assert "--sparse exact" not in capfd.readouterr().err  # too few for a warning
        for _ in range(10):
            assert np.array_equal(rows(llm, 150), first)
        shown = capfd.readouterr().err
        lines = [line for line in shown.splitlines() if "--sparse exact" in line]
        assert len(lines) == 1 and str(path("noise")) in lines[0]
        assert re.search(r"finds? \d+% of the neurons that fire, less than 70%", lines[0])
        llm(TEXT[:40], max_tokens=20)
        assert "--sparse exact" not in capfd.readouterr().err
        assert np.array_equal(rows(llm, 150), first)
    with Llama(path("noise"), n_ctx=160, sparse=mode, verbose=False) as quietly:
        for _ in range(8):
            assert np.array_equal(rows(quietly, 150), first)
    assert capfd.readouterr().err == ""


def test_predictors_that_find_are_not(model_path: Path, capfd: pytest.CaptureFixture) -> None:
    for mode in ("auto", "predictor"):
        with Llama(model_path, n_ctx=512, sparse=mode) as llm:
            for _ in range(2):
                take(stream(llm, llm.tokenize(TEXT), temp=0.8), 300)
            found = llm.stats()["audit"]
            assert found["fired"] > 512 and found["found"] > 0.9 * found["fired"]
        assert "--sparse exact" not in capfd.readouterr().err


@pytest.mark.parametrize("mode", MODES)
def test_audits_count_what_is_generated(mode: str, path: Callable[[str], Path]) -> None:
    """One of two layers, 3 of its 96 neurons, half of which fire; no prompt, nothing unmasked."""
    s = Subject(path("noise"), mode)
    with s.open() as llm:
        run(llm, s.prompt, 1)
        assert llm.stats()["audit"] == {"fired": 0, "found": 0}
        run(llm, s.prompt, 100)
        found = llm.stats()["audit"]
        if mode in ("auto", "predictor"):
            assert 0.25 < found["fired"] / (99 * 3) < 0.75
            assert 0 < found["found"] < found["fired"]
        else:
            assert found == {"fired": 0, "found": 0}
        run(llm, s.prompt, 100)
        assert llm.stats()["audit"] == found  # of the last generation


@pytest.mark.parametrize("mode", MODES)
def test_main_tells_of_predictors_too(
    mode: str, path: Callable[[str], Path], main_path: Path
) -> None:
    line = [main_path, "-m", path("noise"), "-n", "900", "-c", "1000", "--ignore-eos", "-s", "1"]
    done = subprocess.run(
        [*map(str, line), "--sparse", mode], capture_output=True, timeout=60, check=True
    )
    masked = mode in ("auto", "predictor")
    assert done.stderr.count(b"--sparse exact computes every") == masked
    assert (b"predictors found = " in done.stderr) == masked
