"""Answers that consist of messages, each behind a header that says what it is."""

import re
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Protocol

from .events import ByStates, CallArguments, CallBegin, CallEnd, Content, Event, Thought, unfinished
from .parser import ToolParser
from .reader import ARGUMENTS, CallReader, Functions
from .thoughts import Thoughts
from .values import Step

MOST_HEADER = 256  # characters: what is longer is no header
_WORD = re.compile(r"\w")
_FENCE = re.compile(r"\s*(?:```\w{0,16}\s*)?")
_KEY = re.compile(r'\{\s*"(\w{0,64})"')
# Of a message with arguments: what does not say how they are written.
_BEGINS = re.compile(r"\s*(?:`{0,2}|```\w{0,16}\s*)(?:\{\s*(?:\"\w{0,64})?)?")


class Message(Protocol):
    """What a message's text becomes. push: what is certain after this text. end: the rest; whole:
    the message's end was written."""

    def push(self, text: str) -> list[Event]: ...
    def end(self, whole: bool) -> list[Event]: ...


class Text:
    """A message that is text, or with `tags` thoughts: between the tags if they stay raw."""

    def __init__(self, tags: Thoughts | None = None, raw: bool = False):
        self._kind = Thought if tags and not raw else Content
        self._before, self._behind = (tags.opening, tags.closing) if tags and raw else ("", "")

    def push(self, text: str) -> list[Event]:
        said, self._before = self._before + text, ""
        return [self._kind(said)] if said else []

    def end(self, whole: bool) -> list[Event]:
        return self.push(self._behind if whole else "")


class Call:
    """A message that has the arguments of a call; without any, the call has none.

    begin: the beginning of the call. head: the header, with which a call that is cut is text.
    """

    def __init__(self, begin: CallBegin, head: str, functions: Functions):
        self._begin, self._head = begin, head
        self._reader, self._step = CallReader(functions), Step.MORE
        self._of = functions[begin.name]
        self._text: list[str] = []
        self._held = self._closing = ""
        self._fresh = True

    def push(self, text: str) -> list[Event]:
        self._text.append(text)
        if self._fresh:
            text = "".join(self._text)
            if _BEGINS.fullmatch(text) and len(text) < MOST_HEADER:
                return []
            text = self._begun(text)
        return self._read(text)

    def _begun(self, text: str) -> str:
        """The text without a fence around it. The reader knows objects with a name and arguments,
        which some models write here, too."""
        self._fresh = False
        text = text[_FENCE.match(text).end() :]  # type: ignore[union-attr]
        key = _KEY.match(text)
        if key is None or key[1] not in ("name", *ARGUMENTS) or self._of.declares(key[1]):
            self._held, self._closing = f'{{"name": "{self._begin.name}", "arguments": ', "}"
        return text

    def _read(self, text: str, final: bool = False) -> list[Event]:
        begun = self._reader.begun
        if self._step is Step.MORE:
            text = self._held + text
            at, self._step = self._reader.take(text, 0, final)
            self._held = text[at:]
        if final and not self._reader.complete:
            self._reader.cut()
        found: list[Event] = [self._begin] if self._reader.begun and not begun else []
        index = self._begin.index
        found += [CallArguments(index, piece) for piece in self._reader.pieces]
        self._reader.pieces.clear()
        return found

    def end(self, whole: bool) -> list[Event]:
        text, index = "".join(self._text), self._begin.index
        if not text.strip() and not self._of.required:
            return [self._begin, CallArguments(index, "{}"), CallEnd(index, True, self._head)]
        rest = self._begun(text) if self._fresh else ""
        found = self._read(rest + self._closing, final=True)
        if not self._reader.begun:
            return [Content(text)] if text.strip() else []
        return [*found, CallEnd(index, self._reader.complete, self._head + text)]


class Calls:
    """A message with calls in a style of their own."""

    def __init__(self, parser: ToolParser):
        self._parser = parser

    def push(self, text: str) -> list[Event]:
        return self._parser.push(text)

    def end(self, whole: bool) -> list[Event]:
        return self._parser.finish()


class MessageParser(ByStates):
    """Turns the text of one answer into events."""

    def __init__(self) -> None:
        self.n_complete = 0  # calls with complete arguments
        self._held = ""
        self._at = self._in_header
        self._message: Message = Text()
        self._n_calls = 0

    def finish(self) -> list[Event]:
        """The rest, at the end of the answer."""
        held, self._held = self._held, ""
        if self._at == self._in_header:
            return self._counted(self._cut(held))
        return self._counted([*self._message.push(held), *self._message.end(False)])

    def reason(self, reason: str) -> str:
        """The finish_reason of an answer that ended for this reason."""
        return "tool_calls" if reason == "stop" and self.n_complete else reason

    @abstractmethod
    def _in_header(self, text: str, at: int) -> tuple[list[Event], int]:
        """The state in which a header is read; `_open` ends it."""

    @abstractmethod
    def _cut(self, held: str) -> list[Event]:
        """What a header says with which the answer ends."""

    def _open(self, message: Message) -> None:
        """A message begins."""
        self._message, self._at = message, self._in_message

    @abstractmethod
    def _in_message(self, text: str, at: int) -> tuple[list[Event], int]:
        """The state in which `_message` takes its text."""

    def _counted(self, events: Iterable[Event]) -> list[Event]:
        found = list(events)
        ends = [event for event in found if isinstance(event, CallEnd)]
        self._n_calls += len(ends)
        self.n_complete += sum(event.complete for event in ends)
        return found


class HeaderParser(MessageParser):
    """Reads messages whose headers are items between control tokens, and their text: gpt-oss and
    Muse Glimmer. A header without the end of headers says nothing, but what it has besides its
    items is a message: models forget that mark.

    begins: marks with which a header begins, or goes on. ends: marks that end a message. items: of
    what a header consists. words: with what items begin. sign: what only headers have.
    """

    MESSAGE = "<|message|>"  # ends a header

    def __init__(
        self,
        begins: Sequence[str],
        ends: Sequence[str],
        items: re.Pattern[str],
        words: Sequence[str],
        sign: str,
    ):
        super().__init__()
        self._marks, self._ends = (*begins, *ends), frozenset(ends)
        self._mark = re.compile("|".join(map(re.escape, self._marks)))
        self._items, self._sign = items, sign
        self._words = (*words, self.MESSAGE, *self._marks)
        marks = sorted((*begins, *ends, self.MESSAGE), key=len, reverse=True)
        self._stop = re.compile("|".join(map(re.escape, marks)))
        self._n_header = MOST_HEADER + len(marks[0])

    @abstractmethod
    def _of(self, head: str, rest: str | None) -> Message:
        """The message behind this header, which may be empty; rest: its text begins so, and no mark
        is before it."""

    def _in_header(self, text: str, at: int) -> tuple[list[Event], int]:
        most = at + self._n_header
        begin = self._items.match(text, at, most).end()  # type: ignore[union-attr]
        stop = self._stop.search(text, begin, most)
        head, rest = text[at:begin], text[begin : stop.start() if stop else most]
        marked = self._is_marked(head)
        if not marked and (rest if stop else self._is_text(rest)):
            self._open(self._of("", rest))
            return [], at
        if stop is None and len(text) < most:
            return [], at
        if stop is not None and stop[0] == self.MESSAGE:
            self._open(self._of(head + rest, None))
            return [], stop.end()
        if stop is not None and not (_WORD.search(rest) if marked else head.strip()):
            return [], stop.end() if stop[0] in self._ends else stop.start()
        self._open(self._of(head if marked else "", rest))
        return [], begin if marked else at

    def _in_message(self, text: str, at: int) -> tuple[list[Event], int]:
        mark = self._mark.search(text, at)
        if mark is None:
            certain = max(at, len(text) - unfinished(text, self._marks))
            return self._counted(self._message.push(text[at:certain])), certain
        said = [*self._message.push(text[at : mark.start()]), *self._message.end(True)]
        self._at = self._in_header
        return self._counted(said), mark.end() if mark[0] in self._ends else mark.start()

    def _is_marked(self, head: str) -> bool:
        """Is this a header for certain?"""
        return "<|" in head or self._sign in head

    def _is_text(self, rest: str) -> bool:
        """Is what follows a header's items none of them, nor the beginning of one?"""
        return bool(rest) and not any(word.startswith(rest) for word in self._words)

    def _cut(self, held: str) -> list[Event]:
        begin = self._items.match(held).end()  # type: ignore[union-attr]
        head, rest = held[:begin], held[begin : len(held) - unfinished(held, self._marks)]
        if not self._is_marked(held):
            head, rest = "", held
        elif not _WORD.search(rest) or not self._is_text(rest):
            return []
        message = self._of(head, rest)
        return [*message.push(rest), *message.end(False)] if rest.strip() else []
