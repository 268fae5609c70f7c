"""A process for work on texts that may mean harm, with limits of time and memory.

A check inside this process reaches only as far as somebody thought of: comparing two lists that
hold each other, or a format of the right width, is one operation of C that no clock interrupts and
no size bounds. A process can be ended whatever it does.
"""

import atexit
import contextlib
import importlib.util
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

MAX_SECONDS = 2.0  # by the clock, and of processor time where nothing less is asked for
MAX_MEMORY = 384 << 20  # address space of the process, some 30 MiB of it the interpreter's
MAX_REPLY = 128 << 20  # bytes: a prompt of 16 Mi characters as JSON
START_SECONDS = 20.0  # a start takes 0.1 s; more on a busy machine with a slow disk

_TIME_IS_UP = -getattr(signal, "SIGPROF", -1)
_SERVE = Path(__file__).parent / "children" / "serve.py"


class WorkerMissing(Exception):
    """No process can be started."""


class Refused(Exception):
    """What is wrong with a text, in words that follow its name: "takes more than 2 s"."""

    def __init__(self, words: str, by_limit: bool):
        super().__init__(words)
        self.by_limit = by_limit  # else these are the module's own words


def _interpreter() -> str:
    """The Python to start. multiprocessing.set_executable names it where this process is none."""
    from multiprocessing import spawn

    found = os.fsdecode(spawn.get_executable() or "")
    # A frozen program would start itself again.
    if not found or getattr(sys, "frozen", False) and found == sys.executable:
        raise WorkerMissing("sys.executable names no Python interpreter")
    return found


def _folder(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise WorkerMissing(f"the package {package} is not installed")
    return str(Path(spec.origin).parent.parent)


class Worker:
    """One process that works with one module of the folder `children`.

    It starts with the first request, stays, and is replaced when it has ended. Threads take turns.
    seconds: of processor time for a request.
    """

    def __init__(self, module: str, packages: tuple[str, ...], seconds: float = MAX_SECONDS):
        self._module, self._packages, self._seconds = module, packages, seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._late = False  # the last request was ended for its time
        atexit.register(self.close)
        if hasattr(os, "register_at_fork"):  # the process is the parent's; two cannot share it
            os.register_at_fork(after_in_child=self._forget)

    def ask(self, **request: Any) -> Any:
        """What the module's `answer` says. Raises Refused, WorkerMissing, and TypeError or
        ValueError for a request that is no JSON."""
        text = json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass")
        if len(text) >> 32:
            raise Refused("is too long", True)
        with self._lock:
            try:
                if self._process is not None and self._process.poll() is not None:
                    self._end()
                if self._process is None:
                    self._start()
                reply = self._exchange(struct.pack("<I", len(text)) + text, MAX_SECONDS)
                if reply is None or reply["last"] or self._late:
                    code = self._end()
            except BaseException:  # Ctrl-C, wherever: the next request must not get this reply
                self._end(0)
                raise
        if reply is None:
            if self._late or code == _TIME_IS_UP:
                raise Refused(f"takes more than {self._seconds:g} s", True)
            raise Refused("needs too much memory or is nested too deeply", True)
        if "refused" in reply:
            raise Refused(reply["refused"], "by" in reply)
        return reply["value"]

    def close(self) -> None:
        """Ends the process; the next request starts another."""
        with self._lock:
            self._end(0)

    def _start(self) -> None:
        folders = [_folder(package) for package in self._packages]
        interpreter = _interpreter()
        limits = (str(MAX_MEMORY), str(self._seconds))
        try:
            # -I -S: what the packages' folders do not hold is not imported, whatever the
            # environment says. A session of its own: a terminal's Ctrl-C is for us alone.
            self._process = subprocess.Popen(
                [interpreter, "-I", "-S", str(_SERVE), self._module, *limits, *folders],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise WorkerMissing(f"{interpreter} does not start: {error}") from None
        if self._exchange(b"", START_SECONDS) != {"value": "ready"}:
            self._end()
            raise WorkerMissing(f"{interpreter} does not start as a Python interpreter")

    def _exchange(self, data: bytes, seconds: float) -> dict[str, Any] | None:
        """The reply; None when the process ended or was ended before it gave one."""
        process = self._process
        self._late = False

        def end() -> None:
            self._late = True
            process.kill()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        try:
            timer.start()
            view = memoryview(data)
            while view:
                view = view[process.stdin.write(view) :]
            (n,) = struct.unpack("<I", self._read(4))
            return json.loads(self._read(n).decode("utf-8", "surrogatepass"))
        except (OSError, EOFError, ValueError):
            return None
        finally:
            timer.cancel()

    def _read(self, n: int) -> bytes:
        if n > MAX_REPLY:
            raise EOFError
        data = bytearray()
        while len(data) < n:
            part = self._process.stdout.read(min(n - len(data), 1 << 20))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def _end(self, patience: float = 0.2) -> int | None:
        """Ends and forgets the process; its exit status.

        patience: seconds for an end of its own, since its status says what it died of.
        """
        process, self._process = self._process, None
        if process is None:
            return None
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
        process.kill()
        process.wait()
        process.stdout.close()
        return process.returncode

    def _forget(self) -> None:
        """In a fork of this process: the worker stays the parent's."""
        self._lock = threading.Lock()
        process, self._process = self._process, None
        if process is not None:
            process.stdin.close()
            process.stdout.close()
            process.returncode = 0  # nothing to wait for
