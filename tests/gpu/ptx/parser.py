"""Reads PTX as nvcc writes it: kernels, their parameters, shared arrays and instructions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial

BITS = {"pred": 1, "b8": 8, "b16": 16, "b32": 32, "b64": 64, "f16": 16, "f32": 32, "f64": 64}
BITS |= {f"{kind}{bits}": bits for kind in "us" for bits in (8, 16, 32, 64)}


class Unreadable(Exception):
    """PTX that this reader does not know."""


@dataclass(frozen=True)
class Variable:
    """An array, or a parameter."""

    name: str
    size: int  # bytes
    align: int
    initial: bytes = b""


@dataclass(frozen=True)
class Instruction:
    opcode: str
    operands: tuple[str, ...]
    guard: str  # register of the predicate, or ""
    negated: bool
    line: int  # of the PTX file
    source: str  # file and line of the kernel's source, or ""

    @property
    def parts(self) -> list[str]:
        return self.opcode.split(".")

    def __str__(self) -> str:
        guard = f"@{'!' * self.negated}{self.guard} " if self.guard else ""
        text = f"{guard}{self.opcode} {', '.join(self.operands)}".strip()
        return f"{self.source}{', ' * bool(self.source)}PTX line {self.line}: {text}"


@dataclass
class Kernel:
    name: str
    parameters: list[Variable]
    registers: dict[str, int] = field(default_factory=dict)  # bits, by the name or "prefix<"
    shared: list[Variable] = field(default_factory=list)
    local: list[Variable] = field(default_factory=list)
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def bits(self, register: str) -> int:
        found = self.registers.get(register)
        found = found or self.registers.get(register.rstrip("0123456789") + "<")
        if not found:
            raise Unreadable(f"no register {register}")
        return found


@dataclass
class Module:
    kernels: dict[str, Callable[[], Kernel]]  # which are read when they are asked for
    variables: list[Variable]  # .const and .global


LABEL = re.compile(r"[\w$]+")
VARIABLE = re.compile(
    r"(?:\.(?:visible|extern|weak|const|global|shared|local|param)\s+)*(?:\.align\s+(\d+)\s+)?"
    r"\.(\w+)\s+([\w$%]+)\s*(?:\[(\d*)\])?\s*(?:=\s*(.*))?$",
    re.S,
)


def variable(text: str) -> Variable:
    found = VARIABLE.match(text.strip())
    if not found:
        raise Unreadable(f"not a variable: {text[:80]}")
    align, kind, name, n, initial = found.groups()
    size = BITS[kind] // 8
    count = int(n or 0) if n is not None else 1
    return Variable(name, size * count, int(align or size), values(initial, kind, size * count))


def values(initial: str | None, kind: str, size: int) -> bytes:
    if initial is None:
        return b""
    out = b""
    for word in initial.strip(" {}\n").split(","):
        word = word.strip()
        if kind.startswith("f") or word.startswith(("0f", "0d")):
            out += bytes.fromhex(word[2:])[::-1]
        else:
            width = BITS[kind] // 8
            out += (int(word, 0) & (1 << 8 * width) - 1).to_bytes(width, "little")
    return out.ljust(size, b"\0")


TOKEN = re.compile(r"[^;:{}\n]+|.|\n")
DIRECTIVES = (".loc", ".pragma", ".file")  # each on a line of its own


def statements(body: str, line: int) -> list[tuple[str, int]]:
    """What ends with a semicolon or is a label or a directive, and its line. Braces around
    statements, which only bound the names of registers, are dropped."""
    found, text, begin, depth = [], "", line, 0
    for token in TOKEN.findall(body):
        if token == "\n":
            line += 1
            if text.startswith(DIRECTIVES):
                found.append((text.strip().rstrip(";"), begin))
                text = ""
            continue
        if not text:
            token = token.lstrip()
            begin = line
        if not token or (token in "{}" and not text):
            continue
        depth += {"{": 1, "}": -1}.get(token, 0)
        if token == ";" and depth == 0:
            found.append((text.strip(), begin))
            text = ""
        elif token == ":" and LABEL.fullmatch(text):
            found.append((text + ":", begin))
            text = ""
        else:
            text += token
    return found


def operands(text: str) -> tuple[str, ...]:
    if "{" not in text:
        return tuple(word.strip() for word in text.split(",")) if text else ()
    parts, depth, word = [], 0, ""
    for c in text:
        depth += {"{": 1, "}": -1}.get(c, 0)
        if c == "," and depth == 0:
            parts.append(word.strip())
            word = ""
        else:
            word += c
    return tuple([*parts, word.strip()] if word.strip() else parts)


INSTRUCTION = re.compile(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.S)
REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(.*)$", re.S)


def read_kernel(name: str, header: str, body: str, line: int, files: dict[int, str]) -> Kernel:
    inside = header[header.index("(") + 1 :].strip()
    kernel = Kernel(name, [variable(p) for p in inside.split(",") if p.strip()])
    source = ""
    for text, at in statements(body, line):
        if text.endswith(":"):
            kernel.labels[text[:-1]] = len(kernel.code)
        elif found := REGISTERS.match(text):
            for register in found.group(2).split(","):
                kernel.registers[register.strip().split("<")[0] + "<" * ("<" in register)] = BITS[
                    found.group(1)
                ]
        elif re.match(r"\.loc\s", text):
            _, file, number, *_ = text.replace(",", " ").split()
            source = f"{files.get(int(file), file)}:{number}"
        elif text.startswith(".shared"):
            kernel.shared.append(variable(text))
        elif text.startswith(".local"):
            kernel.local.append(variable(text))
        elif text.startswith("."):
            continue  # .pragma
        else:
            found = INSTRUCTION.match(text)
            if not found:
                raise Unreadable(f"PTX line {at}: {text}")
            negated, guard, opcode, rest = found.groups()
            kernel.code.append(
                Instruction(opcode, operands(rest), guard or "", bool(negated), at, source)
            )
    return kernel


def read(text: str) -> Module:
    text = re.sub(r"//[^\n]*", "", text)
    files = {
        int(n): path.rsplit("/", 1)[-1]
        for n, path in re.findall(r'\.file\s+(\d+)\s+"([^"]+)"', text)
    }
    module = Module({}, [])
    place = 0
    for found in re.finditer(r"\.entry\s+(\w+)\s*\(([^)]*)\)[^{]*\{", text):
        end = text.index("\n}", found.end()) + 2  # braces inside are indented
        module.variables += outside(text[place : found.start()])
        body = text[found.end() : end - 1]
        line = text.count("\n", 0, found.end()) + 1
        name = found.group(1)
        module.kernels[name] = cache(
            partial(read_kernel, name, "(" + found.group(2), body, line, files)
        )
        place = end
    module.variables += outside(text[place:])
    return module


def outside(text: str) -> list[Variable]:
    """The module's own arrays, in what stands between kernels."""
    if re.search(r"\.func\b", text):
        raise Unreadable("functions: all are expected to be inlined")
    found = re.findall(r"^\s*((?:\.\w+\s+)*\.(?:const|global)\s[^;]*);", text, re.M)
    return [variable(one) for one in found]


def immediate(word: str) -> int:
    """The bits of a constant."""
    if word.startswith(("0f", "0F", "0d", "0D")):
        return int(word[2:], 16)
    return int(word.rstrip("U"), 0)
