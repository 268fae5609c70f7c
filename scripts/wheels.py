"""Make and check the wheels of a release: `python scripts/wheels.py [TARGET ...] [--out dist]`.

One machine builds for all systems: zig (PyPI's package ziglang) compiles, by cmake/zig.cmake.
The wheels hold a module for CPython's limited API and the program `main`. Every wheel is checked
after it was built (scripts/check_wheel.py); docs/releases.md says what that covers.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from check_wheel import TARGETS, Target, abi3_names, check

ROOT = Path(__file__).resolve().parents[1]
NEEDED = {  # modules, and the packages that have them
    "scikit_build_core": "scikit-build-core",
    "cffi": "cffi",
    "lief": "lief",
    "abi3info": "abi3info",
}
# In a process of its own, with the environment of the target.
BACKEND = """
import json, sys
from scikit_build_core.build import build_wheel
build_wheel(sys.argv[1], json.loads(sys.argv[2]))
"""


class Failure(Exception):
    """What the user reads, in one sentence."""


def zig() -> Path:
    """zig. Raises Failure if it, or something else that is needed, is not installed."""
    missing = [name for module, name in NEEDED.items() if not importlib.util.find_spec(module)]
    package, program = importlib.util.find_spec("ziglang"), shutil.which("zig")
    if not (package or program):
        missing.insert(0, "ziglang")
    if missing:
        raise Failure(f"not installed: {', '.join(missing)}; pip install '.[wheels]' has them")
    if package and package.origin:
        return Path(package.origin).parent / ("zig.exe" if os.name == "nt" else "zig")
    return Path(str(program))


def headers(folder: Path) -> Path:
    """CPython's headers in this folder, with our pyconfig.h, which holds for every system."""
    ours = Path(sysconfig.get_path("include"))
    if not (ours / "Python.h").is_file():
        raise Failure(f"{ours} has no Python.h: install python3-dev, for example")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ours, folder)
    shutil.copy(ROOT / "cmake" / "pyconfig.h", folder / "pyconfig.h")
    return folder


def import_library(compiler: Path, folder: Path) -> Path:
    """python3.lib: says that python3.dll has the names of the limited API."""
    functions, data = abi3_names()
    lines = [
        "LIBRARY python3.dll",
        "EXPORTS",
        *sorted(functions),
        *(f"{n} DATA" for n in sorted(data)),
    ]
    definition, library = folder / "python3.def", folder / "python3.lib"
    definition.write_text("\n".join(lines) + "\n")
    # Without a DLL beside it, CMake would take it for a static library, and add those that this
    # machine's Python needs.
    (folder / "python3.dll").touch()
    command = [compiler, "dlltool", "-m", "i386:x86-64", "-d", definition, "-l", library]
    subprocess.run([str(part) for part in command], check=True)
    return library


def module_flags(target: Target, folder: Path) -> str:
    """Options to link the module."""
    if target.system == "macos":
        return "-dynamiclib"  # of zig 0.17 -bundle alone, which CMake says, makes a file of zeros
    if target.system == "windows":
        return ""
    # Without it the module would also export the C++ library's operators new and delete.
    names = folder / "module.map"
    names.write_text("{ global: PyInit__native; local: *; };\n")
    return f'"-Wl,--version-script={names}"'


def settings(tag: str, compiler: Path, folder: Path, quick: bool) -> dict[str, str]:
    """scikit-build-core's settings to build for a target in this folder."""
    target = TARGETS[tag]
    define = {
        "CMAKE_TOOLCHAIN_FILE": ROOT / "cmake" / "zig.cmake",
        "ZIG": compiler,
        "ZIG_TARGET": target.zig,
        "PI_DEFAULT_MODEL": "",
        "CMAKE_SKIP_RPATH": "ON",  # no library is looked for beside the files
        "Python_EXECUTABLE": sys.executable,
        "Python_INCLUDE_DIR": headers(folder / "include"),
        # -s: without names and debug information; this machine's strip knows only its own files.
        "CMAKE_MODULE_LINKER_FLAGS": f"-s {module_flags(target, folder)}",
        "CMAKE_EXE_LINKER_FLAGS": "-s -static" if target.system == "musl" else "-s",
        # Names of sources in messages begin at the repository.
        "CMAKE_CXX_FLAGS": f'"-ffile-prefix-map={ROOT}/="',
        "CMAKE_C_FLAGS": f'"-ffile-prefix-map={ROOT}/="',
    }
    if target.system == "windows":
        define["Python_SABI_LIBRARY"] = import_library(compiler, folder)
    if quick:  # with -O0 zig adds debug information, and checks that cost time
        define["CMAKE_CXX_FLAGS_RELEASE"] = "-O0 -g0 -fno-sanitize=undefined"
    return {
        "build-dir": str(folder / "build"),
        "install.strip": "false",
        "cmake.python-hints": "false",  # would describe this machine's Python
        **{f"cmake.define.{name}": str(value) for name, value in define.items()},
    }


def build(tag: str, out: Path, quick: bool = False) -> Path:
    """Builds the wheel of a target. Raises Failure."""
    compiler, folder = zig(), ROOT / "build" / "wheels" / f"{tag}{'-quick' * quick}"
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / "dist"
    shutil.rmtree(fresh, ignore_errors=True)
    values = json.dumps(settings(tag, compiler, folder, quick))
    # The platform of the tag, whatever this machine's is.
    environment = {**os.environ, "_PYTHON_HOST_PLATFORM": tag}
    log = folder / "log.txt"
    with log.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-c", BACKEND, str(fresh), values],
            cwd=ROOT,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    wheels = list(fresh.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
        raise Failure(f"{tag}: could not be built; the end of {log}:\n{tail}")
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(wheels[0], out))


def main() -> int:
    parser = argparse.ArgumentParser(description="Make and check wheels.")
    parser.add_argument(
        "target", nargs="*", metavar="TARGET", help=f"{', '.join(TARGETS)}; default: all"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="default: dist")
    parser.add_argument("--quick", action="store_true", help="compile with -O0, for tests")
    args = parser.parse_args()
    for tag in args.target:
        if tag not in TARGETS:
            parser.error(f"no target {tag}; there are {', '.join(TARGETS)}")
    for tag in args.target or TARGETS:
        start = time.monotonic()
        wheel = build(tag, args.out, args.quick)
        faults = check(wheel)
        for fault in faults:
            print(f"wheels: {wheel.name}: {fault}", file=sys.stderr)
        if faults:
            wheel.unlink()
            return 1
        seconds = time.monotonic() - start
        print(f"{wheel}: {wheel.stat().st_size / 1e6:.2f} MB, {seconds:.0f} s, checked", flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"wheels: error: {failure}")
