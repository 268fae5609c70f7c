"""Files that ./run compiles together (CMake's PI_UNITY) share no local names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "group"),
    [("ggml", ""), ("powerinfer", ""), ("main", "")]
    + [("ggml_avx2", "formats"), ("ggml_avx2", "lanes")],  # all have these
)
def test_all_files_of_a_target_compile_as_one(
    root: Path, target: str, group: str, tmp_path: Path
) -> None:
    """As one, not by 16: which files meet must not depend on which others exist."""
    commands = subprocess.run(
        ["ninja", "-C", root / "build" / "cpu", "-t", "commands", target],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    joined = rf"-c (\S+/CMakeFiles/{target}\.dir/Unity/unity_{group}\S+)"
    units = [line for line in commands.splitlines() if re.search(joined, line)]
    assert units, "build/cpu was not made by ./run"
    found = [re.search(joined, line)[1] for line in units]
    whole = tmp_path / "whole.cpp"
    whole.write_text("".join(f'#include "{unit}"\n' for unit in found))
    options = units[0].split(" -MD ")[0]
    done = subprocess.run(
        f"{options} -Werror -fsyntax-only {whole}", shell=True, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
