"""Thoughts beside what follows them: calls, further thoughts, headers that are written badly."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from circles import pick
from hypothesis import given, settings
from hypothesis import strategies as st
from powerinfer_cpp.text.chat import TemplateFormat
from powerinfer_cpp.text.thinking import Thinking
from powerinfer_cpp.text.tool_chat import prepare
from powerinfer_cpp.text.tools import (
    STYLES,
    Content,
    Event,
    FunctionaryParser,
    GlimmerParser,
    HarmonyParser,
    Parser,
    Thought,
    ThoughtParser,
    Thoughts,
    ToolParser,
    ToolRequest,
    message,
    parser_of,
)
from powerinfer_cpp.text.tools.events import CallArguments

Make = Callable[[], Parser]
THINK = Thoughts("<think>", "</think>")
CHANNEL = Thoughts("<|channel>thought", "<channel|>")
SOLAR = Thoughts(
    "<|think|>", "<|end|>", lead="<|begin|>assistant<|content|>", last="<|end|>", field="reasoning"
)
ASK = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "wait", "parameters": {"type": "object"}}}]


def call(n: int) -> str:
    return f'<tool_call>\n{{"name": "wait", "arguments": {{"n": {n}}}}}\n</tool_call>'


def short(n: int) -> str:
    return f"<|tool_call>call:wait{{n:{n}}}<tool_call|>"


def new_id() -> Callable[[], str]:
    count = itertools.count()
    return lambda: f"c{next(count)}"


def thinker(tags: Thoughts = THINK, style: str = "hermes", **how: bool) -> Make:
    return lambda: ThoughtParser(tags, calls=ToolParser(STYLES[style], {"wait"}, new_id()), **how)


def merged(events: Sequence[Event]) -> list[Event]:
    """Events with adjacent texts joined."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, Content | Thought) and type(last) is type(event):
            found[-1] = type(event)(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            found[-1] = CallArguments(event.index, last.text + event.text)
        else:
            found.append(event)
    return found


def read(make: Make, text: str, step: int = 1) -> tuple[str, str, list[str], str]:
    """Content, thoughts, arguments of calls and the reason: the same for all cuts of the text."""

    def events(pieces: Sequence[str]) -> tuple[list[Event], str]:
        parser = make()
        found = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
        return merged(found), parser.reason("stop")

    found, reason = events([text])
    assert events(list(text)) == (found, reason)
    for at in range(0, len(text), step):
        assert events([text[:at], text[at:]]) == (found, reason), at
    said = message(found)
    arguments = [made["function"]["arguments"] for made in said.get("tool_calls", ())]
    return said["content"] or "", said.get("reasoning_content", ""), arguments, reason


@pytest.mark.parametrize(
    ("text", "content", "thoughts", "numbers"),
    [
        (f"<think>Do {call(1)}? No.</think>I rest.", "I rest.", f"Do {call(1)}? No.", []),
        (f"<think>Do {call(1)}\n</think>\n\nI rest.", "I rest.", f"Do {call(1)}", []),
        (f"<think>{call(1)}{call(2)}</think>{call(3)}", "", f"{call(1)}{call(2)}", [3]),
        (f"<think>Do it.\n{call(1)}\n{call(2)} \n", "", "Do it.", [1, 2]),
        (f"<think>Not {call(1)}, but\n{call(2)}", "", f"Not {call(1)}, but", [2]),
        (f"<think>Not {call(1)} but", "", f"Not {call(1)} but", []),
        (f"<think>So <tool_call> and {call(1)[:-9]}", "", "So <tool_call> and", [1]),
        (f"<think>Cut {call(1)[:40]}", "", f"Cut {call(1)[:40]}", []),
        (f"<think>{call(1)[:40]}</think>No.", "No.", call(1)[:40], []),
    ],
)
def test_calls_among_thoughts(text: str, content: str, thoughts: str, numbers: list[int]) -> None:
    """Those that the thoughts only quote are none; those that end open thoughts are real."""
    made = [f'{{"n": {n}}}' for n in numbers]
    want = (content, thoughts, made, "tool_calls" if made else "stop")
    assert read(thinker(), text) == want
    assert read(thinker(opened=True), text.removeprefix("<think>")) == want
    raw = read(thinker(raw=True), text)
    assert raw[1:] == ("", *want[2:])
    assert raw[0].startswith(f"<think>{thoughts}") and raw[0].endswith(content)


def test_what_the_prompt_has_begun() -> None:
    """The space with which it goes on is part of it."""
    assert read(thinker(opened=True, begun=True), " am sure. \n</think>\nYes.")[:2] == (
        "Yes.",
        " am sure.",
    )
    assert read(thinker(opened=True), " I am sure.</think>Yes.")[:2] == ("Yes.", "I am sure.")
    assert read(thinker(begun=True), " and <think> is a tag")[0] == " and <think> is a tag"


@pytest.mark.parametrize(
    ("tags", "style", "text", "content", "thoughts", "numbers"),
    [
        (
            CHANNEL,
            "gemma-4",
            "<|channel>thought\nHm.<channel|>1, <|channel>thought\n and more<channel|>2<channel|>",
            "1, 2",
            "Hm.and more",
            [],
        ),
        (CHANNEL, "gemma-4", "<|channel><|channel>thought\n<channel|>\nYes", "Yes", "", []),
        (
            CHANNEL,
            "gemma-4",
            "<|channel>thought<channel|><|channel>thought\nHm<channel|>\nYes",
            "Yes",
            "Hm",
            [],
        ),
        (
            CHANNEL,
            "gemma-4",
            f"a{short(1)}<|channel>thought\nno {short(2)} b<channel|>{short(3)}"
            f"<|channel>thought\nso {short(4)}\n",
            "a",
            f"no {short(2)} bso",
            [1, 3, 4],
        ),
        (SOLAR, "solar", "<|think|>Hm<|begin|>assistant<|content|>Yes.<|end|>", "Yes.", "Hm", []),
        (SOLAR, "solar", "<|content|>Yes.<|end|><|think|>Hm<|end|>", "Yes.", "Hm", []),
        (SOLAR, "solar", "<|think|>Hm<|end|><|begin|>assist", "", "Hm", []),
        (SOLAR, "solar", "<|content|>Yes.<|end|><|begin|>assistant", "Yes.", "", []),
    ],
)
def test_thoughts_anywhere(
    tags: Thoughts, style: str, text: str, content: str, thoughts: str, numbers: list[int]
) -> None:
    """Control tokens around thoughts are no text, wherever they stand."""
    found = read(thinker(tags, style), text)
    assert found[:2] == (content, thoughts)
    assert list(map(json.loads, found[2])) == [{"n": n} for n in numbers]


def test_tags_of_thoughts_in_an_argument() -> None:
    text = '<|tool_call>call:wait{n:<|"|>a <|channel>thought b<channel|><|"|>}<tool_call|>'
    (arguments,) = read(thinker(CHANNEL, "gemma-4"), text)[2]
    assert json.loads(arguments) == {"n": "a <|channel>thought b<channel|>"}


FINAL = "<|start|>assistant<|channel|>final<|message|>Yes."
LONG = "It may be so, or it may not be so. " * 9
TO = "to=functions.wait"


@pytest.mark.parametrize(
    ("text", "content", "thoughts", "arguments"),
    [
        (f"<|channel|>analysis !<|end|>{FINAL}", "Yes.", "", []),
        (f"<|channel|>an analysis of it<|end|>{FINAL}", "Yes.", "an analysis of it", []),
        (f"<|channel|>{LONG}<|end|>{FINAL}", "Yes.", LONG, []),
        (f"<|channel|>{LONG}{FINAL}", "Yes.", LONG, []),
        (f"<|channel|>Hm. {FINAL}", "Yes.", "Hm. ", []),
        (f"<|channel|>analysisHm.<|end|>{FINAL}", "Yes.", "Hm.", []),
        ("<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>Yes.", "Yes.", "Hm.", []),
        (f"<|channel|>analysis<|message|>Hm.{FINAL}<|return|>", "Yes.", "Hm.", []),
        ("<|channel|>analysis<|channel|>final<|message|>Yes.", "Yes.", "", []),
        ("<|channel|>final Yes.<|return|>", "Yes.", "", []),
        ("<|start|>assistantYes.<|end|>", "Yes.", "", []),
        (f"<|end|> <|end|>{FINAL}<|end|><|start|>assistant", "Yes.", "", []),
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|chan", "", "Hm.", []),
        (f'<|channel|>commentary {TO} <|constrain|>json{{"n": 1}}<|call|>', "", "", ['{"n": 1}']),
        (f"{TO}<|channel|>commentary<|message|><|call|>", "", "", ["{}"]),
        (f'<|channel|>analysis {TO} code<|message|>{{"n": 1}}\n}}', "", "", ['{"n": 1}']),
        ('<|channel|>commentary to=wait<|message|>{"n": 1}<|call|>', "", "", ['{"n": 1}']),
        (f"<|channel|>commentary {TO}<|message|>soon<|call|>", "soon", "", []),
        (f'<|channel|>commentary {TO}<|message|>```json\n{{"n": 1}}\n```', "", "", ['{"n": 1}']),
        ("final words, to=be", "final words, to=be", "", []),
        ("assistant", "assistant", "", []),
    ],
)
def test_headers_that_are_written_badly(
    text: str, content: str, thoughts: str, arguments: list[str]
) -> None:
    want = (content, thoughts, arguments, "tool_calls" if arguments else "stop")
    assert read(lambda: HarmonyParser({"wait"}, new_id()), text, pick(3, 1)) == want


SHOWN = (
    '<atem:function_calls>\n<atem:invoke name="wait">\n<atem:parameter name="n">1'
    "</atem:parameter>\n</atem:invoke>\n</atem:function_calls>"
)
TO_USER = "<|start|>assistant to=user<|message|>"


@pytest.mark.parametrize(
    ("text", "content", "thoughts", "n_calls"),
    [
        (" to=user<|message|>Yes.<|eot|>", "Yes.", "", 0),
        (f" to=wait<|message|>{SHOWN}<|eot|>", "", "", 1),
        (f" to=user<|message|>Write {SHOWN}<|eot|>", f"Write {SHOWN}", "", 0),
        (f" to=self<|message|>{SHOWN}? No.<|eom|>{TO_USER}No.<|eot|>", "No.", f"{SHOWN}? No.", 0),
        (f" to=self<|message|>Hm.\n{SHOWN}", "", "Hm.", 1),
        (f" to=self<|message|>Hm.\n{SHOWN}<|eom|>", "", f"Hm.\n{SHOWN}", 0),
        (f" to=self Hm.<|eom|>{TO_USER}Yes.", "Yes.", "Hm.", 0),
        (
            f" to=user<|message|>One.<|eom|><|start|>assistant to=wait<|message|>{SHOWN}<|eom|>"
            f"<|start|>assistant to=wait<|message|>{SHOWN}<|eot|>",
            "One.",
            "",
            2,
        ),
        (f"One. {SHOWN}", "One.", "", 1),
    ],
)
def test_messages_to_tools_and_to_others(
    text: str, content: str, thoughts: str, n_calls: int
) -> None:
    calls = lambda: ToolParser(STYLES["atem"], {"wait"}, new_id())  # noqa: E731
    want = (content, thoughts, ['{"n": 1}'] * n_calls, "tool_calls" if n_calls else "stop")
    assert read(lambda: GlimmerParser(calls()), text, pick(5, 1)) == want


def opened(tag: str, text: str = "", close: bool = True) -> str:
    """An element of Kimi K3."""
    name = tag.split()[0]
    return f"<|open|>{tag}<|sep|>{text}" + (f"<|close|>{name}<|sep|>" if close else "")


N = opened('argument key="n" type="number"', "1")
WAITS = opened('call tool="wait" index="1"', N)
IN_JSON = opened('call tool="wait" index="1"', opened('json type="object"', '{"n": 1}'))
END = "<|close|>message<|sep|>"
HM = "Hm.<|close|>think<|sep|>"


@pytest.mark.parametrize(
    ("text", "content", "thoughts", "n_calls"),
    [
        (f"{HM}{opened('response', 'Yes.')}{END}", "Yes.", "Hm.", 0),
        (f"{opened('response', 'Yes.')}{END}", "Yes.", "", 0),
        (f"Hm.{opened('response', 'Yes.', close=False)}", "Yes.", "Hm.", 0),
        (f"{HM}{opened('response')}{opened('tools', WAITS + IN_JSON)}{END}", "", "Hm.", 2),
        (f"{HM}{opened('response', 'I wait.')}{WAITS}{END}", "I wait.", "Hm.", 1),
        (f"{HM}{opened('tools', WAITS, close=False)}{END}", "", "Hm.", 1),
        (f"Hm.{opened('tools', WAITS)}", "", "Hm.", 1),
        (f"{opened('tools', WAITS)}? {HM}Yes.", "Yes.", f"{opened('tools', WAITS)}? Hm.", 0),
        (f"{HM}{opened('response', 'Yes.')[:-5]}", "Yes.", "Hm.", 0),
    ],
)
def test_elements(text: str, content: str, thoughts: str, n_calls: int) -> None:
    def make() -> Parser:
        one = parser_of(STYLES["kimi-3"], ToolRequest.of(TOOLS), opened=True, new_id=new_id())
        assert one is not None
        return one

    want = (content, thoughts, ['{"n": 1}'] * n_calls, "tool_calls" if n_calls else "stop")
    assert read(make, text, pick(5, 1)) == want


@pytest.mark.parametrize(
    ("text", "content", "arguments"),
    [
        ("all\nSee >>> x\n>>>it", "See >>> x\n>>>it", []),
        ('all\nI wait.>>>wait\n{"n": 1}>>>wait\n{}', "I wait.", ['{"n": 1}', "{}"]),
        ('>>>wait\n{"n": ">>>all"}\n>>>all\nDone.', "Done.", ['{"n": ">>>all"}']),
        (">>>wait\n", "", ["{}"]),
        (">>>run\n{}", ">>>run\n{}", []),
        ("Yes.", "Yes.", []),
        (">>>wa", "", []),
        ("all\nSo:\n```\n>>>wait\n{}\n```\n>>>wait\n{}", "So:\n```\n>>>wait\n{}\n```\n", ["{}"]),
        (' functions.wait {"n": 1}', "", ['{"n": 1}']),
        ('wait\n```json\n{"n": 1}\n```', "", ['{"n": 1}']),
        ('wait\n{"name": "wait", "arguments": {"n": 1}}', "", ['{"n": 1}']),
    ],
)
def test_messages_behind_lines(text: str, content: str, arguments: list[str]) -> None:
    found = read(lambda: FunctionaryParser({"wait"}, new_id()), text)
    assert found == (content, "", arguments, "tool_calls" if arguments else "stop")


FRAGMENTS = [
    *("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|call|>", "<|constrain|>"),
    *("assistant", "analysis", "final", "commentary", f" {TO}", " to=x", "json", '{"n": 1}'),
    *("a", " ", "<", LONG),
]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_cut_of_messages_gives_the_same(data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(FRAGMENTS), max_size=9)))
    read(lambda: HarmonyParser({"wait"}, new_id()), text, max(1, len(text) // 3))


MORE = [
    *("<think>", "</think>", "<a>", "<|channel>", "thought", "<|channel>thought", "<channel|>"),
    *(call(1), short(1), "<tool_call>", "<|tool_call>", "</tool_call>", "a", " ", "\n", "<", "{"),
]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_cut_of_thoughts_gives_the_same(data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(MORE), max_size=9)))
    tags, style = data.draw(st.sampled_from([(THINK, "hermes"), (CHANNEL, "gemma-4")]))
    how = {name: data.draw(st.booleans()) for name in ("opened", "begun", "raw", "quotes")}
    read(thinker(tags, style, **how), text, max(1, len(text) // 3))


GPT = "{# <|channel|> <|message|> functions. tools #}{{ messages[0].content }}"
OPENS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant><think>\n"
MUSE = "{# tools <atem:function_calls> #}{{ messages[0].content }}<|start|>assistant"
RESULTS = """{# <think> </think> #}{% for m in messages %}{% if m.role == 'tool' %}
<response>{{ m.content }}</response>{% else %}<{{ m.role }}>{{ m.content }}{{ m.tool_calls }}
{% endif %}{% endfor %}<assistant>"""
ANSWERS = "{# <think> </think> <response> </response> #}" + OPENS


def answered(source: str, text: str, messages: Any = ASK, **asked: Any) -> dict[str, Any]:
    request = ToolRequest.of(asked.pop("tools", None))
    thinking = Thinking().asked(**asked)
    made = prepare(
        TemplateFormat(source, "", ""), messages, request, lambda _: {}, thinking=thinking
    )
    if made.parser is None:
        return {"content": text}
    return message(made.parser.push(text) + made.parser.finish())


def test_continued_thoughts_keep_their_space() -> None:
    begun = {"role": "assistant", "content": "", "reasoning_content": "I"}
    for source in (OPENS, OPENS.replace("<think>\n", "{# <think> #}")):
        found = answered(source, " am</think>Yes", [*ASK, begun])
        assert (found["reasoning_content"], found["content"]) == (" am", "Yes")
    assert answered(OPENS, " am</think>Yes")["reasoning_content"] == "am"
    found = answered(MUSE, f" am<|eom|>{TO_USER}Yes<|eot|>", [*ASK, begun])
    assert (found["reasoning_content"], found["content"]) == (" am", "Yes")


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_thoughts_that_stay_in_the_answer(tools: Any) -> None:
    """Each with its tags, so that they can be told from it."""
    thought = "<|channel|>analysis<|message|>Hm.<|end|>"
    found = answered(GPT, f"{thought}{FINAL}", tools=tools, reasoning_format="none")
    assert found["content"] == f"{thought}Yes." and "reasoning_content" not in found
    text = f"Do {call(1)}?\n</think>\n\nNo."
    found = answered(OPENS + "{# <tool_call> 'name' #}", text, tools=tools, reasoning_format="none")
    assert found["content"] == text and "tool_calls" not in found


def test_tags_around_results_are_not_those_of_answers() -> None:
    text = "<response>Yes.</response>"
    for thought in ("", "<think>Hm.</think>"):
        assert answered(RESULTS, thought + text)["content"] == text
        opened = thought.removeprefix("<think>") or "</think>"
        assert answered(ANSWERS, opened + text)["content"] == "Yes."
