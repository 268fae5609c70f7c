"""A separate process for work on untrusted texts, with limits of time and memory.

Checks inside the main process are not enough: comparing two lists that contain each other, or
formatting with a huge width, is a single C operation that cannot be interrupted. A process can
always be killed.
"""

import atexit
import contextlib
import functools
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

from .processor_time import took_elsewhere

MAX_SECONDS = 2.0  # limit of wall-clock time, and default limit of processor time
MAX_MEMORY = 384 << 20  # address space of the process, some 30 MiB of it the interpreter's
MAX_REPLY = 128 << 20  # bytes: a prompt of 16 Mi characters as JSON
START_SECONDS = 20.0  # a start takes 0.1 s; more on a busy machine with a slow disk

# Only our process gets a terminal's Ctrl-C. A session of its own would keep that away, too, but
# Linux shares processors among sessions first (autogroup): there a process steps back for nobody.
APART: dict[str, Any] = (
    {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
)

# By default glibc reserves 64 MiB of addresses for a thread that runs beside another one, even if
# the other is only ending. A module's threads run one after another, so they share one arena here:
# then a process grows only by what it uses.
ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}

_TIME_IS_UP = -getattr(signal, "SIGPROF", -1)
_SERVE = Path(__file__).parent / "children" / "serve.py"


class WorkerMissing(Exception):
    """No process can be started."""

    def sentence(self, wanted: str) -> str:
        """What to tell the user; wanted: "a grammar needs a Python interpreter to be tried in"."""
        return f"{wanted}, but {self}; multiprocessing.set_executable can name one"


class Refused(Exception):
    """A text was refused; the message follows its name, for example "takes more than 2 s"."""

    def __init__(self, words: str, by_limit: bool):
        super().__init__(words)
        self.by_limit = by_limit  # False: the message comes from the module


def python_interpreter() -> str:
    """The Python to start; multiprocessing.set_executable can set it."""
    from multiprocessing import spawn

    found = os.fsdecode(spawn.get_executable() or "")
    # A frozen program would start itself again.
    if not found or getattr(sys, "frozen", False) and found == sys.executable:
        raise WorkerMissing("sys.executable is not a Python interpreter")
    return found


def package_folder(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise WorkerMissing(f"the package {package} is not installed")
    return str(Path(spec.origin).parent.parent)


def step_back(pid: int, niceness: int) -> None:
    """Lets others go before a process of ours, where the system can: so much is added to this
    process's own niceness."""
    if niceness and hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):
            own = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, pid, own + niceness)


class Worker:
    """A process that runs one module of the folder `children`.

    It starts with the first request, keeps running, and is replaced after it has ended. Threads
    take turns. seconds: limit of processor time for a request; wall_seconds: of time. niceness: is
    added to this process's own, so that others go first.
    """

    def __init__(
        self,
        module: str,
        packages: tuple[str, ...],
        seconds: float = MAX_SECONDS,
        wall_seconds: float = MAX_SECONDS,
        niceness: int = 0,
    ):
        self._module, self._packages, self._seconds = module, packages, seconds
        self._wall_seconds, self._niceness = wall_seconds, niceness
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._late = False  # the last request exceeded its time
        atexit.register(self.close)
        if hasattr(
            os, "register_at_fork"
        ):  # the process belongs to the parent; a fork cannot share it
            os.register_at_fork(after_in_child=self._forget)

    def ask(self, **request: Any) -> Any:
        """The result of the module's `answer`. Raises Refused, WorkerMissing, and TypeError or
        ValueError for a request that cannot be JSON."""
        text = json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass")
        if len(text) >> 32:
            raise Refused("is too long", True)
        with self._lock:
            try:
                if self._process is not None and self._process.poll() is not None:
                    self._end()
                if self._process is None:
                    self._start()
                data = struct.pack("<I", len(text)) + text
                reply = self._exchange(data, self._wall_seconds)
                if reply is None or reply["last"] or self._late:
                    code = self._end()
            except BaseException:  # also Ctrl-C: the next request must not get this reply
                self._end(0)
                raise
        took_elsewhere(self._seconds if reply is None else reply["seconds"])
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
        folders = [package_folder(package) for package in self._packages]
        interpreter = python_interpreter()
        limits = (str(MAX_MEMORY), str(self._seconds))
        try:
            # -I -S: imports come only from the packages' folders, whatever the environment says.
            self._process = subprocess.Popen(
                [interpreter, "-I", "-S", str(_SERVE), self._module, *limits, *folders],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env={**os.environ, **ONE_ARENA},
                **APART,
            )
        except (OSError, ValueError) as error:
            raise WorkerMissing(f"{interpreter} does not start: {error}") from None
        if self._exchange(b"", START_SECONDS) != {"value": "ready"}:
            self._end()
            raise WorkerMissing(f"{interpreter} does not start as a Python interpreter")
        step_back(self._process.pid, self._niceness)

    def _exchange(self, data: bytes, seconds: float) -> dict[str, Any] | None:
        """The reply; None if the process ended or was killed before it."""
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
        """Ends the process and returns its exit status.

        patience: seconds to wait for the process to end by itself, for a meaningful status.
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
        """Drops the process in a fork; the parent keeps it."""
        self._lock = threading.Lock()
        process, self._process = self._process, None
        if process is not None:
            process.stdin.close()
            process.stdout.close()
            process.returncode = 0  # do not wait for it


class Workers:
    """Processes of one kind: who asks beside another has one of its own, and waits for nobody. of:
    the arguments of Worker, which says what they are."""

    def __init__(self, *of: Any, **more: Any):
        self._make = functools.partial(Worker, *of, **more)
        self._free: list[Worker] = []  # those that ran last come last

    def ask(self, **request: Any) -> Any:
        """As Worker.ask."""
        try:
            worker = self._free.pop()
        except IndexError:
            worker = self._make()
        try:
            return worker.ask(**request)
        finally:
            self._free.append(worker)

    def close(self) -> None:
        """Ends the processes of those who ask nothing now."""
        for worker in list(self._free):
            worker.close()
