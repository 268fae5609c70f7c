"""From an instruction of PTX to a function that does it for the lanes that run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from arithmetic import (
    TYPES,
    UNARY,
    binary,
    compare,
    convert,
    dot4,
    fma32,
    insert_bits,
    permute,
    shift_left,
    shift_right,
)
from memory import SHARED, WARP, WORDS, Wrong
from parser import BITS, Instruction, immediate

if TYPE_CHECKING:
    from machine import Block, Machine

Array = Any
CLOCK = "%globaltimer"  # stands still here
SPECIAL = ("%tid", "%ctaid", "%ntid", "%nctaid", "%laneid", "%warpid", CLOCK)
Get = Callable[["Block"], Array]


class Unknown(Exception):
    """An instruction that the interpreter does not know."""


class Decoder:
    def __init__(self, machine: Machine, instruction: Instruction) -> None:
        self.machine, self.instruction = machine, instruction
        self.name, *self.how = instruction.parts
        self.operands = instruction.operands
        self.type = next((h for h in reversed(self.how) if h in BITS), "")

    def unknown(self) -> Unknown:
        return Unknown(f"{self.instruction.opcode}: {self.instruction}")

    # ---- operands --------------------------------------------------------------------------------

    def get(self, word: str, kind: str) -> Get:
        """A value, as a vector of a type. A register may be wider: its lower part."""
        dtype = np.dtype(TYPES[kind])
        if word.startswith("-%") or word.startswith("!"):
            raise self.unknown()
        if word.startswith("%"):
            if word.split(".")[0] in SPECIAL:
                return lambda b: b.special[word].view(dtype)
            place = self.machine.register(word)
            bits = self.machine.bits[place]
            if bits == 1 or bits == 8 * dtype.itemsize:
                return lambda b: b.registers[place].view(dtype)
            unsigned = np.dtype(f"u{dtype.itemsize}")
            return lambda b: b.registers[place].astype(unsigned).view(dtype)
        if kind == "pred":
            value = np.array([bool(int(word, 0))])
        else:
            number = self.address_of(word)
            mask = (1 << 8 * dtype.itemsize) - 1
            value = np.array([number & mask], f"u{dtype.itemsize}").view(dtype)
        return lambda b: value

    def address_of(self, word: str) -> int:
        """A constant, or the address of an array."""
        if word in self.machine.shared:
            return self.machine.shared[word]
        if word in self.machine.offsets:  # a parameter's place among them
            return self.machine.offsets[word]
        if word in self.machine.variables:
            return self.machine.variables[word]
        return immediate(word)

    def put(self, word: str, kind: str) -> Callable[[Block, Array], None]:
        """Into a register, which may be wider than the type: extended as the type says."""
        place = self.machine.register(word)
        bits = self.machine.bits[place]
        where = self.guard()
        dtype = np.dtype(TYPES[kind])
        if bits != 1 and bits > 8 * dtype.itemsize:
            wide = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{bits // 8}")
            return lambda b, v: b.put(place, v.astype(wide), where(b))
        return lambda b, v: b.put(place, v, where(b))

    def guard(self) -> Callable[[Block], Array]:
        """The lanes that run and whose predicate is true; None: all that run."""
        if not self.instruction.guard:
            return lambda b: None
        predicate = self.predicate()
        return lambda b: b.mask & predicate(b)

    def predicate(self) -> Get:
        place = self.machine.register(self.instruction.guard)
        if self.instruction.negated:
            return lambda b: ~b.registers[place]
        return lambda b: b.registers[place]

    def address(self, word: str) -> Get:
        inside = word.strip("[] ")
        base, _, offset = inside.partition("+")
        if not base.startswith("%"):
            constant = np.array([self.address_of(base) + int(offset or "0", 0)], np.uint64)
            return lambda b: constant
        place = self.machine.register(base.strip())
        if not offset:
            return lambda b: b.registers[place]
        bits = self.machine.bits[place]
        more = np.array([int(offset, 0) & (1 << bits) - 1], WORDS[bits // 8])
        return lambda b: b.registers[place] + more

    # ---- kinds of instructions -------------------------------------------------------------------

    def control(self) -> tuple[str, Any] | None:
        predicate = self.predicate() if self.instruction.guard else None
        if self.name == "bra":
            return "branch", (predicate, self.machine.kernel.labels[self.operands[0]])
        if self.name in ("ret", "exit"):
            return "exit", predicate
        if self.name in ("bar", "barrier") and "warp" not in self.how:
            if predicate or not set(self.how) <= {
                "sync",
                "red",
                "popc",
                "or",
                "and",
                "u32",
                "pred",
                "cta",
            }:
                raise self.unknown()
            if "red" in self.how:
                into, number, votes = self.operands
                how = next(h for h in self.how if h in ("popc", "or", "and"))
                step: Any = (self.get(votes, "pred"), how, self.machine.register(into))
            else:
                number, step = self.operands[0], None
            if number != "0" or len(self.operands) != (3 if step else 1):
                raise self.unknown()  # named barriers, and barriers of a part of the block
            return "barrier", step
        return None

    def memory(self) -> Callable[[Block], None] | None:
        if self.name not in ("ld", "st", "ldu"):
            return None
        if self.type not in TYPES or self.type == "pred":
            raise self.unknown()
        size, where = BITS[self.type] // 8, self.guard()
        n = 4 if "v4" in self.how else 2 if "v2" in self.how else 1
        spaces = ("param", "shared", "global", "local", "const")
        space = next((h for h in self.how if h in spaces), "")
        if space == "local":
            raise self.unknown()
        loads = self.name != "st"
        values, place = self.operands if loads else self.operands[::-1]
        words = [w.strip() for w in values.strip("{} ").split(",")]
        if space == "param":
            of_parameter = self.address(place)
            puts = [self.put(word, self.type) for word in words]
            dtype = TYPES[self.type]

            def parameter(b: Block) -> None:
                found = np.broadcast_to(of_parameter(b), (b.threads,))[b.active]
                at = int(found[0])
                if (found != at).any() or at + n * size > len(b.parameters):
                    raise Wrong("a parameter that is not the same for all lanes")
                for k, put in enumerate(puts):
                    put(b, b.parameters[at + k * size : at + (k + 1) * size].view(dtype))

            return parameter
        address = self.address(place)
        if loads:
            puts = [self.put(word, self.type) for word in words]
            dtype = np.dtype(TYPES[self.type])

            def load(b: Block) -> None:
                found = b.load(space, address(b), size, n, where(b))
                for put, value in zip(puts, found, strict=True):
                    put(b, value.view(dtype))

            return load
        gets = [self.get(word, f"b{8 * size}") for word in words]

        def store(b: Block) -> None:
            b.store(space, address(b), [get(b) for get in gets], size, where(b))

        return store

    def atomic(self) -> Callable[[Block], None] | None:
        if self.name not in ("atom", "red"):
            return None
        if "add" not in self.how or self.type not in ("u32", "s32", "u64"):
            raise self.unknown()
        operands = self.operands if self.name == "atom" else ("", *self.operands)
        address, more = self.address(operands[1]), self.get(operands[2], self.type)
        size, where = BITS[self.type] // 8, self.guard()
        space = next((h for h in self.how if h in ("global", "shared")), "")
        put = self.put(operands[0], self.type) if operands[0] not in ("", "_") else None
        unsigned = WORDS[size]

        def add(b: Block) -> None:
            before = b.atomic_add(address(b), more(b).view(unsigned), size, where(b), space)
            if put:
                put(b, before)

        return add

    def collective(self) -> Callable[[Block], None] | None:
        if self.name == "bar":
            mask = self.get(self.operands[0], "u32")

            def meet(b: Block) -> None:
                self.all_there(b, mask(b))
                b.tracker.step[b.warps] += 1

            return meet
        if self.name == "mma" and "sync" in self.how:
            return self.multiply_tiles()
        if self.name == "shfl" and "sync" in self.how:
            return self.shuffle()
        if self.name == "vote" and "sync" in self.how:
            into, votes, mask_word = self.operands
            if votes.startswith("!"):
                raise self.unknown()
            vote, mask = self.get(votes, "pred"), self.get(mask_word, "u32")
            how = next((h for h in self.how if h in ("ballot", "any", "all", "uni")), "")
            if how in ("", "uni"):
                raise self.unknown()
            put = self.put(into, "b32" if how == "ballot" else "pred")
            bit = np.uint32(1) << np.arange(WARP, dtype=np.uint32)

            def ballot(b: Block) -> None:
                self.all_there(b, mask(b))
                yes = (np.broadcast_to(vote(b), (b.threads,)) & b.mask).reshape(-1, WARP)
                if how == "ballot":
                    result = (yes * bit).sum(1, dtype=np.uint32)
                elif how == "any":
                    result = yes.any(1)
                else:
                    result = (yes | ~b.mask.reshape(-1, WARP)).all(1)
                put(b, np.repeat(result, WARP))

            return ballot
        return None

    def all_there(self, b: Block, mask: Array) -> None:
        """Are all lanes that a mask names here, of those that have not ended?"""
        if self.instruction.guard:
            raise self.unknown()
        b.tracker.met[b.warps] += 1
        if b.all and (mask == np.uint32(0xFFFFFFFF)).all():
            return
        named = np.broadcast_to(mask, (b.threads,)).reshape(-1, WARP)
        here, alive = b.mask.reshape(-1, WARP), b.alive.reshape(-1, WARP)
        for warp in np.flatnonzero(here.any(1)):
            masks = np.unique(named[warp][here[warp]])
            if masks.size != 1:
                raise Wrong(f"lanes of warp {warp} name different masks")
            wanted = (int(masks[0]) >> np.arange(WARP) & 1).astype(bool)
            if (here[warp] & ~wanted).any():
                raise Wrong("a lane that its own mask leaves out")
            missing = wanted & alive[warp] & ~here[warp]
            if missing.any():
                raise Wrong(
                    f"a collective without lane {int(np.flatnonzero(missing)[0])} of warp {warp}"
                )

    def shuffle(self) -> Callable[[Block], None]:
        into, value_word, by_word, clamp_word, mask_word = self.operands
        into, _, flag = into.partition("|")
        how = next(h for h in self.how if h in ("bfly", "idx", "up", "down"))
        value, by = self.get(value_word, "b32"), self.get(by_word, "u32")
        clamp, mask = self.get(clamp_word, "u32"), self.get(mask_word, "u32")
        put = self.put(into, "b32")
        put_flag = self.put(flag, "pred") if flag else None

        def move(b: Block) -> None:
            self.all_there(b, mask(b))
            lane = np.arange(b.threads, dtype=np.int64) % WARP
            base = np.arange(b.threads, dtype=np.int64) - lane
            c, n = clamp(b).astype(np.int64), by(b).astype(np.int64)
            segment, last = c >> 8 & 31, c & 31
            most = lane & segment | last & ~segment
            least = lane & segment
            if how == "up":
                source = lane - (n & 31)
                valid = source >= most
            elif how == "down":
                source = lane + (n & 31)
                valid = source <= most
            elif how == "bfly":
                source = lane ^ (n & 31)
                valid = source <= most
            else:
                source = least | n & ~segment & 31
                valid = source <= most
            source = np.where(valid, source, lane) + base
            if not b.all:
                absent = b.mask & ~b.mask[source]
                if absent.any():
                    one = int(np.flatnonzero(absent)[0])
                    raise Wrong(
                        f"thread {one} reads thread {int(source[one])}, which takes no part"
                    )
            put(b, np.broadcast_to(value(b), (b.threads,))[source])
            if put_flag:
                put_flag(b, np.broadcast_to(valid, (b.threads,)))

        return move

    def multiply_tiles(self) -> Callable[[Block], None]:
        """mma.sync of signed bytes: d = a . b + c. A register of a or b holds four bytes in a row,
        of one row of a or column of b; where, is the manual's "fragments"."""
        shape = next((h for h in self.how if h in ("m8n8k16", "m16n8k16", "m16n8k32")), "")
        if not shape or self.how[3:] != ["row", "col", "s32", "s8", "s8", "s32"]:
            raise self.unknown()
        parts = [[w.strip() for w in o.strip("{} ").split(",")] for o in self.operands]
        rows, depth = int(shape[1:].split("n")[0]), int(shape.split("k")[1])
        above = rows // 8  # registers of a for one range of 16 bytes, and of pairs of c
        if [len(p) for p in parts] != [2 * above, above * depth // 16, depth // 16, 2 * above]:
            raise self.unknown()
        puts = [self.put(word, "b32") for word in parts[0]]
        gets = [[self.get(word, "u32") for word in p] for p in parts[1:]]

        def multiply(b: Block) -> None:
            self.all_there(b, np.array([0xFFFFFFFF], np.uint32))
            x, y, z = (
                [np.broadcast_to(get(b), (b.threads,)).reshape(-1, 8, 4) for get in of]
                for of in gets
            )
            warps = b.threads // WARP
            left = np.zeros((warps, rows, depth), np.int32)
            right = np.zeros((warps, 8, depth), np.int32)
            for into, of in ((left, x), (right, y)):
                for k, word in enumerate(of):
                    row = 8 * (k % above) if into is left else 0
                    column = 16 * (k // above if into is left else k)
                    four = np.ascontiguousarray(word).view(np.int8).reshape(warps, 8, 16)
                    into[:, row : row + 8, column : column + 16] = four
            product = np.einsum("wik,wjk->wij", left, right)
            for k, put in enumerate(puts):
                part = product[:, 8 * (k // 2) : 8 * (k // 2) + 8, k % 2 :: 2]
                put(b, (part.astype(np.uint32) + z[k]).reshape(-1))

        return multiply

    def move(self) -> Callable[[Block], None] | None:
        if self.name == "cvta":  # from or to generic addresses: only shared memory has others
            get, put = self.get(self.operands[1], "u64"), self.put(self.operands[0], "u64")
            window = np.uint64(SHARED if "shared" in self.how else 0)
            if "to" in self.how:
                return lambda b: put(b, get(b) - window)
            return lambda b: put(b, get(b) + window)
        if self.name != "mov":
            return None
        into, of = self.operands
        size = BITS[self.type]
        if of.startswith("{"):  # the first is the lowest
            words = [w.strip() for w in of.strip("{} ").split(",")]
            part = size // len(words)
            gets = [self.get(w, f"b{part}") for w in words]
            put = self.put(into, self.type)
            wide = WORDS[size // 8]

            def pack(b: Block) -> None:
                value = gets[0](b).astype(wide)
                for k, get in enumerate(gets[1:], 1):
                    value = value | get(b).astype(wide) << wide(part * k)
                put(b, value)

            return pack
        if into.startswith("{"):
            words = [w.strip() for w in into.strip("{} ").split(",")]
            part = size // len(words)
            get = self.get(of, f"b{size}")
            puts = [self.put(w, f"b{part}") if w != "_" else None for w in words]
            wide, narrow = WORDS[size // 8], WORDS[part // 8]

            def unpack(b: Block) -> None:
                value = get(b)
                for k, one in enumerate(puts):
                    if one:
                        one(b, (value >> wide(part * k)).astype(narrow))

            return unpack
        get, put = self.get(of, self.type), self.put(into, self.type)
        return lambda b: put(b, get(b))

    def compute(self) -> Callable[[Block], None] | None:
        """Values to a value."""
        name, how, kind = self.name, self.how, self.type
        if "ftz" in how or "sat" in how or "approx" in how or "x2" in "".join(how):
            raise self.unknown()
        if name == "cvt":
            kinds = [h for h in how if h in BITS]
            get, put = self.get(self.operands[1], kinds[1]), self.put(self.operands[0], kinds[0])
            wanted = TYPES[kinds[0]]
            return lambda b: put(b, convert(get(b), wanted, how))
        if name == "setp":
            return self.compare()
        into, *words = self.operands
        if name == "selp":
            x, y = (self.get(w, kind) for w in words[:2])
            p, put = self.get(words[2], "pred"), self.put(into, kind)
            return lambda b: put(b, np.where(p(b), x(b), y(b)))
        if name in ("shl", "shr"):
            x, n, put = self.get(words[0], kind), self.get(words[1], "u32"), self.put(into, kind)
            shift = shift_left if name == "shl" else shift_right
            return lambda b: put(b, shift(x(b), n(b)))
        if name == "prmt":
            if len(how) != 1:
                raise self.unknown()
            gets = [self.get(w, "u32") for w in words]
            put = self.put(into, "b32")
            return lambda b: put(b, permute(*(get(b) for get in gets)))
        if name == "bfi" and how == ["b32"]:
            gets = [self.get(w, "u32") for w in words]
            put = self.put(into, "b32")
            return lambda b: put(b, insert_bits(*(get(b) for get in gets)))
        if name == "dp4a":
            signed = [h[0] == "s" for h in how]
            x, y = (self.get(w, "u32") for w in words[:2])
            z, put = self.get(words[2], "s32" if any(signed) else "u32"), self.put(into, "b32")
            return lambda b: put(b, dot4(x(b), y(b), z(b), *signed))
        if name in ("fma", "mad"):
            return self.multiply_add(words)
        if name in UNARY:
            x = self.get(words[0], kind)
            put = self.put(into, "u32" if name in ("popc", "clz") else kind)
            return lambda b: put(b, UNARY[name](x(b)))
        operation = binary(name, how)
        if operation is None:
            return None
        x, y = (self.get(w, kind) for w in words)
        put = self.put(into, f"b{2 * BITS[kind]}" if "wide" in how else kind)
        return lambda b: put(b, operation(x(b), y(b)))

    def multiply_add(self, words: list[str]) -> Callable[[Block], None]:
        kind, how = self.type, self.how
        if self.name == "fma" and (kind != "f32" or how != ["rn", "f32"]):
            raise self.unknown()
        wide = "wide" in how
        x, y = (self.get(w, kind) for w in words[:2])
        result = f"{kind[0]}{2 * BITS[kind]}" if wide else kind
        z, put = self.get(words[2], result), self.put(self.operands[0], result)
        if self.name == "fma":
            return lambda b: put(b, fma32(x(b), y(b), z(b)))
        product = binary("mul", how)
        if product is None or kind.startswith("f"):
            raise self.unknown()
        return lambda b: put(b, product(x(b), y(b)) + z(b))

    def compare(self) -> Callable[[Block], None]:
        into, *words = self.operands
        if "|" in into or len(self.how) not in (2, 3):
            raise self.unknown()
        kind = self.type
        x, y = (self.get(w, kind) for w in words[:2])
        put, relation = self.put(into, "pred"), self.how[0]
        if len(self.how) == 2:
            return lambda b: put(b, compare(relation, x(b), y(b)))
        join = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[self.how[1]]
        other = self.get(words[2], "pred")
        return lambda b: put(b, join(compare(relation, x(b), y(b)), other(b)))


NOTHING = ("nanosleep", "prefetch")


def decode(machine: Machine, instruction: Instruction) -> tuple[str, Any]:
    """The kind of an instruction ("": goes on to the next one), and what does it."""
    decoder = Decoder(machine, instruction)
    if found := decoder.control():
        return found
    if decoder.name in ("membar", "fence"):
        return "", lambda b: b.fence()
    if decoder.name in NOTHING:
        return "", lambda b: None
    for kind in (
        decoder.memory, decoder.atomic, decoder.collective, decoder.move, decoder.compute
    ):  # fmt: skip
        step = kind()
        if step:
            return "", step
    raise decoder.unknown()
