"""The C and C++ test programs, and the same under sanitizers."""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted([*ROOT.glob("tests/*/test_*.cpp"), *ROOT.glob("tests/*/test_*.c")])
NAMES = [source.stem for source in SOURCES]
# Those in which threads share something; of the last ones, which are slow, only a part.
THREADS = [n for n in NAMES if n.startswith(("test_threads", "test_reader", "test_capi"))]
THREADS += ["test_device", "test_split", "test_storage_faults", "test_stream"]
STRICT = {
    "ASAN_OPTIONS": "detect_leaks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}
FUZZ = ROOT / "tests" / "fuzz"
CORPUS = {
    f"{source.stem}_replay": FUZZ / "corpus" / source.stem.removeprefix("fuzz_")
    for source in sorted(FUZZ.glob("fuzz_*.cpp"))
}


def build(preset: str, *targets: str) -> Path:
    """Configures a preset and builds the targets, or all; returns its folder."""
    chosen = ["--target", *targets] if targets else []
    for command in (
        ["cmake", "--preset", preset],
        ["cmake", "--build", "--preset", preset, *chosen],
    ):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, (" ".join(command) + done.stdout + done.stderr)[-6000:]
    return ROOT / "build" / preset


def run(program: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [str(program), *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, **STRICT, **environment},
    )
    assert done.returncode == 0, f"{program.name}: exit {done.returncode}\n{done.stderr[-4000:]}"
    return done


@pytest.fixture(scope="module")
def cpu() -> Path:
    return build("cpu")


@pytest.fixture(scope="module")
def asan() -> Path:
    return build("cpu-asan")


@pytest.fixture(scope="module")
def asan_runs(
    asan: Path, model_path: Path, request: pytest.FixtureRequest
) -> Iterator[dict[str, Future]]:
    """The selected programs, which run two at a time: they are slow, and most have one thread."""
    wanted = [
        item.callspec.params["name"]
        for item in request.session.items
        if "asan_runs" in getattr(item, "fixturenames", ()) and item.module is request.module
    ]
    with ThreadPoolExecutor(2) as pool:
        yield {
            name: pool.submit(run, asan / "tests" / name, str(CORPUS.get(name, model_path)))
            for name in wanted
        }
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def tsan() -> Path:
    return build("cpu-tsan", "main", *THREADS)


@pytest.mark.parametrize("name", NAMES)
def test_program(cpu: Path, name: str, model_path: Path) -> None:
    run(cpu / "tests" / name, str(model_path))


@pytest.mark.parametrize("name", CORPUS)
def test_corpus(cpu: Path, name: str) -> None:
    """The fuzz targets over the stored corpus."""
    run(cpu / "tests" / name, str(CORPUS[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CORPUS, *NAMES])
def test_program_address_and_undefined(asan_runs: dict[str, Future], name: str) -> None:
    asan_runs[name].result()


@pytest.mark.slow
@pytest.mark.parametrize("name", THREADS)
def test_program_threads(tsan: Path, name: str, model_path: Path) -> None:
    run(tsan / "tests" / name, str(model_path))


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["generic", "avx2"])
def test_main_writes_the_same_under_address_sanitizer(
    asan: Path, cpu: Path, model_path: Path, isa: str
) -> None:
    arguments = ("-m", str(model_path), "-p", "Once", "-n", "24", "--temp", "0")
    plain = run(cpu / "main", *arguments, GGML_ISA=isa)
    assert run(asan / "main", *arguments, GGML_ISA=isa).stdout == plain.stdout


@pytest.mark.slow
def test_main_has_no_race(tsan: Path, model_path: Path) -> None:
    run(tsan / "main", "-m", str(model_path), "-p", "Once", "-n", "8", "-t", "4", "--temp", "0")


@pytest.mark.slow
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


@pytest.mark.slow
def test_cuda_sources_compile(nvcc: str) -> None:
    """The programs for a card; other tests are the same without one."""
    lists = (ROOT / "tests" / "CMakeLists.txt").read_text()
    found = re.search(r"set\(card_tests ([^)]+)\)", lists)
    assert found
    cards = [f"card_{name}" for name in found[1].split()]
    build("cuda", "main", "test_device_ops", "gpu_model", "gpu_speed", *cards)
