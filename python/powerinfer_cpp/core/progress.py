"""Progress of long work on stderr: a bar on a terminal, otherwise a line now and then."""

import sys
import time
from contextlib import suppress
from typing import Any

from .log import tell

_SECONDS = 10.0  # between lines if stderr is not a terminal


class Progress:
    """Use as a context manager. total: in `unit`s ("B" for bytes, "windows" ...).

    A terminal that goes away takes the bar with it; the work goes on.
    """

    def __init__(self, what: str, total: int, unit: str):
        self._what, self._total, self._done = what, total, 0
        self._bar: Any = None
        self._next_line = time.monotonic() + _SECONDS
        with suppress(Exception):  # whatever a stream raises; it may be None
            if sys.stderr.isatty():
                self._bar = self._new_bar(unit)

    def _new_bar(self, unit: str) -> Any:
        from tqdm import tqdm

        bytes_ = unit == "B"
        return tqdm(
            desc=self._what,
            total=self._total,
            unit=unit if bytes_ else f" {unit}",
            unit_scale=bytes_,
            unit_divisor=1024 if bytes_ else 1000,
            leave=False,
            file=sys.stderr,
        )

    def update(self, n: int, note: str = "") -> None:
        """Adds n finished units; note: a figure to show beside them."""
        self._done += n
        if self._bar is not None:
            with suppress(Exception):
                if note:
                    self._bar.set_postfix_str(note, refresh=False)
                self._bar.update(n)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS
            share = 100 * self._done / max(1, self._total)
            tell(f"{self._what}: {share:.0f}% {note}".rstrip())

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            with suppress(Exception):
                self._bar.close()
