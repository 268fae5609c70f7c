"""Which rows predictors mask, what is therefore computed again, and audits of what masks miss."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
from repeated import (
    MODES,
    N_PROMPT,
    TEXT,
    N,
    Subject,
    made,
    run,
    stream,
    take,
    tokens,
)

from powerinfer_cpp import Llama


@pytest.fixture(scope="module")
def path(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """path(name) is the file of one of MODELS."""
    return made(model_path, tmp_path_factory)


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
