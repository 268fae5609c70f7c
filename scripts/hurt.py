#!/usr/bin/env python3
"""One hostile client against all others: what the others lose.

Starts `powerinfer serve` with a model, a key for each client, and well-behaved clients that stream
one text after another. For each attack it measures them alone, then beside the attack, and prints a
table: tokens a second and seconds to the first token of all well-behaved clients together, the
peak of the server's memory, and what the hostile client got. Exit status 1 if one of the
well-behaved clients got an error.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import itertools
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serve_load import BEGINNINGS, GRAMMARS, Client, Figures, quantile

KEY = "the key of client %d"
LEAD = 3  # seconds in which an attack uses up what any client may have at once
WORDS = "one two three four five six seven eight nine ten "


class Hostile:
    """Sends what it likes. got: how often each status came."""

    def __init__(self, host: str, port: int, n_ctx: int):
        self._address, self.n_ctx = (host, port), n_ctx
        self._made = b""
        self.got: collections.Counter[str] = collections.Counter()

    def once(self, make: Callable[[], Any]) -> bytes:
        """The body that make gives, made only once: a client elsewhere takes no time from the
        server to write its bodies."""
        self._made = self._made or json.dumps(make()).encode()
        return self._made

    @contextlib.asynccontextmanager
    async def sent(self, path: str, body: Any) -> AsyncIterator[asyncio.StreamReader]:
        """A connection on which a request was sent; body: bytes, or what is sent as JSON; None for
        GET."""
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            data = b"" if body is None else data
            head = f"{'GET' if body is None else 'POST'} /{path} HTTP/1.1\r\n"
            head += f"Host: {self._address[0]}\r\nAuthorization: Bearer {KEY % 0}\r\n"
            head += f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
            writer.write(head.encode() + data)
            yield reader
        finally:
            writer.close()

    async def ask(self, path: str, body: Any) -> None:
        """Sends a request and reads the answer."""
        try:
            async with self.sent(path, body) as reader:
                status = (await reader.readline()).decode().split()
                while await reader.read(1 << 20):
                    pass
            self.got[status[1] if len(status) > 1 else "nothing"] += 1
        except OSError as error:
            self.got[type(error).__name__] += 1


Attack = Callable[[Hostile, int], Awaitable[None]]


async def recorded(hostile: Hostile, i: int) -> None:
    """Many texts with many candidates: what is refused, and the most that is not."""
    for n, top in ((64, 100), (64, 20), (32, 5)):
        body = {"prompt": WORDS, "n": n, "max_tokens": 256, "logprobs": top, "temperature": 1.5}
        await hostile.ask("v1/completions", {**body, "logit_bias": {"0": -100, "2": -100}})


async def echoed(hostile: Hostile, i: int) -> None:
    """Many prompts whose tokens are recorded."""
    options = {"max_tokens": 1, "echo": True, "logprobs": 5}

    def make() -> Any:
        return {"prompt": [f"{j} {WORDS * 8}" for j in range(400)], **options}

    await hostile.ask("v1/completions", hostile.once(make))


async def tokenize(hostile: Hostile, i: int) -> None:
    """Texts of 8 MB."""
    text = WORDS * (7_800_000 // len(WORDS))
    await hostile.ask("tokenize", hostile.once(lambda: {"content": text}))


async def long_bodies(hostile: Hostile, i: int) -> None:
    """Prompts of 8 MB, which no context holds."""
    text = WORDS * (7_800_000 // len(WORDS))
    await hostile.ask("v1/completions", hostile.once(lambda: {"prompt": text}))


async def detokenize(hostile: Hostile, i: int) -> None:
    """More than a million ids."""
    body = hostile.once(lambda: {"tokens": [500 + j % 1000 for j in range(1_500_000)]})
    await hostile.ask("detokenize", body)
    await hostile.ask("tokenizer_info", None)


async def schemas(hostile: Hostile, i: int) -> None:
    """Chats with schemas that take long."""
    of: dict[str, Any] = {"type": "string", "pattern": "(a|b|c)*(a|c|d)*" * 40 + f"x{{{i + 1}}}"}
    schema = {"type": "object", "properties": {f"{i} {j}": of for j in range(30)}}
    messages = [{"role": "user", "content": "Tell me of a bear."}]
    form = {"type": "json_object", "schema": schema}
    body = {"messages": messages, "max_tokens": 16, "response_format": form, "seed": i}
    await hostile.ask("v1/chat/completions", body)


async def prompts(hostile: Hostile, i: int) -> None:
    """2,048 prompts in one body."""
    texts = [f"{i} {j} " for j in range(2048)]
    await hostile.ask("v1/completions", {"prompt": texts, "max_tokens": 8, "seed": i})


async def watchers(hostile: Hostile, i: int) -> None:
    """Watchers of the live view that vanish."""

    async def watch() -> None:
        async with hostile.sent("view/stream", None) as reader:
            status = (await reader.readline()).decode().split()
            hostile.got[status[1] if len(status) > 1 else "nothing"] += 1
            await asyncio.sleep(random.random() * 0.5)

    await asyncio.gather(*(watch() for _ in range(4)), return_exceptions=True)


async def status(hostile: Hostile, i: int) -> None:
    """Questions without end."""
    for path in ("slots", "metrics", "props", "health"):
        await hostile.ask(path, None)


async def long_prompt(hostile: Hostile, i: int) -> None:
    """Prompts that fill the context."""
    ids = [500 + (i * 7 + j * j) % 20_000 for j in range(hostile.n_ctx - 16)]
    await hostile.ask("v1/completions", {"prompt": ids, "max_tokens": 8})


async def grammars(hostile: Hostile, i: int) -> None:
    """Grammars that are hard to compute, for several texts each."""
    body = {"prompt": WORDS, "max_tokens": 64, "seed": i, "n": 4}
    await hostile.ask("v1/completions", {**body, "grammar": GRAMMARS[i % len(GRAMMARS)]})


async def embeddings(hostile: Hostile, i: int) -> None:
    """Vectors of 2,048 texts."""
    body = hostile.once(lambda: {"input": [f"{j} {WORDS * 4}" for j in range(2048)]})
    await hostile.ask("v1/embeddings", body)


async def texts(hostile: Hostile, i: int) -> None:
    """As many texts as one body may ask for."""
    body = {"prompt": WORDS, "n": 64, "max_tokens": 256, "seed": i, "logit_bias": {"2": -100}}
    await hostile.ask("v1/completions", body)


# With the number of connections at the same time.
ATTACKS: dict[str, tuple[Attack, int]] = {
    "n x logprobs": (recorded, 4),
    "echo x logprobs": (echoed, 4),
    "tokenize 8 MB": (tokenize, 4),
    "prompts of 8 MB": (long_bodies, 4),
    "detokenize": (detokenize, 4),
    "slow schemas": (schemas, 8),
    "2,048 prompts": (prompts, 2),
    "watchers": (watchers, 8),
    "status": (status, 4),
    "long prompts": (long_prompt, 2),
    "grammars": (grammars, 8),
    "64 texts": (texts, 4),
    "embeddings": (embeddings, 2),
}


@dataclass
class Text:
    """What a client saw of a text. Times are those of time.perf_counter()."""

    begun: float
    first: float = 0.0  # its first token
    ended: float = 0.0  # 0: not yet
    n_tokens: int = 0

    def within(self, begin: float, end: float) -> float:
        """Its tokens of a time, as if they came evenly."""
        shared = min(end, self.ended) - max(begin, self.first)
        return self.n_tokens * max(0.0, shared) / max(1e-9, self.ended - self.first)


class Crowd:
    """Well-behaved clients, each of which streams one text after another. Use it with `async
    with`."""

    def __init__(self, clients: list[Client], n_tokens: int):
        self._clients, self._n_tokens = clients, n_tokens
        self._texts: list[Text] = []
        self.errors: list[str] = []

    async def __aenter__(self) -> Crowd:
        self._tasks = [asyncio.create_task(self._one(i)) for i in range(len(self._clients))]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _one(self, number: int) -> None:
        draw = random.Random(number)
        await asyncio.sleep(draw.random() * 3)  # not all together
        while True:
            body = {
                "prompt": f"{number} {draw.random()} {draw.choice(BEGINNINGS)}",
                "max_tokens": draw.randint(self._n_tokens // 2, self._n_tokens),
                "seed": number,
                "logit_bias": {"0": -100, "2": -100},
            }
            text = Text(time.perf_counter())
            self._texts.append(text)
            try:
                found = await self._clients[number].ask(body, True)
            except (OSError, ValueError) as error:
                self.errors.append(str(error).strip()[:200])
                self._texts.remove(text)
                await asyncio.sleep(0.1)
                continue
            text.first, text.n_tokens = text.begun + found["first"], found["n_tokens"]
            text.ended = time.perf_counter()

    async def seen(self, seconds: float) -> Figures:
        """What clients see in so many seconds from now."""
        begin = time.perf_counter()
        await asyncio.sleep(seconds)
        end = time.perf_counter()
        figures = Figures(seconds=end - begin)
        # Texts that are not ended yet count, too.
        while any(not text.ended for text in self._texts if text.begun < end):
            await asyncio.sleep(0.05)
        figures.n_tokens = round(sum(text.within(begin, end) for text in self._texts))
        firsts = [t for t in self._texts if t.ended and begin <= t.first < end]
        figures.first = [text.first - text.begun for text in firsts]
        self._texts = [text for text in self._texts if not text.ended]
        return figures


def added(to: Figures, more: Figures) -> None:
    """Adds the figures of another round."""
    to.first += more.first
    to.n_tokens += more.n_tokens
    to.seconds += more.seconds


async def attack(args: argparse.Namespace) -> None:
    """Sends one attack again and again, until the process is told to end; then says what it got."""
    hostile = Hostile("127.0.0.1", args.port, args.ctx)
    send, n = ATTACKS[args.attack]
    until = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, until.set)
    print("ready", flush=True)

    async def again(number: int) -> None:
        for i in itertools.count(number, n):
            await send(hostile, i)

    tasks = [asyncio.create_task(again(i)) for i in range(n)]
    await asyncio.wait({asyncio.create_task(until.wait()), *tasks}, return_when="FIRST_COMPLETED")
    for task in tasks:
        if task.done():
            task.result()  # raises: no attack ends by itself
        task.cancel()
    print(json.dumps(hostile.got), flush=True)


async def attacked(
    args: argparse.Namespace, name: str, port: int, crowd: Crowd
) -> tuple[Figures, collections.Counter[str]]:
    """What clients see beside an attack, which has begun some seconds before; and what it got. It
    comes from a process of its own that takes little time from the others, as if from elsewhere."""
    line = [sys.executable, __file__, "-m", args.model, "--ctx", str(args.ctx)]
    process = await asyncio.create_subprocess_exec(
        *("nice", "-n", "10", *line, "--attack", name, "--port", str(port)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    await asyncio.sleep(LEAD)
    figures = await crowd.seen(args.seconds)
    process.terminate()
    said, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"the attack {name!r} failed")
    return figures, collections.Counter(json.loads(said))


def peak(pid: int, reset: bool = False) -> float:
    """MiB that a process had at most, since the last reset."""
    if reset:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


async def run(args: argparse.Namespace, host: str, port: int, pid: int) -> bool:
    """Runs all attacks and prints the table; was nobody refused?"""
    names = ("tokens/s alone", "beside it", "ratio", "first token p50, ms", "beside it")
    names += ("p99, ms", "beside it", "peak before, MiB", "with it")
    print("| attack |", " | ".join(names), "| it got |")
    print("| --- |", "---: | " * len(names) + "--- |", flush=True)
    clients = [Client(host, port, KEY % (i + 1)) for i in range(args.clients)]
    async with Crowd(clients, args.tokens) as crowd:
        await asyncio.sleep(2 * LEAD)
        for name in args.attacks or ATTACKS:
            alone, beside = Figures(), Figures()
            got: collections.Counter[str] = collections.Counter()
            before = peak(pid, reset=True)
            # In turns: what else the machine does changes from minute to minute.
            for _ in range(args.rounds):
                added(alone, await crowd.seen(args.seconds))
                figures, answers = await attacked(args, name, port, crowd)
                added(beside, figures)
                got += answers
                await asyncio.sleep(args.pause)
            first = [1e3 * quantile(f.first, q) for q in (0.5, 0.99) for f in (alone, beside)]
            told = ", ".join(f"{n} times {what}" for what, n in got.most_common(4))
            print(
                f"| {name} | {alone.rate:.0f} | {beside.rate:.0f} "
                f"| {beside.rate / alone.rate:.2f} | {first[0]:.0f} | {first[1]:.0f} "
                f"| {first[2]:.0f} | {first[3]:.0f} | {before:.0f} | {peak(pid):.0f} | {told} |",
                flush=True,
            )
    for error in sorted(set(crowd.errors))[:5]:
        print(error)
    return not crowd.errors


@contextlib.contextmanager
def server(args: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    """Host, port and process of a server."""
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("\n".join(KEY % i for i in range(args.clients + 1)))
        keys.flush()
        line = [sys.executable, "-m", "powerinfer_cpp.cli", "serve", "--port", "0"]
        line += ["-m", args.model, "-np", str(args.parallel or args.clients + 1)]
        line += ["-c", str(args.ctx), "--kv-size", str(args.kv_size), "--api-key-file", keys.name]
        process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        try:
            said = process.stdout.readline() if process.stdout else ""
            if " at " not in said:
                raise SystemExit("the server did not start")
            port = int(said.strip().rstrip("/").rpartition(":")[2])
            yield "127.0.0.1", port, process.pid
        finally:
            process.terminate()
            process.wait(60)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", required=True, help="the server's")
    parser.add_argument("--clients", type=int, default=19, help="well-behaved ones")
    parser.add_argument("--parallel", type=int, help="texts at the same time (one more)")
    parser.add_argument("--ctx", type=int, default=32_768, help="tokens of a request")
    parser.add_argument("--kv-size", type=int, default=65_536, help="tokens in memory")
    parser.add_argument("--tokens", type=int, default=48, help="of a text, at most")
    parser.add_argument("--seconds", type=float, default=12, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=2, help="of alone and beside, in turns")
    parser.add_argument("--pause", type=float, default=3, help="seconds after each attack")
    parser.add_argument(
        "--attacks", nargs="+", choices=ATTACKS, metavar="A", help=f"of {', '.join(ATTACKS)}"
    )
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.attack:
        asyncio.run(attack(args))
        return 0
    with server(args) as (host, port, pid):
        return 0 if asyncio.run(run(args, host, port, pid)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
