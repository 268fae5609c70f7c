"""Small parallel programs in PTX's own words, for memory_model.py.

A line is an instruction: `st.release.gpu f 1`, `ld.acquire.sys a f` (a register, a location),
`atom.add b f 1`, `fence.sc.cta`, `bar.sync`, `stop a 1` (the thread goes on only if a is 1),
`wait a 1` (it loops until a is 1). A value may be a register.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from memory_model import SCOPES, Blocked, Memory, Op, Program, Thread

MEMBAR = {"cta": "cta", "gl": "gpu", "sys": "sys"}


def operation(opcode: str, at: str = "") -> Op:
    """What an instruction of PTX does to memory."""
    name, *qualifiers = opcode.split(".")
    scope = next((q for q in qualifiers if q in SCOPES), "")
    order = next((q for q in ("acquire", "release", "acq_rel", "relaxed") if q in qualifiers), "")
    if name == "membar":  # "membar.level is a synonym for fence.sc.scope"
        return Op("F", order="sc", scope=MEMBAR[qualifiers[0]])
    if name == "fence":
        return Op("F", order=order or "sc", scope=scope or "sys")
    if name in ("bar", "barrier"):
        return Op("B", at)
    if name in ("atom", "red"):  # "defaults to relaxed", "defaults to gpu scope"
        return Op("U", at, order or "relaxed", scope or "gpu")
    if name not in ("ld", "st"):
        raise ValueError(f"{opcode} is not known to the memory model")
    kind = "R" if name == "ld" else "W"
    if "volatile" in qualifiers:
        return Op(kind, at, "relaxed", "sys")
    return Op(kind, at, order or "weak", scope or "sys", nc="nc" in qualifiers)


def runner(text: str) -> Callable[[Memory], dict[str, int]]:
    lines = [line.split() for line in text.replace(";", "\n").splitlines() if line.strip()]

    def run(memory: Memory) -> dict[str, int]:
        registers: dict[str, int] = {}
        reads: dict[str, set[int]] = {}  # what a register depends on
        control: set[int] = set()

        def value(word: str) -> int:
            return registers[word] if word in registers else int(word)

        for opcode, *words in lines:
            if opcode in ("stop", "wait"):
                control |= reads[words[0]]
                if registers[words[0]] != value(words[1]):
                    if opcode == "wait":
                        raise Blocked
                    return registers
                continue
            op = operation(
                opcode, words[-1] if opcode.startswith("ld") else words[0] if words else ""
            )
            if op.kind == "R":
                place = len(memory.events)
                registers[words[0]] = memory.do(op)
                reads[words[0]] = {place}
            elif op.kind == "U":
                place = len(memory.events)
                more = value(words[2])
                add = (lambda n: lambda old: (old or 0) + n)(more)
                update = replace(op, at=words[1])
                registers[words[0]] = memory.do(update, add, control)
                reads[words[0]] = {place}
            else:
                of = reads.get(words[1], set()) if op.kind == "W" else set()
                memory.do(op, value(words[1]) if op.kind == "W" else None, control | of)
        return registers

    return run


def program(*threads: str | tuple[str, int, int], **initial: int) -> Program:
    """A thread is its text, in a block of its own on GPU 0, or text, block and GPU."""
    made = []
    for i, thread in enumerate(threads):
        text, cta, gpu = (thread, i, 0) if isinstance(thread, str) else thread
        made.append(Thread(runner(text), cta, gpu))
    return Program(made, initial)


def allows(state: dict[str, int], *threads: str | tuple[str, int, int], **initial: int) -> bool:
    """May all registers of `state` have these values in the end? Names differ between threads."""

    def reached(results: list[dict[str, int]]) -> bool:
        ends = {name: value for result in results for name, value in result.items()}
        return all(ends.get(name) == value for name, value in state.items())

    return program(*threads, **initial).allows(reached)
