"""A server whose model runs from a disk that fails: no text ends as if it were whole."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import serving
from powerinfer_cpp.bundle import bundle
from powerinfer_cpp.server.answering import ClientGone, ClientStalled, StreamResponse
from powerinfer_cpp.server.dialects.dialect import OPENAI
from powerinfer_cpp.server.errors import Refusal, refusal_of

from powerinfer_cpp import Llama, StorageError

FIELDS: dict[str, Any] = {"n_ctx": 80, "n_batch": 16, "n_ubatch": 16, "n_parallel": 2}
PROMPT = "The dog saw a big"
CHAT = [{"role": "user", "content": PROMPT}]
# By path: a body, and how its stream tells of an error and of its end.
ASKED: dict[str, tuple[dict[str, Any], bytes, bytes]] = {
    "v1/completions": ({"prompt": PROMPT}, b'data: {"error":', b"[DONE]"),
    "v1/chat/completions": ({"messages": CHAT}, b'data: {"error":', b"[DONE]"),
    "v1/responses": ({"input": PROMPT}, b"event: response.failed\n", b"response.completed"),
    "v1/messages": ({"messages": CHAT}, b"event: error\n", b"message_stop"),
}


class Disk:
    """The one on which a model's file lies."""

    def __init__(self, path: Path):
        self.path, self._data = path, path.read_bytes()

    def fail(self) -> None:
        """From now on every read fails."""
        os.truncate(self.path, 4096)

    def mend(self) -> None:
        """The bytes are there again."""
        with open(self.path, "r+b") as file:
            file.write(self._data)


@pytest.fixture(scope="module")
def disk(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Disk:
    path = tmp_path_factory.mktemp("disk") / "model.gguf"
    bundle(model_path, path, verbose=False)
    return Disk(path)


@pytest.fixture(scope="module")
def running(disk: Disk) -> Iterator[serving.InThread]:
    with serving.in_thread(disk.path, bundle=False, **FIELDS) as whole:
        budget = 0.85 * whole.model.runtime.plan()["total"] / (1 << 30)
    with serving.in_thread(disk.path, bundle=False, ram_budget=budget, **FIELDS) as found:
        assert found.model.runtime.plan()["storage"]["ffn"] > 0
        yield found


@pytest.fixture(autouse=True)
def _as_before(running: serving.InThread, disk: Disk) -> Iterator[None]:
    """After a failure the next text is what it was."""
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    want = running.post("v1/completions", body).json()["choices"]
    yield
    disk.mend()
    assert running.post("v1/completions", body).json()["choices"] == want


def body_of(path: str, stream: bool) -> dict[str, Any]:
    more = {"temperature": 0, "stream": stream}
    if path == "v1/messages":
        more["max_tokens"] = 60
    return {**ASKED[path][0], **more}


def checked(error: dict[str, Any], disk: Disk) -> None:
    assert "could not read" in error["message"] and str(disk.path) not in error["message"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", ASKED)
def test_before_the_first_token(
    running: serving.InThread,
    disk: Disk,
    path: str,
    stream: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk.fail()
    with caplog.at_level(logging.ERROR, "powerinfer_cpp.server"):
        found = running.post(path, body_of(path, stream))
    assert found.status_code == 500, found.text
    checked(found.json()["error"], disk)
    assert str(disk.path) in caplog.text  # whoever runs the server gets to know


@pytest.fixture
def fails_at(
    running: serving.InThread, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], None]:
    """Makes the disk fail before a step of the engine that follows."""

    def fails_at(n: int) -> None:
        scheduler, steps = running.model.scheduler, iter(range(1000))
        real = scheduler.step

        def step() -> Any:
            if next(steps) == n:
                disk.fail()
            return real()

        monkeypatch.setattr(scheduler, "step", step)

    return fails_at


@pytest.mark.parametrize("path", ASKED)
def test_in_the_middle(
    running: serving.InThread, disk: Disk, fails_at: Callable[[int], None], path: str
) -> None:
    fails_at(12)
    found = running.post(path, body_of(path, True))
    _, told, end = ASKED[path]
    assert found.status_code == 200 and found.content.count(b"data: ") > 1
    assert told in found.content and end not in found.content, found.text
    data = msgspec.json.decode(found.content.split(b"data: ")[-1])
    checked(data["error"] if "error" in data else data["response"]["error"], disk)


def test_in_the_middle_of_a_whole_answer(
    running: serving.InThread, disk: Disk, fails_at: Callable[[int], None]
) -> None:
    fails_at(12)
    assert running.post("v1/completions", body_of("v1/completions", False)).status_code == 500


def test_streams_of_llama(disk: Disk) -> None:
    fields = {name: FIELDS[name] for name in ("n_ctx", "n_batch", "n_ubatch")}
    with Llama(disk.path, bundle=False, verbose=False, **fields) as whole:
        budget = 0.85 * whole.plan()["total"] / (1 << 30)
    with Llama(disk.path, bundle=False, verbose=False, ram_budget=budget, **fields) as llm:
        parts = iter(llm(PROMPT, max_tokens=60, temperature=0, stream=True))
        next(parts)
        disk.fail()
        with pytest.raises(StorageError, match="model.gguf"):
            list(parts)


class Broken:
    """A client's connection that fails with an error."""

    def __init__(self, error: Exception):
        self._error = error

    async def receive(self) -> Any:
        await asyncio.sleep(60)

    async def send(self, message: Any) -> None:
        raise self._error


@pytest.mark.parametrize("error", [OSError(5, "x"), BrokenPipeError(), TimeoutError()])
def test_errors_of_both_sides_are_told_apart(error: OSError) -> None:
    """The same error is the client's where it comes from sending, else the server's."""
    told: list[Refusal] = []
    sent: list[Any] = []

    def tell(refusal: Refusal) -> bytes:
        told.append(refusal)
        return b"told"

    async def failing() -> Any:
        yield b"x"
        raise error

    async def fine() -> Any:
        yield b"x"

    async def send(message: Any) -> None:
        sent.append(message)

    async def both() -> None:
        broken = Broken(error)
        await StreamResponse(failing, tell, OPENAI, 30)({"type": "http"}, broken.receive, send)
        await StreamResponse(fine, tell, OPENAI, 30)({"type": "http"}, broken.receive, broken.send)

    asyncio.run(both())
    assert [refusal.status for refusal in told] == [500]
    assert [message.get("body") for message in sent] == [None, b"x", b"told", b""]
    assert refusal_of(error).status == 500
    assert not issubclass(ClientGone, OSError) and not issubclass(ClientStalled, OSError)
