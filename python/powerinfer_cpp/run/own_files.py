"""Files in folders that others may write to: a pipe there would be read for ever, a link leads
elsewhere, and what another user wrote is not this one's."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_file(path: Path, own: bool = False) -> BinaryIO:
    """Opens an ordinary file to read. own: it must be this user's, and no link. Raises OSError for
    anything else, without waiting for it."""
    names = ["O_NONBLOCK", "O_CLOEXEC", "O_BINARY", *(["O_NOFOLLOW"] if own else [])]
    flags = os.O_RDONLY
    for name in names:
        flags |= getattr(os, name, 0)
    handle = os.open(path, flags)
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "is no ordinary file")
        if own:
            _check_owner(about)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def own_folder(path: Path) -> tuple[int, int]:
    """Makes a folder that only this user can use, if there is none; what tells it from one that
    takes its place later. Raises OSError if it is a link or another user's."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = path.lstat()
    if not stat.S_ISDIR(about.st_mode):
        raise OSError(errno.ENOTDIR, "is a link")
    _check_owner(about)
    path.chmod(0o700)
    return about.st_dev, about.st_ino


def _check_owner(about: os.stat_result) -> None:
    user = getattr(os, "geteuid", lambda: about.st_uid)()  # Windows has access lists instead
    if about.st_uid != user:
        raise OSError(errno.EPERM, "belongs to another user")
