"""powerinfer chat as people use it: on a terminal, with commands, a history and files."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from powerinfer_cpp.cli import main
from powerinfer_cpp.cli.suggest import closest
from powerinfer_cpp.cli.terminal.chat_commands import COMMANDS, Again, Commands, Ended
from powerinfer_cpp.cli.terminal.history import HistoryFile, history_path
from powerinfer_cpp.cli.terminal.talk import Talk, messages_text, read_messages
from powerinfer_cpp.core.sampling import Sampling
from terminal import ALT_ENTER, CTRL_C, CTRL_D, ENTER, UP, Terminal
from test_chat import CHATML

from powerinfer_cpp import Llama

PROGRAM = [sys.executable, "-m", "powerinfer_cpp.cli", "chat"]
READY = "> "


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("terminal"), CHATML)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("base"))


# ---- On a terminal ----


def saved(file: Path) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in json.loads(file.read_text())]


def test_a_chat(path: Path, tmp_path: Path) -> None:
    """Several lines, commands, files, a second answer, and the history of the next chat."""
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    line = [*PROGRAM, path, "-c", "256", "-n", "4", "-s", "1", "--temp", "5"]
    kept = tmp_path / "kept.json"
    with Terminal([*line, "--system", "Be kind."], env) as chat:
        chat.until(READY)
        chat.send("one" + ALT_ENTER + "two\\" + ENTER + "three" + ENTER)
        chat.until("tokens/s]")
        chat.until(READY)
        chat.send("/regn" + ENTER)
        chat.until("did you mean /regen?")
        chat.send(f"/save {tmp_path}/first.json" + ENTER)
        chat.until("2 messages written")
        chat.send("/regen" + ENTER)
        chat.until("tokens/s]")
        chat.until(READY)
        chat.send("/set temp 0" + ENTER)
        chat.until("temperature = 0.0")
        chat.send("/system Be brief." + ENTER)
        chat.send(f"/save {kept}" + ENTER)
        chat.until("2 messages written")
        # Ctrl-C drops what was typed. Without a prompt it would be a signal, and the terminal would
        # drop what follows.
        chat.until(READY)
        chat.send("never sent" + CTRL_C)
        chat.send("/reset" + ENTER + f"/load {kept}" + ENTER)
        chat.until("2 messages read")
        chat.until(READY)
        chat.send(CTRL_D)
        assert chat.end() == 0
    first, (told, asked, answer) = saved(tmp_path / "first.json"), saved(kept)
    assert told == ("system", "Be brief.") and first[0] == ("system", "Be kind.")
    assert asked == first[1] == ("user", "one\ntwo\nthree")
    assert answer[0] == "assistant" and answer != first[2]
    with Terminal(line, env) as chat:
        chat.until(READY)
        chat.send(UP * 9 + ENTER)
        chat.until("three")
        chat.until("tokens/s]")
        chat.until(READY)
        chat.send("/exit" + ENTER)
        assert chat.end() == 0


def test_ctrl_c_keeps_what_was_written(path: Path, tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    line = [*PROGRAM, path, "-c", "100000", "--ignore-eos", "--temp", "0", "--no-history"]
    with Terminal(line, env) as chat:
        chat.until(READY)
        chat.send("Hello" + ENTER)
        chat.until("Hello")
        chat.until("\n")
        while len(chat.shown.partition("Hello")[2]) < 400:
            assert chat._read(30)
        chat.send(CTRL_C)
        chat.until("tokens/s]")
        chat.until(READY)
        chat.send(f"/save {tmp_path}/kept" + ENTER)
        chat.until("2 messages written")
        chat.until(READY)
        chat.send(CTRL_D)
        assert chat.end() == 0
    assert len(saved(tmp_path / "kept")[1][1]) > 100
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("how", ["--simple-io", "dumb"])
def test_simple_terminals(path: Path, tmp_path: Path, how: str) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path), "TERM": "dumb" if how == "dumb" else "xterm"}
    more = [how] if how.startswith("--") else []
    with Terminal([*PROGRAM, path, "-c", "256", "-n", "4", *more], env) as chat:
        chat.until("> ")
        chat.send("one\\\n")
        chat.until(". ")
        chat.send("two\n")
        chat.until("> ")
        chat.send(f"/save {tmp_path}/kept\n")
        chat.until("2 messages written")
        chat.until("> ")
        chat.send("half" + CTRL_C)
        chat.until("> ")
        chat.send(CTRL_D)
        assert chat.end() == 0
        assert "\x1b" not in chat.shown
        assert ("tokens/s" in chat.shown) == (how == "dumb")
    assert saved(tmp_path / "kept")[0] == ("user", "one\ntwo")


def test_text_alone_on_stdout(path: Path, tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    line = [*PROGRAM, path, "-c", "256", "-n", "4", "--temp", "0"]
    out = tmp_path / "out"
    with out.open("wb") as file, Terminal(line, env, out=file.fileno()) as chat:
        chat.until(READY)
        chat.send("Hello" + ENTER)
        chat.until("tokens/s]")
        chat.until(READY)
        chat.send(CTRL_D)
        assert chat.end() == 0
    with Llama(path, n_ctx=256, verbose=False) as llm:
        want = llm.create_chat_completion(
            [{"role": "user", "content": "Hello"}], max_tokens=4, temperature=0
        )
    assert out.read_text() == want["choices"][0]["message"]["content"] + "\n"


# ---- Models without a template ----


def test_texts_of_a_model_without_a_template(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture
) -> None:
    typed = tmp_path / "typed"
    typed.write_text(f"the fox\n\nthe dog\n and\n/save {tmp_path}/kept\n")
    monkeypatch.setattr(sys, "stdin", typed.open())
    assert main(["chat", str(base), "-c", "256", "-n", "4", "--temp", "0"]) == 0
    out, err = capfdbinary.readouterr()
    assert b"messages written" in err and err.count(b"\n") == 1
    text, answers = "", []
    with Llama(base, n_ctx=256, verbose=False) as llm:
        for said in ("the fox", "", "\nthe dog", " and"):
            text += said
            answers.append(llm(text, max_tokens=4, temperature=0)["choices"][0]["text"])
            text += answers[-1]
    assert out.decode() == "".join(f"{answer}\n" for answer in answers)
    assert "".join(content for _, content in saved(tmp_path / "kept")) == text


def test_a_named_format_chats_with_such_a_model(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture
) -> None:
    typed = tmp_path / "typed"
    typed.write_text("the fox\n")
    monkeypatch.setattr(sys, "stdin", typed.open())
    line = ["chat", str(base), "-c", "256", "-n", "4", "--temp", "0", "--chat-format", "alpaca"]
    assert main(line) == 0
    with Llama(base, n_ctx=256, chat_format="alpaca", verbose=False) as llm:
        assert llm.chats_with == "alpaca"
        want = llm.create_chat_completion(
            [{"role": "user", "content": "the fox"}], max_tokens=4, temperature=0
        )
    assert capfdbinary.readouterr().out.decode() == want["choices"][0]["message"]["content"] + "\n"


def test_what_makes_the_prompts(path: Path, base: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Llama(path, verbose=False, vocab_only=True) as llm:
        assert llm.chats_with == "template"
    with Llama(base, verbose=False) as llm:
        assert llm.chats_with is None
        llm.create_chat_completion([{"role": "user", "content": "x"}], max_tokens=1)
        assert llm.chats_with is None
        assert [r.getMessage() for r in caplog.records if "has no chat template" in r.getMessage()]
        llm.set_chat_template(CHATML)
        assert llm.chats_with == "template"
    with Llama(base, verbose=False, vocab_only=True, chat_handler=print) as llm:
        assert llm.chats_with == "handler"


# ---- Commands ----


class Said:
    """Commands on a talk without a model, and what they tell."""

    def __init__(self, plain: bool = False):
        keywords = {**Sampling().keywords(), "max_tokens": -1}
        self.seeds: list[int] = []
        llm = SimpleNamespace(
            set_seed=self.seeds.append,
            _runtime=SimpleNamespace(samplers=SimpleNamespace(make=lambda *_: None)),
        )
        self.talk = Talk(llm, "", keywords, plain)
        self.told = ""
        self.commands = Commands(self.talk, self.tell)

    def tell(self, text: str) -> None:
        self.told += text

    def __call__(self, line: str) -> str:
        self.told = ""
        assert self.commands.run(line)
        return self.told


def test_what_is_a_command() -> None:
    commands = Said().commands
    for text in ("", "hello", " /exit", "/usr/bin is a folder", "/1", "/", "a /exit", "//exit"):
        assert not commands.run(text), text
    for line in ("/exit", "/exit ", "/QUIT", "/bye"):
        with pytest.raises(Ended):
            commands.run(line)
    for line, words in (
        ("/sav x", "did you mean /save?"),
        ("/rgen", "did you mean /regen?"),
        ("/xyzzy", "/help lists all"),
        ("/reset now", "takes nothing"),
        ("/save", "needs the name of a file"),
        ("/regen", "no message"),
    ):
        with pytest.raises(ValueError, match=words):
            commands.run(line)
    assert all(name in Said()("/help") for name in COMMANDS)


def test_lines_of_a_pipe_are_messages_unless_they_are_known_commands() -> None:
    said = Said()
    commands = Commands(said.talk, said.tell, typed=False)
    assert not commands.run("/sav x") and commands.run("/reset")
    with pytest.raises(ValueError, match="no message"):
        commands.run("/regen")


def test_settings() -> None:
    said = Said()
    assert "temperature = 0.8\n" in said("/set") and "seed = random" in said("/set")
    for line, name, value in (
        ("/set temperature 0.5", "temperature", 0.5),
        ("/set temp=1", "temperature", 1.0),
        ("/set top-k 7", "top_k", 7),
        ("/set --min-p = .1", "min_p", 0.1),
        ("/set n 12", "max_tokens", 12),
    ):
        assert said(line) == f"{name} = {value}\n" and said.talk.keywords[name] == value
    assert said("/set top_k") == "top_k = 7\n"
    said("/set seed 5")
    assert said.seeds == [5] and "seed = 5" in said("/set")
    for line, words in (
        ("/set temprature 1", "did you mean temperature?"),
        ("/set top_k x", "a whole number, not 'x'"),
        ("/set top_p nan", "a number, not 'nan'"),
        ("/set temp inf", "a number, not 'inf'"),
        ("/set seed -2", "out of range"),
        ("/set n 99999999999", "out of range"),
    ):
        with pytest.raises(ValueError, match=words):
            said.commands.run(line)


def test_the_system_message() -> None:
    said = Said()
    said("/system Be\nkind.")
    assert said("/system") == "Be\nkind.\n"
    said("/system none")
    assert said.talk.with_system() == []
    with pytest.raises(ValueError, match="chat template"):
        Said(plain=True).commands.run("/system x")


def test_regen_answers_the_last_message() -> None:
    said = Said()
    said.talk.say("Hello")
    said.talk.heard("Hi")
    for _ in range(2):
        with pytest.raises(Again):
            said.commands.run("/regen")
        assert [m["content"] for m in said.talk.messages] == ["Hello"]


@pytest.mark.parametrize(
    ("word", "known", "want"),
    [
        ("--sytem", ["--system", "--seed"], "--system"),
        ("--sys", ["--system-prompt", "--system"], "--system"),
        ("--TEMP", ["--temperature", "--temp"], "--temp"),
        ("--qqq", ["--system", "--seed"], None),
        ("-", ["--system"], None),
    ],
)
def test_proposals(word: str, known: list[str], want: str | None) -> None:
    assert closest(word, known) == want


# ---- Files ----

# Any text, also what stands for bytes that are no UTF-8.
TEXTS = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)


@settings(max_examples=30, deadline=None)
@given(TEXTS, st.lists(st.tuples(st.sampled_from(["user", "assistant"]), TEXTS), max_size=6))
def test_what_was_saved_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, system: str, said: list[tuple[str, str]]
) -> None:
    file = tmp_path_factory.getbasetemp() / "conversation.json"
    one, other = Said().talk, Said().talk
    one.system = system
    one.messages = [{"role": role, "content": text} for role, text in said]
    one.save(file)
    other.load(file)
    assert (other.system, other.messages) == (system, one.messages)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    other.save(file)
    assert read_messages(file) == one.with_system()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[" * 100000, "is not JSON"),
        (b"3", "no list of messages"),
        (b"{}", "no list of messages"),
        (b"[3]", "message 1 has not the role"),
        (b'[{"role": "user"}, {"role": "system"}]', "message 2 has not the role"),
        (b'[{"role": ["user"], "content": ""}]', "message 1 has not the role"),
        (b'[{"role": "user", "content": 3}]', "message 1: the content"),
    ],
)
def test_files_that_are_no_conversations(tmp_path: Path, data: bytes, words: str) -> None:
    """They are refused by name, are never overwritten, and the conversation stays."""
    file = tmp_path / "file"
    file.write_bytes(data)
    talk = Said().talk
    talk.say("Hello")
    with pytest.raises(ValueError, match=words) as error:
        talk.load(file)
    assert str(file) in str(error.value) and talk.text() == "Hello"
    with pytest.raises(ValueError, match="something else"):
        talk.save(file)
    assert file.read_bytes() == data and len(list(tmp_path.iterdir())) == 1


def test_places_that_are_no_files(tmp_path: Path) -> None:
    talk = Said().talk
    for place in (tmp_path, Path("/dev/zero")):
        for action in (talk.load, talk.save):
            with pytest.raises(ValueError, match=str(place)):
                action(place)
    for place in (tmp_path / "no" / "file", tmp_path / "file"):
        with pytest.raises(OSError):
            talk.load(place)
    with pytest.raises(OSError):
        talk.save(tmp_path / "no" / "file")
    link, target = tmp_path / "link", tmp_path / "target"
    target.write_bytes(messages_text([]))
    link.symlink_to(target)
    talk.say("Hello")
    talk.save(link)
    assert link.is_symlink() and len(read_messages(target)) == 1
    with pytest.raises(ValueError, match="system message, which needs"):
        told = tmp_path / "told"
        told.write_bytes(messages_text([{"role": "system", "content": "x"}]))
        Said(plain=True).talk.load(told)


def test_openais_parts_and_objects(tmp_path: Path) -> None:
    file = tmp_path / "file"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    file.write_text(json.dumps({"messages": [{"role": "user", "content": parts}]}))
    assert read_messages(file) == [{"role": "user", "content": "ab"}]


# ---- History ----


@settings(max_examples=20, deadline=None)
@given(st.lists(TEXTS, max_size=12))
def test_the_history_is_what_was_typed(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    file = tmp_path_factory.getbasetemp() / "some" / "history"
    file.unlink(missing_ok=True)
    for text in texts:
        HistoryFile(file, kept=4).add(text)
    assert HistoryFile(file, kept=4).texts() == texts[-4:]
    left = file.read_bytes().count(b"\n") if texts else 0
    assert left == (4 if len(texts) > 8 else len(texts))


def test_the_historys_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "state" / "history"
    history = HistoryFile(file)
    assert history.texts() == []
    history.add("one")
    history.add("x" * 100000)  # not kept
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.write_bytes(b'3\n\xff\n"half\n' + b"[" * 9999 + b"\n" + file.read_bytes())
    os.chmod(file, 0o644)
    history.add("two")
    assert history.texts() == ["one", "two"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_bytes(b'"long ago"\n' * 600000)
    assert set(history.texts()) == {"long ago"} and file.stat().st_size < 20000
    for place in (tmp_path, Path("/dev/full"), file / "below"):
        HistoryFile(place).add("lost")
        assert HistoryFile(place).texts() == []
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_path() == tmp_path / "powerinfer_cpp" / "chat_history"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert history_path() == Path("/home/somebody/.local/state/powerinfer_cpp/chat_history")
