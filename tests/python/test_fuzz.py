"""The Python fuzz targets over what fuzzing has found worth keeping, and their driver."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path

import hostile
import pytest
from circles import pick

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"
# Changed copies of each file: as many as take a few seconds.
TARGETS = pick(
    {"fuzz_torch_zip": 20, "fuzz_template": 3, "fuzz_grammar": 1, "fuzz_gbnf": 2},
    {"fuzz_torch_zip": 60, "fuzz_template": 8, "fuzz_grammar": 3, "fuzz_gbnf": 5},
)
TARGETS = {**TARGETS, "fuzz_tools": pick(15, 60)}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(FUZZ))
    return importlib.import_module("driver")


def test_every_target_is_replayed() -> None:
    assert {path.stem for path in FUZZ.glob("fuzz_*.py")} == set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_corpus(driver, name: str) -> None:
    run, n = importlib.import_module(name).run, 0
    for data in driver.replayed(name.removeprefix("fuzz_"), TARGETS[name]):
        try:
            run(data)
        except BaseException as error:
            raise AssertionError(f"input {data!r}") from error
        n += 1
    assert n > TARGETS[name]


def test_texts_are_grown_by_rules(driver) -> None:
    rules = {"list": ["", "<item>,<list>"], "item": "a [<list>]"}
    assert driver.grown(b"\1\0\1\1\1\0", rules, "<list>") == "a,[a,],"
    assert driver.grown(b"\1" * 5000, rules, "<list>").count("[") < 5000
    assert driver.grown(b"", rules, "<list>x") == "x"
    assert driver.grown(b"\xff<list>\xc3\xa9", rules, "<list>") == "<list>\u00e9"


def test_the_clock_of_cases_leaves_out_what_came_before() -> None:
    """A process that ended in a case counts with what it did in it."""
    code = (
        "import sys, time\n"
        "while time.process_time() < 0.5: pass\n"
        "print(flush=True), sys.stdin.read(1)\n"
        "while time.process_time() < 0.8: pass\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    all_of_it = hostile.Clock()
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        process.stdout.readline()
        clock = hostile.Clock()
        process.communicate(b"x")
    time.sleep(0.6)  # the smaller is what processors took
    assert 0.2 < clock.seconds() < 0.5 < all_of_it.seconds()


def test_without_the_fuzzer(tmp_path: Path) -> None:
    """One sentence says what is missing; single inputs need no fuzzer."""
    (tmp_path / "atheris.py").write_text("raise ImportError")
    (tmp_path / "input").write_bytes(b"\1\x80\x02}.")
    command = [sys.executable, str(FUZZ / "fuzz_torch_zip.py")]
    how = {
        "capture_output": True,
        "text": True,
        "env": {**os.environ, "PYTHONPATH": str(tmp_path)},
    }
    done = subprocess.run(command, **how)
    assert done.returncode == 1
    assert done.stderr == "fuzzing Python needs the package atheris: pip install atheris\n"
    done = subprocess.run([*command, str(tmp_path / "input")], **how)
    assert (done.returncode, done.stderr) == (0, "")
