"""Repeats launches that the shim recorded (tests/device/simt/record.h) with the PTX of the same
kernels, and compares memory after each, bit for bit.

    python tests/gpu/ptx/replay.py [--launches N] [--json] RECORDING PROGRAM FILE.ptx...

PROGRAM is the one that was recorded: its symbol table has the names of the kernels.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from decode import CLOCK, Unknown
from machine import Counts, Machine, variables
from memory import Allocation, Space, Wrong
from parser import Kernel, Module, read

MODULES = 0x1000  # where a module's own arrays begin


def plain_name(mangled: str) -> str:
    """A kernel's name without the namespaces around it, which differ between compilers."""
    rest = mangled.removeprefix("_ZN")
    while found := re.match(r"\d+", rest):
        size = int(found.group())
        part = rest[found.end() :][:size]
        if part not in ("ggml", "cuda", "simt") and not part.startswith("_GLOBAL__N_"):
            return rest
        rest = rest[found.end() + size :]
    return rest


def short_name(mangled: str) -> str:
    """fire_kernel<2> of ..11fire_kernelILNS_5DTypeE2EEEv..: the name, and its numbers."""
    rest = plain_name(mangled)
    found = re.match(r"\d+", rest)
    if not found:
        return rest
    name, rest = rest[found.end() :][: int(found.group())], rest[found.end() + int(found.group()) :]
    arguments = re.match(r"I((?:L(?:NS_\w*?E|S\d*_|[a-z])\d+E)+|[a-z])E", rest)
    if not arguments:
        return name
    numbers = re.findall(r"(\d+)E", arguments.group(1)) or [arguments.group(1)]
    return f"{name}<{', '.join(numbers)}>"


def symbols(program: Path) -> dict[int, str]:
    """Kernels by their distance from shim_anchor."""
    text = subprocess.run(["nm", str(program)], capture_output=True, text=True, check=True).stdout
    found = [line.split() for line in text.splitlines()]
    table = {words[2]: int(words[0], 16) for words in found if len(words) == 3}
    anchor = table["shim_anchor"]
    return {at - anchor: name for name, at in table.items() if "_kernel" in name}


def stores_of_time(kernel: Kernel) -> list[int]:
    """The lines of stores whose value comes from the clock: no two runs agree on it."""
    timed, lines = {CLOCK}, []
    for instruction in kernel.code:  # in the order of the file: no loop carries a time
        into, *of = instruction.operands or ("",)
        if timed & set(of):
            if instruction.parts[0] == "st":
                lines.append(instruction.line)
            else:
                timed.add(into)
    return lines


@dataclass
class Report:
    """What the launches of one kernel came to."""

    launches: int = 0
    compared: int = 0  # bytes that the launches wrote here
    counts: Counts = field(default_factory=Counts)


@dataclass
class Replay:
    # By plain_name: what reads it, and the addresses of its module's arrays.
    kernels: dict[str, tuple[Callable[[], Kernel], dict[str, int]]]
    memory: Space
    reports: dict[str, Report] = field(default_factory=dict)

    @staticmethod
    def of(texts: Iterable[str]) -> Replay:
        made = Replay({}, Space("global"))
        base = MODULES
        for text in texts:
            module: Module = read(text)
            found = variables(module.variables, made.memory, base)
            base += sum(v.size + 1024 for v in module.variables)
            for name, kernel in module.kernels.items():
                made.kernels[plain_name(name)] = (kernel, found)
        return made

    def launches(self, folder: Path) -> Iterator[dict[str, Any]]:
        """Keeps memory as the recording says; yields the launches, before each is to run."""
        data = np.memmap(folder / "data.bin", np.uint8, "r")
        with (folder / "launches.jsonl").open() as lines:
            for line in lines:
                event = json.loads(line)
                if "memory" in event:
                    host = bool(event["host"])
                    self.memory.add(Allocation(event["memory"], event["bytes"], host, host=host))
                elif "free" in event:
                    self.memory.remove(event["free"])
                else:
                    self.change(event, data)
                    yield event

    def change(self, event: dict[str, Any], data: Any) -> None:
        """Memory as it was before a launch, and which of it had been written."""
        written = []
        for address, n in event["written"]:
            allocation = self.memory.at(address)
            at = address - allocation.base
            allocation.shadow[at : at + n] = 1
            written.append((address, address + n))
        for address, place, n in event["before"]:
            allocation = self.memory.at(address)
            at = address - allocation.base
            allocation.data[at : at + n] = data[place : place + n]
            if not any(begin <= address and address + n <= end for begin, end in written):
                # By a kernel that was not recorded, or by the host: which bytes is not known.
                allocation.shadow[:] = 1
        for allocation in self.memory.allocations:
            allocation.note_written()

    def adopt(self, event: dict[str, Any], folder: Path, host_only: bool = False) -> None:
        """Takes over what the shim's launch left, without running it."""
        data = np.memmap(folder / "data.bin", np.uint8, "r")
        for address, place, n in event["after"]:
            allocation = self.memory.at(address)
            if host_only and not allocation.host:
                continue
            at = address - allocation.base
            allocation.data[at : at + n] = data[place : place + n]
            allocation.shadow[:] = 1

    def run(self, event: dict[str, Any], mangled: str, folder: Path) -> None:
        """Repeats a launch. Raises Wrong where memory is not what the recorded one left."""
        kernel, found = self.kernels[plain_name(mangled)]
        machine = Machine(kernel(), self.memory, found)
        times = stores_of_time(machine.kernel)
        report = self.reports.setdefault(short_name(mangled), Report())
        report.launches += 1
        machine.counts.traffic = report.counts.traffic
        # The host changes its memory while the kernel runs. What a kernel waits for is there.
        self.adopt(event, folder, host_only=True)
        before = {a.base: a.data.copy() for a in self.memory.allocations}
        parameters = [bytes.fromhex(p) for p in event["parameters"]]
        whole = machine.run(event["grid"], event["block"], parameters)
        report.counts.instructions += machine.counts.instructions
        got = {a.base: a.data.copy() for a in self.memory.allocations}
        for allocation in self.memory.allocations:
            allocation.data[:] = before[allocation.base]
        written = {a.base: a.shadow.copy() for a in self.memory.allocations}
        self.adopt(event, folder)
        compared = 0
        for allocation in self.memory.allocations:
            differ = allocation.data != got[allocation.base]
            if touched := allocation.touched:
                stored = touched.by_byte((touched.w_interval >= 0) | touched.atomic)
                compared += int(stored.sum())
                if times:
                    differ &= ~touched.by_byte(np.isin(touched.w_line, times))
            if allocation.host or not whole:  # others write too: what this run wrote
                differ &= stored if touched else False
            if whole:
                allocation.shadow[:] = written[allocation.base]
            if differ.any():
                at = int(np.flatnonzero(differ)[0])
                word = at // 4 * 4
                pair = [
                    v[word : word + 4].tobytes().hex()
                    for v in (got[allocation.base], allocation.data)
                ]
                raise Wrong(
                    f"{int(differ.sum())} bytes differ from the shim's, the first at byte {at} of"
                    f" {allocation.place()}: {pair[0]} instead of {pair[1]}"
                )
        if not compared:
            raise Wrong("nothing was written")
        report.compared += compared


def summary(name: str, report: Report) -> dict[str, Any]:
    """What a profiler would say of a kernel's launches."""
    traffic = [
        {
            "instruction": str(t.instruction),
            "shared": "shared" in t.instruction.parts,
            "opcode": t.instruction.opcode,
            "requests": t.requests,
            "bytes": t.bytes,
            "pieces": t.pieces,
            "least": t.least,
        }
        for t in report.counts.traffic.values()
    ]
    return {
        "name": name,
        "launches": report.launches,
        "instructions": report.counts.instructions,
        "compared": report.compared,
        "traffic": traffic,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording", type=Path)
    parser.add_argument("program", type=Path)
    parser.add_argument("ptx", type=Path, nargs="+")
    parser.add_argument("--launches", type=int, default=2, help="of each kernel, at most")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    names = symbols(arguments.program)
    replay = Replay.of(file.read_text() for file in arguments.ptx)
    failures = []
    for event in replay.launches(arguments.recording):
        mangled = names[event["kernel"]]
        name = short_name(mangled)
        done = replay.reports.get(name)
        wanted = plain_name(mangled) in replay.kernels
        if not wanted or (done and done.launches == arguments.launches):
            replay.adopt(event, arguments.recording)
            continue
        try:
            replay.run(event, mangled, arguments.recording)
        except (Wrong, Unknown) as error:
            failures.append(f"{name}: {error}")
            replay.adopt(event, arguments.recording)
    found = [summary(name, report) for name, report in sorted(replay.reports.items())]
    missing = sorted(short_name(k) for k in replay.kernels if short_name(k) not in replay.reports)
    if arguments.json:
        print(json.dumps({"failures": failures, "kernels": found, "missing": missing}))
        return 0
    for kernel in found:
        counts = f"{kernel['launches']} launches, {kernel['instructions']} instructions"
        counts += f", {kernel['compared']} bytes compared"
        print(f"{kernel['name']}: {counts}")
        for t in kernel["traffic"]:
            ratio = f"{t['pieces']} wavefronts, at least {t['least']}"
            if not t["shared"]:
                ratio = f"{t['bytes'] / 32 / t['pieces']:.2f} of its sectors used"
            print(f"    {t['instruction']}: {t['requests']} requests, {ratio}")
    print("\n".join(failures))
    print(f"{len(found)} kernels, {len(failures)} failures, not launched: {missing}")
    return len(failures) > 0


if __name__ == "__main__":
    sys.exit(main())
