"""The C and C++ test programs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from builds import CORPUS, CPU, NVCC, ROOT, build, run

ALONE = True  # each test by itself: the programs are independent
SOURCES = sorted([*ROOT.glob("tests/*/test_*.cpp"), *ROOT.glob("tests/*/test_*.c")])
NAMES = [source.stem for source in SOURCES]


@pytest.mark.parametrize("name", NAMES)
def test_program(name: str, model_path: Path) -> None:
    run(CPU / "tests" / name, str(model_path))


@pytest.mark.parametrize("name", CORPUS)
def test_corpus(name: str) -> None:
    """The fuzz targets over the stored corpus."""
    run(CPU / "tests" / name, str(CORPUS[name]))


@pytest.mark.slow
def test_tools_compile() -> None:
    """Those that measure, which no build makes without being asked."""
    tools = ("gpu_model", "gpu_speed", "one_strip", "kernel_speed", "state_speed")
    tools += ("storage_speed", "batch_speed", "card_replay")
    command = ["cmake", "--build", CPU, "--target", *tools]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    speed = CPU / "tests" / "kernel_speed"
    one = subprocess.run([speed, "dot__q4_k generic"], capture_output=True, text=True)
    assert re.search(r"^dot__q4_k +generic +[\d.]+ GB/s +[\d.]+ Gmul/s", one.stdout, re.MULTILINE)
    assert subprocess.run([speed, "no such kernel"], capture_output=True).returncode == 1


@pytest.mark.slow
@pytest.mark.about(*NVCC, "CMakeLists.txt")
@pytest.mark.timeout(1200)
def test_cuda_sources_compile(nvcc: str) -> None:
    build("cuda-test", "ggml")


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_cuda_programs_compile(nvcc: str) -> None:
    """The programs for a card; other tests are the same without one."""
    lists = (ROOT / "tests" / "CMakeLists.txt").read_text()
    found = re.search(r"set\(card_tests ([^)]+)\)", lists)
    assert found
    cards = [f"card_{name}" for name in found[1].split()]
    build("cuda-test", "main", "test_device_ops", "gpu_model", "gpu_speed", *cards)
