"""Time of the processor is shared: what a client's work takes beside the engine, it waits for."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import serving
from powerinfer_cpp.run.generation import Generation
from powerinfer_cpp.run.pace import (
    BESIDE,
    BURST,
    CHOICE_BURST,
    LEAST_SHARE,
    MASK_BURST,
    Pace,
    share,
)
from powerinfer_cpp.run.requests import Request
from powerinfer_cpp.run.scheduler import MASK_SECONDS
from powerinfer_cpp.server import app, status
from powerinfer_cpp.server import shares as shares_module
from powerinfer_cpp.server.background import TOKENISING
from powerinfer_cpp.server.routes import preparing
from powerinfer_cpp.server.served import ServedModel
from powerinfer_cpp.server.shares import ProcessorTime, Shares
from powerinfer_cpp.text import grammar as grammar_module
from powerinfer_cpp.text import masks
from powerinfer_cpp.text.processor_time import Measured
from powerinfer_cpp.text.worker import Worker, Workers
from serving import wait_for
from test_fairness import KEYS, asked, by, together
from test_scheduler import Desk

from powerinfer_cpp import Llama, LlamaGrammar


def spin(seconds: float) -> None:
    """Takes so much of the processor."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_what_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is counted while others write, and comes back with a share of it."""
    now, writing = 100.0, {"a", "b", "c"}
    monkeypatch.setattr(shares_module.time, "monotonic", lambda: now)
    of = ProcessorTime(lambda: writing, burst=0.5, part=1.0)
    of.spend("a", 0.5)
    assert of.wait("a") == of.wait("d") == 0
    of.spend("a", 1.0)
    assert of.wait("a") == pytest.approx(1.0 * 4) and of.wait("b") == 0
    now += 2.0  # of four senders, each gets a quarter
    assert of.wait("a") == pytest.approx(0.5 * 4)
    writing = {"a"}  # nobody else would notice
    assert of.wait("a") == 0
    of.spend("a", 100.0)
    writing = set(map(str, range(100)))  # a twentieth at least
    assert of.wait("a") == pytest.approx(0.5 * 20)
    now += 0.5 * 20
    assert of.wait("a") == pytest.approx(0.0, abs=1e-9)
    of = ProcessorTime(lambda: {"b"}, burst=0.5)
    of.spend("a", 1.0)
    assert of.wait("a") == pytest.approx(0.5 * 2 / BESIDE, abs=1e-9)


def test_who_has_no_time_left_waits() -> None:
    """Others go on; and so does it, when nobody else writes any more."""

    async def main() -> None:
        writing = {"b"}
        time_of = ProcessorTime(lambda: writing, burst=0.01)
        shares, others = Shares(4, 2, time_of), Shares(1, 1, time_of)
        await shares.run("a", spin, 0.03)
        assert time_of.wait("a") > 0
        time_of.spend("a", 1000.0)
        late = [asyncio.ensure_future(each.run("a", len, "xyz")) for each in (shares, others)]
        assert await shares.run("c", len, "x") == 1 == await others.run("c", len, "x")
        assert shares.n_waiting == others.n_waiting == 1 and not any(task.done() for task in late)
        writing.clear()
        assert await asyncio.gather(*late) == [3, 3]
        assert shares.n_held == shares.n_waiting == 0

    asyncio.run(main())


def test_work_elsewhere_counts() -> None:
    """That of another thread or of a process, as the time of who asked for it."""
    inside = Measured(lambda: TOKENISING.call(lambda: spin(0.05)))
    inside()
    assert inside.seconds >= 0.05
    pytest.importorskip("llguidance")
    own = 0.0

    def make() -> None:
        nonlocal own
        begin = time.thread_time()
        LlamaGrammar.from_string(f"root ::= {' '.join(['[a-z]{1,3}'] * 60)}")
        own = time.thread_time() - begin

    made = Measured(make)
    made()
    assert made.seconds > own + 0.001


# ---- Processes for grammars ----


def test_a_process_for_each_who_asks() -> None:
    """Nobody waits for another's grammar, and who comes later finds a process that runs."""
    pytest.importorskip("llguidance")
    workers = Workers("grammars", ("llguidance",), grammar_module.SECONDS)
    gates = [threading.Event(), threading.Event()]
    asked_of: list[Any] = []
    ask = Worker.ask

    def held(self: Worker, **request: Any) -> Any:
        asked_of.append(self)
        assert gates[len(asked_of) - 1].wait(serving.SECONDS)
        return ask(self, **request)

    grammar = {"kind": "gbnf", "text": 'root ::= "x"'}
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Worker, "ask", held)
            threads = [threading.Thread(target=workers.ask, kwargs=grammar) for _ in gates]
            for i, thread in enumerate(threads):
                thread.start()
                wait_for(lambda n=i: len(asked_of) == n + 1)
            for gate, thread in zip(gates, threads, strict=True):
                gate.set()
                thread.join()
        first, second = asked_of
        assert first is not second
        workers.ask(**grammar)
        assert workers._free == [first, second]
    finally:
        workers.close()


@pytest.mark.skipif(sys.platform != "linux", reason="no tool to see sessions and groups with")
def test_processes_for_grammars_step_back(model_path: Path) -> None:
    """In the session of this process: niceness counts within one."""
    pytest.importorskip("llguidance")
    own = os.getpriority(os.PRIO_PROCESS, 0)
    worker = Worker("grammars", ("llguidance",), niceness=grammar_module.NICENESS)
    with Llama(model_path, n_ctx=64, verbose=False) as llm:
        worker._start()
        LlamaGrammar.from_string('root ::= "x"').check(llm._prompts.vocabulary)
        processes = {
            worker._process.pid: grammar_module.NICENESS,
            llm._prompts.vocabulary._forks._process.pid: masks.NICENESS,
        }
        for pid, niceness in processes.items():
            assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, own + niceness)
            if sys.version_info >= (3, 11):
                assert os.getsid(pid) == os.getsid(0) and os.getpgid(pid) == pid
        worker.close()


# ---- The engine ----


def test_rows_of_prompts() -> None:
    pace, row, many = Pace(), 1 / 64, 10 * BURST
    pace.row_seconds = row
    assert pace.most_of("a", many, True) == BURST
    pace.rows.spend("a", 100 * BURST * row, 2 * BURST * row)  # no more than that is owed
    pace.rows.spend("b", 32 * row)
    assert pace.most_of("a", many, True) == 0 and pace.most_of("b", many, True) == BURST - 32
    assert pace.most_of("a", many, False) == many
    one_each = {"a": 1, "b": 1}
    pace.count({}, one_each, 2 * BURST * row, ["a", "b", "a"])
    pace.count({}, one_each, 128 * row, ["a", "b"])
    assert pace.most_of("a", many, True) == 64 and pace.most_of("b", many, True) == BURST
    pace.count({}, one_each, 320 * row, map(str, range(1000)))  # a twentieth at least
    assert pace.most_of("a", many, True) == 80
    # A sender's texts beside its first are taken from the same time.
    assert pace.many_of("a") and pace.most_of("c", many, True) == BURST
    pace.count({}, {"b": 1, "c": 33}, 0.0, ["b", "c"])
    assert pace.most_of("c", many, True) == BURST  # a step takes no longer than it takes
    for _ in range(20):
        pace.count({}, {"b": 1, "c": 65}, 100 * row, map(str, range(1000)))
    assert pace.many_of("b") and not pace.many_of("c") and pace.most_of("c", many, True) == 0
    assert share(4) == 0.25 and share(0) == 1 and share(1000) == LEAST_SHARE


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def served(model_path: Path, desk: Desk) -> Iterator[ServedModel]:
    options: dict[str, Any] = {"n_ctx": 256, "n_parallel": 4, "n_batch": 32}
    with ServedModel(model_path, desk.deliver, verbose=False, **options) as model:
        yield model


class Never:
    """A processor whose mask does not come. waits: how long it was waited for."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def begin_mask(self, ids: Any) -> None:
        pass

    def mask_ready(self, seconds: float) -> bool:
        self.waits.append(seconds)
        time.sleep(seconds)
        return False

    def __call__(self, ids: Any, logits: Any) -> Any:
        raise AssertionError("was not ready")


def test_late_masks_hold_up_others_for_a_share_of_the_time(
    served: ServedModel, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = Never()
    late = Request(**{**vars(asked(served, "a", 4)), "processors": lambda: never})
    monkeypatch.setattr(served.scheduler._pace.masks, "earn", lambda seconds: None)
    waits: list[float] = []
    has_mask = served.scheduler._has_mask

    def spied(text: Any, until: float, others: Any) -> bool:
        before = len(never.waits)
        found = has_mask(text, until, others)
        if others:
            waits.extend(never.waits[before:] or [0.0])
        return found

    monkeypatch.setattr(served.scheduler, "_has_mask", spied)
    for i in range(40):  # each of these waits once, beside a text of another sender
        ticket, other = together(served, late, asked(served, "b", 1, f"The dog {i}"))
        desk.wait([other])
        served.engine.cancel(ticket)
        wait_for(lambda: served.engine.call(lambda: served.scheduler.idle))
    assert 0 < max(waits) <= MASK_SECONDS and sum(waits) <= MASK_BURST + 1e-6
    assert not any(waits[-5:])


def test_texts_of_one_sender_take_turns(
    served: ServedModel, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it has taken its share beside others; they are written all the same."""
    monkeypatch.setattr(served.scheduler._pace, "many_of", lambda sender: sender != "a")
    steps: list[Counter[str]] = []
    turns = served.scheduler._turns

    def spied(texts: list[Any]) -> list[Any]:
        found = turns(texts)
        steps.append(Counter(text.sender for text in found))
        return found

    monkeypatch.setattr(served.scheduler, "_turns", spied)
    many, other = asked(served, "a", 12, n=3), asked(served, "b", 12, "The dog")
    [alone] = together(served, many)
    desk.wait([alone])
    assert max(step["a"] for step in steps) == 3  # nobody else writes
    steps.clear()
    beside, ticket = together(served, many, other)
    desk.wait([beside, ticket])
    assert {step["a"] for step in steps if step["b"] and step["a"]} == {1}
    assert [desk.text(alone, i) for i in range(3)] == [desk.text(beside, i) for i in range(3)]


def test_masks_take_a_share_of_the_time(
    served: ServedModel, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the processor takes for them counts; who owes time begins none beside others."""
    pytest.importorskip("llguidance")
    pace = served.scheduler._pace
    monkeypatch.setattr(pace.masks, "earn", lambda seconds: None)
    grammar = LlamaGrammar.from_string('root ::= "a" [b-z]*')

    def held(sender: str) -> Request:
        def make() -> Any:
            return grammar.processor(served.prompts.vocabulary)

        return Request(**{**vars(asked(served, sender, 6)), "processors": make})

    desk.wait(together(served, held("a"), asked(served, "b", 24, "The dog")))
    assert pace.masks.spent("a") > 0 == pace.masks.spent("b")
    pace.masks.spend("a", 10 * MASK_BURST)
    begun: list[str] = []
    foresee = Generation.foresee

    def spied(text: Generation) -> None:
        if text.has_masks and not text.foreseen:
            begun.append("alone" if not served.scheduler._others("a") else "beside")
        foresee(text)

    monkeypatch.setattr(Generation, "foresee", spied)
    desk.wait(together(served, held("a"), asked(served, "b", 24, "The dog")))
    assert begun and set(begun) == {"alone"}


def test_choosing_takes_a_share_of_the_time(
    served: ServedModel, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who needs long to choose tokens misses steps, as long as others write."""
    pace = served.scheduler._pace
    monkeypatch.setattr(pace.choices, "earn", lambda seconds: None)
    slow = asked(served, "a", 24)
    want = together(served, slow)[0]
    desk.wait([want])

    def make() -> Any:
        def choose(ids: Any, scores: Any) -> Any:
            spin(CHOICE_BURST / 4)
            return scores

        return choose

    slow = Request(**{**vars(slow), "processors": make})
    beside, other = together(served, slow, asked(served, "b", 60, "The dog"))
    desk.wait([other])
    n_beside = beside.n_tokens
    desk.wait([beside])
    assert n_beside <= 5 and beside.ended > other.ended
    assert desk.text(beside) == desk.text(want)
    assert pace.choices.spent("b") < CHOICE_BURST <= pace.choices.spent("a")
    assert Pace().may_choose("a") and not pace.may_choose("a") and pace.may_choose("b")


def test_samplers_count(served: ServedModel, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they take of a sender's time, where others write."""
    spent = served.scheduler._pace.choices.spent
    monkeypatch.setattr(served.scheduler._pace.choices, "earn", lambda seconds: None)
    desk.wait(together(served, asked(served, "s", 8)))
    assert spent("s") == 0
    desk.wait(together(served, asked(served, "s", 24), asked(served, "t", 24, "The dog")))
    assert spent("s") > 0 < spent("t")


# ---- The server ----


@pytest.fixture(scope="module")
def running(model_path: Path) -> Iterator[serving.InThread]:
    with serving.in_thread(model_path, KEYS) as found:
        yield found


def test_what_is_told_again(running: serving.InThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """While texts are written, who asks soon after another gets the same."""
    told: list[object] = []
    slots = status.slots
    monkeypatch.setattr(status, "slots", lambda model: told.append(model) or slots(model))
    monkeypatch.setattr(preparing, "TOLD_SECONDS", serving.SECONDS)
    for _ in range(2):
        running.get("slots", **by("one"))
    assert len(told) == 2  # nobody writes
    with monkeypatch.context() as patch:
        patch.setattr(running.server.models, "writing", lambda: {"another"})
        answers = [running.get("slots", **by(key)).content for key in ("one", "two", "one")]
    assert len(told) == 2 and len(set(answers)) == 1
    assert running.get("slots", **by("two")).content == answers[0] and len(told) == 3


def test_requests_without_end(running: serving.InThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes time of the event loop, of which a client has a share beside others' texts."""
    server = running.server
    of = ProcessorTime(lambda: {"another"}, burst=app.REQUEST_SECONDS, part=1.0)
    monkeypatch.setattr(server, "_requests", of)

    async def main() -> float:
        begin = time.monotonic()
        await asyncio.gather(*(server._turn("a") for _ in range(200)))
        return time.monotonic() - begin

    # Half of the time is that of the other.
    assert asyncio.run(main()) >= 190 * app.REQUEST_SECONDS * 2 * 0.9
    of.spend("key 0", 0.25)
    assert of.wait("key 0") > 0 == of.wait("key 1")
    begin = time.monotonic()
    assert running.get("v1/models", **by("one")).status_code == 200
    assert time.monotonic() - begin >= 0.25
