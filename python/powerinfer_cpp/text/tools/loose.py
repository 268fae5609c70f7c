"""A call that is JSON alone, or in a fence: some models write so, whatever they were taught."""

import re
from collections.abc import Set

from .blocks import Read
from .reader import CallReader, State, Step, past_space

_FENCE = re.compile(r"`{1,3}|```\w+[ \t]*|```\w*[ \t]*[\r\n][ \t\r\n]*")
_MOST_HEAD = 64  # characters of a fence before its object


class LooseCall:
    """Reads a fence or the whole of an answer, from its first character on.

    Only an object with the name of a function and an object of arguments is a call, with nothing
    else around it; the braces around it may be doubled. names: functions that may be called.
    """

    def __init__(self, names: Set[str]):
        self._names = names
        self._fence = ""
        self._reader: CallReader | None = None
        self._arguments: list[str] = []
        self._after = ""  # what must follow the object: a brace, the end of the fence
        self._left: str | None = None  # of that; None: the object has not ended
        self._at: State = self._before

    @property
    def call(self) -> Read:
        """The call, when all of it was read."""
        assert self._reader is not None and self._reader.name is not None
        return Read(self._reader.name, "".join(self._arguments))

    @property
    def whole(self) -> bool:
        """Is it a call if the answer ends here?"""
        return self._left is not None and not self._left.startswith("}")

    def take(self, text: str, at: int, end: int) -> tuple[int, Step]:
        """The place behind what was taken of text[at:end]; MORE; END of a fence with a call;
        REFUSED: it is no call, and the next character follows."""
        step = Step.MORE
        while at < end and step is Step.MORE:
            at, step = self._at(text, at, end)
        return at, step

    def _before(self, text: str, at: int, end: int) -> tuple[int, Step]:
        char = text[at]
        if char == "{" and (not self._fence or self._fence.startswith("```")):
            self._after = "```" if self._fence else ""
            self._reader, self._at = CallReader(self._names, strict=True), self._doubled
            return self._reader.take(text, at, at + 1)
        self._fence += char
        known = len(self._fence) <= _MOST_HEAD and _FENCE.fullmatch(self._fence)
        return (at + 1, Step.MORE) if known else (at, Step.REFUSED)

    def _doubled(self, text: str, at: int, _end: int) -> tuple[int, Step]:
        """Behind the first brace."""
        self._at = self._in_object
        if text[at] == "{":
            self._after = "}" + self._after
            at += 1
        return at, Step.MORE

    def _in_object(self, text: str, at: int, end: int) -> tuple[int, Step]:
        assert self._reader is not None
        at, step = self._reader.take(text, at, end)
        self._arguments += self._reader.pieces
        self._reader.pieces.clear()
        if step is Step.END:
            self._left, self._at = self._after, self._behind
            return at, Step.MORE
        if step is Step.WRONG:
            at -= 1
        return at, step if step is Step.MORE else Step.REFUSED

    def _behind(self, text: str, at: int, end: int) -> tuple[int, Step]:
        at = past_space(text, at, end)
        if at == end:
            return at, Step.MORE
        if not self._left or not self._left.startswith(text[at]):
            return at, Step.REFUSED
        self._left = self._left[1:]
        return at + 1, Step.END if not self._left and self._fence else Step.MORE
