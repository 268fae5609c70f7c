"""Splits thoughts from an answer while it is being written: text in, events out."""

from .events import ByStates, CallBegin, Content, Event, Thought, unfinished
from .parser import ToolParser
from .thoughts import Thoughts

_MOST_SPACE = 256  # characters before thoughts


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

    # ---- States: each takes what it can of the held text ----

    def _begin(self) -> list[Event]:
        text = self._held.lstrip()
        for tag, then in ((self._tags.opening, self._think), (self._tags.closing, self._end)):
            if text.startswith(tag):
                self._held, self._at = text[len(tag) :], then
                return []
        tags = (self._tags.opening, self._tags.closing)
        if len(self._held) > _MOST_SPACE or not any(tag.startswith(text) for tag in tags):
            self._at = self._lead
        return []

    def _keep(self) -> list[Event]:
        """Thoughts that are content."""
        text, closing = self._held, self._tags.closing
        at = text.find(closing)
        n = len(text) - unfinished(text, (closing,)) if at < 0 else at + len(closing)
        self._held = text[n:]
        if at >= 0:
            self._at = self._answer
        return [Content(text[:n])] if n else []

    def _think(self) -> list[Event]:
        text = self._held
        places = [(at, mark) for mark in self._marks if (at := text.find(mark)) >= 0]
        if places:
            at, mark = min(places)
            if mark == self._tags.closing:
                self._held, self._at = text[at + len(mark) :], self._end
                found = self._thought(text[:at])
                self._space = []
                return found
            self._held, self._at = text[at:], self._call
            return self._thought(text[:at])
        n = unfinished(text, self._marks)
        self._held = text[len(text) - n :]
        return self._thought(text[: len(text) - n])

    def _call(self) -> list[Event]:
        """Where a call may begin among the thoughts; a closing tag says that it was none."""
        closing = self._tags.closing
        if self._held.startswith(closing):
            found = self._among(self._calls.finish())
            if self._at == self._call:
                self._at = self._think
            return found
        if closing.startswith(self._held):
            return []  # it may become a closing tag
        char, self._held = self._held[0], self._held[1:]
        return self._among(self._calls.push(char))

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

    def _end(self) -> list[Event]:
        """Between the thoughts and the answer."""
        self._held = self._held.lstrip()
        if self._held:
            self._at = self._lead
        self._any = True
        return []

    def _lead(self) -> list[Event]:
        """Before the text of the answer."""
        text = self._held.lstrip()
        if any(lead.startswith(text) and lead != text for lead in self._leads):
            return []
        self._at = self._answer
        for lead in self._leads:
            if text.startswith(lead):
                self._held, self._at = text[len(lead) :], self._begin_answer
                break
        return []

    def _begin_answer(self) -> list[Event]:
        """Between a tag and the text of the answer."""
        self._held = self._held.lstrip()
        if self._held:
            self._at = self._answer
        return []

    def _answer(self) -> list[Event]:
        text, last = self._held, self._tags.last
        said = text
        if last:  # with the space around it
            body = text.rstrip()
            n = len(last) if body.endswith(last) else unfinished(body, (last,))
            said = body[: len(body) - n].rstrip()
        self._held = text[len(said) :]
        return self._said(said)

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
