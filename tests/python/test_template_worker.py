"""The process that renders templates: its limits, its end, and that callers continue."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

import hostile
import pytest
from circles import pick, third
from powerinfer_cpp.text import template, worker
from powerinfer_cpp.text.chat import FORMATS, named_format
from powerinfer_cpp.text.template import ChatTemplate, TemplateError

HERE = Path(__file__).parent
HELLO = [{"role": "user", "content": "Hello"}]
ONE_EACH = [f"{family}-0" for family in hostile.TEMPLATES]
FOR_EVER = hostile.TEMPLATES["compared"][0]


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def check(names: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "hostile.py"), "templates", *names],
        capture_output=True,
        text=True,
        timeout=60 + 8 * len(names),  # do not wait forever
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    *lines, ours, theirs = map(json.loads, done.stdout.splitlines())
    assert [line[0] for line in lines] == names
    for name, seconds, came_to, again in lines:
        assert came_to.startswith("ValueError: the chat template") and again, (name, came_to)
        assert seconds < 3, (name, seconds)
    assert ours + theirs < 512 << 20


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="reads Linux's limits")
@pytest.mark.parametrize("kind", ["templates", "grammars"])
def test_it_writes_no_files_and_starts_nothing(kind: str) -> None:
    if kind == "grammars":
        pytest.importorskip("llguidance")
    packages = {"templates": template.WORKER[1], "grammars": ("llguidance",)}
    made = worker.Worker(kind, packages[kind])
    try:
        made._start()  # a request might be its last, if it takes much memory
        text = Path(f"/proc/{made._process.pid}/limits").read_text()
    finally:
        made.close()
    limits = {line[:26].strip(): line[26:].split()[:2] for line in text.splitlines()[1:]}
    assert limits["Max file size"] == limits["Max core file size"] == ["0", "0"]
    # Grammars are tried in a thread, which has a stack of its own.
    assert (limits["Max processes"] == ["0", "0"]) == (kind == "templates")


@pytest.mark.xdist_group("timed")
def test_hostile_templates() -> None:
    check(pick(ONE_EACH[::3], ONE_EACH))


@pytest.mark.xdist_group("timed")
@pytest.mark.slow
def test_every_hostile_template() -> None:
    names = list(hostile.templates())
    assert len(names) >= 61
    check(third(name for name in names if name not in ONE_EACH))


@pytest.mark.parametrize(
    "text",
    ["", "Hello", "\u20ac \U0001f600 \x00 \r\n \x7f", "\ud800 \udfff", "'\"\\{{ }} {% %} {user}"],
)
def test_texts_come_back_as_they_are(text: str) -> None:
    made = ChatTemplate("{{ bos_token }}{{ messages[0].content }}|{{ more.a[1] }}", text)
    more = MappingProxyType({"a": (1, text)})
    assert made.render([{"role": "user", "content": text}], more=more) == f"{text}{text}|{text}"


def test_what_is_no_json() -> None:
    cyclic: list = []
    cyclic.append(cyclic)
    for more in (object(), {1, 2}, b"x", cyclic):
        with pytest.raises(TemplateError, match="only what JSON can"):
            ChatTemplate("x").render(HELLO, more=more)
    assert ChatTemplate("{{ messages[0].content }}").render(HELLO) == "Hello"


def test_long_prompts() -> None:
    made = ChatTemplate("{{ messages[0].content }}")
    text = "\u20ac" * (8 << 20)
    assert made.render([{"role": "user", "content": text}]) == text
    assert made.render(HELLO) == "Hello"


def test_threads_take_turns() -> None:
    made = [ChatTemplate(f"{i} {{{{ messages[0].content }}}}") for i in range(20)]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda i: made[i % 20].render(HELLO), range(400)))
    assert got == [f"{i % 20} Hello" for i in range(400)]


def test_a_worker_that_died_is_replaced() -> None:
    made = ChatTemplate("{{ messages[0].content }}")
    for _ in range(2):
        process = template._worker._process
        process.kill()
        while process.poll() is None:
            time.sleep(0.01)
        assert made.render(HELLO) == "Hello"
    template._worker.close()
    assert made.render(HELLO) == "Hello"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_forks_have_workers_of_their_own() -> None:
    # From Python 3.12 on, fork() beside other threads is warned about; here it is the point.
    text = f"""
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from powerinfer_cpp.text.template import ChatTemplate
made = ChatTemplate("{{{{ messages[0].content }}}}")
child = os.fork()
for _ in range(200):
    assert made.render({HELLO}) == "Hello"
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run(script(text), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr


@pytest.mark.xdist_group("timed")
def test_ctrl_c() -> None:
    """It ends the rendering at once; the template's process prints nothing and ends."""
    text = f"""
import time
from powerinfer_cpp.text.template import ChatTemplate, _worker
good, bad = ChatTemplate("{{{{ messages[0].content }}}}"), ChatTemplate({FOR_EVER!r})
process = _worker._process
print("ready", flush=True)
try:
    bad.render({HELLO})
except KeyboardInterrupt:
    print(time.monotonic(), process.poll() is not None, good.render({HELLO}))
"""
    with subprocess.Popen(
        script(text),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.5)
        start = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does
        out, err = process.communicate(timeout=20)
    when, gone, again = out.split()
    assert (gone, again, err) == ("True", "Hello", "")
    assert float(when) - start < 1


@pytest.mark.parametrize("at", [1, 2, 3])
def test_ctrl_c_leaves_no_reply_behind(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt at the start, after it, or at a request; the next request gets its own reply."""
    tried = worker.Worker(*template.WORKER)
    exchange, calls = tried._exchange, []

    def interrupted(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == at:
            raise KeyboardInterrupt
        return exchange(*arguments)

    monkeypatch.setattr(tried, "_exchange", interrupted)
    for i in range(3):
        try:
            assert tried.ask(source=f"{i}", names={}) == f"{i}"
        except KeyboardInterrupt:
            assert len(calls) == at
    assert len(calls) >= 4
    tried.close()


@pytest.mark.xdist_group("timed")
@pytest.mark.parametrize("busy", [False, True])
def test_the_worker_ends_with_its_caller(busy: bool) -> None:
    text = f"""
import os, signal, threading, time
from powerinfer_cpp.text.template import ChatTemplate, _worker
made = ChatTemplate({FOR_EVER if busy else "x"!r})
print(_worker._process.pid, flush=True)
threading.Thread(target=made.render, args=({HELLO},)).start()
time.sleep(0.5)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(script(text), stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    end = time.monotonic() + 60  # 2 s of processor time, on a busy machine
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{int(done.stdout)}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":  # it may not be reaped
            return
        time.sleep(0.05)
    pytest.fail("the worker goes on")


@pytest.mark.parametrize("interpreter", [None, "", "/no/such/python", "/bin/true", "/bin/cat"])
def test_without_an_interpreter(interpreter: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "_worker", worker.Worker(*template.WORKER))
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", interpreter)
    with pytest.raises(TemplateError, match=r"needs a Python interpreter .*chat_format") as error:
        ChatTemplate("x")
    assert "\n" not in str(error.value)
    multiprocessing.set_executable(sys.executable)
    assert ChatTemplate("x").render(HELLO) == "x"


def test_a_frozen_program_does_not_start_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "_worker", worker.Worker(*template.WORKER))
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(TemplateError, match="is not a Python interpreter"):
        ChatTemplate("x")


@pytest.mark.parametrize("name", [n for n, form in FORMATS.items() if form.default_system is None])
def test_fields_in_messages_are_text(name: str) -> None:
    """{user} in a system text is not replaced by the user's text, nor the other way round."""
    texts = ["S {user} {system} {0} %s", "U {system} {user} {} %d"]

    def prompt(system: str, user: str) -> str:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return named_format(name)(messages).text

    assert prompt(*texts) == prompt("first", "second").replace("first", texts[0]).replace(
        "second", texts[1]
    )
