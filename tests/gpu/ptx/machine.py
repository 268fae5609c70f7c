"""Runs a kernel of PTX, a block at a time: the threads are lanes of numpy vectors, each with a
place of its own in the code; those that stand lowest run first, which brings them together again
after branches.

Wrong is raised, with the instruction, for what a kernel must not do: accesses out of bounds or
misaligned, reads of memory that nothing has written, races, barriers that a part of a warp or of a
block does not reach, collectives without all their lanes. An instruction that is not known raises
Unknown with its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from decode import CLOCK, Unknown, decode
from memory import ONES, SHARED, WARP, WORDS, Allocation, Space, Tracker, Wrong
from parser import Instruction, Kernel, Variable

Array = Any
COUNTED = 64  # times that the traffic of an instruction is counted: later ones are like these
GAP = 64  # bytes between shared arrays
ENOUGH = 50_000  # instructions of a launch, of whose blocks not all need to run
MOST = 1_000_000  # instructions of a block in a row, and times that it chooses lanes


@dataclass
class Traffic:
    """Of one memory instruction, over warps."""

    instruction: Instruction
    times: int = 0  # that it was counted
    requests: int = 0  # of warps
    bytes: int = 0  # that lanes asked for, each counted once a warp
    pieces: int = 0  # sectors of 32 bytes, or wavefronts of shared memory
    least: int = 0  # wavefronts, if no lane had to wait for another's bank


@dataclass
class Counts:
    instructions: int = 0  # of warps
    traffic: dict[int, Traffic] = field(default_factory=dict)  # by place in the code


class Machine:
    """A kernel, ready to run on a global memory."""

    def __init__(self, kernel: Kernel, memory: Space, variables: dict[str, int]) -> None:
        self.kernel, self.memory, self.variables = kernel, memory, variables
        self.counts = Counts()
        self.place: dict[str, int] = {}  # of registers
        self.bits: list[int] = []
        self.shared: dict[str, int] = {}
        self.offsets: dict[str, int] = {}  # of parameters
        at = 0
        for parameter in kernel.parameters:
            at += -at % parameter.align
            self.offsets[parameter.name] = at
            at += parameter.size
        self.parameter_bytes = at
        at = GAP
        for array in kernel.shared:
            at += -at % max(array.align, GAP)
            self.shared[array.name] = at
            at += array.size + GAP
        if kernel.local:
            raise Unknown(".local arrays")
        self.steps: list[tuple[str, Any]] = [decode(self, i) for i in kernel.code]

    def register(self, name: str) -> int:
        if name not in self.place:
            self.place[name] = len(self.bits)
            self.bits.append(self.kernel.bits(name))
        return self.place[name]

    def run(self, grid: Sequence[int], block: Sequence[int], parameters: list[bytes]) -> bool:
        """Runs all blocks; if they are independent, the last one, where guards matter, and others
        of eight in equal distances, until ENOUGH has been done. Was it all? Raises Wrong and
        Unknown."""
        packed = bytearray(self.parameter_bytes + 16)
        wanted = self.kernel.parameters
        if [len(p) for p in parameters] != [v.size for v in wanted]:
            raise Wrong(
                f"parameters of {[len(p) for p in parameters]} bytes, the kernel takes"
                f" {[v.size for v in wanted]}"
            )
        for parameter, value in zip(wanted, parameters, strict=True):
            at = self.offsets[parameter.name]
            packed[at : at + len(value)] = value
        for allocation in self.memory.allocations:
            allocation.touched = None
        tracker = Tracker(-(-int(np.prod(block)) // WARP) * WARP)
        n = int(np.prod(grid))
        alone = not any(i.parts[0] in ("atom", "red") for i in self.kernel.code)
        done = set()
        with np.errstate(all="ignore"):
            for k in [n - 1, *range(0, n, -(-n // 8))] if alone else range(n):
                if k in done or (alone and self.counts.instructions > ENOUGH):
                    continue
                done.add(k)
                index = (k % grid[0], k // grid[0] % grid[1], k // grid[0] // grid[1])
                Block(self, grid, block, index, bytes(packed), tracker).run()
        return len(done) == n


class Block:
    def __init__(
        self,
        machine: Machine,
        grid: Sequence[int],
        block: Sequence[int],
        index: Sequence[int],
        parameters: bytes,
        tracker: Tracker,
    ) -> None:
        self.machine, self.counts, self.tracker = machine, machine.counts, tracker
        self.n = n = int(np.prod(block))
        self.threads = t = -(-n // WARP) * WARP
        lane = np.arange(t, dtype=np.uint32)
        x, y = np.uint32(block[0]), np.uint32(block[1])
        self.special = {
            "%laneid": lane % np.uint32(WARP),
            "%warpid": lane // np.uint32(WARP),
            "%tid.x": lane % x,
            "%tid.y": lane // x % y,
            "%tid.z": lane // (x * y),
        }
        self.special[CLOCK] = np.zeros(1, np.uint64)
        for name, three in (("%ctaid", index), ("%nctaid", grid), ("%ntid", block)):
            for axis, value in zip("xyz", three, strict=True):
                self.special[f"{name}.{axis}"] = np.array([value], np.uint32)
        self.registers = [
            np.zeros(t, np.bool_)
            if bits == 1
            else np.full(t, 0xCDCDCDCDCDCDCDCD, np.uint64).astype(WORDS[bits // 8])
            for bits in machine.bits
        ]
        self.parameters = np.frombuffer(parameters, np.uint8)
        self.shared = Space("shared")
        for array in machine.kernel.shared:
            base = machine.shared[array.name]
            name = array.name.rsplit("E", 1)[-1].lstrip("0123456789")
            self.shared.add(Allocation(base, array.size, False, f"the shared array {name}"))
        self.index = tuple(index)
        self.pc = np.zeros(t, np.int64)
        self.alive = lane < n
        self.waiting = np.zeros(t, np.bool_)
        self.votes = np.zeros(t, np.bool_)
        self.at_barrier = -1
        self.mask: Array = None
        self.active: Array = None  # places of the lanes of the mask
        tracker.begin_block()

    # ---- control flow ----------------------------------------------------------------------------

    def run(self) -> None:
        code, steps = self.machine.kernel.code, self.machine.steps
        for _ in range(MOST):
            ready = self.alive & ~self.waiting
            if not ready.any():
                if not self.alive.any():
                    return
                self.finish_barrier(code)
                continue
            lowest = int(self.pc[ready].min())
            mask = ready & (self.pc == lowest)
            others = self.pc[ready & ~mask]
            until = int(others.min()) if others.size else len(code)
            try:
                self.together(lowest, mask, until, steps)
            except Wrong as wrong:
                raise Wrong(f"{wrong} in block {self.index}, {code[self.now]}") from None
            except NotImplementedError as unknown:
                raise Unknown(f"{unknown}: {code[self.now]}") from None
        raise Wrong(f"block {self.index} does not end: {code[self.now]}")

    def choose(self, mask: Array) -> int:
        """Makes these the lanes that run; returns the number of their warps."""
        self.mask, self.active = mask, np.flatnonzero(mask)
        self.all = self.active.size == self.threads
        self.warps = np.flatnonzero(mask.reshape(-1, WARP).any(1))
        return int(self.warps.size)

    def together(self, pc: int, mask: Array, until: int, steps: list[tuple[str, Any]]) -> None:
        """Runs lanes that stand at one place until others are to run."""
        warps = self.choose(mask)
        n = 0
        while pc < until and n < MOST:
            if pc == len(steps):
                raise Wrong("the end of the code without a return")
            kind, step = steps[pc]
            self.now = pc
            n += 1
            if kind == "":
                step(self)
                pc += 1
            elif kind == "branch":
                predicate, target = step
                taken = mask if predicate is None else mask & predicate(self)
                if predicate is None or np.array_equal(taken, mask):
                    pc = target
                elif not taken.any():
                    pc += 1
                else:
                    self.pc[mask] = pc + 1
                    self.pc[taken] = target
                    break
            elif kind == "exit":
                leaves = mask if step is None else mask & step(self)
                self.alive &= ~leaves
                mask = mask & ~leaves
                self.pc[mask] = pc + 1
                break
            else:
                self.arrive(pc, mask, step)
                self.pc[mask] = pc + 1
                break
        else:
            self.pc[mask] = pc
        self.counts.instructions += n * warps

    def arrive(self, pc: int, mask: Array, yes: Any) -> None:
        """At a barrier of the block."""
        here = mask.reshape(-1, WARP)
        missing = (self.alive.reshape(-1, WARP) & ~here) & here.any(1)[:, None]
        if missing.any():
            lane = int(np.flatnonzero(missing.ravel())[0])
            raise Wrong(f"a barrier under divergence: thread {lane} of a warp is elsewhere")
        if self.at_barrier not in (-1, pc):
            raise Wrong("threads of a block are at different barriers")
        self.at_barrier = pc
        self.waiting |= mask
        if yes is not None:
            self.votes = np.where(mask, yes[0](self), self.votes)

    def finish_barrier(self, code: list[Instruction]) -> None:
        _, step = self.machine.steps[self.at_barrier]
        if step is not None:
            _, how, place = step
            votes = self.votes[self.waiting]
            result = {"popc": votes.sum(), "or": votes.any(), "and": votes.all()}[how]
            register = self.registers[place].copy()
            register[self.waiting] = result
            self.registers[place] = register
        self.waiting[:] = False
        self.at_barrier = -1
        self.tracker.interval += 1

    def fence(self) -> None:
        """Threads run one after the other here, and see everything."""

    # ---- registers -------------------------------------------------------------------------------

    def put(self, place: int, value: Array, where: Array = None) -> None:
        """Writes a register in the lanes that run."""
        old = self.registers[place]
        value = value.view(old.dtype)
        if where is None and self.all:
            self.registers[place] = (
                value if value.size == old.size else np.broadcast_to(value, old.shape)
            )
        else:
            self.registers[place] = np.where(self.mask if where is None else where, value, old)

    # ---- memory ----------------------------------------------------------------------------------

    def space(self, name: str, address: Array) -> tuple[Space, Array]:
        if name == "shared":
            return self.shared, address.astype(np.uint64)
        if name == "" and address.size and (address >= np.uint64(SHARED)).all():
            inside = address - np.uint64(SHARED)
            if (inside < np.uint64(1 << 24)).all():
                return self.shared, inside
        return self.machine.memory, address

    def wide(self, value: Array) -> Array:
        """A value of each thread."""
        return value if value.size == self.threads else np.broadcast_to(value, (self.threads,))

    def lanes(self, where: Array) -> Array:
        return self.active if where is None else np.flatnonzero(where)

    def load(self, name: str, address: Array, size: int, n: int, where: Array) -> list[Array]:
        """n values of `size` bytes of each lane, from its address on."""
        lanes = self.lanes(where)
        out = [np.zeros(self.threads, WORDS[size]) for _ in range(n)]
        if not lanes.size:
            return out
        space, at = self.space(name, self.wide(address)[lanes])
        self.count(space, at, lanes, size * n)
        for allocation, places, offset in space.parts(at, size * n):
            index, some = offset // size, lanes[places]
            for k in range(n):
                out[k][some] = allocation.words[size][index + k]
            if not allocation.all_written:
                self.check_written(allocation, offset, size * n)
            if space is self.shared or allocation.touched is not None:
                self.tracker.touch(allocation, offset, size * n, some, self.line, False)
        return out

    def store(
        self, name: str, address: Array, values: list[Array], size: int, where: Array
    ) -> None:
        lanes = self.lanes(where)
        if not lanes.size:
            return
        space, at = self.space(name, self.wide(address)[lanes])
        n = len(values)
        self.count(space, at, lanes, size * n)
        for allocation, places, offset in space.parts(at, size * n):
            index, some = offset // size, lanes[places]
            self.tracker.touch(allocation, offset, size * n, some, self.line, True)
            for k, value in enumerate(values):
                allocation.words[size][index + k] = self.wide(value)[some]
                allocation.shadows[size][index + k] = ONES[size]

    def check_written(self, allocation: Allocation, offset: Array, size: int) -> None:
        unit = min(size, 8)
        shadow, first = allocation.shadows[unit], offset // unit
        if any((shadow[first + k] != ONES[unit]).any() for k in range(size // unit)):
            bytes_read = (offset[:, None] + np.arange(size)).ravel()
            at = int(bytes_read[np.flatnonzero(allocation.shadow[bytes_read] == 0)[0]])
            raise Wrong(f"a read of what nothing has written: byte {at} of {allocation.place()}")

    @property
    def line(self) -> int:
        return self.machine.kernel.code[self.now].line

    def atomic_add(self, address: Array, more: Array, size: int, where: Array, name: str) -> Array:
        """Lanes one after the other, from the first on. Returns what was there."""
        lanes = self.lanes(where)
        out = np.zeros(self.threads, WORDS[size])
        if not lanes.size:
            return out
        space, at = self.space(name, self.wide(address)[lanes])
        more = self.wide(more)
        for allocation, places, offset in space.parts(at, size):
            self.check_written(allocation, offset, size)
            word = allocation.words[size]
            for lane, index in zip(lanes[places], offset // size, strict=True):
                out[lane] = word[index]
                word[index] += more[lane]
            self.tracker.touched(allocation, size).mark_atomic(offset, size)
        return out

    # ---- what a profiler counts ------------------------------------------------------------------

    def count(self, space: Space, address: Array, lanes: Array, size: int) -> None:
        traffic = self.counts.traffic.get(self.now)
        if traffic is None:
            traffic = Traffic(self.machine.kernel.code[self.now])
            self.counts.traffic[self.now] = traffic
        if traffic.times == COUNTED:
            return
        traffic.times += 1
        warp = (lanes // WARP).astype(np.uint64)
        different = distinct(warp << np.uint64(48) | address)
        traffic.requests += distinct(warp).size
        traffic.bytes += different.size * size
        if space is not self.shared:
            traffic.pieces += distinct(different >> np.uint64(5)).size
            return
        # A wavefront serves a word of each bank; 8 bytes a lane take half a warp, 16 a quarter.
        per_group = WARP * 4 // max(size, 4)
        group = (lanes // per_group).astype(np.int64)
        words = np.arange(max(size // 4, 1), dtype=np.int64)
        word = (address.astype(np.int64) // 4)[:, None] + words
        key = distinct((group[:, None] << 32 | word).ravel())
        banks = np.bincount(
            (key >> 32) * WARP + (key & 31), minlength=(int(group.max()) + 1) * WARP
        )
        traffic.pieces += int(banks.reshape(-1, WARP).max(1).sum())
        traffic.least += distinct(group).size


def distinct(values: Array) -> Array:
    """As np.unique, which takes twice the time for so few."""
    values = np.sort(values)
    return values[np.concatenate(([True], values[1:] != values[:-1]))]


def variables(arrays: Sequence[Variable], memory: Space, base: int) -> dict[str, int]:
    """Puts a module's own arrays into memory; returns their addresses."""
    found = {}
    for array in arrays:
        base += -base % max(array.align, 256)
        allocation = Allocation(base, array.size, True, array.name)
        allocation.data[: array.size] = np.frombuffer(
            array.initial.ljust(array.size, b"\0"), np.uint8
        )
        memory.add(allocation)
        found[array.name] = base
        base += array.size + 256
    return found
