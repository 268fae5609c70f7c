"""A call that is JSON alone, or in a fence: some models write so, whatever they were taught."""

import re
from collections.abc import Set

from .blocks import Read
from .reader import SPACE, CallReader, Step

_FENCE = re.compile(r"`{1,3}|```\w+[ \t]*|```\w*[ \t]*[\r\n][ \t\r\n]*")
_MOST_HEAD = 64  # characters of a fence before its object


class LooseCall:
    """Reads a fence or the whole of an answer, character by character, from its first one.

    Only an object with the name of a function and an object of arguments is a call, with nothing
    else around it; the braces around it may be doubled. names: functions that may be called.
    """

    def __init__(self, names: Set[str]):
        self._names = names
        self._fence = ""
        self._reader: CallReader | None = None
        self._begun = False  # the reader has more than a brace
        self._arguments: list[str] = []
        self._after = ""  # what must follow the object: a brace, the end of the fence
        self._left: str | None = None  # of that; None: the object has not ended

    @property
    def call(self) -> Read:
        """The call, when all of it was read."""
        assert self._reader is not None and self._reader.name is not None
        return Read(self._reader.name, "".join(self._arguments))

    @property
    def whole(self) -> bool:
        """Is it a call if the answer ends here?"""
        return self._left is not None and not self._left.startswith("}")

    def push(self, char: str) -> Step:
        """MORE; END of a fence with a call; REFUSED: it is no call, and the character follows."""
        if self._left is not None:
            return self._behind(char)
        if self._reader is None:
            return self._before(char)
        if char == "{" and not self._begun:
            self._after, self._begun = "}" + self._after, True
            return Step.MORE
        self._begun = True
        step = self._reader.push(char)
        self._arguments += self._reader.pieces
        self._reader.pieces.clear()
        if step is Step.END and self._reader.complete:
            self._left = self._after
            return Step.MORE
        return Step.MORE if step is Step.MORE else Step.REFUSED

    def _before(self, char: str) -> Step:
        if char == "{" and (not self._fence or self._fence.startswith("```")):
            self._reader = CallReader(self._names, strict=True)
            self._after = "```" if self._fence else ""
            return self._reader.push(char)
        self._fence += char
        known = len(self._fence) <= _MOST_HEAD and _FENCE.fullmatch(self._fence)
        return Step.MORE if known else Step.REFUSED

    def _behind(self, char: str) -> Step:
        if char in SPACE:
            return Step.MORE
        if not self._left or not self._left.startswith(char):
            return Step.REFUSED
        self._left = self._left[1:]
        return Step.END if not self._left and self._fence else Step.MORE
