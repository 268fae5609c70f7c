"""The bundled file of a first use: whatever ends the program, the next one writes the same text."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf_files import changed
from test_full_disk import _may_mount

# Most neurons stay on the disk.
OPTIONS = ["-c", "256", "-p", "Once upon a time", "--temp", "0", "-s", "1", "--ram-budget", "0.012"]
NAMES = ["model.gguf", "model.gguf.bundle.gguf"]


class Main:
    """./main, with or without a disturbance, and what it does undisturbed."""

    def __init__(self, main: Path, model: Path, folder: Path):
        self.main, self.model, self.log = main, model, folder / "steps"
        self.shim = folder / "disturbed.so"
        source = Path(__file__).with_name("disturbed.c")
        compiler = os.environ.get("CC", "cc").split()
        line = [*compiler, "-shared", "-fPIC", "-O1", "-o", self.shim, source, "-ldl"]
        subprocess.run(line, check=True)
        self.whole = self.new_folder(folder / "whole")
        done = self.run(self.whole, "none", -1)
        assert done.returncode == 0, done.stderr
        self.text, self.steps = done.stdout, self.log.read_text().split()
        self.bundle = (self.whole / NAMES[1]).read_bytes()

    def new_folder(self, folder: Path) -> Path:
        folder.mkdir()
        shutil.copy(self.model, folder / NAMES[0])
        return folder

    def run(
        self, folder: Path, harm: str = "", step: int = -1, n: int = 8
    ) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        given = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
        if harm:
            given |= {"DISTURB_LOG": str(self.log), "DISTURB_HARM": harm}
            given |= {"DISTURB_STEP": str(step), "LD_PRELOAD": str(self.shim)}
        line = [self.main, "-m", folder / NAMES[0], *OPTIONS, "-n", str(n)]
        return subprocess.run(line, env=given, capture_output=True, errors="replace", timeout=60)

    def works(self, folder: Path) -> None:
        """A run without disturbance writes the text, and leaves nothing but the bundled file."""
        done = self.run(folder)
        assert (done.returncode, done.stdout) == (0, self.text), done.stderr
        assert sorted(p.name for p in folder.iterdir()) == NAMES
        assert (folder / NAMES[1]).read_bytes() == self.bundle


@pytest.fixture(scope="module")
def program(main_path: Path, model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Main:
    return Main(main_path, model_path, tmp_path_factory.mktemp("first"))


def test_steps(program: Main) -> None:
    steps = program.steps
    assert steps[:2] == ["open", "ftruncate"] and steps[-3:] == ["fsync", "rename", "renamed"]
    assert set(steps[2:-3]) == {"write"} and len(steps) > 10


@pytest.mark.parametrize("harm", ["kill", "torn", "full"])
def test_every_step(program: Main, tmp_path: Path, harm: str) -> None:
    for step, call in enumerate(program.steps):
        folder = program.new_folder(tmp_path / str(step))
        done = program.run(folder, harm, step)
        left = {p.name for p in folder.iterdir()} - {NAMES[0]}
        if harm == "full" and call != "renamed":
            assert done.returncode == 1 and done.stdout == "" and not left
            want = f"main: error: {folder / NAMES[1]}: no space left to write it"
            assert done.stderr.splitlines()[-1] == want
        elif harm != "full":
            assert done.returncode == -signal.SIGKILL
            part = NAMES[1] + ".part"
            assert left == {"open": set(), "renamed": {NAMES[1]}}.get(call, {part})
        program.works(folder)


def test_the_resident_set(program: Main, tmp_path: Path) -> None:
    """It is written when the program ends, and a program that cannot do so has no error."""
    folder = tmp_path / "model"
    folder.mkdir()

    def without_profile(name: str, data: np.ndarray) -> np.ndarray | None:
        return None if ".ffn_rate" in name else data

    changed(program.model, folder / NAMES[0], tensors=without_profile)
    assert program.run(folder).returncode == 0
    saved = folder / (NAMES[1] + ".resident")
    assert not saved.exists()  # too few tokens
    want = program.run(folder, "none", n=80)
    steps, before = program.log.read_text().split(), saved.read_bytes()
    assert steps[0] == "open" and "write" in steps and steps[-1] == "renamed" and before
    for harm in ("kill", "torn", "full"):
        for step in range(len(steps)):
            saved.write_bytes(before)
            done = program.run(folder, harm, step, n=80)
            assert done.stdout == want.stdout
            assert done.returncode == (0 if harm == "full" else -signal.SIGKILL), done.stderr
            again = program.run(folder, n=80)
            assert (again.returncode, again.stdout) == (0, want.stdout), again.stderr
            assert sorted(p.name for p in folder.iterdir()) == [*NAMES, saved.name]


# ---- small disks --------------------------------------------------------------------------------


@pytest.fixture
def small_disk(program: Main, tmp_path: Path) -> Iterator[Path]:
    """A disk with room for the model and one bundled file."""
    if not _may_mount():
        pytest.skip("no right to mount a small disk")
    where = tmp_path / "disk"
    where.mkdir()
    size = program.model.stat().st_size + len(program.bundle) + (1 << 19)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", where], check=True)
    shutil.copy(program.model, where / NAMES[0])
    yield where
    subprocess.run(["umount", where], check=True)


def test_what_a_kill_leaves_takes_no_room(program: Main, small_disk: Path) -> None:
    done = program.run(small_disk, "kill", program.steps.index("rename"))
    assert done.returncode == -signal.SIGKILL
    assert (small_disk / (NAMES[1] + ".part")).stat().st_size == len(program.bundle)
    program.works(small_disk)


def test_too_little_room(program: Main, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(1 << 20))
    done = program.run(small_disk)
    assert done.returncode == 1 and done.stdout == ""
    want = f"main: error: {small_disk / NAMES[1]}: 0.01 GiB needed, only 0.01 GiB free on that disk"
    assert done.stderr.splitlines()[-1] == want
    assert not (small_disk / (NAMES[1] + ".part")).exists()
    (small_disk / "filler").unlink()
    program.works(small_disk)


# ---- several processes --------------------------------------------------------------------------


def started(program: Main, folder: Path, *more: str) -> subprocess.Popen[str]:
    line = [program.main, "-m", folder / NAMES[0], *OPTIONS, "-n", "8", *more]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, errors="replace")


def test_at_once(program: Main, tmp_path: Path) -> None:
    folder = program.new_folder(tmp_path / "model")
    processes = [started(program, folder) for _ in range(4)]
    for process in processes:
        text, errors = process.communicate(timeout=60)
        assert (process.returncode, text) == (0, program.text), errors
    program.works(folder)


@pytest.mark.parametrize("finishes", [True, False])
def test_waits_for_another(program: Main, tmp_path: Path, finishes: bool) -> None:
    """And writes the file itself if the other one dies."""
    folder = program.new_folder(tmp_path / "model")
    part, target = folder / (NAMES[1] + ".part"), folder / NAMES[1]
    with part.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        process = started(program, folder, "-lv", "3")
        said = f"main: {target}: another process is writing it; waiting for it\n"
        assert said in iter(process.stderr.readline, "")
        time.sleep(0.3)
        assert process.poll() is None
        if finishes:
            other.write(program.bundle)
            other.flush()
            part.rename(target)
    before = target.stat().st_ino if finishes else 0
    text, errors = process.communicate(timeout=60)
    assert (process.returncode, text) == (0, program.text), errors
    assert not finishes or target.stat().st_ino == before
    program.works(folder)
