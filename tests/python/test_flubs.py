"""Calls that models write otherwise than their template says, and what only looks like one."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from circles import pick
from hypothesis import given, settings
from hypothesis import strategies as st
from powerinfer_cpp.text.tools import (
    STYLES,
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Event,
    Tool,
    ToolParser,
    message,
)
from powerinfer_cpp.text.tools.values import SHORT, Value, as_json

PUT = {
    "type": "object",
    "properties": {
        "file": {"type": "string"},
        "body": {"type": "string"},
        "mode": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "opts": {"type": "object"},
        "dry": {"type": "boolean"},
    },
    "required": ["file"],
}
TOOLS = [Tool("put", "", PUT), Tool("list_all"), Tool("put_back", "", PUT)]
D = "\uff5cDSML\uff5c"
# The others consist of messages, which have readers of their own.
STYLED = [style for style in STYLES if style not in ("harmony", "functionary-3")]


def events(style: str, pieces: Sequence[str], tools: Sequence[Tool] = TOOLS) -> list[Event]:
    """Events with adjacent texts joined."""
    ids = itertools.count()
    one = ToolParser(STYLES[style], {tool.name for tool in tools}, lambda: str(next(ids)), tools)
    found: list[Event] = []
    for event in [*(event for piece in pieces for event in one.push(piece)), *one.finish()]:
        last = found[-1] if found else None
        if isinstance(event, Content) and isinstance(last, Content):
            found[-1] = Content(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            found[-1] = CallArguments(event.index, last.text + event.text)
        else:
            found.append(event)
    return found


def calls(found: Sequence[Event]) -> list[tuple[str, Any]]:
    made = [call["function"] for call in message(found).get("tool_calls", [])]
    return [(call["name"], json.loads(call["arguments"])) for call in made]


def said(found: Sequence[Event]) -> str:
    return (message(found)["content"] or "").strip()


def check_cuts(style: str, text: str, right: list[Event], tools: Sequence[Tool] = TOOLS) -> None:
    """All cuts give the same."""
    assert events(style, text, tools) == right
    step = pick(7, 1)
    for at in range(len(text) % step, len(text), step):
        assert events(style, [text[:at], text[at:]], tools) == right, text[:at]
    draw = random.Random(text)
    for _ in range(pick(3, 30)):
        cuts = sorted(draw.randrange(len(text) + 1) for _ in range(6))
        pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
        assert events(style, pieces, tools) == right, pieces


def hermes(inner: str) -> str:
    return f"<tool_call>\n{inner}\n</tool_call>"


def coder(inner: str) -> str:
    return f"<tool_call>\n<function=put>\n{inner}</function>\n</tool_call>"


ONE = '{"name": "put", "arguments": {"file": "x.c"}}'
X = ("put", {"file": "x.c"})
NONE = ("list_all", {})

# Style, what is written, the calls, and the text beside them.
FLUBS: list[tuple[str, str, list[tuple[str, Any]], str]] = [
    # JSON that is none.
    ("hermes", hermes("{'name': 'put', 'arguments': {'file': 'x.c', 'dry': True, 'opts': None}}"),
     [("put", {"file": "x.c", "dry": True, "opts": None})], ""),
    ("hermes", hermes('{"name": "put", "arguments": {"file": "x.c", "mode": 6,},}'),
     [("put", {"file": "x.c", "mode": 6})], ""),
    ("hermes", hermes('{"name": "put" "arguments": {"file": "x.c" "mode": 6}}'),
     [("put", {"file": "x.c", "mode": 6})], ""),
    ("hermes", hermes('{name: "put", arguments: {file: "x.c", tags: [\'a\', "b"]}}'),
     [("put", {"file": "x.c", "tags": ["a", "b"]})], ""),
    ("hermes", hermes('{"name": "put", "arguments": {"file": "x.c", "body": "a\n\tb"}}'),
     [("put", {"file": "x.c", "body": "a\n\tb"})], ""),
    ("hermes", hermes('{"name": "put", "arguments": {"file": "x.c", "body": "a "b" c, \\d"}}'),
     [("put", {"file": "x.c", "body": 'a "b" c, \\d'})], ""),
    ("hermes", hermes('{{"name": "put", "arguments": {{"file": "x.c"}}}}'), [X], ""),
    ("hermes", hermes('{"name": "put", "arguments": {"tags": ["a", "b"}, "file": "x.c"}}'),
     [("put", {"tags": ["a", "b"]})], ""),
    ("hermes", hermes('\n{ "name"\n:\t"put" ,\r\n"arguments" : {\n"file" : "x.c"\n} }\n'), [X], ""),
    # Around the object.
    ("hermes", hermes(f"{ONE}\n{ONE}"), [X, X], ""),
    ("hermes", hermes(f"[{ONE}, {ONE}]"), [X, X], ""),
    ("hermes", hermes(f"```json\n{ONE}\n```"), [X], ""),
    ("hermes", hermes(ONE + "}"), [X], ""),
    ("hermes", hermes(ONE[:-1]), [X], ""),
    ("hermes", hermes(ONE[:-2]), [X], ""),
    ("hermes", f"<tool_call>{ONE}", [X], ""),
    ("hermes", f"<tool_call>{ONE}<tool_call>{ONE}", [X, X], ""),
    ("hermes", f"<tool_call><tool_call>{ONE}</tool_call>", [X], ""),
    ("hermes", f"I write it.\n{ONE}\n</tool_call>", [X], "I write it."),
    ("hermes", f"See:\n{ONE}\nThat is all.", [], f"See:\n{ONE}\nThat is all."),
    ("hermes", f"```\n{hermes(ONE)}\n{ONE}\n```", [X, X], ""),
    ("hermes", f"```\n{hermes(ONE)}\n{{}}\n```", [], f"```\n{hermes(ONE)}\n{{}}\n```"),
    ("hermes", f"{ONE}\n{ONE}", [X, X], ""),
    # Other names of its parts.
    ("hermes", hermes('{"name": "put", "parameters": {"file": "x.c"}}'), [X], ""),
    ("hermes", hermes('{"name": "functions.put", "arguments": {"file": "x.c"}}'), [X], ""),
    ("hermes", hermes(f'{{"type": "function", "function": {ONE}}}'), [X], ""),
    ("hermes", hermes('{"put": {"file": "x.c"}}'), [X], ""),
    ("hermes", hermes('{"tool": "put", "args": {"file": "x.c"}}'), [X], ""),
    ("hermes", hermes('put{"file": "x.c"}'), [X], ""),
    ("hermes", hermes("put(file='x.c')"), [X], ""),
    ("hermes", hermes("<function=put>\n<parameter=file>\nx.c\n</parameter>\n</function>"), [X], ""),
    ("hermes", hermes('{"name": "put", "arguments": "{\'file\': \\"x.c\\"}"}'), [X], ""),
    ("hermes", hermes('{"name": "put_", "arguments": {}}'), [],
     hermes('{"name": "put_", "arguments": {}}')),
    # No arguments.
    *(("hermes", hermes(f'{{"name": "list_all", "arguments": {none}}}'), [NONE], "")
      for none in ('""', "null", "[]", "{}", "None", '"{}"')),
    ("hermes", hermes('{"name": "list_all"}'), [NONE], ""),
    ("hermes", hermes("list_all"), [NONE], ""),
    ("mistral-args", "[TOOL_CALLS]list_all[ARGS][TOOL_CALLS]list_all", [NONE, NONE], ""),
    ("mistral-args", "[TOOL_CALLS]put[ARGS]", [], "[TOOL_CALLS]put[ARGS]"),
    ("mistral-args", '[TOOL_CALLS]put[CALL_ID]a_1-b[ARGS]"{\\"file\\": \\"x.c\\"}"', [X], ""),
    ("glm", "<tool_call>list_all", [NONE], ""),
    ("minimax", '<minimax:tool_call><invoke name="list_all"/></minimax:tool_call>', [NONE], ""),
    # Python.
    ("llama-3", "[put(file='x.c', tags=[\"a\"]), list_all()]",
     [("put", {"file": "x.c", "tags": ["a"]}), NONE], ""),
    ("llama-3", "[put] is a tool.", [], "[put] is a tool."),
    ("lfm2", "<|tool_call_start|>[put(file='x.c', body='say <|tool_call_end|>')]<|tool_call_end|>",
     [("put", {"file": "x.c", "body": "say <|tool_call_end|>"})], ""),
    ("lfm2", '<|tool_call_start|>put(file=r"a\\b", body="c" \'d\', mode=0x1F)<|tool_call_end|> So.',
     [("put", {"file": "a\\b", "body": "cd", "mode": 31})], "So."),
    ("lfm2", "<|tool_call_start|>[put(file=('a' 'b'), tags=('c',), opts={'u': ()})]",
     [("put", {"file": "ab", "tags": ["c"], "opts": {"u": []}})], ""),
    ("smollm-python", '<code>\nresult = put(file="x.c")  # now\nprint(list_all())\n</code>',
     [X, NONE], ""),
    # Gemma.
    ("gemma-4", '<|tool_call>call:put(file=<|"|>x.c<|"|>,mode=6)<tool_call|>',
     [("put", {"file": "x.c", "mode": 6})], ""),
    ("gemma-4", '<|tool_call>call:put{mode:6 file:\'x.c\' body:<|"|>a "b" {<tool_call|>\\<|"|>}',
     [("put", {"mode": 6, "file": "x.c", "body": 'a "b" {<tool_call|>\\'})], ""),
    ("gemma-4", "<|tool_call>call:put{file:a b.txt,dry:true,tags:[x y,z]}<tool_call|>",
     [("put", {"file": "a b.txt", "dry": True, "tags": ["x y", "z"]})], ""),
    # Tags: no opening or closing marker, values and heads.
    ("qwen-coder", "So.\n<function=put>\n<parameter=file>\nx.c\n</parameter>\n</function>",
     [X], "So."),
    ("qwen-coder", "Use <function=NAME> or <function> here.", [],
     "Use <function=NAME> or <function> here."),
    ("qwen-coder", coder("<parameter=mode>\n6\n<parameter=file>\nx.c\n"),
     [("put", {"mode": 6, "file": "x.c"})], ""),
    ("qwen-coder", coder("<parameter=file>\nx.c\n</parameter>\n<parameter=body>\n"
     "a </parameter> b <parameter=mode> </function>\n</parameter>\n"),
     [("put", {"file": "x.c", "body": "a </parameter> b <parameter=mode> </function>"})], ""),
    *(("qwen-coder", coder(f"<parameter{head}\nx.c\n</parameter>\n"), [X], "")
      for head in ("=file=>", ' name="file">', "='file'>", "=file :>", "= file >", "=file")),
    ("qwen-coder", coder("<parameter=a b>\nx\n</parameter>\n"), [],
     coder("<parameter=a b>\nx\n</parameter>\n")),
    ("qwen-coder", hermes(ONE), [X], ""),
    ("qwen-coder", "<tool_call>\n<function=put>\n<parameter=file>\nx.c\n</parameter>\n</tool_call>",
     [X], ""),
    ("seed", "<seed:tool_call><function=put><parameter=file>x.c</parameter>"
     "<parameter=body>a\n</parameter></function></seed:tool_call>",
     [("put", {"file": "x.c", "body": "a\n"})], ""),
    ("glm", "<tool_call>put<arg_key>file</arg_key><arg_value>a</tool_call>b</arg_value>",
     [("put", {"file": "a</tool_call>b"})], ""),
    ("minicpm", '<function name="put"><param name="file"><![CDATA[a</param>b]]></param></function>',
     [("put", {"file": "a</param>b"})], ""),
    ("dsml-tool_calls", f'<{D}invoke name="put"><{D}parameter name="file">12</{D}parameter>'
     f'<{D}parameter name="mode" string="true">6</{D}parameter></{D}invoke></{D}tool_calls>',
     [("put", {"file": "12", "mode": 6})], ""),
    *(("kimi", f"<|tool_call_begin|>{own}<|tool_call_argument_begin|>{{}}<|tool_call_end|>", [NONE],
       "")
      for own in ("functions.list_all:7", "functions_list_all_7", "list_all", "functionslist_all7",
                  "functions. list_all:x")),
    ("kimi", '<|tool_call_section_begin|><|tool_call_begin|>put_back3<|tool_call_argument_begin|>'
     '{"file": "x.c"}<|tool_call_end|><|tool_call_section_end|>', [("put_back", X[1])], ""),
    ("deepseek", STYLES["deepseek-r1"].written([{"function": {"name": "put", "arguments": X[1]}}]),
     [X], ""),
]  # fmt: skip


@pytest.mark.parametrize(("style", "text", "right", "content"), FLUBS, ids=range(len(FLUBS)))
def test_flubs(style: str, text: str, right: list[tuple[str, Any]], content: str) -> None:
    found = events(style, [text])
    assert calls(found) == right and said(found) == content
    check_cuts(style, text, found)


LONG = "0123456789" * (SHORT // 8)


@pytest.mark.parametrize("style", STYLED)
def test_what_was_passed_on_is_json(style: str) -> None:
    """Wherever the answer ends, and whatever follows."""
    arguments = {"mode": 3, "file": "ab", "opts": {"u": [1, {"v": "w"}], "x": True}, "body": LONG}
    call = {"id": "a", "function": {"name": "put", "arguments": arguments}}
    text = STYLES[style].written([call])
    assert calls(events(style, [text])) == [("put", arguments)]
    for at in range(len(style) % pick(11, 1), len(text), pick(11, 1)):
        for rest in ("", ' \n"}]<x'):
            found = events(style, [text[:at], rest])
            begun = [event for event in found if isinstance(event, CallBegin)]
            given = "".join(event.text for event in found if isinstance(event, CallArguments))
            ends = [event for event in found if isinstance(event, CallEnd)]
            assert len(begun) == len(ends) <= 1
            values = json.loads(given) if begun else {}
            assert isinstance(values, dict)
            if not rest:  # a text is whole or long; what is cut is no call of the whole answer
                body = values.pop("body", LONG)
                assert LONG.startswith(body) and len(body) > SHORT
                assert all(arguments[key] == values[key] for key in values.keys() - {"opts"})
                if begun and not ends[0].complete:
                    assert message(found)["content"] == text[:at]


@pytest.mark.parametrize("style", STYLED)
def test_examples_stay_text(style: str) -> None:
    """In fences and in code within a line; a fence that is the whole answer is a call."""
    written = STYLES[style].written([{"id": "a", "function": {"name": "put", "arguments": X[1]}}])
    opening = STYLES[style].opening
    written = opening + written.partition(opening)[2] if opening in written else opening + written
    for example in (ONE, written):
        fence = f"```xml\n{example}\n```"
        for text in (
            f"Write this:\n\n{fence}\nDo not send it.",
            f"{fence}\nSo it is done.",
            f"1. So:\n    ~~~~\n~~~\n{example}\n~~~~\n2. Or:\n{fence}",
            f"Like `{example}` here." if "\n" not in example else f"> {fence}\nis how",
        ):
            found = events(style, [text])
            assert calls(found) == [] and said(found) == text
            check_cuts(style, text, found)
        assert calls(events(style, [fence])) == [X]
        for before in ("```py\nx = 1\n```\n", "```x``` is `y`.\n", "> ```\n> x\n> ```\n", "x`y\n"):
            assert calls(events(style, [before + written])) == [X]


SCHEMAS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "string"}, {"007": "007", "null": "null", "[1]": "[1]"}),
    ({"type": ["string", "null"]}, {"0.5": "0.5", "null": None, "true": "true"}),
    ({"anyOf": [{"type": "null"}, {"type": "string"}]}, {"90210": "90210", "null": None}),
    ({"oneOf": [{"$ref": "#/$defs/code"}]}, {"31": "31", "false": "false"}),
    ({"enum": ["1", "2"]}, {"1": "1", "2": "2", "3": "3"}),
    ({"enum": ["1", None]}, {"1": "1", "null": None}),
    ({"const": "12"}, {"12": "12"}),
    ({"allOf": [{"$ref": "#/$defs/code"}, {"minLength": 1}]}, {"9": "9"}),
    ({"type": "integer"}, {"12": 12, "3.0": 3, "twelve": "twelve"}),
    ({"$ref": "#/$defs/size"}, {"1.50": 1.5, "2": 2}),
    ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"12": 12, "012": "012", "a": "a"}),
    ({"type": "boolean"}, {"True": True, "false": False}),
    ({"type": "string", "nullable": True}, {"5": "5", "null": None}),
    ({"type": "array", "items": {}}, {"['a', None]": ["a", None], "[1,]": [1], "": []}),
    ({"type": "object"}, {"{'a': True}": {"a": True}, '{"b": [1]}': {"b": [1]}}),
    ({"$ref": "#/$defs/loop"}, {"1": 1, "x": "x"}),
    ({}, {"1": 1, "01": "01", "None": None, "x, y": "x, y"}),
]
DEFS = {
    "code": {"type": "string"},
    "size": {"type": "number"},
    "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/loop"}]},
}


@pytest.mark.parametrize("style", ["qwen-coder", "glm", "minimax", "minimax-3", "dsml-tool_calls"])
def test_values_follow_the_schema(style: str) -> None:
    for schema, values in SCHEMAS:
        parameters = {"type": "object", "properties": {"v": schema}, "$defs": DEFS}
        for text, right in values.items():
            made = {"id": "a", "function": {"name": "f", "arguments": {"v": text}}}
            written = STYLES[style].written([made]).replace(' string="true"', "")
            assert calls(events(style, [written], [Tool("f", "", parameters)])) == [
                ("f", {"v": right})
            ], (schema, text)


JSON_VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=8),
    ),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=pick(60, 1000), deadline=None)
@given(JSON_VALUES, st.booleans(), st.data())
def test_values_are_rewritten(value: Any, python: bool, data: st.DataObject) -> None:
    """JSON stays as it is, Python means the same, and whatever is cut can be closed."""
    text = repr(value) if python else json.dumps(value, ensure_ascii=False)
    assert json.loads(as_json(text)) == value
    if not python:
        assert as_json(text) == text
        assert json.loads(as_json(json.dumps(value))) == value
    one, held, written = Value(), "", ""
    for char in text[: data.draw(st.integers(0, len(text)))]:
        held += char
        at, _ = one.take(held, 0)
        held, written = held[at:], written + "".join(one.pieces)
        one.pieces.clear()
        if written:
            json.loads(written + one.closing)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1", '{"a" 1}', "{1, 2}", "f()", "NaN", "-inf", "1j", "b'a'", "x", "[" * 65],
    ids=lambda text: text[:8],
)
def test_what_is_no_value(text: str) -> None:
    with pytest.raises(ValueError, match="no value"):
        as_json(text)
