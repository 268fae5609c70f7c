"""Threads for work that can wait: the engine's threads get the processor first."""

import asyncio
import contextlib
import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")

# Of the system's -20 to 19. A thread that tokenises megabytes beside the engine's would take each
# step several times as long: these wait for each other after each operator.
NICENESS = 19
N_THREADS = 16  # more than the places that use them


def _step_back() -> None:
    """Gives this thread the lowest priority, where threads have one of their own."""
    if os.uname().sysname == "Linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(N_THREADS, "background", _step_back if hasattr(os, "uname") else None)


async def in_background(work: Callable[..., Result], *of: Any) -> Result:
    """What work gives, in such a thread. Who is cancelled does not stop it."""
    return await asyncio.get_running_loop().run_in_executor(_pool(), functools.partial(work, *of))
