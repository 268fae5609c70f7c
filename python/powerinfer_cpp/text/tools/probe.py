"""What a chat template says of thoughts: it is rendered with some, and its text is read."""

import re
from collections.abc import Callable
from typing import Any

from .harmony import THOUGHTS as HARMONY_THOUGHTS
from .styles import HARMONY, style_of
from .thoughts import Thoughts

# Renders messages and further names, without the beginning of an answer. Raises ValueError.
Render = Callable[[list[dict[str, Any]], dict[str, Any]], str]

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
_ON = {"enable_thinking": True, "thinking": True}
_THOUGHT, _CONTENT = "Qzthoughtqz", "Qzcontentqz"
_OPENING = re.compile(r"[<\[][^<>\[\]\n]{1,40}[>\]]?[^<>\[\]\n]{0,20}\s*\Z")
_CLOSING = re.compile(r"\s*[<\[].{1,80}[>\]]\s*", re.DOTALL)


def thoughts_of(source: str, render: Render) -> Thoughts | None:
    """How a template writes thoughts; None if it has none."""
    if style_of(source) is HARMONY:
        return HARMONY_THOUGHTS
    for field in (name for name in _FIELDS if re.search(rf"\b{name}\b", source)):
        for names in ({}, _ON):
            found = _written(field, names, render)
            if found is not None:
                return found
    for opening, closing in _PAIRS:
        if opening in source or closing in source:
            return Thoughts(opening, closing)
    return None


def _written(field: str, names: dict[str, Any], render: Render) -> Thoughts | None:
    """The tags around thoughts that a message has in this field."""
    said = {"role": "assistant", "content": _CONTENT, field: _THOUGHT}
    try:
        text = render([{"role": "user", "content": "Hi"}, said], names)
    except ValueError:
        return None
    before, found, after = text.partition(_THOUGHT)
    between, follows, _ = after.partition(_CONTENT)
    begin = _OPENING.search(before)
    if not found or not follows or begin is None or not _CLOSING.fullmatch(between):
        return None
    return Thoughts(begin[0].strip(), between.strip(), begin[0], between, field)
