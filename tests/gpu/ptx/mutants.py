"""Breaks kernels, an instruction of their PTX at a time; the interpreter must object every time.

    python tests/gpu/ptx/mutants.py RECORDING PROGRAM FILE.ptx...

RECORDING and PROGRAM as for replay.py. Removed are: every barrier of a block and of a warp; the
first store to shared memory; the branch around what lanes beyond the end must not do. Changed is
one sum, which is rounded to zero instead of to nearest. Prints a line of JSON per mutant: the
kernel, the instruction, what stands in its place, and what the interpreter says.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from decode import Unknown
from memory import Wrong
from parser import Instruction, Kernel
from replay import Replay, plain_name, short_name, symbols

# One of each kind of kernel that has barriers, and one that has only guards. Types as numbers.
KERNELS = ("select_kernel", "down_kernel<2>", "rms_norm_kernel<0>", "heads_kernel",
           "matmul_kernel<8, 1>")  # fmt: skip
# Those whose first sum in the code is executed, and inexact.
SUMS = ("rms_norm_kernel<0>", "matmul_kernel<8, 1>", "heads_kernel")
# It has copies of its barriers for each kind of norm: tests/gpu/mutants.py removes them all.
IN_COPIES = "heads_kernel"


@dataclass(frozen=True)
class Mutant:
    kernel: str  # its plain name
    place: int
    was: Instruction
    instead: Instruction

    def apply(self, kernel: Kernel) -> Kernel:
        code = list(kernel.code)
        code[self.place] = self.instead
        return replace(kernel, code=code)


def places(kernel: Kernel, opcode: str, guarded: bool = False) -> list[int]:
    """Where instructions stand whose name begins so."""
    return [
        k
        for k, i in enumerate(kernel.code)
        if i.opcode.startswith(opcode) and bool(i.guard) >= guarded
    ]


def mutants(name: str, kernel: Kernel) -> Iterator[Mutant]:
    removed = [] if short_name(kernel.name) == IN_COPIES else places(kernel, "bar.")
    removed += places(kernel, "st.shared")[:1]
    if short_name(kernel.name).startswith("matmul"):
        removed += places(kernel, "bra", guarded=True)[:1]
    for place in removed:
        was = kernel.code[place]
        nothing = replace(was, opcode="nanosleep.u32", operands=("0",), guard="")
        yield Mutant(name, place, was, nothing)
    for place in places(kernel, "add.rn.f32")[:1] if short_name(kernel.name) in SUMS else []:
        was = kernel.code[place]
        yield Mutant(name, place, was, replace(was, opcode="add.rz.f32"))


def first_launches(replay: Replay, folder: Path, names: dict[int, str]) -> Iterator[Any]:
    """The recorded launches of KERNELS, with memory as it was."""
    for event in replay.launches(folder):
        mangled = names[event["kernel"]]
        if short_name(mangled) in KERNELS and plain_name(mangled) in replay.kernels:
            yield event, mangled
        replay.adopt(event, folder)


def main() -> int:
    if len(sys.argv) < 4:
        print(__doc__, file=sys.stderr)
        return 2
    folder, program, *files = map(Path, sys.argv[1:])
    names = symbols(program)
    replay = Replay.of(file.read_text() for file in files)
    said: dict[Mutant, str] = {}
    for event, mangled in first_launches(replay, folder, names):
        name = plain_name(mangled)
        kernel, found = replay.kernels[name]
        for mutant in mutants(name, kernel()):
            if said.get(mutant):
                continue
            saved = [(a, a.data.copy(), a.shadow.copy()) for a in replay.memory.allocations]
            replay.kernels[name] = (partial(mutant.apply, kernel()), found)
            try:
                replay.run(event, mangled, folder)
                said[mutant] = ""
            except (Wrong, Unknown) as error:
                said[mutant] = str(error)
            replay.kernels[name] = (kernel, found)
            for allocation, data, shadow in saved:
                allocation.data[:], allocation.shadow[:] = data, shadow
                allocation.note_written()
    for mutant, text in said.items():
        shown = {"kernel": short_name(replay.kernels[mutant.kernel][0]().name)}
        print(
            json.dumps(
                {**shown, "was": str(mutant.was), "instead": mutant.instead.opcode, "says": text}
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
