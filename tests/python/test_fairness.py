"""No client can hurt another: who sends much takes turns with those who send little."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import serving
from powerinfer_cpp.core.model import LONG as LONG_TEXT
from powerinfer_cpp.core.sampling import Sampling
from powerinfer_cpp.run.pace import BURST
from powerinfer_cpp.run.requests import QueueFull, Request
from powerinfer_cpp.run.turns import shared
from powerinfer_cpp.server.background import EMBEDDING, TOKENISING
from powerinfer_cpp.server.errors import Refusal
from powerinfer_cpp.server.limits import sender_of
from powerinfer_cpp.server.routes.route import Cost
from powerinfer_cpp.server.served import ServedModel
from powerinfer_cpp.server.settings import Settings
from powerinfer_cpp.server.shares import Shares
from powerinfer_cpp.server.view import MOST_WATCHERS
from powerinfer_cpp.text import grammar as grammar_module
from powerinfer_cpp.text.masks import Vocabulary
from serving import LONG, PROMPT, wait_for
from test_scheduler import Desk, alone, run

from powerinfer_cpp import Llama, LlamaGrammar

LONG_PROMPT = [300 + i % 50 for i in range(200)]  # ids
SUREST = Sampling(temperature=0)


class Slow:
    """Work that ends when it is told to. begun: who has begun, in order."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._gates: dict[str, threading.Event] = {}

    def __call__(self, name: str) -> str:
        gate = self._gates.setdefault(name, threading.Event())
        self.begun.append(name)
        assert gate.wait(serving.SECONDS)
        return name

    def end(self, *names: str) -> None:
        for name in names:
            self._gates.setdefault(name, threading.Event()).set()


async def happens(what: Callable[[], bool]) -> None:
    for _ in range(6000):
        if what():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("did not happen")


def test_senders_take_turns() -> None:
    async def main() -> None:
        shares, slow = Shares(2, 1, most_waiting=3), Slow()
        many = [asyncio.ensure_future(shares.run("a", slow, f"a{i}")) for i in range(4)]
        await happens(lambda: slow.begun == ["a0"] and shares.n_waiting == 3)
        with pytest.raises(Refusal, match="waiting already"):
            await shares.run("a", slow, "a4")
        # Another client has a place at once, and a third one the next.
        other = asyncio.ensure_future(shares.run("b", slow, "b0"))
        await happens(lambda: slow.begun == ["a0", "b0"])
        third = asyncio.ensure_future(shares.run("c", slow, "c0"))
        await asyncio.sleep(0.02)
        slow.end("b0")
        assert await other == "b0"
        await happens(lambda: slow.begun[2:] == ["c0"])
        slow.end("c0", *(f"a{i}" for i in range(4)))
        assert await third == "c0" and await asyncio.gather(*many) == ["a0", "a1", "a2", "a3"]
        assert shares.n_held == shares.n_waiting == 0

    asyncio.run(main())


def test_who_goes_keeps_a_place_until_the_work_is_done() -> None:
    """Else a client could begin as much as it likes, and leave."""

    async def main() -> None:
        shares, slow = Shares(1, 1), Slow()
        first = asyncio.ensure_future(shares.run("a", slow, "a0"))
        await happens(lambda: slow.begun == ["a0"])
        second, third = (asyncio.ensure_future(shares.run(s, slow, f"{s}1")) for s in "ab")
        await happens(lambda: shares.n_waiting == 2)
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert slow.begun == ["a0"] and shares.n_held == 1 and shares.n_waiting == 1
        slow.end("a0", "b1")
        assert await third == "b1" and slow.begun == ["a0", "b1"]
        await happens(lambda: shares.n_held == 0)

        def wrong() -> None:
            raise ValueError("of the work")

        with pytest.raises(ValueError, match="of the work"):
            await shares.run("a", wrong)
        await happens(lambda: shares.n_held == 0)

    asyncio.run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="no tool to give threads a priority")
def test_large_work_steps_back() -> None:
    def niceness(_: object = None) -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    async def main() -> None:
        ours, least = niceness(), min(19, niceness() + 1)
        assert TOKENISING.call(niceness) == 19 >= await EMBEDDING.run(niceness) >= least - 1
        shares = Shares(2, 2)
        assert await shares.run("a", niceness) == ours
        assert await shares.run("a", niceness, background=TOKENISING) == 19

    asyncio.run(main())


def test_senders() -> None:
    assert sender_of(("10.0.0.7", 4000)) == sender_of(("10.0.0.7", 4001)) == "10.0.0.7"
    assert sender_of(("::ffff:10.0.0.7", 1)) == "10.0.0.7"
    network = "2001:db8:1:2::/64"
    assert sender_of(("2001:db8:1:2::9", 1)) == sender_of(("2001:db8:1:2:5::", 1)) == network
    assert sender_of(("fe80::1%eth0", 1)) == "fe80::/64"
    assert sender_of(None) == "" and sender_of(("a socket", None)) == "a socket"


# ---- Rows and places of the engine ----


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def served(model_path: Path, desk: Desk) -> Iterator[ServedModel]:
    options: dict[str, Any] = {"n_ctx": 256, "n_parallel": 4, "n_batch": 32, "n_queue": 16}
    with ServedModel(model_path, desk.deliver, verbose=False, **options) as model:
        yield model


@pytest.fixture
def steps(served: ServedModel, monkeypatch: pytest.MonkeyPatch) -> list[Counter[str]]:
    """Of each step, the rows of each sender."""
    found: list[Counter[str]] = []
    compute = served.scheduler._compute

    def spied(rows: dict[Any, int]) -> bool:
        counted: Counter[str] = Counter()
        for text, n in rows.items():
            counted[text.sender] += n
        found.append(counted)
        return compute(rows)

    monkeypatch.setattr(served.scheduler, "_compute", spied)
    return found


def asked(
    served: ServedModel, sender: str, n_tokens: int, prompt: Any = PROMPT, **more: Any
) -> Any:
    """A request of a sender. n_tokens: so many, without an end."""
    options = {"max_tokens": n_tokens, "params": SUREST, "logit_bias": {"2": -100}, **more}
    request = served.request(prompt, **options)
    return Request(**{**vars(request), "sender": sender})


def together(served: ServedModel, *requests: Request) -> Any:
    """Their tickets; all are there before the next step."""
    submit = served.engine.submit
    return served.engine.call(lambda: [submit(each) for each in requests])


def test_what_is_shared() -> None:
    assert shared({"a": 100, "b": 3, "c": 100}, 23) == {"a": 10, "b": 3, "c": 10}
    assert shared({"a": 2, "b": 3}, 23) == {"a": 2, "b": 3} and shared({}, 5) == {}
    assert sum(shared(dict.fromkeys(range(7), 9), 20).values()) == 20
    assert set(shared(dict.fromkeys(range(7), 9), 20).values()) == {2, 3}
    assert shared({"a": 5, "b": 5}, 0) == {"a": 0, "b": 0} == shared({"a": 5, "b": 5}, -3)


def test_a_long_prompt_lets_a_short_one_pass(
    served: ServedModel, desk: Desk, steps: list[Counter[str]]
) -> None:
    long, short = together(
        served, asked(served, "a", 8, LONG_PROMPT), asked(served, "b", 8, "Hi there, my dog")
    )
    desk.wait([long, short])
    n = len(short.request.ids)
    assert steps[0] == {"a": 32 - n, "b": n} and short.first < long.first
    # Rows of a step are shared by senders, and not by their requests.
    del steps[:]
    requests = [asked(served, "c", 1, [9 + i, *LONG_PROMPT]) for i in range(3)]
    tickets = together(served, *requests, asked(served, "d", 1, [20, *LONG_PROMPT]))
    desk.wait(tickets)
    assert steps[0] == {"c": 16, "d": 16}


def test_a_very_long_prompt_gets_a_share_of_the_time(
    served: ServedModel, desk: Desk, steps: list[Counter[str]], model_path: Path
) -> None:
    """And no more, while others write; alone it gets all."""
    scheduler = served.scheduler

    def begin() -> Any:
        scheduler._pace.row_seconds = 10.0  # nothing is earned in this test
        return served.engine.submit(asked(served, "writer", 60))

    writer = served.engine.call(begin)
    wait_for(lambda: writer.first)

    def add() -> Any:
        scheduler._pace.rows.spend("long", (BURST - 20) * 10.0)
        return served.engine.submit(asked(served, "long", 4, LONG_PROMPT))

    long = served.engine.call(add)
    desk.wait([writer, long])
    beside = [step for step in steps if step["writer"] and step["long"]]
    assert sum(step["long"] for step in beside) <= 20 + 4
    assert {"long": 32} in steps and writer.ended < long.first
    want = alone(model_path, PROMPT, max_tokens=60, temperature=0, logit_bias={2: -100})
    assert desk.text(writer) == want


def test_places_are_shared(served: ServedModel, desk: Desk, model_path: Path) -> None:
    """Who comes later takes a place of who has most; and nothing is computed twice for it."""
    (many,) = together(served, asked(served, "a", 150, n=8))
    wait_for(lambda: served.scheduler.n_active == 4)
    senders: list[Counter[str]] = []
    admit = served.scheduler._admit

    def spied() -> Any:
        found = admit()
        senders.append(served.scheduler._places())
        return found

    served.scheduler._admit = spied
    others = together(served, *(asked(served, "b", 20, f"The dog {i}") for i in range(6)))
    desk.wait([many, *others])
    del served.scheduler._admit
    assert all(other.ended < many.ended for other in others)
    assert {"a": 2, "b": 2} in senders and {"a": 1, "b": 3} not in senders
    want = alone(model_path, PROMPT, max_tokens=150, temperature=0, logit_bias={2: -100})
    assert {desk.text(many, i) for i in range(8)} == {want}
    n_rows = served.engine.call(served.scheduler.work).rows
    n_others = sum(len(other.request.ids) + 20 for other in others)
    assert n_rows <= len(many.request.ids) + 8 * 151 + n_others + 20


def test_a_second_text_holds_up_no_place(
    served: ServedModel, desk: Desk, steps: list[Counter[str]]
) -> None:
    """It waits for the prompt of the first; others of the same sender need not."""
    first, second = together(
        served, asked(served, "a", 4, LONG_PROMPT, n=6), asked(served, "a", 4, "Hi")
    )
    desk.wait([first, second])
    assert second.ended < first.first


def test_bodies_of_a_sender_take_turns(served: ServedModel, desk: Desk) -> None:
    many = served.engine.submit_all([asked(served, "a", 20, f"The dog {i}") for i in range(14)])
    (late,) = together(served, asked(served, "a", 2, "Hi"))
    desk.wait([*many, late])
    assert sum(ticket.began > late.began for ticket in many) >= 6


def test_a_full_queue_is_the_sender_s(served: ServedModel, desk: Desk) -> None:
    one = asked(served, "a", 4)

    def fill() -> Any:
        many = served.engine.submit_all([one] * 300)  # an empty queue takes them
        with pytest.raises(QueueFull, match="300 texts of this client"):
            served.engine.submit(one)
        others = served.engine.submit_all([asked(served, "b", 2)] * 8)
        return [*many, *others]

    desk.wait(served.engine.call(fill))


def test_matchers_are_made_beside_the_engine(
    served: ServedModel, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llguidance")
    request = asked(served, "a", 4, grammar=LlamaGrammar.from_string('root ::= "yes" | "no"'))
    channel, gate, threads = Vocabulary.channel, threading.Event(), []

    def slow(self: Vocabulary) -> Any:
        threads.append(threading.current_thread().name)
        assert gate.wait(serving.SECONDS)
        return channel(self)

    monkeypatch.setattr(Vocabulary, "channel", slow)
    bound = served.engine.submit(request)
    wait_for(lambda: threads)
    (free,) = run(served, desk, [asked(served, "b", 20)])
    assert free.ended and not bound.ended and "powerinfer engine" not in threads
    gate.set()
    desk.wait([bound])
    assert desk.text(bound) in ("yes", "no")

    def broken(self: Vocabulary) -> Any:
        raise ValueError("there is no process")

    monkeypatch.setattr(Vocabulary, "channel", broken)
    (failed,) = run(served, desk, [request])
    with pytest.raises(ValueError, match="there is no process"):
        desk.text(failed)


# ---- The server ----

KEYS = Settings(api_keys=("one", "two"))


@pytest.fixture(scope="module")
def running(model_path: Path) -> Iterator[serving.InThread]:
    with serving.in_thread(model_path, KEYS, n_parallel=4, n_batch=32, n_queue=64) as found:
        yield found


def by(key: str) -> dict[str, Any]:
    return {"headers": {"authorization": f"Bearer {key}"}}


@contextlib.contextmanager
def held_step(running: serving.InThread) -> Iterator[None]:
    """The engine's next step lasts as long as this."""
    gate, held = threading.Event(), threading.Event()
    scheduler = running.model.scheduler
    step = scheduler.step

    def slow() -> Any:
        held.set()
        assert gate.wait(serving.SECONDS)
        return step()

    scheduler.step = slow
    body = {**LONG, "max_tokens": 3}
    asks = threading.Thread(target=lambda: running.post("v1/completions", body, **by("one")))
    asks.start()
    try:
        assert held.wait(serving.SECONDS)
        yield
    finally:
        del scheduler.step
        gate.set()
        asks.join()


def test_slow_schemas_of_one_client(
    running: serving.InThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take no place from another's chats, and one from its schemas."""
    pytest.importorskip("llguidance")
    gate, asks, ask = threading.Event(), [], grammar_module._workers.ask

    def slow(**request: Any) -> Any:
        asks.append(request["text"])
        if "slow" in request["text"]:
            assert gate.wait(serving.SECONDS)
        return ask(**request)

    monkeypatch.setattr(grammar_module._workers, "ask", slow)
    messages = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}

    def schema(name: str) -> dict[str, Any]:
        of = {"type": "object", "properties": {name: {"type": "boolean"}}}
        return {**messages, "response_format": {"type": "json_object", "schema": of}}

    threads = [
        threading.Thread(
            target=lambda: running.post("v1/chat/completions", schema("slow"), **by("one"))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: asks and running.server._preparing._shares[Cost.GRAMMAR].n_waiting == 7)
        for key in ("one", "two"):
            found = running.post("v1/chat/completions", messages, **by(key))
            assert found.status_code == 200
        found = running.post("v1/chat/completions", schema("quick"), **by("two"))
        assert found.status_code == 200 and len(asks) == 2
    finally:
        gate.set()
        for thread in threads:
            thread.join()
    assert len(asks) == 9


def test_status_waits_for_no_step(running: serving.InThread) -> None:
    with held_step(running):
        for path in ("slots", "metrics", "props", "v1/health", "v1/models", "tokenizer_info"):
            assert running.get(path, **by("two")).status_code == 200
        found = running.post("tokenize", {"content": "The dog " * 20_000}, **by("two")).json()
        answer = running.post("detokenize", {"tokens": found["tokens"]}, **by("two"))
        assert answer.json()["content"].count("dog") == 20_000
    assert running.get("slots", **by("two")).json()[0]["is_processing"] is False


def test_a_full_queue_refuses_before_any_work(
    running: serving.InThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_step(running):
        many = {"prompt": ["x"] * 200, "max_tokens": 1}
        asks = threading.Thread(target=lambda: running.post("v1/completions", many, **by("two")))
        asks.start()
        wait_for(lambda: running.model.scheduler._queue._promised.total() >= 200)
        with monkeypatch.context() as patch:
            patch.setattr(running.model, "request", None)
            found = running.post("v1/completions", many, **by("two"))
        assert serving.refused(found, 429)["type"] == "rate_limit_error"
    asks.join()


def test_ids_are_looked_up_once(running: serving.InThread, monkeypatch: pytest.MonkeyPatch) -> None:
    model, looked = running.model, []
    text = model.model.text
    monkeypatch.setattr(
        model.model, "text", lambda token, *more: looked.append(token) or text(token, *more)
    )
    assert (
        model.prompts.detokenize([300, 301] * 5000) == model.prompts.detokenize([300, 301]) * 5000
    )
    assert sorted(looked[:2]) == [300, 301] and len(looked) == 4
    with pytest.raises(ValueError, match="token id"):
        model.prompts.detokenize([300, "x"])
    with pytest.raises(ValueError):
        model.prompts.detokenize([10**6])


def test_long_texts_become_tokens_elsewhere(
    running: serving.InThread, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a thread of the lowest priority, and to the same ids."""
    model, names = running.model, []
    text = b"".join(b"The dog %d. " % i for i in range(20_000))
    assert len(text) > LONG_TEXT
    with Llama(model_path, n_ctx=64, verbose=False) as llm:
        want = llm.tokenize(text)
    run_long = model.model.run_long

    def spied(work: Callable[[], None]) -> None:
        run_long(lambda: names.append(threading.current_thread().name) or work())

    monkeypatch.setattr(model.model, "run_long", spied)
    assert model.prompts.tokenize(text) == want and model.prompts.tokenize(b"The dog") == want[:3]
    assert len(names) == 1 and names[0].startswith("background")


def test_watchers_that_vanish(running: serving.InThread) -> None:
    """Also while the engine takes a step; nothing is recorded when nobody watches."""
    ask = serving.request("view/stream", b"", "GET", Authorization="Bearer one")
    scheduler = running.model.scheduler
    with running.connect(ask) as client:
        assert b" 200 " in client.recv(64)
        wait_for(lambda: scheduler.watch is not None)
    (view,) = running.server._states.views.values()
    wait_for(lambda: scheduler.watch is None and not view._watchers)
    with held_step(running):
        clients = [running.connect(ask) for _ in range(MOST_WATCHERS)]
        wait_for(lambda: len(view._watchers) == MOST_WATCHERS)
        serving.refused(running.get("view/stream", **by("one")), 429)
        for client in clients:
            client.close()
        wait_for(lambda: not view._watchers)
        last = running.connect(ask)
        wait_for(lambda: len(view._watchers) == 1)
    with last:
        wait_for(lambda: scheduler.watch is not None and not view._changes)
    wait_for(lambda: scheduler.watch is None and not view._changes)
    assert not view._recording and not view._watchers
