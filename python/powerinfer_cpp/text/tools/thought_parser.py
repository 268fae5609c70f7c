"""Splits thoughts from an answer while it is being written: text in, events out."""

import re
from collections.abc import Sequence

from .events import ByStates, CallBegin, Content, Event, Thought, unfinished
from .parser import ToolParser
from .thoughts import Thoughts

_MOST_SPACE = 256  # characters before thoughts, or before an answer's tag
_MOST_HELD = 512  # characters around the tag that ends an answer
_WINDOW = 4096
_SPACES = re.compile(r"\s*")


class ThoughtParser(ByStates):
    """Splits thoughts from an answer; `calls` reads what follows, else it is content.

    opened: the prompt ends with the opening tag. calls: a call that begins among the thoughts ends
    them, since some models leave out the closing tag there. White space around thoughts is dropped,
    and so are the tags around the answer's text. Tags elsewhere are text. quotes: calls among the
    thoughts are part of them. raw: thoughts that the prompt opens are content, with their tag.
    """

    def __init__(
        self,
        tags: Thoughts,
        opened: bool = False,
        calls: ToolParser | None = None,
        quotes: bool = False,
        raw: bool = False,
    ):
        self._tags, self._calls = tags, calls
        self._held = ""
        self._space: list[str] = []  # within thoughts: dropped at their ends
        self._any = False  # is there a thought yet?
        self._at = self._begin if not opened else self._keep if raw else self._think
        self._leads = tags.leads
        ends = calls is not None and calls.opening and not quotes
        self._marks = (tags.closing, calls.opening) if ends else (tags.closing,)
        self._mark = re.compile("|".join(map(re.escape, sorted(self._marks))))

    def finish(self) -> list[Event]:
        """The rest, at the end of the answer."""
        held, self._held = self._held, ""
        if self._at == self._think:
            return self._thought(held)
        if self._at == self._keep:
            return [Content(held)] if held else []
        if self._at == self._call:
            return self._among(self._calls.push(held)) + self._among(self._calls.finish())
        over = (self._tags.last,) if self._at == self._answer else (*self._leads, "")
        said = held if held.strip() not in over or not self._any and not held.strip() else ""
        return self._said(said) + (self._calls.finish() if self._calls else [])

    def reason(self, reason: str) -> str:
        """The finish_reason of an answer that ended for this reason."""
        return self._calls.reason(reason) if self._calls else reason

    # ---- States (ByStates) ----

    def _begin(self, text: str, at: int) -> tuple[list[Event], int]:
        begin = _past_space(text, at)
        for tag, then in ((self._tags.opening, self._think), (self._tags.closing, self._end)):
            if text.startswith(tag, begin) and begin - at <= _MOST_SPACE:
                self._at = then
                return [], begin + len(tag)
        tags = (self._tags.opening, self._tags.closing)
        if begin - at > _MOST_SPACE or not _may_become(text, begin, tags):
            self._at = self._lead
        return [], at

    def _keep(self, text: str, at: int) -> tuple[list[Event], int]:
        """Thoughts that are content."""
        closing = self._tags.closing
        behind = text.find(closing, at)
        if behind >= 0:
            behind, self._at = behind + len(closing), self._answer
        else:
            behind = max(at, len(text) - unfinished(text, (closing,)))
        return [Content(text[at:behind])] if behind > at else [], behind

    def _think(self, text: str, at: int) -> tuple[list[Event], int]:
        mark = self._mark.search(text, at)
        if mark is None:
            certain = max(at, len(text) - unfinished(text, self._marks))
            return self._thought(text[at:certain]), certain
        found = self._thought(text[at : mark.start()])
        if mark[0] != self._tags.closing:
            self._at = self._call
            return found, mark.start()
        self._space, self._at = [], self._end
        return found, mark.end()

    def _call(self, text: str, at: int) -> tuple[list[Event], int]:
        """Where a call may begin among the thoughts; a closing tag says that it was none."""
        closing = self._tags.closing
        if text.startswith(closing, at):
            found = self._among(self._calls.finish())
            if self._at == self._call:
                self._at = self._think
            return found, at
        if _may_become(text, at, (closing,)):
            return [], at
        # No closing tag stands before its next sign. A window: else each step would look far.
        window = min(len(text), at + _WINDOW)
        sign = text.find(closing[0], at + 1, window)
        behind = at
        while behind == at:
            behind = self._calls.take(text, at, window if sign < 0 else sign)
        return self._among(self._calls.taken()), behind

    def _among(self, events: list[Event]) -> list[Event]:
        """Events of what stands among thoughts: what is no call is a thought."""
        found: list[Event] = []
        for event in events:
            if isinstance(event, CallBegin):
                self._at = self._answer
            if isinstance(event, Content) and self._at == self._call:
                found += self._thought(event.text)
            else:
                found.append(event)
        if self._at == self._call and self._calls.idle:
            self._calls.begin_again()
            self._at = self._think
        return found

    def _end(self, text: str, at: int) -> tuple[list[Event], int]:
        """Between the thoughts and the answer."""
        at = _past_space(text, at)
        if at < len(text):
            self._at = self._lead
        self._any = True
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
        said, last = text[at:], self._tags.last
        if last:  # with the space around it
            body = said.rstrip()
            n = len(last) if body.endswith(last) else unfinished(body, (last,))
            n_held = len(said) - len(body[: len(body) - n].rstrip())
            said = said[: len(said) - min(n_held, _MOST_HELD)]
        return self._said(said), at + len(said)

    def _said(self, text: str) -> list[Event]:
        if self._calls is not None:
            return self._calls.push(text)
        return [Content(text)] if text else []

    def _thought(self, text: str) -> list[Event]:
        said = text.rstrip()
        if not said:
            self._space.append(text)
            return []
        before, self._space = self._space, [text[len(said) :]]
        thought = "".join([*before, said]) if self._any else said.lstrip()
        self._any = True
        return [Thought(thought)]


def _past_space(text: str, at: int) -> int:
    return _SPACES.match(text, at).end()  # type: ignore[union-attr]


def _may_become(text: str, at: int, marks: Sequence[str]) -> bool:
    """Is what there is of a text from `at` on the beginning of a mark, but not all of it?"""
    n = len(text) - at
    return any(n < len(mark) and mark.startswith(text[at:]) for mark in marks)
