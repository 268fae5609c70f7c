"""What differs between operating systems: nothing else in the package imports a module, or uses a
name, that only some of them have."""

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

# What is missing on Windows, and what is only there.
fcntl: Any
resource: Any
msvcrt: Any
try:
    import fcntl
    import resource

    msvcrt = None
except ImportError:
    fcntl = resource = None
    try:
        import msvcrt
    except ImportError:
        msvcrt = None

_FAR = 1 << 62  # where Windows locks a byte: others cannot read or write what is locked
_PIECE = 1 << 20


def open_for_lock(path: Path, new: bool = False) -> int:
    """A descriptor of a file to lock, which may be renamed and removed meanwhile. Makes the file
    if there is none; new: raises FileExistsError if there is one."""
    if msvcrt is None:
        flags = os.O_RDWR | os.O_CREAT | (os.O_EXCL if new else 0) | getattr(os, "O_CLOEXEC", 0)
        return os.open(path, flags, 0o666)
    return _open_shared(path, 1 if new else 4)  # CREATE_NEW, OPEN_ALWAYS


def open_left(path: Path) -> int:
    """A descriptor of a file that another process has left. Raises OSError for a link, and does not
    wait for the other end of a pipe."""
    if msvcrt is None:
        flags = os.O_RDWR
        for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):
            flags |= getattr(os, name, 0)
        return os.open(path, flags)
    if path.is_symlink():
        raise OSError(errno.EINVAL, f"{path}: is a link")
    return _open_shared(path, 3)  # OPEN_EXISTING


def _open_shared(path: Path, how: int) -> int:
    """os.open of Windows forbids others to rename and remove the file."""
    import ctypes

    kernel: Any = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    kernel.CreateFileW.restype = ctypes.c_void_p
    read_write, shared = 0xC0000000, 7
    handle = kernel.CreateFileW(str(path), read_write, shared, None, how, 0x80, None)
    if handle == ctypes.c_void_p(-1).value:
        raise ctypes.WinError(ctypes.get_last_error())  # type: ignore[attr-defined]
    return msvcrt.open_osfhandle(handle, os.O_RDWR)


def lock(file: int) -> bool | None:
    """Takes a file's lock. False: another process has it; None: the disk does not support locks."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif msvcrt is not None:
            os.lseek(file, _FAR, os.SEEK_SET)
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        else:
            return None
    except BlockingIOError:
        return False
    except OSError as error:
        return False if msvcrt is not None and error.errno == errno.EACCES else None
    return True


def reserve(file: int, n_bytes: int) -> None:
    """Gives an empty file n_bytes of the disk. Raises OSError if the disk is full."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, n_bytes)
        return
    zeros = bytes(_PIECE)  # a file of holes would fail when it is written through a mapping
    while n_bytes > 0:
        n_bytes -= os.write(file, zeros[: min(n_bytes, _PIECE)])


def allow_many_files() -> None:
    """Raises the limit of open files to what this process may have."""
    if resource is None:
        return
    with contextlib.suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def n_open_files() -> int | None:
    """How many files this process may have open at the same time; None: that is unknown."""
    if resource is None:
        return None
    most = int(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return None if most == resource.RLIM_INFINITY else most
