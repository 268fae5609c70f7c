"""Any answer of a model with tools, and any definitions of tools: the events must not depend on how
the answer was cut, nothing may be lost, time must be in proportion to the text, and what is wrong
with definitions must be a ValueError.

The first byte chooses what is read: a style of calls, definitions, or thoughts; the second one how
the answer is cut. `--only NAME` fuzzes one of them, such as `--only lfm2`.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace

import driver
from powerinfer_cpp.text.tools import (
    STYLES,
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    FunctionaryParser,
    GlimmerParser,
    HarmonyParser,
    Parser,
    Thought,
    ThoughtParser,
    Thoughts,
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
    + ["<tool", "[TOOL", "<", "[", "]", ", ", "; "]
    + ["\x02think>", "\x02/think>", "\x02a>b\x02c>", "\x02a>", "\x02d>", "```json\n", "\n```", "`"]
    + ["<|start|>assistant", "<|channel|>", "analysis", "commentary to=functions.<name>", "as"]
    + ["<|message|>", "<|end|>", "<|call|>", "<|constrain|>json", " to=functions.<name>"]
    + [" to=self", " to=user", " to=<name>", "<|eom|>", ">>>all\n", ">>><name>\n"],
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
        "<python>",
    ],
    "python": [
        "'<letters>'",
        "add(a=<value>, b=<python>)",
        "[add(a=<python>)]",
        "add()\nnow(<letters>=<value>)",
        '<prefix>"<letters><letters>"',
        "<prefix>'''<letters>\n<letters>'''",
        "(<value>, <python>)",
        "{'a': <python>}",
        *("0x1F", "1_0", "007", ".5", "1e999", "- 1", "True", "None", "...", "1j", "# a\n", "\\\n"),
    ],
    "prefix": ["", "r", "u", "b", "f", "Rb"],
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
        *("\\n", "\\x41", "\\u00e9", "\\N{BULLET}", "\\", "'", "\r", "=", "#", "\t"),
        " " * 250,
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


_THINK = Thoughts("<think>", "</think>")
_AROUND = Thoughts("<think>", "</think>", lead="<a>b<c>", last="<d>")
_MOST_SECONDS = 0.2, 1e-4  # of processor time: at once, and for each character

NAMES = [
    *sorted(STYLES),
    "definitions",
    *("thoughts", "open thoughts", "thoughts and answers", "raw messages", "messages"),
    "to tools",
]


def _parser(name: str, style: str) -> Parser:
    """The reader of this name. style: of calls among thoughts."""
    count = iter(range(10**9))
    new_id = lambda: str(next(count))  # noqa: E731
    if "messages" in name:
        return HarmonyParser(_NAMES, new_id, raw=name != "messages")
    if name == "functionary-3":
        return FunctionaryParser(_NAMES, new_id)
    calls = ToolParser(STYLES[style], _NAMES, new_id=new_id, tools=[_ADD])
    if name == "to tools":
        return GlimmerParser(calls)
    if "thoughts" not in name:
        return calls
    return ThoughtParser(_AROUND if "answers" in name else _THINK, "open" in name, calls)


def _read(name: str, style: str, pieces: list[str]) -> list[object]:
    """The events, with adjacent texts of a kind joined."""
    parser, found = _parser(name, style), []
    begin = time.process_time()
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    at_once, each = _MOST_SECONDS
    n = sum(map(len, pieces))
    assert time.process_time() - begin < at_once + each * n, f"{n} characters take too long"
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, Content | Thought | CallArguments) and type(event) is type(last):
            found[-1] = replace(event, text=last.text + event.text)
        else:
            found.append(event)
    return found


def _answer(name: str, style: str, text: str, step: int) -> None:
    events = _read(name, style, [text])
    assert events == _read(name, style, [text[i : i + step] for i in range(0, len(text), step)])
    made = message(events)
    for call in made.get("tool_calls", []):
        arguments = call["function"]["arguments"]
        assert isinstance(json.loads(arguments), dict) and call["function"]["name"] in _NAMES
    if name in STYLES and name not in ("harmony", "functionary-3") and "tool_calls" not in made:
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


def run(data: bytes, only: str | None = None) -> None:
    name = only or NAMES[data[0] % len(NAMES) if data else 0]
    if name == "definitions":
        _definitions(driver.grown(data[1:], DEFINITIONS, "<tools>"))
        return
    text = driver.grown(data[2:], RULES, "<answer>").replace(_OPEN, "<")
    cut = data[1] if len(data) > 1 else 0
    # Among thoughts the byte that says how the text is cut says as well how calls are written.
    style = name if name in STYLES else sorted(STYLES)[cut // 9 % len(STYLES)]
    _answer("messages" if name == "harmony" else name, style, text, 1 + cut % 9)


if __name__ == "__main__":
    driver.main(run, "tools", names=NAMES)
