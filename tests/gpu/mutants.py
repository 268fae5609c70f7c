"""Removes each barrier and each guard of the GPU kernels in turn; a test must fail every time.

    python tests/gpu/mutants.py BUILD [FILE.cu ...]

BUILD is a CMake folder in which libggml.a has been built. The shim runs the kernels on the CPU,
with the address sanitizer. Prints a line per mutant; exit status 1 if one survived.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "ggml/src/cuda"
SHIM = ROOT / "tests/device/simt"
TESTS = ("test_device.cpp", "test_device_ops.cpp")
FLAGS = ["-std=c++20", "-O1", "-g1", "-w", "-ffp-contract=off", "-DGGML_GPU=simt"]
FLAGS += ["-fsanitize=address"]
FOLDERS = ("ggml/include", "ggml/src", "tests/device", "tests/device/simt", "tests")
FLAGS += [f"-I{ROOT / folder}" for folder in FOLDERS]

# Headers whose barriers and guards are removed, too, by the kernels that tests find them in.
HEADERS = {"exchange.h": "merge_experts.cu"}

BARRIER = re.compile(r"\b__sync(?:threads|warp)\(\);")
GUARD = re.compile(r">=|<|!=|!inside")  # in the condition of an if
# Mutants that compute the same: what a guard saves is time.
EQUIVALENT = {
    "attention.cu": ["if (from >= to) return;", "if (thread < kWarp) {"],
    "ffn.cu": ["if (value != 0) {"],
    "ffn_rows.cu": ["if (!any) continue;"],
    "norm.cu": ["if (thread < kWarp) {"],
    # What collectives of the warp lie between orders no memory, but the shim does not see that.
    "route.cu": ["__syncwarp();  // what was shared before has been read"],
    "tiles.cu": ["if (next < chunks) tile.fetch(next);"],  # past the end are zeros
}


@dataclass(frozen=True)
class Mutant:
    file: Path  # the .cu file
    name: str  # the changed file
    line: int  # from 1
    was: str
    text: str  # of the whole .cu file


def guard(code: str) -> tuple[int, str] | None:
    """Where a guard on one line begins, and what it guards."""
    begin = code.find("if (")
    if begin < 0 or "constexpr" in code:
        return None
    depth, end = 0, begin + 3
    for end in range(begin + 3, len(code)):
        depth += {"(": 1, ")": -1}.get(code[end], 0)
        if depth == 0:
            break
    what = code[end + 1 :].strip()
    return (begin, what) if what and GUARD.search(code[begin:end]) else None


def changes(file: Path) -> Iterator[tuple[int, str, str]]:
    """The places of a file with a barrier or a guard, and its text without it."""
    lines = file.read_text().splitlines()
    in_kernel = False
    for i, line in enumerate(lines):
        if line.startswith(("__global__", "__device__", "struct ", "class ")):
            in_kernel = True
        elif line.startswith(("}  // namespace", "template", "void ")):  # what follows says more
            in_kernel = False
        code = line.split("//")[0].rstrip()
        if not in_kernel or {code.strip(), line.strip()} & {*EQUIVALENT.get(file.name, [])}:
            continue
        if BARRIER.search(code):
            changed = BARRIER.sub(";", code)
        elif found := guard(code):
            begin, what = found
            gone = what.startswith(("return", "continue", "break"))
            changed = code[:begin] + (";" if gone else f"if (true) {what}")
        else:
            continue
        yield i + 1, code.strip(), "\n".join([*lines[:i], changed, *lines[i + 1 :]])


def mutants(file: Path) -> Iterator[Mutant]:
    """The versions of a .cu file in which one barrier or guard is missing, there or in a header of
    HEADERS."""
    text = file.read_text()
    if "__global__" not in text:
        return  # all of it runs on the CPU
    for line, was, changed in changes(file):
        yield Mutant(file, file.name, line, was, changed)
    for header in [h for h, tested in HEADERS.items() if tested == file.name]:
        for line, was, changed in changes(file.parent / header):
            changed = changed.replace("#pragma once", "")
            include = f'#include "cuda/ops/{header}"'
            yield Mutant(file, header, line, was, text.replace(include, changed))


def compiled(source: str | Path, out: Path) -> None:
    subprocess.run(
        ["g++", *FLAGS, "-x", "c++", "-c", str(source), "-o", str(out)],
        check=True,
        capture_output=True,
        text=True,
    )


def core(build: Path, folder: Path) -> Path:
    """A copy of libggml.a, which has no GPU operators: these are compiled here."""
    return Path(shutil.copy(build / "libggml.a", folder))


def passes(test: str, mutant: Mutant, objects: dict[str, Path], library: Path) -> bool:
    """Links one test program with a mutant's object beside its source, and runs it."""
    folder = library.parent
    name = f"{mutant.name}-{mutant.line}"
    left_out = {mutant.file.name, *TESTS} - {test}
    others = [str(path) for key, path in objects.items() if key not in left_out]
    program = folder / f"{name}-{test}"
    subprocess.run(
        ["g++", "-fsanitize=address", f"{folder / name}.o", *others, str(library)]
        + ["-lpthread", "-o", str(program)],
        check=True,
    )
    only = ["only", mutant.file.stem] if test == "test_device_ops.cpp" else []
    command = [str(program), *only]
    try:
        return subprocess.run(command, capture_output=True, timeout=100).returncode == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        program.unlink()


def survives(mutant: Mutant, objects: dict[str, Path], library: Path) -> bool:
    """Compiles a mutant and runs the tests of its file."""
    name = f"{mutant.name}-{mutant.line}"
    source = library.parent / f"{name}.cu"
    source.write_text(mutant.text)
    compiled(source, library.parent / f"{name}.o")
    tests = TESTS if mutant.file.name == "merge.cu" else TESTS[1:]
    return all(passes(test, mutant, objects, library) for test in tests)


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    build = Path(sys.argv[1])
    kernels = sorted(KERNELS.rglob("*.cu"))
    chosen = [k for k in kernels if k.name in sys.argv[2:]] if sys.argv[2:] else kernels
    all_mutants = [m for file in chosen for m in mutants(file)]
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = Path(name)
        sources = [*kernels, *SHIM.glob("*.cpp")]
        sources += [ROOT / "tests/gpu" / test for test in TESTS]
        library = core(build, folder)
        objects = {s.name: folder / f"{s.name}.o" for s in sources}
        list(pool.map(compiled, sources, objects.values()))
        alive = pool.map(lambda m: survives(m, objects, library), all_mutants)
        survivors = 0
        for mutant, lives in zip(all_mutants, alive, strict=True):
            survivors += lives
            said = "SURVIVES" if lives else "seen"
            print(f"{said}  {mutant.name}:{mutant.line}: {mutant.was}", flush=True)
    print(f"{len(all_mutants)} mutants, {survivors} survive")
    return 1 if survivors or not all_mutants else 0


if __name__ == "__main__":
    sys.exit(main())
