"""What readers of a model's answers cost: in proportion to the text, whatever it is, and however it
comes. A grammar or a bias lets a client choose every token, so any text must be expected."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest
from circles import CIRCLE, pick
from powerinfer_cpp.run.requests import Request, Ticket, Update
from powerinfer_cpp.server import texts
from powerinfer_cpp.text.completion import Piece, TextStream
from powerinfer_cpp.text.tools import (
    STYLES,
    Parser,
    Thoughts,
    ToolRequest,
    parser_of,
)

PARAMETERS = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "t": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
    },
}
REQUEST = ToolRequest.of(
    [{"type": "function", "function": {"name": "run", "parameters": PARAMETERS}}]
)
THINK = Thoughts("<think>", "</think>", lead="<answer>", last="</answer>")

# What is repeated; holes are those of the style.
UNITS = {
    "numbers": "1,",
    "long numbers": "123456789012345678901234567890.5,",
    "strings": '"a",',
    "Python's strings": "'a',",
    "escaped quotes": '\\"',
    "backslashes": "\\",
    "escapes": '"\\u0061\\n",',
    "quotes": '"',
    "single quotes": "'",
    "lists": "[],",
    "open lists": "[",
    "tuples": "(1,),",
    "open objects": '{"a":',
    "objects": '{"a":1},',
    "braces": "{",
    "pairs": '"k":"v",',
    "keys": "k:1,",
    "space": " " * 64,
    "lines": "\n",
    "space and signs": "  <",
    "words": "word ",
    "a name": "a",
    "fences": "```\n",
    "fenced braces": "\n```json\n{",
    "ticks": "\n`",
    "openings": "<opening>",
    "openings and a name": "<opening>run",
    "cut openings": "<opening cut>",
    "closings": "<closing>",
    "cut closings": "<closing cut>",
    "blocks": "<opening>x<closing>",
    "heads": "<head>",
    "ends": "<end>",
    "calls": "<call>",
    "arguments": "<argument>1<argument end>",
    "open arguments": "<argument>",
    "cut ends of arguments": "<argument end cut>",
    "tree": "<mark><item>",
    "trees": "<mark><item><mark><item>1<mark></item><mark></item>",
    "thoughts": "<think>",
    "ends of thoughts": "</think>",
    "cut ends of thoughts": "</thin",
    "answers": " </answer> ",
    "raw quotes": '<|"|>',
    "semicolons": ";",
    "keyword arguments": "a=1,",
    "headers": "<|start|>assistant",
    "channels": "<|channel|>analysis<|message|>",
    "messages": "<|start|>assistant<|channel|>final<|message|>a<|end|>",
    "messages' ends": "<|end|>",
    "cut headers": "<|channel|>analysis",
    "messages to itself": "<|start|>assistant to=self<|message|>a<|eom|>",
    "messages to all": ">>>all\na",
}
# Where it stands: what comes before and behind it.
PLACES = {
    "text": ("", ""),
    "a block": ("<opening>", "<closing>"),
    "a list": ("<opening><head><value>[", "1]<value end><end><closing>"),
    "a tuple": ("<opening><head><value>([", "1])<value end><end><closing>"),
    "a string": ('<opening><head><value>["', '"]<value end><end><closing>'),
    "an open string": ('<opening><head><value>"', "<end><closing>"),
    "a text": ("<opening><head><text>", "<text end><end><closing>"),
    "a loose call": ('{"name": "run", "arguments": {"x": [', "1]}}"),
    "ended thoughts": ("<think>a</think>", ""),
    "an answer": ("<think>a</think><answer>b", "</answer>"),
}
CUTS = {"whole": 1 << 30, "characters": 1, "tokens": 4, "long tokens": 128}
READERS = ("calls", "thoughts", "open thoughts")

SMALL, LARGE = 4096, pick(16 << 10, 64 << 10)
N_TURNS = 3 if CIRCLE == "nightly" else 1
FACTOR = 2.5  # of the time that is in proportion: the computer has other work as well
FLOOR = 0.05  # seconds


def spelled(style_name: str, text: str) -> str:
    """A text with the style's own texts in its holes."""
    style = STYLES[style_name]
    begin, end = (
        part.replace("{name}", "run").replace("{id}", "functions.run:0") for part in style.call
    )
    before, behind = style.argument or ('"{key}": ', ", ")
    holes = {
        "<opening>": style.opening,
        "<opening cut>": style.opening[:-1],
        "<closing>": style.closing,
        "<closing cut>": style.closing[:-1],
        "<head>": style.before + begin,
        "<end>": end,
        "<call>": f"{style.opening}{style.before}{begin}{{}}{end}{style.closing}",
        "<argument>": before.replace("{key}", "x").replace("{text}", "false"),
        "<argument end>": behind.replace("{key}", "x"),
        "<argument end cut>": behind.replace("{key}", "x").strip()[:-1],
        "<mark>": style.mark,
    }
    holes["<value>"] = holes["<argument>"] if style.argument else '{"t": '
    holes["<value end>"] = holes["<argument end>"] if style.argument else "}"
    texts = before.replace("{key}", "s").replace("{text}", "true"), behind.replace("{key}", "s")
    quotes = style.quotes or ('"', '"')
    holes["<text>"] = texts[0] + quotes[0] if style.argument else '{"s": "'
    holes["<text end>"] = quotes[1] + texts[1] if style.argument else '"}'
    for hole, said in holes.items():
        text = text.replace(hole, said)
    return text


def reader(kind: str, style: str) -> Parser:
    count = itertools.count()
    tags = None if kind == "calls" else THINK
    opened, new_id = kind == "open thoughts", lambda: str(next(count))
    one = parser_of(STYLES[style], REQUEST, tags, opened=opened, new_id=new_id)
    assert one is not None
    return one


def reads(kind: str, style: str, place: str, unit: str, cut: str) -> Callable[[int], float]:
    """Reads a text of so many characters: the seconds it took."""
    before, behind = (spelled(style, text) for text in PLACES[place])
    repeated = spelled(style, UNITS[unit]) or " "
    step = CUTS[cut]

    def read(n: int) -> float:
        text = before + repeated * (n // len(repeated)) + behind
        pieces = [text[at : at + step] for at in range(0, len(text), step)]
        one = reader(kind, style)
        start = time.thread_time()
        for piece in pieces:
            one.push(piece)
        one.finish()
        return time.thread_time() - start

    return read


def check(read: Callable[[int], float], most: int = LARGE) -> str:
    """Makes the text four times as long, again and again, up to so many characters: its time must
    grow alike. Says how it does not, or ""."""
    first = min(read(SMALL) for _ in range(3))
    n = SMALL
    while n < most:
        n *= 4
        allowed = FACTOR * n / SMALL * first + FLOOR
        # Another try tells a computer that does something else from a reader that is slow.
        took = read(n)
        took = min(took, read(n)) if took > allowed else took
        if took > allowed:
            return f"{n} characters take {took:.3f} s, {SMALL} took {first:.4f} s"
    return ""


# Whose time grew with the square, or which kept Python's lock for seconds.
ONCE_SLOW = [
    ("calls", "lfm2", "a list", "numbers", "whole"),
    ("calls", "smollm-python", "a list", "strings", "tokens"),
    ("calls", "gemma-4", "an open string", "escaped quotes", "whole"),
    ("calls", "hermes", "text", "space", "whole"),
    ("calls", "qwen-coder", "a list", "long numbers", "whole"),
    ("calls", "glm", "a list", "strings", "long tokens"),
    ("open thoughts", "mistral-args", "text", "openings", "whole"),
    ("thoughts", "hermes", "an answer", "space", "long tokens"),
    ("calls", "harmony", "text", "messages", "whole"),
    ("calls", "harmony", "text", "messages' ends", "whole"),
    ("open thoughts", "hermes", "text", "calls", "tokens"),
]


@pytest.mark.xdist_group("timed")
@pytest.mark.parametrize("case", ONCE_SLOW, ids="-".join)
def test_what_was_slow(case: Sequence[str]) -> None:
    assert check(reads(*case), 256 << 10) == ""


def cases(unit: str) -> Iterator[tuple[str, ...]]:
    """A unit in one place, or with --all in each; styles, readers and cuts take turns."""
    rest = list(itertools.product(sorted(STYLES), READERS, CUTS))
    number = list(UNITS).index(unit)
    places = pick([list(PLACES)[number % len(PLACES)]], list(PLACES))
    first, step = N_TURNS * len(places) * number, 7  # which shares no factor with all of them
    for i, place in enumerate(places * N_TURNS):
        style, kind, cut = rest[step * (first + i) % len(rest)]
        yield kind, style, place, unit, cut


@pytest.mark.xdist_group("timed")
@pytest.mark.parametrize("unit", UNITS)
def test_time_grows_with_the_text(unit: str) -> None:
    slow = {case: why for case in cases(unit) if (why := check(reads(*case)))}
    assert not slow


@pytest.mark.xdist_group("timed")
@pytest.mark.parametrize("cut", pick(["characters", "long tokens"], list(CUTS)))
@pytest.mark.parametrize(
    "stops",
    [
        [b"a" * 999 + b"b"],
        [b"ab" * 400, b"aab", b"a" * 500 + b"c"],
        [b"x" * n for n in range(2, 34)],
    ],
    ids=["one", "some", "many"],
)
def test_stop_texts(stops: list[bytes], cut: str) -> None:
    def read(n: int) -> float:
        n = pick(n // 4, n)
        data = (b"a" * 998 + b"x") * (1 + n // 999)
        pieces = [data[at : at + CUTS[cut]] for at in range(0, len(data), CUTS[cut])]
        stream = TextStream(stops)
        start = time.thread_time()
        written = "".join(map(stream.push, pieces)) + stream.finish()
        took = time.thread_time() - start
        assert written == data.decode()
        return took

    assert check(read) == ""


@pytest.mark.parametrize("streams", [False, True])
def test_what_is_long_is_read_beside_the_event_loop(streams: bool) -> None:
    """Its pieces, its end, and so the tokens of its thoughts."""

    class Form:
        silence = None

        def __init__(self) -> None:
            self.threads: list[tuple[str, bool]] = []

        def _seen(self, what: str) -> None:
            self.threads.append((what, threading.current_thread() is threading.main_thread()))

        def whole(self, _tickets: object, pieces: Any) -> Any:
            self._seen(pieces[0][0].text[:1])
            return {"n": pieces[0][0].n_tokens, "ids": pieces[0][0].ids}

        def begin(self, _tickets: object) -> bytes:
            return b""

        def push(self, _i: int, part: Piece) -> bytes:
            self._seen(part.text[:1])
            return part.text.encode()

        def end(self) -> bytes:
            self._seen("end")
            return b"end"

    class Writing:
        def __init__(self, texts: Sequence[str]) -> None:
            self.tickets = [Ticket(Request([1], 9), 0, 0.0)]
            self._texts = texts

        def __enter__(self) -> Writing:
            return self

        def __exit__(self, *_: object) -> None: ...

        def place(self, _update: Update) -> int:
            return 0

        async def updates(self) -> AsyncIterator[list[Update]]:
            for i, text in enumerate(self._texts):
                reason = "stop" if i == len(self._texts) - 1 else None
                yield [Update(self.tickets[0], 0, Piece(text, reason, i + 1), [i])]
                await asyncio.sleep(0.02)  # not joined with the next one

    class Queues:
        def __init__(self, texts: Sequence[str]) -> None:
            self._texts = texts

        async def recall(self, *_: object) -> None: ...

        def begin(self, *_: object) -> Writing:
            return Writing(self._texts)

    async def answered(*given: str) -> tuple[list[tuple[str, bool]], bytes]:
        form: Any = Form()
        queues: Any = Queues(given)
        job = texts.Job(None, [], form)  # type: ignore[arg-type]
        if streams:
            return form.threads, b"".join([data async for data in texts.events(queues, job, 0)])
        data = await texts.whole(queues, job, 0)
        return form.threads, data

    short = asyncio.run(answered("a", "b"))
    long = asyncio.run(answered("a", "b" * texts.LONG, "c"))
    if streams:
        assert short == ([("a", True), ("b", True), ("end", True)], b"abend")
        assert long[0] == [("a", True), ("b", False), ("c", False), ("end", False)]
        assert long[1] == b"a" + b"b" * texts.LONG + b"cend"
    else:
        assert short == ([("a", True)], b'{"n":2,"ids":[0,1]}')
        assert long == ([("a", False)], b'{"n":3,"ids":[0,1,2]}')
