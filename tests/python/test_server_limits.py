"""What must not hurt a server: clients that go away, take nothing, or send too slowly; faults.

Each gets a clear answer or loses its connection; the others get what they would get alone, and
nothing grows. test_server_bodies.py: what they send.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import serving
from powerinfer_cpp.core.errors import OutOfMemoryError, RequestError
from powerinfer_cpp.run.generation import Generation
from powerinfer_cpp.server import recorded as recorded_module
from powerinfer_cpp.server import texts as texts_module
from powerinfer_cpp.server.dialects import openai as openai_module
from powerinfer_cpp.server.errors import Refusal
from powerinfer_cpp.server.limits import Guard, Guarded
from powerinfer_cpp.server.run import listen, warn_if_open
from powerinfer_cpp.server.settings import Settings
from serving import LONG, PROMPT, as_before, refused, request, wait_for
from starlette.responses import Response

# Half of these tests assert times; the others use the same servers.
pytestmark = pytest.mark.xdist_group("timed")

STEP = 0.02  # seconds of a step here, so that a test can act within a few
FAST = Settings(header_seconds=1, body_seconds=1, send_seconds=1)


@pytest.fixture(scope="module")
def running(model_path: Path) -> Iterator[serving.InThread]:
    with serving.in_thread(model_path, n_parallel=2, n_batch=32, n_queue=64) as found:
        yield found


@pytest.fixture(scope="module")
def fast(model_path: Path) -> Iterator[serving.InThread]:
    """A server without patience."""
    with serving.in_thread(model_path, FAST, send_buffer=4096, n_parallel=2) as found:
        yield found


@pytest.fixture
def slow_steps(running: serving.InThread, monkeypatch: pytest.MonkeyPatch) -> None:
    step = running.model.scheduler.step

    def slow() -> Any:
        time.sleep(STEP)
        return step()

    monkeypatch.setattr(running.model.scheduler, "step", slow)


@pytest.fixture(autouse=True)
def _the_others(model_path: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test nothing is left, and a text is what it is alone."""
    yield
    for name in {"running", "fast"} & set(request.fixturenames):
        as_before(request.getfixturevalue(name), model_path)


# ---- Clients that go away ----


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stage", ["first", "middle", "queued"])
@pytest.mark.usefixtures("slow_steps")
def test_work_stops_when_a_client_goes(running: serving.InThread, stage: str, stream: bool) -> None:
    scheduler = running.model.scheduler
    began = scheduler.n_steps
    body = {**LONG, "stream": stream}
    with contextlib.ExitStack() as stack:
        if stage == "queued":
            short = {**LONG, "max_tokens": 30}
            others = [running.ask("v1/completions", short) for _ in range(2)]
            for other in others:
                stack.enter_context(other)
            wait_for(lambda: scheduler.n_active == 2)
        if stage == "first":  # its prompt takes seven steps
            body["prompt"] = [300 + i for i in range(220)]
        client = stack.enter_context(running.ask("v1/completions", body))
        if stage == "first":
            wait_for(lambda: scheduler.n_steps > began + 1)
        elif stage == "middle":
            wait_for(lambda: scheduler.n_steps > began + 10)
        else:
            wait_for(lambda: scheduler.n_waiting == 1)
        client.close()
        left = scheduler.n_steps
        if stage == "queued":
            wait_for(lambda: scheduler.n_waiting == 0)
            assert scheduler.n_active == 2 and scheduler.n_steps <= left + 10
            for other in others:
                assert other.recv(15) == b"HTTP/1.1 200 OK"
        wait_for(lambda: running.idle)
        assert stage == "queued" or scheduler.n_steps <= left + 10


def test_requests_in_one_go(running: serving.InThread) -> None:
    """A client that sends the next requests before the first answer, and goes."""
    scheduler = running.model.scheduler
    began = scheduler.n_steps
    with running.connect(3 * request("v1/completions", json.dumps(LONG).encode())):
        wait_for(lambda: scheduler.n_steps > began + 2)
    left = scheduler.n_steps
    wait_for(lambda: running.idle)
    assert scheduler.n_steps <= left + 20


def test_clients_that_vanish(running: serving.InThread) -> None:
    for i in range(1000):
        body = {**LONG, "stream": i % 2 == 0, "max_tokens": 60}
        running.ask("v1/completions", body).close()
    wait_for(lambda: running.idle)
    wait_for(lambda: running.n_connections == 0)


def test_a_client_of_embeddings_goes(running: serving.InThread) -> None:
    """Between two inputs; and those that wait for their turn keep no thread from the others."""
    body = {"input": [PROMPT * 20] * 600}
    clients = [running.ask("v1/embeddings", body) for _ in range(45)]
    shares = running.server._preparing._embedding
    wait_for(lambda: shares.n_waiting > 0)
    found = running.post("v1/completions", {"prompt": PROMPT, "max_tokens": 2})
    assert found.status_code == 200 and shares.n_held > 0
    for client in clients:
        client.close()
    wait_for(lambda: shares.n_held == 0, 20)


def test_a_host_that_vanishes(model_path: Path) -> None:
    """Its network is gone, so no connection is closed: only probes find that nobody is there."""
    inside = ["unshare", "--user", "--map-root-user", "--net"]
    if not (shutil.which("ip") and shutil.which("unshare")):
        pytest.skip("no Linux tools (ip, unshare) to make a network")
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("no right to make a network")
    script = Path(__file__).parent / "vanishing.py"
    found = subprocess.run(
        [*inside, sys.executable, script, model_path], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    # Of 240 steps; at 0.05 s each, 3 s are 60.
    assert json.loads(found.stdout.splitlines()[-1])["steps"] < 120


# ---- Clients that take nothing, or send slowly ----


def lost(connection: socket.socket) -> bytes:
    """What came before the connection was closed."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(1 << 16):
            found += data
    return found


def stalled(server: serving.InThread, stream: bool) -> socket.socket:
    """A client that asks for half a megabyte, and takes nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", server.port))
    body = {**LONG, "logprobs": 100, "stream": stream}
    client.sendall(request("v1/completions", json.dumps(body).encode()))
    return client


@pytest.mark.parametrize("stream", [False, True])
def test_a_stalled_reader_is_dropped(fast: serving.InThread, stream: bool) -> None:
    with stalled(fast, stream) as client:
        wait_for(lambda: fast.n_connections == 1)
        wait_for(lambda: fast.n_connections == 0, 10)
        assert fast.idle and 0 < len(lost(client)) < 400_000


def test_a_slow_body(fast: serving.InThread) -> None:
    data = request("v1/completions", json.dumps(LONG).encode())
    with fast.connect(data[:-5]) as client:
        begin = time.monotonic()
        assert b" 408 " in client.recv(100) and time.monotonic() - begin < 3
    with fast.connect(data[:-5]) as client, contextlib.suppress(OSError):
        for byte in range(5):
            time.sleep(0.4)
            client.sendall(data[-5 + byte :][:1])
        assert b" 408 " in client.recv(100)


@pytest.mark.parametrize(
    "begin", [b"", b"P", b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"]
)
def test_unfinished_headers(fast: serving.InThread, begin: bytes) -> None:
    with fast.connect(begin) as client:
        start = time.monotonic()
        with contextlib.suppress(OSError):
            for _ in range(10):  # bytes that come keep nothing open
                time.sleep(0.2)
                client.sendall(b"X" if len(begin) > 1 else b"")
        assert lost(client) == b"" and time.monotonic() - start < 4
    whole = request("health", b"", "GET")
    with fast.connect(whole) as client:  # the second request of a connection
        assert client.recv(15) == b"HTTP/1.1 200 OK"
        client.sendall(whole[:-3])
        start = time.monotonic()
        lost(client)
        assert time.monotonic() - start < 4


def test_headers_that_never_end(fast: serving.InThread) -> None:
    for head in (b"GET /", b"GET / HTTP/1.1\r\nA: ", b"GET / HTTP/1.1\r\n"):
        with fast.connect(head) as client, contextlib.suppress(ConnectionError):
            sent, start = 0, time.monotonic()
            while time.monotonic() - start < 0.9:
                client.sendall(b"a: b\r\n" * 1000)
                sent += 6000
            assert sent < 64 << 20
            pytest.fail("a client may send headers for as long as it likes")


def test_what_is_no_http(running: serving.InThread) -> None:
    for data in (
        b"\x16\x03\x01\x02\x00\x01",
        b"GET\r\n\r\n",
        b"\x00" * 64,
        b"GET /\xff HTTP/1.1\r\n\r\n",
    ):
        with running.connect(data) as client:
            assert b" 400 " in lost(client)[:20]
    smuggled = request("v1/completions", b"", **{"Transfer-Encoding": "chunked"})
    with running.connect(smuggled) as client:
        assert b" 400 " in lost(client)[:20]
    answer = running.post(
        "v1/completions", LONG, headers={"upgrade": "websocket", "connection": "upgrade"}
    )
    assert answer.status_code in (200, 400)


# ---- Full ----


@pytest.mark.usefixtures("slow_steps")
def test_the_queue_is_full(running: serving.InThread) -> None:
    bodies = {**LONG, "max_tokens": 30, "n": 33}
    with running.ask("v1/completions", bodies), running.ask("v1/completions", bodies):
        wait_for(lambda: running.model.scheduler.n_waiting > 60)
        found = running.post("v1/completions", {"prompt": "x", "max_tokens": 2, "n": 30})
        assert refused(found, 429)["type"] == "rate_limit_error"
        assert found.headers["retry-after"] == "1"
        streamed = running.post("v1/completions", {"prompt": "x", "n": 30, "stream": True})
        refused(streamed, 429)


def test_as_many_prompts_as_the_docs_promise(running: serving.InThread) -> None:
    """More than may wait: an idle server takes them, and every text is at its place."""
    prompts = [[400 + i % 7] for i in range(running.server.settings.max_inputs)]
    body = {"max_tokens": 1, "temperature": 0}
    alone = [
        running.post("v1/completions", {**body, "prompt": prompt}).json()["choices"][0]["text"]
        for prompt in prompts[:7]
    ]
    found = running.post("v1/completions", {**body, "prompt": prompts}).json()["choices"]
    assert [choice["text"] for choice in found] == [alone[i % 7] for i in range(len(prompts))]


def test_products_are_limited(running: serving.InThread) -> None:
    """What each of prompt, n, max_tokens and logprobs may be, they may not be all together."""
    steps = running.model.scheduler.n_steps
    messages = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 200, "n": 64}
    for path, body, fields in (
        ("v1/completions", {"prompt": "x", "n": 64, "max_tokens": 200, "logprobs": 100}, "n"),
        ("v1/completions", {"prompt": [[5] * 200] * 99, "echo": True, "logprobs": 99}, "echo"),
        ("v1/chat/completions", {**messages, "logprobs": True, "top_logprobs": 100}, "n"),
    ):
        error = refused(running.post(path, body))
        assert fields in error["message"] and "max_tokens" in error["message"]
        assert "256 MiB" in error["message"] and "logprobs" in error["param"]
    assert running.model.scheduler.n_steps == steps
    few = {"prompt": "x", "n": 2, "max_tokens": 3, "logprobs": 100, "echo": True}
    assert running.post("v1/completions", few).status_code == 200


@pytest.mark.usefixtures("slow_steps")
def test_answers_that_run_together_are_limited(
    running: serving.InThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, model = running.server._texts._recorded, running.model
    monkeypatch.setattr(recorded, "_most", 3 << 20)
    before = model.model.unreserved()
    body = {**LONG, "max_tokens": 100, "n": 8, "logprobs": 5}  # 2 MiB
    with running.ask("v1/completions", body):
        wait_for(lambda: recorded._taken)
        assert before - model.model.unreserved() == sum(recorded._taken.values()) > 2_000_000
        assert "together" in refused(running.post("v1/completions", body), 429)["message"]
        small = {"prompt": "x", "max_tokens": 2, "logprobs": 5}
        assert running.post("v1/completions", small).status_code == 200
    wait_for(lambda: not recorded._taken)
    assert model.model.unreserved() == before
    streamed = {**body, "max_tokens": 12, "n": 60, "stream": True}
    assert running.post("v1/completions", streamed).text.endswith("data: [DONE]\n\n")
    wait_for(lambda: not recorded._taken and model.model.unreserved() == before)

    def full(what: str, n_bytes: int) -> Any:
        raise OutOfMemoryError(what)

    monkeypatch.setattr(model, "reserve", full)
    refused(running.post("v1/completions", body), 503)


def test_long_answers_keep_their_text_alone(
    running: serving.InThread, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces are joined on the way, and an answer that is written in a thread is the same."""
    body = {**LONG, "max_tokens": 40, "logprobs": 2}
    want = running.post("v1/completions", body).json()["choices"]
    monkeypatch.setattr(texts_module, "LONG", 3)
    monkeypatch.setattr(texts_module, "SMALL", 1)
    monkeypatch.setattr(recorded_module, "SMALL", 1)
    assert running.post("v1/completions", body).json()["choices"] == want


@pytest.mark.usefixtures("slow_steps")
def test_ids_that_no_model_has(running: serving.InThread) -> None:
    """They are refused before they share a pass of the engine with the texts of others."""
    with running.ask("v1/completions", {**LONG, "max_tokens": 30}) as other:
        wait_for(lambda: running.model.scheduler.n_active == 1)
        for path, field in (("v1/completions", "prompt"), ("v1/embeddings", "input")):
            for prompt in ([5, 10**6], [[5], [2**31 - 1]]):
                body = {field: prompt, "max_tokens": 4}
                assert "below" in refused(running.post(path, body))["message"]
        refused(running.post("detokenize", {"tokens": [10**6]}))
        assert other.recv(15) == b"HTTP/1.1 200 OK"


def test_our_own_errors_are_no_bad_requests(
    running: serving.InThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(*_: Any, **__: Any) -> Any:
        raise ValueError("/a/secret/path")

    for of, name, path in (
        (Generation, "choose", "v1/completions"),
        (running.model, "facts", "v1/models"),
        (openai_module, "owners", "v1/completions"),
    ):
        caplog.clear()
        with monkeypatch.context() as patch:
            patch.setattr(of, name, wrong)
            found = running.get(path) if name == "facts" else running.post(path, LONG)
        assert "secret" not in refused(found, 500)["message"]
        assert "/a/secret/path" in caplog.text and "Traceback" in caplog.text


def test_the_context_is_full(running: serving.InThread) -> None:
    found = running.post("v1/completions", {"prompt": [5] * 256, "max_tokens": 2})
    assert refused(found)["code"] == "context_length_exceeded"
    most = running.post("v1/completions", {"prompt": [5] * 255, "max_tokens": 50}).json()
    assert (
        most["usage"]["completion_tokens"] == 1 and most["choices"][0]["finish_reason"] == "length"
    )


# ---- Who may use it ----


@pytest.mark.parametrize(
    ("host", "keys", "said"),
    [
        ("0.0.0.0", (), True),
        ("0.0.0.0", ("k",), False),
        ("127.0.0.1", (), False),
        ("localhost", (), False),
    ],
)
def test_an_open_server_says_so(
    host: str, keys: tuple[str, ...], said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    sockets = listen(host, 0)
    try:
        warn_if_open(sockets, Settings(api_keys=keys))
    finally:
        for each in sockets:
            each.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"] * said
    assert not said or caplog.messages[0].startswith("0.0.0.0: whoever reaches this machine")


@pytest.mark.parametrize("request_", ["GET /health HTTP/1.0", "OPTIONS / HTTP/1.0"])
def test_checks_of_health_have_no_host(running: serving.InThread, request_: str) -> None:
    """As HAProxy sends them. Pages of other sites, for which it is looked at, cannot."""
    with running.connect(f"{request_}\r\n\r\n".encode()) as connection:
        assert connection.recv(100).split()[1] in (b"200", b"204")


@pytest.mark.parametrize(
    ("method", "headers", "busy", "status", "allowed"),
    [
        ("GET", {}, False, 401, True),
        ("GET", {"authorization": "Bearer wrong"}, False, 401, True),
        ("GET", {"authorization": "Bearer k"}, False, 200, True),
        ("GET", {"authorization": "Bearer k"}, True, 429, True),
        ("GET", {"host": "other.example"}, False, 403, True),
        ("GET", {"origin": "https://evil.example"}, False, 403, False),
        ("OPTIONS", {"origin": "https://evil.example"}, False, 403, False),
        ("OPTIONS", {}, False, 204, True),
    ],
)
def test_pages_can_read_what_was_refused(
    method: str, headers: dict[str, str], busy: bool, status: int, allowed: bool
) -> None:
    """Those that may use the server: without the header a browser shows them a network error."""

    async def turn(_sender: str) -> None:
        if busy:
            raise Refusal(429, "later")

    async def ask() -> httpx.Response:
        settings = Settings(api_keys=("k",), origins=("https://app.example",))
        app = Guarded(Response("yes"), Guard(settings, lambda _path: False), turn)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            named = {"origin": "https://app.example", **headers}
            return await client.request(method, "/v1/models", headers=named)

    answer = asyncio.run(ask())
    assert answer.status_code == status
    found = answer.headers.get_list("access-control-allow-origin")
    assert found == (["https://app.example"] if allowed else [])
    assert not allowed or "Origin" in answer.headers.get_list("vary", split_commas=True)
    assert answer.headers.get_list("x-content-type-options") == ["nosniff"]


def test_the_parts_of_uvicorn_that_are_its_own() -> None:
    """Without them nothing would close a connection whose client takes nothing."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    for name in ("_start_asgi_task", "connection_lost", "on_response_complete"):
        assert callable(getattr(HttpToolsProtocol, name, None)), name


# ---- Faults of the server ----


@pytest.mark.parametrize("stream", [False, True])
def test_faults_are_not_described(
    running: serving.InThread, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("/a/secret/path")

    body = {**LONG, "max_tokens": 20, "stream": stream}
    with monkeypatch.context() as patch:
        patch.setattr(openai_module, "prompts_of", broken)
        found = running.post("v1/completions", body)
        assert refused(found, 500)["type"] == "server_error" and "secret" not in found.text
    with monkeypatch.context() as patch:
        patch.setattr(openai_module.CompletionDicts, "push" if stream else "choice", broken)
        found = running.post("v1/completions", body)
        assert "secret" not in found.text and "KeyError" in found.text
        assert found.status_code == 500


def test_an_error_within_a_stream(
    running: serving.InThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an event of its own, which OpenAI's client raises; nothing is repeated."""
    real = Generation.choose

    def broken(text: Generation, *of: Any) -> Any:
        if text.ticket.n_tokens >= 5:
            raise RequestError("no token is left")
        return real(text, *of)

    from openai import APIError

    with monkeypatch.context() as patch:
        patch.setattr(Generation, "choose", broken)
        asked = {"model": "m", "prompt": PROMPT, "max_tokens": 20, "temperature": 0}
        with pytest.raises(APIError, match="no token is left"):
            list(running.openai().completions.create(**asked, stream=True))
