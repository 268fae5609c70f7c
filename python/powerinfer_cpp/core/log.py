"""What the package has to say: to Python's logging, and on stderr where `verbose` asks for it.

The logger "powerinfer_cpp" gets every message, whatever `verbose` is. Without a handler of the
program's it shows nothing.

A message never fails the call that it tells of: stderr may be closed, its reader gone or its disk
full, and streams and handlers of programs raise what they like. Then the message is lost.
"""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .printable import printable

logger = logging.getLogger("powerinfer_cpp")
logger.addHandler(logging.NullHandler())

# By the levels of pi_log_callback: 1 error, 2 warning, 3 information, 4 detail.
_LEVELS = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO, 4: logging.DEBUG}


def engine_level(level: int) -> int:
    """The level of logging for a level of the engine."""
    return _LEVELS.get(level, logging.DEBUG)


def say(text: str, verbose: bool, level: int = logging.INFO) -> None:
    """Logs a message, which may hold names from files; verbose: also as a line on stderr, unless
    it is a detail."""
    line = printable(text)
    with suppress(Exception):
        logger.log(level, "%s", line)
    if verbose and level >= logging.INFO:
        tell(line)


def tell(text: str, end: str = "\n") -> None:
    """Writes a line to stderr, if that is possible."""
    with suppress(Exception):
        if sys.stderr is not None:  # print would take None for stdout
            print(text, end=end, file=sys.stderr, flush=True)


class _Teller(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        tell(record.getMessage())


@contextmanager
def warnings_told() -> Iterator[None]:
    """Within it, messages from the level of warnings on are lines on stderr, too."""
    handler = _Teller(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def warn(text: str, stacklevel: int = 1) -> None:
    """Warns through Python's `warnings`. stacklevel: as there, from the caller of this function.

    Raises what the program's filters make of a warning, but nothing that stderr raises.
    """
    try:
        warnings.warn(text, stacklevel=stacklevel + 1)
    except Warning:  # the program asked for it
        raise
    except Exception:  # noqa: BLE001, S110
        pass
