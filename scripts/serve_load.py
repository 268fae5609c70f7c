#!/usr/bin/env python3
"""Load on a server: many clients at the same time, each text compared with what it is alone.

Starts `powerinfer serve` with the default model, or uses a running server with --url. Prints
errors, times to the first token, tokens a second, and the server's memory. With --connections it
also holds that many connections open; with --grammars one of the clients sends grammars that are
hard to compute. Exit status 1 if a text differs or a request fails, except those with grammars.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

BEGINNINGS = (
    "Once upon a time, there was a",
    "The dog",
    "One day, a big bear went into the forest and saw a small bird. The bird said",
    "Lily and Tom liked to play in the park. They had a red ball and",
)
# Texts whose reading is ambiguous, or that have very many states.
_COUNTS = " | ".join(f'[a-z]{{{i}}} "{i}"' for i in range(1, 150))
GRAMMARS = (
    'root ::= dashes rest\ndashes ::= "-"*\nrest ::= "-end"',
    f"root ::= (item | pair)*\npair ::= item item\nitem ::= {_COUNTS}",
    'root ::= a*\na ::= "(" a* ")" | b b\nb ::= [a-z]{1,300} c?\nc ::= [a-z]{0,300} a?',
    'root ::= ([a-z]{0,90} [a-y]{0,90} [a-x]{0,90}){0,90} "."',
    'root ::= "(" text root? ")"\ntext ::= [^()]*',
)
GONE = 0.05  # share of the clients that go away in the middle


@dataclass
class Figures:
    """What clients saw. first: seconds to the first token, of streams."""

    first: list[float] = field(default_factory=list)
    n_texts: int = 0
    n_tokens: int = 0
    n_gone: int = 0
    n_different: int = 0
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens a second, of all clients."""
        return self.n_tokens / self.seconds


def requests(n: int, seed: int) -> list[dict[str, Any]]:
    """Bodies that differ in prompt, seed and sampling."""
    draw = random.Random(seed)
    return [
        {
            "prompt": draw.choice(BEGINNINGS),
            "max_tokens": draw.randint(16, 96),
            "temperature": draw.choice((0, 0.8, 1.2)),
            "seed": i,
        }
        for i in range(n)
    ]


class Client:
    """Asks for one text after another, each on a connection of its own."""

    def __init__(self, host: str, port: int, key: str | None):
        self._address = host, port
        self._key = f"Authorization: Bearer {key}\r\n" if key else ""

    async def ask(self, body: dict[str, Any], stream: bool, gone: bool = False) -> dict[str, Any]:
        """text, n_tokens and, of a stream, first: seconds to the first token. gone: leaves after
        the first piece. Raises OSError and ValueError."""
        begin = time.perf_counter()
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            options = {"include_usage": True}
            body = {**body, "stream": True, "stream_options": options} if stream else body
            data = json.dumps(body).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {self._address[0]}\r\n{self._key}"
            head += f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
            writer.write(head.encode() + data)
            status = await reader.readline()
            if not status.startswith(b"HTTP/1.1 200"):
                raise ValueError((status + await reader.read()).decode(errors="replace"))
            while await reader.readline() != b"\r\n":
                pass
            if not stream:
                return self._text(json.loads(await reader.read()))
            return await self._stream(reader, begin, gone)
        finally:
            writer.close()

    @staticmethod
    def _text(answer: dict[str, Any]) -> dict[str, Any]:
        n_tokens = answer["usage"]["completion_tokens"]
        return {"text": answer["choices"][0]["text"], "n_tokens": n_tokens}

    @staticmethod
    async def _stream(reader: asyncio.StreamReader, begin: float, gone: bool) -> dict[str, Any]:
        text, first, n_tokens = "", None, None
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue
            if line == b"data: [DONE]\n":
                return {"text": text, "n_tokens": n_tokens, "first": first}
            part = json.loads(line[6:])
            if "error" in part:
                raise ValueError(part["error"]["message"])
            for choice in part["choices"]:
                text += choice["text"]
                first = first or time.perf_counter() - begin
            if part.get("usage"):
                n_tokens = part["usage"]["completion_tokens"]
            if gone:
                return {"text": None, "n_tokens": 0}
        raise ValueError("the stream ended early")


async def load(
    client: Client, bodies: list[dict[str, Any]], want: list[str], n_clients: int, seconds: float
) -> Figures:
    """n_clients that ask for seconds."""
    figures = Figures()
    begin = time.perf_counter()

    async def one(number: int) -> None:
        draw = random.Random(number)
        while time.perf_counter() - begin < seconds:
            i = draw.randrange(len(bodies))
            gone = n_clients > 1 and draw.random() < GONE
            stream = gone or draw.random() < 0.7
            try:
                found = await client.ask(bodies[i], stream, gone)
            except (OSError, ValueError) as error:
                figures.errors.append(str(error))
                await asyncio.sleep(0.1)
                continue
            if gone:
                figures.n_gone += 1
                continue
            figures.n_texts += 1
            figures.n_tokens += found["n_tokens"]
            figures.n_different += found["text"] != want[i]
            if stream:
                figures.first.append(found["first"])

    await asyncio.gather(*map(one, range(n_clients)))
    figures.seconds = time.perf_counter() - begin
    return figures


async def press(client: Client, bodies: list[dict[str, Any]], until: asyncio.Event) -> list[str]:
    """Asks for texts with GRAMMARS, one after another; what came of each."""
    found = []
    for i in itertools.count():
        if until.is_set():
            break
        body = {**bodies[i % len(bodies)], "grammar": GRAMMARS[i % len(GRAMMARS)]}
        try:
            await client.ask({**body, "max_tokens": 64}, True)
            found.append("a text")
        except (OSError, ValueError) as error:
            found.append(str(error).strip()[-120:])
    return found


async def hold(host: str, port: int, n: int, key: str | None) -> list[asyncio.StreamWriter]:
    """Opens n connections, each of which has asked for /health once."""
    asked = f"GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    room = asyncio.Semaphore(100)

    async def one() -> asyncio.StreamWriter:
        async with room:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(asked)
            if not (await reader.readline()).startswith(b"HTTP/1.1 200"):
                raise ValueError("a connection got no answer")
            return writer

    return await asyncio.gather(*(one() for _ in range(n)))


def quantile(values: list[float], q: float) -> float:
    """The value below which a share q of the values lies."""
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


def resident(pid: int | None) -> float:
    """MiB of memory of a process; NaN for that of a server elsewhere."""
    if pid is None:
        return float("nan")
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def told(name: str, figures: Figures) -> None:
    """Prints figures."""
    first = [1e3 * quantile(figures.first, q) for q in (0.5, 0.99)]
    print(
        f"{name}: {figures.n_texts} texts in {figures.seconds:.0f} s, {figures.rate:.0f} tokens/s, "
        f"first token p50 {first[0]:.0f} ms, p99 {first[1]:.0f} ms; {figures.n_gone} clients went "
        f"away, {figures.n_different} texts differ, {len(figures.errors)} errors",
        flush=True,
    )
    for error in sorted(set(figures.errors))[:5]:
        print(f"  {error.strip()[:200]}")


async def run(args: argparse.Namespace, url: str, pid: int | None) -> bool:
    """Runs all and prints it; was it as it should be?"""
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    client = Client(host, port, args.key)
    bodies = requests(args.texts, args.seed)
    want = [(await client.ask(body, False))["text"] for body in bodies]
    alone = await load(client, bodies, want, 1, min(10, args.seconds))
    told("1 client", alone)
    warm = await load(client, bodies, want, args.clients, min(5, args.seconds))
    before = resident(pid)
    many = await load(client, bodies, want, args.clients, args.seconds)
    told(f"{args.clients} clients", many)
    print(f"{many.rate / alone.rate:.2f} times the tokens of one client")
    print(f"memory of the server: {before:.1f} MiB at the begin, {resident(pid):.1f} at the end")
    well = not any(f.errors or f.n_different for f in (alone, warm, many))
    if args.grammars:
        until, before = asyncio.Event(), resident(pid)
        pressed = asyncio.create_task(press(client, bodies, until))
        beside = await load(client, bodies, want, args.clients - 1, args.seconds)
        until.set()
        told(f"{args.clients - 1} clients beside one with grammars", beside)
        for what, n in collections.Counter(await pressed).most_common(5):
            print(f"  grammars: {n} times {what}")
        print(f"memory of the server: {before:.1f} MiB, after them {resident(pid):.1f}")
        well = well and not (beside.errors or beside.n_different)
    if args.connections:
        begin, before = time.perf_counter(), resident(pid)
        held = await hold(host, port, args.connections, args.key)
        seconds = time.perf_counter() - begin
        print(f"{len(held)} connections opened in {seconds:.1f} s")
        print(f"memory of the server: {before:.1f} MiB, with them {resident(pid):.1f}")
        beside = await load(client, bodies, want, args.clients, min(10, args.seconds))
        told(f"{args.clients} clients beside them", beside)
        well = well and not (beside.errors or beside.n_different)
        for writer in held:
            writer.close()
    return well


@contextlib.contextmanager
def server(args: argparse.Namespace) -> Iterator[tuple[str, int | None]]:
    """The address of a server, and its process if it is started here."""
    if args.url:
        yield args.url, None
        return
    line = [sys.executable, "-m", "powerinfer_cpp.cli", "serve", "--port", "0"]
    line += ["-m", args.model] if args.model else []
    line += ["-np", str(args.parallel)] + (["--queue", str(max(256, args.clients))])
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        said = process.stdout.readline() if process.stdout else ""
        if " at " not in said:
            raise SystemExit("the server did not start")
        yield said.split(" at ")[1].strip(), process.pid
    finally:
        process.terminate()
        process.wait(30)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="of a running server, for example http://127.0.0.1:8080")
    parser.add_argument("--key", help="its API key")
    parser.add_argument("-m", "--model", help="of an own server; default: the default model")
    parser.add_argument("--parallel", type=int, default=16, help="texts at the same time (own)")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--texts", type=int, default=48, help="different requests")
    parser.add_argument("--connections", type=int, default=0, help="held open at the end")
    parser.add_argument("--grammars", action="store_true", help="one client sends hard grammars")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    with server(args) as (url, pid):
        return 0 if asyncio.run(run(args, url, pid)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
