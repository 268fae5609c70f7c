"""Finds tool calls in an answer while it is being written: text in, events out.

A call begins when its name and an argument are certain; until then the text is held back, and
afterwards arguments are passed on as they come. What turns out to be no call is content, unchanged.
All cuts of a text into pieces give the same events, but for the lengths of adjacent texts.
"""

import re
from collections.abc import Callable, Iterable, Set
from copy import copy

from .definitions import Tool
from .events import CallArguments, CallBegin, CallEnd, Content, Event, unfinished
from .fences import Fences
from .heads import head
from .kinds import functions_of
from .reader import FENCE, CallReader, Reading, function_named, waits_for_fence
from .styles import Style
from .values import LONG, Step, past_space

# A name before arguments, with what some styles write around it; the model's own id is dropped.
_NAME = re.compile(
    r"([\w.:-]{1,256}?)(?:\.call)?(?![\w.:-])\s{0,256}"
    r"(?:\[CALL_ID\][\w-]{0,256}\s{0,16})?(\[ARGS\])?\s{0,256}"
)
_BEFORE_NAME = re.compile(r"call:|print\(|\w{1,64} ?=(?!=)")
_MARKS = ("[CALL_ID]", "[ARGS]")
_MOST_NAME = 1024
_MOST_MARK = 80
_MOST_TRIES = 16
_COMMENT = re.compile(r"#[^\n]{0,512}")
_LINE = r"\n[ \t]{0,64}\Z"
_WAITS = "..."
_BEGINS = ("{", "("), ("{", "(", '"', "`")  # arguments: behind a name, and behind [ARGS]
_STRAY = "}])"  # behind a call: too many of what ends it

# Takes what it can of a text from a place on, and gives the place behind. What it leaves comes
# again with more behind it; the flag says that nothing will follow.
_State = Callable[[str, int, bool], int]


class ToolParser:
    """Turns the text of one answer into events.

    names: functions that may be called; a call of another one is content. tools: their definitions,
    for styles that do not write arguments as JSON. White space before, between and after calls is
    dropped.

    In every style a call is also JSON, or a list of calls, that is the whole answer, alone or in a
    fence. Other calls in fences and in code within a line are examples, and so content.
    """

    def __init__(
        self,
        style: Style,
        names: Set[str],
        new_id: Callable[[], str] | None = None,
        tools: Iterable[Tool] = (),
    ):
        self.n_complete = 0  # calls with complete arguments
        self._style, self._new_id = style, new_id or style.new_id
        self._functions = functions_of(names, tools)
        # Calls of JSON may lack the opening marker, and have the closing one.
        self._lines = bool(style.closing) and not style.tags
        openings = "|".join(map(re.escape, style.openings))
        self._opening = re.compile(rf"{openings}|{_LINE[:-2]}[{{\[]" if self._lines else openings)
        self._events: list[Event] = []
        self._content: list[str] = []  # certain content that no event has yet
        self._pieces: list[str] = []  # arguments, likewise
        self._index = 0
        self._restart()

    def _restart(self) -> None:
        """An answer begins."""
        self._held = ""
        self._space: list[str] = []  # held back
        self._raw: list[str] = []  # the text of a possible call
        self._whole: list[str] | None = None  # all text, if only a call may stand in it
        self._spoilt = False  # something else does
        self._may_end = False  # it is one if the answer ends
        self._may_close = False  # it is one if a closing marker follows
        self._kept = 0, 0, 0  # numbers of events and calls before it, and of complete ones
        self._tries = _MOST_TRIES if self._lines else 0  # lines that may be calls without a marker
        self._listed = False  # calls stand between [ and ]
        self._marked = False  # behind a marker
        self._fenced = False  # and in a fence
        self._fences = Fences()
        self._reader: Reading | None = None
        self._at: _State = self._begin

    @property
    def openings(self) -> tuple[str, ...]:
        """What may stand before calls."""
        return self._style.openings

    @property
    def within(self) -> bool:
        """Is what follows part of what may be a call?"""
        if self._whole is not None:
            return True
        return self._at not in (self._begin, self._in_text, self._after_call)

    @property
    def n_calls(self) -> int:
        """Calls that ended."""
        return self._index

    def again(self) -> "ToolParser":
        """A parser of another answer."""
        other = copy(self)
        other._events, other._content, other._pieces = [], [], []
        other._index = other.n_complete = 0
        other._restart()
        return other

    def push(self, text: str) -> list[Event]:
        """What is certain after this text."""
        self._read(text)
        return self._taken()

    def _taken(self) -> list[Event]:
        if self._whole is not None:
            return []
        self._settle()
        events, self._events = self._events, []
        return events

    def finish(self) -> list[Event]:
        """The rest, at the end of the answer."""
        self._read("", final=True)
        self._whole = None
        if self._at == self._in_text and not self.n_complete:
            self._add(self._taken_space())
        self._restart()
        return self._taken()

    def reason(self, reason: str) -> str:
        """The finish_reason of an answer that ended for this reason."""
        return "tool_calls" if reason == "stop" and self.n_complete else reason

    def _read(self, text: str, final: bool = False) -> None:
        text, at = self._held + text, 0
        while True:
            before = at, self._at
            if at < len(text):
                at = self._at(text, at, final)
            elif final and self._at != self._in_text:
                self._end(text, at)
            elif final and self._whole is not None:
                self._spoilt = not self._may_end or not self.n_complete
            if self._whole is not None:
                self._whole.append(text[before[0] : at])
                if self._spoilt:  # it is text like other
                    text = "".join(self._whole) + text[at:]
                    at = past_space(text, 0) + 1
                    self._forget()
                    self._add(text[:at])
                    continue
            if before == (at, self._at):
                break
        self._held = text[at:]

    def _forget(self) -> None:
        """What began with `_try` is no call."""
        n_events, self._index, self.n_complete = self._kept
        del self._events[n_events:]
        self._pieces.clear()
        self._space, self._raw, self._reader, self._whole = [], [], None, None
        self._listed = self._marked = self._fenced = self._spoilt = False
        self._at = self._in_text

    def _end(self, text: str, at: int) -> None:
        """Nothing follows: leaves the state."""
        if self._at == self._in_call:
            self._in_call(text, at, True)
        elif self._at in (self._begin, self._after_call):
            self._at = self._in_text
        elif self.n_complete and self._whole is None and self._marked and self._bare_marker():
            self._raw, self._at = [], self._in_text  # it stands in the place of the closing one
        else:
            self._no_call()

    def _bare_marker(self) -> bool:
        return "".join(self._raw).strip() in self._style.openings

    # ---- What was found ----

    def _add(self, text: str) -> None:
        if not text:
            return
        if self._whole is not None:
            self._spoilt |= bool(text.strip(" \t\r\n`"))
            return
        self._content.append(text)
        self._fences.feed(text)

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

    def _begin_call(self, name: str, own_id: str | None) -> None:
        self._settle()
        self._events.append(CallBegin(self._index, own_id or self._new_id(), name))

    def _end_call(self, complete: bool) -> None:
        self._settle()
        self._events.append(CallEnd(self._index, complete, "".join(self._raw)))
        self._raw, self._reader, self._at = [], None, self._after_call
        self._index += 1
        self.n_complete += complete
        self._spoilt |= not complete
        if not complete:
            self._listed, self._marked, self._at = False, False, self._in_text

    def _no_call(self) -> None:
        """What was held back is content."""
        self._add("".join(self._raw))
        self._raw, self._reader, self._listed, self._at = [], None, False, self._in_text
        self._marked = False
        self._spoilt |= self._whole is not None

    # ---- States ----

    def _begin(self, text: str, at: int, final: bool) -> int:
        """Where an answer begins."""
        behind = past_space(text, at)
        if behind > at:
            self._space.append(text[at:behind])
            return behind
        char = text[at]
        mark = self._mark(text, at, self._style.openings, final)
        if mark == _WAITS:
            return at
        if mark:  # some begin with a bracket
            self._at = self._in_text
        elif char == "{" and self._style.bare:
            self._at = self._before_call
            self._raw = [self._taken_space()]
        elif char in "{[":
            self._try("".join(self._space))
            self._may_end = True
        elif char == "`":
            fence = FENCE.match(text, at)
            if fence is None and waits_for_fence(text, at, final):
                return at
            self._at = self._in_text
            if fence is not None:
                self._try("".join(self._space))
                self._fenced = self._may_end = True
                self._may_close = False
                return fence.end()
        else:
            self._at = self._in_text
        return at

    def _try(self, space: str) -> None:
        """What follows may be a call without a marker."""
        self._settle()
        self._whole, self._at = [space], self._before_call
        self._kept = len(self._events), self._index, self.n_complete
        self._may_end, self._may_close = False, True
        self._tries -= bool(self._tries)
        self._space = []

    def _in_text(self, text: str, at: int, final: bool) -> int:
        # The marker may be missing on a line of its own.
        if text[at] in "{[" and self._tries and self._whole is None:
            space = "".join(self._space)
            if re.search(_LINE, space) and not self._fences.shows(space):
                self._try(space)
                return at
        stop = min(len(text), at + LONG)
        opening = self._opening.search(text, at, stop)
        marked = opening is not None and opening[0] in self._style.openings
        if opening is not None:
            stop = opening.start() if marked else opening.end() - 1
        elif stop < len(text) or not final:
            stop -= unfinished(text[at:stop], self._style.openings)
        said = text[at:stop].rstrip()
        if said:
            self._add(self._taken_space() + said)
        if len(said) < stop - at:
            self._space.append(text[at + len(said) : stop])
        if opening is None or not marked:
            return stop
        space = self._taken_space()
        if self._whole is None and self._fences.shows(space):
            self._add(space + opening[0])
            return opening.end()
        self._at, self._marked, lead = self._before_call, True, self._style.lead
        # The head of a call may stand without the marker.
        behind = stop if opening[0] == lead else opening.end()
        self._raw = [space, text[stop:behind]]
        if opening[0] == lead:
            self._reader, self._at = self._style.tag_reader(self._functions, False), self._in_call
        return behind

    def _before_call(self, text: str, at: int, final: bool) -> int:
        """Behind the marker, or in a list, where a call begins."""
        behind = past_space(text, at)
        if behind > at:
            return self._take_raw(text, at, behind)
        style, char = self._style, text[at]
        mark = self._mark(text, at, style.openings, final)
        if mark == _WAITS:
            return at
        if mark and not self._marked:
            self._at = self._in_text
            return at
        if mark and mark != style.lead:  # it is written twice
            return self._take_raw(text, at, at + len(mark))
        stem = head(style.call[0]).stem if style.tags else "<"
        if char == "{":
            self._reader = CallReader(self._functions, strict=not self._marked)
            self._at = self._in_call
        elif char == "[" and not self._listed:
            self._listed = True
            return self._take_raw(text, at, at + 1)
        elif char == "`":
            fence = FENCE.match(text, at)
            if fence is not None:
                self._fenced = True
                return self._take_raw(text, at, fence.end())
            if not waits_for_fence(text, at, final):
                self._no_call()
        elif self._marked and (not stem or char == stem[0]):
            self._reader, self._at = style.tag_reader(self._functions, self._fenced), self._in_call
        elif char == "#" and self._marked:
            return self._take_raw(text, at, _past_comment(text, at, final))
        elif char.isidentifier():
            self._at = self._in_name
        else:
            self._no_call()
        return at

    def _take_raw(self, text: str, at: int, behind: int) -> int:
        self._raw.append(text[at:behind])
        return behind

    def _in_name(self, text: str, at: int, final: bool) -> int:
        """At a name; behind it stand arguments, or nothing."""
        behind = past_space(text, at)
        if before := _BEFORE_NAME.match(text, at):
            behind = before.end()
        if behind > at:
            return self._take_raw(text, at, behind)
        match = _NAME.match(text, at)
        if match is None:
            self._no_call()
            return at
        behind = match.end()
        marks = (*_MARKS, *self._style.openings, *self._style.closings)
        follows = self._mark(text, behind, marks, final)
        waits = behind == len(text) or follows == _WAITS
        if waits and not final and behind - at < _MOST_NAME:
            return at
        name = function_named(match[1], self._functions)
        if name is not None and text[behind : behind + 1] in _BEGINS[match[2] is not None]:
            self._reader = CallReader(self._functions, name=name)
            self._at = self._in_call
            return self._take_raw(text, at, behind)
        ends = behind == len(text) or follows not in ("", _WAITS, *_MARKS)
        marked = match[2] or "".join(self._raw).strip() and self._marked
        if name is None or not (ends and marked) or self._functions[name].required:
            self._no_call()
            return at
        self._take_raw(text, at, behind)  # a function without parameters needs no arguments
        self._begin_call(name, None)
        self._pieces.append("{}")
        self._end_call(True)
        return behind

    def _in_call(self, text: str, at: int, final: bool) -> int:
        reader = self._reader
        assert reader is not None
        begun = reader.begun
        behind, step = reader.take(text, at, final) if at < len(text) else (at, Step.MORE)
        self._raw.append(text[at:behind])
        over = step is not Step.MORE or final
        if over and step is not Step.END and not reader.complete:
            if reader.begun or reader.name is not None and behind == len(text):
                reader.cut()
            if reader.begun and not reader.complete and final:
                behind = self._take_raw(text, behind, len(text))
        if reader.begun and not begun:
            self._begin_call(str(reader.name), reader.id)
        self._pieces += reader.pieces
        reader.pieces.clear()
        if over and not reader.begun:
            fresh = not "".join(self._raw).strip()
            self._no_call()
            lead = self._style.lead
            if fresh and text.startswith(lead, behind):  # it is no mark here
                self._add(lead)
                behind += len(lead)
        elif over:
            self._fenced |= reader.fenced
            self._end_call(reader.complete)
        return behind

    def _after_call(self, text: str, at: int, final: bool) -> int:
        behind = past_space(text, at)
        if behind > at:
            self._space.append(text[at:behind])
            return behind
        style, char = self._style, text[at]
        # Of calls without a marker the answer has nothing else.
        inside = self._listed or style.bare or self._whole is not None
        inside |= self._marked and (not style.tags or bool(style.closing))
        if self._listed and char == "]":
            self._listed, self._space = False, []
            return at + 1
        if closing := self._mark(text, at, style.closings, False):
            if closing == _WAITS:  # one that is cut is none of the answer's text
                return len(text) if final else at
            self._space, self._listed, self._marked = [], False, False  # it may be written twice
            if self._may_close:  # the marker says that there were calls
                self._whole = None
            return at + len(closing)
        if opening := self._mark(text, at, style.openings, final):
            if opening != _WAITS:
                self._at, self._listed = self._in_text, False
            return at
        if char in ",;" and inside:
            self._space.append(char)
            return at + 1
        if inside and (char == "{" or char.isidentifier() and not style.tags):
            self._raw, self._at = [self._taken_space()], self._before_call
            return at
        if char == "#" and inside and self._marked:
            return _past_comment(text, at, final)
        if char == "`" and self._fenced or char in _STRAY and inside and self._whole is None:
            return at + 1
        self._listed, self._at = False, self._in_text
        return at

    def _mark(self, text: str, at: int, marks: Iterable[str], final: bool) -> str:
        """The mark that stands at a place; _WAITS if what follows decides; "" if none does."""
        rest = text[at : at + _MOST_MARK]
        for mark in marks:
            if rest.startswith(mark):
                return mark
        return _WAITS if not final and any(mark.startswith(rest) for mark in marks) else ""


def _past_comment(text: str, at: int, final: bool) -> int:
    """The place behind a comment of Python; `at` while it may go on."""
    behind = _COMMENT.match(text, at).end()  # type: ignore[union-attr]
    return at if behind == len(text) and not final and behind - at <= 512 else behind
