"""Hostile grammars: each is refused or used within its limits, and the caller continues."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import hostile
import pytest
import tiny
from circles import pick

from powerinfer_cpp import LlamaGrammar

HERE = Path(__file__).parent


@pytest.mark.xdist_group("timed")
def test_hostile_grammars(tmp_path: Path) -> None:
    every = list(hostile.GRAMMARS)
    names = pick(every[::3], every)
    assert len(every) >= 30
    done = subprocess.run(
        [sys.executable, str(HERE / "hostile.py"), "grammars", str(tiny.make(tmp_path)), *names],
        capture_output=True,
        text=True,
        timeout=60 + 8 * len(names),  # do not wait forever
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    *lines, ours, theirs = map(json.loads, done.stdout.splitlines())
    assert [line[0] for line in lines] == names
    for name, seconds, came_to, again in lines:
        # Many are huge but harmless: they may be used for the requested 64 tokens.
        assert came_to.startswith(("ValueError: ", "a text of ")) and again, (name, came_to)
        assert seconds < 3, (name, seconds)
    refused = [name for name, _, came_to, _ in lines if came_to.startswith("ValueError: ")]
    assert 4 * len(refused) >= len(names)
    assert ours + theirs < 512 << 20


@pytest.mark.xdist_group("timed")  # what takes too long is refused
def test_large_grammars_that_are_fine() -> None:
    rules = "".join(f'r{i} ::= "x" r{i + 1} | "b"\n' for i in range(200))
    LlamaGrammar.from_string(f'root ::= r0\n{rules}r200 ::= "a"\n')
    names = [f"p{i}" for i in range(1000)]
    schema: dict = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    for _ in range(40):
        schema = {"type": "object", "properties": {"a": schema, "b": {"type": "integer"}}}
    LlamaGrammar.from_json_schema({**schema, "required": ["a"]})


def test_a_refused_grammar_costs_no_process() -> None:
    from powerinfer_cpp.text import grammar

    grammar._workers.close()
    LlamaGrammar.from_string('root ::= "a"')
    begun = [worker._process.pid for worker in grammar._workers._free]
    for wrong in ("root ::= x", 'root ::= "a'):
        with pytest.raises(ValueError, match="line 1"):
            LlamaGrammar.from_string(wrong)
    for pattern in ("(", r"\z"):
        with pytest.raises(ValueError, match="cannot be used"):
            LlamaGrammar.from_json_schema({"type": "string", "pattern": pattern})
    assert [worker._process.pid for worker in grammar._workers._free] == begun


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_threads_that_end_late_end_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine stacks of earlier threads are still there beside the next one's."""
    from powerinfer_cpp.text import grammar

    monkeypatch.syspath_prepend(str(Path(grammar.__file__).parent / "children"))
    grammars, serve = map(importlib.import_module, ("grammars", "serve"))
    made = grammar._workers._make()
    made._start()

    def size() -> int:
        statm = Path(f"/proc/{made._process.pid}/statm").read_text()
        return int(statm.split()[0]) * os.sysconf("SC_PAGE_SIZE")

    begin, sizes = size(), []
    for _ in range(8):
        made.ask(kind="gbnf", text='root ::= "a"')
        sizes.append(size())
    stacks = grammars.OWN_STACK + grammars.STACK
    assert min(sizes) - begin + 2 * stacks < serve.GROWTH
    made.close()


@pytest.mark.parametrize("interpreter", [None, "/bin/true"])
def test_without_an_interpreter(interpreter: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    import multiprocessing.spawn

    from powerinfer_cpp.text import grammar

    grammar._workers.close()
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", interpreter)
    with pytest.raises(ValueError, match=r"needs a Python interpreter .*set_executable"):
        LlamaGrammar.from_string('root ::= "a"')
