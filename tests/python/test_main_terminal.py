"""./main on a terminal: it chats by itself where the model has a chat template that it knows."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from terminal import CTRL_C, CTRL_D, Terminal
from test_main_chat import TEMPLATES, with_template

BY_ITSELF = "main: chats, since the model has a chat template"


@pytest.fixture(scope="module")
def instruct(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("terminal")
    return with_template(model_path, folder / "instruct.gguf", TEMPLATES["qwen2"])


def test_it_chats(main_path: Path, instruct: Path) -> None:
    line = [main_path, "-m", instruct, "-n", "5", "--temp", "0", "-sys", "Be kind.", "-lv", "4"]
    with Terminal(line) as terminal:
        terminal.until(BY_ITSELF)
        terminal.until("> ")
        terminal.send("Hello\n")
        first = terminal.until("> ")
        terminal.send("And?\n")
        second = terminal.until("> ")
        assert first.count("tokens read:") == second.count("tokens read:") == 1
        terminal.send(CTRL_D)
        assert terminal.end() == 0
    piped = [*line, "-cnv"]
    want = subprocess.run(piped, input=b"Hello\nAnd?\n", capture_output=True, check=True)
    for answer, shown in zip(want.stdout.decode().splitlines(), (first, second), strict=True):
        assert answer in shown.replace("\r\n", "\n")


def test_ctrl_c_stops_the_answer(main_path: Path, instruct: Path) -> None:
    with Terminal([main_path, "-m", instruct, "-c", "100000", "--ignore-eos"]) as terminal:
        terminal.until("> ")
        terminal.send("Once upon a time\n")
        terminal.until("Once upon a time")
        terminal.until(" ")
        terminal.send(CTRL_C)
        terminal.until("> ")
        terminal.send(CTRL_D)
        assert terminal.end() == 0


@pytest.mark.parametrize(
    "options", [["-p", "Once"], ["-p", ""], ["-no-cnv"], ["-cnv", "-no-cnv"], ["-f", os.devnull]]
)
def test_it_writes_what_the_options_say(
    main_path: Path, instruct: Path, options: list[str]
) -> None:
    with Terminal([main_path, "-m", instruct, "-n", "3", *options]) as terminal:
        assert terminal.end() == 0
        assert "prompt eval time" in terminal.shown and "> " not in terminal.shown
        assert "chats" not in terminal.shown


def test_only_on_a_terminal(main_path: Path, instruct: Path, tmp_path: Path) -> None:
    """Where stdin or stdout is something else, a text is continued as before."""
    line = [main_path, "-m", instruct, "-n", "3"]
    done = subprocess.run(line, input=b"Once", capture_output=True, check=True, timeout=60)
    assert done.stdout.startswith(b"Once") and b"chats" not in done.stderr
    with (tmp_path / "out").open("wb") as out, Terminal(line, out=out.fileno()) as terminal:
        assert terminal.end() == 0
        assert "chats" not in terminal.shown and "> " not in terminal.shown
    refused = subprocess.run([*line, "-sys", "x"], input=b"", capture_output=True, timeout=60)
    assert refused.returncode == 2 and b"needs -cnv" in refused.stderr


def test_without_a_known_template(main_path: Path, model_path: Path, tmp_path: Path) -> None:
    with Terminal([main_path, "-m", model_path, "-n", "3"]) as terminal:
        assert terminal.end() == 0
        assert "prompt eval time" in terminal.shown and "template" not in terminal.shown
    unknown = with_template(model_path, tmp_path / "unknown.gguf", "{{ messages[0].content }}")
    with Terminal([main_path, "-m", unknown, "-n", "3"]) as terminal:
        assert terminal.end() == 0
        assert "prompt eval time" in terminal.shown and "`powerinfer chat`" in terminal.shown
    # Options of a chat ask for one.
    with Terminal([main_path, "-m", model_path, "--system", "x"]) as terminal:
        assert terminal.end() == 1 and "needs a chat template" in terminal.shown
    with Terminal([main_path, "-m", model_path, "--chat-template", "chatml"]) as terminal:
        terminal.until(BY_ITSELF)
        terminal.until("> ")
        terminal.send(CTRL_D)
        assert terminal.end() == 0
