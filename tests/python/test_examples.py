"""The programs in examples/ run as they are, and say what they promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# What each prints, as a pattern for all of it.
SAYS = {
    "chat.py": r"> Tell me of a cat\.\n.+\((\d+) of \1 tokens.+> And then\?\n.+computed\)\n",
    "complete.py": r".{40}.+'completion_tokens': 40, .+ length\n",
    "drafts.py": r"without drafts: 59 tokens.+\nwith drafts: 59 tokens.+\nthe same text\n",
    "embeddings.py": r"(0\.\d{3}  [A-Z].+\n){3}",
    "grammar_json.py": r"\{'hero': ['\"].*, 'animal': '(cat|dog|bear)', 'age': \d{1,2}\}\n",
    "logprobs.py": r"( -\d\.\d\d per token: .+\n){3}most likely next: \{.+\}\n",
    "profile_activations.py": r"(layer \d: +\d+\.\d% of 1024 neurons fire, \d+ never did\n){4}",
    "server_client.py": r"serving .+\n.{40}.+\n",
    "stream.py": r".{100}.+\n59 tokens, \d+ a second; \d+% of neurons fired\n",
}


def test_every_example_is_tested_and_short() -> None:
    files = sorted(EXAMPLES.glob("*.py"))
    assert [file.name for file in files] == sorted(SAYS)
    for file in files:
        assert len(file.read_text().splitlines()) < 40, file


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.peer("openai")) if "server" in n else n for n in SAYS],
)
def test_examples(name: str, model_path: Path) -> None:
    line = [sys.executable, EXAMPLES / name]
    done = subprocess.run(line, capture_output=True, errors="replace", timeout=60)
    known = ("has no chat template", "as memory allows")
    says = [text for text in done.stderr.splitlines() if not any(word in text for word in known)]
    assert (done.returncode, says) == (0, [])
    assert re.fullmatch(SAYS[name], done.stdout, re.DOTALL), done.stdout


def test_an_example_with_another_model(tmp_path: Path, model_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.symlink_to(model_path)
    runs = [
        subprocess.run([sys.executable, EXAMPLES / "complete.py", *more], capture_output=True)
        for more in ([], [other])
    ]
    assert runs[0].stdout == runs[1].stdout and runs[0].returncode == 0
