"""Answers of gpt-oss: messages in channels, of which one has the thoughts and one the calls."""

import re
from collections.abc import Callable, Iterable, Set

from .definitions import Tool
from .events import CallBegin
from .kinds import functions_of
from .messages import Call, HeaderParser, Message, Text
from .reader import function_named
from .styles import HARMONY

_CHANNEL = "<|channel|>"
_ITEMS = re.compile(
    r"(?:\s|<\|(?:start|channel|constrain)\|>|assistant(?![a-z])|to=[^\s<{]+"
    r"|(?:analysis|commentary|final|json)(?![a-z]))*"
)
_WORDS = ("assistant", "to=", "<|constrain|>", "analysis", "commentary", "final", "json")
_RECIPIENT = re.compile(r"\bto=([^\s<{]+)")
_CHANNELS = re.compile("analysis|commentary|final")


class HarmonyParser(HeaderParser):
    """Turns the text of one answer into events.

    names: functions that may be called; a message to another one is content, as is what is no
    message. raw: thoughts are content, between their tags. tools: definitions of the functions.
    """

    def __init__(
        self,
        names: Set[str] = frozenset(),
        new_id: Callable[[], str] | None = None,
        raw: bool = False,
        tools: Iterable[Tool] = (),
    ):
        begins, ends = ("<|start|>", _CHANNEL), ("<|end|>", "<|call|>", "<|return|>")
        super().__init__(begins, ends, _ITEMS, _WORDS, "to=functions.")
        self._functions = functions_of(names, tools)
        self._new_id, self._raw = new_id or HARMONY.new_id, raw

    def _of(self, head: str, rest: str | None) -> Message:
        recipients = _RECIPIENT.findall(head)
        channels = _CHANNELS.findall(head) or [""]
        called = function_named(recipients[-1], self._functions) if recipients else None
        if called is not None and (rest is None or rest.startswith("{")):
            begin = CallBegin(self._n_calls, self._new_id(), called)
            return Call(begin, head + self.MESSAGE, self._functions)
        # Free text behind the mark of a channel is what a model thinks.
        unnamed = rest is not None and channels == [""] and _CHANNEL in head
        thinks = not recipients and channels[-1] == "analysis" or unnamed
        return Text(HARMONY.thoughts if thinks else None, self._raw)
