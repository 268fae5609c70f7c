"""What fails for one text, or for who watches, ends neither another text nor the engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from powerinfer_cpp.core.errors import StorageError, UnsupportedModelError
from powerinfer_cpp.core.sampling import Sampling
from powerinfer_cpp.llama_speculative import LlamaPromptLookupDecoding
from powerinfer_cpp.run.engine import EngineDead
from powerinfer_cpp.run.requests import Request, Ticket, Update
from powerinfer_cpp.run.scheduler import Scheduler
from powerinfer_cpp.server.served import ServedModel
from test_scheduler import Desk, run

from powerinfer_cpp import Llama, LlamaGrammar

PROMPTS = (
    "Tom had a ball. Tom had a ball. Tom had",
    "red blue red blue red blue red",
    "Once upon a time, there was a little girl named Lily. She",
)
N = 24
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def want(model_path: Path) -> list[str]:
    with Llama(model_path, n_ctx=128, verbose=False) as llm:
        return [llm(p, max_tokens=N, seed=3)["choices"][0]["text"] for p in PROMPTS]


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def served(model_path: Path, desk: Desk) -> Iterator[ServedModel]:
    draft = LlamaPromptLookupDecoding()
    with ServedModel(
        model_path, desk.deliver, n_ctx=128, n_parallel=4, verbose=False, draft_model=draft
    ) as model:
        yield model


def asked(served: ServedModel, **more: Any) -> list[Request]:
    return [served.request(p, max_tokens=N, seed=3, owner=p, **more) for p in PROMPTS]


def check(
    served: ServedModel, desk: Desk, want: Sequence[str], lost: type[Exception] | None
) -> None:
    """The first text fails so, or is right; the others are right, now and later."""
    for fails in (lost, None):
        tickets = served.engine.call(lambda: served.engine.submit_all(asked(served)))
        desk.wait(tickets)
        if fails is None:
            assert desk.text(tickets[0]) == want[0]
        else:
            with pytest.raises(fails):
                desk.text(tickets[0])
        assert [desk.text(t) for t in tickets[1:]] == list(want[1:])
        assert all(ticket.ended for ticket in tickets)
    assert served.engine.call(lambda: served.scheduler.idle)
    assert not served.scheduler._left


def once(
    patch: Patch, of: Any, name: str, error: Exception, when: Callable[..., bool]
) -> list[bool]:
    """The method raises an error the first time that its arguments are such. Has it?"""
    real, done = getattr(of, name), []

    def broken(*args: Any, **more: Any) -> Any:
        if not done and when(*args, **more):
            done.append(True)
            raise error
        return real(*args, **more)

    patch.setattr(of, name, broken)
    return done


def sequence_of(served: ServedModel, prompt: str) -> int:
    active = served.scheduler._active
    return next((t.seq for t in active if t.ticket.request.owner == prompt), -2)


def test_a_draft(served: ServedModel, desk: Desk, want: list[str], monkeypatch: Patch) -> None:
    guesses = served.runtime.draft
    raised = once(
        monkeypatch, type(guesses), "__call__", RuntimeError("no guess"), lambda *_, **__: True
    )
    check(served, desk, want, None)
    assert raised


def test_a_watcher(served: ServedModel, desk: Desk, want: list[str]) -> None:
    def see(*_: Any) -> None:
        raise RuntimeError("looks away")

    served.watch(see)
    check(served, desk, want, None)
    assert served.engine.call(lambda: served.scheduler.watch) is None


def test_watchers_that_join_while_guesses_run(
    served: ServedModel, desk: Desk, want: list[str]
) -> None:
    seen: list[int] = []
    tickets: list[Ticket] = []
    while not seen or len(tickets) < 30:
        tickets += served.engine.submit_all(asked(served))
        for _ in range(6):
            served.watch(lambda ticket, token, bits: seen.append(int(bits.any())))
            time.sleep(0.002)
            served.watch(None)
    desk.wait(tickets)
    assert [desk.text(t) for t in tickets] == want * (len(tickets) // 3)
    assert sum(t.n_accepted for t in tickets) and all(seen)


@pytest.mark.parametrize(
    "method, error",
    [
        ("take", MemoryError("no room")),
        ("partings", RuntimeError("unknown")),
    ],
)
def test_a_place(
    served: ServedModel,
    desk: Desk,
    want: list[str],
    monkeypatch: Patch,
    method: str,
    error: Exception,
) -> None:
    n_free = len(served.scheduler._sequences._free)
    raised = once(monkeypatch, served.scheduler._sequences, method, error, lambda *_: True)
    check(served, desk, want, type(error))
    sequences = served.scheduler._sequences
    assert len(sequences._free) + sequences.n_kept == n_free  # none is lost
    assert raised


def test_a_copy(served: ServedModel, desk: Desk, want: list[str], monkeypatch: Patch) -> None:
    """A sequence that cannot be made of another one is given back."""
    sequences, session = served.scheduler._sequences, served._session
    n_free = len(sequences._free)
    broken = UnsupportedModelError("no such place")
    raised = once(monkeypatch, session, "copy", broken, lambda *_: True)
    twice = [replace(request, owner="", n=2) for request in asked(served)]
    tickets = served.engine.call(lambda: served.engine.submit_all(twice))
    desk.wait(tickets)
    failed = [u for u in desk.updates if u.error is not None]
    assert [u.error for u in failed] == [broken] and failed[0].index == 1
    assert [desk.text(t) for t in tickets] == want
    assert len(sequences._free) + sequences.n_kept == n_free
    assert raised


@pytest.mark.parametrize("error", [ValueError("a bad row"), StorageError("a bad sector")])
@pytest.mark.parametrize("which", [0, 2])
def test_rows_of_one_text(
    served: ServedModel, desk: Desk, want: list[str], monkeypatch: Patch, error: Any, which: int
) -> None:
    """A pass fails as long as the text takes part in it."""
    session, real = served._session, served._session.eval

    def eval_rows(ids: Any, keep: Any, seqs: np.ndarray, *more: Any) -> None:
        if sequence_of(served, PROMPTS[which]) in seqs:
            raise error
        real(ids, keep, seqs, *more)

    with monkeypatch.context() as patch:
        patch.setattr(session, "eval", eval_rows)
        tickets = served.engine.call(lambda: served.engine.submit_all(asked(served)))
        desk.wait(tickets)
        with pytest.raises(type(error)):
            desk.text(tickets[which])
        rest = [i for i in range(3) if i != which]
        assert [desk.text(tickets[i]) for i in rest] == [want[i] for i in rest]
    check(served, desk, want, None)


def test_no_text_can_be_computed(
    served: ServedModel, desk: Desk, want: list[str], monkeypatch: Patch
) -> None:
    """All are told, after few tries: each may take a disk's patience."""
    calls: list[int] = []

    def eval_rows(ids: Any, *_: Any) -> None:
        calls.append(len(ids))
        raise StorageError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(served._session, "eval", eval_rows)
        tickets = run(served, desk, asked(served))
        for ticket in tickets:
            with pytest.raises(StorageError):
                desk.text(ticket)
        assert len(calls) <= 3 * len(tickets)
    check(served, desk, want, None)


@pytest.mark.parametrize("method", ["truncate", "length"])
def test_an_end(
    served: ServedModel, desk: Desk, want: list[str], monkeypatch: Patch, method: str
) -> None:
    """A text whose sequence cannot be cut at its end is right all the same; it is not kept."""
    broken = UnsupportedModelError("not there")

    def at_the_end(*of: Any) -> bool:
        seq = of[-1]
        ended = any(u.piece and u.piece.reason for u in served.scheduler._updates)
        return ended and seq == seq_of_first[0]

    seq_of_first = [-1]

    def begins(text: Any) -> None:
        real(text)
        if text.ticket.request.owner == PROMPTS[0]:
            seq_of_first[0] = text.seq

    real = served.scheduler._begin
    monkeypatch.setattr(served.scheduler, "_begin", begins)
    raised = once(monkeypatch, served._session, method, broken, at_the_end)
    check(served, desk, want, None)
    assert raised


def test_a_mask_that_cannot_begin(
    served: ServedModel, desk: Desk, want: list[str], monkeypatch: Patch
) -> None:
    """Where the system gives no more threads, the text with a grammar fails, and at once."""
    pytest.importorskip("llguidance")
    grammar = LlamaGrammar.from_string('root ::= "yes" | "no"')
    request = served.request("Is it?", max_tokens=8, grammar=grammar, owner="x")
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if "_open" in thread.name or "_work" in thread.name:
            raise RuntimeError("can't start new thread")
        real(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        (ticket, *others) = run(served, desk, [request, *asked(served)])
        with pytest.raises(Exception, match="no thread for a grammar"):
            desk.text(ticket)
        assert [desk.text(t) for t in others] == want
    (ticket,) = run(served, desk, [request])
    assert desk.text(ticket) in ("yes", "no")


def test_who_takes_updates(
    served: ServedModel, desk: Desk, want: list[str], monkeypatch: Patch
) -> None:
    """Who is gone, and a status that cannot be had, end nothing."""
    undelivered = once(
        monkeypatch, served.engine, "_deliver", RuntimeError("the loop is closed"), lambda _: True
    )
    uncounted = once(monkeypatch, served._session, "work", MemoryError(), lambda: True)
    lost = served.engine.submit(served.request("x", max_tokens=1))
    while not lost.ended:
        time.sleep(0.001)
    check(served, desk, want, None)
    assert undelivered and uncounted


def test_a_request_that_cannot_begin_to_wait(
    served: ServedModel, desk: Desk, want: list[str], monkeypatch: Patch
) -> None:
    raised = once(monkeypatch, served.scheduler, "add", MemoryError(), lambda _: True)
    check(served, desk, want, MemoryError)
    assert raised


def test_the_rescue_asks_nothing(served: ServedModel, desk: Desk, monkeypatch: Patch) -> None:
    """After a fault of the scheduler itself, all are told, whatever else is broken."""

    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    def step(scheduler: Scheduler) -> list[Update]:
        scheduler._admit()
        for name in ("truncate", "length", "copy", "work"):
            monkeypatch.setattr(served._session, name, broken)
        monkeypatch.setattr(scheduler._sequences, "leave", broken)
        scheduler._left.clear()
        raise RuntimeError("the last step")

    monkeypatch.setattr(Scheduler, "step", step)
    tickets = served.engine.submit_all([*asked(served), *asked(served)])
    desk.wait(tickets)
    for ticket in tickets:
        with pytest.raises(EngineDead, match="the last step"):
            desk.text(ticket)


def test_echo_of_a_text_that_gave_way(model_path: Path, desk: Desk) -> None:
    """Its prompt's choices are recorded once, also where its prefix is lost on the way."""
    surest = Sampling(temperature=0)
    with Llama(model_path, n_ctx=128, logits_all=True, verbose=False) as llm:
        alone = llm(PROMPTS[2], max_tokens=40, temperature=0, logprobs=1, echo=True)
    want = alone["choices"][0]["logprobs"]["token_logprobs"]
    with ServedModel(
        model_path, desk.deliver, n_ctx=128, n_kv=192, n_parallel=3, verbose=False
    ) as served:
        asks = {"max_tokens": 40, "params": surest, "logprobs": 1, "echo": True}
        requests = [served.request(PROMPTS[2], owner=str(i), **asks) for i in range(6)]
        tickets = served.engine.call(lambda: served.engine.submit_all(requests))
        desk.wait(tickets)
        for ticket in tickets:
            written = [p.choice for u in desk.of(ticket) for p in u.piece.placed]
            assert len(ticket.echoed) == len(ticket.request.ids)
            found = [each.logprob for each in (*ticket.echoed, *written)]
            assert found == want[-len(found) :] and len(found) == len(ticket.echoed) + 40


def test_as_many_texts_as_sequences(model_path: Path, desk: Desk) -> None:
    options: dict[str, Any] = {"n_ctx": 64, "n_kv": 64 * 8, "verbose": False}
    with pytest.raises(ValueError, match="n_parallel may be at most 254"):
        ServedModel(model_path, desk.deliver, n_parallel=255, **options)
    with ServedModel(model_path, desk.deliver, n_parallel=254, **options) as served:
        requests = [served.request([5 + i % 7, 9 + i], max_tokens=2, seed=1) for i in range(300)]
        run(served, desk, requests)
        assert not any(u.error for u in desk.updates)


def test_kept_prompts_of_others(model_path: Path, desk: Desk) -> None:
    """Many short prompts of one client do not drop another's chat, nor do long ones."""
    with ServedModel(
        model_path, desk.deliver, n_ctx=128, n_kv=512, n_parallel=2, verbose=False
    ) as served:

        def ask(ids: list[int], sender: str) -> Ticket:
            request = replace(served.request(ids, max_tokens=1, owner=""), sender=sender)
            (ticket,) = run(served, desk, [request])
            return ticket

        chat = [7 + i % 50 for i in range(100)]
        ask(chat, "b")
        for i in range(50):
            ask([300 + i, *range(400, 407)], "a")
        for i in range(8):
            ask([600 + i, *range(300, 410)], "a")
        assert ask([*chat, 8], "b").n_reused == len(chat)
