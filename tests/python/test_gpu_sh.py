"""scripts/gpu.sh at toy size, on the GPU's kernels as the CPU runs them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

PARTS = ["flags", "card", "operators", "experts", "states", "mixture", "split", "stop"]
PARTS += ["speed-7b", "vram", "batches", "prompts", "speed-13b"]


def gpu_sh(root: Path, folder: Path, *arguments: object) -> subprocess.CompletedProcess:
    line = [root / "scripts" / "gpu.sh", "--device", "simt", "--toy", "--folder", folder]
    return subprocess.run(
        [*map(str, [*line, "--out", folder / "out", *arguments])], capture_output=True, text=True
    )


@pytest.mark.slow
def test_every_part(root: Path, tmp_path: Path) -> None:
    done = gpu_sh(root, tmp_path, "all")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / "out/results.jsonl").read_text().splitlines()]
    assert list(dict.fromkeys(row["part"] for row in rows)) == PARTS
    assert len(done.stdout.splitlines()) == len(rows)
    assert not any(row["ok"] is False for row in rows)
    (flags,) = [row for row in rows if row["part"] == "flags"]
    assert flags["rounds"] >= 400 and flags["us"] > 0
    (card,) = [row for row in rows if row["part"] == "card"]
    rates = ("copy_gb_s", "in_gb_s", "out_gb_s", "ram_gb_s", "flag_us", "launch_us", "node_us")
    assert all(0 < card[name] < 1e6 for name in rates) and card["name"] == "CPU as a GPU"
    bits = [row for row in rows if "bits of the shim" in row["what"]]
    assert len(bits) > 8 and all(row["same"] == row["of"] > 0 for row in bits)
    speeds = {row["what"]: row for row in rows if row["part"] == "speed-7b"}
    assert all(row["planned_mib"] <= row["budget_mib"] for row in speeds.values() if "ms" in row)
    assert all(row["of_bound"] > 0 for row in speeds.values() if "ms" in row)
    words = ("60% of", ": random", ": --disable", ": exact mode", ": predictors as")
    part, drawn, unplaced, exact, trained = (
        speeds[next(what for what in speeds if word in what)] for word in words
    )
    assert unplaced["neurons_on_device"] == 0 < unplaced["bytes_over_pcie"]
    assert exact["proposed"] == 1 and exact["neurons_on_device"] == part["neurons_on_device"]
    assert exact["fired"] >= part["fired"] and trained["proposed"] > part["proposed"]
    assert len([row for row in speeds.values() if "ratio" in row]) == 6
    assert 0 < part["neurons_on_device"] < 1
    assert drawn["neurons_on_device"] == pytest.approx(part["neurons_on_device"], abs=0.02)
    assert drawn["bytes_over_pcie"] > part["bytes_over_pcie"]  # more fire in RAM
    assert 0.08 < part["fired"] < 0.12 and part["fired"] < part["proposed"] < 0.2
    mixture = [row for row in rows if row["part"] == "mixture"]
    here = [row["pairs_on_device"] for row in mixture if "pairs_on_device" in row]
    assert 0 < here[0] < here[1] == 1 and mixture[-1]["what"] == "the CPU alone"
    table = (tmp_path / "out" / "results.md").read_text()
    assert all(f"## {part} (" in table for part in PARTS) and "NO" not in table
    assert not (tmp_path / "powerinfer-gpu").exists()

    # A part that takes too long fails, is named, and replaces what it found before.
    done = gpu_sh(root, tmp_path, "--seconds", 0.05, "flags", "vram")
    assert done.returncode == 1 and "not done after" in done.stdout
    assert "flags do not work: nothing else is worth trying" in done.stderr
    rows = [json.loads(line) for line in (tmp_path / "out/results.jsonl").read_text().splitlines()]
    assert [row["ok"] for row in rows if row["part"] == "flags"] == [False]
    assert "| NO |" in (tmp_path / "out" / "results.md").read_text()


def test_what_it_refuses(root: Path, tmp_path: Path) -> None:
    done = gpu_sh(root, tmp_path, "flogs")
    assert done.returncode == 2 and "there is no part flogs" in done.stderr
    done = gpu_sh(root, tmp_path)
    assert done.returncode == 2
    assert not (tmp_path / "out").exists()
