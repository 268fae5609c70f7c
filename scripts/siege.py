#!/usr/bin/env python3
"""A mixed load for minutes, beside one client that tries attack after attack, and beside the same
client when it sends plain requests, as many and of as many bytes.

Starts `powerinfer serve` with drafts from the texts, prompts on disk and a key for each client.
The ordinary clients stream one text after another, some with grammars; some go away in the middle;
one watches the live view. Every minute the disk of the prompts fails for ten seconds. Prints for
each attack what the ordinary clients got beside it and beside the plain requests: tokens a second,
times to the first token, gaps between tokens; and the server's memory. Exit status 1 if an
ordinary client got an error, or the engine ended.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serve_load import BEGINNINGS, quantile

KEY = "the key of client %d"
DISK_SECONDS = 60.0, 10.0  # between two failures, and of each
GRAMMAR = 'root ::= ([A-Z] [a-z]{1,8} (" " [a-z]{1,8}){3,12} ". ")+'
LISTS = 'root ::= "<tool_call>\\n{\\"name\\": \\"run\\", \\"arguments\\": {\\"x\\": [" '
LISTS += '"1, "{2000} "1]}}\\n</tool_call>"'
TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]
PLAIN = {"max_tokens": 16, "logit_bias": {"0": -100, "2": -100}}


class Hostile:
    """One client, which may have several addresses. n, n_bytes: requests that it sent."""

    def __init__(self, port: int):
        self.port, self.n, self.n_bytes = port, 0, 0

    @contextlib.asynccontextmanager
    async def sent(
        self, data: bytes, address: str | None = None
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection on which these bytes were sent."""
        local = None if address is None else (address, 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=local)
        self.n, self.n_bytes = self.n + 1, self.n_bytes + len(data)
        try:
            writer.write(data)
            yield reader, writer
        finally:
            writer.close()

    async def ask(self, path: str, body: Any, **headers: str) -> None:
        """Sends a request and reads the answer."""
        with contextlib.suppress(OSError):
            async with self.sent(request(path, body, **headers)) as (reader, _):
                while await reader.read(1 << 20):
                    pass


def request(path: str, body: Any, n_bytes: int | None = None, **headers: str) -> bytes:
    """A request as it is sent; body: None for GET. n_bytes: what its head says."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{'GET' if body is None else 'POST'} /{path} HTTP/1.1", "Host: 127.0.0.1"]
    lines += [f"Authorization: Bearer {KEY % 0}", "Connection: close"]
    lines += [f"Content-Length: {len(data) if n_bytes is None else n_bytes}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


# ---- Attacks: what one of several tasks does again and again ----


async def watchers(hostile: Hostile, i: int) -> None:
    async with hostile.sent(request("view/stream", None)) as (reader, _):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(4096), 0.15)


async def trailers(hostile: Hostile, i: int) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with hostile.sent(head + b"2\r\n{}\r\n0\r\n") as (_, writer):
        for _ in range(100):
            writer.write(b"a:b\r\n" * 13_000)
            hostile.n_bytes += 65_000
            await writer.drain()
            await asyncio.sleep(0.01)


async def calls(hostile: Hostile, i: int) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "grammar": LISTS}
    await hostile.ask("v1/chat/completions", {**body, "max_tokens": 4000, "seed": i})


async def breakers(hostile: Hostile, i: int) -> None:
    texts = [f"{chr(97 + (i + j) % 26)}{j} a b c d e f g h i j k l m n o p {i}" for j in range(32)]
    body = {"prompt": "a", "max_tokens": 1, "dry_multiplier": 1, "dry_sequence_breakers": texts}
    await hostile.ask("v1/completions", body)


async def samplers(hostile: Hostile, i: int) -> None:
    body = {"prompt": "Once upon a time", "n": 7, "top_k": 0, "typical_p": 0.99, "top_p": 0.999}
    body |= {"xtc_probability": 1, "xtc_threshold": 0.0001, "seed": i, "logprobs": 100}
    await hostile.ask("v1/completions", {**body, **PLAIN, "max_tokens": 60})


async def vanishing(hostile: Hostile, i: int) -> None:
    body = {"prompt": [3 + j % 2000 for j in range(1500)], "max_tokens": 100, "stream": True}
    async with hostile.sent(request("v1/completions", body)):
        await asyncio.sleep(0)


async def connections(hostile: Hostile, i: int) -> None:
    async with hostile.sent(b"", f"127.0.0.{2 + i % 8}") as (reader, _):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(1), 9)


async def bodies(hostile: Hostile, i: int) -> None:
    n = 8 << 20
    data = request("v1/completions", b"x" * (n - 5), n)
    async with hostile.sent(data, f"127.0.0.{2 + i % 8}") as (reader, _):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(1), 20)


async def prompts(hostile: Hostile, i: int) -> None:
    ids = [1000 + (100 * i + j) % 40_000 for j in range(8)]
    await hostile.ask("v1/completions", {"prompt": ids, "max_tokens": 1})


async def origins(hostile: Hostile, i: int) -> None:
    await hostile.ask("v1/models", None, Origin=("http://[", "http://[::1", "http://]")[i % 3])


Attack = Callable[[Hostile, int], Awaitable[None]]
# With the number of tasks.
ATTACKS: dict[str, tuple[Attack, int]] = {
    "01 watchers": (watchers, 4),
    "02 trailers": (trailers, 4),
    "03 calls": (calls, 2),
    "04 breakers": (breakers, 4),
    "05 samplers": (samplers, 1),
    "06 vanishing": (vanishing, 24),
    "07 connections": (connections, 2000),
    "08 bodies": (bodies, 32),
    "09 prompts": (prompts, 4),
    "14 origins": (origins, 4),
}


async def attack(args: argparse.Namespace) -> None:
    """What the hostile client does, in a process of its own, until it is told to end. Prints how
    many requests and bytes a second it sent."""
    hostile, until = Hostile(args.port), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, until.set)
    begin = time.perf_counter()

    async def again(send: Attack, number: int, n: int) -> None:
        for i in itertools.count(number, n):
            with contextlib.suppress(OSError, TimeoutError):
                await send(hostile, i)

    async def plain() -> None:
        rate, n_bytes = args.plain
        pad = max(0, int(n_bytes / max(rate, 1e-9)) - 250)
        body = {"prompt": "Once", "user": "x" * min(pad, 8_000_000), **PLAIN}
        data, running = request("v1/completions", body), set()

        async def one() -> None:
            with contextlib.suppress(OSError):
                async with hostile.sent(data) as (reader, _):
                    while await reader.read(1 << 20):
                        pass

        for i in itertools.count():
            await asyncio.sleep(max(0.0, begin + i / rate - time.perf_counter()))
            if len(running) < 500:
                running.add(task := asyncio.create_task(one()))
                task.add_done_callback(running.discard)

    if args.plain:
        tasks = [asyncio.create_task(plain())]
    else:
        send, n = ATTACKS[args.attack]
        tasks = [asyncio.create_task(again(send, i, n)) for i in range(n)]
    await until.wait()
    seconds = time.perf_counter() - begin
    print(json.dumps([hostile.n / seconds, hostile.n_bytes / seconds]), flush=True)
    for task in tasks:
        task.cancel()


# ---- Ordinary clients ----


@dataclass
class Seen:
    """What ordinary clients saw in a time."""

    n_tokens: int = 0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    memory: float = 0.0  # MiB, at most


class Crowd:
    """Ordinary clients. seen: is replaced by who measures."""

    def __init__(self, port: int, n: int):
        self._port, self._n, self.seen = port, n, Seen()

    async def run(self) -> None:
        await asyncio.gather(*(self._one(i) for i in range(self._n)), self._watch())

    async def _one(self, number: int) -> None:
        draw = random.Random(number)
        while True:
            body: dict[str, Any] = {
                "prompt": f"{number} {draw.choice(BEGINNINGS)} {draw.random()} and then",
                "max_tokens": draw.randint(24, 64),
                "seed": number,
                "stream": True,
                "logit_bias": PLAIN["logit_bias"],
            }
            if number % 5 == 0:
                body["grammar"] = GRAMMAR
            try:
                await self._text(number, body, draw.random() < 0.1)
            except (OSError, ValueError) as error:
                self.seen.errors.append(str(error).strip()[:200])
                await asyncio.sleep(0.2)

    async def _text(self, number: int, body: Any, leaves: bool) -> None:
        data = request("v1/completions", body).replace(
            (KEY % 0).encode() + b"\r\n", (KEY % (number + 1)).encode() + b"\r\n"
        )
        begin = last = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(data)
            line = await reader.readline()
            if not line.startswith(b"HTTP/1.1 200"):
                raise ValueError((line + await reader.read()).decode(errors="replace"))
            n = 0
            while line := await reader.readline():
                if not line.startswith(b"data: "):
                    continue
                if line == b"data: [DONE]\n":
                    return
                if line.startswith(b'data: {"error"'):
                    raise ValueError(line.decode(errors="replace"))
                now = time.perf_counter()
                (self.seen.gaps if n else self.seen.first).append(now - last if n else now - begin)
                n, last = n + 1, now
                self.seen.n_tokens += 1
                if leaves and n == 8:
                    return
            raise ValueError("the stream ended early")
        finally:
            writer.close()

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                key = (KEY % 1).encode()
                data = request("view/stream", None).replace((KEY % 0).encode(), key)
                writer.write(data)
                while await reader.read(1 << 16):
                    pass
                writer.close()
            await asyncio.sleep(0.5)


async def failing_disk(folder: Path) -> None:
    """Takes the folder away for a while, again and again."""
    while True:
        await asyncio.sleep(DISK_SECONDS[0])
        with contextlib.suppress(OSError):
            (folder / "prefixes").rename(folder / "away")
        await asyncio.sleep(DISK_SECONDS[1])
        with contextlib.suppress(OSError):
            (folder / "prefixes").rmdir()
        with contextlib.suppress(OSError):
            (folder / "away").rename(folder / "prefixes")


async def beside(
    args: argparse.Namespace, crowd: Crowd, port: int, pid: int, words: list[str]
) -> tuple[Seen, list[float]]:
    """What ordinary clients see beside a process with these words, and what it sent."""
    line = ["nice", "-n", "10", sys.executable, __file__, "-m", args.model, "--port", str(port)]
    process = await asyncio.create_subprocess_exec(*line, *words, stdout=subprocess.PIPE)
    await asyncio.sleep(2)
    seen = crowd.seen = Seen()
    until = time.perf_counter() + args.seconds
    while time.perf_counter() < until:
        await asyncio.sleep(1)
        seen.memory = max(seen.memory, resident(pid))
    crowd.seen = Seen()
    process.terminate()
    said, _ = await process.communicate()
    return seen, json.loads(said)


def resident(pid: int) -> float:
    """MiB of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


async def run(
    args: argparse.Namespace, port: int, pid: int, folder: Path, words: dict[str, list[str]]
) -> dict[str, tuple[Seen, list[float]]]:
    """Runs the crowd beside each of these, one after the other."""
    crowd = Crowd(port, args.clients)
    tasks = [asyncio.create_task(crowd.run()), asyncio.create_task(failing_disk(folder))]
    await asyncio.sleep(5)
    found = {}
    for name, of in words.items():
        found[name] = await beside(args, crowd, port, pid, of)
        print(told(name, *found[name]), file=sys.stderr, flush=True)
        await asyncio.sleep(3)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return found


def told(name: str, seen: Seen, sent: list[float]) -> str:
    first, gaps = (1e3 * quantile(each, 0.99) for each in (seen.first, seen.gaps))
    return (
        f"{name}: {seen.n_tokens} tokens, first p99 {first:.0f} ms, gap p99 {gaps:.0f} ms, "
        f"{seen.memory:.0f} MiB, {len(seen.errors)} errors {sorted(set(seen.errors))[:3]}; it sent "
        f"{sent[0]:.1f} requests and {sent[1]:.0f} bytes a second"
    )


@contextlib.contextmanager
def server(args: argparse.Namespace) -> Iterator[tuple[int, subprocess.Popen[str], Path]]:
    """Port, process and folder of a server."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keys = folder / "keys"
        keys.write_text("\n".join(KEY % i for i in range(args.clients + 1)))
        line = [sys.executable, "-m", "powerinfer_cpp.cli", "serve", "--port", "0", "--lookup"]
        line += ["-m", args.model, "-np", str(args.clients + 1), "-c", "4096"]
        line += ["--kv-size", "32768", "--api-key-file", str(keys), "--prompt-cache-dir", name]
        log = (folder / "log").open("w+")
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            said = process.stdout.readline() if process.stdout else ""
            if " at " not in said:
                raise SystemExit("the server did not start")
            yield int(said.strip().rstrip("/").rpartition(":")[2]), process, folder
        finally:
            process.terminate()
            process.wait(60)
            log.seek(0)
            lines = log.readlines()
            print(f"lines in the log: {len(lines)}", *lines[:3], file=sys.stderr)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", required=True, help="the server's")
    parser.add_argument("--clients", type=int, default=19, help="ordinary ones")
    parser.add_argument("--seconds", type=float, default=115, help="of each attack")
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)
    parser.add_argument("--plain", nargs=2, type=float, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.attack or args.plain:
        asyncio.run(attack(args))
        return 0
    well, found = True, []
    words = {name: ["--attack", name] for name in args.attacks}
    for _ in range(2):
        with server(args) as (port, process, folder):
            seen = asyncio.run(run(args, port, process.pid, folder, words))
            well = well and process.poll() is None
        found.append(seen)
        words = {name: ["--plain", *map(str, sent)] for name, (_, sent) in seen.items()}
        well = well and not any(each.errors for each, _ in seen.values())
    names = ("tokens/s", "first p99, ms", "gap p99, ms", "memory, MiB")
    print("| client | requests/s | kB/s |", " | ".join(f"{n}, plain | attack" for n in names), "|")
    print("| --- |", "---: | " * 10)
    totals = [0, 0]
    for name, (attacked, sent) in found[0].items():
        plain = found[1][name][0]
        row = [name, f"{sent[0]:.1f}", f"{sent[1] / 1e3:.0f}"]
        row += [f"{each.n_tokens / args.seconds:.0f}" for each in (plain, attacked)]
        for of in ("first", "gaps"):
            row += [f"{1e3 * quantile(getattr(e, of), 0.99):.0f}" for e in (plain, attacked)]
        row += [f"{each.memory:.0f}" for each in (plain, attacked)]
        print("|", " | ".join(row), "|")
        totals = [totals[0] + plain.n_tokens, totals[1] + attacked.n_tokens]
    print(f"all: {totals[1] / max(1, totals[0]):.3f} of the tokens beside plain requests")
    for of in ("first", "gaps"):
        of_all = [[x for seen, _ in each.values() for x in getattr(seen, of)] for each in found]
        p99 = [1e3 * quantile(each, 0.99) for each in of_all]
        print(f"{of}: p99 {p99[0]:.0f} ms beside attacks, {p99[1]:.0f} beside plain requests")
    return 0 if well else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    raise SystemExit(main())
