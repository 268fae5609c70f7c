"""Finds out how ./run can build with CUDA: which NVIDIA GPUs are here, and an nvcc for them.

    python3 scripts/find_cuda.py

stdout: the CMake options, for the environment variable CMAKE_ARGS. stderr: a sentence that says
what was found. Exit status 0: build with these options; 1: there is no way; 3: the packages in
PACKAGES would help. Needs nothing but Python.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# nvcc from PyPI; the extra `cuda`. Those for CUDA 12 have no nvcc.
PACKAGES_MAJOR = 13
PACKAGES = tuple(
    f"{name}=={PACKAGES_MAJOR}.*"
    for name in (
        "nvidia-cuda-nvcc",
        "nvidia-cuda-runtime",
        "nvidia-cuda-crt",
        "nvidia-nvvm",
        "nvidia-cuda-cccl",
    )
)
LEAST_COMPUTE = (7, 5)
# The driver that programs of a CUDA version need at least (NVIDIA's release notes).
LEAST_DRIVER = {12: 525, 13: 580}
POSSIBLE, IMPOSSIBLE, PACKAGES_NEEDED = 0, 1, 3


@dataclass(frozen=True)
class Card:
    name: str
    compute: tuple[int, int]


@dataclass(frozen=True)
class Machine:
    cards: list[Card]
    driver: str  # "580.65.06"; "" if nothing says it


@dataclass(frozen=True)
class Compiler:
    path: str
    version: tuple[int, int]
    computes: frozenset[tuple[int, int]]  # that it compiles for; empty if it does not say

    def __str__(self) -> str:
        return f"nvcc {text(self.version)} in {os.path.dirname(self.path)}"


@dataclass(frozen=True)
class Answer:
    status: int
    sentence: str
    options: list[str]


def text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def output(*command: str) -> str:
    """What a program prints; "" if it fails, or takes more than a minute."""
    try:
        done = subprocess.run(command, capture_output=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def machine(proc: Path = Path("/proc/driver/nvidia/version")) -> Machine:
    """The GPUs as nvidia-smi names them."""
    asked = output("nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv")
    cards, driver = [], ""
    for line in asked.splitlines():
        name, _, rest = line.partition(",")
        if found := re.fullmatch(r"\s*(\d+)\.(\d)\s*,\s*([\d.]+)\s*", rest):
            cards.append(Card(name.strip(), (int(found[1]), int(found[2]))))
            driver = found[3]
    if not driver and proc.is_file():
        found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", proc.read_text(errors="replace"))
        driver = found[1] if found else ""
    return Machine(cards, driver)


def places(environment: Mapping[str, str]) -> Iterator[str]:
    """Where nvcc may be, the best place first."""
    yield environment.get("CUDACXX", "")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environment.get(name):
            yield os.path.join(environment[name], "bin", "nvcc")
    yield shutil.which("nvcc", path=environment.get("PATH", "")) or ""
    yield "/usr/local/cuda/bin/nvcc"
    for path in sorted(Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/bin/nvcc")):
        yield str(path)


def compilers(environment: Mapping[str, str]) -> Iterator[Compiler]:
    """Every nvcc that runs."""
    for path in dict.fromkeys(places(environment)):
        found = re.search(r"release (\d+)\.(\d+)", output(path, "--version")) if path else None
        if found:
            listed = re.findall(r"compute_(\d+)(\d)\b", output(path, "--list-gpu-arch"))
            computes = frozenset((int(major), int(minor)) for major, minor in listed)
            yield Compiler(path, (int(found[1]), int(found[2])), computes)


def too_old(driver: str, major: int) -> str:
    """Why a driver cannot run programs of CUDA `major`; "" if it can."""
    least = LEAST_DRIVER.get(major, 0)
    if driver and int(driver.split(".")[0]) < least:
        return f"CUDA {major} needs driver {least} or newer, and this one is {driver}"
    return ""


def objection(compiler: Compiler, cards: list[Card], driver: str) -> str:
    """Why a compiler does not serve; "" if it does."""
    if compiler.version[0] < min(LEAST_DRIVER):
        return f"{compiler} is too old: {min(LEAST_DRIVER)} is the least"
    unknown = {card.compute for card in cards} - compiler.computes
    if compiler.computes and unknown:
        return f"{compiler} does not know compute capability {text(min(unknown))}"
    why = too_old(driver, compiler.version[0])
    return f"{compiler} does not serve: {why}" if why else ""


def answer(found: Machine, environment: Mapping[str, str]) -> Answer:
    """How to build for these GPUs."""
    named = ", ".join(f"{c.name} (compute capability {text(c.compute)})" for c in found.cards)
    named = f"found {named or ('an NVIDIA driver' if found.driver else 'no NVIDIA GPU')}"
    cards = [card for card in found.cards if card.compute >= LEAST_COMPUTE]
    if found.cards and not cards:
        why = f"{text(LEAST_COMPUTE)} is the least compute capability"
        return Answer(IMPOSSIBLE, f"{named}, but {why}", [])
    objections, had_packages = [], False
    for compiler in compilers(environment):
        had_packages |= "site-packages" in compiler.path
        if why := objection(compiler, cards, found.driver):
            objections.append(why)
            continue
        options = ["-DGGML_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={compiler.path}"]
        if cards:
            kinds = sorted({major * 10 + minor for major, minor in (c.compute for c in cards)})
            targets = ";".join(f"{kind}-real" for kind in kinds)
            options.append(f"-DCMAKE_CUDA_ARCHITECTURES={targets}")
        return Answer(POSSIBLE, f"{named}: building with CUDA by {compiler}", options)
    why = "; ".join(objections) or "there is no nvcc"
    if old := too_old(found.driver, PACKAGES_MAJOR):
        hint = "" if objections else f", and nvcc's packages do not serve: {old}"
        return Answer(IMPOSSIBLE, f"{named}, but {why}{hint}", [])
    return Answer(IMPOSSIBLE if had_packages else PACKAGES_NEEDED, f"{named}, but {why}", [])


def main() -> int:
    if sys.argv[1:] == ["--packages"]:
        print(" ".join(PACKAGES))
        return 0
    found = answer(machine(), os.environ)
    print(f"run: {found.sentence}", file=sys.stderr)
    if found.status == POSSIBLE:
        print(shlex.join(found.options))
    return found.status


if __name__ == "__main__":
    sys.exit(main())
