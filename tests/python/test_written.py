"""Outputs of commands damage no input, no other file, and no other process's work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from disturbing import WINDOW
from powerinfer_cpp.cli import main
from powerinfer_cpp.convert import writer
from powerinfer_cpp.profile.state import scratch


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


@pytest.fixture
def files(given: Path, tmp_path: Path) -> Path:
    """Copies of the commands' inputs, which may be damaged."""
    folder = tmp_path / "files"
    folder.mkdir()
    for name in ("dense.gguf", "neurons.gguf", "smooth.gguf", "profiled.gguf", "text.txt"):
        shutil.copy(given / name, folder)
    shutil.copytree(given / "checkpoint", folder / "checkpoint")
    return folder


TEXT = ["--text", "text.txt", *WINDOW, "--tokens", "100"]
PLACE = ["place", "profiled.gguf", "-ub", "1", "--ram-bandwidth", "30", "--vram-budget", "0.002"]
COMMANDS = {
    "quantize": (["quantize", "neurons.gguf", "OUT", "Q4_0"], "neurons.gguf"),
    "convert": (["convert", "dense.gguf", "--outfile", "OUT"], "dense.gguf"),
    "checkpoint": (
        ["convert", "checkpoint", "--outfile", "OUT"],
        "checkpoint/model.safetensors",
    ),
    "config": (["convert", "checkpoint", "--outfile", "OUT"], "checkpoint/config.json"),
    "profile": (["profile", "neurons.gguf", *TEXT, "--out", "OUT"], "neurons.gguf"),
    "text": (["profile", "neurons.gguf", *TEXT, "--out", "OUT"], "text.txt"),
    "merge": (
        ["profile", "neurons.gguf", "--merge", "profiled.gguf", "--out", "OUT"],
        "profiled.gguf",
    ),
    "cats": (["profile", "smooth.gguf", *TEXT, "--cats", "50%", "--out", "OUT"], "smooth.gguf"),
    "embed": ([*PLACE, "--out", "OUT"], "profiled.gguf"),
    "sidecar": ([*PLACE, "--format", "sidecar", "--out", "OUT"], "profiled.gguf"),
    "gpuidx": ([*PLACE, "--format", "gpuidx", "--out", "OUT"], "profiled.gguf"),
    "plot": (["plot", "profiled.gguf", "--what", "activation", "--out", "OUT"], "profiled.gguf"),
    "sketch": (
        ["train-predictor", "neurons.gguf", "--kind", "sketch", *TEXT, "--out", "OUT"],
        "text.txt",
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("how", ["itself", "a symbolic link", "a hard link"])
def test_inputs_are_not_replaced(
    name: str,
    how: str,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(files)
    line, victim = COMMANDS[name]
    out = victim
    if how != "itself":
        out = "link.out"
        (os.symlink if how == "a symbolic link" else os.link)(victim, out)
    before = contents(files), contents(files / "checkpoint")
    assert main([out if a == "OUT" else a for a in line]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"powerinfer: error: {out}: input and output are the same"), error
    assert (contents(files), contents(files / "checkpoint")) == before
    assert sorted(p.name for p in files.iterdir() if p.is_dir()) == ["checkpoint"]


def test_a_result_among_the_inputs_may_be_replaced(
    files: Path, capsys: pytest.CaptureFixture
) -> None:
    line = ["convert", str(files / "checkpoint"), "--outfile", str(files / "checkpoint/out.gguf")]
    assert main(line) == main(line) == 0


def test_figures_of_main(main_path: Path, model_path: Path, tmp_path: Path) -> None:
    model, prompt = tmp_path / "model.gguf", tmp_path / "prompt.txt"
    shutil.copy(model_path, model)
    prompt.write_text("Once")
    (tmp_path / "link").symlink_to(model)
    before = contents(tmp_path)
    for out in (model, prompt, tmp_path / "link"):
        done = subprocess.run(
            [main_path, "-m", model, "-f", prompt, "-n", "3", "--json-stats", out],
            capture_output=True,
            errors="replace",
        )
        assert done.returncode == 1 and not done.stdout
        assert done.stderr == f"main: error: {out}: --json-stats would overwrite what is read\n"
    assert contents(tmp_path) == before


def test_an_input_with_the_name_of_a_part(files: Path, capsys: pytest.CaptureFixture) -> None:
    for name in ("out.gguf.part", "out.gguf.0123abcd.part"):
        origin = (files / "neurons.gguf").rename(files / name)
        before = origin.read_bytes()
        assert main(["quantize", str(origin), str(files / "out.gguf"), "Q4_0"]) == 0
        assert origin.read_bytes() == before
        origin.rename(files / "neurons.gguf")


def test_parts_of_other_processes(tmp_path: Path) -> None:
    """Each writes a whole file; files of killed processes are removed, others stay."""
    out, n = tmp_path / "out", 20
    left = tmp_path / "out.0123abcd.part"
    left.write_bytes(b"of a killed process")
    strange = [tmp_path / name for name in ("out.part", "out.xyz.part", "other.0123abcd.part")]
    for path in strange:
        path.write_bytes(b"a stranger's")
    with writer.replacing(out, 0) as first, writer.replacing(out, 0) as second:
        assert first != second and not left.exists()
        first.write_bytes(b"1" * n)
        second.write_bytes(b"2" * n)
    assert out.read_bytes() == b"1" * n  # the outer block ended last
    assert sorted(tmp_path.iterdir()) == sorted([out, *strange])


def test_data_reaches_the_disk_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = []
    fsync, replace = os.fsync, os.replace

    def synced(file: int) -> None:
        order.append(os.fstat(file).st_size)
        fsync(file)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda *paths: (order.append("named"), replace(*paths)))
    with writer.replacing(tmp_path / "out", 0) as part:
        part.write_bytes(b"all")
    assert order == [3, "named"] and (tmp_path / "out").read_bytes() == b"all"


def test_two_processes_with_one_output(files: Path) -> None:
    """The result is the output of one of them."""
    out, want = files / "out.gguf", []
    for kind in ("Q4_0", "Q8_0"):
        assert main(["quantize", str(files / "neurons.gguf"), str(out), kind]) == 0
        want.append(out.read_bytes())
    for _ in range(3):
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "powerinfer_cpp.cli", "quantize"]
                + [str(files / "neurons.gguf"), str(out), kind],
                stdout=subprocess.DEVNULL,
            )
            for kind in ("Q4_0", "Q8_0")
        ]
        assert [process.wait(60) for process in running] == [0, 0]
        assert out.read_bytes() in want
    assert not list(files.glob("*.part"))


def test_a_strangers_scratch_folder(files: Path, capsys: pytest.CaptureFixture) -> None:
    folder = files / "out.gguf.scratch"
    folder.mkdir()
    (folder / "thresholds.gguf").write_bytes(b"a stranger's")
    line = ["profile", str(files / "smooth.gguf"), "--text", str(files / "text.txt"), *WINDOW]
    line += ["--tokens", "100", "--cats", "50%", "--out", str(files / "out.gguf")]
    assert main(line) == 1
    assert "exists, and is not a work folder of profile" in capsys.readouterr().err
    assert contents(folder) == {"thresholds.gguf": b"a stranger's"}


def test_one_process_at_a_time_in_a_folder(tmp_path: Path) -> None:
    with scratch(tmp_path / "out") as folder:
        (folder / "mine").write_bytes(b"")
        with pytest.raises(ValueError, match="another process"), scratch(tmp_path / "out"):
            pass
        assert (folder / "mine").exists()
    assert not list(tmp_path.iterdir())


def test_one_training_at_a_time(files: Path, capsys: pytest.CaptureFixture) -> None:
    folder = files / "out.gguf.train"
    folder.mkdir()
    with writer.alone(folder / "identity.json"):
        line = ["train-predictor", str(files / "neurons.gguf"), "--kind", "sketch"]
        line += ["--text", str(files / "text.txt"), *WINDOW, "--out", str(files / "out.gguf")]
        assert main(line) == 1
        assert "another process is using it" in capsys.readouterr().err
        assert list(folder.iterdir()) == [folder / "identity.json"]
