"""Blocks of code in a text that is being written: what stands in them is shown, not done."""

import re

_MOST_LINE = 128  # characters of a line that say whether it is a fence
_FENCE = re.compile(r"[ \t>]*(`{3,}|~{3,})([^`]*)")


class Fences:
    """Follows a text, line by line."""

    def __init__(self) -> None:
        self._line = ""  # the beginning of the last one
        self._open = ""  # the fence before the block that is open
        self._n_ticks = 0  # in that line

    def feed(self, text: str) -> None:
        """The text goes on."""
        *ended, last = text.split("\n")
        for line in ended:
            self._open = self._after(self._line + line[:_MOST_LINE])
            self._line, self._n_ticks = "", 0
        self._line = (self._line + last[:_MOST_LINE])[:_MOST_LINE]
        self._n_ticks += last.count("`")

    def shows(self, space: str) -> bool:
        """Would what follows, behind this white space, be a part of a block, or of code in a
        line?"""
        if self._after(self._line):
            return True
        return "\n" not in space and not self._open and self._n_ticks % 2 == 1

    def _after(self, line: str) -> str:
        """The fence of the block that is open behind a line."""
        found = _FENCE.match(line)
        if found is None:
            return self._open
        if not self._open:
            return found[1]
        ends = found[1].startswith(self._open) and not found[2].strip()[:1].isalnum()
        return "" if ends else self._open
