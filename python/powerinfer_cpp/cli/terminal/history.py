"""What was typed in earlier chats, in a file of the user's."""

import contextlib
import json
import os
import stat
import sys
import tempfile
from pathlib import Path

KEPT = 1000  # texts
_LONGEST = 1 << 16  # characters of a text that is kept
_MOST = 4 << 20  # bytes that are read of a file


def history_path() -> Path | None:
    """Where this user's history lies; None if there is no place for it."""
    given = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_STATE_HOME", "")
    try:
        state = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    except RuntimeError:  # nobody knows where this user is at home
        return None
    return state / "powerinfer_cpp" / "chat_history"


class HistoryFile:
    """Texts in the order in which they were typed, each as a JSON string on a line of its own.

    Only its user may read it. Several chats may add to it at the same time. What cannot be read or
    written is left: a chat works without a history.
    """

    def __init__(self, path: Path, kept: int = KEPT):
        self._path, self._kept = path, kept

    def texts(self) -> list[str]:
        """The last texts, at most `kept`. Shortens a file that has grown beyond twice as many."""
        try:
            found, cut = self._read()
        except OSError:
            return []
        texts = found[-self._kept :]
        if cut or len(found) > 2 * self._kept:
            with contextlib.suppress(OSError):
                replace_file(self._path, b"".join(map(_line, texts)))
        return texts

    def add(self, text: str) -> None:
        """Adds a text, unless it is very long."""
        if len(text) > _LONGEST:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)
            handle = os.open(self._path, flags, 0o600)
            try:
                about = os.fstat(handle)
                if not stat.S_ISREG(about.st_mode):
                    return
                if about.st_mode & 0o077 and hasattr(os, "fchmod"):
                    os.fchmod(handle, 0o600)
                os.write(handle, _line(text))  # at once: another chat's lines stay whole
            finally:
                os.close(handle)

    def _read(self) -> tuple[list[str], bool]:
        """All texts, and whether the file has more than is read."""
        if not self._path.is_file():
            return [], False
        with self._path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _MOST))
            lines = file.read(_MOST).splitlines()
        cut = size > _MOST
        found = []
        for line in lines[1:] if cut else lines:
            with contextlib.suppress(ValueError, RecursionError):  # a damaged line is lost
                text = json.loads(line)
                if isinstance(text, str):
                    found.append(text)
        return found, cut


def _line(text: str) -> bytes:
    return json.dumps(text).encode("ascii") + b"\n"


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file that only its user may read, all of it or nothing. Raises OSError."""
    path = Path(os.path.realpath(path))  # a link stays one
    handle, made = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(made)
        raise
