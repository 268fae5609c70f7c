"""Commands that write files, with small inputs, to run undisturbed or disturbed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import checkpoints
import numpy as np
import pytest
from circles import pick, third
from families import quiet
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.profile import profile
from powerinfer_cpp.quantize import quantize

ROOT = Path(__file__).resolve().parents[2]
CFG = checkpoints.config(hidden_act="relu", hidden_size=96, num_attention_heads=6)
CFG = {**CFG, "num_key_value_heads": 6, "mlp_bias": True}
WINDOW = ["-c", "32", "-t", "1", "-ctk", "f32", "-ctv", "f32"]
# Those of commands(); torch takes seconds to start.
_WRITERS = ["profile", "cats", "sketch", "place", "gpuidx", "checkpoint", "gguf", "quantize"]
_MLP = pytest.param("mlp", marks=[pytest.mark.slow, pytest.mark.peer("torch")])
_ALL = [*_WRITERS, "plot", _MLP]
# In the quick circle: with a folder of work that is saved, and models made in two ways.
COMMANDS = pytest.mark.parametrize(
    "command", pick(["profile", "quantize", "checkpoint"], _ALL), indirect=True
)
SOME_COMMANDS = pytest.mark.parametrize("command", third(_ALL), indirect=True)
# One thread: these matrices are small, and their sums come in one order.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def buffered() -> dict[str, str]:
    """The environment, without variables that turn off Python's buffering of pipes."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def inputs(folder: Path) -> Path:
    """checkpoint/ (and its predictors/), dense.gguf, neurons.gguf, smooth.gguf with SiLU,
    profiled.gguf, text.txt."""
    weights = checkpoints.weights(CFG)
    for i in range(2):  # biases make neurons of which some fire seldom
        for part, bias in (("gate", np.linspace(-4, 0, 96)), ("up", np.zeros(96))):
            weights[f"model.layers.{i}.mlp.{part}_proj.bias"] = bias.astype(np.float32)
        weights[f"model.layers.{i}.mlp.down_proj.bias"] = np.zeros(96, np.float32)
    checkpoints.save(folder / "checkpoint", CFG, weights)
    checkpoints.predictors(folder / "predictors", CFG)
    convert(folder / "checkpoint", outfile=folder / "dense.gguf", outtype="f16", log=quiet)
    convert(folder / "dense.gguf", outfile=folder / "neurons.gguf", log=quiet)
    checkpoints.save(folder / "silu", {**CFG, "hidden_act": "silu"}, weights)
    convert(folder / "silu", outfile=folder / "silu.gguf", outtype="f16", log=quiet)
    convert(folder / "silu.gguf", outfile=folder / "smooth.gguf", log=quiet)
    words = np.random.default_rng(0).choice(checkpoints.TEXT.split(), 900)
    (folder / "text.txt").write_text(" ".join(words))
    model = Model(str(folder / "neurons.gguf"))
    profile(model, folder / "profiled.gguf", folder / "text.txt", n_ctx=32, n_tokens=200)
    model.close()
    quantize(folder / "neurons.gguf", folder / "small.gguf", "Q4_0", log=quiet)
    return folder


def commands(given: Path) -> dict[str, list[str]]:
    """Command lines by name; OUT is the output folder."""
    text = ["--text", str(given / "text.txt")]
    learn = ["train-predictor", str(given / "neurons.gguf"), *text, *WINDOW, "--target", "20%"]
    learn += ["--tokens", "1400"]
    placing = ["place", str(given / "profiled.gguf"), "-ub", "1", "--ram-bandwidth", "30"]
    placing += ["--vram-budget", "0.002", "--sync", "1"]
    converting = [str(ROOT / "convert.py"), "--outtype", "q8_0", "--outfile", "OUT/out.gguf"]
    profiling = [*text, *WINDOW, "--tokens", "150"]
    cats = ["profile", str(given / "smooth.gguf"), *profiling, "--cats", "50%"]
    profiling = ["profile", str(given / "neurons.gguf"), *profiling]
    return {
        "cats": [*cats, "--out", "OUT/out.gguf"],
        "profile": [*profiling, "--out", "OUT/out.gguf", "--export", "OUT/statistics"],
        "sketch": [*learn, "--kind", "sketch", "--out", "OUT/out.gguf"],
        "mlp": [*learn, "--epochs", "4", "--torch-device", "cpu", "--out", "OUT/out.gguf"],
        "place": [*placing, "--out", "OUT/out.gguf"],
        "gpuidx": [*placing, "--format", "gpuidx", "--out", "OUT/out.gpuidx"],
        "checkpoint": [*converting, str(given / "checkpoint"), str(given / "predictors")],
        "gguf": [*converting, str(given / "dense.gguf")],
        "quantize": ["quantize", str(given / "neurons.gguf"), "OUT/out.gguf", "Q4_0"],
        "plot": [
            "plot",
            str(given / "profiled.gguf"),
            "--what",
            "activation",
            "--out",
            "OUT/o.png",
        ],
    }


@dataclass
class Command:
    """A command line, and the parent folder of its outputs."""

    name: str
    line: list[str]
    folder: Path
    runs: int = field(default=0)

    def run(
        self, out: Path, harm: str = "none", step: int = -1
    ) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        """The process that wrote to `out`, and its steps."""
        log = self.folder / "steps"
        line = [a.replace("OUT/", f"{out}/") for a in self.line]
        script = str(Path(__file__).with_name("disturbed.py"))
        done = subprocess.run(
            [sys.executable, script, str(out), str(log), harm, str(step), *line],
            env=ENVIRONMENT,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            errors="replace",
        )
        return done, log.read_text().splitlines()

    @cached_property
    def undisturbed(self) -> tuple[dict[str, bytes], list[str]]:
        """The output of an undisturbed run, and its steps."""
        out = self.new_folder()
        done, steps = self.run(out)
        assert done.returncode == 0, done.stderr
        found = contents(out)
        assert found and steps
        return found, steps

    def new_folder(self) -> Path:
        self.runs += 1
        out = self.folder / f"out-{self.runs}"
        out.mkdir()
        return out


def contents(folder: Path) -> dict[str, bytes]:
    """Of every file below a folder; folders, also empty ones, hold nothing."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


def growing(steps: list[str]) -> list[int]:
    """Indices of the steps that open a file which then grows."""
    return [
        i
        for i, step in enumerate(steps)
        # The mark of a work folder may be empty, and emptying it is the last step but one.
        if step.startswith("open ")
        and not step.endswith("scratch/powerinfer")
        and not (step.endswith("identity.json") and i > 1)
    ]


def distinct(steps: list[str], most: int) -> list[int]:
    """Indices of the first, the middle and the last step of each kind, then thinned to `most`."""
    kinds: dict[str, list[int]] = {}
    for i, step in enumerate(steps):
        kinds.setdefault(step, []).append(i)
    found = sorted({k[at] for k in kinds.values() for at in (0, len(k) // 2, -1)})
    return [found[i] for i in sorted({round(x) for x in np.linspace(0, len(found) - 1, most)})]
