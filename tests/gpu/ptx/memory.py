"""Memory of the interpreter: allocations, what has been written, and who touched it last."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = Any  # numpy's types, which it is installed without where mypy runs

WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
ONES = {size: WORDS[size](int.from_bytes(b"\x01" * size, "little")) for size in WORDS}
PAD = 16  # the widest access: allocations end at a multiple of it
WARP = 32
SHARED = 0x7F00_0000_0000  # where generic addresses of shared memory begin


class Wrong(Exception):
    """Something that a kernel must not do."""


class Touched:
    """Who wrote and read each part of an allocation last, since a launch began. A part is a word of
    4 bytes, or a byte once there was a smaller access. Threads are numbered over the block; an
    interval lasts from barrier to barrier of one block, and has a number of its own."""

    def __init__(self, size: int) -> None:
        self.unit = 4  # bytes of a part
        n = size // self.unit
        self.w_interval = np.full(n, -1, np.int32)
        self.w_thread = np.zeros(n, np.int32)
        self.w_step = np.zeros(n, np.int32)  # of the thread's warp: its bar.warp.sync so far
        self.w_line = np.zeros(n, np.int32)
        self.r_interval = np.full(n, -1, np.int32)
        self.r_thread = np.zeros(n, np.int32)  # -1: several of one warp, -2: of several warps
        self.r_warp = np.zeros(n, np.int32)
        self.r_step = np.zeros(n, np.int32)
        self.r_line = np.zeros(n, np.int32)
        self.atomic = np.zeros(n, np.bool_)

    def split(self) -> None:
        """From words to bytes."""
        for name, values in list(vars(self).items()):
            if name != "unit":
                setattr(self, name, np.repeat(values, self.unit))
        self.unit = 1

    def parts(self, offset: Array, size: int) -> Array:
        """The parts of accesses of `size` bytes."""
        first = offset // self.unit
        if size == self.unit:
            return first
        return (first[:, None] + np.arange(size // self.unit)).ravel()

    def mark_atomic(self, offset: Array, size: int) -> None:
        self.atomic[self.parts(offset, size)] = True

    def by_byte(self, values: Array) -> Array:
        return np.repeat(values, self.unit)


class Allocation:
    def __init__(
        self, base: int, size: int, written: bool, name: str = "", host: bool = False
    ) -> None:
        self.base, self.size, self.name, self.host = base, size, name, host
        self.data = np.full(size + (-size) % PAD, 0xA5, np.uint8)
        self.shadow = np.full(self.data.size, int(written), np.uint8)
        self.words = {s: self.data.view(t) for s, t in WORDS.items()}
        self.shadows = {s: self.shadow.view(t) for s, t in WORDS.items()}
        self.all_written = written
        self.touched: Touched | None = None

    def note_written(self) -> None:
        self.all_written = bool(self.shadow[: self.size].all())

    def place(self) -> str:
        return self.name or f"the {self.size} bytes at {self.base:#x}"


@dataclass
class Space:
    """Allocations by address."""

    name: str
    allocations: list[Allocation] = field(default_factory=list)
    bases: Array = None
    latest: Allocation | None = None  # what was accessed last, to be looked at first

    def add(self, allocation: Allocation) -> None:
        self.allocations.append(allocation)
        self.allocations.sort(key=lambda a: a.base)
        self.index()

    def remove(self, base: int) -> None:
        self.allocations = [a for a in self.allocations if a.base != base]
        self.index()

    def index(self) -> None:
        self.latest = None
        self.bases = np.array([a.base for a in self.allocations], np.uint64)

    def at(self, address: int) -> Allocation:
        for allocation in self.allocations:
            if allocation.base <= address < allocation.base + allocation.size:
                return allocation
        raise Wrong(f"no allocation at {address:#x}")

    def parts(self, address: Array, size: int) -> list[tuple[Allocation, Array, Array]]:
        """The allocation of each address, the places in `address`, and the offsets."""
        if (address & np.uint64(size - 1)).any():
            bad = int(address[np.flatnonzero(address & np.uint64(size - 1))[0]])
            raise Wrong(f"misaligned: {size} bytes at {bad:#x}")
        if (latest := self.latest) and latest.base <= int(address.min()):
            offset = (address - np.uint64(latest.base)).astype(np.int64)
            if int(offset.max()) + size <= latest.size:
                return [(latest, slice(None), offset)]
        which: Array = np.searchsorted(self.bases, address, side="right") - 1
        first = int(which[0])
        if (which == first).all():
            kinds: list[tuple[int, Any]] = [(first, slice(None))]
        else:
            kinds = [(int(k), np.flatnonzero(which == k)) for k in np.unique(which)]
        found = []
        for k, places in kinds:
            some = address[places]
            if k < 0:
                raise Wrong(f"no {self.name} memory at {int(some[0]):#x}")
            allocation = self.allocations[k]
            offset = (some - np.uint64(allocation.base)).astype(np.int64)
            if int(offset.max()) + size > allocation.size:
                over = int(offset.max()) + size - allocation.size
                raise Wrong(
                    f"out of bounds: {size} bytes that end {over} beyond {allocation.place()}"
                )
            found.append((allocation, places, offset))
            self.latest = allocation
        return found


class Tracker:
    """Finds races: a byte that one thread writes and another one touches, with no barrier between
    them. Atomic accesses race with nothing here: their order is the memory model's affair."""

    def __init__(self, threads: int) -> None:
        self.interval = 0  # of the running block
        self.first = 0  # the first interval of this block
        self.warp = np.arange(threads, dtype=np.int32) // WARP
        # Of each warp: how often its lanes have met at bar.warp.sync, and at any collective. What
        # was read has come before its lane meets others; what was written need not be seen after
        # shfl.sync or vote.sync, which order no memory.
        self.step = np.zeros(threads // WARP, np.int32)
        self.met = np.zeros(threads // WARP, np.int32)

    def begin_block(self) -> None:
        self.interval += 1
        self.first = self.interval
        self.step[:] = 0
        self.met[:] = 0

    def touched(self, allocation: Allocation, size: int) -> Touched:
        """Who touched it, in parts that suit an access of so many bytes."""
        if allocation.touched is None:
            allocation.touched = Touched(allocation.data.size)
        if size < allocation.touched.unit:
            allocation.touched.split()
        return allocation.touched

    def touch(
        self,
        allocation: Allocation,
        offset: Array,
        size: int,
        threads: Array,
        line: int,
        write: bool,
    ) -> None:
        of = self.touched(allocation, size)
        at = of.parts(offset, size)
        thread = np.repeat(threads, size // of.unit).astype(np.int32)
        warp = self.warp[thread]
        met = self.met[warp]
        # Another thread wrote it, in this interval or in another block.
        wrote = of.w_interval[at]
        race = (wrote >= 0) & (wrote < self.first)
        here = wrote == self.interval
        if here.any():
            other = of.w_thread[at]
            ordered = (self.warp[other] == warp) & (of.w_step[at] < self.step[warp])
            race |= here & (other != thread) & ~ordered
        self.refuse(race, of, allocation, at, of.w_line, thread, line, "wrote")
        readers = of.r_interval[at]
        now = readers == self.interval
        if write:
            race = (readers >= 0) & (readers < self.first)
            if now.any():
                same = of.r_warp[at] == warp
                alone = same & ((of.r_thread[at] == thread) | (of.r_step[at] < met))
                race |= now & ~alone
            self.refuse(race, of, allocation, at, of.r_line, thread, line, "read")
            of.w_interval[at] = self.interval
            of.w_thread[at] = thread
            of.w_step[at] = self.step[warp]
            of.w_line[at] = line
            race = of.w_thread[at] != thread  # two threads at once
            self.refuse(race, of, allocation, at, of.w_line, thread, line, "wrote")
            return
        # Several readers: of the latest one only what all have in common is kept.
        if now.any():
            many = now & (of.r_warp[at] != warp)
            several = now & (of.r_thread[at] != thread) & (many | (of.r_step[at] == met))
            thread = np.where(several, np.int32(-1), thread)
            warp = np.where(many, np.int32(-2), warp)
        of.r_interval[at] = self.interval
        of.r_thread[at] = thread
        of.r_warp[at] = warp
        of.r_step[at] = met
        of.r_line[at] = line
        of.r_warp[at[of.r_warp[at] != warp]] = -2  # warps that read in one instruction
        of.r_thread[at[of.r_thread[at] != thread]] = -1

    def refuse(
        self,
        race: Array,
        of: Touched,
        allocation: Allocation,
        at: Array,
        lines: Array,
        thread: Array,
        line: int,
        did: str,
    ) -> None:
        if race.any() and (race := race & ~of.atomic[at]).any():
            k = int(np.flatnonzero(race)[0])
            raise Wrong(
                f"race: thread {int(thread[k])} meets what another one {did} at PTX line"
                f" {int(lines[at[k]])} (byte {int(at[k]) * of.unit} of {allocation.place()}),"
                " with no barrier between"
            )
