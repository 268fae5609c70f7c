"""A checker of small parallel programs under the memory model of PTX.

It enumerates the executions of a few threads and says whether one of them ends in a state that is
asked for. The model is that of the PTX manual ("Memory Consistency Model") and of Lustig,
Sahasrabuddhe and Giroux, "A Formal Analysis of the NVIDIA PTX Memory Consistency Model", ASPLOS
2019: accesses are weak or strong, strong ones have a scope; morally strong pairs; release and
acquire patterns; observation, synchronisation and causality order; the six axioms. Where the
manual's later editions order more than the paper, the paper is followed, so that what is shown here
to be impossible is impossible under both.

Left out: accesses of different sizes that overlap, and proxies other than the generic one and
non-coherent loads (ld.nc). Those may return any value that was ever written to their location.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations, product
from typing import Any

SCOPES = ("cta", "gpu", "sys")
FENCES = {"acq_rel", "sc"}


@dataclass(frozen=True)
class Op:
    """What a thread does: R read, W write, U atomic update, F fence, B barrier.

    Barriers of one name meet: the k-th of each thread with the k-th of all others.
    """

    kind: str
    at: str = ""  # location, or name of the barrier
    order: str = "weak"  # weak, relaxed, acquire, release, acq_rel, sc
    scope: str = "sys"
    nc: bool = False  # through the read-only cache


@dataclass(frozen=True)
class Event:
    op: Op
    read: int | None = None
    written: int | None = None
    depends: frozenset[int] = frozenset()  # on which reads of its thread, by place


class Blocked(Exception):
    """A thread waits for ever: its execution is of no interest."""


class Unknown(Exception):
    """A read whose value has not been chosen yet."""


class Memory:
    """What a running thread calls. Answers reads from a list, and notes everything."""

    def __init__(self, answers: Sequence[int]) -> None:
        self.answers = answers
        self.events: list[Event] = []
        self.n_read = 0

    def do(
        self,
        op: Op,
        write: Callable[[int | None], int] | int | None = None,
        depends: Iterable[int] = (),
    ) -> int:
        """Performs an operation; returns what it read. `write`: the value, or what makes it of the
        value that is there."""
        value = None
        if op.kind in "RU":
            if self.n_read == len(self.answers):
                raise Unknown(op.at)
            value = self.answers[self.n_read]
            self.n_read += 1
        written = None
        if op.kind in "WU":
            written = write(value) if callable(write) else write
        self.events.append(Event(op, value, written, frozenset(depends)))
        return 0 if value is None else value


@dataclass(frozen=True)
class Thread:
    """One thread: where it runs, and what it does. `run` is called many times and must do the same
    whenever it is given the same values. The host's threads have a gpu of their own."""

    run: Callable[[Memory], object]
    cta: int = 0
    gpu: int = 0


@dataclass
class Trace:
    events: list[Event]
    result: Any


def n_writes(trace: Trace) -> int:
    return sum(event.written is not None for event in trace.events)


@dataclass
class Program:
    threads: Sequence[Thread]
    initial: dict[str, int] = field(default_factory=dict)  # 0 where nothing is said

    def traces(self) -> list[list[Trace]]:
        """What each thread can do, for all values that its reads might return."""
        values: dict[str, set[int]] = {}
        rounds = 0
        while True:
            before = {at: set(v) for at, v in values.items()}
            found = [list(self.of_thread(thread, values)) for thread in self.threads]
            for trace in (trace for of_thread in found for trace in of_thread):
                for event in trace.events:
                    if event.written is not None:
                        values.setdefault(event.op.at, set()).add(event.written)
            # A value comes from a chain of writes, in which each occurs once: as no value comes out
            # of thin air, longer chains need not be tried.
            writes = sum(max(map(n_writes, of_thread), default=0) for of_thread in found)
            rounds += 1
            if values == before or rounds > writes:
                return found

    def of_thread(self, thread: Thread, values: dict[str, set[int]]) -> Iterator[Trace]:
        todo: list[tuple[int, ...]] = [()]
        while todo:
            answers = todo.pop()
            memory = Memory(answers)
            try:
                result = thread.run(memory)
            except Blocked:
                continue
            except Unknown as read:
                at = str(read)
                first = self.initial.get(at, 0)
                todo += [(*answers, v) for v in sorted(values.get(at, set()) | {first})]
                continue
            yield Trace(memory.events, result)

    def allows(self, state: Callable[[list[Any]], bool]) -> bool:
        """Is there an execution after which `state` is true of the threads' results?"""
        for traces in product(*self.traces()):
            if state([trace.result for trace in traces]):
                execution = Execution(self, [trace.events for trace in traces])
                if execution.meets() and execution.consistent():
                    return True
        return False


# ---- relations: row i of a list holds the set of what i is related to, as bits -------------------

Relation = list[int]


def bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def compose(a: Relation, b: Relation) -> Relation:
    out = []
    for row in a:
        all_of = 0
        for j in bits(row):
            all_of |= b[j]
        out.append(all_of)
    return out


def union(*relations: Relation) -> Relation:
    out = [0] * len(relations[0])
    for relation in relations:
        out = [x | y for x, y in zip(out, relation, strict=True)]
    return out


def meet(a: Relation, b: Relation) -> Relation:
    return [x & y for x, y in zip(a, b, strict=True)]


def closure(a: Relation) -> Relation:
    out = list(a)
    for k in range(len(out)):
        for i in range(len(out)):
            if out[i] >> k & 1:
                out[i] |= out[k]
    return out


def inverse(a: Relation) -> Relation:
    out = [0] * len(a)
    for i, row in enumerate(a):
        for j in bits(row):
            out[j] |= 1 << i
    return out


def irreflexive(a: Relation) -> bool:
    return not any(row >> i & 1 for i, row in enumerate(a))


def acyclic(a: Relation) -> bool:
    return irreflexive(closure(a))


class Execution:
    """The events of all threads, and whether memory can have behaved so."""

    def __init__(self, program: Program, threads: list[list[Event]]) -> None:
        self.program = program
        self.events: list[Event] = [event for events in threads for event in events]
        self.thread = [t for t, events in enumerate(threads) for _ in events]
        self.n = n = len(self.events)
        first = [self.thread.index(t) if t in self.thread else 0 for t in range(len(threads))]
        self.po = [0] * n
        self.dep = [0] * n
        for i in range(n):
            for j in range(n):
                if self.thread[i] == self.thread[j] and i < j:
                    self.po[i] |= 1 << j
            for read in self.events[i].depends:
                self.dep[first[self.thread[i]] + read] |= 1 << i
        ops = [event.op for event in self.events]
        self.reads = [i for i in range(n) if ops[i].kind in "RU"]
        self.writes = [i for i in range(n) if ops[i].kind in "WU"]
        memory = [op.kind in "RWU" for op in ops]
        self.same = self.where(
            lambda i, j: i != j and memory[i] and memory[j] and ops[i].at == ops[j].at
        )
        self.strong = [
            op.kind == "F" or (memory[i] and op.order != "weak") for i, op in enumerate(ops)
        ]
        self.ms = self.where(self.morally_strong)
        self.po_loc = meet(self.po, self.same)
        coherent = sum(1 << i for i in range(n) if not ops[i].nc)
        self.po_loc = [
            row & coherent if coherent >> i & 1 else 0 for i, row in enumerate(self.po_loc)
        ]
        self.coherent = coherent

    def where(self, related: Callable[[int, int], bool]) -> Relation:
        return [sum(1 << j for j in range(self.n) if related(i, j)) for i in range(self.n)]

    def includes(self, i: int, j: int) -> bool:
        """Does the scope of event i hold the thread of event j?"""
        a, b = (self.program.threads[self.thread[k]] for k in (i, j))
        scope = self.events[i].op.scope
        return scope == "sys" or (a.gpu == b.gpu and (scope == "gpu" or a.cta == b.cta))

    def morally_strong(self, i: int, j: int) -> bool:
        a, b = self.events[i].op, self.events[j].op
        if i == j or "B" in (a.kind, b.kind) or a.nc or b.nc:
            return False
        if a.kind != "F" and b.kind != "F" and a.at != b.at:
            return False
        if self.thread[i] == self.thread[j]:
            return True
        strong = self.strong[i] and self.strong[j]
        return strong and self.includes(i, j) and self.includes(j, i)

    def barriers(self) -> dict[tuple[str, int], list[int]]:
        """The events that meet, by the barrier's name and the number of the meeting."""
        found: dict[tuple[str, int], list[int]] = {}
        count: dict[tuple[int, str], int] = {}
        for i, event in enumerate(self.events):
            if event.op.kind == "B":
                key = (self.thread[i], event.op.at)
                count[key] = count.get(key, 0) + 1
                found.setdefault((event.op.at, count[key]), []).append(i)
        return found

    def meets(self) -> bool:
        """Does every barrier see all its threads?"""
        groups = self.barriers()
        return all(len(group) == len(groups[name, 1]) for (name, _), group in groups.items())

    def sources(self) -> Iterator[dict[int, int]]:
        """The writes that reads may read from, by read; -1: the initial value."""
        choices = []
        for r in self.reads:
            op, value = self.events[r].op, self.events[r].read
            writes = [w for w in self.writes if self.same[r] >> w & 1]
            choice = [w for w in writes if self.events[w].written == value]
            if self.program.initial.get(op.at, 0) == value:
                choice.append(-1)
            choices.append(choice)
        for chosen in product(*choices):
            yield dict(zip(self.reads, chosen, strict=True))

    def orders(self, group: list[int], related: Relation) -> Iterator[Relation]:
        """The ways to order all related pairs of a group."""
        seen = set()
        for order in permutations(group):
            rows = [0] * self.n
            for k, i in enumerate(order):
                rows[i] = sum(1 << j for j in order[k + 1 :]) & related[i]
            if tuple(rows) not in seen:
                seen.add(tuple(rows))
                yield rows

    def consistent(self) -> bool:
        fences = [i for i, e in enumerate(self.events) if e.op.kind == "F" and e.op.order == "sc"]
        places = {self.events[w].op.at for w in self.writes}
        by_place = [[w for w in self.writes if self.events[w].op.at == at] for at in sorted(places)]
        for source in self.sources():
            rf = [0] * self.n
            for read, write in source.items():
                if write >= 0:
                    rf[write] |= 1 << read
            if not acyclic(union(rf, self.dep)):  # no values out of thin air
                continue
            for sc in self.orders(fences, self.ms):
                cause = self.cause(rf, sc)
                if not irreflexive(compose(sc, cause)):  # Fence-SC
                    continue
                for orders in product(*(self.orders(group, self.ms) for group in by_place)):
                    if self.coherent_with(source, rf, cause, union([0] * self.n, *orders)):
                        return True
        return False

    def observation(self, rf: Relation) -> Relation:
        """From a write to the reads that see it, also through atomic updates of what they saw."""
        direct = meet(rf, self.ms)
        # An update is one event: what reads it has observed what it observed.
        updates = sum(1 << i for i, e in enumerate(self.events) if e.op.kind == "U")
        out = list(direct)
        while True:
            new = union(out, compose([row & updates for row in out], out))
            if new == out:
                return out
            out = new

    def cause(self, rf: Relation, sc: Relation) -> Relation:
        n, ops = self.n, [event.op for event in self.events]
        seen = self.observation(rf)
        reading, writing = set(self.reads), set(self.writes)
        sync = list(sc)
        for i in range(n):
            for j in range(n):
                if self.ms[i] >> j & 1 and self.synchronises(i, j, ops, seen, reading, writing):
                    sync[i] |= 1 << j
        for group in self.barriers().values():
            for i in group:
                sync[i] |= sum(1 << j for j in group if j != i)
        po = [row | 1 << i for i, row in enumerate(self.po)]
        base = closure(compose(compose(po, sync), po))
        # A non-coherent load is ordered by nothing.
        base = [row & self.coherent if self.coherent >> i & 1 else 0 for i, row in enumerate(base)]
        return union(base, compose(seen, union(base, self.po_loc)))

    def synchronises(
        self,
        i: int,
        j: int,
        ops: list[Op],
        seen: Relation,
        reading: set[int],
        writing: set[int],
    ) -> bool:
        """Does a release pattern that begins with i meet an acquire pattern that ends with j?"""
        a, b = ops[i], ops[j]
        if a.kind == "F" and a.order in FENCES:
            released = [w for w in bits(self.po[i]) if w in writing and self.strong[w]]
        elif i in writing and a.order in ("release", "acq_rel"):
            released = [i, *(w for w in bits(self.po_loc[i]) if w in writing and self.strong[w])]
        else:
            return False
        before = [k for k in range(self.n) if self.po[k] >> j & 1 and k in reading]
        if b.kind == "F" and b.order in FENCES:
            acquired = [r for r in before if self.strong[r]]
        elif j in reading and b.order in ("acquire", "acq_rel"):
            acquired = [j, *(r for r in before if self.same[r] >> j & 1 and self.strong[r])]
        else:
            return False
        return any(seen[w] >> r & 1 for w in released for r in acquired)

    def coherent_with(
        self, source: dict[int, int], rf: Relation, cause: Relation, chosen: Relation
    ) -> bool:
        """The axioms that know the order of writes: that of morally strong writes is given, and
        causality adds to it; others have none."""
        writes = sum(1 << w for w in self.writes)
        caused = [
            row & writes if i in self.writes else 0
            for i, row in enumerate(meet(cause, union(self.same, [1 << i for i in range(self.n)])))
        ]
        co = closure(union(chosen, caused))
        if not irreflexive(co):  # coherence
            return False
        fr = [0] * self.n
        for read, write in source.items():
            later = self.same[read] & writes if write < 0 else co[write]
            fr[read] = later & ~(1 << read)
        for update in (i for i in self.reads if i in self.writes):  # atomicity
            between = fr[update] & self.ms[update]
            if any(co[w] >> update & 1 and self.ms[w] >> update & 1 for w in bits(between)):
                return False
        communication = meet(union(rf, co, fr), self.ms)
        if not acyclic(union(communication, self.po_loc)):  # sequential per location
            return False
        return irreflexive(compose(union(rf, fr), cause))  # causality
