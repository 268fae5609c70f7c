"""The process that handles untrusted texts; worker.py starts it and communicates with it.

Arguments: a module of this folder, bytes of memory, seconds of processor time per request, and the
folders of the packages that the module needs. Requests come on stdin as frames: a length of four
bytes, then JSON with the keywords of the module's `answer`. The answer to each is a frame. A
request that takes too long ends the process, and so does the end of the input.

It imports only the standard library: importing powerinfer_cpp would take longer than the start.
"""

import importlib
import json
import os
import signal
import struct
import sys
import time
from typing import Any

GROWTH = 128 << 20  # bytes of growth after which the process is replaced


class Refused(Exception):
    """A one-sentence error for the caller."""


def read_exactly(source: int, n: int) -> bytes:
    """n bytes; fewer at the end of the input."""
    data = bytearray()
    while len(data) < n and (part := os.read(source, min(n - len(data), 1 << 20))):
        data += part
    return bytes(data)


def write_all(sink: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sink, view) :]


def frame(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return struct.pack("<I", len(text)) + text


def limit_memory(most: int, alone: bool = False) -> None:
    """Limits the memory, and forbids to write files, if the platform supports it; elsewhere only
    time is limited. alone: forbids threads and processes, too, to all users but root."""
    try:
        import resource
    except ImportError:
        return
    limits = {"RLIMIT_AS": most, "RLIMIT_CORE": 0, "RLIMIT_FSIZE": 0}
    if alone:
        limits["RLIMIT_NPROC"] = 0
    for name, limit in limits.items():
        try:
            resource.setrlimit(getattr(resource, name), (limit, limit))
        except (AttributeError, ValueError, OSError):
            continue


def limit_time(seconds: float) -> None:
    """Ends the process after that much processor time; 0: never. The system enforces this, so it
    also works while C code holds the interpreter, or if the caller is dead."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def size() -> int:
    """Bytes of address space; 0 if unknown."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def grown(begin: int) -> bool:
    """Is it too much larger? A thread that has just ended may have its stack for a moment still."""
    for _ in range(5):
        if size() - begin <= GROWTH:
            return False
        time.sleep(0.001)
    return True


def _answer(module: Any, data: bytes) -> dict[str, Any]:
    try:
        return {"value": module.answer(**json.loads(data.decode("utf-8", "surrogatepass")))}
    except Refused as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"refused": "needs too much memory", "by": "limit"}
    except RecursionError:
        return {"refused": "is nested too deeply", "by": "limit"}


def main(name: str, memory: str, seconds: str, *folders: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C and closes us
    sys.path += [os.path.dirname(os.path.abspath(__file__)), *folders]
    sys.modules["serve"] = sys.modules["__main__"]  # a single class Refused for all importers
    source, sink, nothing = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):  # output that a package prints is not an answer
        os.dup2(nothing, number)
    module = importlib.import_module(name)
    limit_memory(int(memory), getattr(module, "ALONE", False))
    write_all(sink, frame({"value": "ready"}))
    begin = size()
    while len(head := read_exactly(source, 4)) == 4:
        (n,) = struct.unpack("<I", head)
        data = read_exactly(source, n)
        if len(data) < n:
            return
        limit_time(float(seconds))
        took = -time.process_time()
        reply = _answer(module, data)
        del data
        reply["seconds"] = took + time.process_time()
        reply["last"] = grown(begin)
        write_all(sink, frame(reply))
        limit_time(0)
        if reply["last"]:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
