"""Style of the sources: ruff, clang-format, and some rules of CONTRIBUTING.md."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRACKED = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
).stdout.split()
ENDINGS = (".cpp", ".h", ".c", ".cu", ".cuh")
CPP = [f for f in TRACKED if f.endswith(ENDINGS) and (ROOT / f).exists()]
SOURCES = (*ENDINGS, ".py", ".js", ".css", ".html", ".sh", ".cmake")
MOST_LINES = 600  # of a file
MOST_FILES = 25  # of a folder of the libraries, the programs and the package
JS = [f for f in TRACKED if f.endswith(".js") and (ROOT / f).exists()]
# Calls by which a library would print or end the process; programs and tests may.
FORBIDDEN = re.compile(
    r"\b(?:printf|fprintf|puts|abort|exit|_exit|std::cout|std::cerr|assert)\s*[(<]"
)
# The systems' headers, and where they are included. windows.h has names that collide with others:
# two files alone see it.
SYSTEM = re.compile(
    r"#\s*include <(?:sys/|unistd|fcntl|sched|pthread|poll|dlfcn|mach|linux/|windows|winsock|psapi"
    r"|shellapi|process|io\.h)"
)
SYSTEM_FILES = ("ggml/src/os/", "ggml/src/reader/uring.cpp")
SYSTEM_FILES += ("ggml/src/kernels/isa.cpp",)
WINDOWS = re.compile(r"#\s*include <(?:windows|winsock|psapi|shellapi)")


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def test_ruff() -> None:
    run(sys.executable, "-m", "ruff", "check", ".")
    run(sys.executable, "-m", "ruff", "format", "--check", ".")


def test_clang_format() -> None:
    program = Path(sys.executable).with_name("clang-format")
    run(str(program) if program.exists() else "clang-format", "--dry-run", "-Werror", *CPP, *JS)


def test_a_file_can_be_held() -> None:
    """Tables (*.inc) may be longer, and the C API is one file."""
    for name in TRACKED:
        if name.endswith(SOURCES) and (ROOT / name).exists() and not name.endswith("/powerinfer.h"):
            lines = (ROOT / name).read_bytes().count(b"\n")
            assert lines <= MOST_LINES, f"{name} has {lines} lines"


def test_a_folder_can_be_held() -> None:
    files = (f for f in TRACKED if f.startswith(("ggml/src/", "powerinfer_cpp/", "python/")))
    for folder, n in Counter(f.rpartition("/")[0] for f in files if (ROOT / f).exists()).items():
        assert n <= MOST_FILES, f"{folder} has {n} files"


def library_sources() -> list[str]:
    return [f for f in CPP if f.startswith(("ggml/", "powerinfer_cpp/src/"))]


def test_the_library_never_prints_or_exits() -> None:
    for name in library_sources():
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            code = line.split("//")[0]
            assert not FORBIDDEN.search(code), f"{name}:{number}: {line.strip()}"


def test_system_calls_stay_in_their_files() -> None:
    assert SYSTEM.search("#include <sys/mman.h>") and WINDOWS.search("#  include <windows.h>")
    for name in library_sources():
        if not name.startswith(SYSTEM_FILES):
            assert not SYSTEM.search((ROOT / name).read_text()), name
    for name in CPP:
        text = (ROOT / name).read_text()
        if name.startswith("powerinfer_cpp/programs/") and "/console/" not in name:
            assert not SYSTEM.search(text), name
        if not name.endswith("windows.cpp"):
            assert not WINDOWS.search(text), name


def test_names_of_kernels_can_be_searched() -> None:
    """No macro puts one together; but for generic's, which are the formats' of blocks.h."""
    kernels = [f for f in TRACKED if f.startswith("ggml/src/kernels/") and (ROOT / f).exists()]
    for name in kernels:
        if "/generic/" not in name:
            assert "__##" not in (ROOT / name).read_text(), name


# What C libraries round differently, and standard libraries draw differently; ggml/math.h has ours.
# sqrt, floor and fmod are exact, fabs and copysign move bits.
ROUNDED = "exp|exp2|expm1|log2|log10|log1p|erf|erfc|sin|cos|tan|sincos|asin|acos|atan|atan2"
ROUNDED += "|sinh|cosh|tanh|asinh|acosh|atanh|pow|cbrt|hypot|tgamma|lgamma"
LIBRARY = re.compile(
    rf"(?<![\w.>])(?:{ROUNDED})[fl]?\s*\(|std::(?:{ROUNDED}|log)[fl]?\b|std::\w+_distribution"
    r"|\blog[fl]\s*\(|(?<![\w.:>])log\s*\((?!int32_t|\d, )"  # but for the session's own log()
)


def test_results_do_not_depend_on_the_c_library() -> None:
    for call in ("exp(x)", "std::exp(x)", "expf (x)", "::pow(2, x)", "log(x)", "std::log"):
        assert LIBRARY.search("y = " + call), call
    for call in ("ggml::exp_f32(x)", "std::sqrt(x)", "log(2, text)", "session.log(2, text)"):
        assert not LIBRARY.search(call), call
    for name in library_sources():
        # A device has a library of its own; measure.cpp draws numbers to time, not to compute with.
        if name.endswith((".cu", "powerinfer_cpp/src/tools/measure.cpp")):
            continue
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            assert not LIBRARY.search(line.split("//")[0]), f"{name}:{number}: {line.strip()}"


def test_the_base_of_a_change_is_a_commit_before_it() -> None:
    """What tests of the mark `about` compare with (conftest.py)."""
    base = (ROOT / ".ci" / "base").read_text().strip()
    shallow = ["git", "rev-parse", "--is-shallow-repository"]
    if subprocess.run(shallow, cwd=ROOT, capture_output=True, text=True).stdout != "false\n":
        pytest.skip("no tool to look at this checkout's history")
    run("git", "merge-base", "--is-ancestor", base, "HEAD")


# Sentences that readers could not decode; plain ones took their place.
UNCLEAR = (
    "old ones, there is one attention",
    "All ones gives the paper's",
    "a vocabulary joins it with what follows",
    "What training has made",
    "that set thresholds. With the methods",
    "other ones are expected to go on",
    "kept as `take` needs",
    "a forced answer has one",
    "Who is cancelled waits no more",
    "The less, the rather",
)


def test_unclear_sentences_do_not_come_back() -> None:
    for name in TRACKED:
        path = ROOT / name
        if name.endswith((".py", ".h", ".cpp", ".md")) and path.exists() and path != Path(__file__):
            text = re.sub(r"\s*\n\s*(?:#|//)?\s*", " ", path.read_text(encoding="utf-8"))
            assert [words for words in UNCLEAR if words in text] == [], name
