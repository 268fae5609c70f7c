"""Whether wheels can be published: `python scripts/check_wheel.py WHEEL ...` prints what is wrong.

Reads the files of every system on any of them, and runs nothing: tags, members, processor,
libraries and versions that the loader will look for, names of CPython's limited API.
"""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYTHON = (3, 10)  # the oldest that the module is for
PACKAGE = "powerinfer_cpp"
ENTRY = "PyInit__native"


@dataclass(frozen=True)
class Target:
    """What zig calls it; how its binaries look."""

    zig: str
    system: str
    machine: str


# By the platform tag of the wheel.
TARGETS = {
    "manylinux_2_28_x86_64": Target("x86_64-linux-gnu.2.28", "glibc", "X86_64"),
    "manylinux_2_28_aarch64": Target("aarch64-linux-gnu.2.28", "glibc", "AARCH64"),
    "musllinux_1_2_x86_64": Target("x86_64-linux-musl", "musl", "X86_64"),
    "musllinux_1_2_aarch64": Target("aarch64-linux-musl", "musl", "AARCH64"),
    "win_amd64": Target("x86_64-windows-gnu", "windows", "AMD64"),
    "macosx_11_0_arm64": Target("aarch64-macos.11.0", "macos", "ARM64"),
}

# What every system of a kind has. The C++ library is none of them: it is linked in.
LIBRARIES = {
    "glibc": r"lib(c|m)\.so\.6|lib(pthread|rt)\.so\.[01]|libdl\.so\.2|ld-linux-[\w-]+\.so\.[12]",
    "musl": r"libc\.so",
    "windows": r"(kernel32|ntdll|advapi32|bcrypt\w*|shell32|psapi|api-ms-win-crt-[\w-]+)\.dll",
    "macos": r"/usr/lib/libSystem\.B\.dylib",
}


def abi3_names() -> tuple[set[str], set[str]]:
    """The functions and variables of the limited API of Python 3.10."""
    from abi3info import DATAS, FUNCTIONS

    def names(table: Any) -> set[str]:
        return {
            symbol.name
            for symbol, known in table.items()
            if (known.added.major, known.added.minor) <= PYTHON
        }

    return names(FUNCTIONS), names(DATAS)


def check(wheel: Path) -> list[str]:
    """What is wrong with a wheel, one sentence each; nothing if it can be published."""
    python, abi, tag = wheel.stem.split("-")[-3:]
    if (python, abi) != (f"cp{PYTHON[0]}{PYTHON[1]}", "abi3"):
        return [f"its tag is {python}-{abi}, not cp{PYTHON[0]}{PYTHON[1]}-abi3"]
    if tag not in TARGETS:
        return [f"there is no target {tag}"]
    target = TARGETS[tag]
    ending, exe = (".pyd", ".exe") if target.system == "windows" else (".abi3.so", "")
    module, program = f"{PACKAGE}/_native{ending}", f"{PACKAGE}/bin/main{exe}"
    faults = []
    with zipfile.ZipFile(wheel) as archive:
        if (bad := archive.testzip()) is not None:
            return [f"{bad} is damaged"]
        members = {info.filename: info for info in archive.infolist()}
        written = "".join(
            archive.read(name).decode() for name in members if name.endswith(".dist-info/WHEEL")
        )
        tags = re.findall(r"^Tag: (.*?)\r?$", written, re.MULTILINE)
        if tags != [f"{python}-{abi}-{tag}"]:
            faults.append(f"its name says {python}-{abi}-{tag}, the file WHEEL {', '.join(tags)}")
        if "Root-Is-Purelib: false" not in written:
            faults.append("the file WHEEL does not say Root-Is-Purelib: false")
        for name in (f"{PACKAGE}/__init__.py", module, program):
            if name not in members:
                faults.append(f"{name} is missing")
        compiled = re.compile(r".*(\.(so|pyd|dll|dylib|lib|a|o|exe|gguf)|/main)")
        for name in members:
            if compiled.fullmatch(name) and name not in (module, program):
                faults.append(f"{name} does not belong there")
        if not exe and program in members and not members[program].external_attr >> 16 & 0o111:
            faults.append(f"{program} is not executable")
        for name in {module, program} & set(members):
            found = _binary(archive.read(name), tag, name == module)
            faults += [f"{name}: {fault}" for fault in found]
    return sorted(faults)


def _binary(data: bytes, tag: str, is_module: bool) -> Iterator[str]:
    """What is wrong with a module or a program."""
    import lief

    lief.logging.disable()
    target = TARGETS[tag]
    kinds = {"windows": lief.PE.Binary, "macos": lief.MachO.Binary}
    binary = lief.parse(data) if data[:4] != bytes(4) else None
    if not isinstance(binary, kinds.get(target.system, lief.ELF.Binary)):
        yield f"is not a file for {target.system}"
        return
    look = {"windows": _pe, "macos": _macho}.get(target.system, _elf)
    machine, libraries, python, exported, faults = look(binary, tag, is_module)
    yield from faults
    if machine != target.machine:
        yield f"is for {machine}, not {target.machine}"
    allowed = re.compile(LIBRARIES[target.system], re.IGNORECASE)
    for library in libraries:
        if not allowed.fullmatch(library) and not (is_module and library == "python3.dll"):
            yield f"needs {library}"
    for name in sorted(python - set.union(*abi3_names())):
        yield f"{name} is not in the limited API of Python {PYTHON[0]}.{PYTHON[1]}"
    if is_module and not python:
        yield "uses nothing of Python"
    if python and not is_module:
        yield "needs Python"
    if is_module and exported != {ENTRY}:
        yield f"exports {', '.join(sorted(exported)) or 'nothing'}, not {ENTRY} alone"
    # Messages and debug information may name sources, but not this machine's folders.
    if str(ROOT).encode() in data or str(ROOT).encode("utf-16-le") in data:
        yield f"contains the path {ROOT}"


Look = tuple[str, list[str], set[str], set[str], list[str]]


def _elf(binary: Any, tag: str, is_module: bool) -> Look:
    faults, python = [], set()
    wanted = [symbol for symbol in binary.dynamic_symbols if symbol.shndx == 0 and symbol.name]
    for symbol in wanted:
        version = symbol.symbol_version
        # Every name of glibc has a version, so what has none must come from Python.
        named = tag.startswith("musl") or (version and version.has_auxiliary_version)
        weak = str(symbol.binding).endswith("WEAK")
        if symbol.name.startswith(("Py", "_Py")) or not (named or weak):
            python.add(symbol.name)
    most = re.match(r"manylinux_(\d+)_(\d+)_", tag)
    for needed in binary.symbols_version_requirement:
        for name in (auxiliary.name for auxiliary in needed.get_auxiliary_symbols()):
            found = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", name)
            limit = tuple(map(int, most.groups())) if most else ()
            if not found or tuple(map(int, found.groups())) > limit:
                users = [s.name for s in wanted if name in str(s.symbol_version)]
                faults.append(f"needs {name} of {needed.name} ({', '.join(users[:3])})")
    if not is_module and tag.startswith("musl") and binary.has_interpreter:
        faults.append("is not linked statically")
    exported = {s.name for s in binary.dynamic_symbols if s.shndx != 0 and s.name}
    machine = binary.header.machine_type.name
    return machine, list(binary.libraries), python, exported, faults


def _pe(binary: Any, tag: str, is_module: bool) -> Look:
    python = {
        entry.name
        for library in binary.imports
        for entry in library.entries
        if library.name.lower().startswith("python")
    }
    export = binary.get_export()
    exported = {entry.name for entry in export.entries} if export else set()
    libraries = [library.name for library in binary.imports]
    return binary.header.machine.name, libraries, python, exported, []


def _macho(binary: Any, tag: str, is_module: bool) -> Look:
    faults = []
    limit = tuple(map(int, tag.split("_")[1:3]))
    if not binary.has_build_version or tuple(binary.build_version.minos[:2]) > limit:
        faults.append(f"needs a macOS newer than {limit[0]}.{limit[1]}")
    if not binary.has_code_signature:
        faults.append("is not signed: Apple's processors run only what is, if only ad hoc")
    # With -undefined dynamic_lookup a missing name is no error of the linker. A weak one is C++'s:
    # the file defines it, and shares it with others.
    python = {
        bound.symbol.name[1:]
        for bound in binary.bindings
        if not bound.has_library and not str(bound.binding_class).endswith("WEAK")
    }
    # zig's linker for macOS cannot hide the linker's own names and the operators new and delete.
    hidden = re.compile(r"_mh_\w+_header|__dso_handle|_Z(nw|na|dl|da)\w+")
    exported = {symbol.name[1:] for symbol in binary.exported_symbols}
    exported = {name for name in exported if not hidden.fullmatch(name)}
    libraries = [x.name for x in binary.libraries if str(x.command).split(".")[-1] != "ID_DYLIB"]
    return binary.header.cpu_type.name, libraries, python, exported, faults


def main(paths: list[str]) -> int:
    faults = [f"{path}: {fault}" for path in paths for fault in check(Path(path))]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
