"""What the package says: on stderr with `verbose`, and always to the logger "powerinfer_cpp"."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import tiny
from powerinfer_cpp.core import log, progress

from powerinfer_cpp import Llama, __version__, cli

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
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, errors="replace")
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
    done = subprocess.run(line, capture_output=True, errors="replace")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")


class Broken(io.StringIO):
    """A stderr of which nothing is left; a terminal, so that there would be a bar."""

    def write(self, text: str) -> int:
        raise self.error

    def flush(self) -> None:
        raise self.error

    def isatty(self) -> bool:
        return True


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


def broken(error: Exception) -> Broken:
    stream = Broken()
    stream.error = error
    return stream


@pytest.mark.parametrize(
    "stderr",
    [
        lambda: None,
        closed,
        lambda: broken(BrokenPipeError(32, "Broken pipe")),
        lambda: broken(OSError(28, "No space left on device")),
        lambda: broken(RuntimeError("the notebook has gone")),
    ],
    ids=["none", "closed", "pipe", "disk", "notebook"],
)
def test_messages_that_cannot_be_written_fail_nothing(
    stderr: object, path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stderr())
        # Python's own way to show a warning, which pytest replaces.
        patched.setattr(warnings, "showwarning", warnings._showwarning_orig)
        warnings.simplefilter("always")
        handler = logging.StreamHandler(sys.stderr)
        log.logger.addHandler(handler)
        try:
            with Llama(path, n_ctx=FAR, verbose=True, unknown=1) as llm:
                text = llm(tiny.PROMPT, max_tokens=2, temperature=0)["choices"][0]["text"]
        finally:
            log.logger.removeHandler(handler)
            # `logging` flushes every handler that is alive when it is configured, as uvicorn does,
            # and the error that was raised keeps this one alive until the next collection.
            handler.stream = io.StringIO()
        with progress.Progress("working", 4, "windows") as shown:
            for _ in range(4):
                shown._next_line = 0
                shown.update(1, "a note")
        line = ["complete", str(path), "-p", tiny.PROMPT, "-n", "2", "--temp", "0"]
        assert cli.main(line) == 0
    assert capsys.readouterr().out.endswith(f"{tiny.PROMPT}{text}\n")


def test_an_error_to_nobody_keeps_its_status(path: Path) -> None:
    """Nor does Python complain at the end that stderr could not be written."""
    for line, status in ((["-n", "1"], 0), (["-n", "x"], 2), (["-c", "2", "-n", "1"], 1)):
        read, write = os.pipe()
        os.close(read)
        whole = [sys.executable, "-m", "powerinfer_cpp", "complete", path, "-p", "the", *line]
        with contextlib.closing(os.fdopen(write, "w")) as stderr:
            done = subprocess.run(whole, stdout=subprocess.PIPE, stderr=stderr, errors="replace")
        assert done.returncode == status, line
