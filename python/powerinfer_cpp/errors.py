"""Exceptions of the package, and their mapping from the C API's status codes."""

import errno
import os
import stat

from ._native import ffi, lib


class ModelFormatError(ValueError):
    """A model file or checkpoint violates its format; the message names the file and the place."""


class UnsupportedModelError(ModelFormatError):
    """A valid model that this version cannot run."""


class OutOfMemoryError(MemoryError):
    """More memory is needed than is available, or than the budget allows."""


class ContextOverflowError(ValueError):
    """More tokens than the context has positions."""


class DeviceError(RuntimeError):
    """A compute device failed or does not exist."""


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

    path: the file of the call. An I/O failure becomes FileNotFoundError, IsADirectoryError,
    PermissionError or a plain OSError, depending on this file.
    """
    if status == lib.PI_OK:
        return
    message = ffi.string(lib.pi_last_error()).decode("utf-8", "replace") or f"status {status}"
    if status == lib.PI_ERROR_IO:
        # With an errno, OSError() returns the matching subclass.
        raise OSError(errno.EIO if path is None else _why_unreadable(path), message)
    raise _CLASSES.get(status, RuntimeError)(message)
