"""scripts/peer_wheel.py, with a pip that compiles nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PIP = """
import os, pathlib, sys, time
if "slow" in os.environ.get("PEER", ""):
    pathlib.Path(os.environ["TMPDIR"], "half.whl").touch()
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.01)
if "fails" in os.environ.get("PEER", ""):
    sys.exit(1)
assert "-DGGML_NATIVE=OFF" in os.environ["CMAKE_ARGS"] and "--no-cache-dir" in sys.argv
folder = pathlib.Path(sys.argv[sys.argv.index("--wheel-dir") + 1])
(folder / "llama_cpp_python-1-py3-none-any.whl").write_text("made")
print("to stdout")
"""


@pytest.fixture
def start(tmp_path: Path, root: Path):
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()
    (tmp_path / "pip" / "__main__.py").write_text(PIP)
    script = [sys.executable, str(root / "scripts" / "peer_wheel.py")]
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def start(peer: str = "") -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(script, env={**env, "PEER": peer}, **pipes)

    return start


def test_a_wheel_is_made_once(start, tmp_path: Path) -> None:
    both = [start(), start()]  # one waits for the other
    said = [process.communicate(timeout=60) for process in both]
    assert sorted("compiling" in errors for _, errors in said) == [False, True]
    (path,) = {out for out, _ in said}
    wheel = Path(path.removesuffix("\n"))
    assert wheel.read_text() == "made" and wheel.is_relative_to(tmp_path / "cache")
    assert start("fails").communicate(timeout=60) == (path, "")


def test_nothing_half_made_stays(start, tmp_path: Path) -> None:
    process = start("fails")
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and out == "" and "could not be compiled" in errors
    peers = tmp_path / "cache" / "powerinfer_cpp" / "peers"
    assert [path.name for path in peers.iterdir()] == ["lock"]
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = start("slow")
        while not list(peers.glob("making-*/half.whl")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        assert process.communicate(timeout=60)[0] == ""
        assert number == signal.SIGKILL or [path.name for path in peers.iterdir()] == ["lock"]
    out, _ = start().communicate(timeout=60)  # after one that was killed
    assert Path(out.strip()).read_text() == "made" and not list(peers.glob("making-*"))
