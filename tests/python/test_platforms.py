"""Other systems: the library built for Windows by mingw and run by wine, and built by zig for musl
and macOS; what the Python package needs of a system."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "stories-relu.Q8_0.gguf"
# Of the C++ tests, those of what differs on Windows.
WINDOWS_TESTS = ("kernels", "neuron_kernels", "neurons", "threads", "file_io", "gguf", "gguf_files")
STORY = ["-n", "48", "--temp", "0", "-t", "2", "-p", "Once upon a time"]
# Nothing is measured here: compile quickly. No warning of another compiler is let through.
QUICK = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1", "-DCMAKE_CXX_FLAGS=-Werror"]
ON_WINDOWS = pytest.mark.about(
    "ggml/src/kernels", "ggml/src/ops", "ggml/src/os", "powerinfer_cpp/programs"
)


def run(command: list[str], **more: object) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run([str(c) for c in command], cwd=ROOT, capture_output=True, **more)
    assert done.returncode == 0, (done.stdout[-4000:] + done.stderr[-4000:]).decode(
        errors="replace"
    )
    return done


def build(name: str, targets: list[str], *options: str) -> Path:
    """The folder build/NAME with these targets."""
    folder = ROOT / "build" / name
    options = ("-DPI_TEST_DEVICES=OFF", *QUICK, *options)
    run(["cmake", "-S", ".", "-B", folder, "-G", "Ninja", *options])
    run(["cmake", "--build", folder, "--target", *targets])
    return folder


@pytest.fixture(scope="module")
def story(main_path: Path) -> bytes:
    """What this machine's own program writes."""
    text = run([main_path, "-m", MODEL, *STORY]).stdout
    assert text.startswith(b"Once upon a time") and len(text) > 100
    return text


# ---- the Python package ----------------------------------------------------------------------


def test_the_package_does_without_what_only_unix_has() -> None:
    script = ROOT / "tests" / "python" / "other_systems.py"
    said = run([sys.executable, script]).stdout.decode()
    assert int(said.split()[1].rstrip(";")) > 90, said


# ---- Windows ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def windows() -> Path:
    for tool in ("x86_64-w64-mingw32-g++-posix", "wine64"):
        if not shutil.which(tool) and not Path("/usr/lib/wine", tool).exists():
            pytest.skip(f"no tool to build or run for Windows: {tool} (Debian: mingw-w64, wine64)")
    targets = ["main", *(f"test_{name}" for name in WINDOWS_TESTS)]
    # Windows has rules of its own for registers and the stack; avx uses them as avx2 does.
    options = ("--toolchain", "cmake/mingw.cmake", "-DPI_TESTS=ON", "-DPI_UNITY=ON")
    options += ("-DPI_ISA=avx512",)  # and what that builds on
    return build("windows", targets, *options)


@pytest.fixture(scope="module")
def wine(windows: Path):
    """Runs a program for Windows."""
    program = shutil.which("wine64") or "/usr/lib/wine/wine64"
    prefix = ROOT / "build" / "wine"
    environment = {
        **os.environ,
        "WINEPREFIX": str(prefix),
        "WINEDEBUG": "-all",
        "WINEDLLOVERRIDES": "mscoree,mshtml=",  # it would ask whether to install them
        "LC_ALL": "C.UTF-8",
    }

    def go(name: str, *arguments: object, **more: object) -> subprocess.CompletedProcess[bytes]:
        return run([program, windows / f"{name}.exe", *arguments], env=environment, **more)

    yield go
    subprocess.run(
        [shutil.which("wineserver") or "/usr/lib/wine/wineserver64", "-k"], env=environment
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
@ON_WINDOWS
@pytest.mark.parametrize("name", WINDOWS_TESTS)
def test_windows(wine, name: str) -> None:
    assert b" 0 failed" in wine(f"tests/test_{name}").stdout


@pytest.mark.slow
@pytest.mark.timeout(1200)
@ON_WINDOWS
def test_windows_text(wine, story: bytes, tmp_path: Path) -> None:
    """The same bytes, without carriage returns; also from and to names that are not ASCII."""
    assert wine("main", "-m", MODEL, *STORY).stdout == story
    assert wine("main", "-m", MODEL, *STORY, "--no-mmap").stdout == story
    model, figures = tmp_path / "größe 日本.gguf", tmp_path / "späße.json"
    shutil.copy(MODEL, model)
    prompt = tmp_path / "frage_é.txt"
    prompt.write_bytes(b"Once upon a time\r\n")
    line = [*STORY[:-2], "-f", prompt, "--json-stats", figures]
    assert wine("main", "-m", model, *line).stdout == story
    assert '"rss_peak": ' in figures.read_text() and b"\r" not in figures.read_bytes()
    assert wine("main", "-m", MODEL, *STORY[:-2], input=b"Once upon a time\r\n").stdout == story


# ---- by zig ----------------------------------------------------------------------------------


def built_by_zig(target: str) -> Path:
    """The program main."""
    package, zig = importlib.util.find_spec("ziglang"), shutil.which("zig")
    if package and package.origin:
        zig = str(Path(package.origin).parent / "zig")
    if not zig:
        pytest.skip("no tool to build for other systems: ziglang")
    # zig optimizes with -O1 as with -O3; with -O0 it adds debug information and checks.
    quick = "-DCMAKE_CXX_FLAGS_RELEASE=-O0 -g0 -fno-sanitize=undefined"
    options = ("--toolchain", "cmake/zig.cmake", f"-DZIG={zig}", f"-DZIG_TARGET={target}", quick)
    return build(f"zig-{target}", ["main"], *options) / "main"


# 24 tokens: see test_emulated.py.
@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_static_program(main_path: Path, machine: str) -> None:
    """With musl; as on Android, without a library of the system."""
    emulator: list[str] = []
    if platform.machine() != machine:
        found = shutil.which(f"qemu-{machine}")
        if not found:
            pytest.skip(f"no tool to run other processors' programs: qemu-{machine}")
        emulator = [found]
    program = built_by_zig(f"{machine}-linux-musl")
    assert b"ld-" not in program.read_bytes()[:4096]  # no dynamic loader
    line = ["-m", MODEL, *STORY, "-n", "24"]
    assert run([*emulator, program, *line]).stdout == run([main_path, *line]).stdout


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_macos_links() -> None:
    assert built_by_zig("aarch64-macos").read_bytes().startswith(b"\xcf\xfa\xed\xfe")  # Mach-O
