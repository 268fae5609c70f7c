"""Code compiled for an instruction set stays in its folder."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CPU = ROOT / "ggml/src/cpu"

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="ISA folders are for x86-64"
)


def flags(isa: str) -> list[str]:
    """The compile options of a folder in CMakeLists.txt."""
    text = (ROOT / "CMakeLists.txt").read_text()
    options = re.search(rf'\$\{{{isa}_sources\}} PROPERTIES COMPILE_OPTIONS\s+"([^"]+)"', text)
    return options[1].split(";")


# -O0 keeps a copy of every inline function, and is the quickest to compile.
@pytest.mark.parametrize(
    "level", ["-O0", *(pytest.param(o, marks=pytest.mark.slow) for o in ("-Og", "-Os", "-O2"))]
)
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_no_shared_code_is_compiled_for_an_isa(isa: str, level: str, tmp_path: Path) -> None:
    """The linker might keep this copy of a weak symbol (std::min, an inline function) for all code;
    on a machine without the instruction set the program would crash."""
    compiler = shutil.which("c++")
    assert compiler, "needs a C++ compiler"
    common = ["-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-w", "-DGGML_X86"]
    folders = [f"-I{ROOT / 'ggml/include'}", f"-I{ROOT / 'ggml/src'}"]
    sources = sorted((CPU / isa).glob("*.cpp"))
    assert sources
    shared = []
    for source in sources:
        made = tmp_path / f"{source.stem}.o"
        command = [compiler, *common, *flags(isa), level, *folders, "-c", source, "-o", made]
        subprocess.run(command, check=True, timeout=600)
        names = subprocess.run(
            ["nm", "--defined-only", made], check=True, capture_output=True, text=True
        ).stdout
        for line in names.splitlines():
            _, kind, name = line.split(" ", 2)
            own = rf"_Z+NK?4ggml3cpu{len(isa)}{isa}"  # mangled: in this namespace
            if kind in "WVu" and not re.match(own, name):
                shared.append(f"{source.name}: {name}")
    assert not shared
