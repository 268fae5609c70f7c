"""The test programs and main under sanitizers of addresses, undefined behaviour and threads."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest
from builds import CORPUS, CPU, NATIVE, ROOT, STRICT, build, run
from test_native import NAMES

ALONE = True
pytestmark = [pytest.mark.slow, pytest.mark.about(*NATIVE)]
pytestmark.append(pytest.mark.timeout(2400))  # whoever is first builds
ON_DEVICE = [p.stem for p in ROOT.glob("tests/gpu/test_*.cpp")]
# What reads foreign bytes, and what gives memory out and takes it back, goes with CI; the rest,
# above all numbers, with the nightly run. The build of CI has no test devices and no AVX-512.
MEMORY = [
    name
    for name in NAMES
    if name.startswith("test_capi")
    or name.removeprefix("test_")
    in (
        *("bundle", "file_io", "gguf", "gguf_files", "hostile", "memory", "placement", "reader"),
        *("record", "sequences", "session", "storage_faults", "tokenizer"),
        *("encoders", "normal_forms", "wordpiece"),
    )
]
# Those in which threads share something.
THREADS = ["test_capi_pool", "test_reader", "test_split_mishaps", "test_threads"]
MORE_THREADS = [n for n in NAMES if n.startswith("test_capi") and n not in THREADS]
MORE_THREADS += ["test_device", "test_storage_faults", "test_stream"]


@pytest.fixture(scope="module")
def asan() -> Path:
    return build("cpu-asan", "main", *MEMORY, *CORPUS)


@pytest.fixture(scope="module")
def asan_all() -> Path:
    return build("cpu-asan-all")


@pytest.fixture(scope="module")
def tsan() -> Path:
    return build("cpu-tsan", "main", *THREADS)


@pytest.fixture(scope="module")
def tsan_all() -> Path:
    return build("cpu-tsan", "main", *THREADS, *MORE_THREADS)


@pytest.mark.parametrize("name", [*MEMORY, *CORPUS])
def test_addresses(asan: Path, name: str, model_path: Path) -> None:
    run(asan / "tests" / name, str(CORPUS.get(name, model_path)), PI_CIRCLE="test")


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*NAMES, *CORPUS])
def test_addresses_everywhere(asan_all: Path, name: str, model_path: Path) -> None:
    run(asan_all / "tests" / name, str(CORPUS.get(name, model_path)), PI_CIRCLE="test")


@pytest.mark.parametrize("name", THREADS)
def test_threads(tsan: Path, name: str, model_path: Path) -> None:
    run(tsan / "tests" / name, str(model_path), PI_CIRCLE="test")


@pytest.mark.nightly
@pytest.mark.parametrize("name", MORE_THREADS)
def test_threads_everywhere(tsan_all: Path, name: str, model_path: Path) -> None:
    run(tsan_all / "tests" / name, str(model_path), PI_CIRCLE="test")


@pytest.mark.parametrize("isa", ["generic", "avx2"])
def test_main_writes_the_same_under_address_sanitizer(
    asan: Path, model_path: Path, isa: str
) -> None:
    arguments = ("-m", str(model_path), "-p", "Once", "-n", "24", "--temp", "0")
    plain = run(CPU / "main", *arguments, GGML_ISA=isa)
    assert run(asan / "main", *arguments, GGML_ISA=isa).stdout == plain.stdout


def test_main_has_no_race(tsan: Path, model_path: Path) -> None:
    run(tsan / "main", "-m", str(model_path), "-p", "Once", "-n", "8", "-t", "4", "--temp", "0")


def test_damaged_files_under_address_sanitizer(asan: Path, tmp_path: Path) -> None:
    """Randomly changed bytes: an error message or a run, never a finding of the sanitizers."""
    base = bytearray((ROOT / "models" / "stories-relu.Q8_0.gguf").read_bytes())
    rng = random.Random(1)
    case = tmp_path / "case.gguf"
    for _ in range(150):
        data = bytearray(base)
        for _ in range(rng.choice((1, 2, 8))):
            value = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            data[rng.randrange(0, 60_000)] = value
        case.write_bytes(data)
        done = subprocess.run(
            [str(asan / "main"), "-m", str(case), "-p", "x", "-n", "2", "-c", "64"],
            capture_output=True,
            env={**os.environ, **STRICT},
            timeout=60,
        )
        errors = done.stderr.decode(errors="replace")
        assert "Sanitizer" not in errors and "runtime error" not in errors, errors[-3000:]
        assert 0 <= done.returncode < 128
        assert done.returncode == 0 or errors.strip()
