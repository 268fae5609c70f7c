"""Chat templates of many families: what is found in them, their prompts, and answers as their
models write them, whole and in pieces."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from powerinfer_cpp.text.chat import TemplateFormat
from powerinfer_cpp.text.thinking import Thinking
from powerinfer_cpp.text.tool_chat import Turn, prepare
from powerinfer_cpp.text.tools import HARMONY, ToolRequest, message
from template_families import FAMILIES
from template_family import GIVEN

LOOK = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["city"],
}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": LOOK}}]
ASK = {"role": "user", "content": "Why?"}


def turn(name: str, messages: Sequence[dict[str, Any]], **asked: Any) -> Turn:
    template = TemplateFormat(FAMILIES[name].source, "<s>", "</s>")
    request = ToolRequest.of(TOOLS)
    thinking = Thinking(**{"on": FAMILIES[name].on, **asked})
    return prepare(template, messages, request, lambda _texts: {}, thinking=thinking)


def read(name: str, pieces: Sequence[str]) -> dict[str, Any]:
    parser = turn(name, [ASK]).parser
    assert parser is not None
    found = message([event for piece in pieces for event in parser.push(piece)] + parser.finish())
    for call in found.get("tool_calls", ()):
        assert json.loads(call["function"]["arguments"]) == GIVEN
        call["id"] = ""
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_answers_of_a_family(name: str) -> None:
    family = FAMILIES[name]
    template = TemplateFormat(family.source, "<s>", "</s>")
    assert template.style is not None and template.style.name == family.style
    assert (template.thoughts is None) == family.quiet
    thinks = {} if family.quiet else {"reasoning_content": "Hm."}
    draw = random.Random(name)
    for text, content in ((family.text, "Yes."), (family.called, None)):
        found = read(name, [text])
        assert {key: found[key] for key in thinks} == thinks and found["content"] == content
        assert ("tool_calls" in found) == (text is family.called)
        pieces, at = [], 0
        while at < len(text):
            n = draw.randint(1, 9)
            pieces.append(text[at : at + n])
            at += n
        assert read(name, pieces) == read(name, text) == found


@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_of_a_family(name: str) -> None:
    """A later prompt holds the answer, with its call and the result, as the family writes them."""
    family = FAMILIES[name]
    first = turn(name, [ASK])
    begin = family.assistant[0] if family.begin is None else family.begin
    assert first.text.endswith(f"{family.user[0]}Why?{family.user[1]}{begin}")
    assert first.parser is not None
    answer = message(first.parser.push(family.called) + first.parser.finish())
    (call,) = answer["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "name": "look", "content": "sunny"}
    later = turn(name, [ASK, answer, result]).text
    assert later.endswith(f"{family.result[0]}sunny{family.result[1]}{begin}")
    assert "look" in later and "Oslo" in later[len(first.text) - len(begin) :]
    assert later.startswith(first.text + family.called) == family.repeats
    asked = turn(name, [ASK, {**answer, "content": "Yes.", "tool_calls": None}, ASK]).text
    assert "Yes." in asked


@pytest.mark.parametrize("name", [name for name in FAMILIES if FAMILIES[name].off is not None])
def test_prompts_of_a_family_that_is_not_to_think(name: str) -> None:
    family = FAMILIES[name]
    assert family.off is not None
    quiet = turn(name, [ASK], on=False)
    assert quiet.text.endswith(f"{family.user[0]}Why?{family.user[1]}{family.off}")
    assert quiet.parser is not None
    assert message(quiet.parser.push("Yes.") + quiet.parser.finish())["content"] == "Yes."


@pytest.mark.parametrize(
    ("name", "asked", "said"),
    [
        ("hy3", {"on": None}, "effort:no_think"),
        ("hy3", {"on": False}, "effort:no_think"),
        ("hy3", {"on": True}, "effort:high"),
        ("hy3", {"on": True, "effort": "minimal"}, "effort:low"),
        ("hy3", {"on": True, "effort": "max"}, "effort:high"),
        ("hy3", {"on": True, "names": {"reasoning_effort": "low"}}, "effort:low"),
        ("muse-glimmer", {}, "strength: high."),
        ("muse-glimmer", {"on": True, "effort": "medium"}, "strength: medium."),
        ("muse-glimmer", {"on": True, "effort": "max"}, "strength: xhigh."),
        ("muse-glimmer", {"on": False}, "strength: low."),
    ],
)
def test_a_template_gets_efforts_that_it_knows(name: str, asked: dict[str, Any], said: str) -> None:
    assert said in turn(name, [ASK], **asked).text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("solar", "<|content|>Yes.<|end|>"),
        ("solar", "<|begin|>assistant<|content|>Yes."),
        ("granite-3.3", "Yes."),
        ("granite-3.3", "<response>\nYes.\n</response>\n"),
        ("apriel-1.6", "[BEGIN FINAL RESPONSE]\nYes."),
        ("kimi-k3", "<|close|>think<|sep|><|open|>response<|sep|>Yes.<|close|>resp"),
        ("kimi-k3", "<|open|>response<|sep|>Yes.<|close|>response<|sep|><|close|>message<|sep|>"),
        ("qwen-3", "Yes."),
        ("qwen-3.5", "</think>\n\nYes."),
    ],
)
def test_answers_without_thoughts(name: str, text: str) -> None:
    assert read(name, [text]) == {"role": "assistant", "content": "Yes."}
    assert read(name, text) == {"role": "assistant", "content": "Yes."}


def test_thoughts_of_solar_do_not_end_the_answer() -> None:
    """They are a message of their own, as those of gpt-oss, with the same token at its end."""
    tags = TemplateFormat(FAMILIES["solar"].source, "<s>", "</s>").thoughts
    assert tags is not None and tags.closing == tags.last == "<|end|>"
    assert tags.lead == "<|begin|>assistant<|content|>" and tags.closing in HARMONY.control
