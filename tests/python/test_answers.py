"""What models of each style write, well and badly: read as they mean it, however it is cut.

answers/STYLE.jsonl has a text in each line: "kind" is "good", as a template would write it, or
"flubbed", as models are known to write it; "why" says what is special. "tools" names what is
offered of answers/tools.json. "content", "thoughts" and "calls" are what a careful reader takes
from it; the white space around texts is left out. They come from the formats: no parser wrote them.
"opened": the prompt ends with the tag that opens thoughts.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from circles import pick, third
from powerinfer_cpp.text.tools import (
    STYLES,
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Event,
    Parser,
    Thought,
    Thoughts,
    ToolRequest,
    message,
    parser_of,
)

FOLDER = Path(__file__).parent / "answers"
TOOLS = {tool["function"]["name"]: tool for tool in json.loads((FOLDER / "tools.json").read_text())}
CUTS = 2  # of a text that is not cut everywhere, beside the cut between all characters

NO_THOUGHTS = (
    "llama-3",
    "mistral",
    "gigachat",
    "gigachat-3",
    "minimax-1",
    "functionary",
    "functionary-3",
)
# Thoughts as a template of each style writes them, where all templates of the style do not.
THINK = Thoughts("<think>", "</think>")
THOUGHTS = {
    **dict.fromkeys(NO_THOUGHTS),
    "seed": Thoughts("<seed:think>", "</seed:think>"),
    "hunyuan": Thoughts("<think:opensource>", "</think:opensource>"),
    "minimax-3": Thoughts("<mm:think>", "</mm:think>"),
    "mistral-args": Thoughts("[THINK]", "[/THINK]"),
    "apertus": Thoughts("<|inner_prefix|>", "<|inner_suffix|>"),
    "apriel": Thoughts("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    "gemma-4": Thoughts("<|channel>thought", "<channel|>"),
    "granite-3": Thoughts("<think>", "</think>", lead="<response>", last="</response>"),
    "cohere": Thoughts(
        *("<|START_THINKING|>", "<|END_THINKING|>"),
        lead="<|START_RESPONSE|>",
        last="<|END_RESPONSE|>",
    ),
    "solar": Thoughts(
        *("<|think|>", "<|end|>"), lead="<|begin|>assistant<|content|>", last="<|end|>"
    ),
}


def lines(style: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / f"{style}.jsonl").read_text().splitlines()]


def reader(style: str, line: dict[str, Any]) -> Parser:
    """What reads an answer of a style."""
    request = ToolRequest.of([TOOLS[name] for name in line["tools"]])
    ids = map("call_{}".format, itertools.count())
    tags = STYLES[style].thoughts or THOUGHTS.get(style, THINK)
    opened = line.get("opened", False)
    found = parser_of(STYLES[style], request, tags, opened=opened, new_id=lambda: next(ids))
    assert found is not None
    return found


def read(style: str, line: dict[str, Any], pieces: Sequence[str]) -> list[Event]:
    """Events of an answer that comes in pieces, with adjacent texts of one kind joined."""
    parser = reader(style, line)
    found: list[Event] = []
    for event in [*(event for piece in pieces for event in parser.push(piece)), *parser.finish()]:
        last = found[-1] if found else None
        if isinstance(event, Content | Thought) and type(last) is type(event):
            found[-1] = type(event)(last.text + event.text)  # type: ignore[union-attr]
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            found[-1] = CallArguments(event.index, last.text + event.text)
        else:
            found.append(event)
    return found


def meant(events: Sequence[Event]) -> dict[str, Any]:
    """Events as a line of the corpus tells them."""
    said = message(events)
    calls = [call["function"] for call in said.get("tool_calls", ())]
    return {
        "content": (said["content"] or "").strip(),
        "thoughts": said.get("reasoning_content", "").strip(),
        "calls": [[call["name"], json.loads(call["arguments"])] for call in calls],
    }


def same(a: Any, b: Any) -> bool:
    """Are two values the same JSON? True is not 1, and 1 is not 1.0."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def broken(events: Sequence[Event]) -> list[str]:
    """Arguments that a client of a stream got, and that are no JSON object at the end."""
    found: dict[int, str] = {}
    ended = set()
    for event in events:
        if isinstance(event, CallBegin):
            found[event.index] = ""
        elif isinstance(event, CallArguments):
            found[event.index] += event.text
        elif isinstance(event, CallEnd):
            ended.add(event.index)

    def is_object(text: str) -> bool:
        try:
            return isinstance(json.loads(text), dict)
        except ValueError:
            return False

    return [text for i, text in found.items() if i not in ended or not is_object(text)]


@pytest.mark.parametrize("style", STYLES)
def test_answers(style: str) -> None:
    wrong = []
    corpus = lines(style)
    everywhere = set(pick([], third(range(len(corpus)))))
    for n, line in enumerate(corpus):
        text = line["text"]
        whole = read(style, line, [text])
        want = {key: line[key] for key in ("content", "thoughts", "calls")}
        found = meant(whole)
        if not same(found, want):
            wrong.append(f"{line['why']}: {text!r} is read as {found}")
        if cut := broken(whole):
            wrong.append(f"{line['why']}: {text!r} gives the arguments {cut}")
        step = 1 if n in everywhere else max(1, len(text) // CUTS)
        places = range(1 + n * 7 % step, len(text), step)
        cuts = [text, *([text[:at], text[at:]] for at in places)]
        if any(read(style, line, pieces) != whole for pieces in cuts):
            wrong.append(f"{line['why']}: {text!r} is read otherwise in pieces")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("style", STYLES)
def test_each_style_has_its_texts(style: str) -> None:
    found = lines(style)
    kinds = Counter(line["kind"] for line in found)
    assert set(kinds) == {"good", "flubbed"} and min(kinds.values()) >= 20
    assert len({line["text"] for line in found}) == len(found)
    for line in found:
        assert line["why"] and set(line["tools"]) <= set(TOOLS)
        assert {name for name, _ in line["calls"]} <= set(line["tools"])
