"""What conftest.py and effort.py promise of every run of the tests."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Most of these start pytest several times.
pytestmark = pytest.mark.about(
    *(f"tests/python/{name}.py" for name in ("conftest", "effort", "circles", "passed")),
    "tests/python/test_circles.py",
    "pyproject.toml",
)
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
    shutil.copy(HERE / "passed.py", folder)
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


def test_what_is_over_its_limit(checkout: Path) -> None:
    """CPU-seconds of a test and of its children: a row is named, and the whole circle fails."""
    (checkout / "test_work.py").write_text("""
import subprocess, sys, time
LOOP = "import time\\nwhile time.process_time() < 1: pass"
def test_work(): subprocess.run([sys.executable, "-c", LOOP], check=True)
""")
    effort = checkout / "effort.py"
    effort.write_text(effort.read_text().replace("LEAST = 10.0", "LEAST = 0.1"))

    def recorded(**seconds: float) -> tuple[int, list[str]]:
        known = {f"test_{name}.py": n for name, n in seconds.items()}
        (checkout / "limits.json").write_text(json.dumps({"test": known}))
        status, said = pytest_of(checkout)
        assert said.endswith("2 passed, 0 failed, 0 skipped\n"), said
        return status, re.findall(r"over its limit: (.*): \d CPU-seconds of \d ", said, re.M)

    assert recorded(work=0.2, small=5.0) == (0, ["test_work.py"])
    assert recorded(work=1.0, small=0.1) == (0, [])
    assert recorded(work=0.2, small=0.1) == (1, ["test_work.py", "the circle"])
    # Where the other files take longer than recorded, so may this one.
    assert recorded(work=0.2, small=1e-6, other=50.0)[1] == ["the circle"]
    # A part of the circle is not judged; --record writes what the whole took.
    assert pytest_of(checkout, "tests/python/test_work.py")[0] == 0
    assert pytest_of(checkout, "--record")[0] == 0
    written = json.loads((checkout / "limits.json").read_text())["test"]
    assert 0.9 < written["test_work.py"] < 3 and set(written) == {"test_work.py", "test_small.py"}
    assert pytest_of(checkout)[0] == 0


def test_rows() -> None:
    import effort

    row = effort.row("tests/python/test_native.py::test_program[test_storage]@native")
    assert row == "test_native.py[test_storage]"
    assert effort.row("tests/python/test_native.py::test_tools_compile") == "test_native.py"
    assert effort.row("tests/python/test_chat.py::test_a[b]@test_chat") == "test_chat.py"


def git(checkout: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", *who, *arguments]
    root = checkout.parents[1]
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def committed(checkout: Path) -> str:
    """All files in a commit; its name."""
    (checkout.parents[1] / ".gitignore").write_text("build\n__pycache__\n")
    git(checkout, "init", "-q")
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", "all")
    return git(checkout, "rev-parse", "HEAD")


@pytest.mark.skipif(not shutil.which("git"), reason="no tool to make a repository: git")
def test_what_passed_at_this_commit_is_not_repeated(checkout: Path) -> None:
    """But for tests that do more in a wider circle; and not after a change."""
    (checkout / "circles.py").write_text("")
    (checkout / "helper.py").write_text("def f():\n    import circles\n")
    (checkout / "test_deep.py").write_text("import helper\ndef test_deep(): pass\n")
    (checkout / "test_wrong.py").write_text("def test_wrong(): assert False\n")
    committed(checkout)
    why = "passed in ./run test at this commit"

    def again(*options: str) -> tuple[int, int]:
        """How many are left out for that, and how many pass."""
        _, said = pytest_of(checkout, "-n", "2", *options)
        (n,) = re.findall(r"^(\d+) passed, \d+ failed, \d+ skipped$", said, re.M)
        return left_out(said).get(why, 0), int(n)

    every = again("--all")
    assert every == (0, 3)
    assert again() == (0, 2)
    assert again("--all") == (1, 2)
    assert again("--all", "--record") == every
    (checkout / "limits.json").unlink()
    assert again("--nightly")[0] == 0
    (checkout / "test_deep.py").write_text("import helper\ndef test_deep(): assert True\n")
    assert again("--all") == every
    git(checkout, "commit", "-q", "-a", "-m", "other")
    assert again("--all") == every
    # Part by part.
    assert again("tests/python/test_small.py") == (0, 1)
    assert again("tests/python/test_deep.py") == (0, 1)
    assert again("--all") == (1, 2)


@pytest.mark.skipif(not shutil.which("git"), reason="no tool to make a repository: git")
def test_what_depends_on_few_files(checkout: Path) -> None:
    """It runs where these differ from the commit of .ci/base, or nobody knows."""
    root = checkout.parents[1]
    (checkout / "test_about.py").write_text(
        "import pytest\n@pytest.mark.about('one', 'two')\ndef test_about(): pass\n"
    )
    for folder in ("one", "two", "three"):
        (root / folder).mkdir()
        (root / folder / "file").write_text(folder)
    first = committed(checkout)
    base = root / ".ci" / "base"
    base.parent.mkdir()

    def runs(*options: str) -> bool:
        _, said = pytest_of(checkout, *options, "tests/python/test_about.py")
        out = left_out(said) == {"one, two are as in the commit of .ci/base": 1}
        assert said.endswith(f"{int(not out)} passed, 0 failed, 0 skipped\n")
        return not out

    assert runs()
    for unknown in ("", "0" * 40):
        base.write_text(unknown)
        assert runs()
    base.write_text(first + "\n")
    assert not runs() and not runs("--all") and runs("--nightly")
    assert runs("--all", "--record")
    (root / "three" / "file").write_text("other")
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", "other")
    assert not runs("--all")
    (root / "two" / "new").write_text("")
    assert runs()
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", "new")
    assert runs("--all")
    base.write_text(git(checkout, "rev-parse", "HEAD"))
    assert not runs()
    git(checkout, "reset", "-q", "--hard", first)  # that commit is no ancestor now
    base.parent.mkdir(exist_ok=True)
    base.write_text(git(checkout, "rev-parse", "HEAD@{1}"))
    assert runs()


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
