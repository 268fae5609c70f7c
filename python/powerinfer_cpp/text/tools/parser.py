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
from .events import CallArguments, CallBegin, CallEnd, Content, Event, Search
from .loose import LooseCall
from .reader import LONG, SPACE, CallReader, Step, past_space
from .styles import Style
from .tags import TagCall

_MARKS = ("[ARGS]", "[CALL_ID]")
_OWN_ID = re.compile(r"[^\W_]+")
_SPACE = re.compile(r"\s+")

_State = Callable[[str, int, int], int]


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
        self._space: list[str] = []  # held back, and so is the beginning of a marker
        self._match = ""
        self._raw: list[str] = []  # the text of a possible call
        self._name = ""  # in front of [ARGS]
        self._listed = False  # calls stand between [ and ]
        self._bare = style.bare  # a call may begin without a marker here
        self._index = 0
        self._search = Search(style.closing)  # for the end of a block
        self._n_opening = 0  # characters of a block before its calls
        self._reader: CallReader | TagCall | None = None
        self._at: _State = self._in_text
        signs = re.escape(style.opening[0]) + "{;`"  # with which something else may begin
        self._plain = re.compile(rf"[^\s{signs}](?:[^{signs}]*[^\s{signs}])?")

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
        self._read(text)
        return self.taken()

    def take(self, text: str, at: int, end: int) -> int:
        """The place behind what the present state takes of text[at:end], which may be nothing if
        the next state is to take it. Others are asked before it turns out that a call begins."""
        return self._at(text, at, end)

    def taken(self) -> list[Event]:
        """What is certain, and was not told yet."""
        self._settle()
        events, self._events = self._events, []
        return events

    def _read(self, text: str) -> None:
        at = 0
        while at < len(text):
            at = self._at(text, at, len(text))

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
                self._add(self._taken_space() + self._match)
        self._reader, self._raw, self._space, self._match = None, [], [], ""
        self._loose, self._at = None, self._in_text
        return self.taken()

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
        space, self._space = "".join(self._space), []
        return space

    def _settle(self) -> None:
        """Makes events of texts, before another kind of event."""
        if self._content:
            self._events.append(Content("".join(self._content)))
        if self._pieces:
            self._events.append(CallArguments(self._index, "".join(self._pieces)))
        self._content, self._pieces = [], []

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

    def _no_call(self) -> None:
        """What was held back is content."""
        self._add("".join(self._raw))
        self._raw, self._match, self._listed, self._at = [], "", False, self._in_text

    # ---- States: each takes what it can of text[at:end], and gives the place behind ----

    def _in_text(self, text: str, at: int, end: int) -> int:
        char, opening = text[at], self._style.opening
        candidate = self._match + char
        if opening.startswith(candidate):
            self._match = candidate
            if candidate == opening:
                self._raw, self._match = [self._taken_space(), candidate], ""
                self._at = self._in_block if self._style.read else self._before_call
                self._n_opening = sum(map(len, self._raw))
                self._search = Search(self._style.closing)
            return at + 1
        if self._match:  # no marker begins inside another
            self._add(self._taken_space() + self._match)
            self._match = ""
            return at
        # Most of an answer is text: do not look at each of its characters.
        if plain := self._plain.match(text, at, min(end, at + LONG)):
            self._add(self._taken_space() + plain[0])
            return plain.end()
        if char.isspace():
            return self._hold_space(text, at, end)
        if self._bare and char == "{":
            self._raw = [self._taken_space()]
            self._reader, self._at = CallReader(self._names, strict=True), self._in_call
            return at
        if self._bare and self._index and char == ";":
            self._space.append(char)
            return at + 1
        begins_line = self._line or any("\n" in space for space in self._space)
        if (char == "{" and self._first) or (char == "`" and begins_line):
            self._raw = [self._taken_space()]
            self._loose, self._at = LooseCall(self._names), self._in_loose
            return at
        self._add(self._taken_space() + char)
        return at + 1

    def _hold_space(self, text: str, at: int, end: int) -> int:
        space = _SPACE.match(text, at, end)
        self._space.append(space[0])  # type: ignore[index]
        return space.end()  # type: ignore[union-attr]

    def _in_loose(self, text: str, at: int, end: int) -> int:
        """In what may be a call as JSON alone, or in a fence."""
        loose = self._loose
        behind, step = loose.take(text, at, end)
        self._raw.append(text[at:behind])
        if step is Step.REFUSED:
            self._loose = None
            self._no_call()
        elif step is Step.END:
            self._loose, self._at = None, self._in_text
            self._take([loose.call])
        return behind

    def _in_block(self, text: str, at: int, end: int) -> int:
        """Between the markers of a style whose calls are read as a whole."""
        behind = self._search.push(text, at, end)
        self._raw.append(text[at : end if behind < 0 else behind])
        if behind < 0:
            return end
        held = "".join(self._raw)
        found = self._style.read(
            held[self._n_opening : len(held) - len(self._style.closing)], self._tools
        )
        if found:
            self._at = self._in_text
            self._take(found)
        else:
            self._no_call()
        return behind

    def _before_call(self, text: str, at: int, end: int) -> int:
        """Behind the marker, or in a list, where a call begins."""
        style, char = self._style, text[at]
        if char in SPACE:
            return self._take_space(text, at, end)
        if char == "{" or style.tags and (self._listed or not style.listed):
            self._reader, self._at = style.reader(self._tools), self._in_call
        elif not self._listed and char == "[" and (style.listed or style.named):
            self._raw.append(char)
            self._listed = True
            return at + 1
        elif not self._listed and style.named:
            self._name, self._at = "", self._in_name
        else:
            self._no_call()
        return at

    def _take_space(self, text: str, at: int, end: int) -> int:
        behind = past_space(text, at, end)
        self._raw.append(text[at:behind])
        return behind

    def _in_name(self, text: str, at: int, _end: int) -> int:
        """A name; after it [ARGS], or [CALL_ID]...[ARGS], or the arguments at once."""
        char = text[at]
        if char == "{" and self._name in self._names:
            self._at = self._before_object
        elif NAME.fullmatch(self._name + char):
            self._name += char
            self._raw.append(char)
            return at + 1
        elif char == "[" and self._name in self._names:
            self._at = self._in_mark
        else:
            self._no_call()
        return at

    def _in_mark(self, text: str, at: int, _end: int) -> int:
        match = self._match + text[at]
        if not any(mark.startswith(match) for mark in _MARKS):
            self._no_call()
            return at
        self._raw.append(text[at])
        self._match = match
        if match in _MARKS:
            self._at = self._before_object if match == "[ARGS]" else self._in_id
            self._match = ""
        return at + 1

    def _in_id(self, text: str, at: int, end: int) -> int:
        if own := _OWN_ID.match(text, at, end):
            self._raw.append(own[0])  # the model's own id; the answer has ours
            return own.end()
        if text[at] == "[":
            self._at = self._in_mark
        else:
            self._no_call()
        return at

    def _before_object(self, text: str, at: int, end: int) -> int:
        if text[at] in SPACE:
            return self._take_space(text, at, end)
        if text[at] == "{":
            self._reader, self._at = CallReader(self._names, name=self._name), self._in_call
        else:
            self._no_call()
        return at

    def _in_call(self, text: str, at: int, end: int) -> int:
        reader = self._reader
        begun = reader.begun
        behind, step = reader.take(text, at, end)
        self._raw.append(text[at:behind])
        if reader.begun and not begun:
            self._settle()
            self._events.append(CallBegin(self._index, reader.id or self._new_id(), reader.name))
        self._pieces += reader.pieces
        reader.pieces.clear()
        if step is Step.MORE:
            return behind
        if not reader.begun:
            self._reader = None
            self._no_call()
            return behind
        self._end_call(reader.complete)
        self._bare = self._style.bare
        if reader.complete and (self._listed or self._style.closing):
            self._at = self._after_call
        else:
            self._listed, self._at = False, self._in_text
        return behind

    def _after_call(self, text: str, at: int, end: int) -> int:
        char, closing = text[at], "]" if self._listed else self._style.closing
        lead = "" if self._listed else self._style.lead  # of a call behind another
        candidate = self._match + char
        if candidate == closing:
            self._match, self._space = "", []
            if not self._listed or not self._style.closing:
                self._at = self._in_text
            self._listed = False
        elif candidate == lead:
            self._raw, self._match = [self._taken_space()], ""
            self._at = self._before_call
            self._read(candidate)
        elif closing.startswith(candidate) or lead.startswith(candidate):
            self._match = candidate
        elif not self._match and char.isspace():
            return self._hold_space(text, at, end)
        elif self._listed and char == ",":
            self._raw, self._at = [self._taken_space(), char], self._before_call
        else:  # not closed: what was taken for its beginning may begin another call
            self._match, self._listed, self._at = "", False, self._in_text
            self._read(candidate)
        return at + 1
