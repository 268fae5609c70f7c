"""The faults that the tests must find: their patches apply, and say what they break and what finds
it. scripts/faults.py applies them and runs the tests."""

from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
AREAS = {
    "kernels",
    "quants",
    "attention",
    "sampler",
    "tokenizers",
    "GGUF reader",
    "session and KV pages",
    "storage",
    "device code",
    "converter",
    "server",
    "scheduler",
    "Python surface",
}


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("faults", ROOT / "scripts" / "faults.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclasses
    spec.loader.exec_module(module)
    return module


tool = load()
FAULTS = tool.faults(ROOT / "tests" / "faults")


def git(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)


def test_they_are_many_and_of_all_areas() -> None:
    assert len(FAULTS) >= 30 and {fault.area for fault in FAULTS} == AREAS
    assert 3 * sum(bool(fault.undoes) for fault in FAULTS) >= len(FAULTS)
    numbers = [fault.name.split("-")[0] for fault in FAULTS]
    assert numbers == [f"{i:02}" for i in range(1, len(FAULTS) + 1)]
    assert len({fault.what for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault(fault: Any) -> None:
    names = [
        line.removeprefix("diff --git a/").split(" b/")[0]
        for line in fault.path.read_text().splitlines()
        if line.startswith("diff --git ")
    ]
    product = ("ggml/", "powerinfer_cpp/", "python/", "convert.py")
    assert names and all(name.startswith(product) for name in names)
    for test in fault.tests:
        path, _, function = test.partition("[")[0].partition("::")
        tree = ast.parse((ROOT / path).read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        _, _, program = test.partition("::test_program[")
        assert not program or list(ROOT.glob(f"tests/*/{program[:-1]}.c*"))


@pytest.mark.skipif(not shutil.which("git"), reason="no tool to apply patches: git")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_patch_applies(fault: Any) -> None:
    done = git("apply", "--check", fault.path)
    assert done.returncode == 0, done.stderr


def test_what_a_fault_undoes_is_a_commit() -> None:
    if (
        not (ROOT / ".git").exists()
        or git("rev-parse", "--is-shallow-repository").stdout != "false\n"
    ):
        pytest.skip("no tool to look at this checkout's history")
    for fault in FAULTS:
        if fault.undoes:
            name, _, subject = fault.undoes.partition(" ")
            assert git("log", "-1", "--format=%s", name).stdout.strip() == subject
