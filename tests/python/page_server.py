"""A stand-in for the server: it serves the page and answers its requests with made-up data.

python tests/python/page_server.py [--port N] [--delay SECONDS]

For work on the page without a model, and for test_page.py. The same requests give the same bytes.
The last message chooses what happens: `/error`, `/key`, `/break`, `/long`, `/markdown`, `/math`,
`/code`, `/short`, `/quick`, `/think`, `/thought` (thoughts and nothing more), `/tools` or `/fence`
(a code that nothing closes); all others get a story.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import re
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

PAGE = Path(__file__).resolve().parents[2] / "python" / "powerinfer_cpp" / "server" / "page"
TEXTS = Path(__file__).with_name("page_texts")
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
STORY = """\
Once upon a time there was a little dragon who could not make fire. He lived on a hill above a
quiet village, and every evening he watched the lamps go on, one after another, like small
suns.

"If I had a fire of my own," he said, "I would never be cold again." So he walked down to the
blacksmith, who was old and kind, and asked how a fire begins. "With very little," said the
blacksmith. "Most of the coal stays dark. Only the few pieces that are needed glow." The dragon
thought about this for a long time. Then he breathed out, slowly, and one small spark lit the
evening. It was enough."""
CONTINUATION = """ who could *not* make fire.
He lived on a hill above a quiet village"""
MARKDOWN = """# Rust in a page

A **list** of *things* with `code` and a [link](https://example.org/):

1. One
   - inner item
2. Two

```python
def fire(neurons):
    return [n for n in neurons if n > 0]
```

> A quote, and a table:

| tier | read |
| --- | --- |
| GPU | 812 MB |
| RAM | 96 MB |

<b>not bold</b> <img src=x onerror="window.hacked=1"> [bad](javascript:alert(1)) max_tokens_here"""

THOUGHTS = """The user asks for a sum. Let me **add** the parts one by one:

- $17 + 4 = 21$
- and 21 is not prime.

So the answer is 21."""
CALLS = (
    ("weather", '{"city": "Bern", "days": [1, 2], "id": 12345678901234567890, "u": {}}'),
    ("now", "{}"),
)


@dataclass
class Shape:
    """A made-up model: where its units are, neurons or experts, and how often each fires."""

    layers: int
    experts: int
    neurons: int
    bytes_per_unit: int
    gpu: float
    disk: float
    unit: str = "neurons"
    sparse: bool = True
    tiers: np.ndarray = field(init=False)
    often: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        draw = np.random.default_rng(7)
        per_layer = self.experts * self.neurons
        # A few neurons fire nearly always, most seldom; some layers are busier than others.
        hot = draw.pareto(1.3, (self.layers, per_layer)) * 0.03
        depth = np.linspace(0, 1, self.layers)[:, None]
        depth = 0.8 + 0.5 * depth + 0.3 * np.sin(7 * depth)
        self.often = np.minimum(hot * depth, 0.97)
        self.often *= 0.098 / self.often.mean()
        # The GPU holds what fires most, the disk what fires least, over all layers. The noise
        # stands for a placement that was learnt from other text.
        rank = np.argsort(np.argsort((self.often * draw.lognormal(0, 0.35, hot.shape)).ravel()))
        share = rank.reshape(hot.shape) / rank.size
        self.tiers = np.where(share >= 1 - self.gpu, 2, np.where(share < self.disk, 0, 1))
        self.tiers = self.tiers.astype(np.uint8)

    @property
    def memory(self) -> list[int]:
        """Bytes by tier; in RAM with something that is not of neurons."""
        of_tier = np.bincount(self.tiers.ravel(), minlength=3) * self.bytes_per_unit
        return [int(n) + (300_000_000 if tier == 1 else 0) for tier, n in enumerate(of_tier)]

    def fired(self, token: int) -> np.ndarray:
        draw = np.random.default_rng(1000 + token)
        topic = 0.6 + 0.8 * draw.random((self.layers, 1))
        return draw.random(self.often.shape) < self.often * topic


MODELS = {
    "bamboo-7b.Q4_0": Shape(32, 1, 14336, 6912, gpu=0.22, disk=0.3),
    "stories-relu.Q8_0": Shape(8, 1, 1376, 1088, gpu=0, disk=0),
    "mixture-8x.Q4_0": Shape(16, 8, 1792, 6912, gpu=0.15, disk=0.35),
    "experts-128x.Q4_K_M": Shape(48, 128, 1, 2_650_000, gpu=0, disk=0.6, unit="experts"),
    "dense-1b.Q4_K_M": Shape(16, 1, 8192, 6912, gpu=0, disk=0, sparse=False),
    "base.Q8_0": Shape(4, 1, 512, 1088, gpu=0, disk=0),
}
LATE = "stories-relu.Q8_0"  # its stream is not there at once
WITHOUT_CHATS = "base.Q8_0"
# By itself the first thinks and the second does not; of the others nobody can choose.
THINKS = {"bamboo-7b.Q4_0": True, "stories-relu.Q8_0": False}
FENCE = """```python
return "\U0001f525 fire"  # on"""
# What a server that is not ours could say.
HOSTILE = ['"><img src=x onerror="window.hacked=1">', "constructor", "w", 7, None]


class Hub:
    """Those who watch a model; gets steps, sends at most 15 a second, ORs the ones between."""

    def __init__(self, model: str) -> None:
        self.shape = MODELS[model]
        self.watchers: set[asyncio.Queue[bytes]] = set()
        self.waiting: list[tuple[int, int, np.ndarray]] = []
        self.sent = 0.0

    def step(self, request: int, token: int) -> None:
        if not self.watchers:
            return
        self.waiting.append((request, token, self.shape.fired(token)))
        now = asyncio.get_running_loop().time()
        if now - self.sent >= 1 / 15:
            self.flush()

    def flush(self) -> None:
        if not self.waiting:
            return
        self.sent = asyncio.get_running_loop().time()
        request, token, _ = self.waiting[-1]
        fired = [bits for _, _, bits in self.waiting]
        self.waiting = []
        tiers = self.shape.tiers
        share = float(np.mean([bits.mean() for bits in fired]))
        read = [float(np.mean([(bits & (tiers == t)).sum() for bits in fired])) for t in range(3)]
        read = [n * self.shape.bytes_per_unit for n in read]
        packed = np.packbits(np.any(fired, axis=0).ravel(), bitorder="little").tobytes()
        self.send(struct.pack("<BIIf3f", 1, request, token, share, *read) + packed)

    def send(self, frame: bytes) -> None:
        for queue in self.watchers:
            queue.put_nowait(struct.pack("<I", len(frame)) + frame)

    async def frames(self) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self.watchers.add(queue)
        try:
            yield struct.pack("<IB", 1 + self.shape.tiers.size, 2) + self.shape.tiers.tobytes()
            while True:
                yield await queue.get()
        finally:
            self.watchers.discard(queue)


def problem(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"code": status, "message": message}}, status)


def pieces(text: str) -> list[str]:
    """Something like tokens: words with the space before them, long ones in two."""
    found: list[str] = []
    for k, word in enumerate(text.split(" ")):
        word = f" {word}" if k else word
        found += [word[:5], word[5:]] if len(word) > 8 else [word]
    return found


def calls() -> list[dict]:
    """Chunks of CALLS, their arguments in parts."""
    found: list[dict] = []
    for index, (name, given) in enumerate(CALLS):
        function = {"name": name, "arguments": ""}
        found.append(
            {"index": index, "id": f"call-{index}", "type": "function", "function": function}
        )
        parts = [given[k : k + 7] for k in range(0, len(given), 7)]
        found += [{"index": index, "function": {"arguments": part}} for part in parts]
    return found


class Server:
    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.requests = 0
        self.failed: set[str] = set()
        self.bodies: list[dict] = []
        self.coloured: list[dict] = []
        self.cancelled = 0
        self.hubs = {name: Hub(name) for name in MODELS}

    def app(self) -> Starlette:
        routes = [
            Route("/", self.file),
            Route("/v1/models", self.models),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.complete, methods=["POST"]),
            Route("/props", self.props),
            Route("/highlight", self.highlight, methods=["POST"]),
            Route("/view", self.view),
            Route("/view/stream", self.stream),
            Route("/test/checks.js", self.checks),
            Route("/test/state", self.state),
            Route("/test/move", self.move, methods=["POST"]),
            Route("/{name:path}", self.file),
        ]
        return Starlette(routes=routes)

    async def file(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        path = PAGE / name
        if path.suffix not in TYPES or path not in PAGE.rglob("*") or not path.is_file():
            return problem(404, "There is no such page.")
        return FileResponse(path, media_type=TYPES[path.suffix], headers=HEADERS)

    async def models(self, request: Request) -> Response:
        formats = {name: None if name == WITHOUT_CHATS else "template" for name in MODELS}
        data = [{"id": name, "chat_format": found} for name, found in formats.items()]
        return JSONResponse({"object": "list", "data": data})

    async def props(self, request: Request) -> Response:
        return JSONResponse({"enable_thinking": THINKS.get(request.query_params["model"])})

    async def highlight(self, request: Request) -> Response:
        """Something like colours for Python; of the language `js` what no server should say."""
        body = await request.json()
        self.coloured.append(body)
        if body["language"] == "cpp":
            return JSONResponse({"spans": None})
        parts = re.findall(r'"[^"\n]*"|#.*|\w+|\s+|.', body["code"])
        kinds = {'"': "string", "#": "comment"}
        named = [
            (kinds.get(part[0], "keyword" if part in ("def", "return", "for", "in") else ""), part)
            for part in parts
        ]
        if body["language"] == "js":
            named = [(HOSTILE[k % len(HOSTILE)], part) for k, part in enumerate(parts)]
        spans = [[kind, len(part.encode("utf-16-le")) // 2] for kind, part in named]
        return JSONResponse({"spans": spans})

    async def view(self, request: Request) -> Response:
        shape = MODELS.get(request.query_params.get("model", ""))
        if shape is None:
            return problem(404, "There is no such model.")
        return JSONResponse(
            {
                "layers": shape.layers,
                "unit": shape.unit,
                "layer_units": [shape.experts * shape.neurons] * shape.layers,
                "tiers": base64.b64encode(shape.tiers.tobytes()).decode(),
                "bytes_per_unit": shape.bytes_per_unit,
                "names": ["disk", "RAM", "GPU"],
                "sparse": shape.sparse,
                "memory": shape.memory,
            }
        )

    async def stream(self, request: Request) -> Response:
        hub = self.hubs.get(request.query_params.get("model", ""))
        if hub is None:
            return problem(404, "There is no such model.")
        if hub is self.hubs[LATE]:
            await asyncio.sleep(0.3)
        return StreamingResponse(hub.frames(), media_type="application/octet-stream")

    async def checks(self, request: Request) -> Response:
        path = Path(__file__).with_name("page_checks.js")
        return FileResponse(path, media_type="text/javascript", headers=HEADERS)

    async def state(self, request: Request) -> Response:
        """What tests ask: requests as they came, and who watches."""
        watchers = {name: len(hub.watchers) for name, hub in self.hubs.items()}
        return JSONResponse(
            {
                "bodies": self.bodies,
                "coloured": self.coloured,
                "watchers": watchers,
                "cancelled": self.cancelled,
            }
        )

    async def move(self, request: Request) -> Response:
        """Moves neurons between the disk and RAM, as a cache does, and some of RAM for good."""
        for hub in self.hubs.values():
            flat = hub.shape.tiers.reshape(-1)
            ram, disk = (np.flatnonzero(flat == tier) for tier in (1, 0))
            flat[ram[::12]], flat[disk[::100]] = 0, 1
            hub.send(b"\x02" + flat.tobytes())
        return JSONResponse({})

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        text = body["messages"][-1]["content"]
        if text == "/key" and request.headers.get("authorization") != "Bearer secret":
            return problem(401, "Invalid API key")
        if text == "/error" and len(body["messages"]) not in self.failed:
            # Once only, so that "Try again" can be seen to work.
            self.failed.add(len(body["messages"]))
            return problem(400, "The prompt has 5,000 tokens, but the context has room for 4,096.")
        self.requests += 1
        answers = {
            "/markdown": MARKDOWN,
            **{f"/{file.stem}": file.read_text() for file in TEXTS.iterdir()},
            "/short": "Yes.",
            "/quick": "Yes.",
        }
        answers |= {"/think": "It is **21**.", "/thought": "", "/tools": ""}
        answers |= {"/fence": FENCE}
        answers |= {"/long": "\n\n".join([STORY] * 40)}
        answer = answers.get(text, STORY)
        events = self.events(self.requests, body["model"], answer, text)
        return StreamingResponse(events, media_type="text/event-stream")

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.requests += 1
        events = self.events(self.requests, body["model"], CONTINUATION, body["prompt"], False)
        return StreamingResponse(events, media_type="text/event-stream")

    async def events(
        self, request: int, model: str, answer: str, text: str, chats: bool = True
    ) -> AsyncIterator[str]:
        hub = self.hubs[model]
        words = pieces(answer)
        kind = "chat.completion.chunk" if chats else "text_completion"
        head = {"id": f"chatcmpl-{request}", "object": kind, "model": model}

        def event(delta: dict, finish: str | None = None, **more: object) -> str:
            said = {"delta": delta} if chats else {"text": delta.get("content") or ""}
            choices = [{"index": 0, **said, "finish_reason": finish}]
            return f"data: {json.dumps({**head, 'choices': choices, **more})}\n\n"

        try:
            yield event({"role": "assistant", "content": None})
            if text in ("/think", "/thought"):
                for piece in pieces(THOUGHTS):
                    await asyncio.sleep(self.delay)
                    yield event({"reasoning_content": piece})
            if text == "/tools":
                for delta in calls():
                    await asyncio.sleep(self.delay)
                    yield event({"tool_calls": [delta]})
            joined = ""
            for token, piece in enumerate(words if answer else []):
                await asyncio.sleep(self.delay)
                if text == "/short":  # over before the next frame is due
                    asyncio.get_running_loop().call_later(0.3, hub.step, request, token)
                else:
                    hub.step(request, token)
                joined += piece
                # Every third chunk holds two tokens, as a server joins what is ready.
                if token % 4 == 2 and token + 1 < len(words):
                    continue
                yield event({"content": joined}, view={"request": request, "token": token})
                joined = ""
                if text == "/break" and token > 8:
                    yield 'data: {"error": {"code": 500, "message": "The disk stopped."}}\n\n'
                    return
            hub.flush()
            timings = {"prompt_n": 31, "prompt_per_second": 96.4}
            timings |= {"predicted_n": len(words), "predicted_per_second": 18.27}
            yield event({}, "stop", timings=timings)
            yield f"data: {json.dumps({**head, 'choices': [], 'usage': {}})}\n\n"
            yield "data: [DONE]\n\n"
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.04, help="seconds for a token")
    options = parser.parse_args()
    listener = socket.socket()
    listener.bind(("127.0.0.1", options.port))
    listener.listen()  # visitors who come before the server is up wait
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
    app = Server(options.delay).app()
    # Without a limit a page that watches would keep the server from ending.
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
