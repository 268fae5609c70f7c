"""What the processes for untrusted texts may take: read from the system, and by texts that need
more."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import hostile
import pytest
from powerinfer_cpp.text import grammar, masks, template, worker
from powerinfer_cpp.text.worker import Refused, Worker

from powerinfer_cpp import LlamaGrammar

pytest.importorskip("llguidance")
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/limits").exists(), reason="reads Linux's /proc"
)

MIB = 1 << 20
WORDS = "root ::= (" + "|".join(f'"{i:x}{i * i:o}"' for i in range(400)) + ")+"
MANY = "start: " + "|".join(f'"{i:x}{i * i:o}"' for i in range(20000))  # for llguidance itself
FOR_EVER = hostile.TEMPLATES["compared"][0]  # in one operation of C


class Bytes:
    """A model's vocabulary: a token for each byte, and an end."""

    n_vocab, eos = 257, 256

    def ends(self, token: int) -> bool:
        return token == self.eos

    def text(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""


def limits(pid: int) -> dict[str, tuple[str, str]]:
    """Soft and hard limits of a process, by Linux's names."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]
    return {line[:26].strip(): tuple(line[26:].split()[:2]) for line in lines}


def address_space(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def check(pid: int, memory: range, alone: bool, niceness: int) -> None:
    found = limits(pid)
    soft, hard = found["Max address space"]
    assert soft == hard and int(soft) in memory, (soft, memory)
    for name in ("Max core file size", "Max file size"):
        assert found[name] == ("0", "0"), name
    assert (found["Max processes"] == ("0", "0")) == alone
    assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, niceness)
    if sys.version_info >= (3, 11):  # Ctrl-C of a terminal is not for it
        assert os.getpgid(pid) != os.getpgid(0)


@pytest.mark.parametrize("kind", ["templates", "grammars"])
def test_workers(kind: str) -> None:
    """Of the processes that templates and grammars use, with the arguments that they give."""
    made = template._worker if kind == "templates" else grammar._workers._make()
    try:
        if made._process is None:
            made._start()
        own = os.getpriority(os.PRIO_PROCESS, 0)
        niceness = own + (0 if kind == "templates" else grammar.NICENESS)
        memory = range(384 * MIB, 384 * MIB + 1)
        check(made._process.pid, memory, kind == "templates", niceness)
    finally:
        made.close()


@pytest.fixture
def vocabulary() -> Iterator[masks.Vocabulary]:
    made = masks.Vocabulary(Bytes())
    yield made
    if made._forks is not None:
        made._forks.close()


def mask(vocabulary: masks.Vocabulary, text: str) -> masks.Matcher:
    """A grammar whose first mask was computed."""
    matcher = vocabulary.matcher(text)
    matcher.ask([])
    matcher.answer()
    return matcher


def test_a_texts_masks(vocabulary: masks.Vocabulary) -> None:
    """The process of a text has what the vocabulary takes, and its own memory besides."""
    compiled = LlamaGrammar.from_string('root ::= "ab"*')._compiled
    texts = [mask(vocabulary, compiled) for _ in range(2)]
    parent = vocabulary._forks._process.pid
    forks = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    assert len(forks) == len(texts)
    there = address_space(parent)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for pid in map(int, forks):
        memory = range(512 * MIB, 512 * MIB + there + 16 * MIB)
        check(pid, memory, False, own + masks.NICENESS)


def test_a_grammar_that_needs_more_memory(
    vocabulary: masks.Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is tried, and where its masks are computed. Others go on."""
    small = LlamaGrammar.from_string('root ::= "a"')._compiled
    mask(vocabulary, MANY)
    monkeypatch.setattr(masks, "MEMORY", 4 * MIB)
    narrow = masks.Vocabulary(Bytes())
    with pytest.raises(ValueError, match="the grammar takes more than 1 s or 512 MiB"):
        mask(narrow, MANY)
    mask(narrow, small)
    narrow._forks.close()
    monkeypatch.setattr(worker, "MAX_MEMORY", 64 * MIB)
    made = grammar._workers._make()
    with pytest.raises(Refused, match="needs too much memory") as refused:
        made.ask(kind="gbnf", text=WORDS)
    assert refused.value.by_limit
    made.close()


def test_a_grammar_that_needs_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processor time: waiting for it does not count, and the system ends it, not a timer here."""
    monkeypatch.setattr(masks, "MASK_SECONDS", 0.02)
    hasty = masks.Vocabulary(Bytes())
    with pytest.raises(ValueError, match="the grammar takes more than 1 s or 512 MiB"):
        mask(hasty, MANY)
    hasty._forks.close()
    made = Worker("grammars", ("llguidance",), seconds=0.02, wall_seconds=60)
    with pytest.raises(Refused, match=r"takes more than 0\.02 s"):
        made.ask(kind="gbnf", text=WORDS)
    made.close()


def processor_seconds(pid: int) -> float:
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def test_a_template_that_needs_more_time() -> None:
    begin = time.monotonic()
    made = Worker(*template.WORKER, seconds=0.4, wall_seconds=60)
    with pytest.raises(Refused, match=r"takes more than 0\.4 s"):
        made.ask(source=FOR_EVER, names={})
    assert not made._late and time.monotonic() - begin < 30  # by processor time
    made.ask(source="", names={})
    pid = made._process.pid
    while processor_seconds(pid) < 0.5:  # each request has all of it
        made.ask(source="{% for a in range(20000) %}{% endfor %}", names={})
    assert made._process.pid == pid
    made.close()
    waits = Worker(*template.WORKER, seconds=60, wall_seconds=0.5)
    with pytest.raises(Refused, match="takes more than"):
        waits.ask(source=FOR_EVER, names={})
    assert waits._late
