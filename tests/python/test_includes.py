"""Includes: one direction between the libraries, and no cycle within one."""

from __future__ import annotations

import re
from collections.abc import Container
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Where a quoted name is looked for, after the folder of the file that names it.
SEARCHED = ("ggml/include", "ggml/src", "powerinfer_cpp/include", "powerinfer_cpp/src")
SEARCHED += ("powerinfer_cpp/programs", "tests/device")
# Files -> what they may include of this repository.
SEES = {
    "ggml/include": ("ggml/include/",),
    "ggml/src": ("ggml/include/", "ggml/src/"),
    "powerinfer_cpp/include": ("powerinfer_cpp/include/",),
    "powerinfer_cpp/src": ("powerinfer_cpp/src/", "powerinfer_cpp/include/", "ggml/include/ggml/"),
    "powerinfer_cpp/programs": ("powerinfer_cpp/programs/", "powerinfer_cpp/include/"),
    "tests/device": ("tests/device/", "ggml/include/", "ggml/src/cuda/"),
    "tests/capi": ("tests/capi/", "powerinfer_cpp/include/"),
}
LIBRARIES = {
    "ggml": ("ggml",),
    "engine": ("powerinfer_cpp/src",),
    "programs": ("powerinfer_cpp/programs",),
}
# The folders of the engine, the lowest floor first: a file includes only files of its own folder
# and of those before it. Folders within a folder that are not named here belong to it.
FLOORS = (
    "base",  # words that all share
    "tokenizer",
    "sampler",
    "weights",  # the tensors of a file, and how they lie in memory
    "storage/cache",  # what stays in memory of what is on the disk
    "storage",  # how the rest is read
    "storage/experts",  # whole experts, or their predictors
    "storage/neurons",  # the parts of neurons
    "device",  # what a GPU holds
    "model",  # sizes, layers, families, adapters
    "files",  # what stands beside a model
    "memory",  # what a session takes
    "observe",  # what a run did
    "plan",  # what lies where, and what memory that takes
    "load",  # opening
    "forward",  # a pass
    "session",
    "tools",
    "api",
)

# The folders of the tensor core -> those that they may include, besides ggml/include. Folders
# within a folder that are not named here belong to it.
TENSOR_CORE = {
    "os": (),
    "formats": (),
    "gguf": ("os",),
    "reader": ("os",),
    "kernels": ("os", "formats"),
    "ops": ("formats", "kernels"),
    "cuda": ("os", "formats"),
    "cuda/ops": ("formats", "cuda"),
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def files(folder: str) -> list[str]:
    """Sources and headers in a folder, by their paths in the repository."""
    kinds = (".c", ".cpp", ".cu", ".cuh", ".h", ".inc")
    found = (p for p in (ROOT / folder).rglob("*") if p.suffix in kinds)
    return sorted(p.relative_to(ROOT).as_posix() for p in found)


@cache
def includes(name: str) -> list[tuple[int, str, str | None]]:
    """Line, written name and file of each include; without what the system's headers are.

    The file is None where a quoted name leads nowhere.
    """
    found = []
    for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
        if not (match := INCLUDE.match(line)):
            continue
        quoted = match[1] == '"'
        folders = (str(Path(name).parent), *SEARCHED) if quoted else SEARCHED
        places = (f"{folder}/{match[2]}" for folder in folders)
        target = next((place for place in places if (ROOT / place).is_file()), None)
        if quoted or target:
            found.append((number, match[2], target))
    return found


@cache
def module(name: str) -> str:
    """The module of a file: x for x.h and for an x.cpp beside it that includes it, else itself."""
    header = str(Path(name).with_suffix(".h"))
    whole = name == header or any(target == header for _, _, target in includes(name))
    return str(Path(name).with_suffix("")) if whole else name


def graph(folders: tuple[str, ...]) -> dict[tuple[str, str], list[str]]:
    """Pairs of modules (the first includes the second), with the include lines."""
    names = [name for folder in folders for name in files(folder)]
    found: dict[tuple[str, str], list[str]] = {}
    for name in names:
        for number, _, target in includes(name):
            if target in names and module(target) != module(name):
                line = f"{name}:{number} includes {target}"
                found.setdefault((module(name), module(target)), []).append(line)
    return found


def reached(pairs: dict[tuple[str, str], list[str]], start: str) -> set[str]:
    """Modules that a module includes, directly or indirectly."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        at = waiting.pop()
        fresh = {b for a, b in pairs if a == at} - seen
        seen |= fresh
        waiting += fresh
    return seen


def circles(pairs: dict[tuple[str, str], list[str]]) -> list[str]:
    """Each cycle of modules, with its include lines."""
    below = {a: reached(pairs, a) for a, _ in pairs}
    found = []
    for members in {frozenset(b for b in below if a in below[b] and b in below[a]) for a in below}:
        if members:
            inside = [lines for (a, b), lines in pairs.items() if a in members and b in members]
            title = " <-> ".join(sorted(members))
            found.append("\n  ".join([title, *sorted(line for lines in inside for line in lines)]))
    return sorted(found)


def test_circles_are_found() -> None:
    pairs = {p: [f"{p[0]} includes {p[1]}"] for p in ("ab", "bc", "cb", "cd", "de", "ef", "fd")}
    assert [found.split("\n")[0] for found in circles({tuple(p): v for p, v in pairs.items()})] == [
        "b <-> c",
        "d <-> e <-> f",
    ]


@pytest.mark.parametrize("folder", SEES)
def test_each_library_sees_only_what_it_may(folder: str) -> None:
    assert files(folder)
    for name in files(folder):
        for number, written, target in includes(name):
            assert target, f"{name}:{number}: there is no {written}"
            assert target.startswith(SEES[folder]), f"{name}:{number}: {target} is not for it"


def test_ggml_does_not_know_the_engine() -> None:
    for name in files("ggml"):
        assert "powerinfer" not in re.sub(r"//.*", "", (ROOT / name).read_text()), name


def test_libraries_do_not_know_the_devices_of_tests() -> None:
    names = re.compile(r"\b(?:simt|shim|timed)\b", re.IGNORECASE)
    for name in [*files("ggml"), *files("powerinfer_cpp/src")]:
        assert not names.search((ROOT / name).read_text()), name


@pytest.mark.parametrize("library", ["ggml", "engine", "programs"])
def test_no_circles(library: str) -> None:
    found = circles(graph(LIBRARIES[library]))
    assert not found, "\n" + "\n".join(found)


def folder(name: str, top: str, named: Container[str]) -> str:
    """The innermost folder around a file, below `top`, that is among those that are named."""
    around = [p.as_posix() for p in Path(name).relative_to(top).parents]
    return next((p for p in around if p in named), around[0])


def test_the_engines_floors() -> None:
    (top,) = LIBRARIES["engine"]
    floors = {name: folder(name, top, FLOORS) for name in files(top)}
    assert set(floors.values()) == set(FLOORS)
    upward = [
        f"{name}:{number} includes {target}"
        for name in floors
        for number, _, target in includes(name)
        if target in floors and FLOORS.index(floors[target]) > FLOORS.index(floors[name])
    ]
    assert not upward, "higher floors are included:\n" + "\n".join(upward)


def test_the_tensor_cores_folders() -> None:
    folders = {name: folder(name, "ggml/src", TENSOR_CORE) for name in files("ggml/src")}
    wrong = [
        f"{name}:{number} includes {target}"
        for name, own in folders.items()
        for number, _, target in includes(name)
        if target in folders and (of := folders[target]) != own
        if of not in TENSOR_CORE[own]
    ]
    assert not wrong, "\n".join(wrong)
    assert set(folders.values()) == set(TENSOR_CORE)
