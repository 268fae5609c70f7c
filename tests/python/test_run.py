"""./run, convert.py and .ci/bare: how a clone is set up, and what it needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# What stands for this project: a package that installs in a second, without a compiler.
BACKEND = '''
import zipfile

INFO = "powerinfer_cpp-1.dist-info"
FILES = {
    "powerinfer_cpp/__init__.py": """
from pathlib import Path

def main_path():
    return Path(__file__).resolve().with_name("main.sh")

def main():
    print("installed", Path(__file__).resolve())
""",
    "powerinfer_cpp/main.sh": "#!/bin/sh\\necho main \\"$@\\"\\n",
    f"{INFO}/METADATA": "Metadata-Version: 2.1\\nName: powerinfer_cpp\\nVersion: 1\\n",
    f"{INFO}/WHEEL": "Wheel-Version: 1.0\\nTag: py3-none-any\\nRoot-Is-Purelib: true\\n",
    f"{INFO}/entry_points.txt": "[console_scripts]\\npowerinfer = powerinfer_cpp:main\\n",
    f"{INFO}/RECORD": "",
}

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "powerinfer_cpp-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        for path, text in FILES.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = 0o100755 << 16
            wheel.writestr(entry, text)
    return name
'''
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


def outcome(*command: object, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    if env is None:  # without what would hide where a program finds its package
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=env)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def clone(root: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "a clone"
    for name in ("ggml", "powerinfer_cpp", "python", "build/cpu"):
        (folder / name).mkdir(parents=True)
    (folder / "CMakeLists.txt").touch()
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "backend.py").write_text(BACKEND)
    shutil.copy(root / "run", folder)
    cache = folder / "build" / "cpu" / "CMakeCache.txt"
    cache.write_text(f"CMAKE_CACHEFILE_DIR:INTERNAL={cache.parent}\n")
    return folder


def state(folder: Path) -> dict[str, tuple[float, str]]:
    """The time of each file, and the target of each link."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mtime,
            os.readlink(path) if path.is_symlink() else "",
        )
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


def works(folder: Path) -> str:
    """Runs the program that ./run installs; returns its output."""
    status, out, err = outcome(folder / "run", "-n", "3")
    assert (status, out) == (0, "main -n 3\n"), err
    assert (folder / "main").resolve().is_relative_to(folder)
    status, out, err = outcome(folder / "powerinfer")
    assert status == 0, err
    assert out.startswith(f"installed {folder}/.venv/")
    return err


@pytest.mark.slow
def test_a_clone_that_is_copied_and_moved(clone: Path) -> None:
    first = outcome(clone / "run", "-n", "1")
    assert first[:2] == (0, "main -n 1\n") and "building" in first[2]
    before = state(clone)
    assert outcome(clone / "run") == (0, "main -n 200 -p Once upon a time\n", "")
    assert state(clone) == before and "build/cpu/CMakeCache.txt" in before

    copied = clone.with_name("copied")
    shutil.copytree(clone, copied, symlinks=True)
    works(copied)
    assert state(clone) == before
    assert not (copied / "build" / "cpu").exists()  # CMake would refuse it

    moved = clone.rename(clone.with_name("moved"))
    works(moved)
    assert not clone.exists()

    (moved / "main").unlink()
    (moved / "powerinfer").unlink()
    works(moved)

    for python in (moved / ".venv" / "bin").glob("python*"):  # as after an upgrade of the system
        python.unlink()
        python.symlink_to("/nowhere/python3")
    works(moved)


def tools(folder: Path, *names: str) -> dict[str, str]:
    """An environment with only these programs."""
    folder.mkdir()
    for name in names:
        found = shutil.which(name)
        assert found, name
        (folder / name).write_text(f'#!/bin/sh\nexec "{found}" "$@"\n')
        (folder / name).chmod(0o755)
    return {"PATH": str(folder), "HOME": str(folder)}


def test_without_a_compiler(clone: Path, tmp_path: Path) -> None:
    environment = tools(tmp_path / "bin", "dirname", "sed", "find", "rm", "cat", "readlink", "ln")
    before = state(clone)
    bash = shutil.which("bash")
    status, out, err = outcome(bash, clone / "run", env=environment)
    assert (status, out) == (1, "") and state(clone) == before
    assert err == (
        "run: error: there is no C++ compiler (c++ g++ clang++): install g++, for example\n"
    )
    (tmp_path / "bin" / "g++").symlink_to("/bin/true")
    status, out, err = outcome(bash, clone / "run", env=environment)
    assert (status, out) == (1, "") and err.startswith("run: error: there is no python3")
    environment["CXX"] = "icpx -O2"
    assert "(icpx)" in outcome(bash, clone / "run", env=environment)[2]
    assert state(clone) == before


def test_convert_py_finds_the_environment(root: Path, tmp_path: Path) -> None:
    shutil.copy(root / "convert.py", tmp_path)
    # No site-packages, no PYTHONPATH: where powerinfer_cpp is not.
    line = [sys.executable, "-I", "-S", tmp_path / "convert.py", "a b", "--dense"]
    assert outcome(*line) == (
        1,
        "",
        "convert.py: error: powerinfer_cpp is not installed: run ./run here first\n",
    )
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nprintf "%s|" "$@"\nexit 3\n')
    python.chmod(0o755)
    assert outcome(*line) == (3, f"{tmp_path}/convert.py|a b|--dense|", "")


def test_nothing_helps_the_tests_of_ci(root: Path, tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "CI": "1",
        "https_proxy": "",
        "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"),
        "PIP_TIMEOUT": "7",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": "/nowhere",
        "CXX": "clang++",
    }
    status, out, err = outcome(root / ".ci" / "bare", "env", env=environment)
    assert status == 0, err
    found = dict(line.split("=", 1) for line in out.splitlines())
    kept = {name: environment[name] for name in list(environment)[:6]}
    assert {name: value for name, value in found.items() if name != "_"} == kept
    (tmp_path / "pip.conf").write_text("[global]\nretries = 3\n")
    line = [root / ".ci" / "bare", sys.executable, "-m", "pip", "config", "list"]
    status, out, err = outcome(*line, env=environment)
    assert status == 0, err
    assert "retries='3'" in out and "timeout='7'" in out
    assert ".ci/bare ./run test --all" in (root / ".ci" / "run").read_text()
