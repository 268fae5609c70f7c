"""scripts/real.sh: from a checkpoint, or a GGUF, to its quality and speed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import checkpoints
import pytest


def real(root: Path, *line: str | Path, path: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [root / "scripts" / "real.sh", *line],
        env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def test_refusals(root: Path, tmp_path: Path) -> None:
    for line, why in (
        ((), "no model; --help shows how"),
        (("--txt", "x"), "unknown option --txt"),
        (("m", "--text"), "--text needs a value"),
        (("a", "b"), "two models: a and b"),
        (("m", "--text", "none.txt"), "none.txt: cannot be read"),
        ((tmp_path / "none", "--work", tmp_path), "none: no such file or folder"),
        ((tmp_path, "--work", tmp_path), "neither config.json nor one GGUF"),
    ):
        done = real(root, *line)
        assert done.returncode == 1 and why in done.stderr, done.stderr
    assert "scripts/real.sh MODEL" in real(root, "--help").stdout


@pytest.mark.slow
def test_a_checkpoint_with_predictors(root: Path, tmp_path: Path) -> None:
    """All modes are measured, and llama.cpp's programs are called where they are found."""
    cfg = checkpoints.config(hidden_act="relu")
    checkpoints.save(tmp_path / "model", cfg, checkpoints.weights(cfg))
    checkpoints.predictors(tmp_path / "predictors", cfg)
    (tmp_path / "t.txt").write_text(checkpoints.TEXT * 4)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, says in (("llama-bench", "bench"), ("llama-perplexity", "Final estimate")):
        (programs / name).write_text(f'#!/bin/sh\necho "{says}: peer $@"\n')
        (programs / name).chmod(0o755)
    line = [tmp_path / "model", "--predictors", tmp_path / "predictors", "-n", "4", "-c", "32"]
    line += ["--rounds", "1"]
    line += ["--original", tmp_path / "model", "--text", tmp_path / "t.txt"]
    line += ["--work", tmp_path / "work"]
    done = real(root, *line, path=str(programs))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sum(text.startswith("Final estimate: PPL") for text in lines) == 5
    assert sum(text.startswith("Same top p: 100.000") for text in lines) >= 1  # exact
    for name in ("off", "exact", "predictor", "auto", "dense"):
        assert sum(text.startswith(f"{name}\t| llama") for text in lines) == 2  # prompt, decoding
    work = tmp_path / "work"
    assert lines.count(f"bench: peer -m {work}/dense.gguf -p 64 -n 4 -r 1") == 1
    assert f"Final estimate: peer -m {work}/original.gguf -f {tmp_path}/t.txt -c 32" in lines
