"""What the package says: on stderr with `verbose`, and always to the logger "powerinfer_cpp"."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from powerinfer_cpp import Llama, __version__, log

FAR = 300  # positions; the tiny model was trained with 256


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("log"))


def test_messages_are_logged_whatever_verbose_is(
    path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture
) -> None:
    found = {}
    for verbose in (False, True):
        caplog.clear()
        caplog.set_level(logging.INFO, logger="powerinfer_cpp")
        with Llama(path, n_ctx=FAR, verbose=verbose) as llm:
            llm(tiny.PROMPT, max_tokens=1)
        found[verbose] = [(r.name, r.levelno, r.getMessage()) for r in caplog.records]
        printed = capfd.readouterr().err.splitlines()
        assert printed == ([text for *_, text in found[verbose]] if verbose else [])
    assert {name for name, *_ in found[False]} == {"powerinfer_cpp"}
    # The engine's own level comes through: it warns of a context beyond the training's.
    warned = [text for _, level, text in found[False] if level == logging.WARNING]
    assert len(warned) == 1 and "goes beyond the 256" in warned[0]
    assert [r[1] for r in found[True]] == [r[1] for r in found[False]]


def test_a_program_without_logging_sees_nothing(path: Path) -> None:
    """Not even warnings, which logging prints for libraries without a handler."""
    code = "import sys; from powerinfer_cpp import Llama\n"
    code += f"Llama(sys.argv[1], n_ctx={FAR}, verbose=False)('the', max_tokens=1)"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_control_characters_and_details(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="powerinfer_cpp"):
        log.say("a\x1b[31m\nb", verbose=True)
        log.say("detail", True, log.engine_level(4))
    assert [r.getMessage() for r in caplog.records] == ["a\\x1b[31m\\nb", "detail"]
    assert capfd.readouterr().err == "a\\x1b[31m\\nb\n"


def test_python_m_is_the_command() -> None:
    line = [sys.executable, "-m", "powerinfer_cpp", "--version"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")
