"""Answers of gpt-oss: messages in channels, of which one has the thoughts and one the calls."""

import re
from collections.abc import Callable, Set

from .events import ByStates, CallArguments, CallBegin, CallEnd, Content, Event, Thought, unfinished
from .reader import is_object
from .styles import HARMONY
from .thoughts import Thoughts

_START, _MESSAGE = "<|start|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START)
_END = re.compile("|".join(map(re.escape, _ENDS)))
_RECIPIENT = re.compile(r"to=functions\.([\w-]+)")
_MOST_HEADER = 256  # characters: what is longer is no header

THOUGHTS = Thoughts(
    opening="<|channel|>analysis<|message|>",
    closing="<|end|>",
    begin="<|channel|>analysis<|message|>",
    end="<|end|><|start|>assistant<|channel|>final<|message|>",
    field="thinking",
)


class HarmonyParser(ByStates):
    """Turns the text of one answer into events. names: functions that may be called; a message to
    another one is content, as is what is no message."""

    def __init__(
        self,
        names: Set[str] = frozenset(),
        new_id: Callable[[], str] | None = None,
        split: bool = True,
    ):
        self.n_complete = 0  # calls with complete arguments
        self._names, self._new_id, self._split = names, new_id or HARMONY.new_id, split
        self._held = ""
        self._at = self._in_header
        self._kind: type[Content] | type[Thought] = Content
        self._raw: list[str] = []  # of a call
        self._arguments: list[str] = []
        self._called = False  # the message is a call
        self._index = 0

    def finish(self) -> list[Event]:
        """The rest, at the end of the answer."""
        held, self._held = self._held, ""
        if self._at == self._in_header:
            # A header that ends the answer, or a control token, says nothing.
            return [Content(held)] if held.strip() and "<|" not in held else []
        found = self._said(held)
        return found + self._ended()

    def reason(self, reason: str) -> str:
        """The finish_reason of an answer that ended for this reason."""
        return "tool_calls" if reason == "stop" and self.n_complete else reason

    def _in_header(self, text: str, at: int) -> tuple[list[Event], int]:
        end = text.find(_MESSAGE, at, at + _MOST_HEADER + len(_MESSAGE))
        head = text[at : at + _MOST_HEADER + len(_MESSAGE)] if end < 0 else text[at:end]
        if not _may_be_header(head, end >= 0):
            self._at, self._kind, self._called = self._in_message, Content, False
            return [], at
        if end < 0:
            return [], at
        self._at = self._in_message
        recipient = _RECIPIENT.search(head)
        self._called = recipient is not None and recipient[1] in self._names
        thinks = self._split and recipient is None and "analysis" in head
        self._kind = Thought if thinks else Content
        begun: list[Event] = []
        if recipient is not None and self._called:
            self._raw, self._arguments = [head, _MESSAGE], []
            begun = [CallBegin(self._index, self._new_id(), recipient[1])]
        return begun, end + len(_MESSAGE)

    def _in_message(self, text: str, at: int) -> tuple[list[Event], int]:
        end = _END.search(text, at)
        if end is not None:
            self._at = self._in_header
            return self._said(text[at : end.start()]) + self._ended(), end.end()
        certain = max(at, len(text) - unfinished(text, _ENDS))
        return self._said(text[at:certain]), certain

    def _said(self, text: str) -> list[Event]:
        if not text:
            return []
        if not self._called:
            return [self._kind(text)]
        self._raw.append(text)
        self._arguments.append(text)
        return [CallArguments(self._index, text)]

    def _ended(self) -> list[Event]:
        if not self._called:
            return []
        complete = is_object("".join(self._arguments))
        ended = CallEnd(self._index, complete, "".join(self._raw))
        self._index += 1
        self.n_complete += complete
        self._called = False
        return [ended]


def _may_be_header(head: str, whole: bool) -> bool:
    """Is this a header, all of it or the beginning?"""
    if not whole:
        if len(head) - unfinished(head, (_MESSAGE,)) > _MOST_HEADER:
            return False
        marks = (_START, "<|channel|>", "<|constrain|>", _MESSAGE)
        head = head[: len(head) - unfinished(head, marks)]
    text = head.strip()
    if not text:
        return True
    begins = ("<|start|>", "<|channel|>", "<|constrain|>", "assistant", "to=")
    return any(text.startswith(word) or word.startswith(text) for word in begins)
