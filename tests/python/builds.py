"""Builds of CMake's presets for tests, and programs of them."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

from effort import shared_work

ROOT = Path(__file__).resolve().parents[2]
CPU = ROOT / "build" / "cpu"  # which ./run test has built
# What tests of the GPU's kernels are about, and of how nvcc compiles them.
GPU = ("ggml/src/cuda", "tests/device", "tests/gpu")
NVCC = (*GPU, "ggml/include", "ggml/src/formats", "ggml/src/os")
# All of C and C++, and how it is compiled.
NATIVE = ("ggml", "powerinfer_cpp", "cmake", "CMakeLists.txt", "CMakePresets.json")
NATIVE += tuple(f"tests/{name}" for name in ("capi", "engine", "fuzz", "ggml", "gpu", "*.h"))
NATIVE += ("tests/CMakeLists.txt",)
STRICT = {
    "ASAN_OPTIONS": "detect_leaks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}
FUZZ = ROOT / "tests" / "fuzz"
# The replaying program of each fuzz target, and its stored inputs.
CORPUS = {
    f"{source.stem}_replay": FUZZ / "corpus" / source.stem.removeprefix("fuzz_")
    for source in sorted(FUZZ.glob("fuzz_*.cpp"))
}


def build(preset: str, *targets: str) -> Path:
    """Configures a preset and builds the targets, or all; returns its folder. Another process that
    builds the same waits."""
    chosen = ["--target", *targets] if targets else []
    folder = ROOT / "build" / preset
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (
            ["cmake", "--preset", preset],
            ["cmake", "--build", "--preset", preset, *chosen],
        ):
            done = shared_work(command, cwd=ROOT)
            assert done.returncode == 0, (" ".join(command) + done.stdout)[-6000:]
    return folder


def run(program: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs a test program, which must exit with 0."""
    done = subprocess.run(
        [str(program), *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, **STRICT, **environment},
    )
    assert done.returncode == 0, f"{program.name}: exit {done.returncode}\n{done.stderr[-4000:]}"
    return done
