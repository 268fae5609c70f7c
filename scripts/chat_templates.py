#!/usr/bin/env python3
"""Renders every chat template (*.jinja) of a folder, such as llama.cpp's models/templates, with
a few conversations: how calls and thoughts are written in it, which texts its prompts lack, and
whether a call is read as it is written.

    .venv/bin/python scripts/chat_templates.py FOLDER
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from powerinfer_cpp.text.chat import TemplateFormat
from powerinfer_cpp.text.tool_chat import prepare
from powerinfer_cpp.text.tools import ToolParser, ToolRequest, message

WORDS = ("Question", "Rules", "Reply", "Result", "Oslo")  # of the conversations
LOOK = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "look", "description": "x", "parameters": LOOK}}]
ASK = {"role": "user", "content": "Question"}
SAID = {"role": "assistant", "content": "Reply", "reasoning_content": "Thought"}


def called(*ids: str) -> list[dict[str, Any]]:
    """A message that calls once for each id, and the results."""
    function = {"name": "look", "arguments": '{"city": "Oslo"}'}
    calls = [{"id": i, "type": "function", "function": function} for i in ids]
    message = {**SAID, "content": "", "tool_calls": calls}
    results = [
        {"role": "tool", "tool_call_id": i, "name": "look", "content": "Result"} for i in ids
    ]
    return [ASK, message, *results]


CHATS: dict[str, Sequence[dict[str, Any]]] = {
    "a question": [ASK],
    "a system message": [{"role": "system", "content": "Rules"}, ASK],
    "a second question": [ASK, SAID, ASK],
    "a call": called("abcdefgh1"),
    "two calls": called("abcdefgh1", "abcdefgh2"),
}


def wrong(template: TemplateFormat, name: str, with_tools: bool) -> str:
    """What is wrong with the prompt of a conversation."""
    chat = CHATS[name]
    try:
        request = ToolRequest.of(TOOLS if with_tools else None)
        text = prepare(template, chat, request, lambda _texts: {}).text
    except ValueError as error:
        return str(error)
    lacks = [word for word in WORDS if word in json.dumps(chat) and word not in text]
    return f"lacks {', '.join(lacks)}" if lacks else ""


def unread(template: TemplateFormat) -> bool:
    """Is a call that the template writes none to the parser of its style?"""
    style = template.style
    if style is None or style.answer or style.bare:  # these need the beginning of an answer
        return False
    request = ToolRequest.of(TOOLS)
    text = template(called("abcdefgh1")[:2], request, add_generation_prompt=False).text
    parser = ToolParser(style, request.names, tools=request.tools)
    found = message(parser.push(text[text.rindex("Question") :]) + parser.finish())
    calls = [json.loads(call["function"]["arguments"]) for call in found.get("tool_calls", ())]
    return calls != [{"city": "Oslo"}]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    n_wrong = 0
    for path in sorted(folder.glob("*.jinja")):
        template = TemplateFormat(path.read_text("utf-8"), "<s>", "</s>")
        style, tags = template.style, template.thoughts
        thoughts = f"{tags.head!r} {tags.tail!r} {tags.field}" if tags else "none"
        print(f"{path.stem}: calls {style.name if style else 'none'}, thoughts {thoughts}")
        if unread(template):
            n_wrong += 1
            print("    its own call is not read")
        for with_tools in (False, True):
            for name in CHATS:
                if words := wrong(template, name, with_tools):
                    n_wrong += 1
                    print(f"    {name}{' with tools' if with_tools else ''}: {words}")
    print(f"{n_wrong} prompts are wrong")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
