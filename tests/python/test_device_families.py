"""Models of all families on a device: on_simt_families.py in a process with the build that it
needs, a part in each circle. And: no operator of a device is without a model that needs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import device_families
import pytest
from test_docs import cells

CASES = Path(__file__).with_name("on_simt_families.py")


def passes(simt_python: dict[str, str], *tests: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--nightly"]
        + ["-n", "0", "-q", *(f"{CASES}::{test}" for test in tests)],
        env=simt_python,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr


def test_some_families(simt_python: dict[str, str]) -> None:
    passes(simt_python, "test_some")


@pytest.mark.slow
def test_a_model_for_each_operator(simt_python: dict[str, str]) -> None:
    passes(simt_python, "test_operators", "test_states", "test_the_table_of_families")


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_all_families(simt_python: dict[str, str]) -> None:
    passes(simt_python, "test_all", "test_models_have_their_operators")


def test_every_operator_has_a_model(root: Path) -> None:
    names = (root / "ggml" / "include" / "ggml" / "device_ops.inc").read_text()
    of_device = set(re.findall(r"^DEVICE_OP\((\w+)", names, re.MULTILINE))
    assert set(device_families.OPERATORS) == of_device
    assert set(re.findall(r"`(\w+)`", " ".join(cells("gpu.md", "operator")))) == of_device
    models = {*device_families.of_operators(), *device_families.STATES.values()}
    assert models <= set(device_families.everything())
    assert {path.name for path in (root / "tests").rglob("*.*")} >= device_families.TESTS


@pytest.mark.shared
def test_nearly_all_files_are_wholly_on_a_device() -> None:
    """Of the files that llama.cpp's converter wrote."""
    files = device_families.gguf2()
    assert len([name for name in files if name not in device_families.KEPT]) >= 0.9 * len(files)
