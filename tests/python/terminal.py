"""A program on a terminal of its own, for tests of what people see and type."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

import pytest

CTRL_C, CTRL_D, ENTER, ALT_ENTER, UP = "\x03", "\x04", "\r", "\x1b\r", "\x1b[A"


class Terminal:
    """Runs a command on a pseudo-terminal: stdin, stdout and stderr; out: another stdout."""

    def __init__(
        self,
        command: Sequence[object],
        env: Mapping[str, str] | None = None,
        out: int | None = None,
    ):
        pty = pytest.importorskip("pty")
        termios = pytest.importorskip("termios")
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (40, 100)) if hasattr(termios, "tcsetwinsize") else None
        # Programs ask a terminal where its cursor is; this one would never answer.
        plain = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=theirs,
            stdout=theirs if out is None else out,
            stderr=theirs,
            env={**os.environ, **plain, **(env or {})},
            start_new_session=True,
            preexec_fn=lambda: self._own(theirs),
        )
        os.close(theirs)
        self.shown = ""  # all of it
        self._seen = 0

    @staticmethod
    def _own(fd: int) -> None:
        """Makes the terminal that of the session, so that Ctrl-C is a signal."""
        import fcntl
        import termios

        fcntl.ioctl(fd, termios.TIOCSCTTY, 0)

    def send(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def until(self, text: str, seconds: float = 30) -> str:
        """What is shown until a text appears, that included."""
        end = time.monotonic() + seconds
        while (at := self.shown.find(text, self._seen)) < 0:
            assert self._read(end - time.monotonic()), (
                f"no {text!r} in {self.shown[self._seen :]!r}"
            )
        begin, self._seen = self._seen, at + len(text)
        return self.shown[begin : self._seen]

    def end(self, seconds: float = 30) -> int:
        """Waits for the program's end; returns its status."""
        end = time.monotonic() + seconds
        while self._read(end - time.monotonic()):
            pass
        return self.process.wait(max(0.1, end - time.monotonic()))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._ours)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, seconds: float) -> bool:
        """Takes what the program has written; False at its end, or if it writes nothing."""
        if not select.select([self._ours], [], [], max(0, seconds))[0]:
            return False
        try:
            data = os.read(self._ours, 1 << 16)
        except OSError:  # Linux: nobody has the other side open
            return False
        self.shown += data.decode("utf-8", "replace")
        return bool(data)
