"""Layout and hygiene of the sources: ruff, clang-format, and a few promises of CONTRIBUTING.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

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
# Calls by which a library would print or end the process; programs and tests may.
FORBIDDEN = re.compile(
    r"\b(?:printf|fprintf|puts|abort|exit|_exit|std::cout|std::cerr|assert)\s*[(<]"
)
SYSTEM = re.compile(r"#include <(?:sys/|unistd|fcntl|sched|pthread)")


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def test_ruff() -> None:
    run(sys.executable, "-m", "ruff", "check", ".")
    run(sys.executable, "-m", "ruff", "format", "--check", ".")


def test_clang_format() -> None:
    program = Path(sys.executable).with_name("clang-format")
    run(str(program) if program.exists() else "clang-format", "--dry-run", "-Werror", *CPP)


def library_sources() -> list[str]:
    return [f for f in CPP if f.startswith(("ggml/", "powerinfer_cpp/src/"))]


def test_the_library_never_prints_or_exits() -> None:
    for name in library_sources():
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            code = line.split("//")[0]
            assert not FORBIDDEN.search(code), f"{name}:{number}: {line.strip()}"


def test_system_calls_stay_in_two_files() -> None:
    for name in library_sources():
        if Path(name).name in ("file_io.cpp", "threads.cpp"):
            continue
        assert not SYSTEM.search((ROOT / name).read_text()), name
