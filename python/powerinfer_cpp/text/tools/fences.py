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
            self._go_on(line)
            self._open = self._after()
            self._line, self._n_ticks = "", 0
        self._go_on(last)

    def shows(self, space: str) -> bool:
        """Would what follows, behind this white space, be a part of a block, or of code in a
        line?"""
        if self._after():
            return True
        return "\n" not in space and not self._open and self._n_ticks % 2 == 1

    def _go_on(self, text: str) -> None:
        self._line = (self._line + text[:_MOST_LINE])[:_MOST_LINE]
        self._n_ticks += text.count("`")

    def _after(self) -> str:
        """The fence of the block that is open behind the line."""
        found = _FENCE.match(self._line)
        if found is None:
            return self._open
        fence, behind = found[1], found[2].strip()
        if self._open:
            return self._open if not fence.startswith(self._open) or behind[:1].isalnum() else ""
        in_line = fence[0] == "`" and self._n_ticks > len(fence)  # as in ```x```
        return "" if in_line else fence
