"""Processor time of a thread's work, with what processes and other threads do for it."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class _Elsewhere(threading.local):
    seconds = 0.0


_elsewhere = _Elsewhere()


def took_elsewhere(seconds: float) -> None:
    """Notes that another thread or process took so long for this thread."""
    _elsewhere.seconds += seconds


def elsewhere() -> float:
    """Seconds that others have taken for this thread so far."""
    return _elsewhere.seconds


class Measured(Generic[Result]):
    """Work, and the seconds that it took when it was called: its thread's, and those of others."""

    def __init__(self, work: Callable[[], Result]):
        self._work, self.seconds = work, 0.0

    def __call__(self) -> Result:
        begin = time.thread_time() + _elsewhere.seconds
        try:
            return self._work()
        finally:
            self.seconds = time.thread_time() + _elsewhere.seconds - begin
