"""scripts/find_cuda.py: which GPUs and compilers ./run builds with."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import find_cuda
from find_cuda import IMPOSSIBLE, PACKAGES_NEEDED, POSSIBLE, Card, Machine, answer

ADA = Machine([Card("NVIDIA Test 40", (8, 9))], "580.65.06")


def nvcc(folder: Path, release: str, *computes: int) -> Path:
    """A compiler of a release in folder/bin."""
    path = folder / "bin" / "nvcc"
    path.parent.mkdir(parents=True)
    listed = "\n".join(f"echo compute_{n}" for n in computes)
    path.write_text(
        f'#!/bin/sh\ncase "$1" in\n--version) echo "tools, release {release}, V{release}.1" ;;\n'
        f"*) {listed or 'exit 1'} ;;\nesac\n"
    )
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def only_these_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a toolkit of this machine nor packages of this environment are found."""
    real = find_cuda.places

    def places(environment: dict[str, str]) -> list[str]:
        return [path for path in real(environment) if path.startswith(str(tmp_path))]

    monkeypatch.setattr(find_cuda, "places", places)


def test_the_first_compiler_that_serves(tmp_path: Path) -> None:
    old = nvcc(tmp_path / "old", "11.8", 75, 89)
    narrow = nvcc(tmp_path / "narrow", "12.4", 75, 86)
    good = nvcc(tmp_path / "good", "12.9", 75, 89)
    environment = {"CUDACXX": str(old), "CUDA_HOME": str(tmp_path / "narrow")}
    environment |= {"CUDA_PATH": str(tmp_path / "good"), "PATH": ""}
    found = answer(ADA, environment)
    assert found.status == POSSIBLE
    assert found.options == [
        "-DGGML_CUDA=ON",
        f"-DCMAKE_CUDA_COMPILER={good}",
        "-DCMAKE_CUDA_ARCHITECTURES=89-real",
    ]
    del environment["CUDA_PATH"]
    found = answer(ADA, environment)
    assert (found.status, found.options) == (PACKAGES_NEEDED, [])
    assert f"nvcc 11.8 in {old.parent} is too old: 12 is the least" in found.sentence
    assert f"nvcc 12.4 in {narrow.parent} does not know compute capability 8.9" in found.sentence
    found = answer(ADA, {"PATH": os.pathsep.join(["/nowhere", str(good.parent)])})
    assert found.status == POSSIBLE and f"by nvcc 12.9 in {good.parent}" in found.sentence


def test_cards_of_several_kinds(tmp_path: Path) -> None:
    good = nvcc(tmp_path / "good", "13.0")  # does not say what it compiles for
    kinds = ((7, 5), (6, 1), (12, 0), (7, 5))
    cards = [Card(f"card {i}", compute) for i, compute in enumerate(kinds)]
    found = answer(Machine(cards, ""), {"CUDACXX": str(good)})
    assert found.options[-1] == "-DCMAKE_CUDA_ARCHITECTURES=75-real;120-real"
    found = answer(Machine(cards[1:2], ""), {"CUDACXX": str(good)})
    assert found.status == IMPOSSIBLE
    assert found.sentence == (
        "found card 1 (compute capability 6.1), but 7.5 is the least compute capability"
    )
    found = answer(Machine([], "580.1"), {"CUDACXX": str(good)})
    assert found.status == POSSIBLE and len(found.options) == 2
    assert found.sentence.startswith("found an NVIDIA driver: ")


def test_an_old_driver(tmp_path: Path) -> None:
    new = nvcc(tmp_path / "new", "13.0", 75, 89)
    old = Machine(ADA.cards, "535.183.01")
    found = answer(old, {"CUDACXX": str(new)})
    assert found.status == IMPOSSIBLE
    assert "CUDA 13 needs driver 580 or newer, and this one is 535.183.01" in found.sentence
    found = answer(old, {})
    assert found.status == IMPOSSIBLE
    assert "there is no nvcc, and nvcc's packages do not serve: CUDA 13 needs" in found.sentence
    nvcc(tmp_path / "older", "12.2", 75, 89)
    found = answer(old, {"CUDACXX": str(new), "CUDA_HOME": str(tmp_path / "older")})
    assert found.status == POSSIBLE and "by nvcc 12.2" in found.sentence


def test_packages_that_do_not_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer(ADA, {}).status == PACKAGES_NEEDED
    nvcc(tmp_path / "site-packages", "13.0", 75)
    found = answer(ADA, {"CUDA_HOME": str(tmp_path / "site-packages")})
    assert found.status == IMPOSSIBLE  # they are there already


def test_what_nvidia_smi_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    proc = tmp_path / "version"
    proc.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6\n")
    smi.write_text(
        "#!/bin/sh\necho 'name, compute_cap, driver_version'\n"
        "echo 'NVIDIA A, 8.6, 550.1'\necho 'NVIDIA B, 12.0, 550.1'\necho 'C, [N/A], 550.1'\n"
    )
    smi.chmod(0o755)
    cards = [Card("NVIDIA A", (8, 6)), Card("NVIDIA B", (12, 0))]
    assert find_cuda.machine(proc) == Machine(cards, "550.1")
    smi.write_text("#!/bin/sh\necho 'Field \"compute_cap\" is not a valid field'; exit 2\n")
    assert find_cuda.machine(proc) == Machine([], "535.54.03")
    assert find_cuda.machine(tmp_path / "none") == Machine([], "")


def test_the_extra_has_these_packages(root: Path) -> None:
    (line,) = [x for x in (root / "pyproject.toml").read_text().splitlines() if x[:6] == "cuda ="]
    assert line == "cuda = [" + ", ".join(f'"{name}"' for name in find_cuda.PACKAGES) + "]"
