"""The package on a device: tests of on_simt*.py, in a process with the build that they need."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

CASES = [Path(__file__).with_name(name) for name in ("on_simt.py", "on_simt_mixtures.py")]
TESTS = [
    f"{cases.name}::{node.name}"
    for cases in CASES
    for node in ast.parse(cases.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
]


@pytest.mark.slow
@pytest.mark.parametrize("test", TESTS)
def test_on_simt(simt_python: dict[str, str], test: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(CASES[0].with_name(test))],
        env=simt_python,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
