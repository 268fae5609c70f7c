"""The package on a device: tests of on_simt.py, in a process with the build that they need."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("on_simt.py")
NAMES = [
    node.name
    for node in ast.parse(CASES.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_on_simt(simt_python: dict[str, str], name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"{CASES}::{name}"],
        env=simt_python,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
