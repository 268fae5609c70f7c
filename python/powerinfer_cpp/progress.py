"""Progress of long work on stderr: a bar on a terminal, otherwise a line now and then."""

import sys
import time
from typing import Any

_SECONDS = 10.0  # between lines if stderr is not a terminal


class Progress:
    """Use as a context manager. total: in `unit`s ("B" for bytes, "windows" ...)."""

    def __init__(self, what: str, total: int, unit: str):
        self._what, self._total, self._done = what, total, 0
        self._bar: Any = None
        self._next_line = time.monotonic() + _SECONDS
        if sys.stderr.isatty():
            from tqdm import tqdm

            bytes_ = unit == "B"
            self._bar = tqdm(
                desc=what,
                total=total,
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
            if note:
                self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(n)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS
            share = 100 * self._done / max(1, self._total)
            print(f"{self._what}: {share:.0f}% {note}".rstrip(), file=sys.stderr, flush=True)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
