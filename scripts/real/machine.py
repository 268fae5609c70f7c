"""What the machine itself can do, each in a process of its own, as the engines are.

machine.py read THREADS: a plain read of memory. machine.py copy FILE THREADS: the bytes of a file,
from the page cache into fresh memory. machine.py first PROGRAM ...: from the start of a program to
the first byte that it prints. All print seconds as JSON. The clock is in here, so that a command
that waits for its turn before it starts one of these is not counted.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CHUNK = 4 << 20


def read(threads: int) -> dict[str, float]:
    """The read that `powerinfer doctor` measures, of as many bytes."""
    from powerinfer_cpp._native import lib
    from powerinfer_cpp.cli.doctor import read_bandwidth

    n_bytes = max(1 << 24, min(1 << 30, lib.pi_available_memory() // 2))
    return {"bytes": n_bytes, "s": n_bytes / read_bandwidth(n_bytes, threads)}


def copy(path: Path, threads: int) -> dict[str, float]:
    """A copy by `threads` threads. The file is read once before, so that the cache has it."""
    size = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        scratch = bytearray(CHUNK)
        while file.readinto(scratch):
            pass
        start = time.perf_counter()
        with mmap.mmap(-1, size) as memory, memoryview(memory) as into:

            def part(first: int) -> None:
                at, end = first, min(first + CHUNK, size)
                while at < end:
                    done = os.preadv(file.fileno(), [into[at:end]], at)
                    if not done:
                        raise OSError(f"{path}: became shorter")
                    at += done

            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(part, range(0, size, CHUNK)))
            seconds = time.perf_counter() - start
    return {"bytes": size, "s": seconds}


def first(command: list[str]) -> dict[str, float]:
    """Until the first byte on stdout. Exits as the program does if it fails."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        byte = os.read(program.stdout.fileno(), 1)
        seconds = time.perf_counter() - start
        program.stdout.read()
    if program.returncode or not byte:
        sys.exit(program.returncode or "it ended without a word on stdout")
    return {"s": seconds}


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "first":
        found = first(rest)
    elif what == "copy":
        found = copy(Path(rest[0]), int(rest[1]))
    else:
        found = read(int(rest[0]))
    print(json.dumps(found))
