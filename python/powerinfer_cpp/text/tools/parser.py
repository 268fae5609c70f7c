"""Finds tool calls in an answer while it is being written: text in, events out.

A call begins when its name and the beginning of its arguments are certain; until then the text is
held back, and afterwards arguments are passed on as they come. What turns out to be no call is
content, unchanged. All cuts of a text into pieces give the same events, but for the lengths of
adjacent texts.
"""

import re
from collections.abc import Callable, Iterable, Sequence, Set

from .blocks import Read
from .definitions import NAME, Tool
from .events import CallArguments, CallBegin, CallEnd, Content, Event
from .loose import LooseCall
from .reader import SPACE, CallReader, Step
from .styles import Style
from .tags import TagCall

_MARKS = ("[ARGS]", "[CALL_ID]")


class ToolParser:
    """Turns the text of one answer into events.

    names: functions that may be called; a call of another one is content. tools: their definitions,
    for styles that do not write arguments as JSON. White space before, between and after calls is
    dropped.

    In every style a call is also JSON that is the whole answer, or the whole of a fenced block: an
    object with the name of a function and an object of arguments.
    """

    def __init__(
        self,
        style: Style,
        names: Set[str],
        new_id: Callable[[], str] | None = None,
        tools: Iterable[Tool] = (),
    ):
        self.n_complete = 0  # calls with complete arguments
        self._style, self._names, self._new_id = style, names, new_id or style.new_id
        self._tools = {name: Tool(name) for name in names}
        self._tools.update((tool.name, tool) for tool in tools if tool.name in names)
        self._line = self._first = True  # at the beginning of a line, and of the answer
        self._loose: LooseCall | None = None
        self._events: list[Event] = []
        self._content: list[str] = []  # certain content that no event has yet
        self._pieces: list[str] = []  # arguments, likewise
        self._space = self._match = ""  # space, and the beginning of a marker, held back
        self._raw: list[str] = []  # the text of a possible call
        self._name = ""  # in front of [ARGS]
        self._listed = False  # calls stand between [ and ]
        self._bare = style.bare  # a call may begin without a marker here
        self._index = 0
        self._tail = ""  # the last characters of a block
        self._n_opening = 0  # characters of a block before its calls
        self._reader: CallReader | TagCall | None = None
        self._at: Callable[[str], None] = self._in_text
        first = re.escape(style.opening[0])
        self._plain = re.compile(rf"[^\s{first}{{;`]+")  # text that begins nothing

    @property
    def opening(self) -> str:
        """What stands before calls."""
        return self._style.opening

    @property
    def idle(self) -> bool:
        """Is nothing held back?"""
        return self._at == self._in_text and not self._match and not self._space

    def begin_again(self) -> None:
        """What follows is the beginning of an answer."""
        self._bare, self._line, self._first = self._style.bare, True, True

    def push(self, text: str) -> list[Event]:
        """What is certain after this text."""
        at = 0
        while at < len(text):
            # Most of an answer is text: do not look at each of its characters.
            plain = self._at == self._in_text and not self._match and self._plain.match(text, at)
            if plain:
                self._add(self._taken_space() + plain[0])
                at = plain.end()
            else:
                self._at(text[at])
                at += 1
        return self._taken()

    def finish(self) -> list[Event]:
        """The rest, at the end of the answer."""
        if self._reader is not None and self._reader.begun:
            self._end_call(self._reader.complete)
        elif self._loose is not None and self._loose.whole:
            self._take([self._loose.call])
        elif self._at != self._after_call:
            if self._raw:
                self._add("".join(self._raw))
            elif self._match or not self.n_complete:
                self._add(self._space + self._match)
        self._reader, self._raw, self._space, self._match = None, [], "", ""
        self._loose, self._at = None, self._in_text
        return self._taken()

    def reason(self, reason: str) -> str:
        """The finish_reason of an answer that ended for this reason."""
        return "tool_calls" if reason == "stop" and self.n_complete else reason

    # ---- What was found ----

    def _add(self, text: str) -> None:
        if text:
            self._content.append(text)
            self._bare = self._first = False
            self._line = text.endswith("\n")

    def _taken_space(self) -> str:
        space, self._space = self._space, ""
        return space

    def _settle(self) -> None:
        """Makes events of texts, before another kind of event."""
        if self._content:
            self._events.append(Content("".join(self._content)))
        if self._pieces:
            self._events.append(CallArguments(self._index, "".join(self._pieces)))
        self._content, self._pieces = [], []

    def _taken(self) -> list[Event]:
        self._settle()
        events, self._events = self._events, []
        return events

    def _end_call(self, complete: bool) -> None:
        self._settle()
        self._events.append(CallEnd(self._index, complete, "".join(self._raw)))
        self._raw, self._reader = [], None
        self._index += 1
        self.n_complete += complete
        self._line, self._first = True, False

    def _take(self, calls: Sequence[Read]) -> None:
        """Calls of which all is known."""
        for call in calls:
            self._settle()
            made_id = call.id or self._new_id()
            self._events.append(CallBegin(self._index, made_id, call.name))
            self._pieces.append(call.arguments)
            self._end_call(True)

    # ---- States: each takes a character ----

    def _in_text(self, char: str) -> None:
        candidate = self._match + char
        if self._style.opening.startswith(candidate):
            self._match = candidate
            if candidate == self._style.opening:
                self._raw, self._match = [self._taken_space(), candidate], ""
                self._at = self._in_block if self._style.read else self._before_call
                self._n_opening = sum(map(len, self._raw))
                self._tail = ""
            return
        if self._match:  # no marker begins inside another
            self._add(self._taken_space() + self._match)
            self._match = ""
            self._in_text(char)
        elif char.isspace():
            self._space += char
        elif self._bare and char == "{":
            self._raw = [self._taken_space()]
            self._read(CallReader(self._names, strict=True), char)
        elif self._bare and self._index and char == ";":
            self._space += char
        elif (char == "{" and self._first) or (char == "`" and (self._line or "\n" in self._space)):
            self._raw = [self._taken_space()]
            self._loose, self._at = LooseCall(self._names), self._in_loose
            self._in_loose(char)
        else:
            self._add(self._taken_space() + char)

    def _in_loose(self, char: str) -> None:
        """In what may be a call as JSON alone, or in a fence."""
        loose = self._loose
        step = loose.push(char)
        if step is Step.REFUSED:
            self._loose = None
            self._no_call(char)
            return
        self._raw.append(char)
        if step is Step.END:
            self._loose, self._at = None, self._in_text
            self._take([loose.call])

    def _in_block(self, char: str) -> None:
        """Between the markers of a style whose calls are read as a whole."""
        closing = self._style.closing
        self._raw.append(char)
        self._tail = (self._tail + char)[-len(closing) :]
        if self._tail == closing:
            if self._read_block(len(closing)):
                self._at = self._in_text
            else:
                self._no_call("")

    def _read_block(self, n_closing: int = 0) -> bool:
        """Takes the calls of a block. False: there are none."""
        text = "".join(self._raw)[self._n_opening :]
        found = self._style.read(text[: len(text) - n_closing], self._tools)
        if found:
            self._take(found)
        return bool(found)

    def _before_call(self, char: str) -> None:
        """Behind the marker, or in a list, where a call begins."""
        style = self._style
        if char in SPACE:
            self._raw.append(char)
        elif char == "{" or style.tags and (self._listed or not style.listed):
            self._read(style.reader(self._tools), char)
        elif not self._listed and char == "[" and (style.listed or style.named):
            self._raw.append(char)
            self._listed = True
        elif not self._listed and style.named:
            self._name, self._at = "", self._in_name
            self._in_name(char)
        else:
            self._no_call(char)

    def _in_name(self, char: str) -> None:
        """A name; after it [ARGS], or [CALL_ID]...[ARGS], or the arguments at once."""
        if char == "{" and self._name in self._names:
            self._read(CallReader(self._names, name=self._name), char)
        elif NAME.fullmatch(self._name + char):
            self._name += char
            self._raw.append(char)
        elif char == "[" and self._name in self._names:
            self._at = self._in_mark
            self._in_mark(char)
        else:
            self._no_call(char)

    def _in_mark(self, char: str) -> None:
        self._match += char
        if not any(mark.startswith(self._match) for mark in _MARKS):
            self._no_call(char)
            return
        self._raw.append(char)
        if self._match in _MARKS:
            self._at = self._before_object if self._match == "[ARGS]" else self._in_id
            self._match = ""

    def _in_id(self, char: str) -> None:
        if char == "[":
            self._at = self._in_mark
            self._in_mark(char)
        elif char.isalnum():
            self._raw.append(char)  # the model's own id; the answer has ours
        else:
            self._no_call(char)

    def _before_object(self, char: str) -> None:
        if char == "{":
            self._read(CallReader(self._names, name=self._name), char)
        elif char in SPACE:
            self._raw.append(char)
        else:
            self._no_call(char)

    def _in_call(self, char: str) -> None:
        reader = self._reader
        begun, step = reader.begun, reader.push(char)
        if step is not Step.REFUSED:
            self._raw.append(char)
        if reader.begun and not begun:
            self._settle()
            self._events.append(CallBegin(self._index, reader.id or self._new_id(), reader.name))
        self._pieces += reader.pieces
        reader.pieces.clear()
        if step is Step.MORE:
            return
        if not reader.begun:
            self._reader = None
            self._no_call("" if step is Step.WRONG else char)
            return
        self._end_call(reader.complete)
        self._bare = self._style.bare
        if reader.complete and (self._listed or self._style.closing):
            self._at = self._after_call
        else:
            self._listed, self._at = False, self._in_text
        if step is Step.REFUSED:
            self._at(char)

    def _after_call(self, char: str) -> None:
        closing = "]" if self._listed else self._style.closing
        lead = "" if self._listed else self._style.lead  # of a call behind another
        candidate = self._match + char
        if candidate == closing:
            self._match = self._space = ""
            if not self._listed or not self._style.closing:
                self._at = self._in_text
            self._listed = False
        elif candidate == lead:
            self._raw, self._match = [self._taken_space()], ""
            self._at = self._before_call
            for taken in candidate:
                self._at(taken)
        elif closing.startswith(candidate) or lead.startswith(candidate):
            self._match = candidate
        elif not self._match and char.isspace():
            self._space += char
        elif self._listed and char == ",":
            self._raw, self._at = [self._taken_space(), char], self._before_call
        else:  # not closed: what was taken for its beginning may begin another call
            self._match, self._listed, self._at = "", False, self._in_text
            for taken in candidate:
                self._at(taken)

    # ---- Changes of state ----

    def _read(self, reader: CallReader | TagCall, char: str) -> None:
        self._reader, self._at = reader, self._in_call
        self._in_call(char)

    def _no_call(self, char: str) -> None:
        """What was held back is content; text goes on with char."""
        self._add("".join(self._raw))
        self._raw, self._match, self._listed, self._at = [], "", False, self._in_text
        if char:
            self._in_text(char)
