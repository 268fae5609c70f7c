"""Numbers of request bodies: 4.0 is an integer, 4.5 and true are none, in every dialect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

msgspec = pytest.importorskip("msgspec")
pytest.importorskip("starlette")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from msgspec import inspect  # noqa: E402
from powerinfer_cpp.server.app import Server  # noqa: E402
from powerinfer_cpp.server.dialects.bodies import decode, typed  # noqa: E402
from powerinfer_cpp.server.errors import Refusal  # noqa: E402
from powerinfer_cpp.server.settings import Settings  # noqa: E402

_OF_ROUTES = {route.body for route in Server({}, {}, Settings()).routes} - {None}
BODIES = sorted(_OF_ROUTES, key=lambda kind: kind.__name__)
# What a body must have; others are left out.
NEEDED: dict[str, Any] = {
    "prompt": "a",
    "messages": [],
    "input": "x",
    "inputs": "x",
    "query": "x",
    "text_1": "x",
    "text_2": "x",
    "max_tokens": 3,
    "tokens": [],
    "language": "c",
    "code": "",
}


def parts(kind: inspect.Type) -> tuple[Any, ...]:
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def whole_fields() -> Iterator[tuple[type, str]]:
    """Each field of each body that takes an integer."""
    for body in BODIES:
        for field in inspect.type_info(body).fields:
            kinds = parts(field.type)
            used = field.encode_name not in getattr(body, "UNUSED", ())
            if used and any(isinstance(kind, inspect.IntType) for kind in kinds):
                yield body, field.encode_name


FIELDS = list(whole_fields())


def body(kind: type, **changes: str) -> bytes:
    """Changes are written as they are."""
    names = {field.encode_name for field in inspect.type_info(kind).fields if field.required}
    texts = {name: json.dumps(NEEDED[name]) for name in names} | changes
    return ("{" + ",".join(f'"{name}":{text}' for name, text in texts.items()) + "}").encode()


def test_there_are_such_fields() -> None:
    names = {(kind.__name__, name) for kind, name in FIELDS}
    assert {
        ("ChatBody", "max_completion_tokens"),
        ("ChatBody", "top_logprobs"),
        ("CompletionBody", "n"),
        ("CompletionBody", "logprobs"),
        ("CompletionBody", "best_of"),
        ("InfillBody", "n_predict"),
        ("MessagesBody", "max_tokens"),
        ("MessagesBody", "top_k"),
        ("ResponsesBody", "max_output_tokens"),
        ("ResponsesBody", "seed"),
        ("EmbeddingBody", "dimensions"),
    } <= names


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=lambda each: getattr(each, "__name__", each))
def test_whole_numbers_with_a_point(kind: type, name: str) -> None:
    for text in ("1.0", "1e0", "10.0e-1", "1.000"):
        assert decode(body(kind, **{name: text}), kind) == decode(body(kind, **{name: "1"}), kind)
    for text in ("1.5", "1e-3", "1e400", "-1e400", "1e300", "NaN", '"1.0"', "[1.0]"):
        with pytest.raises(Refusal):
            decode(body(kind, **{name: text}), kind)
    if name != "logprobs":  # true there is a choice of its own
        with pytest.raises(Refusal):
            decode(body(kind, **{name: "true"}), kind)


@settings(max_examples=60, deadline=None)
@given(st.integers(-(2**31), 2**31 - 1), st.floats(allow_nan=False, allow_infinity=False))
def test_any_number(n: int, x: float) -> None:
    kind = BODIES[1]
    assert kind.__name__ == "CompletionBody"
    assert decode(body(kind, seed=f"{n}.0"), kind).seed == n
    assert decode(body(kind, min_p=f"{n}.0"), kind).min_p == float(n)
    if x.is_integer() and abs(x) < 2**63:
        assert decode(body(kind, seed=repr(x)), kind).seed == int(x)
    else:
        with pytest.raises(Refusal, match="seed"):
            decode(body(kind, seed=repr(x)), kind)


def test_where_they_are_nested() -> None:
    found = decode(b'{"prompt":[1.0,[2.0,3]],"lora":[{"id":0.0,"scale":1}]}', BODIES[1])
    assert found.prompt == [1, [2, 3]] and found.lora[0].id == 0
    with pytest.raises(Refusal, match="prompt"):
        decode(b'{"prompt":[1.0,2.5]}', BODIES[1])


def test_what_is_open_stays_as_it_is() -> None:
    """Values that a model or a schema sees: 4.0 is 4.0 there, also beside a field that changes."""
    chat = b'{"messages":[{"role":"user","x":4.0}],"n":1.0,"tools":[{"y":[2.0]}],"temperature":1.0}'
    found = decode(chat, BODIES[0])
    assert BODIES[0].__name__ == "ChatBody" and found.n == 1
    shown = json.dumps([found.messages, found.tools, found.temperature])
    assert shown == '[[{"role": "user", "x": 4.0}], [{"y": [2.0]}], 1.0]'


def test_parts_of_a_body() -> None:
    class Part(msgspec.Struct, kw_only=True):
        n: int

    assert typed("x", {"type": "a", "n": 4.0}, {"a": Part}).n == 4
    with pytest.raises(Refusal, match="x: "):
        typed("x", {"type": "a", "n": 4.5}, {"a": Part})
