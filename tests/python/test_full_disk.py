"""Disks that fill up while a command writes: one sentence that names the file, exit status 1,
nothing half-written under the final name, and the same result when there is room again."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from circles import FULL
from disturbing import COMMANDS, Command, buffered, contents, growing


def opened(command: Command) -> list[int]:
    """The first step in which each file is opened for writing; predictors are all alike."""
    steps, found = command.undisturbed[1], {}
    for i in growing(steps):
        found.setdefault(re.sub(r"\d+", "", steps[i]), i)
    return list(found.values())


def refused(command: Command, out: Path, harm: str, step: int) -> None:
    """One sentence, and nothing with a final name that is not whole."""
    done, _ = command.run(out, harm, step)
    assert done.returncode == 1
    *_, last = lines = done.stderr.splitlines()
    assert last.startswith("powerinfer: error: ") and str(out) in last, done.stderr
    assert sum("rror" in line for line in lines) == 1, done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert "no space left" in last, last
    whole = command.undisturbed[0]
    found = contents(out)
    assert [name for name in found if name in whole and found[name] != whole[name]] == []


def finishes(command: Command, out: Path) -> None:
    done, _ = command.run(out)
    assert done.returncode == 0, done.stderr
    assert contents(out) == command.undisturbed[0]


@COMMANDS
def test_a_file_that_cannot_grow(command: Command) -> None:
    steps = opened(command)
    for step in steps:
        out = command.new_folder()
        refused(command, out, "full", step)
        if FULL or step == steps[-1]:
            finishes(command, out)


def _may_mount() -> bool:
    """Whether this process may make a small disk of its own."""
    unshare = shutil.which("unshare")
    return (
        os.geteuid() == 0
        and bool(unshare)
        and not subprocess.run([unshare, "-m", "true"]).returncode
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "disk"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", where], check=True)
    yield where
    subprocess.run(["umount", where], check=True)


@pytest.mark.skipif(not _may_mount(), reason="no right to mount a small disk")
@COMMANDS
def test_a_disk_that_fills_up(command: Command, small_disk: Path) -> None:
    steps = opened(command)
    for i, step in enumerate(steps if FULL else steps[:1]):
        out = small_disk / str(i)
        out.mkdir()
        refused(command, out, "fill", step)
        (small_disk / "filler").unlink()
        finishes(command, out)
        for path in sorted(out.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()


def _limited() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


@pytest.mark.parametrize("full", ["a limit", "a device"])
def test_figures_of_main(full: str, main_path: Path, model_path: Path, tmp_path: Path) -> None:
    path = Path("/dev/full") if full == "a device" else tmp_path / "stats.json"
    done = subprocess.run(
        [main_path, "-m", model_path, "-p", "Once", "-n", "3", "--json-stats", path],
        capture_output=True,
        errors="replace",
        preexec_fn=_limited,
    )
    assert done.returncode == 1
    why = "No space left on device|File too large"
    assert re.search(rf"^main: error: {re.escape(str(path))}: ({why})$", done.stderr, re.MULTILINE)
    assert full == "a device" or not path.exists()


@pytest.mark.parametrize(
    "line", [["inspect"], ["inspect", "--json"], ["bench", "-p", "8", "-n", "2", "-r", "1"], []]
)
def test_output_that_cannot_be_written(line: list[str], model_path: Path) -> None:
    line = [*line, str(model_path)] if line else ["--help"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "powerinfer_cpp.cli", *line],
            stdout=full,
            stderr=subprocess.PIPE,
            errors="replace",
            env=buffered(),
        )
    want = "powerinfer: error: cannot write to stdout: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, want)


def test_a_stdout_that_is_closed(model_path: Path) -> None:
    line = f"'{sys.executable}' -m powerinfer_cpp.cli inspect '{model_path}' >&-"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, errors="replace", env=buffered()
    )
    want = "powerinfer: error: cannot write to stdout: it is closed\n"
    assert (done.returncode, done.stderr) == (1, want)
