"""The commands of README.md and docs/try-it.md, in their order, in a fresh clone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What ./run has done before, and would take minutes to do again; and this run of the tests.
LEFT_OUT = ("python3 -m venv .venv\n", ".venv/bin/pip install .\n", "./run test\n")
# What the commands are to leave behind.
MADE = "stories.txt model.gguf dense.gguf neurons.gguf profiled.gguf predicted.gguf placed.gguf"
MADE += " placement.png smaller.gguf"


def blocks(root: Path) -> list[tuple[str, str]]:
    """Language and text of each code block."""
    pages = ("README.md", "docs/try-it.md")
    found = [block for page in pages for block in BLOCK.findall((root / page).read_text())]
    assert {language for language, _ in found} == {"", "python"}
    for line in LEFT_OUT:
        assert sum(line in text for _, text in found) == 1
    return [(name, re.sub("|".join(map(re.escape, LEFT_OUT)), "", text)) for name, text in found]


@pytest.mark.slow
def test_every_command_works_as_written(root: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", root, clone], check=True)
    # What ./run made for this checkout serves the clone, too, as long as no source is newer.
    venv = Path(sys.prefix)
    if any(stamp.stat().st_size for stamp in venv.glob("installed*")):
        for path in clone.rglob("*"):
            os.utime(path, (0, 0), follow_symlinks=False)
        (clone / ".venv").symlink_to(venv)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for language, text in blocks(root):
        python = str(clone / ".venv" / "bin" / "python")
        line = [python, "-c"] if language else ["bash", "-euo", "pipefail", "-c"]
        done = subprocess.run(
            [*line, text],
            cwd=clone,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",  # a model with random weights writes any bytes
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, text
    for name in MADE.split():
        assert (clone / name).stat().st_size > 0, name
