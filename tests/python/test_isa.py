"""Code compiled for an instruction set stays in its namespace."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CPU = ROOT / "ggml/src/cpu"
# Those of a kind of processor, and the compiler for it where another one builds.
ISAS = {"x86_64": ("avx", "avx2", "vnni", "avx512", "amx"), "aarch64": ("neon", "neon_i8mm")}
CROSS = "{}-linux-gnu-g++"
NAMES = {"AMD64": "x86_64", "arm64": "aarch64"}


def flags(isa: str) -> list[str]:
    """The compile options of an instruction set in CMakeLists.txt."""
    text = (ROOT / "CMakeLists.txt").read_text()
    return re.search(rf'add_isa\({isa} "([^"]+)"', text)[1].split(";")


def sources(isa: str) -> list[Path]:
    """What CMakeLists.txt compiles for it: its folder's files, or the kernels of eight lanes."""
    own = [*(CPU / isa).glob("*.cpp")]
    return sorted(own or [p for name in ("lanes", "formats") for p in (CPU / name).glob("*.cpp")])


# -O0 keeps a copy of every inline function, and is the quickest to compile.
@pytest.mark.parametrize(
    ("machine", "isa", "level"),
    [
        *((machine, isa, "-O0") for machine, isas in ISAS.items() for isa in isas),
        pytest.param("x86_64", "avx2", "-Os", marks=pytest.mark.slow),
    ],
)
def test_no_shared_code_is_compiled_for_an_isa(
    machine: str, isa: str, level: str, tmp_path: Path
) -> None:
    """The linker might keep this copy of a weak symbol (std::min, an inline function) for all code;
    on a machine without the instruction set the program would crash."""
    here = platform.machine()
    compiler = shutil.which("c++" if NAMES.get(here, here) == machine else CROSS.format(machine))
    if not compiler:
        pytest.skip(f"no tool to compile for {machine}")
    common = ["-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-w"]
    common += ["-DGGML_X86", "-DGGML_AMX"] if machine == "x86_64" else ["-DGGML_ARM"]
    folders = [f"-I{ROOT / 'ggml/include'}", f"-I{ROOT / 'ggml/src'}"]
    own = rf"_Z+NK?4ggml3cpu{len(isa)}{isa}"  # mangled: in this namespace

    def shared(source: Path) -> list[str]:
        made = tmp_path / f"{source.stem}.o"
        command = [compiler, *common, *flags(isa), level, *folders, "-c", source, "-o", made]
        subprocess.run(command, check=True, timeout=600)
        names = subprocess.run(
            ["nm", "--defined-only", made], check=True, capture_output=True, text=True
        ).stdout
        lines = [line.split(" ", 2) for line in names.splitlines()]
        assert any(kind == "T" and re.match(own, name) for _, kind, name in lines), source
        return [
            f"{source.name}: {name}"
            for _, kind, name in lines
            if kind in "WVu" and not re.match(own, name)
        ]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        assert not [name for names in pool.map(shared, sources(isa)) for name in names]
