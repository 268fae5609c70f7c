"""Splits thoughts from an answer while it is being written: text in, events out."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from .events import (
    ByStates,
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Event,
    Thought,
    unfinished,
)
from .parser import ToolParser
from .thoughts import Thoughts

_MOST_SPACE = 256  # characters before thoughts, or before an answer's tag
_MOST_HELD = 512  # characters around the tag that ends an answer
_SPACES = re.compile(r"\s*")


class ThoughtParser(ByStates):
    """Splits thoughts from an answer; `calls` reads what follows, else it is content.

    opened: the prompt ends with the opening tag. begun: it also has the beginning of the thoughts,
    or without `opened` of the answer's text. calls: calls with which open thoughts end are real,
    since some models leave out the closing tag there; others among the thoughts are part of them.
    White space around thoughts is dropped, and so are the tags around the answer's text. Where
    thoughts may stand anywhere, so may these tags; else tags elsewhere are text. quotes: all calls
    among the thoughts are part of them. raw: thoughts are content, as they are, with their tags.
    """

    def __init__(
        self,
        tags: Thoughts,
        opened: bool = False,
        calls: ToolParser | None = None,
        quotes: bool = False,
        raw: bool = False,
        begun: bool = False,
    ):
        self._tags, self._calls, self._raw = tags, calls, raw
        self._held = ""
        self._space: list[str] = []  # within thoughts: dropped at their ends
        self._any = begun and opened  # are there thoughts yet?
        self._ended = self._spoke = False  # did thoughts end, is there text of the answer?
        self._at = self._think if opened else self._answer if begun else self._begin
        self._leads = [] if raw else tags.leads
        self._frames = tags.frames if tags.anywhere else []
        self._frame = _one_of(self._frames)
        # Some models go on with the answer, without an end of their thoughts.
        self._closings = (tags.closing, *([tags.lead] if tags.anywhere and tags.lead else []))
        openings = calls.openings if calls is not None and not quotes else ()
        self._marks = (*self._closings, *openings)
        self._mark, self._closing = _one_of(self._marks), _one_of(self._closings)
        # Of calls among the thoughts: what reads them, they, their text and what is behind it.
        self._tried: ToolParser | None = None
        self._made: list[CallBegin | CallArguments | CallEnd] = []
        self._real = False
        self._passed: list[str] = []
        self._text: list[str] = []

    def finish(self) -> list[Event]:
        """The rest, at the end of the answer."""
        held, self._held = self._held, ""
        if self._at == self._call:
            return self._finish_calls(held)
        if self._frames and ">" in held:  # of a tag that was cut
            held = ""
        found = []
        if self._at == self._think:
            found = self._thought(held)
        elif self._at == self._answer:
            found = self._said("" if held.strip() == self._tags.last else held)
        elif held.strip() not in (*self._leads, "") or not (held.strip() or self._ended):
            found = self._said(held)
        return found + (self._calls.finish() if self._calls else [])

    def reason(self, reason: str) -> str:
        """The finish_reason of an answer that ended for this reason."""
        if reason == "stop" and self._real:
            return "tool_calls"
        return self._calls.reason(reason) if self._calls else reason

    # ---- States (ByStates) ----

    def _begin(self, text: str, at: int) -> tuple[list[Event], int]:
        begin = _past_space(text, at)
        opening, closing = self._tags.opening, self._tags.closing
        if begin - at <= _MOST_SPACE:
            for tag, then in ((opening, self._think), (closing, self._end)):
                if text.startswith(tag, begin):
                    self._at = then
                    return self._tag(text[at : begin + len(tag)]), begin + len(tag)
            if _may_become(text, begin, (opening, closing)):
                return [], at
        self._at = self._lead
        return [], at

    def _think(self, text: str, at: int) -> tuple[list[Event], int]:
        mark = self._mark.search(text, at)
        if mark is None:
            certain = max(at, len(text) - unfinished(text, self._marks))
            return self._thought(text[at:certain]), certain
        found = self._thought(text[at : mark.start()])
        if mark[0] not in self._closings:
            assert self._calls is not None
            self._tried, self._at = self._calls.again(), self._call
            return found, mark.start()
        # White space between an answer's texts is kept.
        self._space, self._at = [], self._answer if self._spoke or self._raw else self._end
        return found + self._tag(self._tags.closing), mark.end()

    def _call(self, text: str, at: int) -> tuple[list[Event], int]:
        """Where calls may stand among the thoughts, which quote them if they go on behind them or
        are closed there."""
        assert self._tried is not None
        closing = self._closing.search(text, at)
        end = max(at, len(text) - unfinished(text, self._closings))
        piece = text[at : closing.start() if closing else end]
        self._text.append(piece)
        found = self._among(self._tried.push(piece))
        if closing:
            self._at = self._think
            found += self._thought(self._untold())
        return found, at + len(piece)

    def _among(self, events: Iterable[Event]) -> list[Event]:
        """Events of what stands among thoughts: what is no call is a thought."""
        found: list[Event] = []
        for event in events:
            if isinstance(event, Content | Thought):
                if event.text.strip() or not self._made:
                    self._pass(event.text)
                    found += self._thought(self._untold(rest=False))
                continue
            self._made.append(event)
            if isinstance(event, CallEnd):
                self._pass(event.raw)
        return found

    def _pass(self, said: str) -> None:
        """Goes behind what was read of the text."""
        text = "".join(self._text)
        behind = max(0, text.find(said)) + len(said)
        self._passed.append(text[:behind])
        self._text = [text[behind:]]

    def _untold(self, rest: bool = True) -> str:
        """The text that was passed, with calls that are quoted, and the rest."""
        if rest:
            self._passed += self._text
            self._text = []
        text = "".join(self._passed)
        self._passed, self._made = [], []
        return text

    def _finish_calls(self, held: str) -> list[Event]:
        assert self._tried is not None
        self._text.append(held)
        found = self._among(self._tried.push(held)) + self._among(self._tried.finish())
        ends = [event for event in self._made if isinstance(event, CallEnd)]
        if not any(event.complete for event in ends):
            return found + self._thought(self._untold())
        assert self._calls is not None
        self._real, n_before = True, self._calls.n_calls - ends[0].index
        return found + [replace(event, index=event.index + n_before) for event in self._made]

    def _end(self, text: str, at: int) -> tuple[list[Event], int]:
        """Between the thoughts and the answer."""
        at = _past_space(text, at)
        if at < len(text):
            self._at = self._lead
        self._ended = True
        return [], at

    def _lead(self, text: str, at: int) -> tuple[list[Event], int]:
        """Before the text of the answer."""
        begin = _past_space(text, at)
        if begin - at <= _MOST_SPACE:
            if _may_become(text, begin, self._leads):
                return [], at
            for lead in self._leads:
                if text.startswith(lead, begin):
                    self._at = self._begin_answer
                    return [], begin + len(lead)
        self._at = self._answer
        return [], at

    def _begin_answer(self, text: str, at: int) -> tuple[list[Event], int]:
        """Between a tag and the text of the answer."""
        at = _past_space(text, at)
        if at < len(text):
            self._at = self._answer
        return [], at

    def _answer(self, text: str, at: int) -> tuple[list[Event], int]:
        if self._frames:
            return self._framed(text, at)
        said, last = text[at:], "" if self._raw else self._tags.last
        if last:  # with the space around it
            body = said.rstrip()
            n = len(last) if body.endswith(last) else unfinished(body, (last,))
            n_held = len(said) - len(body[: len(body) - n].rstrip())
            said = said[: len(said) - min(n_held, _MOST_HELD)]
        return self._said(said), at + len(said)

    def _framed(self, text: str, at: int) -> tuple[list[Event], int]:
        """In the answer, where more thoughts may begin."""
        mark = self._frame.search(text, at)
        if mark is None:
            certain = max(at, len(text) - unfinished(text, self._frames))
            return self._said(text[at:certain]), certain
        found = self._said(text[at : mark.start()])
        if _may_become(text, mark.start(), self._frames):  # a longer tag
            return found, mark.start()
        if self._calls is not None and self._calls.within:  # part of an argument
            return found + self._said(mark[0]), mark.end()
        if mark[0] == self._tags.opening:
            self._any, self._at = False, self._think
            found += self._tag(mark[0])
        return found, mark.end()

    # ---- What was found ----

    def _said(self, text: str) -> list[Event]:
        self._spoke |= bool(text.strip())
        if self._calls is not None:
            return self._calls.push(text)
        return [Content(text)] if text else []

    def _tag(self, text: str) -> list[Event]:
        """A tag of thoughts, with the space around it."""
        return [Content(text)] if self._raw else []

    def _thought(self, text: str) -> list[Event]:
        if self._raw:
            return [Content(text)] if text else []
        said = text.rstrip()
        if not said:
            self._space.append(text)
            return []
        before, self._space = self._space, [text[len(said) :]]
        thought = "".join([*before, said]) if self._any else said.lstrip()
        self._any = True
        return [Thought(thought)]


def _one_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Finds the longest of some texts."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


def _past_space(text: str, at: int) -> int:
    return _SPACES.match(text, at).end()  # type: ignore[union-attr]


def _may_become(text: str, at: int, marks: Sequence[str]) -> bool:
    """Is what there is of a text from `at` on the beginning of a mark, but not all of it?"""
    n = len(text) - at
    return any(n < len(mark) and mark.startswith(text[at:]) for mark in marks)
