"""Exceptions of the package, and their mapping from the C API's status codes."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence

from .._native import ffi, lib
from .ways import Way, sentence


class ModelFormatError(ValueError):
    """A model file or checkpoint violates its format; the message names the file and the place."""


class UnsupportedModelError(ModelFormatError):
    """A valid model that this version cannot run."""


class OutOfMemoryError(MemoryError):
    """More memory is needed than is available, or than the budget allows.

    ways: what helps; path: the model's file.
    """

    ways: Sequence[Way] = ()
    path: str = ""

    def __str__(self) -> str:
        return self.told(flags=False)

    def told(self, flags: bool) -> str:
        """The message, with what helps. flags: as in ways.sentence."""
        said = sentence(self.ways, self.path, flags)
        return super().__str__() + (f"; {said}" if said else "")


class RequestError(ValueError):
    """What was asked for cannot be done, whatever the state of this process: a bad value, messages
    that the chat format refuses, a grammar that is none. Servers tell clients of no other
    ValueError."""


class ContextOverflowError(RequestError):
    """More tokens than the context has positions."""


class DeviceError(RuntimeError):
    """A compute device failed or does not exist."""


class StorageError(OSError):
    """The engine could not read or write a file, of a model that runs from storage for example."""


class Cancelled(RuntimeError):
    """A callback asked to stop."""


_CLASSES = {
    lib.PI_ERROR_ARGUMENT: ValueError,
    lib.PI_ERROR_FORMAT: ModelFormatError,
    lib.PI_ERROR_UNSUPPORTED: UnsupportedModelError,
    lib.PI_ERROR_MEMORY: OutOfMemoryError,
    lib.PI_ERROR_CONTEXT: ContextOverflowError,
    lib.PI_ERROR_DEVICE: DeviceError,
    lib.PI_ERROR_CANCELLED: Cancelled,
}


@contextlib.contextmanager
def about_request() -> Iterator[None]:
    """Within it, values of a request are read: a ValueError is about them, and becomes a
    RequestError. Errors of the model's file stay what they are."""
    try:
        yield
    except (RequestError, ModelFormatError, UnicodeError):
        raise
    except ValueError as error:
        raise RequestError(str(error)) from error
    except RecursionError:
        raise RequestError("the request is nested too deeply") from None


def encoded(path: str) -> bytes:
    """A path as bytes for the C API. Raises ValueError for a path with a NUL."""
    if "\0" in path:
        raise ValueError(f"{path!r}: a path cannot hold a NUL")
    return path.encode("utf-8", "surrogateescape")


def _why_unreadable(path: str) -> int:
    """The errno for a file that could not be read."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return error.errno or errno.EIO
    if stat.S_ISDIR(mode):
        return errno.EISDIR
    return errno.EIO if os.access(path, os.R_OK) else errno.EACCES


def check(status: int, path: str | None = None) -> None:
    """Raises the exception for a status of the C API; returns on PI_OK.

    path: the file of the call. An I/O failure becomes FileNotFoundError, IsADirectoryError or
    PermissionError, if this file is the reason, else StorageError.
    """
    if status == lib.PI_OK:
        return
    message = ffi.string(lib.pi_last_error()).decode("utf-8", "replace") or f"status {status}"
    if status == lib.PI_ERROR_IO:
        why = errno.EIO if path is None else _why_unreadable(path)
        # With an errno, OSError() returns the matching subclass; a failing disk never does: a
        # server would take a TimeoutError or BrokenPipeError for its client's.
        raise StorageError(why, message) if why == errno.EIO else OSError(why, message)
    raise _CLASSES.get(status, RuntimeError)(message)
