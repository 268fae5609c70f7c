"""Streams whose first token takes long: headers and signs of life come before it."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import serving
from powerinfer_cpp.server import answering
from serving import httpx

PROMPT = "Once upon a time, there was a"
CHAT = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5}
# What is seen before the first token: the first event, or a comment.
ROUTES: dict[str, tuple[dict[str, Any], str]] = {
    "v1/chat/completions": (CHAT, ": it is being computed"),
    "v1/completions": ({"prompt": PROMPT, "max_tokens": 5}, ": it is being computed"),
    "completion": ({"prompt": PROMPT, "n_predict": 5}, ": it is being computed"),
    "v1/messages": (CHAT, "event: message_start"),
    "v1/responses": ({"input": PROMPT, "max_output_tokens": 16}, "event: response.created"),
}
# Where clients count events: Codex takes comments for silence.
SIGNS = ("event: ping", "event: response.in_progress")


@pytest.fixture(scope="module")
def running(model_path: Path) -> Iterator[serving.InThread]:
    with serving.in_thread(model_path, n_parallel=2, n_queue=1) as found:
        yield found


@contextmanager
def held(running: serving.InThread) -> Iterator[threading.Event]:
    """The engine waits for this event before its next step, or at most a minute."""
    scheduler, go = running.model.scheduler, threading.Event()
    step = scheduler.step

    def slow() -> Any:
        assert go.wait(60)
        return step()

    scheduler.step = slow
    try:
        yield go
    finally:
        go.set()
        del scheduler.step


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "FIRST_SILENCE", 0.2)
    monkeypatch.setattr(answering, "SILENCE", 0.1)


def text_of(route: str, lines: list[str]) -> str:
    """The text of a stream's events."""
    data = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    if route == "v1/messages":
        return "".join(each.get("delta", {}).get("text", "") for each in data)
    if route == "v1/responses":
        kind = "response.output_text.delta"
        return "".join(each["delta"] for each in data if each["type"] == kind)
    if route == "completion":
        return "".join(each["content"] for each in data)
    choices = [choice for each in data for choice in each["choices"]]
    return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices)


@pytest.mark.parametrize("route", ROUTES)
def test_headers_come_before_the_first_token(
    route: str, running: serving.InThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, first = ROUTES[route]
    body = {**body, "seed": 1, "stream": True}
    want = text_of(route, running.post(route, body).text.splitlines())
    quick(monkeypatch)
    with held(running) as go:
        address = running.url + route
        with httpx.stream("POST", address, json=body, timeout=20) as answer:
            assert answer.status_code == 200
            lines = answer.iter_lines()
            assert next(lines).startswith(first)
            signs = 0
            found = []
            for line in lines:
                found.append(line)
                signs += line.startswith(":") or line in SIGNS
                if signs == 3:
                    go.set()
    assert text_of(route, found) == want and want
    if route in ("v1/messages", "v1/responses"):
        assert not any(line.startswith(":") for line in found)


def test_what_can_be_refused_is_refused_before(
    running: serving.InThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full queue, a prompt that is too long and a bad grammar have their own status."""
    quick(monkeypatch)
    body = {"prompt": PROMPT, "max_tokens": 5, "stream": True}
    with held(running) as go:
        assert running.post("v1/completions", {**body, "prompt": "a " * 999}).status_code == 400
        assert running.post("v1/completions", {**body, "grammar": "root ::= ("}).status_code == 400
        waiting = [running.ask("v1/completions", body) for _ in range(4)]
        serving.wait_for(lambda: running.model.scheduler.n_waiting >= 1)
        assert running.post("v1/completions", body).status_code == 429
        go.set()
        for client in waiting:
            client.close()
    serving.wait_for(lambda: running.idle)


def test_what_fails_later_is_an_event(
    running: serving.InThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    session = running.model.scheduler._session
    wrong = ValueError("a row that cannot be computed")

    def fails(*_: Any, **__: Any) -> None:
        raise wrong

    body = {**CHAT, "stream": True}
    with held(running) as go:
        address = running.url + "v1/chat/completions"
        with httpx.stream("POST", address, json=body, timeout=20) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith(":")
            monkeypatch.setattr(session, "eval", fails, raising=False)
            go.set()
            rest = [line for line in lines if line.startswith("data: ")]
            assert answer.status_code == 200 and '"error"' in rest[0]


def test_a_text_that_comes_at_once_has_no_signs(running: serving.InThread) -> None:
    for route, (body, _) in ROUTES.items():
        lines = running.post(route, {**body, "stream": True}).text.splitlines()
        assert not [line for line in lines if line.startswith(":") or line == "event: ping"]


def test_a_server_that_ends_says_so(model_path: Path) -> None:
    """Texts have a second to end; then their streams end with an error. One line in the log."""
    body = {"prompt": PROMPT, "max_tokens": 900, "logit_bias": {"2": -100}, "n": 64, "stream": True}
    with serving.program("-m", model_path, "-c", "1024", "-t", "1") as program:
        text = httpx.stream("POST", program.url + "v1/completions", json=body, timeout=20)
        states = httpx.stream("GET", program.url + "models/sse", timeout=20)
        with text as answer, states as told:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: {")
            begin = time.monotonic()
            program.process.send_signal(signal.SIGTERM)
            *_, last = (line for line in lines if line)  # without the mark of the end
            assert json.loads(last[6:])["error"]["message"] == "the server is ending"
            assert '"loaded"' in told.read().decode()
        _, stderr = program.process.communicate(timeout=20)
        assert time.monotonic() - begin < 6  # 2, where nothing else runs
        assert program.process.returncode in (0, -signal.SIGTERM)
    (cut,) = (line for line in stderr.splitlines() if "the server ends" in line)
    assert "1 requests" in cut and "Traceback" not in stderr


@pytest.mark.parametrize("route", ["v1/chat/completions", "v1/completions", "completion"])
def test_progress_of_a_prompt(route: str, model_path: Path) -> None:
    """How far it is, before the first token and at it, in steps of a batch."""
    words = "Once upon a time, there was a little dog. " * 40
    asked = {"messages": [{"role": "user", "content": words}]} if "chat" in route else {}
    body = {"max_tokens": 3, "n_predict": 3, "stream": True, "prompt": words, **asked}
    with serving.in_thread(model_path, n_ctx=1024, n_batch=16, n_parallel=1) as running:
        step = running.model.scheduler.step

        def slow() -> Any:
            time.sleep(0.05)
            return step()

        running.model.scheduler.step = slow
        told = running.post(route, {**body, "return_progress": True}).text.splitlines()
        events = [json.loads(line[6:]) for line in told if line.startswith("data: {")]
        known = running.post(route, {**body, "return_progress": True}).text.splitlines()
        plain = running.post(route, body).text
    found = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    n = found[0]["total"]
    assert n > 200 and len(found) > 2
    done = [each["processed"] for each in found]
    assert done == sorted(done) and done[0] < n and done[-1] == n
    times = [each["time_ms"] for each in found]
    assert times == sorted(times) and times[-1] > 0
    assert {each["cache"] for each in found} == {0}
    first = next(json.loads(line[6:]) for line in known if line.startswith("data: {"))
    assert first["prompt_progress"]["cache"] >= n - 16
    assert text_of(route, told) and "prompt_progress" not in plain
