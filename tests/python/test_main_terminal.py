"""./main on a terminal: it chats where the model has a chat template, by `powerinfer chat` where
that is installed beside it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import CTRL_C, CTRL_D, ENTER, UP, Terminal
from test_main_chat import TEMPLATES, with_template
from test_options_page import ROWS

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
    line = [main_path, "-m", instruct, "-c", "100000", "--ignore-eos", "--simple-io"]
    with Terminal(line) as terminal:
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
    with Terminal([main_path, "-m", unknown, "-n", "3", "--simple-io"]) as terminal:
        assert terminal.end() == 0
        assert "prompt eval time" in terminal.shown and "`powerinfer chat`" in terminal.shown
    # Options of a chat ask for one.
    with Terminal([main_path, "-m", model_path, "--system", "x"]) as terminal:
        assert terminal.end() == 1 and "needs a chat template" in terminal.shown
    line = [main_path, "-m", model_path, "--chat-template", "chatml", "--simple-io"]
    with Terminal(line) as terminal:
        terminal.until(BY_ITSELF)
        terminal.until("> ")
        terminal.send(CTRL_D)
        assert terminal.end() == 0


# ---- Where `powerinfer` is beside it ----

CHATS = "powerinfer was run with: "
PARSER = Path(__file__).resolve().parents[2] / "powerinfer_cpp/programs/options/parse.cpp"


def installed(main_path: Path, folder: Path, script: str) -> Path:
    """./main as an installation has it, and its `powerinfer`."""
    program = folder / "lib/python3.11/site-packages/powerinfer_cpp/bin/main"
    program.parent.mkdir(parents=True)
    shutil.copy(main_path, program)
    (folder / "bin").mkdir()
    (folder / "bin/powerinfer").write_text(script)
    (folder / "bin/powerinfer").chmod(0o755)
    return program


@pytest.fixture(scope="module")
def beside(main_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """./main with a `powerinfer` that tells its words."""
    script = f'#!/bin/sh\nprintf "{CHATS}"; printf "<%s>" "$@"; echo\n'
    return installed(main_path, tmp_path_factory.mktemp("beside"), script)


def test_it_becomes_powerinfer_chat(beside: Path, instruct: Path) -> None:
    given = ["-n", "3", "--top_k", "7", "--temp=0", "-sys", "-be kind", "-cnv", "-ngl", "all"]
    given += ["--lora-scaled", "a", "2", "-s", "-1", "-co"]
    want = ["chat", f"--model={instruct}", "--predict=3", "--top-k=7", "--temp=0"]
    want += [
        "--system-prompt=-be kind",
        "-cnv",
        "--gpu-layers=all",
        "--lora-scaled=a:2",
        "--seed=-1",
    ]
    with Terminal([beside, "-m", instruct, *given]) as terminal:
        assert terminal.end() == 0
        assert terminal.shown == CHATS + "".join(f"<{word}>" for word in [*want, "-co"]) + "\r\n"


def test_templates_that_only_powerinfer_knows(
    beside: Path, model_path: Path, tmp_path: Path
) -> None:
    unknown = with_template(model_path, tmp_path / "unknown.gguf", "{{ messages[0].content }}")
    for more in ([], ["-cnv"]):
        with Terminal([beside, "-m", unknown, *more]) as terminal:
            assert terminal.end() == 0 and terminal.shown.startswith(CHATS)
    with Terminal([beside, "-m", model_path, "-n", "3"]) as terminal:
        assert terminal.end() == 0 and CHATS not in terminal.shown


@pytest.mark.parametrize("more", [["--simple-io"], ["-lv", "1"], ["-s", "2147483648"]])
def test_it_stays(beside: Path, instruct: Path, more: list[str]) -> None:
    with Terminal([beside, "-m", instruct, *more]) as terminal:
        terminal.until(BY_ITSELF)
        terminal.until("> ")
        terminal.send(CTRL_D)
        assert terminal.end() == 0 and CHATS not in terminal.shown


@pytest.mark.parametrize("more", [["-p", "Once"], ["-no-cnv"], ["-i", "-n", "1"]])
def test_it_stays_where_there_is_no_chat(beside: Path, instruct: Path, more: list[str]) -> None:
    with Terminal([beside, "-m", instruct, "-n", "3", *more]) as terminal:
        terminal.send(CTRL_D)
        assert terminal.end() == 0 and CHATS not in terminal.shown


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_it_stays_unless_all_are_terminals(
    beside: Path, instruct: Path, stream: str, tmp_path: Path
) -> None:
    to = {
        "stdin": "</dev/null",
        "stdout": f">{tmp_path}/out",
        "stderr": f"2>{tmp_path}/err",
    }
    line = f"'{beside}' -m '{instruct}' -n 3 -cnv {to[stream]}"
    with Terminal(["sh", "-c", line]) as terminal:
        terminal.send(CTRL_D)
        assert terminal.end() == 0
        written = "".join(file.read_text() for file in tmp_path.iterdir())
        assert CHATS not in terminal.shown + written


def test_it_stays_without_one(beside: Path, instruct: Path, tmp_path: Path) -> None:
    """Also beside one that does not start: its interpreter has gone with its folder."""
    broken = installed(beside, tmp_path / "broken", "#!/no/such/python\n")
    elsewhere = tmp_path / "bin" / "main"
    elsewhere.parent.mkdir()
    shutil.copy(beside, elsewhere)
    for program in (broken, elsewhere):
        with Terminal([program, "-m", instruct]) as terminal:
            terminal.until(BY_ITSELF)
            terminal.send(CTRL_D)
            assert terminal.end() == 0


def test_the_chat_that_it_becomes(main_path: Path, instruct: Path, tmp_path: Path) -> None:
    """With commands and a history."""
    script = f'#!/bin/sh\nexec "{sys.executable}" -m powerinfer_cpp.cli "$@"\n'
    program = installed(main_path, tmp_path, script)
    line = [program, "-m", instruct, "-n", "4", "--temp", "0", "-c", "256"]
    with Terminal(line, {"XDG_STATE_HOME": str(tmp_path)}) as terminal:
        terminal.until("> ")
        terminal.send("/set top_k" + ENTER)
        terminal.until("top_k = 40")
        terminal.until("> ")
        terminal.send(UP + ENTER)
        terminal.until("top_k = 40")
        terminal.until("> ")
        terminal.send(CTRL_D)
        assert terminal.end() == 0


def test_options_that_powerinfer_chat_has_not() -> None:
    """parse.cpp lists them, so that the chat stays with ./main."""
    table = re.search(r'of_main =((?:\s+"[^"]*")+);', PARSER.read_text())[1]
    ours = set("".join(re.findall(r'"([^"]*)"', table)).split(", "))
    rows = [row for row in ROWS if row.main != "no" and row.said_of("chat") == "no"]
    assert ours == {name for row in rows for name in row.names}
