"""Threads for what computes outside of Python: the engine's threads get the processor first."""

import asyncio
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ..text.processor_time import Measured, took_elsewhere

Result = TypeVar("Result")

N_THREADS = 16  # more than the places that use them


class Background:
    """Threads of a priority that is lower than that of the engine's, where threads have one of
    their own, as on Linux.

    The engine's threads wait for each other after each operator, so another one that computes
    beside them makes a step several times as long. Not for work in Python itself: who has its lock
    and waits for a processor holds up all others. niceness: of the system's 0 to 19; threads that
    such a thread begins have it as well.
    """

    def __init__(self, niceness: int):
        self._niceness = niceness

    async def run(self, work: Callable[..., Result], *of: Any) -> Result:
        """What work gives, in such a thread. Who is cancelled does not stop it."""
        call = functools.partial(work, *of)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def call(self, work: Callable[[], Result]) -> Result:
        """The same for other threads than the event loop's; waits for it, and counts its time as
        that of the thread that asks."""
        measured = Measured(work)
        try:
            return self._pool.submit(measured).result()
        finally:
            took_elsewhere(measured.seconds)

    @functools.cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(N_THREADS, "background", self._step_back)

    def _step_back(self) -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness)


TOKENISING = Background(19)
EMBEDDING = Background(10)  # with a tenth of the engine's weight
