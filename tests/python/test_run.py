"""./run, convert.py and .ci/bare: how a clone is set up, and what it needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# What stands for this project: a package that installs in a second, without a compiler.
BACKEND = '''
import os
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
    options = os.environ.get("CMAKE_ARGS", "").strip()
    with open("options", "a") as file:
        print(options, file=file)
    if "GGML_CUDA=ON" in options and os.path.exists("cuda_fails"):
        raise SystemExit("nvcc: no")
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
    for name in ("cmake", "ggml", "powerinfer_cpp", "python", "tests", "build/cpu"):
        (folder / name).mkdir(parents=True)
    (folder / "CMakeLists.txt").touch()
    (folder / "tests" / "CMakeLists.txt").touch()
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "backend.py").write_text(BACKEND)
    shutil.copy(root / "run", folder)
    (folder / "scripts").mkdir()
    shutil.copy(root / "scripts" / "find_cuda.py", folder / "scripts")
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
    assert not (copied / "build" / "cpu" / "CMakeCache.txt").exists()  # CMake would refuse it

    moved = clone.rename(clone.with_name("moved"))
    works(moved)
    assert not clone.exists()

    stamp = moved / ".venv" / "installed-serve"  # as from another processor
    stamp.write_text(re.sub("(?m)(flags|Features).*", r"\1 : fpu", stamp.read_text()))
    assert "building" in outcome(moved / "run", "-n", "3")[2]
    assert outcome(moved / "run", "-n", "3") == (0, "main -n 3\n", "")

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


def fake(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


SMI = """case "$*" in
-L) echo 'GPU 0: NVIDIA Test 40 (UUID: GPU-1)' ;;
*compute_cap*) echo 'name, compute_cap, driver_version'; echo 'NVIDIA Test 40, 8.9, 580.65.06' ;;
*) exit 9 ;;
esac"""
NVCC = """case "$1" in
--version) echo 'Cuda compilation tools, release 13.0, V13.0.88' ;;
--list-gpu-arch) echo compute_75; echo compute_89 ;;
*) exit 1 ;;
esac"""


@pytest.mark.slow
def test_a_machine_with_a_gpu(clone: Path, tmp_path: Path) -> None:
    bin_folder = tmp_path / "bin"
    fake(bin_folder, "nvidia-smi", SMI)
    fake(bin_folder, "nvcc", NVCC)
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for name in ("CUDACXX", "CUDA_HOME", "CUDA_PATH", "CMAKE_ARGS", "PI_CUDA"):
        plain.pop(name, None)
    gpu = {**plain, "PATH": f"{bin_folder}:{plain['PATH']}"}
    options = f"-DGGML_CUDA=ON -DCMAKE_CUDA_COMPILER={bin_folder}/nvcc "
    options += "-DCMAKE_CUDA_ARCHITECTURES=89-real"
    found = "run: found NVIDIA Test 40 (compute capability 8.9): building with CUDA by nvcc 13.0"

    def run(**variables: str) -> tuple[int, list[str], str]:
        """Exit status, CMake's options of each build, and what was said."""
        (clone / "options").unlink(missing_ok=True)
        status, out, err = outcome(clone / "run", "-n", "1", env={**gpu, **variables})
        assert out == ("" if status else "main -n 1\n"), err
        built = clone / "options"
        return status, built.read_text().splitlines() if built.exists() else [], err

    status, built, said = run()
    assert (status, built) == (0, [options]) and f"{found} in {bin_folder}\n" in said
    assert run() == (0, [], "")  # a second call installs nothing

    assert run(PI_CUDA="0")[:2] == (0, [""])
    status, built, said = run(PI_CUDA="0", CMAKE_ARGS="-DX=1")
    assert (status, built, said) == (0, [], "")
    assert run(PI_CUDA="2")[0] == 1 and "PI_CUDA must be 0 or 1, not 2" in run(PI_CUDA="2")[2]

    (clone / "cuda_fails").touch()
    status, built, said = run()
    assert (status, built) == (0, [options, ""]) and found in said
    assert "run: the build with CUDA failed: building for the CPU alone\n" in said
    assert run() == (0, [], "")  # it is not tried again
    status, built, said = run(PI_CUDA="1", CMAKE_ARGS="-DX=1")
    assert (status, built) == (1, [f"{options} -DX=1"])
    assert said.endswith("run: error: the build with CUDA failed\n")

    (clone / "CMakeLists.txt").touch()
    assert run(CMAKE_ARGS="-DGGML_CUDA=OFF")[:2] == (0, ["-DGGML_CUDA=OFF"])
    (clone / "cuda_fails").unlink()
    fake(bin_folder, "nvidia-smi", SMI.replace("8.9", "6.1"))
    (clone / "CMakeLists.txt").touch()
    status, built, said = run()
    assert (status, built) == (0, [""])
    assert "6.1), but 7.5 is the least compute capability\nrun: building for the CPU alone" in said
    assert run(PI_CUDA="1")[0] == 1
    if not Path("/proc/driver/nvidia/version").exists():
        (bin_folder / "nvidia-smi").unlink()
        status, built, said = run()
        assert (status, built) == (0, [""]) and "CUDA" not in said and "CPU" not in said


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
    lines = (root / ".ci" / "run").read_text().splitlines()
    runs = [line for line in lines if "./run" in line and not line.startswith("#")]
    assert runs == [f"part ./run{what}" for what in (" -n 20", " test", " test --all")]
    assert [line for line in lines if "$@" in line] == ['    time "$bare" "$@"']
