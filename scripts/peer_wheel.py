"""Compiles llama-cpp-python, with which `./run test --nightly` compares, and keeps its wheel.

    python3 scripts/peer_wheel.py

stdout: the path of the wheel. stderr: what happens, and errors. A wheel is made once for a
version, system and set of options, in ${XDG_CACHE_HOME:-~/.cache}/powerinfer_cpp/peers/; every
checkout finds it there. Needs a C++ compiler, and pip in the Python that runs this.

Only the library is compiled, without much optimising: the models of the tests are tiny. That is a
third of what pip would compile by itself. GGML_NATIVE is off, so that a wheel gives the same bits
on all processors it runs on; its AMX code crashes on some virtual machines, besides.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
OPTIONS = (
    "-DLLAVA_BUILD=OFF",
    "-DLLAMA_ALL_WARNINGS=OFF",
    "-DGGML_NATIVE=OFF",
    "-DGGML_LLAMAFILE=OFF",  # templates that take a minute
    "-DCMAKE_C_FLAGS_RELEASE=-O1 -DNDEBUG",
    "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",
)
# CMake reads this behind the package's `project`. Its own line afterwards, set(... ON CACHE FORCE),
# does not change the variable.
INCLUDED = "set(LLAMA_BUILD_COMMON OFF)\n"
# What GGML_NATIVE=OFF takes for granted on x86, by its name in /proc/cpuinfo.
FEATURES = {"sse4_2": "SSE42", "avx": "AVX", "avx2": "AVX2", "bmi2": "BMI2", "fma": "FMA"}
FEATURES |= {"f16c": "F16C"}


def options() -> list[str]:
    """CMake's options on this processor."""
    with contextlib.suppress(OSError):
        if found := re.search(r"^flags\s*:(.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            have = found[1].split()
            return [*OPTIONS, *(f"-DGGML_{FEATURES[f]}=OFF" for f in FEATURES if f not in have)]
    return list(OPTIONS)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Waits for another process that makes a wheel in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make(work: Path, given: list[str]) -> Path:
    """Compiles in the empty folder `work`; returns the wheel there."""
    included = work / "options.cmake"
    included.write_text(INCLUDED)
    env = os.environ | {
        "CMAKE_ARGS": shlex.join([*given, f"-DCMAKE_PROJECT_INCLUDE={included}"]),
        "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1),
        "TMPDIR": str(work),
    }
    # pip's own cache would give a wheel that was compiled with other options.
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-cache-dir", "--no-binary", PACKAGE, "--wheel-dir", str(work)]
    command.append(f"{PACKAGE}=={VERSION}")
    pip = subprocess.Popen(command, env=env, stdout=sys.stderr, start_new_session=True)
    try:
        status = pip.wait()
    except BaseException:
        os.killpg(pip.pid, signal.SIGTERM)  # and ninja, which ends the compilers
        pip.wait()
        raise
    if status:
        raise SystemExit(f"peer_wheel: error: {PACKAGE} {VERSION} could not be compiled")
    (wheel,) = work.glob("*.whl")
    return wheel


def main() -> None:
    # Removes what is half made when the terminal closes or a job is ended, too.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    peers, given = cache / "powerinfer_cpp" / "peers", options()
    system = f"{sysconfig.get_platform()}-{''.join(platform.libc_ver())}"
    key = hashlib.sha256("\n".join([*given, INCLUDED]).encode()).hexdigest()[:8]
    folder = peers / f"{PACKAGE}-{VERSION}-{system}-{key}"
    with alone(peers):
        if not folder.exists():
            print(f"peer_wheel: compiling {PACKAGE} {VERSION} (minutes)", file=sys.stderr)
            for left in peers.glob("making-*"):  # by a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            work = Path(tempfile.mkdtemp(prefix="making-", dir=peers))
            try:
                made = make(work, given)
                (work / "whole").mkdir()
                made.rename(work / "whole" / made.name)
                (work / "whole").rename(folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
        (wheel,) = folder.glob("*.whl")
    print(wheel)


if __name__ == "__main__":
    main()
