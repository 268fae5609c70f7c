"""Tool calls in the texts of models, however they are cut, and definitions of tools."""

from __future__ import annotations

import itertools
import json
import time

import pytest
from circles import pick
from hypothesis import given, settings
from hypothesis import strategies as st
from powerinfer_cpp.text.tools import (
    STYLES,
    Call,
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Event,
    ToolParser,
    ToolRequest,
    check_tools,
    deltas,
    message,
    parts,
    style_of,
)
from powerinfer_cpp.text.tools.definitions import MAX_DEPTH

NAMES = {"add", "get_weather"}
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}


def parser(style: str) -> ToolParser:
    count = itertools.count()
    return ToolParser(STYLES[style], NAMES, new_id=lambda: f"call_{next(count)}")


def merged(events: list[Event]) -> list[Event]:
    """Events with adjacent texts of one kind joined."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, Content) and isinstance(last, Content):
            found[-1] = Content(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            found[-1] = CallArguments(event.index, last.text + event.text)
        else:
            found.append(event)
    return found


def read(style: str, pieces: list[str] | str) -> list[Event]:
    one = parser(style)
    events = [event for piece in pieces for event in one.push(piece)]
    return merged(events + one.finish())


def answer(style: str, text: str) -> tuple[str | None, list[tuple[str, str]]]:
    """Content and calls."""
    made = message(read(style, [text]))
    calls = [
        (c["function"]["name"], c["function"]["arguments"]) for c in made.get("tool_calls", [])
    ]
    return made["content"], calls


@pytest.mark.parametrize(
    ("style", "text", "content", "calls"),
    [
        (
            "hermes",
            'I look.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
            "I look.",
            [("add", '{"a": 1}')],
        ),
        (
            "hermes",
            '<tool_call>\n{"name": "add", "arguments": {"a": "}<\\"{"}}\n</tool_call>\n'
            '<tool_call>\n{"arguments": {"b": [{}, []]}, "name": "get_weather"}\n</tool_call>\n',
            None,
            [("add", '{"a": "}<\\"{"}'), ("get_weather", '{"b": [{}, []]}')],
        ),
        # What weak models leave out or add.
        ("hermes", '<tool_call>{"name": "add", "arguments": {}}', None, [("add", "{}")]),
        ("hermes", '<tool_call>{"name": "add"}</tool_call>', None, [("add", "{}")]),
        ("hermes", '<tool_call>{"name": "add", "arguments": null}', None, [("add", "{}")]),
        ("hermes", '<tool_call>{"name": "add", "arguments": {}</tool_c', None, [("add", "{}")]),
        (
            "hermes",
            '<tool_call>{"id": 3, "name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>Done',
            "Done",
            [("add", '{"a": 1}')],
        ),
        (
            "hermes",
            '<tool_call>{"name": "add", "arguments": {}}<tool_call>{"name": "add"}',
            None,
            [("add", "{}")] * 2,
        ),
        ("llama-3", '{"name": "add", "parameters": {"a": 1}}', None, [("add", '{"a": 1}')]),
        (
            "llama-3",
            '\n<|python_tag|>{"type": "function", "name": "add", "parameters": {"a": 1}}',
            None,
            [("add", '{"a": 1}')],
        ),
        (
            "llama-3",
            '{"name": "add", "parameters": {}}; {"name": "get_weather", "parameters": {"a": 2}}',
            None,
            [("add", "{}"), ("get_weather", '{"a": 2}')],
        ),
        (
            "mistral",
            '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, {"name": "add"}]',
            None,
            [("add", '{"a": 1}'), ("add", "{}")],
        ),
        (
            "mistral",
            'Well[TOOL_CALLS][{"name": "add", "arguments": {"a": [1]}, "id": "abcdefghi"}] so',
            "Well so",
            [("add", '{"a": [1]}')],
        ),
        (
            "mistral-args",
            '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]get_weather[CALL_ID]a1[ARGS] {}',
            None,
            [("add", '{"a": 1}'), ("get_weather", "{}")],
        ),
        ("mistral", '[TOOL_CALLS]add{"a": 1}', None, [("add", '{"a": 1}')]),
    ],
)
def test_formats(style: str, text: str, content: str | None, calls: list) -> None:
    assert answer(style, text) == (content, calls)


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("hermes", ""),
        ("hermes", " \n"),
        ("hermes", "a <b> <tool_ call> <tool_call"),
        ("hermes", "<tool_call>"),
        ("hermes", "<tool_call>\nadd(1)\n</tool_call>"),
        ("hermes", '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": 3, "arguments": {}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "add", "arguments": [1]}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "add", "arguments": "x"}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"arguments": {}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "add" "arguments"'),
        # These begin as calls, and only their ends say that they are none.
        ("hermes", 'x\n<tool_call>\n{"name": "add", "arguments": {"a": '),
        ("hermes", 'x\n<tool_call>\n{"name": "add", "arguments": {"a": NaN}}\n</tool_call>'),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": ]} y'),
        ("hermes", '<tool_call>{"name": "add", "arguments": ' + '{"a":' * 65 + "1" + "}" * 66),
        ("llama-3", '{"title": "add", "parameters": {}}'),
        ("llama-3", 'Like {"name": "add", "parameters": {}}'),
        ("llama-3", '<|python_tag|>print("add")'),
        ("llama-3", "; {"),
        ("mistral", "[TOOL_CALLS]"),
        ("mistral", '[TOOL_CALLS][{"name": "add", "arguments": {"a"'),
        ("mistral-args", "[TOOL_CALLS]other[ARGS]{}"),
        ("mistral-args", "[TOOL_CALLS]add[CALL_ID]a b[ARGS]{}"),
        ("mistral-args", "[TOOL_CALLS]add[ARGS]x"),
    ],
)
def test_what_is_no_call_is_content(style: str, text: str) -> None:
    assert answer(style, text) == (text, [])
    reader = parser(style)
    reader.push(text)
    reader.finish()
    assert reader.reason("stop") == "stop"


def test_calls_beside_a_broken_one() -> None:
    good = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    bad = '<tool_call>\n{"name": "add", "arguments": {"a": x}}\n</tool_call>'
    assert answer("hermes", good + bad + good) == (bad, [("add", '{"a": 1}')] * 2)


FRAGMENTS = [
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    '{"name": "add", "arguments": {"a": 1}}',
    '{"name": "get_weather", "parameters": {"b": "\\"}{"}}',
    '{"arguments": {"a": [1, {}]}, "name": "add"}',
    '{"name": "other", "arguments": {}}',
    '{"name": "add", "arguments": ',
    '"name": "add"',
    "add",
    *'{}[]":;,<a1\\\n ',
    " text ",
    "\u20ac",
]


BLOCKS = [
    "<function=add>",
    "<parameter=a>",
    "</parameter>",
    "</function>",
    "<arg_key>a</arg_key>",
    "<arg_value>1</arg_value>",
    "call:add{a:1}",
    "add(a=1)",
    "```json\n",
    "\n```",
    "[",
]


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(sorted(STYLES)))
def test_any_cut_gives_the_same(data: st.DataObject, style: str) -> None:
    marks = [STYLES[style].opening, STYLES[style].closing, *BLOCKS, *FRAGMENTS]
    text = "".join(data.draw(st.lists(st.sampled_from(marks), max_size=9)))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12).map(sorted))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    events = read(style, [text])
    assert read(style, pieces) == events == read(style, text)
    made = message(events)
    for call in made.get("tool_calls", []):
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
        assert call["function"]["name"] in NAMES
    if not made.get("tool_calls"):
        assert made["content"] == text
    begun = [event.index for event in events if isinstance(event, CallBegin)]
    assert begun == list(range(len(begun)))
    assert [event.index for event in events if isinstance(event, CallEnd)] == begun


def test_it_streams() -> None:
    one = parser("hermes")
    assert one.push("Now ") == [Content("Now")]
    assert one.push("<b> <tool") == [Content(" <b>")]
    assert one.push('_call>\n{"name": "add", "arguments": {"a') == []
    assert one.push('": 1, "b": ') == [CallBegin(0, "call_0", "add"), CallArguments(0, '{"a": 1')]
    assert one.push('"' + "x" * 300) == [CallArguments(0, ', "b": "' + "x" * 300)]
    end = one.push('"}}\n</tool_call>')
    assert end[0] == CallArguments(0, '"}') and isinstance(end[1], CallEnd) and end[1].complete
    assert one.finish() == [] and one.reason("stop") == "tool_calls"
    assert one.reason("length") == "length"


def test_deltas() -> None:
    found = list(deltas(read("mistral-args", ["Hm[TOOL_CALLS]add[ARGS]{}"])))
    function = {"name": "add", "arguments": ""}
    call = {"index": 0, "id": "call_0", "type": "function", "function": function}
    assert found == [
        {"content": "Hm"},
        {"tool_calls": [call]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
    ]


def test_ids() -> None:
    for style, length in (("hermes", 29), ("llama-3", 29), ("mistral", 9), ("mistral-args", 9)):
        ids = {STYLES[style].new_id() for _ in range(50)}
        assert len(ids) == 50 and {len(found) for found in ids} == {length}
    assert STYLES["hermes"].new_id().startswith("call_")


LONG = pick(250, 1000)


@pytest.mark.xdist_group("timed")
@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("hermes", "<tool_call>{" * 20 * LONG),
        ("hermes", "<" * 200 * LONG),
        ("hermes", '<tool_call>{"name": "add", "arguments": ' + '{"a":' * 40 * LONG),
        ("hermes", " " * 200 * LONG),
        ("llama-3", '{"name": "add"};' * 12 * LONG),
        ("mistral", "[TOOL_CALLS]add[ARGS]{}" * 9 * LONG),
        ("hermes", "```" + "\n" * 100 * LONG + "```json\n{" * 10 * LONG),
        ("qwen-coder", "<tool_call>" + "<function=add><parameter=a>" * 9 * LONG + "</tool_call>"),
        ("qwen-coder", "<tool_call></tool_call>" * 9 * LONG),
        ("glm", "<tool_call>add" + "<arg_key>a</arg_key><arg_value>" * 5 * LONG + "</tool_call>"),
        ("deepseek", STYLES["deepseek"].opening + "{}" * 90 * LONG + STYLES["deepseek"].closing),
        ("kimi", "<|tool_calls_section_begin|>" + "<|tool_call_begin|>add:0" * 9 * LONG),
        ("lfm2", "<|tool_call_start|>[" + "add(a=" * 30 * LONG + "<|tool_call_end|>"),
        ("gemma-4", "<|tool_call>call:add" + "{a:" * 60 * LONG + "}" * 60 * LONG + "<tool_call|>"),
    ],
    ids=lambda value: value[:30].strip(),
)
def test_long_texts_take_linear_time(style: str, text: str) -> None:
    start = time.process_time()
    read(style, [text])
    read(style, text)
    assert time.process_time() - start < pick(2.5, 10)  # it takes a tenth of that


def test_which_style_a_template_has() -> None:
    for name in ("'{\"name\": '", '"{\\"name\\": "'):
        assert style_of(f"{{{{ tools }}}}<tool_call>{{{{ {name} }}}}") is STYLES["hermes"]
        coder = style_of(f"{{{{ tools }}}}<tool_call><function=x>{{{{ {name} }}}}")
        assert coder is STYLES["qwen-coder"]
    assert style_of("{% if tools %}<tool_call><arg_key>{% endif %}") is STYLES["glm"]
    assert style_of("{% if tools %}<tool_call><other>{% endif %}") is None
    assert style_of("{% if tools %}[TOOL_CALLS]{% endif %}") is STYLES["mistral"]
    assert style_of("{% if tools %}[TOOL_CALLS]x[ARGS]{% endif %}") is STYLES["mistral-args"]
    assert style_of("{% if tools %}<|python_tag|>{% endif %}") is STYLES["llama-3"]
    assert style_of('<|start_header_id|>{{ tools }} "parameters"') is STYLES["llama-3"]
    for without in ("<|im_start|>", "<tool_call>", "{{ tools }}", ""):
        assert style_of(without) is None


# ---- Definitions ----


def tool(**changes: object) -> dict:
    return {**TOOL, "function": {**TOOL["function"], **changes}}


def nested(depth: int) -> dict:
    schema: dict = {"type": "object"}
    for _ in range(depth):
        schema = {"properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ("add", "tools must be a list"),
        ({}, "tools must be a list"),
        ([3], r"tools\[0\] must be an object"),
        ([TOOL, {}], r"tools\[1\].type"),
        ([{"type": "function"}], r"tools\[0\].function must be an object"),
        ([tool(name="")], "function.name must be"),
        ([tool(name="a b")], "function.name must be"),
        ([tool(name="a" * 129)], "function.name must be"),
        ([tool(name="add\n")], "function.name must be"),
        ([tool(description=3)], "function.description"),
        ([tool(strict="yes")], "function.strict"),
        ([tool(parameters=[])], "function.parameters must be"),
        ([tool(parameters={"type": "string"})], "function.parameters.type"),
        ([tool(parameters={"default": float("nan")})], r"tools\[0\] must hold only what JSON"),
        ([tool(parameters={"default": b""})], r"tools\[0\] must hold only what JSON"),
        ([tool(parameters={3: 4})], "a key that is not a string"),
        ([tool(parameters=nested(MAX_DEPTH))], f"nested more than {MAX_DEPTH} deep"),
        ([tool(parameters=nested(400))], f"nested more than {MAX_DEPTH} deep"),
        ([tool(description="x" * 300_000)], "more than 262144 characters"),
        ([TOOL, TOOL], "a second time"),
        ([tool(name=f"f{i}") for i in range(3000)], "more than 262144 characters"),
    ],
)
def test_tools_that_cannot_be(tools: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_tools(tools)


def test_tools() -> None:
    assert check_tools(None) == check_tools([]) == ()
    (found,) = check_tools([tool(strict=True)])
    assert found.as_dict() == TOOL
    (bare,) = check_tools([{"type": "function", "function": {"name": "x"}}])
    assert bare.parameters == {"type": "object", "properties": {}}
    assert len(check_tools([tool(name=f"{'f' * 40}{i}") for i in range(600)])) == 600
    for name in ("mcp__" + "a" * 123, "files.read", "notes:find/all"):
        assert check_tools([tool(name=name)])[0].name == name
    assert check_tools([tool(parameters=nested(31))])  # an object and its properties are two


def test_choices() -> None:
    other = tool(name="other")
    assert ToolRequest.of(None) is None and ToolRequest.of([], "auto") is None
    assert ToolRequest.of([TOOL], "none") is None
    for choice in (None, "auto"):
        found = ToolRequest.of([TOOL, other], choice)
        assert found.names == {"add", "other"} and not found.forced and found.parallel
    assert ToolRequest.of([TOOL], "required").forced
    assert not ToolRequest.of([TOOL], "auto", False).parallel
    named = ToolRequest.of([TOOL, other], {"type": "function", "function": {"name": "other"}})
    assert named.names == {"other"} and named.forced and len(named.tools) == 2
    for tools, choice in (
        ([TOOL], "always"),
        ([TOOL], 3),
        ([TOOL], {"type": "function"}),
        ([TOOL], {"type": "function", "function": {"name": "none"}}),
        ([TOOL], {"type": "other", "function": {"name": "add"}}),
        (None, "required"),
        ([], {"type": "function", "function": {"name": "add"}}),
    ):
        with pytest.raises(ValueError, match="tool_choice"):
            ToolRequest.of(tools, choice)
    with pytest.raises(ValueError, match="parallel_tool_calls"):
        ToolRequest.of([TOOL], None, "yes")
    with pytest.raises(ValueError, match=r"tools\[0\]"):
        ToolRequest.of([{}], "none")


def test_parts_of_an_answer() -> None:
    events = [
        Content("a"),
        Content("b"),
        CallBegin(0, "i", "add"),
        CallArguments(0, '{"a": '),
        CallArguments(0, "1}"),
        CallEnd(0, True, "raw"),
        Content("c"),
        CallBegin(1, "j", "add"),
        CallArguments(1, "{"),
        CallEnd(1, False, "<raw>"),
    ]
    assert parts(events) == ["ab", Call("i", "add", '{"a": 1}'), "c<raw>"]
    assert parts([]) == []
