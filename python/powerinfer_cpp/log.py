"""What the package has to say: to Python's logging, and on stderr where `verbose` asks for it.

The logger "powerinfer_cpp" gets every message, whatever `verbose` is. Without a handler of the
program's it shows nothing.
"""

import logging
import sys

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
    logger.log(level, "%s", line)
    if verbose and level >= logging.INFO:
        print(line, file=sys.stderr, flush=True)
