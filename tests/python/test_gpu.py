"""The GPU kernels as nvcc compiles them, and whether the tests of the shim see a broken one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from builds import GPU, NVCC

ROOT = Path(__file__).resolve().parents[2]
KERNELS = sorted((ROOT / "ggml/src/cuda").rglob("*.cu"))
SLOW = ("tiles.cu", "products.h")  # whose mutants take a minute each to compile


def kernel(ptx: str, name: str) -> str:
    """The instructions of one kernel of a PTX file."""
    found = [part for part in ptx.split(".entry ")[1:] if name in part.split("(")[0]]
    assert len(found) == 1, f"{len(found)} kernels named {name}"
    return found[0]


@pytest.mark.slow
@pytest.mark.about(*NVCC)
def test_kernels_neither_spill_nor_use_a_stack(
    nvcc: str, ptx: dict[str, Path], tmp_path: Path
) -> None:
    def report(file: Path) -> str:
        command = [nvcc, "-cubin", "-arch=sm_86", "-Xptxas", "-v", file]
        done = subprocess.run(
            [*command, "-o", tmp_path / f"{file.stem}.cubin"], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout + done.stderr

    with ThreadPoolExecutor(2) as pool:
        said = dict(zip(ptx, pool.map(report, ptx.values()), strict=True))
    frames = re.findall(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores", "".join(said.values())
    )
    assert len(frames) > 110
    assert set(frames) == {("0", "0")}
    for name, text in said.items():
        # At least 512 threads of a multiprocessor; 384 where a block of 128 has 9 KB of weights
        # and more on their way (docs/gpu.md); 256 where a thread has sums for many rows.
        most = {"tiles": 255, "ffn_rows": 255, "matmul": 168, "ffn": 168}.get(name, 128)
        registers = [int(n) for n in re.findall(r"Used (\d+) registers", text)]
        assert not registers or max(registers) <= most, name


@pytest.mark.slow
@pytest.mark.about(*NVCC)
def test_flags_are_ordered_for_the_whole_system(ptx: dict[str, Path]) -> None:
    """In the PTX: fence before the release, acquire before the payload, and no stale reads."""
    text = ptx["merge"].read_text()
    publish = kernel(text, "publish_kernel")
    fences = [m.start() for m in re.finditer(r"membar\.sys|fence\.(?:sc|acq_rel)\.sys", publish)]
    (arrival,) = [m.start() for m in re.finditer(r"atom\.\S*add", publish)]
    (release,) = [m.start() for m in re.finditer(r"st\.release\.sys", publish)]
    barrier = publish.index("bar.sync")
    assert barrier < fences[0] < arrival < fences[1] < release

    answer = kernel(text, "merge_answer_kernel")
    acquires = [m.start() for m in re.finditer(r"ld\.acquire\.sys", answer)]
    barrier = answer.index("bar.sync")
    assert acquires
    # The loop may be laid out behind what follows it, but leads to the barrier.
    payload = [m.start() for m in re.finditer(r"ld\.global\.f32|ld\.global\.b32", answer)]
    assert [at for at in payload if at > barrier]
    assert "ld.global.nc" not in text and ".volatile" not in publish


def test_every_kernel_is_loaded_before_it_is_needed() -> None:
    """Only launch<kernel>() starts kernels, and it lists them for loading: a kernel's first use
    may wait for ever behind a graph that waits for the host."""
    found = 0
    for source in [*KERNELS, *ROOT.glob("ggml/src/cuda/**/*.h")]:
        text = re.sub(r"//.*", "", source.read_text())
        names = re.findall(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\(", text)
        assert len(names) == text.count("__global__"), source.name
        for name in names:
            assert re.search(rf"(?:launch|Kernel)<{name}\b", text), f"{source.name}: {name}"
        found += len(names)
        assert "<<<" not in text
        assert "cudaLaunch" not in re.sub(r"cudaLaunchConfig_t", "", text) or (
            source.name == "launch.h" and text.count("cudaLaunchKernelEx") == 1
        )
    assert found > 15


def mutants(folder: Path, *files: str) -> str:
    """What tests/gpu/mutants.py says of these files."""
    command = [sys.executable, ROOT / "tests/gpu/mutants.py", ROOT / "build" / "cpu", *files]
    env = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.about(*GPU)
@pytest.mark.timeout(1200)
def test_every_barrier_and_guard_is_needed(tmp_path: Path) -> None:
    """Kernels without one of their barriers or guards fail a test (tests/gpu/mutants.py)."""
    quick = [file.name for file in KERNELS if file.name not in SLOW]
    said = mutants(tmp_path, *quick, "attention.h", "exchange.h", "lanes.h")
    assert re.search(r"^(\d{3}|[5-9]\d) mutants, 0 survive$", said, re.M), said


@pytest.mark.nightly
@pytest.mark.about(*GPU)
@pytest.mark.timeout(2400)
def test_those_of_products_are_needed(tmp_path: Path) -> None:
    """The same for tiles, and for what all products are made of."""
    said = mutants(tmp_path, *SLOW)
    assert re.search(r"^2\d mutants, 0 survive$", said, re.M), said
