"""The flags between the device and the CPU, in a checker that knows PTX's memory model.

    python tests/gpu/flags.py MERGE.ptx MERGE_EXPERTS.ptx [--source DEVICE_FORWARD.cpp]

The threads of the checked programs are those of publish_kernel and merge_answer_kernel, and then of
publish_experts_kernel and merge_experts_kernel: the interpreter (ptx/) runs the PTX that nvcc made
of them, and each access of shared memory, with the order and scope that the instruction has,
becomes an event of memory_model.py. The host's half is written here; --source checks that the
engine does what is written. Then mutants: each weakens one instruction, and must make a bad end
possible. Prints a line of JSON per program: its name, whether the end is possible, and whether it
should be.

The programs, each with the end that must not be reached:
- publish: two blocks give the CPU values, ids and a count; the CPU sees the flag, but an old value.
- answer: the CPU gives sums; a thread of the device has waited for the flag, but reads an old sum.
- again: the CPU reads what was published, and answers; the device publishes anew after it has seen
  the answer; the CPU has read the new values.
- count: the next launch of publish_kernel does not find the counter of blocks at 0.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "ptx"))

import numpy as np
from litmus import operation, runner
from machine import Block, Machine
from memory import Allocation, Space, Tracker
from memory_model import Blocked, Event, Memory, Op, Program, Thread, Unknown
from parser import Kernel, read

THREADS = 256
GRID = (2, 1, 1)
COLS, COLD = 1025, 1  # columns: the last is of the second block; one neuron for the CPU
EPOCH = 7
PARTS = 32
OLD, NEW = 0, 1065353216  # 0.0f and 1.0f as bits
# Arrays by name: address and bytes. Accesses of INPUTS are no events: no thread reads there what
# another one writes.
INPUTS = {"x": (0x10000, 4 * COLS), "cold": (0x20000, 4), "n": (0x30000, 8), "epoch": (0x40000, 4),
          "parts": (0x50000, 4 * PARTS * COLS), "waited": (0x90000, 8),
          "expert": (0x91000, 4), "frame": (0x92000, 4), "weight": (0x93000, 4)}  # fmt: skip
SHARED = {"to.x": (0x100000, 4 * COLS), "to.ids": (0x110000, 4), "to.count": (0x120000, 4),
          "published": (0x130000, 4), "sums": (0x140000, 4 * COLS), "answered": (0x150000, 4),
          "arrived": (0x160000, 4), "y": (0x170000, 4 * COLS)}  # fmt: skip
INITIAL = {"x": NEW, "n": COLD, "epoch": EPOCH, "weight": NEW, "frame": 0xFFFFFFFF}
EXCHANGE = ("to.x", "to.ids", "to.count", "published", "sums", "answered", "arrived", "epoch",
            "waited")  # fmt: skip


def address(name: str) -> int:
    return (INPUTS.get(name) or SHARED[name])[0]


class One(Block):
    """One thread of a block, whose accesses of what others write are those of a Memory."""

    def __init__(
        self, machine: Machine, index: int, thread: int, values: bytes, to: Memory
    ) -> None:
        tracker = Tracker(THREADS)
        super().__init__(machine, GRID, (THREADS, 1, 1), (index, 0, 0), values, tracker)
        self.alive[:] = False
        self.alive[thread] = True
        self.to, self.number = to, thread
        self.polled: set[str] = set()

    def location(self, at: int) -> str:
        """The name of a 4-byte word of SHARED; otherwise ""."""
        for name, (base, size) in SHARED.items():
            if base <= at < base + size:
                return f"{name}[{(at - base) // 4}]"
        return ""

    def opcode(self) -> str:
        return self.machine.kernel.code[self.now].opcode

    def word(self, values: Any) -> int:
        return int(np.broadcast_to(values, (self.threads,))[self.number])

    def load(self, name: str, address: Any, size: int, n: int, where: Any) -> list[Any]:
        lanes = self.lanes(where)
        location = self.location(self.word(address)) if lanes.size else ""
        if not location or name == "shared":
            return super().load(name, address, size, n, where)
        if n != 1 or size != 4:
            raise ValueError(f"{self.opcode()}: an access of {n} x {size} bytes")
        if location in self.polled:
            raise Blocked
        value = self.to.do(operation(self.opcode(), location))
        if location == "answered[0]":
            self.polled.add(location)
        return [np.full(self.threads, value, np.uint32)]

    def store(self, name: str, address: Any, values: list[Any], size: int, where: Any) -> None:
        lanes = self.lanes(where)
        location = self.location(self.word(address)) if lanes.size else ""
        if not location or name == "shared":
            super().store(name, address, values, size, where)
        elif len(values) != 1 or size != 4:
            raise ValueError(f"{self.opcode()}: an access of {len(values)} x {size} bytes")
        elif not location.startswith("y["):  # the result is of no interest
            self.to.do(operation(self.opcode(), location), self.word(values[0]))

    def atomic_add(self, address: Any, more: Any, size: int, where: Any, name: str) -> Any:
        by = self.word(more)
        location = self.location(self.word(address))
        before = self.to.do(operation(self.opcode(), location), lambda old: (old or 0) + by)
        return np.full(self.threads, before, np.uint32)

    def fence(self) -> None:
        self.to.do(operation(self.opcode()))

    def finish_barrier(self, code: Any) -> None:
        self.to.do(Op("B", f"block {self.index[0]}"))
        self.votes[:] = True  # of the one pair of rows and experts, whichever thread looks at it
        super().finish_barrier(code)


def device_memory() -> Space:
    """What no other thread writes: values of 1, one neuron of row 0, one expert, the epoch."""
    memory = Space("global")
    for name, (base, size) in INPUTS.items():
        allocation = Allocation(base, size, True, name)
        one = INITIAL.get(name, 0)
        allocation.data[:size] = np.frombuffer(struct.pack("<I", one) * (size // 4), np.uint8)
        memory.add(allocation)
    return memory


def thread(kernel: Kernel, index: int, number: int) -> Callable[[Memory], Any]:
    """One thread of a launch of the kernel."""
    # DeviceExchange, DeviceLists, DeviceInput and DeviceSums of device_ops.h.
    # No limit of the wait: what ends without an answer is an error.
    to = struct.pack("<11Q", *(address(name) for name in EXCHANGE), 0, 0)
    lists = struct.pack("<3Q2i", 0, address("cold"), address("n"), 1, COLD)
    x = struct.pack("<3Q2i", address("x"), 0, 0, 1, COLS)
    here = struct.pack("<Q3i4x", address("parts"), PARTS, 1, COLS)
    # DeviceChoice and DeviceFrames: one row, whose expert is not here.
    choice = struct.pack("<4Q3i4x", address("expert"), address("weight"), 0, 0, 1, 1, 1)
    frames = struct.pack("<2Q", address("frame"), 0)
    if "publish_experts" in kernel.name:
        values = [x, choice, frames, to]
    elif "merge_experts" in kernel.name:
        values = [choice, frames, bytes(8), to, struct.pack("<i", COLS)]
        values.append(struct.pack("<Q", address("y")))
    elif "publish" in kernel.name:
        values = [x, lists, to]
    else:
        values = [here, lists, to, bytes(8), struct.pack("<Q", address("y"))]  # no bias
    machine = Machine(kernel, device_memory(), {})
    packed = bytearray(machine.parameter_bytes + 16)
    for parameter, value in zip(kernel.parameters, values, strict=True):
        if parameter.size != len(value):
            raise ValueError(f"{parameter.name} has {parameter.size} bytes, not {len(value)}")
        at = machine.offsets[parameter.name]
        packed[at : at + len(value)] = value

    def run(memory: Memory) -> dict[str, int]:
        one = One(machine, index, number, bytes(packed), memory)
        with np.errstate(all="ignore"):
            one.run()
        reads = [e for e in memory.events if e.op.kind == "R" and e.op.at.startswith("sums")]
        return {e.op.at: e.read or 0 for e in reads}

    return run


HOST = 1  # its threads are on no GPU


def host(text: str) -> Thread:
    return Thread(runner(text), 0, HOST)


WAITED = f"ld.acquire.sys seen published[0]; wait seen {EPOCH};"
ANSWER = f"st.release.sys answered[0] {EPOCH}"


def ends(results: list[Any], name: str, value: int) -> bool:
    return any(result.get(name) == value for result in results)


def remembered(run: Callable[[Memory], Any]) -> Callable[[Memory], Any]:
    """The same for the same values read, without running it again."""
    known: dict[tuple[int, ...], tuple[list[Event], Any]] = {}

    def again(memory: Memory) -> Any:
        key = tuple(memory.answers)
        if key not in known:
            try:
                result = run(memory)
            except (Blocked, Unknown) as end:
                result = end
            known[key] = (memory.events, result)
        memory.events, result = known[key]
        if isinstance(result, Exception):
            raise result
        return result

    return again


def publish(
    kernels: dict[str, Kernel], wait: str = WAITED, early: bool = False, new: bool = False
) -> bool:
    """Can the CPU see the flag and an old value? early: it reads the value before the flag. new:
    can it see every new value?"""
    kernel = kernels["publish"]
    device = [Thread(remembered(thread(kernel, b, t)), b) for b, t in ((0, 0), (0, 1), (1, 0))]
    old_values = {"to.x[0]": OLD, "to.x[1]": OLD, "to.x[1024]": OLD}
    old_values |= {"to.ids[0]": 99, "to.count[0]": 99}
    for location, old in old_values.items():
        load = f"ld got {location};"
        reader = host(load + wait if early else wait + load)
        program = Program([*device, reader], {location: old})
        expected = NEW if "x" in location else 1 if "count" in location else 0

        def end(results: list[Any], value: int = expected if new else old) -> bool:
            return ends(results, "got", value)

        if program.allows(end) != new:
            return not new
    return new


def answer(kernels: dict[str, Kernel], release: str = ANSWER, end: int = OLD) -> bool:
    """Can a thread of the device go on after the answer with an old sum, or `end`?"""
    kernel = kernels["merge_answer"]
    # The thread that waits, of each block; and one that the barrier tells of it.
    for block, numbers in ((0, (0,)), (1, (0,)), (0, (0, 1))):
        column = 1024 * block + numbers[-1]
        threads = [Thread(remembered(thread(kernel, block, t)), block) for t in numbers]
        program = Program([*threads, host(f"st sums[{column}] {NEW}; {release}")])

        def reached(results: list[Any], at: str = f"sums[{column}]") -> bool:
            return ends(results, at, end)

        if program.allows(reached):
            return True
    return False


def again(kernels: dict[str, Kernel]) -> bool:
    """Can the CPU, before it answers, read what is published after the answer?"""
    first = thread(kernels["merge_answer"], 0, 0)
    second = thread(kernels["publish"], 0, 0)

    def both(memory: Memory) -> dict[str, int]:
        first(memory)  # a kernel ends before the next one in its stream begins
        second(memory)
        return {}

    reader = host(f"ld got to.x[0]; st sums[0] {NEW}; {ANSWER}")
    program = Program([Thread(remembered(both)), reader])
    return program.allows(lambda r: ends(r, "got", NEW))


def count(kernels: dict[str, Kernel]) -> bool:
    """Can the counter be anything but 0 for the next kernel, once both blocks have ended?"""
    kernel = kernels["publish"]

    def then_meet(run: Callable[[Memory], Any]) -> Callable[[Memory], Any]:
        def both(memory: Memory) -> Any:
            result = run(memory)
            memory.do(Op("B", "kernels"))
            return result

        return both

    def next_kernel(memory: Memory) -> dict[str, int]:
        memory.do(Op("B", "kernels"))
        return {"found": memory.do(operation("atom.global.add.u32", "arrived[0]"), 0)}

    blocks = [Thread(remembered(then_meet(thread(kernel, b, 0))), b) for b in (0, 1)]
    program = Program([*blocks, Thread(next_kernel, 2)])
    return program.allows(lambda r: any(x.get("found", 0) != 0 for x in r))


def changed(kernel: Kernel, opcode: str, to: str, which: int = 0) -> Kernel:
    """A kernel with another instruction in place of the n-th that has this name; "" : none."""
    places = [k for k, i in enumerate(kernel.code) if i.opcode.startswith(opcode)]
    if which >= len(places):
        raise ValueError(f"{kernel.name} has no {opcode}")
    code = list(kernel.code)
    for k in places if which < 0 else [places[which]]:
        code[k] = (
            replace(code[k], opcode=to)
            if to
            else replace(code[k], opcode="nanosleep.u32", operands=("0",), guard="")
        )
    return replace(kernel, code=code)


def checks(kernels: dict[str, Kernel]) -> list[tuple[str, bool, bool]]:
    """Programs: the name, whether their end is possible, and whether it should be."""
    p, a = kernels["publish"], kernels["merge_answer"]
    found = [(f.__name__, f(kernels), False) for f in (publish, answer, again, count)]
    found.append(("publish: new values arrive", publish(kernels, new=True), True))
    found.append(("answer: new sums arrive", answer(kernels, end=NEW), True))

    def with_publish(name: str, kernel: Kernel, bad: bool = True) -> None:
        found.append((f"publish: {name}", publish({**kernels, "publish": kernel}), bad))

    def with_answer(name: str, kernel: Kernel) -> None:
        found.append((f"answer: {name}", answer({**kernels, "merge_answer": kernel}), True))

    light = changed(p, "membar.sys", "fence.acq_rel.sys", -1)
    with_publish("lighter fences, which would do", light, False)
    arrival = "atom.cta.global.add.u32"
    with_publish("these, and arrival in a block's scope", changed(light, "atom.global", arrival))
    with_publish("the flag in the GPU's scope", changed(p, "st.release.sys", "st.release.gpu.b32"))
    relaxed = changed(p, "st.release.sys", "st.relaxed.sys.b32")
    with_publish("the flag relaxed, no fence before", changed(relaxed, "membar.sys", "", 1))
    with_publish("no fence before a block arrives", changed(p, "membar.sys", "", 0))
    with_publish("no fence after the last block arrived", changed(p, "membar.sys", "", 1))
    with_publish("fences in a block's scope", changed(p, "membar.sys", "membar.cta", -1))
    with_publish("no barrier before the fence", changed(p, "bar.sync", "", 0))
    found.append(("publish: the CPU reads early", publish(kernels, early=True), True))
    lax = publish(kernels, WAITED.replace("acquire", "relaxed"))
    found.append(("publish: the CPU does not acquire", lax, True))

    wait = "ld.acquire.sys"
    with_answer("a relaxed wait", changed(a, wait, "ld.relaxed.sys.b32", -1))
    with_answer("a wait in the GPU's scope", changed(a, wait, "ld.acquire.gpu.b32", -1))
    with_answer("no barrier after the wait", changed(a, "bar.sync", "", 0))
    cached = changed(a, "ld.global.f32", "ld.global.nc.f32", -1)
    with_answer("sums through the read-only cache", cached)
    unreleased = answer(kernels, ANSWER.replace("release", "relaxed"))
    found.append(("answer: the CPU does not release", unreleased, True))
    return found


def host_does_as_written(source: str) -> bool:
    """Does the engine acquire `published` and release `answered`, and use neither otherwise?"""
    uses = re.findall(r"(__atomic_\w+)\(e\.(published|answered),[^;]*?(__ATOMIC_\w+)\)", source)
    wanted = {
        ("__atomic_load_n", "published", "__ATOMIC_ACQUIRE"),
        ("__atomic_store_n", "answered", "__ATOMIC_RELEASE"),
    }
    return set(uses) == wanted and len(uses) == len(
        re.findall(r"e\.(?:published|answered)\b", source)
    )


def main() -> int:
    arguments = sys.argv[1:]
    if "--source" in arguments:
        at = arguments.index("--source")
        if not host_does_as_written(Path(arguments[at + 1]).read_text()):
            print("the engine uses the flags in another way than this check", file=sys.stderr)
            return 1
        del arguments[at : at + 2]
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    for file, names, prefix in zip(
        arguments,
        (("publish", "merge_answer"), ("publish_experts", "merge_experts")),
        ("", "experts, "),
        strict=True,
    ):
        module = read(Path(file).read_text())
        found = [
            next(kernel() for k, kernel in module.kernels.items() if f"{name}_kernel" in k)
            for name in names
        ]
        kernels = dict(zip(("publish", "merge_answer"), found, strict=True))
        for name, bad, should in checks(kernels):
            print(json.dumps({"program": prefix + name, "possible": bad, "should": should}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
