"""What must not hurt a server: bodies that are too large, too deep, or no requests at all.

Each gets a clear answer; the others get what they would get alone, and nothing grows.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import serving
from circles import pick
from powerinfer_cpp.server.settings import Settings
from serving import PROMPT, as_before, refused, request, wait_for

# Some of these tests assert times.
pytestmark = pytest.mark.xdist_group("timed")


@pytest.fixture(scope="module")
def running(model_path: Path) -> Iterator[serving.InThread]:
    with serving.in_thread(model_path, n_parallel=2, n_batch=32, n_queue=64) as found:
        yield found


@pytest.fixture(autouse=True)
def _the_others(model_path: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test nothing is left, and a text is what it is alone."""
    yield
    if "running" in request.fixturenames:
        as_before(request.getfixturevalue("running"), model_path)


def resident(pid: int) -> int:
    """Bytes of memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) << 10


def test_large_bodies(model_path: Path) -> None:
    with serving.program("-m", model_path, "-c", "64") as program:
        program.post("v1/completions", {"prompt": "x", "max_tokens": 2})
        before = resident(program.process.pid)
        for length in (100 << 20, 10**15):
            head = request("v1/completions", b"", **{"Content-Length": str(length)})
            with program.connect(head) as client:
                assert b" 413 " in client.recv(64)
        chunked = request("v1/completions", b"", **{"Transfer-Encoding": "chunked"})
        chunked = chunked.replace(b"Content-Length: 0\r\n", b"")
        for _ in range(2):
            with program.connect(chunked) as client, contextlib.suppress(ConnectionError):
                client.settimeout(20)
                for _ in range(100):
                    client.sendall(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
                assert b" 413 " in client.recv(64)
        assert resident(program.process.pid) - before < 48 << 20
        assert program.post("v1/completions", {"prompt": "x", "max_tokens": 2}).status_code == 200


def test_many_bodies_that_arrive(model_path: Path) -> None:
    """Together they are limited, too."""
    part = request("v1/completions", b"", **{"Content-Length": "700000"}) + b" " * 600_000
    with serving.in_thread(model_path, Settings(max_bodies=1_000_000)) as server:
        arriving = server.server.arriving
        with server.connect(part):
            wait_for(lambda: arriving.n_bytes == 600_000)
            with server.connect(part) as second:
                assert b" 503 " in second.recv(64)
            assert server.post("v1/completions", {"prompt": "x"}).status_code == 200
        wait_for(lambda: arriving.n_bytes == 0)
        assert server.post("tokenize", {"content": "x" * 800_000}).status_code == 200


DEEP = list(
    itertools.product(
        (65, 1000, 100_000, 3_000_000), ("v1/completions", "v1/chat/completions", "tokenize")
    )
)
FEW = [case for case in DEEP if case[0] < 100_000 or "chat" in case[1]]


@pytest.mark.parametrize(("depth", "path"), pick(FEW, DEEP))
def test_deep_bodies(running: serving.InThread, path: str, depth: int) -> None:
    for begin, end in ((b"[", b"]"), (b'{"a":', b"}")):
        deep = begin * (depth - 1) + b"1" + end * (depth - 1)
        for body in (b'{"prompt":"x","messages":[],"x":' + deep + b"}", begin * depth):
            if len(body) < 8 << 20:
                refused(running.post(path, body))
    for begin in ("", '"', "\\", '\\"'):  # in a text, brackets are no depth
        brackets = json.dumps(begin + "[" * 100_000).encode()
        found = running.post("tokenize", b'{"content":' + brackets + b"}")
        assert found.status_code == 200


@pytest.mark.parametrize(
    "text",
    [
        '{"prompt":"x","temperature":NaN}',
        '{"prompt":"x","temperature":Infinity}',
        '{"prompt":"x","temperature":1e400}',
        '{"prompt":"x","top_p":-1e400}',
        '{"prompt":"x","logit_bias":{"5":1e400}}',
        '{"prompt":"x","max_tokens":1e2000}',
        '{"prompt":"x","seed":%s}' % ("7" * 5000),
        '{"prompt":"x","n":%s}' % ("7" * 5000),
        '{"prompt":[%s]}' % ("7" * 5000),
        '{"prompt":"x","logit_bias":{"%s":1}}' % ("7" * 5000),
        '{"prompt":"x","n":true}',
        '{"prompt":"x","max_tokens":1.5}',
        '{"prompt":"\\ud800"}',
        '{"prompt":"x","stop":"\\udfff"}',
        '{"prompt":"x","max_tokens":-2}',
        '{"prompt":"x"',
        '{"prompt":"x"} {}',
        "",
        "\x00",
        "%s" % ("{" * 50),
    ],
)
def test_bad_values(running: serving.InThread, text: str) -> None:
    refused(running.post("v1/completions", text.encode("utf-8", "surrogatepass")))


def test_bytes_that_are_no_text(running: serving.InThread) -> None:
    for data in (
        b'{"prompt":"\xff"}',
        b"\xff\xfe{\x00}\x00",
        b"\x1f\x8b\x08",
        b'{"prompt":"\xed\xa0\x80"}',
    ):
        refused(running.post("v1/completions", data))


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 1000},
        {"n": 64, "prompt": ["x"] * 2000},
        {"prompt": ["x"] * 5000},
        {"stop": ["a"] * 1000},
        {"stop": "a" * (1 << 20)},
        {"stop": ["b", "a" * (1 << 20)]},
        {"logit_bias": dict.fromkeys(map(str, range(500_000)), 1)},
        {"logprobs": 10**6},
        {"grammar": "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000},
        {"grammar": 'root ::= root "a" | root'},
        {"grammar": "x" * (2 << 20)},
        {"prompt": "x" * (4 << 20)},
        {"prompt": [5] * 300},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_too_much(running: serving.InThread, changes: dict[str, Any]) -> None:
    begin = time.process_time()  # of the server, too: its threads are here
    refused(running.post("v1/completions", {"prompt": "x", "max_tokens": 2, **changes}))
    assert time.process_time() - begin < 5


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"allOf": [{"$ref": "#"}]},
        {"type": "string", "maxLength": 10**9},
        {"type": "string", "pattern": "(a{1000}){1000}"},
        {"type": "array", "items": {"type": "string"}, "minItems": 10**9},
        {"$ref": "http://127.0.0.1/schema"},
        {"enum": ["x" * 300_000]},
    ],
    ids=lambda schema: "-".join(schema),
)
def test_hostile_schemas(running: serving.InThread, schema: dict[str, Any]) -> None:
    """Refused, or used within the limits of the text."""
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "response_format": {}}
    body["response_format"] = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": schema},
    }
    begin = time.monotonic()
    found = running.post("v1/chat/completions", body)
    assert time.monotonic() - begin < 10
    if found.status_code != 200:
        refused(found)


@pytest.mark.parametrize("n", [10**9, 10**30])
def test_long_repetitions(running: serving.InThread, n: int) -> None:
    """Refused, or used within the limits of the text."""
    for rule in ('"a"{0,%d}', '"a"{%d}', '("a"{0,%d}){0,%d}', '[^"]{%d,}'):
        body = {"prompt": "x", "max_tokens": 4, "grammar": f"root ::= {rule.replace('%d', str(n))}"}
        found = running.post("v1/completions", body)
        if found.status_code != 200:
            refused(found)


def test_slow_grammars_hold_up_nobody_else(running: serving.InThread) -> None:
    slow = {"prompt": "x", "grammar": 'root ::= ("a"{0,9000}){0,9000}', "max_tokens": 2}
    clients = [running.ask("v1/completions", {**slow, "seed": i}) for i in range(45)]
    time.sleep(0.2)
    begin = time.monotonic()
    for _ in range(3):
        found = running.post("v1/completions", {"prompt": PROMPT, "max_tokens": 2})
        assert found.status_code == 200
    assert time.monotonic() - begin < 5
    for client in clients:
        client.close()


def test_templates_are_not_taken_from_bodies(running: serving.InThread) -> None:
    """In no dialect."""
    paths = {route.path for route in running.server.app.routes if "POST" in route.methods}
    takes = {path for path in paths if "messages" in path or "chat" in path or "complet" in path}
    takes |= {path for path in paths if "responses" in path or "template" in path}
    assert len(takes) >= 5
    of_responses = {"input": "x", "max_output_tokens": 16}
    asked = [{"role": "user", "content": "x"}]
    of_others = {"messages": asked, "prompt": "x", "max_tokens": 2}
    for path in takes:
        body = of_responses if "responses" in path else of_others
        assert running.post(path[1:], body).status_code == 200, path
        for field in ("chat_template", "chat_template_kwargs"):
            found = running.post(path[1:], {**body, field: "{{ 1 }}"})
            assert found.status_code == 400 and field in found.text, path


def test_messages_that_are_strange(running: serving.InThread) -> None:
    messages: list[Any] = [
        [],
        [{}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}],
        [{"role": "__class__", "content": "x"}],
        [{"role": "user", "content": "x" * (1 << 20)}],
        [{"role": "user", "content": "x"}] * 20_000,
    ]
    for each in messages:
        refused(running.post("v1/chat/completions", {"messages": each, "max_tokens": 2}))
