"""scripts/wheels.py and check_wheel.py: a wheel in an environment without compilers, and wheels
that must not be published."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import check_wheel  # noqa: E402

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]
X86, ARM = "manylinux_2_28_x86_64", "manylinux_2_28_aarch64"
MODULE, PROGRAM = "powerinfer_cpp/_native.abi3.so", "powerinfer_cpp/bin/main"
STORY = ("-n", "24", "--temp", "0", "-t", "1", "-p", "Once upon a time")
# A module that is all that a wheel's must be, and what a program needs.
C_MODULE = """
long USED(long);
void *PyLong_FromLong(long value);
__attribute__((visibility("default"))) void *PyInit__native(void) {
    return PyLong_FromLong(USED(0));
}
"""
C_PROGRAM = """
#include <math.h>
int main(int n, char **v) { return (int)exp(n); }
"""


def zig() -> list[str]:
    for module in ("lief", "abi3info"):
        if not importlib.util.find_spec(module):
            pytest.skip(f"no tool to check wheels: {module}")
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang"]
    if not (found := shutil.which("zig")):
        pytest.skip("no tool to build wheels: ziglang")
    return [found]


def run(*command: object, **more: object) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=600, **more
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def test_a_wheel_in_an_environment_without_compilers(
    main_path: Path, model_path: Path, tmp_path: Path
) -> None:
    zig()
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        pytest.skip("no tool to run what is built for Linux on x86-64")
    line = (ROOT / "scripts" / "wheels.py", X86, "--quick", "--out", tmp_path)
    said = run(sys.executable, *line)
    (wheel,) = tmp_path.glob("*.whl")
    assert str(wheel) in said and check_wheel.check(wheel) == []

    run(sys.executable, "-m", "venv", tmp_path / "venv")
    programs = tmp_path / "venv" / "bin"
    # pip keeps to this machine's settings; there are no compilers, and nothing of this checkout.
    bare = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    bare |= {"HOME": str(tmp_path), "PATH": str(programs)}
    run(programs / "pip", "install", "-q", "--only-binary=:all:", wheel, env=bare)
    script = (
        "import sys, powerinfer_cpp as p; print(p.__file__); print(p.main_path());"
        "llm = p.Llama(sys.argv[1], n_ctx=64, n_threads=1, verbose=False);"
        "print(llm('Once upon a time', max_tokens=24, temperature=0)['choices'][0]['text'])"
    )
    there = run(programs / "python", "-c", script, model_path, env=bare, cwd=tmp_path)
    package, program, text = there.split("\n", 2)
    assert Path(package).is_relative_to(tmp_path) and Path(program).is_relative_to(tmp_path)
    story = run(main_path, "-m", model_path, *STORY)
    assert run(program, "-m", model_path, *STORY, env=bare) == story
    assert "Once upon a time" + text.rstrip("\n") == story.rstrip("\n")
    report = run(programs / "powerinfer", "doctor", "--no-bandwidth", env=bare, cwd=tmp_path)
    assert report.startswith("powerinfer_cpp") and "kernels" in report
    # Where it was built is nobody's business, and main does not look there.
    lost = subprocess.run([program, "-n", "1"], cwd=tmp_path, capture_output=True, text=True)
    assert lost.returncode == 1 and "name a model with -m" in lost.stderr


# ---- What must not be published --------------------------------------------------------------


def binaries(folder: Path, target: str, used: str = "labs") -> dict[str, bytes]:
    """A module, which calls a function, and a program, for zig's name of a target."""
    found = {}
    for name, text, options in (
        (MODULE, C_MODULE.replace("USED", used), ("-shared", "-fPIC")),
        (PROGRAM, C_PROGRAM, ("-lm",)),
    ):
        source, made = folder / "source.c", folder / "made"
        source.write_text(text)
        flags = ["-target", target, "-O2", "-s", *options]
        flags += ["-Wl,-undefined,dynamic_lookup"] if "macos" in target else []
        run(*zig(), "cc", *flags, source, "-o", made)
        found[name] = made.read_bytes()
    return found


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return binaries(tmp_path_factory.mktemp("good"), "x86_64-linux-gnu.2.28")


def faults(folder: Path, files: dict[str, bytes], tag: str = X86, **differs: str) -> str:
    """What the check says about a wheel of these files."""
    api = differs.get("api", "cp310-abi3")
    wheel = folder / f"powerinfer_cpp-0.1.0-{api}-{tag}.whl"
    written = differs.get("written", f"{api}-{tag}")
    said = f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {written}\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("powerinfer_cpp/__init__.py", "")
        archive.writestr("powerinfer_cpp-0.1.0.dist-info/WHEEL", said)
        for name, data in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o755 << 16
            archive.writestr(info, data)
    return "\n".join(check_wheel.check(wheel))


def test_what_is_right_passes(good: dict[str, bytes], tmp_path: Path) -> None:
    assert faults(tmp_path, good) == ""


def test_tags(good: dict[str, bytes], tmp_path: Path) -> None:
    assert "not cp310-abi3" in faults(tmp_path, good, api="cp311-cp311")
    assert "there is no target linux_x86_64" in faults(tmp_path, good, tag="linux_x86_64")
    said = faults(tmp_path, good, written=f"cp310-abi3-{ARM}")
    assert said == f"its name says cp310-abi3-{X86}, the file WHEEL cp310-abi3-{ARM}"
    # A right tag on the files of another processor, or system.
    said = faults(tmp_path, good, tag=ARM)
    assert said.count("is for X86_64, not AARCH64") == 2
    said = faults(tmp_path, {"powerinfer_cpp/_native.pyd": good[MODULE]}, tag="win_amd64")
    assert "_native.pyd: is not a file for windows" in said and "main.exe is missing" in said


def test_newer_glibc(good: dict[str, bytes], tmp_path: Path) -> None:
    new = binaries(tmp_path, "x86_64-linux-gnu.2.34")
    said = faults(tmp_path, {**good, PROGRAM: new[PROGRAM]})
    assert said.splitlines() == [
        f"{PROGRAM}: needs GLIBC_2.29 of libm.so.6 (exp)",
        f"{PROGRAM}: needs GLIBC_2.34 of libc.so.6 (__libc_start_main)",
    ]


def test_newer_macos(tmp_path: Path) -> None:
    old, new = (binaries(tmp_path, f"aarch64-macos.{n}.0") for n in (11, 13))
    tag, program = "macosx_11_0_arm64", {PROGRAM: new[PROGRAM]}
    assert faults(tmp_path, old, tag=tag) == ""
    said = faults(tmp_path, {**old, **program}, tag=tag)
    assert said == f"{PROGRAM}: needs a macOS newer than 11.0"


def test_members(good: dict[str, bytes], tmp_path: Path) -> None:
    assert faults(tmp_path, {MODULE: good[MODULE]}) == f"{PROGRAM} is missing"
    wrong = {"powerinfer_cpp/_native.so": good[MODULE], PROGRAM: good[PROGRAM]}
    said = faults(tmp_path, wrong)
    assert f"{MODULE} is missing" in said and "_native.so does not belong there" in said
    assert "is not a file for glibc" in faults(tmp_path, {**good, PROGRAM: bytes(4096)})
    assert "exports nothing" in faults(tmp_path, {**good, MODULE: good[PROGRAM]})


@pytest.mark.parametrize(
    "name",
    [
        "PyType_GetDict",  # in no limited API
        "PyObject_Vectorcall",  # in that of Python 3.12
        "pi_forgotten",  # ours, and not linked
    ],
)
def test_names_of_others(good: dict[str, bytes], tmp_path: Path, name: str) -> None:
    module = binaries(tmp_path, "x86_64-linux-gnu.2.28", name)[MODULE]
    said = faults(tmp_path, {**good, MODULE: module})
    assert said == f"{MODULE}: {name} is not in the limited API of Python 3.10"


def test_libraries(good: dict[str, bytes], tmp_path: Path) -> None:
    """A program that needs the C++ library of the system that built it."""
    import lief

    program = lief.parse(good[PROGRAM])
    program.add_library("libstdc++.so.6")
    program.write(str(tmp_path / "program"))
    said = faults(tmp_path, {**good, PROGRAM: (tmp_path / "program").read_bytes()})
    assert f"{PROGRAM}: needs libstdc++.so.6" in said


def test_a_missing_tool_is_named(tmp_path: Path) -> None:
    """One sentence, no traceback; -S: without installed packages."""
    line = (sys.executable, "-S", ROOT / "scripts" / "wheels.py", X86, "--out", tmp_path)
    bare = {"PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(line, capture_output=True, text=True, env=bare)
    assert done.returncode == 1 and done.stderr.startswith("wheels: error: not installed: ziglang")
    assert done.stderr.count("\n") == 1
