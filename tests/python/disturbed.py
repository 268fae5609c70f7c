"""Runs a command of powerinfer and disturbs it at a chosen step, for tests of kills and full disks.

python disturbed.py FOLDER LOG HARM STEP COMMAND ...

A step is a file below FOLDER opened for writing, renamed or removed, or a folder made or removed,
as Python's auditing reports them just before they happen. Steps are counted from 0 and written to
LOG as lines. When step STEP is due comes the HARM:

kill  SIGKILL
cut   death at the first byte beyond CUT of a file: amidst writing, with no time for anything
full  from now on no file can grow beyond CUT, and the process is told so (EFBIG)
fill  the disk of FOLDER is filled (ENOSPC)
none  nothing
"""

from __future__ import annotations

import os
import re
import resource
import runpy
import signal
import sys
from typing import Any

CUT = 300  # bytes; less than anything that is written in one go, headers of GGUF files included
_WRITES = os.O_WRONLY | os.O_RDWR
_HEX = re.compile(r"\.[0-9a-f]{8}\.part$")  # of names that differ from run to run
_CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir")


def main(folder: str, log: str, harm: str, at: int, command: list[str]) -> int:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    lines, n = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 0

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (CUT, resource.RLIM_INFINITY))

    def harmed() -> None:
        if harm == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif harm == "cut":
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            limit()
        elif harm == "full":
            limit()
        elif harm == "fill":
            with open(os.path.join(os.path.dirname(folder), "filler"), "wb", buffering=0) as file:
                for size in (1 << 16, 1 << 12, 1):
                    try:
                        while file.write(bytes(size)):
                            pass
                    except OSError:
                        continue

    def watch(event: str, args: tuple[Any, ...]) -> None:
        nonlocal n
        if event == "open":
            if isinstance(args[0], int) or not args[2] & _WRITES:
                return
        elif event not in _CHANGES:
            return
        path = os.fsdecode(args[0])
        # shutil.rmtree names files relative to a folder that it holds open.
        if not path.startswith(folder) and os.path.isabs(path):
            return
        if n <= at or at < 0:  # later the log itself might be what cannot grow
            name = _HEX.sub(".part", os.path.relpath(path, folder))
            os.write(lines, f"{event} {name}\n".encode())
        n += 1
        if n - 1 == at:
            harmed()

    # Whatever would be saved only now and then is saved every time.
    from powerinfer_cpp.profile import state

    state._SECONDS = 0.0
    sys.addaudithook(watch)
    if command[0].endswith(".py"):
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")
        return 0
    from powerinfer_cpp.cli import main as powerinfer

    return powerinfer(command)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4], int(sys.argv[4]), sys.argv[5:]))
