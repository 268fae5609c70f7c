"""Texts that share each pass of the engine: each is what it is alone."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from powerinfer_cpp.core.sampling import Sampling
from powerinfer_cpp.run.engine import EngineDead
from powerinfer_cpp.run.requests import QueueFull, Request, Ticket, Update
from powerinfer_cpp.server.served import ServedModel

from powerinfer_cpp import ContextOverflowError, Llama, LlamaGrammar, RequestError

PROMPTS = (
    "Once upon a time, there was a",
    "Once upon a time, there was a little girl named Lily. She",
    "The dog",
    "One day, a big bear went into the forest and saw a small bird. The bird said",
)


class Desk:
    """Collects what the engine delivers."""

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self._changed = threading.Condition()

    def deliver(self, updates: Sequence[Update]) -> None:
        with self._changed:
            self.updates += updates
            self._changed.notify_all()

    def wait(self, tickets: Sequence[Ticket]) -> None:
        with self._changed:
            # So long only where something hangs: a busy machine takes more than a minute.
            assert self._changed.wait_for(lambda: all(map(self._over, tickets)), 240)

    def _over(self, ticket: Ticket) -> bool:
        """Have all of its texts ended? `Ticket.ended` is set before the last update is here."""
        last = [
            u
            for u in self.updates
            if u.ticket is ticket and (u.piece is None or u.piece.reason is not None)
        ]
        return len(last) == ticket.request.n

    def of(self, ticket: Ticket, index: int = 0) -> list[Update]:
        return [u for u in self.updates if u.ticket is ticket and u.index == index]

    def text(self, ticket: Ticket, index: int = 0) -> str:
        parts = self.of(ticket, index)
        for part in parts:
            if part.error is not None:
                raise part.error
        assert [p.piece.reason is None for p in parts] == [True] * (len(parts) - 1) + [False]
        return "".join(p.piece.text for p in parts)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def served(model_path: Path, desk: Desk) -> Iterator[ServedModel]:
    with ServedModel(model_path, desk.deliver, n_ctx=256, n_parallel=4, verbose=False) as model:
        yield model


def alone(path: Path, prompt: str, **options: Any) -> str:
    with Llama(path, n_ctx=256, verbose=False, seed=0) as llm:
        return llm(prompt, **options)["choices"][0]["text"]


def run(served: ServedModel, desk: Desk, requests: Sequence[Request]) -> list[Ticket]:
    tickets = [served.engine.submit(request) for request in requests]
    desk.wait(tickets)
    return tickets


@pytest.mark.parametrize("sparse", ["auto", "exact", "predictor"])
def test_each_text_is_what_it_is_alone(model_path: Path, desk: Desk, sparse: str) -> None:
    options: dict[str, Any] = {"n_ctx": 256, "sparse": sparse, "verbose": False}
    hot = Sampling(temperature=1.2, repeat_penalty=1.1)
    with Llama(model_path, **options) as llm:
        want = [
            llm(prompt, max_tokens=40, seed=i, **hot.keywords())["choices"][0]
            for i, prompt in enumerate(PROMPTS)
        ]
    with ServedModel(model_path, desk.deliver, n_parallel=3, n_batch=24, **options) as served:
        for _ in range(2):  # the second time most of each prompt is known
            requests = [
                served.request(prompt, max_tokens=40, params=hot, seed=i)
                for i, prompt in enumerate(PROMPTS)
            ]
            tickets = run(served, desk, requests)
            assert [desk.text(t) for t in tickets] == [each["text"] for each in want]
            reasons = [desk.of(t)[-1].piece.reason for t in tickets]
            assert reasons == [each["finish_reason"] for each in want]
        assert all(t.n_reused >= len(t.request.ids) - 1 for t in tickets)
        assert served.scheduler.n_kept > 0


def test_several_texts_of_a_prompt(model_path: Path, served: ServedModel, desk: Desk) -> None:
    request = served.request(PROMPTS[0], max_tokens=20, seed=5, n=6)
    (ticket,) = run(served, desk, [request])
    for i in range(6):
        assert desk.text(ticket, i) == alone(model_path, PROMPTS[0], max_tokens=20, seed=5 + i)
    work = served.engine.call(served.scheduler.work)
    # The prompt was computed once, and its last token for each text.
    assert work.rows <= len(request.ids) + 5 + 6 * 20


def test_little_room(model_path: Path, desk: Desk) -> None:
    """Texts give up their places when positions run out, and become the same."""
    want = [alone(model_path, p, max_tokens=150, seed=1) for p in PROMPTS]
    with ServedModel(
        model_path, desk.deliver, n_ctx=256, n_kv=256, n_parallel=4, verbose=False
    ) as served:
        requests = [served.request(p, max_tokens=150, seed=1) for p in PROMPTS]
        tickets = run(served, desk, requests)
    assert [desk.text(t) for t in tickets] == want


def test_a_prompt_goes_on_beside_as_many_texts_as_the_batch_has_rows(
    model_path: Path, desk: Desk
) -> None:
    surest = Sampling(temperature=0)
    late: list[Ticket] = []

    def deliver(updates: Sequence[Update]) -> None:
        desk.deliver(updates)
        if not late and {update.index for update in desk.updates} == {0, 1}:  # both are written
            late.append(served.engine.submit(short))

    with ServedModel(
        model_path, deliver, n_ctx=256, n_batch=2, n_parallel=3, verbose=False
    ) as served:
        long = served.request(PROMPTS[0], max_tokens=60, params=surest, n=2)
        short = served.request("The dog", max_tokens=2, params=surest)
        first = served.engine.submit(long)
        desk.wait([first])
        desk.wait(late)
    assert first.ended and late[0].ended and late[0].ended < first.ended


def test_cancelled(model_path: Path, served: ServedModel, desk: Desk) -> None:
    long = served.request(PROMPTS[0], max_tokens=200, params=Sampling(temperature=0), stop=[])
    tickets = [served.engine.submit(long) for _ in range(6)]  # two of them wait
    other = served.engine.submit(served.request(PROMPTS[2], max_tokens=30, seed=3))
    for ticket in tickets:
        served.engine.cancel(ticket)
    desk.wait([other])
    assert desk.text(other) == alone(model_path, PROMPTS[2], max_tokens=30, seed=3)
    steps = served.scheduler.n_steps
    assert served.engine.call(lambda: served.scheduler.idle) and steps < 150
    assert not any(t.ended for t in tickets)


def test_logprobs_and_echo(model_path: Path, served: ServedModel, desk: Desk) -> None:
    with Llama(model_path, n_ctx=256, logits_all=True, verbose=False) as llm:
        want = llm(PROMPTS[3], max_tokens=8, temperature=0, logprobs=3, echo=True)
    requests = [
        served.request(
            PROMPTS[3], max_tokens=8, params=Sampling(temperature=0), logprobs=3, echo=echo
        )
        for echo in (True, False, True)
    ]
    for ticket in run(served, desk, requests):
        found = [p.choice for u in desk.of(ticket) for p in u.piece.placed]
        if ticket.request.echo:
            found = ticket.echoed + found
        of_want = want["choices"][0]["logprobs"]["token_logprobs"][-len(found) :]
        assert [c.logprob for c in found] == of_want
    (nothing,) = run(served, desk, [served.request("The", max_tokens=0, logprobs=1, echo=True)])
    assert len(nothing.echoed) == len(nothing.request.ids) and desk.text(nothing) == ""


def test_grammar_and_bias(served: ServedModel, desk: Desk, model_path: Path) -> None:
    pytest.importorskip("llguidance")
    grammar = LlamaGrammar.from_string('root ::= "yes" | "no"')
    requests = [
        served.request("Is it?", max_tokens=8, grammar=grammar, seed=1),
        served.request(PROMPTS[0], max_tokens=8, seed=1),
    ]
    bound, free = run(served, desk, requests)
    assert desk.text(bound) in ("yes", "no")
    assert desk.text(free) == alone(model_path, PROMPTS[0], max_tokens=8, seed=1)


def test_a_grammar_that_gets_stuck_is_the_request_s(
    served: ServedModel, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stuck:
        more = "is reached"

        def __call__(self, ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
            raise ValueError("the grammar cannot go on")

    monkeypatch.setattr(served.prompts, "processors", lambda *_: Stuck())
    request = served.request("The dog", max_tokens=4, logit_bias={5: 1.0})
    assert request.processors().more == "is reached"
    (ticket,) = run(served, desk, [request])
    with pytest.raises(RequestError, match="cannot go on"):
        desk.text(ticket)


def test_owners(served: ServedModel, desk: Desk) -> None:
    """Nobody finds the prefixes of others, and a long queue of one does not hold up another."""
    many = [served.request(PROMPTS[1], max_tokens=30, owner="a") for _ in range(12)]
    tickets = [served.engine.submit(request) for request in many]
    (late,) = run(served, desk, [served.request(PROMPTS[1], max_tokens=4, owner="b")])
    assert late.n_reused == 0
    desk.wait(tickets)
    assert sum(t.began > late.began for t in tickets) >= 4
    assert max(t.n_reused for t in tickets) > 0
    # Now all of the prompt is known, but not to a third one.
    requests = [served.request(PROMPTS[1], max_tokens=4, owner=owner) for owner in ("a", "c")]
    known, unknown = run(served, desk, requests)
    assert known.n_reused > 0 and unknown.n_reused == 0


def test_refused(served: ServedModel, desk: Desk) -> None:
    with pytest.raises(ContextOverflowError):
        served.request(list(range(3, 300)))
    with pytest.raises(ValueError, match="the prompt is empty"):
        served.engine.submit(Request(ids=[], limit=4))
    with pytest.raises(ValueError):
        served.request("x", grammar="no grammar")
    # However many one caller asks for, an idle scheduler takes them; then the queue is full.
    many, one = served.request("x", max_tokens=2, n=300), served.request("x", max_tokens=2)

    def full() -> Ticket:
        ticket = served.engine.submit(many)
        for requests in ([one], [one] * 2):
            with pytest.raises(QueueFull):
                served.engine.submit_all(requests)
        return ticket

    desk.wait([served.engine.call(full)])


def test_an_error_ends_one_text(served: ServedModel, desk: Desk, model_path: Path) -> None:
    def broken(ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
        if len(ids) > 8:
            raise ValueError("a broken processor")
        return logits

    bad = Request(served.prompts.tokenize(b"The dog"), 20, processors=lambda: broken)
    good = served.request(PROMPTS[0], max_tokens=20, seed=1)
    never = Request(served.prompts.tokenize(b"The dog"), 20, params=Sampling(temperature=1e39))
    unknown = served.engine.submit(never)  # it cannot begin
    worse, better = run(served, desk, [bad, good])
    with pytest.raises(ValueError, match="temperature must be a finite number"):
        desk.text(unknown)
    with pytest.raises(ValueError, match="a broken processor"):
        desk.text(worse)
    assert desk.text(better) == alone(model_path, PROMPTS[0], max_tokens=20, seed=1)


def test_a_dead_engine_leaves_nobody_waiting(served: ServedModel, desk: Desk) -> None:
    """Also not those whose requests came during its last step."""
    entered, go_on = threading.Event(), threading.Event()

    def step() -> list[Update]:
        entered.set()
        go_on.wait(60)
        raise RuntimeError("the last step")

    served.scheduler.step = step  # type: ignore[method-assign]
    first = served.engine.submit(served.request("The dog", max_tokens=4))
    assert entered.wait(60)
    second = served.engine.submit(served.request("The cat", max_tokens=4))
    go_on.set()
    desk.wait([first, second])
    for ticket in (first, second):
        with pytest.raises(EngineDead, match="the last step"):
            desk.text(ticket)
    with pytest.raises(EngineDead):
        served.engine.submit(served.request("The dog", max_tokens=4))


def test_a_request_that_cannot_be_queued(served: ServedModel, desk: Desk) -> None:
    def refuses() -> None:
        raise ValueError("no processor")

    bad = Request(served.prompts.tokenize(b"The dog"), 4, processors=refuses)
    for _ in range(300):  # more than the queue takes
        (ticket,) = run(served, desk, [bad])
    with pytest.raises(ValueError, match="no processor"):
        desk.text(ticket)
    (good,) = run(served, desk, [served.request("The dog", max_tokens=4)])
    assert desk.text(good)


class Bits(list):
    """A processor that changes nothing and keeps a digest of the logits that it saw."""

    def __call__(self, ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
        self.append(hashlib.blake2b(logits.tobytes(), digest_size=8).hexdigest())
        return logits


@pytest.mark.slow
@pytest.mark.parametrize("sparse", ["auto", "exact", "predictor", "off"])
def test_logits_repeat(model_path: Path, desk: Desk, sparse: str) -> None:
    """The bits of all logits are those of a fresh `Llama`: beside others, with a prefix that is
    known, as the second turn of a conversation, in other chunks, and with little room."""
    options: dict[str, Any] = {"n_ctx": 512, "sparse": sparse, "verbose": False}
    settings = [Sampling(temperature=0), Sampling(temperature=0.8, top_k=40)]
    prompts = [*PROMPTS, "Once upon a time there was " * 12]

    def fresh(prompt: Sequence[int], params: Sampling) -> tuple[str, list[str]]:
        bits = Bits()
        with Llama(model_path, **options) as llm:
            answer = llm(prompt, max_tokens=24, seed=9, logits_processor=bits, **params.keywords())
        return answer["choices"][0]["text"], bits

    def together(served: ServedModel, cases: list[tuple[list[int], Sampling]]) -> list[Any]:
        seen = [Bits() for _ in cases]
        requests = [
            replace(
                served.request(ids, max_tokens=24, params=params, seed=9), processors=lambda b=b: b
            )
            for (ids, params), b in zip(cases, seen, strict=True)
        ]
        tickets = run(served, desk, requests)
        return [(desk.text(t), list(b)) for t, b in zip(tickets, seen, strict=True)]

    for more in ({"n_parallel": 5}, {"n_parallel": 3, "n_batch": 2, "n_kv": 512}):
        with ServedModel(model_path, desk.deliver, **options, **more) as served:
            cases = [
                (served.prompts.tokenize(prompt.encode()), params)
                for prompt in prompts
                for params in settings
            ]
            first = together(served, cases)
            assert first == [(text, list(bits)) for text, bits in (fresh(*c) for c in cases)]
            assert together(served, cases) == first  # their prompts are known now
            second = [
                (ids + served.prompts.tokenize((text + " Then").encode(), add_bos=False), params)
                for (ids, params), (text, _) in zip(cases, first, strict=True)
            ]
            found = together(served, second)
            assert found == [(text, list(bits)) for text, bits in (fresh(*c) for c in second)]
