"""The end of a Python process while its daemon threads compute."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tiny

# The interpreter is ending while `Late` is deleted: from then on it ends a thread that asks for the
# GIL, as a callback does.
CODE = """
import logging, sys, threading, time
from powerinfer_cpp import Llama, bundle
path, begun = sys.argv[1], threading.Event()
class Late:
    def __del__(self, sleep=time.sleep):
        sleep(0.3)
class Slow(logging.Handler):
    def emit(self, record):
        begun.set()
        time.sleep(0.05)
logging.getLogger("powerinfer_cpp").setLevel("DEBUG")
def slow(fraction):
    begun.set()
    time.sleep(0.05)
def load():
    while True:
        Llama(path, n_ctx=32, verbose=False, progress_callback=slow)
def log():
    logging.getLogger("powerinfer_cpp").addHandler(Slow())
    while True:
        Llama(path, n_ctx=300, verbose=False)
def compute():
    with Llama(path, n_ctx=250, n_threads=1, verbose=False) as llm:
        while True:
            begun.set()
            llm("the", max_tokens=240, seed=1)
threading.Thread(target={work}, daemon=True).start()
begun.wait()
late = Late()
"""


@pytest.mark.parametrize("work", ["load", "log", "compute"])
def test_callbacks_while_the_interpreter_ends(work: str, tmp_path: Path) -> None:
    line = [sys.executable, "-c", CODE.replace("{work}", work), tiny.make(tmp_path)]
    done = subprocess.run(line, capture_output=True, errors="replace", timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
