"""What a client can hold of a server: connections, bodies, turns, and what its proxy says of it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import serving
from powerinfer_cpp.cli import serve
from powerinfer_cpp.run.disk_cache import LlamaDiskCache
from powerinfer_cpp.run.own_files import open_file, own_folder
from powerinfer_cpp.run.prefix_files import PrefixFiles
from powerinfer_cpp.server.connections import BACKLOG, Connections, most_of
from powerinfer_cpp.server.errors import Refusal
from powerinfer_cpp.server.limits import Arriving, Body
from powerinfer_cpp.server.settings import Settings
from serving import LONG, refused, request, wait_for

pytestmark = pytest.mark.xdist_group("timed")
N = 24  # connections that the server here may have


@pytest.fixture(scope="module")
def running(model_path: Path) -> Iterator[serving.InThread]:
    settings = Settings(
        max_connections=N,
        max_bodies=4 << 20,
        max_body=1 << 20,
        max_turns=8,
        header_seconds=30,
        proxies=("127.0.0.9", "10.0.0.0/8"),
    )
    with serving.in_thread(model_path, settings, n_parallel=2, n_queue=64) as found:
        yield found


def from_address(running: serving.Running, address: str, data: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", running.port), 10, (address, 0))
    made.sendall(data)
    return made


def said(connection: socket.socket, n: int = 1 << 16) -> bytes:
    """What comes until the end, or within a second."""
    connection.settimeout(1)
    found = b""
    try:
        while len(found) < n and (part := connection.recv(n)):
            found += part
    except OSError:
        pass
    return found


def is_open(connection: socket.socket) -> bool:
    connection.settimeout(0.001)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except TimeoutError:
        return True
    except OSError:
        return False


def is_ended(connection: socket.socket) -> bool:
    """Has the other end closed it? What it said before is dropped."""
    connection.settimeout(0.2)
    try:
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


HEALTH = request("health", b"", "GET")
SHORT = request("v1/completions", json.dumps({"prompt": "a", "max_tokens": 1}).encode())
needs_loopback = pytest.mark.skipif(
    sys.platform != "linux", reason="other systems have one loopback address"
)


# ---- Connections ----


class Held:
    def __init__(self, holder: str):
        self.holder, self.open = holder, True

    def abort(self) -> None:
        self.open = False


def test_who_holds_most_gives_one_up() -> None:
    of = Connections(6)
    many = [Held("a") for _ in range(6)]
    assert all(map(of.add, many))
    of.busy(many[0])
    others = [Held(name) for name in "bcb"]
    for i, other in enumerate(others):
        assert of.add(other)
        assert [each.open for each in many] == [True, *[False] * (i + 1), *[True] * (4 - i)]
    # a has 3, b 2, c 1: a fourth of a takes the place of one of its own, a third of b none.
    fourth = Held("a")
    assert of.add(fourth) and not many[4].open and many[5].open
    assert not of.add(Held("b"))
    of.drop(many[1])  # it is gone already
    for each in (many[5], fourth, *others):
        of.busy(each)
    # Where a client waits for answers on all of them, it loses the newest for one that has none.
    assert of.add(Held("d")) and not fourth.open and many[0].open
    for each in (many[0], many[5], *others):
        of.drop(each)
    assert of._held.total() == 1 and set(of._all) == set(of._idle) == {"d"}


def test_how_many_connections() -> None:
    assert most_of(None) == most_of(1 << 20) == 20_000
    for n_files in (256, 1024, 1500, 4096, 20_000):
        assert n_files // 2 <= most_of(n_files) < n_files
    assert all(n - most_of(n) > BACKLOG for n in (2048, 20_000))


@needs_loopback
def test_idle_connections_of_one_address(running: serving.InThread) -> None:
    held = [from_address(running, "127.0.0.2") for _ in range(2 * N)]
    held += [from_address(running, "127.0.0.3", b"POST / HTTP/1.1\r\n") for _ in range(2 * N)]
    wait_for(lambda: running.n_connections <= N)
    assert sum(map(is_open, held[: 2 * N])) > N // 4 < sum(map(is_open, held[2 * N :]))
    for i in range(N // 4):
        other = from_address(running, f"127.0.0.{10 + i}", HEALTH)
        assert said(other, 15).startswith(b"HTTP/1.1 200")
        held.append(other)
    for each in held:
        each.close()
    wait_for(lambda: running.n_connections == 0)


@needs_loopback
def test_running_requests_stay(running: serving.InThread) -> None:
    """Who holds less than others loses nothing, nor is a text ended for an idle connection."""
    texts = request("v1/completions", json.dumps({**LONG, "stream": True}).encode())
    works = from_address(running, "127.0.0.2", texts)
    assert works.recv(15) == b"HTTP/1.1 200 OK"
    idle = [from_address(running, "127.0.0.2") for _ in range(2 * N)]
    for each in (from_address(running, "127.0.0.4", SHORT) for _ in range(4)):
        assert said(each, 15).startswith(b"HTTP/1.1 200")
        each.close()
    assert b"data: [DONE]" in said(works, 1 << 20)
    for each in (*idle, works):
        each.close()
    wait_for(lambda: running.n_connections == 0)


# ---- Bodies ----


def body_of(sender: str, settings: Settings, arriving: Arriving, parts: Any) -> Body:
    class Request:
        scope = {"sender": sender}
        headers: dict[str, str] = {}

        @staticmethod
        async def stream() -> Any:
            async for part in parts:
                yield part

    return Body(Request, settings, arriving)  # type: ignore[arg-type]


def test_bodies_of_many_clients() -> None:
    """Who has most of what arrives gives up its oldest; who is read has what it sent."""
    settings, arriving = Settings(max_body=100, max_bodies=400, body_seconds=5), Arriving()
    ends: dict[str, Any] = {}

    async def main() -> None:
        go_on = anyio.Event()

        async def slow(n: int) -> Any:
            yield b"x" * n
            await go_on.wait()

        async def quick(n: int) -> Any:
            yield b"x" * n

        async def read(name: str, sender: str, parts: Any) -> None:
            body = body_of(sender, settings, arriving, parts)
            try:
                ends[name] = len(await body.read())
            except Refusal as refusal:
                ends[name] = refusal.status
            finally:
                body.close()

        async with anyio.create_task_group() as group:
            for sender in "abcd":
                for i in range(2):
                    group.start_soon(read, f"{sender}{i}", sender, slow(50))
                    await anyio.sleep(0.01)
            assert arriving.n_bytes == 400
            await read("e0", "e", quick(30))  # room is made by one of a's
            await anyio.sleep(0.01)
            assert ends == {"e0": 30, "a0": 503}
            await read("e1", "e", quick(90))
            await anyio.sleep(0.01)
            assert ends["e1"] == 90 and ends["b0"] == 503 and len(ends) == 4
            await read("c2", "c", quick(60))  # more than a client may have
            assert ends["c2"] == 429 and len(ends) == 5
            go_on.set()
        assert ends["d0"] == ends["d1"] == ends["a1"] == 50

    anyio.run(main)
    assert arriving.n_bytes == 0 and not arriving._of and not arriving._open


@needs_loopback
def test_bodies_of_four_addresses(running: serving.InThread) -> None:
    """They hold all that bodies may take, and another client is served."""
    head = request("v1/completions", b"", **{"Content-Length": str(1 << 20)})
    held = [
        from_address(running, f"127.0.0.{2 + i % 4}", head + b"x" * ((1 << 20) - 9))
        for i in range(4)
    ]
    wait_for(lambda: running.server.arriving.n_bytes > 3 << 20)
    long = json.dumps({"prompt": "a", "max_tokens": 1, "user": "x" * 50_000}).encode()
    for _ in range(3):
        other = from_address(running, "127.0.0.7", request("v1/completions", long))
        assert said(other, 15).startswith(b"HTTP/1.1 200")
        other.close()
    for each in held:
        each.close()
    wait_for(lambda: running.server.arriving.n_bytes == 0)


TRAILERS = {
    "many": b"a:b\r\n" * 100_000,
    "long": b"a: " + b"b" * 500_000,
    "name": b"b" * 500_000,
    "extension": b"",
    "chunks": b"",
}


@pytest.mark.parametrize("kind", TRAILERS)
def test_what_is_around_a_body(running: serving.InThread, kind: str) -> None:
    """Trailers, and extensions of chunks, count like headers; trailers change no header."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    chunk = b"%x\r\n%s\r\n" % (len(body), body)
    small = b"".join(b"1\r\n%c\r\n" % byte for byte in body)  # is allowed
    with running.connect(head + small + b"0\r\nx-api-key: y\r\n\r\n") as client:
        assert said(client, 15).startswith(b"HTTP/1.1 200")
    with running.connect(head) as client:
        if kind == "extension":
            client.sendall(b"2")
            rest = b";x=" + b"y" * 500_000
        elif kind == "chunks":
            rest = b"0" * 500_000
        else:
            client.sendall(chunk + b"0\r\n")
            rest = TRAILERS[kind]
        with contextlib.suppress(OSError):
            for at in range(0, len(rest), 10_000):
                client.sendall(rest[at : at + 10_000])
        assert is_ended(client)
    wait_for(lambda: running.n_connections == 0)


# ---- Who asks, and how often ----


def test_turns_are_limited(running: serving.InThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond, a client is refused at once; what its clients gave up is not done."""
    server = running.server
    monkeypatch.setattr(server._requests, "wait", lambda sender: 0.5)
    begun = running.model.scheduler.done.n_requests
    gone = [running.connect(SHORT) for _ in range(server.settings.max_turns)]
    wait_for(lambda: server._turns.total() == server.settings.max_turns)
    with running.connect(SHORT) as more:
        assert said(more, 15).startswith(b"HTTP/1.1 429")
    for each in gone:
        each.close()
    wait_for(lambda: not server._turns and running.idle)
    assert running.model.scheduler.done.n_requests == begun
    with running.connect(SHORT) as more:
        assert said(more, 15).startswith(b"HTTP/1.1 200")


@needs_loopback
@pytest.mark.parametrize(
    "address, header, sender",
    [
        ("127.0.0.9", "203.0.113.5", "203.0.113.5"),
        ("127.0.0.9", "198.51.100.1, 203.0.113.6, 10.1.2.3", "203.0.113.6"),
        ("127.0.0.9", "2001:db8::7", "2001:db8::/64"),
        ("127.0.0.8", "203.0.113.5", "127.0.0.8"),
        ("127.0.0.1", "203.0.113.5", "127.0.0.1"),  # this machine is not named
    ],
)
def test_proxies(
    running: serving.InThread,
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    header: str,
    sender: str,
) -> None:
    seen: list[str] = []
    check_room = running.model.engine.check_room
    monkeypatch.setattr(
        running.model.engine, "check_room", lambda of, n: seen.append(of) or check_room(of, n)
    )
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    asks = request("v1/completions", body, **{"X-Forwarded-For": header})
    with from_address(running, address, asks) as client:
        assert said(client, 15).startswith(b"HTTP/1.1 200")
    assert seen == [sender]


def test_the_option_for_proxies() -> None:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    given = ["--trusted-proxy", "172.17.0.9/16", "--trusted-proxy", "::1"]
    assert parser.parse_args(given).trusted_proxy == ["172.17.0.0/16", "::1"]
    assert parser.parse_args([]).trusted_proxy is None
    for wrong in ("proxy", "1.2.3", "10.0.0.0/99", "*", ""):
        with pytest.raises(SystemExit):
            parser.parse_args(["--trusted-proxy", wrong])


@pytest.mark.parametrize(
    "headers",
    [
        *(
            {"origin": o}
            for o in ("http://[", "http://[::1", "//]", "http://a:b:c", "null", "\xff")
        ),
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-dest": "image"},
    ],
)
@pytest.mark.parametrize("path", ["view/stream", "v1/models"])
def test_foreign_pages(running: serving.InThread, headers: dict[str, str], path: str) -> None:
    coded = {name: value.encode("latin-1") for name, value in headers.items()}
    refused(running.get(path, headers=coded), 403)
    assert running.get("", headers={"sec-fetch-site": "cross-site"}).status_code == 200  # a link
    assert running.get("v1/models", headers={"sec-fetch-site": "same-origin"}).status_code == 200


# ---- Files that others put there ----


def pipes(folder: Path, names: list[str]) -> None:
    for name in names:
        path = folder / name
        path.unlink(missing_ok=True)
        os.mkfifo(path)


posix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes in folders")


@posix
def test_what_is_no_file(tmp_path: Path) -> None:
    plain, link, pipe = tmp_path / "plain", tmp_path / "link", tmp_path / "pipe"
    plain.write_bytes(b"ab\r\nc")
    link.symlink_to(plain)
    os.mkfifo(pipe)
    for own in (False, True):
        with open_file(plain, own) as file:
            assert file.read() == b"ab\r\nc"
        for path in (pipe, tmp_path, Path("/dev/zero"), tmp_path / "none"):
            with pytest.raises(OSError):
                open_file(path, own)
    with open_file(link) as file:
        assert file.read()
    with pytest.raises(OSError):
        open_file(link, own=True)
    (tmp_path / "there").mkdir()
    (tmp_path / "to").symlink_to(tmp_path / "there")
    with pytest.raises(OSError, match="is a link"):
        own_folder(tmp_path / "to")


@posix
def test_a_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.geteuid()
    files = PrefixFiles(tmp_path, 1 << 20)
    assert files.write("ab" * 32, b"kept") and bytes(files.read("ab" * 32) or b"") == b"kept"
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert files.read("ab" * 32) is None and not files.write("cd" * 32, b"more")
    other = PrefixFiles(tmp_path, 1 << 20)
    assert not other.has("ab" * 32) and not other.write("cd" * 32, b"more")


@posix
def test_pipes_in_place_of_files(tmp_path: Path) -> None:
    files = PrefixFiles(tmp_path, 1 << 20)
    name = "ab" * 32
    assert files.write(name, b"kept")
    pipes(files.folder, [f"{name}.prefix", "x.partial"])
    assert files.read(name) is None
    assert PrefixFiles(tmp_path, 1 << 20).read(name) is None
    (files.folder).rename(tmp_path / "away")
    files.folder.mkdir()
    assert not files.write(name, b"kept") and not list(files.folder.iterdir())
    states = tmp_path / "states"
    for folder in (states, states / "powerinfer-states"):
        folder.mkdir()
        pipes(folder, ["a.state", f"{'b' * 64}.state", "c.partial"])
    cache = LlamaDiskCache(states)
    assert [1, 2] not in cache and cache.cache_size == 0


@posix
def test_pipes_hold_up_no_start(tmp_path: Path, model_path: Path) -> None:
    """A program that meets them says so, or goes on: within seconds."""
    folder = tmp_path / "prefixes"
    folder.mkdir()
    pipes(folder, ["salt", f"{'ab' * 32}.prefix"])
    code = "import sys; from powerinfer_cpp.run.prefix_files import PrefixFiles\n"
    code += "PrefixFiles(sys.argv[1], 1 << 20, verbose=True)"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "prompts are not kept there" in done.stderr
