"""Answers of Functionary 3.2: messages to `all`, which are text, and to functions, each behind
`>>>` and a line with that name."""

import re
from collections.abc import Callable, Iterable, Set

from .definitions import Tool
from .events import CallBegin, Content, Event, unfinished
from .fences import Fences
from .kinds import functions_of
from .messages import Call, MessageParser, Text
from .styles import FUNCTIONARY_3
from .values import Step

_BEGIN, _ALL = FUNCTIONARY_3.opening, FUNCTIONARY_3.answer.strip()
_SPACE_NAME = "functions."
_HEADER = re.compile(
    rf"(?:{_BEGIN})?[ \t]{{0,16}}(?:{re.escape(_SPACE_NAME)})?([\w.:/-]{{0,256}})[ \t]{{0,16}}"
    r"(\n|(?=\{))?"
)


class FunctionaryParser(MessageParser):
    """Turns the text of one answer into events.

    names: functions that may be called; a message to another one is text, and so is what stands in
    a fence. tools: definitions of the functions. The first message may stand behind the mark that
    the prompt ends with.
    """

    def __init__(
        self,
        names: Set[str] = frozenset(),
        new_id: Callable[[], str] | None = None,
        tools: Iterable[Tool] = (),
    ):
        super().__init__()
        self._functions, self._new_id = functions_of(names, tools), new_id or FUNCTIONARY_3.new_id
        self._fences = Fences()  # of a text

    def _header(self, text: str, at: int, final: bool = False) -> tuple[Step, str, int]:
        """END if a header stands at a place, MORE if what follows decides, or REFUSED; the name in
        it, and the place behind."""
        header = _HEADER.match(text, at)
        assert header is not None
        name, behind = header[1], header.end()
        known = name in self._functions or name == _ALL and header[2] == "\n"
        if header[2] is None and not final:
            words = (*self._functions, _ALL, _SPACE_NAME)
            open_ended = behind == len(text) and any(word.startswith(name) for word in words)
            waits = open_ended or _BEGIN.startswith(text[at:])
            return Step.MORE if waits else Step.REFUSED, name, behind
        return Step.END if known else Step.REFUSED, name, behind

    def _in_header(self, text: str, at: int) -> tuple[list[Event], int]:
        step, name, behind = self._header(text, at)
        if step is Step.MORE:
            return [], at
        if step is Step.REFUSED or name == _ALL:
            self._fences = Fences()
            self._open(Text())
        else:
            self._open(self._call(name, text[at:behind]))
        return [], at if step is Step.REFUSED else behind

    def _call(self, name: str, head: str) -> Call:
        begin = CallBegin(self._n_calls, self._new_id(), name)
        return Call(begin, head, self._functions)

    def _in_message(self, text: str, at: int) -> tuple[list[Event], int]:
        said: list[Event] = []
        begin = at
        while (place := text.find(_BEGIN, begin)) >= 0:
            step = self._header(text, place)[0]
            if step is Step.REFUSED:
                begin = place + 1
                continue
            said += self._say(text[at:place])
            if step is Step.MORE:
                return said, place
            if not self._fences.shows(""):
                self._at = self._in_header
                return said + self._counted(self._message.end(True)), place
            at, begin = place, place + len(_BEGIN)  # an example
        stop = max(begin, len(text) - unfinished(text, (_BEGIN,)))
        return said + self._say(text[at:stop]), stop

    def _say(self, text: str) -> list[Event]:
        if isinstance(self._message, Text):
            self._fences.feed(text)
        return self._counted(self._message.push(text))

    def _cut(self, held: str) -> list[Event]:
        step, name, _ = self._header(held, 0, final=True)
        if step is Step.END:
            return self._call(name, held).end(False)
        return [] if held.startswith(_BEGIN[0]) else [Content(held)] if held else []
