"""What a chat template says of thoughts: it is rendered with some, and its text is read."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .styles import MINIMAX, MINIMAX_3, Style
from .taught import style_of
from .thoughts import Thoughts

# Renders messages and further names, with or without the beginning of an answer. Raises ValueError.
Render = Callable[[list[dict[str, Any]], dict[str, Any], bool], str]

_FIELDS = ("reasoning_content", "thinking", "reasoning")
# Tags of templates that take thoughts inside the content, or want them in parts of it.
_PAIRS = (
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
)
# What stands around the text of an answer: of Granite 3 and ERNIE (of MiniMax, around results of
# tools), of Command R7B, and of Command A.
_AROUND = (
    ("<response>", "</response>"),
    ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ("<|START_TEXT|>", "<|END_TEXT|>"),
)
_ON = {"enable_thinking": True, "thinking": True}
_THOUGHT, _CONTENT, _NAME = "Qzthoughtqz", "Qzcontentqz", "qzname"
_ASK = {"role": "user", "content": "Hi"}
_CALL = {"id": "qzcall000", "type": "function", "function": {"name": _NAME, "arguments": {}}}
_RESULT = {"role": "tool", "tool_call_id": "qzcall000", "name": _NAME, "content": "x"}
_OPENING = re.compile(r"[<\[][^<>\[\]\n]{1,40}[>\]]?[^<>\[\]\n]{0,20}\s*\Z")
_CLOSING = re.compile(r"\s*[<\[].{1,80}[>\]]\s*", re.DOTALL)
_FIRST_TAG = re.compile(r"\s*[<\[][^<>\[\]\n]{1,40}[>\]]\s*")
_MOST = 60  # characters of what opens thoughts


def thoughts_of(source: str, render: Render) -> Thoughts | None:
    """How a template writes thoughts; None if it has none."""
    style = style_of(source)
    if style is not None and style.thoughts is not None:
        return style.thoughts
    around = next((tags for tags in _AROUND if all(tag in source for tag in tags)), ("", ""))
    lead, last = ("", "") if _is_of_results(around[0], style, render) else around
    for field in (name for name in _FIELDS if re.search(rf"\b{name}\b", source)):
        for calls in (False, True):  # some keep thoughts only beside calls
            for names in ({}, _ON):
                found = _written(field, calls, names, render)
                if found is not None:
                    return found if found.lead else replace(found, lead=lead, last=last)
    for opening, closing in _PAIRS:
        if opening in source or closing in source:
            tags = Thoughts(opening, closing, lead=lead, last=last)
            if lead and not tags.anywhere:
                tags = replace(tags, end=f"\n{closing}\n{lead}")
            # It may take them in chats that were not tried.
            known = _FIELDS[0] in source
            return replace(tags, field=_FIELDS[0]) if known else _inside(tags, render)
    return None


def _is_of_results(tag: str, style: Style | None, render: Render) -> bool:
    """Does this tag stand before results of tools?"""
    if not tag or style in (MINIMAX, MINIMAX_3):
        return True
    called = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    try:
        text = render([_ASK, called, {**_RESULT, "content": _CONTENT}], {}, False)
    except ValueError:
        return False
    return text.partition(_CONTENT)[0].rstrip().endswith(tag)


def _written(field: str, calls: bool, names: dict[str, Any], render: Render) -> Thoughts | None:
    """The tags around thoughts that a message has in this field."""
    said: dict[str, Any] = {"role": "assistant", "content": _CONTENT, field: _THOUGHT}
    messages = [_ASK, {**said, "tool_calls": [_CALL]}, _RESULT] if calls else [_ASK, said]
    try:
        prompt, text = render([_ASK], names, True), render(messages, names, False)
        if prompt == render([_ASK], names, False):
            prompt = text  # nothing says where an answer begins
    except ValueError:
        return None
    before, found, after = text.partition(_THOUGHT)
    if not found:
        return None
    begin = before.removeprefix(prompt) if before.startswith(prompt) else ""
    if not begin.strip() or len(begin) > _MOST:  # the prompt opens thoughts, or is another one
        match = _OPENING.search(before)
        begin = match[0] if match else ""
    between, _, rest = after.partition(_CONTENT) if _CONTENT in after else (after, "", "")
    end = between if _CLOSING.fullmatch(between) and _NAME not in between else None
    if end is None and (match := _FIRST_TAG.match(after)):
        end = match[0]
    if not begin.strip() or not end:
        return None
    own = prompt.removeprefix(before)  # words that only a prompt has
    if own != prompt and len(own) <= _MOST and own.strip() and not re.search(r"[<\[]", own):
        begin = own
    closing, lead, last = end.strip(), "", ""
    if (match := _FIRST_TAG.match(closing)) and match.end() < len(closing):
        closing, lead = match[0].strip(), closing[match.end() :]
        last = match[0].strip() if (match := _FIRST_TAG.match(rest)) else ""
    return Thoughts(begin.strip(), closing, begin, end, field, lead, last)


def _inside(tags: Thoughts, render: Render) -> Thoughts:
    """The tags with `field` "content" if a template writes thoughts that stand in the content, and
    no tags of its own before them."""
    said = {"role": "assistant", "content": tags.written(_THOUGHT) + _CONTENT}
    try:
        before, kept, _ = render([_ASK, said], {}, False).partition(tags.written(_THOUGHT).strip())
    except ValueError:
        return tags
    own = before.rstrip().endswith((tags.opening, tags.closing))
    return replace(tags, field="content") if kept and not own else tags
