"""The references that scripts made with llama.cpp: the scripts say the same today."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import golden, quiet
from powerinfer_cpp.convert import convert
from reference import relative_error

pytestmark = pytest.mark.peer("llama_cpp")

SCRIPTS = {
    "encoder_errors": ["encoder_errors.py"],
    "rope_logits": ["rope_logits.py", "tiny.gguf"],
    "sampler_counts": ["sampler_counts.py"],
    "dry_penalties": ["sampler_counts.py", "--dry"],
    "mix_types": ["mix_types.py"],
}


def same(found: Any, want: Any) -> bool:
    """With floats as in test_overrides.py: sums have another order on other processors."""
    if isinstance(want, dict):
        return found.keys() == want.keys() and all(same(found[key], want[key]) for key in want)
    if isinstance(want, list) and isinstance(want[0], float):
        return len(found) == len(want) and relative_error(np.array(found), np.array(want)) < 2e-5
    return found == want


@pytest.mark.parametrize("name", SCRIPTS)
def test_references(name: str, root: Path, tmp_path: Path) -> None:
    if name == "rope_logits":
        folder = golden("llama-silu-tied", tmp_path / "model")
        convert(folder, outfile=tmp_path / "tiny.gguf", outtype="f32", log=quiet)
    script, *arguments = SCRIPTS[name]
    command = [sys.executable, str(root / "scripts" / script), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    want = json.loads((root / "tests" / "golden" / f"{name}.json").read_text())
    assert same(json.loads(done.stdout), want)
