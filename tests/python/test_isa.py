"""Code compiled for an instruction set stays in its namespace."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from builds import CPU, build

DATA = "DW.ref."  # addresses that the linker shares, no code
ISAS = ("avx", "avx2", "avxvnni", "vnni", "avx512", "vbmi", "amx", "neon", "neon_i8mm")


def shared(isa: str, made: Path) -> list[str]:
    """Symbols of an object that the linker might take for all code (std::min, an inline function);
    on a machine without the instruction set the program would crash."""
    own = rf"_Z+NK?4ggml3cpu{len(isa)}{isa}"  # mangled: in this namespace
    names = subprocess.run(
        ["nm", "--defined-only", made], check=True, capture_output=True, text=True
    ).stdout
    lines = [line.split(" ", 2) for line in names.splitlines()]
    assert any(kind in "DR" and re.match(own, name) for _, kind, name in lines), made
    return [
        f"{made.name}: {name}"
        for _, kind, name in lines
        if kind in "WVu" and not re.match(own, name) and not name.startswith(DATA)
    ]


def objects(folder: Path, isa: str) -> list[Path]:
    return sorted((folder / "CMakeFiles" / f"ggml_{isa}.dir").rglob("*.o"))


@pytest.mark.parametrize("isa", ISAS)
def test_no_shared_code_in_what_was_built(isa: str) -> None:
    """The product's own objects."""
    made = objects(CPU, isa)
    if not made:
        pytest.skip(f"this build has no ISA {isa}")
    assert not [name for path in made for name in shared(isa, path)]


@pytest.mark.slow
@pytest.mark.about("ggml/src/kernels", "ggml/src/formats", "ggml/include")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("level", ["-O0", pytest.param("-Os", marks=pytest.mark.nightly)])
def test_no_shared_code_at_any_level(level: str, tmp_path: Path) -> None:
    """-O0 keeps a copy of every inline function."""
    commands = subprocess.run(
        ["ninja", "-C", CPU, "-t", "commands", "ggml"], check=True, capture_output=True, text=True
    ).stdout.splitlines()

    def compiled(line: str) -> list[str]:
        isa, name = re.search(r" -o CMakeFiles/ggml_(\w+)\.dir/(\S+)", line).groups()
        made = tmp_path / isa / name.replace("/", "-")
        made.parent.mkdir(exist_ok=True)
        quick = re.sub(r" -M(D|T \S+|F \S+)", "", line.replace(" -O3 ", f" {level} "))
        quick = re.sub(r" -o \S+", f" -w -o {made}", quick)
        subprocess.run(quick, shell=True, check=True, timeout=600, cwd=CPU)
        return [f"{isa}: {name}" for name in shared(isa, made)]

    lines = [line for line in commands if re.search(r" -o CMakeFiles/ggml_\w+\.dir/", line)]
    assert len({re.search(r"/ggml_(\w+)\.dir", line)[1] for line in lines}) >= 2
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        assert not [name for names in pool.map(compiled, lines) for name in names]


@pytest.mark.slow
@pytest.mark.about("ggml/src/kernels", "ggml/src/formats", "ggml/include")
@pytest.mark.timeout(900)
def test_no_shared_code_for_arm() -> None:
    if not shutil.which("aarch64-linux-gnu-g++"):
        pytest.skip("no tool to compile for aarch64")
    folder = build("arm", "ggml")
    for isa in ("neon", "neon_i8mm"):
        made = objects(folder, isa)
        assert made and not [name for path in made for name in shared(isa, path)]
