"""What conftest.py and effort.py promise of every run of the tests."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = """
import ctypes, subprocess, sys, time
import pytest

ALONE = True

def test_passes(): pass

@pytest.mark.slow
def test_slow(): pass

@pytest.mark.nightly
def test_nightly(): pass

@pytest.mark.peer("no_such_module")
def test_peer(): pass

@pytest.mark.peer("llama_cpp")
def test_peer_of_the_night(): pass

@pytest.mark.slow
def test_needless(): pytest.skip("in a hurry")

@pytest.mark.slow
def test_hardware(): pytest.skip("this machine has no GPU")
"""


@pytest.fixture
def checkout(root: Path, tmp_path: Path) -> Path:
    """A project with nothing but these tests."""
    folder = tmp_path / "tests" / "python"
    folder.mkdir(parents=True)
    shutil.copy(root / "pyproject.toml", tmp_path)
    shutil.copy(HERE / "effort.py", folder)
    text = (HERE / "conftest.py").read_text()
    assert "\nGRACE = 30" in text
    (folder / "conftest.py").write_text(text.replace("\nGRACE = 30", "\nGRACE = 1"))
    (folder / "test_small.py").write_text(TESTS)
    return folder


def pytest_of(checkout: Path, *options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    done = subprocess.run(
        command, cwd=checkout.parents[1], capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


def left_out(said: str) -> dict[str, int]:
    """Tests that were left out, by reason."""
    found = re.findall(r"^left out, (\d+) tests \((.*?)\): ", said, re.M)
    return {why: int(n) for n, why in found}


@pytest.mark.parametrize("processes", ["0", "2"])
def test_circles_say_what_they_leave_out(checkout: Path, processes: str) -> None:
    missing = "compares with no_such_module, which is not installed"
    slow, nightly = "slow; ./run test --all runs it", "./run test --nightly runs it"
    status, said = pytest_of(checkout, "-n", processes)
    assert status == 0 and said.endswith("1 passed, 0 failed, 0 skipped\n"), said
    assert left_out(said) == {slow: 3, nightly: 2, missing: 1}

    # A peer that --all installs, and a skip for another reason than hardware, are failures.
    status, said = pytest_of(checkout, "-n", processes, "--all")
    assert status == 1 and said.endswith("2 passed, 0 failed, 2 skipped\n"), said
    assert left_out(said) == {nightly: 2, missing: 1}
    assert "left out without need, a peer is missing: tests/python/test_small.py::test_peer" in said
    assert re.findall(r"skipped without need: \S+::(\w+)", said) == ["test_needless"]


def test_what_hangs_is_stopped_and_named(checkout: Path) -> None:
    """In Python, in a child, and in native code that keeps the GIL."""
    source = checkout / "spin.c"
    source.write_text("void spin(void) { for (volatile int n = 1; n;) {} }")
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", source.with_suffix(".so")], check=True)
    (checkout / "test_hangs.py").write_text(f"""
import ctypes, subprocess, time
import pytest

ALONE = True
pytestmark = pytest.mark.timeout(1)

def test_python(): time.sleep(1000)
def test_child(): subprocess.run(["sleep", "1000"])
def test_native(): ctypes.PyDLL({str(source.with_suffix(".so"))!r}).spin()
""")
    status, said = pytest_of(checkout, "-n", "2", "tests/python/test_hangs.py")
    assert status == 1, said
    assert set(re.findall(r"^FAILED \S+::(\w+)", said, re.M)) == {
        "test_python",
        "test_child",
        "test_native",
    }


def test_a_file_stays_in_one_process(checkout: Path) -> None:
    """So its fixtures are made once; tests with a common mark xdist_group stay together, too."""
    for i in range(4):
        (checkout / f"test_file{i}.py").write_text(f"""
import os, pathlib, time
import pytest

@pytest.mark.parametrize("i", range(10))
def test_here(i):
    time.sleep(0.01)
    with pathlib.Path("seen.txt").open("a") as seen:
        seen.write(f"file{i} {{os.getpid()}}\\n")

@pytest.mark.xdist_group("timed")
def test_together():
    with pathlib.Path("seen.txt").open("a") as seen:
        seen.write(f"timed {{os.getpid()}}\\n")
""")
    status, said = pytest_of(checkout, "-n", "3")
    assert status == 0, said
    lines = (checkout.parents[1] / "seen.txt").read_text().splitlines()
    assert len(lines) == 44
    pairs = {tuple(line.split()) for line in lines}
    assert len(pairs) == len({name for name, _ in pairs}) == 5
    assert len({pid for _, pid in pairs}) > 1


def test_what_is_over_its_limit_fails(checkout: Path) -> None:
    """CPU-seconds of a test and of its children."""
    (checkout / "test_work.py").write_text("""
import subprocess, sys, time
LOOP = "import time\\nwhile time.process_time() < 1: pass"
def test_work(): subprocess.run([sys.executable, "-c", LOOP], check=True)
""")
    (checkout / "limits.json").write_text(json.dumps({"test": {"test_work.py": 0.2}}))
    effort = checkout / "effort.py"
    effort.write_text(effort.read_text().replace("LEAST = 10.0", "LEAST = 0.1"))
    status, said = pytest_of(checkout)
    assert status == 1 and said.endswith("2 passed, 0 failed, 0 skipped\n"), said
    assert "over its limit: test_work.py: 1 CPU-seconds of 0 (limits.json)" in said
    assert re.search(r"^test_work.py +1\.\d +0 ", said, re.M), said
    # Where the other files take longer than recorded, so may this one.
    (checkout / "limits.json").write_text(
        json.dumps({"test": {"test_work.py": 0.2, "test_small.py": 1e-6, "test_other.py": 50.0}})
    )
    assert pytest_of(checkout)[0] == 0
    # A part of the circle is not judged; --record writes what the whole took.
    assert pytest_of(checkout, "tests/python/test_work.py")[0] == 0
    assert pytest_of(checkout, "--record")[0] == 0
    written = json.loads((checkout / "limits.json").read_text())["test"]
    assert 0.9 < written["test_work.py"] < 3 and set(written) == {"test_work.py", "test_small.py"}
    assert pytest_of(checkout)[0] == 0


def test_a_record_has_all_thirds(checkout: Path) -> None:
    """Else what a cheap third took would be the limit of the others."""
    shutil.copy(HERE / "circles.py", checkout)
    (checkout / "test_thirds.py").write_text("""
import circles, pytest
circles._commits = lambda: 1
@pytest.mark.parametrize("i", circles.third(range(9)))
def test_case(i): pass
""")
    for options, n in (["--all"], 3), (["--all", "--record"], 9), (["--nightly"], 9):
        status, said = pytest_of(checkout, *options, "tests/python/test_thirds.py")
        assert status == 0 and said.endswith(f"{n} passed, 0 failed, 0 skipped\n"), said


def test_what_several_files_use_is_counted_apart(checkout: Path) -> None:
    (checkout / "test_work.py").write_text("""
import sys
from effort import shared_work
LOOP = "import sys, time\\nwhile time.process_time() < 1: pass\\nprint('done', file=sys.stderr)"
def test_work():
    done = shared_work([sys.executable, "-c", LOOP])
    assert (done.returncode, done.stdout) == (0, "done\\n")
""")
    status, said = pytest_of(checkout, "-n", "2")
    assert status == 0 and re.search(r"^builds +1\.\d +10 ", said, re.M), said
    assert re.search(r"^test_work.py +0\.\d +10 ", said, re.M), said
