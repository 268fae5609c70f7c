"""Removes each barrier and each guard of the GPU kernels in turn; a test must fail every time.

    python tests/gpu/mutants.py BUILD [FILE ...]

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

BARRIER = re.compile(r"\b__sync(?:threads|warp)\(\);")
GUARD = re.compile(r">=|<|!=|!inside")  # in the condition of an if
# Mutants that compute the same: what a guard saves is time.
EQUIVALENT = {
    "attention.cu": [
        # Of columns that no row has, nothing is loaded.
        "if (first + S::kKeyColumns < dim) {",
        "if (next_column < call.values.dim) {",
        # What is computed too much is not stored, or where nobody reads it.
        "if (q0 >= mine.n) continue;",
        "if (q0 >= mine.n || column + own >= call.values.dim) continue;",
        "if (thread < n) {  // by how much block `thread` changes the scale of what is before it",
    ],
    "attention_q8.cu": [
        # The same for every query, if all see the whole page.
        "if (!whole || i < kAttentionWarps / kSlabBlocks) {  // else as for the query before",
        # What is computed too much stays where nobody reads it.
        "if (b >= n_blocks) return;",
        "if (b >= n) continue;",
        # Rows beyond the last query are the last one again, and store the same.
        "if (lane / 4 + 8 * r >= mine.n) continue;",
    ],
    "ffn.cu": [
        "if (first >= list.n) return;",
        # What a neuron that does not fire would add is 0.
        "if (value != 0) add_group<type>(rows + i * w.stride, w.cols, c0, value, sum);",
    ],
    "ffn_rows.cu": ["if (!any) continue;"],
    "matmul.cu": ["if (share.rows.n <= 0 || first >= p.w.rows) return;"],
    "lanes.h": ["if (thread < kWarp) {"],
    # What collectives of the warp lie between orders no memory, but the shim does not see that.
    "route.cu": ["__syncwarp();  // what was shared before has been read"],
    "tiles.cu": ["if (share.rows.n <= 0 || first >= p.w.rows) return;"],
    "products.h": [
        "if (warp + u * kRowWarps < n_rows) use(k, u);",  # else it is the last row again
        "if (first + kColumns < x.cols) fetch(x.cols - first - kColumns);",  # of no columns
    ],
}
# Headers with what kernels are made of, and where their mutants are compiled and tested.
HEADERS = {
    "attention.h": ("attention.cu", "attention_q8.cu"),
    "exchange.h": ("merge.cu", "merge_experts.cu"),
    "lanes.h": ("norm.cu", "recurrence.cu"),
    "products.h": ("matmul.cu", "tiles.cu"),
}
GROUPS = {  # else the file's own
    "attention.h": ("attention",),
    "attention_q8.cu": ("attention",),
    "exchange.h": ("merge", "merge_experts"),
    "lanes.h": ("norm", "recurrence"),
    "products.h": ("matmul",),
}


@dataclass(frozen=True)
class Mutant:
    file: Path
    line: int  # from 1
    was: str
    text: str  # of the whole file


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


def variants(line: str) -> set[str]:
    """A line as EQUIVALENT may name it: with its comment, or without."""
    return {line.strip(), line.split("//")[0].strip()}


def unknown(file: Path) -> list[str]:
    """Entries of EQUIVALENT that no line of the file is: it has changed since."""
    lines = set().union(*map(variants, file.read_text().splitlines()))
    return [entry for entry in EQUIVALENT.get(file.name, []) if entry not in lines]


def mutants(file: Path) -> Iterator[Mutant]:
    """The versions of a file in which one barrier or guard is missing."""
    lines = file.read_text().splitlines()
    if file.name not in HEADERS and not any("__global__" in line for line in lines):
        return  # all of it runs on the CPU
    in_kernel = False
    for i, line in enumerate(lines):
        if line.startswith(("__global__", "__device__", "struct ", "class ")):
            in_kernel = True
        elif line.startswith(("}  // namespace", "template", "void ")):  # what follows says more
            in_kernel = False
        code = line.split("//")[0].rstrip()
        if not in_kernel or variants(line) & set(EQUIVALENT.get(file.name, [])):
            continue
        if BARRIER.search(code):
            changed = BARRIER.sub(";", code)
        elif found := guard(code):
            begin, what = found
            gone = what.startswith(("return", "continue", "break"))
            changed = code[:begin] + (";" if gone else f"if (true) {what}")
        else:
            continue
        yield Mutant(file, i + 1, code.strip(), "\n".join([*lines[:i], changed, *lines[i + 1 :]]))


def compiled(source: str | Path, out: Path, before: Path | None = None) -> None:
    """before: a folder whose headers are taken instead of those of the same path."""
    first = [f"-I{before}"] if before else []
    subprocess.run(
        ["g++", *first, *FLAGS, "-x", "c++", "-c", str(source), "-o", str(out)],
        check=True,
        capture_output=True,
        text=True,
    )


def core(build: Path, folder: Path) -> Path:
    """A copy of libggml.a, which has no GPU operators: these are compiled here."""
    return Path(shutil.copy(build / "libggml.a", folder))


def passes(test: str, mutant: Mutant, objects: dict[str, Path], own: dict[str, Path]) -> bool:
    """Links one test program with a mutant's objects instead of their sources', and runs it."""
    library = objects["libggml.a"]
    left_out = {"libggml.a", *own, *TESTS} - {test}
    linked = [*own.values(), *(path for key, path in objects.items() if key not in left_out)]
    program = library.parent / f"{mutant.file.name}-{mutant.line}-{test}"
    subprocess.run(
        ["g++", "-fsanitize=address", *map(str, linked), str(library)]
        + ["-lpthread", "-o", str(program)],
        check=True,
    )
    groups = GROUPS.get(mutant.file.name, (mutant.file.stem,))
    runs = [["only", group] for group in groups] if test == "test_device_ops.cpp" else [[]]
    try:
        return all(
            subprocess.run(
                [str(program), *run],
                capture_output=True,
                timeout=100,
                env={**os.environ, "PI_FIRST_FAILURE": "1"},
            ).returncode
            == 0
            for run in runs
        )
    except subprocess.TimeoutExpired:
        return False
    finally:
        program.unlink()


def survives(mutant: Mutant, objects: dict[str, Path]) -> bool:
    """Compiles a mutant and runs the tests of its file."""
    folder = objects["libggml.a"].parent / f"{mutant.file.name}-{mutant.line}"
    changed = folder / mutant.file.relative_to(ROOT / "ggml/src")
    changed.parent.mkdir(parents=True)
    changed.write_text(mutant.text)
    sources = [changed]
    if mutant.file.name in HEADERS:
        sources = [mutant.file.with_name(name) for name in HEADERS[mutant.file.name]]
    own = {source.name: folder / f"{source.name}.o" for source in sources}
    for source in sources:
        compiled(source, own[source.name], folder)
    tests = TESTS if mutant.file.name == "merge.cu" else TESTS[1:]
    return all(passes(test, mutant, objects, own) for test in tests)


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    build = Path(sys.argv[1])
    kernels = sorted(KERNELS.rglob("*.cu"))
    changed = kernels + [path for path in sorted(KERNELS.rglob("*.h")) if path.name in HEADERS]
    chosen = [k for k in changed if k.name in sys.argv[2:]] if sys.argv[2:] else changed
    if stale := [f"{file.name}: {entry}" for file in chosen for entry in unknown(file)]:
        print("no line of the file is", *stale, sep="\n", file=sys.stderr)
        return 1
    all_mutants = [m for file in chosen for m in mutants(file)]
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = Path(name)
        sources = [*kernels, *SHIM.glob("*.cpp")]
        sources += [ROOT / "tests/gpu" / test for test in TESTS]
        objects = {s.name: folder / f"{s.name}.o" for s in sources}
        list(pool.map(compiled, sources, objects.values()))
        objects["libggml.a"] = core(build, folder)
        alive = pool.map(lambda m: survives(m, objects), all_mutants)
        survivors = 0
        for mutant, lives in zip(all_mutants, alive, strict=True):
            survivors += lives
            said = "SURVIVES" if lives else "seen"
            print(f"{said}  {mutant.file.name}:{mutant.line}: {mutant.was}", flush=True)
    print(f"{len(all_mutants)} mutants, {survivors} survive")
    return 1 if survivors or not all_mutants else 0


if __name__ == "__main__":
    sys.exit(main())
