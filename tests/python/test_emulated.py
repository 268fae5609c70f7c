"""Processors that this machine does not have, emulated by qemu: their kernels, and main's text."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import builds
import pytest

GCC = "aarch64-linux-gnu-g++"
PROGRAMS = ("test_kernels", "test_neuron_kernels", "test_ops")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the first test builds a whole system's programs
    pytest.mark.about("ggml/src/kernels", "ggml/src/ops", "ggml/src/os"),
]


def tool(name: str) -> str:
    found = shutil.which(name)
    if not found:
        pytest.skip(f"no tool to build or run other processors' programs: {name}")
    return found


def run(*command: str | Path, timeout: int = 600, **environment: str) -> str:
    """The command's output; it must succeed."""
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


# Instruction sets round sums differently, so longer texts part at the first near tie: soon after
# these, "a big" goes on with "pool" or "scary".
STORY = ("-p", "Once upon a time", "-n", "24", "--temp", "0", "-t", "1")


@pytest.fixture(scope="module")
def story(main_path: Path, model_path: Path) -> str:
    """What main writes on this machine."""
    return run(main_path, "-m", model_path, *STORY)


@pytest.fixture(scope="module")
def arm() -> Path:
    """A folder with main and the tests of kernels for 64-bit ARM."""
    tool("qemu-aarch64")
    tool(GCC)
    return builds.build("arm", "main", *PROGRAMS)


# max has every feature, the A76 sdot without smmla, the A53 neither.
@pytest.mark.parametrize(
    ("processor", "isa", "lacks"),
    [
        ("max", "neon_i8mm", None),
        ("cortex-a76", "neon", "neon_i8mm"),
        ("cortex-a53", "generic", "neon"),
    ],
)
def test_arm_writes_the_same(
    arm: Path, model_path: Path, story: str, processor: str, isa: str, lacks: str | None
) -> None:
    command = ["qemu-aarch64", "-cpu", processor, arm / "main", "-m", model_path, *STORY]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, story), done.stderr
    assert f", {isa}, context" in done.stderr
    if lacks:
        environment = {**os.environ, "GGML_ISA": lacks}
        refused = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert refused.returncode and "this machine cannot run it" in refused.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_arm_kernels(arm: Path, program: str) -> None:
    printed = run("qemu-aarch64", "-cpu", "max", arm / "tests" / program)
    assert "this machine has no neon" not in printed


# Without AVX; with AVX alone, and without F16C, too; with AVX2 and FMA.
@pytest.mark.parametrize("processor", ["Nehalem", "SandyBridge", "IvyBridge", "Haswell"])
def test_x86_writes_the_same(main_path: Path, model_path: Path, story: str, processor: str) -> None:
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("no tool to build for x86")
    emulator = (tool("qemu-x86_64"), "-cpu", processor)
    assert run(*emulator, main_path, "-m", model_path, *STORY) == story
