"""Any answer of a model with tools, and any definitions of tools: the events must not depend on how
the answer was cut, nothing may be lost, and what is wrong with definitions must be a ValueError.

The first byte chooses the style of the answer, or definitions; the second one how it is cut.
"""

from __future__ import annotations

import json

import driver
from powerinfer_cpp.text.tools import (
    STYLES,
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Tool,
    ToolParser,
    ToolRequest,
    message,
)

_NAMES = {"add", "now"}
_ADD = Tool("add", "", {"type": "object", "properties": {"a": {"type": "string"}}})

# In the rules, <tool_call> would be a hole.
_OPEN = "\x02"

RULES = {
    "answer": ["<part>", "<part><answer>", "<part><answer>"],
    "part": [
        "text",
        "<own>",
        "<own><own><value><own>",
        "<mark>",
        "\x02tool_call>\n<call>\n</tool_call>",
        "<call>",
        "<|python_tag|><call>",
        "[TOOL_CALLS][<calls>]",
        "[TOOL_CALLS]<name>[ARGS]<value>",
        "[TOOL_CALLS]<name>[CALL_ID]<letters>[ARGS]<value>",
        "<letters>",
    ],
    "mark": [
        "\x02tool_call>",
        "\x02/tool_call>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
    ]
    + ["<tool", "[TOOL", "<", "[", "]", ", ", "; "],
    "call": [
        '{"name": "<name>", "<key>": <value>}',
        '{"name": "<name>", "<key>": <value>}',
        '{"<key>": <value>, "name": "<name>"}',
        '{"name": "<name>"}',
        "{<pairs>}",
        '{"name": "<name>", "<key>": ',
    ],
    "calls": ["<call>", "<call>, <calls>", "<call><letters><calls>"],
    "pairs": ['"<key>": <value>', '"<key>": <value>, <pairs>', "<letters><pairs>"],
    "key": ["arguments", "parameters", "name", "type", "id", "other", "\\u0061", "<letters>"],
    "name": ["add", "now", "other", "<letters>"],
    "value": [
        "{}",
        '{"a": <value>}',
        '{"a": <value>, "b": <value>}',
        "[<value>, <value>]",
        '"<letters>"',
        '"{\\"a\\": 1}"',
        *("1", "-1.5e3", "null", "true", "NaN", "'a'", "}", "]", "<letters>"),
    ],
    "letters": [
        "a",
        "",
        " ",
        "\n",
        '"',
        "\\",
        '\\"',
        "{",
        "}",
        ",",
        ":",
        "\u20ac",
        "\x00",
        "\ud800",
    ],
}

# Texts of the styles themselves.
_HOLES = {"<": _OPEN, "{name}": "add", "{key}": "a", "{id}": "functions.add:0", "{text}": "true"}
RULES["own"] = []
for _style in STYLES.values():
    for _text in (_style.opening, _style.closing, *_style.call, *(_style.argument or ())):
        for _hole, _said in _HOLES.items():
            _text = _text.replace(_hole, _said)
        RULES["own"].append(_text)

DEFINITIONS = {
    "tools": ["[<tool>]", "[<tool>, <tool>]", "<json>"],
    "tool": ['{"type": "function", "function": <function>}', "<json>", '{"type": <json>}'],
    "function": [
        '{"name": "<name>"}',
        '{"name": "<name>", "description": <json>, "parameters": <json>}',
        '{"name": "<name>", "parameters": {"type": "object", "properties": <json>}}',
        '{"name": <json>, "strict": <json>}',
        "<json>",
    ],
    "name": ["add", "now", "", "a b", "\\u0061", "\\n"],
    "json": ["{}", "[]", "1", "null", '"a"', "true", "1e999", '{"a": <json>}', "[<json>, <json>]"]
    + ['{"type": <json>}', '"object"'],
}


def _parser(style: str) -> ToolParser:
    count = iter(range(10**9))
    return ToolParser(STYLES[style], _NAMES, new_id=lambda: str(next(count)), tools=[_ADD])


def _read(style: str, pieces: list[str]) -> list[object]:
    """The events, with adjacent texts of a kind joined."""
    parser, found = _parser(style), []
    for event in [event for piece in pieces for event in parser.push(piece)] + parser.finish():
        last = found[-1] if found else None
        if isinstance(event, Content | CallArguments) and type(event) is type(last):
            found[-1] = type(event)(*list(vars(event).values())[:-1], last.text + event.text)
        else:
            found.append(event)
    return found


def _answer(style: str, text: str, step: int) -> None:
    events = _read(style, [text])
    assert events == _read(style, [text[i : i + step] for i in range(0, len(text), step)])
    made = message(events)
    for call in made.get("tool_calls", []):
        arguments = call["function"]["arguments"]
        assert isinstance(json.loads(arguments), dict) and call["function"]["name"] in _NAMES
    if "tool_calls" not in made:
        assert made["content"] == text
    opened = None
    for event in events:
        if isinstance(event, CallBegin):
            assert opened is None
            opened = event.index
        elif isinstance(event, CallArguments | CallEnd):
            assert event.index == opened
            opened = None if isinstance(event, CallEnd) else opened
    assert opened is None


def _definitions(text: str) -> None:
    try:
        request = ToolRequest.of(json.loads(text), "required")
    except ValueError:
        return
    for style in STYLES.values():
        if style.can_force(request):
            json.dumps(style.forced(request), allow_nan=False)


def run(data: bytes) -> None:
    kind = data[0] % (len(STYLES) + 1) if data else 0
    if kind == len(STYLES):
        _definitions(driver.grown(data[1:], DEFINITIONS, "<tools>"))
    else:
        text = driver.grown(data[2:], RULES, "<answer>").replace(_OPEN, "<")
        _answer(sorted(STYLES)[kind], text, 1 + (data[1] if len(data) > 1 else 0) % 9)


if __name__ == "__main__":
    driver.main(run, "tools")
