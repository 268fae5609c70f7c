"""Answers of Muse Glimmer: messages to itself, which are thoughts, to the user and to tools."""

import re

from .events import Event
from .messages import Calls, HeaderParser, Message, Text
from .parser import ToolParser
from .styles import ATEM
from .thought_parser import ThoughtParser

_ITEMS = re.compile(r"(?:\s|<\|start\|>|assistant(?![a-z])|to=[^\s<]+)*")
_RECIPIENT = re.compile(r"to=([^\s<]+)")


class _ToSelf:
    """A message that is thoughts, which may end with calls."""

    def __init__(self, calls: ToolParser | None, raw: bool):
        assert ATEM.thoughts is not None
        self._opening, self._closing = ATEM.thoughts.opening, ATEM.thoughts.closing
        self._parser = ThoughtParser(ATEM.thoughts, calls=calls, raw=raw)
        self._begun = False

    def push(self, text: str) -> list[Event]:
        opening, self._begun = "" if self._begun else self._opening, True
        return self._parser.push(opening + text)

    def end(self, whole: bool) -> list[Event]:
        return self.push(self._closing if whole else "") + self._parser.finish()


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
            return _ToSelf(self._calls, self._raw)
        return Text() if recipient == "user" or self._calls is None else Calls(self._calls)
