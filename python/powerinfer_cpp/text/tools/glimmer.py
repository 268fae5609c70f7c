"""Answers of Muse Glimmer: messages to itself, which are thoughts, to the user and to tools."""

import re

from .messages import Calls, HeaderParser, Message, Text
from .parser import ToolParser
from .styles import ATEM

_ITEMS = re.compile(r"(?:\s|<\|start\|>|assistant(?![a-z])|to=[^\s<]+)*")
_RECIPIENT = re.compile(r"to=([^\s<]+)")


class GlimmerParser(HeaderParser):
    """Turns the text of one answer into events.

    calls: reads messages to tools, and texts without a header; what is said to the user is text,
    whatever it shows. raw: thoughts are content, between their tags.
    """

    def __init__(self, calls: ToolParser | None = None, raw: bool = False):
        words = ("assistant", "to=")
        super().__init__(("<|start|>",), ("<|eom|>", "<|eot|>"), _ITEMS, words, "to=")
        self._calls, self._raw = calls, raw

    def _of(self, head: str, rest: str | None) -> Message:
        recipient = (_RECIPIENT.findall(head) or [""])[-1]
        if recipient == "self":
            return Text(ATEM.thoughts, self._raw)
        return Text() if recipient == "user" or self._calls is None else Calls(self._calls)
