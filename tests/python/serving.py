"""Servers for tests: one in a thread of this process, and `powerinfer serve` as a program."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from powerinfer_cpp.server.app import Server
    from powerinfer_cpp.server.run import Uvicorn
    from powerinfer_cpp.server.served import ServedModel
    from powerinfer_cpp.server.settings import Settings


class later:  # noqa: N801 (stands for a module)
    """A package that is imported when something of it is used, as every process collects all tests.
    A module that names one which is not installed is skipped."""

    def __init__(self, name: str) -> None:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"could not import {name!r}", allow_module_level=True)
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):  # which pytest looks for in all that a module holds
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


# A module that imports this one is skipped without the packages of the extra `serve`, and these.
httpx, openai = later("httpx"), later("openai")
for _name in ("starlette", "uvicorn", "httptools", "uvloop", "msgspec", "prometheus_client"):
    later(_name)

SECONDS = 60.0  # for anything to happen


@dataclass
class Running:
    """A server that listens at url, which ends with a slash. It speaks no TLS: reading certificates
    for each request would take longer than most answers."""

    url: str

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rstrip("/").rpartition(":")[2])

    def openai(self, key: str = "none") -> openai.OpenAI:
        """OpenAI's client, which asks once."""
        return openai.OpenAI(base_url=self.url + "v1", api_key=key, max_retries=0, timeout=SECONDS)

    def anthropic(self) -> Any:
        """Anthropic's client, which asks once."""
        from anthropic import Anthropic

        return Anthropic(base_url=self.url, api_key="none", max_retries=0, timeout=SECONDS)

    def get(self, path: str, **options: Any) -> httpx.Response:
        """The answer to GET path, which has no slash in front."""
        return httpx.get(self.url + path, timeout=SECONDS, verify=False, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """The answer to POST path; body: bytes, or what is sent as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **options.pop("headers", {})}
        options |= {"timeout": SECONDS, "verify": False}
        return httpx.post(self.url + path, content=data, headers=headers, **options)

    def connect(self, data: bytes = b"") -> socket.socket:
        """A connection on which these bytes were sent."""
        made = socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)
        made.sendall(data)
        return made

    def ask(self, path: str, body: Any) -> socket.socket:
        """A connection on which a request was sent, and nothing was read."""
        return self.connect(request(path, json.dumps(body).encode()))


@dataclass
class InThread(Running):
    """A server in this process."""

    server: Server
    uvicorn: Uvicorn

    @property
    def n_connections(self) -> int:
        """Connections that are open at its end."""
        return len(self.uvicorn.server_state.connections)

    @property
    def model(self) -> ServedModel:
        """Its first model."""
        return self.server.models.get(None)

    @property
    def idle(self) -> bool:
        """Has the engine nothing to do?"""
        return self.model.engine.call(lambda: self.model.scheduler.idle)


@dataclass
class Program(Running):
    """`powerinfer serve` in a process of its own."""

    process: subprocess.Popen[str]


def request(path: str, body: bytes, method: str = "POST", **headers: str) -> bytes:
    """A request as it is sent."""
    all_ = {"Host": "127.0.0.1", "Content-Length": str(len(body)), **headers}
    lines = [f"{method} /{path} HTTP/1.1", *(f"{name}: {value}" for name, value in all_.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def wait_for(what: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """The first value of what() that is true. Raises AssertionError."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, f"did not happen in {seconds:g} s"
        time.sleep(0.01)
    return found


@contextlib.contextmanager
def in_thread(
    models: Path | Mapping[str, Path],
    settings: Settings | None = None,
    ready: bool = True,
    send_buffer: int | None = None,
    host: str = "127.0.0.1",
    **options: Any,
) -> Iterator[InThread]:
    """A server in a thread; the same address space, so that tests can look at the scheduler.

    models: a file, or files by name. ready: wait until they are loaded. send_buffer: bytes that the
    kernel takes for a client. host: where it listens. options: of `ServedModel`; the
    defaults here are n_ctx=256 and seed=1.
    """
    from powerinfer_cpp.server.app import Server
    from powerinfer_cpp.server.run import Uvicorn, listen
    from powerinfer_cpp.server.settings import Settings

    paths = {"model": models} if isinstance(models, Path) else models
    options = {"n_ctx": 256, "seed": 1, "verbose": False, **options}
    server = Server(paths, options, settings or Settings())
    sockets = listen(host, 0, server.settings.send_seconds)
    if send_buffer is not None:
        sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    uvicorn = Uvicorn(server, sockets)
    thread = threading.Thread(target=uvicorn.run, name="server", daemon=True)
    thread.start()
    running = InThread(uvicorn.url, server, uvicorn)
    try:
        wait_for(lambda: uvicorn.started or not thread.is_alive())
        if ready:
            wait_for(lambda: server.models.ready or server.models.failure)
        if server.models.failure is not None:
            raise server.models.failure
        yield running
    finally:
        uvicorn.should_exit = True
        thread.join(SECONDS)
    assert not thread.is_alive()


@contextlib.contextmanager
def program(*arguments: str | Path, **environment: str) -> Iterator[Program]:
    """`powerinfer serve` with these arguments, at a free port, when its models are loaded.

    Requests without a seed draw the same each time, so that no test depends on luck.
    """
    command = [sys.executable, "-m", "powerinfer_cpp.cli", "serve", "--port", "0", "--seed", "1"]
    process = subprocess.Popen(
        [*command, *map(str, arguments)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        errors="replace",
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        found = re.search(r"at (http://\S+/)$", line)
        assert found, line + process.stderr.read()
        yield Program(found[1], process)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=SECONDS)
        process.kill()
        process.wait()


# ---- Servers that clients try to hurt ----

PROMPT = "Once upon a time, there was a"
LONG = {"prompt": PROMPT, "max_tokens": 240, "temperature": 0, "logit_bias": {"2": -100}}


def as_before(server: InThread, path: Path) -> None:
    """Nothing is left of the requests before, and a text is what it is alone."""
    wait_for(lambda: server.idle)
    assert server.server.queues._waiting == {} and server.model.scheduler.n_waiting == 0
    assert server.model.scheduler._left == {}
    body = {"prompt": PROMPT, "max_tokens": 12, "seed": 7}
    assert server.post("v1/completions", body).json()["choices"][0]["text"] == solo(path)


_solo: list[str] = []


def solo(path: Path) -> str:
    """A text of a model that computes nothing else."""
    from powerinfer_cpp import Llama

    if not _solo:
        with Llama(path, n_ctx=256, verbose=False) as llm:
            _solo.append(llm(PROMPT, max_tokens=12, seed=7)["choices"][0]["text"])
    return _solo[0]


def refused(response: Any, status: int = 400) -> dict[str, Any]:
    """The error of an answer, which tells nothing of the inside."""
    assert response.status_code == status, response.text[:500]
    assert "Traceback" not in response.text and ".py" not in response.text
    error = response.json()["error"]
    assert error["message"] and len(error["message"]) < 2000
    return error
