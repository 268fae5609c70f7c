"""What the machine code of the GPU kernels needs: registers, and issue slots of the hot loops.

    python tests/gpu/sass.py [--arch sm_86] [--json] [FILE.cu ...]

Compiles the kernels as the tests do, disassembles them (nvdisasm, of the CUDA toolkit or of the
package nvidia-cuda-nvdisasm) and prints a line per kernel, and below it one per hot loop:

    registers, bytes of shared memory and of stack, spilled bytes, instructions;
    loop: instructions of an iteration, and those of the loop around it that are in no inner loop;
    conversions and special functions among them; streamed loads by bits a lane; other loads;
    bytes that a warp streams an iteration; instructions per KB of them; and the share of a card's
    issue slots that the loop needs to read at the card's memory speed:

    share = (bytes/s of memory / bytes per instruction) / (multiprocessors * 4 * clock)

A warp loads 32 times the width of a load. **Streamed** are the loads of weights, keys and values,
which come from memory; activations, scales of activations and the like come from a cache. Which
loads are which is read from the line table (-lineinfo, which leaves the code as it is): streamed is
what stands in a function of STREAMED, or all loads in a kernel that calls none of them. Only the
innermost line is trusted: nvdisasm does not say again where it was inlined if that alone changes.

Loops are the natural loops of the control flow graph: what can reach a branch back to a block that
dominates it. Of the loops that load and hold no other loop that does, those whose streamed loads
stand at the same lines of the kernel are one loop of the source, unrolled and its rest: the one
that streams most counts.

What it cannot see:
- how often a loop runs: short rows spend much of their time before the loop and in its rest;
- branches: every instruction of a loop counts, also those that most lanes or rows skip;
- how long an instruction keeps its unit busy: conversions (I2F, F2I, F2F) and special functions
  (MUFU) have a unit of their own with a quarter of the lanes or less, and are only counted;
- latency, occupancy, bank conflicts, and whether lanes read neighbouring bytes. That lanes share
  the scales of 256 weights is not seen either, but known for each type (GROUPS).
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "ggml/src/cuda"
FLAGS = ["-std=c++17", "-fmad=false", "--expt-relaxed-constexpr", "-DGGML_GPU=cuda"]
FLAGS += [f"-I{ROOT / folder}" for folder in ("ggml/include", "ggml/src")]

STREAMED = ("load16", "load", "load8", "load_group")
# Bytes of 32 weights (of a cache: what a lane reads at once) as the loads of lanes, and in memory:
# lanes share what scales more than they hold. By what the name of the kernel begins with and the
# type.
GROUPS = {
    ("", "Q4_0"): (18, 18),
    ("", "Q4_1"): (20, 20),
    ("", "Q5_0"): (22, 22),
    ("", "Q5_1"): (24, 24),
    ("", "Q8_0"): (34, 34),
    ("", "Q2_K"): (14, 10.5),
    ("", "Q3_K"): (16, 14.25),
    ("", "Q4_K"): (22, 18.5),
    ("", "Q5_K"): (26, 22.5),
    ("", "Q6_K"): (28, 26.25),
    ("", "IQ4_NL"): (18, 18),
    ("", "MXFP4"): (17, 17),
    ("", "NVFP4"): (18, 18),
    ("", "IQ4_XS"): (19, 17.25),
}
CONVERSIONS = ("I2F", "F2I", "F2F", "I2I", "FRND", "MUFU")


@dataclass(frozen=True)
class Card:
    bandwidth: float  # bytes/s, of the data sheet
    processors: int
    clock: float  # Hz, boost

    def share(self, bytes_per_instruction: float) -> float:
        """Of the issue slots: a scheduler issues an instruction of a warp each cycle."""
        slots = self.processors * 4 * self.clock
        return self.bandwidth / bytes_per_instruction / slots


CARDS = {
    "2080 Ti": Card(616e9, 68, 1.545e9),
    "3090": Card(936e9, 82, 1.695e9),
    "4090": Card(1008e9, 128, 2.52e9),
    "5090": Card(1792e9, 170, 2.407e9),
}


@dataclass
class Instruction:
    address: int
    op: str  # with its modifiers
    operands: str
    guarded: bool
    frames: list[tuple[str, int]] = field(default_factory=list)  # file and line, innermost first

    @property
    def name(self) -> str:
        return self.op.split(".")[0]

    def load_bits(self) -> int:
        """Of a lane, if this reads global memory; else 0."""
        if self.name not in ("LDG", "LD"):
            return 0
        for part in self.op.split(".")[1:]:
            if part in ("64", "128", "256"):
                return int(part)
            if part in ("U8", "S8", "U16", "S16"):
                return int(part[1:])
        return 32


@dataclass
class Loop:
    line: int  # of the kernel's file, where it streams
    instructions: int
    around: int  # instructions of the loop around it that are in no inner loop
    conversions: int
    loads: dict[int, int]  # streamed, by bits
    other_loads: dict[int, int]
    group: tuple[int, float]  # of GROUPS; 1, 1 where lanes share nothing

    @property
    def loaded(self) -> int:
        """Bytes that the streamed loads of a warp take in an iteration."""
        return sum(32 * bits // 8 * n for bits, n in self.loads.items())

    @property
    def streamed(self) -> float:
        """Bytes of memory that they are."""
        return self.loaded * self.group[1] / self.group[0]

    def shares(self) -> dict[str, float]:
        return {n: c.share(self.streamed / self.instructions) for n, c in CARDS.items()}


@dataclass
class Kernel:
    name: str
    instructions: int
    registers: int = 0
    shared: int = 0
    stack: int = 0
    spilled: int = 0
    loops: list[Loop] = field(default_factory=list)


def nvdisasm() -> str | None:
    """The disassembler: of the toolkit, or of the package."""
    for parent in (p for p in map(Path, sys.path) if p.name in ("site-packages", "dist-packages")):
        for program in sorted(parent.glob("nvidia/*/bin/nvdisasm*")):
            return str(program)
    return shutil.which("nvdisasm")


# ---- names and lines ----------------------------------------------------------------------------


def types() -> dict[int, str]:
    text = (ROOT / "ggml/include/ggml/dtype.h").read_text()
    body = text.split("enum class DType", 1)[1].split("};", 1)[0]
    return {int(value): name for name, value in re.findall(r"(\w+) = (\d+)", body)}


def short_name(mangled: str, names: dict[int, str]) -> str:
    """attention_kernel<F16> of _ZN4ggml4cuda...16attention_kernelILNS_5DTypeE1EEEv..."""
    rest = mangled.removeprefix("_ZN")
    name = ""
    while found := re.match(r"\d+", rest):  # a nested name: the length of each part before it
        size = int(found.group())
        name, rest = rest[found.end() :][:size], rest[found.end() + size :]
    arguments = re.match(r"I((?:L(?:NS_5DTypeE|S\d*_|[a-z])\d+E)+)E", rest)
    values = re.findall(r"L(NS_5DTypeE|S\d*_|[a-z])(\d+)E", arguments.group(1)) if arguments else []
    shown = [names[int(v)] if kind[0] in "NS" else v for kind, v in values]
    return name + (f"<{', '.join(shown)}>" if shown else "")


class Functions:
    """Which function of a source a line belongs to."""

    BEGIN = re.compile(r"^(?:template|__device__|__global__|inline|constexpr|static|struct)\b")

    def __init__(self) -> None:
        self.of_file: dict[str, list[str]] = {}

    def at(self, file: str, line: int) -> str:
        if file not in self.of_file:
            self.of_file[file] = self.read(Path(file)) if ROOT in Path(file).parents else []
        lines = self.of_file[file]
        return lines[line] if line < len(lines) else ""

    def read(self, file: Path) -> list[str]:
        names, name = [""], ""
        text = file.read_text().splitlines()
        for i, line in enumerate(text):
            if self.BEGIN.match(line):
                head = " ".join(text[i : i + 3])
                found = re.search(r"(?:__device__|__global__)[^(;]*?(\w+)\(", head)
                name = found.group(1) if found else name
            names.append(name)
            if line.startswith("}"):
                name = ""
        return names


# ---- control flow -------------------------------------------------------------------------------

HEADER = re.compile(r"^\.text\.(\S+):$")
LABEL = re.compile(r"^\s*(\.L\w+):")
SOURCE = re.compile(r'//## File "([^"]+)", line (\d+)( inlined at)?')
CODE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z]\w*(?:\.\w+)*)\s*(.*?);")
TARGET = re.compile(r"`\((\.L\w+)\)")


def parsed(text: str) -> dict[str, tuple[list[Instruction], dict[str, int]]]:
    """The instructions of each kernel, and where its labels stand in them."""
    kernels: dict[str, tuple[list[Instruction], dict[str, int]]] = {}
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    frames: list[tuple[str, int]] = []
    inner = False  # does the last line of frames say that more follow?
    for line in text.splitlines():
        if found := HEADER.match(line):
            code, labels, frames, inner = [], {}, [], False
            kernels[found.group(1)] = (code, labels)
        elif found := LABEL.match(line):
            labels[found.group(1)] = len(code)
        elif found := SOURCE.search(line):
            frames = [*frames] if inner else []
            frames.append((found.group(1), int(found.group(2))))
            inner = bool(found.group(3))
        elif found := CODE.match(line):
            address, guard, op, operands = found.groups()
            code.append(Instruction(int(address, 16), op, operands, bool(guard), frames))
    return kernels


def successors(code: list[Instruction], labels: dict[str, int]) -> list[list[int]]:
    """Of each instruction. A BSYNC goes on where the BSSY before it says."""
    meets: dict[str, list[tuple[int, int]]] = {}  # barrier -> places of its BSSYs, their targets
    for i, instruction in enumerate(code):
        if instruction.name == "BSSY" and (to := TARGET.search(instruction.operands)):
            barrier = instruction.operands.split(",")[0].strip()
            meets.setdefault(barrier, []).append((i, labels[to.group(1)]))
    out: list[list[int]] = []
    for i, instruction in enumerate(code):
        following = [i + 1] if i + 1 < len(code) else []
        target = TARGET.search(instruction.operands)
        # A CALL to a label of the kernel is a jump of the whole warp, one to a function returns.
        if instruction.name in ("BRA", "JMP") or (instruction.name == "CALL" and target):
            conditional = instruction.guarded or re.match(r"\s*!?U?P\d", instruction.operands)
            jump = [labels[target.group(1)]] if target else []
            out.append(jump + (following if conditional else []))
        elif instruction.name == "BSYNC":
            barrier = instruction.operands.strip()
            earlier = [to for at, to in meets.get(barrier, []) if at < i]
            out.append(earlier[-1:] + (following if instruction.guarded else []) or following)
        elif instruction.name in ("EXIT", "RET", "KILL"):
            out.append(following if instruction.guarded else [])
        else:
            out.append(following)
    return out


def natural_loops(after: list[list[int]]) -> list[set[int]]:
    """The bodies of the loops, as places of instructions; those of one head are one loop."""
    starts = sorted({0} | {t for i, to in enumerate(after) for t in to if to != [i + 1]})
    starts += [i + 1 for i, to in enumerate(after) if to != [i + 1] and i + 1 < len(after)]
    starts = sorted(set(starts))
    block_of = {s: b for b, s in enumerate(starts)}
    ends = [*starts[1:], len(after)]
    edges = [[block_of[t] for t in after[end - 1]] for end in ends]
    before: list[list[int]] = [[] for _ in starts]
    for b, to in enumerate(edges):
        for t in to:
            before[t].append(b)
    order: list[int] = []  # reversed postorder of what can be reached
    seen = {0}
    stack = [(0, iter(edges[0]))]
    while stack:
        b, rest = stack[-1]
        step = next((t for t in rest if t not in seen), None)
        if step is None:
            order.append(b)
            stack.pop()
        else:
            seen.add(step)
            stack.append((step, iter(edges[step])))
    order.reverse()
    dominators = {b: set(order) for b in order}
    dominators[0] = {0}
    changed = True
    while changed:
        changed = False
        for b in order[1:]:
            new = set.intersection(*(dominators[p] for p in before[b] if p in seen)) | {b}
            changed |= new != dominators[b]
            dominators[b] = new
    loops: dict[int, set[int]] = {}
    for b in order:
        for head in edges[b]:
            if head not in dominators[b]:
                continue
            body, todo = loops.setdefault(head, {head}), [b]
            while todo:
                block = todo.pop()
                if block not in body:
                    body.add(block)
                    todo += [p for p in before[block] if p in seen]
    return [{i for b in body for i in range(starts[b], ends[b])} for body in loops.values()]


# ---- kernels ------------------------------------------------------------------------------------


def is_streamed(load: Instruction, functions: Functions) -> bool:
    names = [functions.at(*frame) for frame in load.frames]
    return next((n for n in names if n not in ("", "half_to_float")), "") in STREAMED


def group_of(kernel: str) -> tuple[int, float]:
    name, _, arguments = kernel.partition("<")
    quants = arguments.rstrip(">").split(", ")[0]
    return GROUPS.get((name, quants)) or GROUPS.get(("", quants)) or (1, 1)


def hot_loops(
    kernel: str, code: list[Instruction], labels: dict[str, int], functions: Functions
) -> list[Loop]:
    reads = {i for i, instruction in enumerate(code) if instruction.load_bits()}
    streams = {i for i in reads if is_streamed(code[i], functions)}
    streams = streams or reads
    bodies = natural_loops(successors(code, labels))
    hot = [b for b in bodies if b & streams]
    hot = [b for b in hot if not any(other < b for other in hot)]
    found: dict[int, Loop] = {}
    for body in hot:
        outer = min((b for b in bodies if body < b), key=len, default=body)
        inner = set().union(*(b for b in bodies if b < outer))
        here = [code[i] for i in sorted(body)]
        loop = Loop(
            line=min(code[i].frames[-1][1] if code[i].frames else 0 for i in body & streams),
            instructions=len(body),
            around=len(outer - inner) if outer is not body else 0,
            conversions=sum(i.name in CONVERSIONS for i in here),
            loads=widths(code, body & streams),
            other_loads=widths(code, body & reads - streams),
            group=group_of(kernel),
        )
        kept = found.get(loop.line)
        if kept is None or loop.streamed > kept.streamed:
            found[loop.line] = loop
    return [found[line] for line in sorted(found)]


def widths(code: list[Instruction], places: set[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for i in places:
        counts[code[i].load_bits()] = counts.get(code[i].load_bits(), 0) + 1
    return dict(sorted(counts.items(), reverse=True))


def compiled(nvcc: str, disassembler: str, source: Path, arch: str) -> list[Kernel]:
    """The kernels of a file."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernels.cubin"
        command = [nvcc, *FLAGS, f"-arch={arch}", "-lineinfo", "-cubin", "-Xptxas", "-v"]
        said = run([*command, str(source), "-o", str(cubin)])
        text = run([disassembler, "-c", "-gi", str(cubin)])
    names, functions = types(), Functions()
    kernels = {}
    for mangled, (code, labels) in parsed(text).items():
        kernel = Kernel(short_name(mangled, names), sum(i.name != "NOP" for i in code))
        kernel.loops = hot_loops(kernel.name, code, labels, functions)
        kernels[mangled] = kernel
    for part in said.split("Compiling entry function '")[1:]:
        kernel = kernels[part.split("'")[0]]
        kernel.registers = number(r"Used (\d+) registers", part)
        kernel.shared = number(r"(\d+) bytes smem", part)
        kernel.stack = number(r"(\d+) bytes stack frame", part)
        kernel.spilled = number(r"(\d+) bytes spill stores", part)
    return sorted(kernels.values(), key=lambda k: k.name)


def number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found.group(1)) if found else 0


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit((done.stdout + done.stderr)[-4000:])
    return done.stdout + done.stderr


def report(kernel: Kernel) -> str:
    lines = [
        f"{kernel.name}: {kernel.registers} registers, {kernel.shared} B shared,"
        f" {kernel.stack} B stack, {kernel.spilled} B spilled, {kernel.instructions} instructions"
    ]
    for loop in kernel.loops:
        loads = " ".join(f"{n}x{bits}" for bits, n in loop.loads.items())
        other = " ".join(f"{n}x{bits}" for bits, n in loop.other_loads.items()) or "none"
        shares = "  ".join(f"{name} {share:.0%}" for name, share in loop.shares().items())
        lines.append(
            f"    line {loop.line}: {loop.instructions} (+{loop.around} around),"
            f" {loop.conversions} conv, loads {loads}, other {other};"
            f" {loop.streamed:.0f} B, {loop.instructions / loop.streamed * 1024:.0f} per KB;"
            f"  {shares}"
        )
    return "\n".join(lines)


def as_json(kernel: Kernel) -> dict[str, object]:
    loops = [{**asdict(i), "loaded": i.loaded, "shares": i.shares()} for i in kernel.loops]
    return {**asdict(kernel), "loops": loops}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="of ggml/src/cuda; all by default")
    parser.add_argument("--arch", default="sm_86")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    nvcc, disassembler = shutil.which("nvcc"), nvdisasm()
    if not nvcc or not disassembler:
        print("needs nvcc and nvdisasm (pip install nvidia-cuda-nvdisasm)", file=sys.stderr)
        return 3
    sources = sorted(KERNELS.rglob("*.cu"))
    if arguments.files:
        sources = [s for s in sources if s.name in arguments.files]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda s: compiled(nvcc, disassembler, s, arguments.arch), sources))
    if arguments.json:
        print(json.dumps([as_json(kernel) for file in found for kernel in file], indent=1))
        return 0
    for source, kernels in zip(sources, found, strict=True):
        if kernels:
            print(f"{source.name}, {arguments.arch}")
            print("\n".join(map(report, kernels)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
