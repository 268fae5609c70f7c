"""What PTX instructions compute, on numpy vectors: one function per name, for a type.

Values are arrays of unsigned integers, as wide as the type; functions take views of the type that
the instruction names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any

TYPES: dict[str, Any] = {
    "u8": np.uint8, "s8": np.int8, "b8": np.uint8, "u16": np.uint16, "s16": np.int16,
    "b16": np.uint16, "u32": np.uint32, "s32": np.int32, "b32": np.uint32, "u64": np.uint64,
    "s64": np.int64, "b64": np.uint64, "f16": np.float16, "f32": np.float32, "f64": np.float64,
    "pred": np.bool_,
}  # fmt: skip


def to_odd(total: Array, error: Array) -> Array:
    """A double whose last bit says that it is not exact: rounding it once more, to a float, gives
    what rounding the exact sum would have given (Boldo and Melquiond, 2008)."""
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & np.isfinite(error) & (bits & 1 == 0)
    away = (error > 0) == (total > 0)
    return np.where(inexact, bits + np.where(away, 1, -1), bits).view(np.float64)


def exact_sum(a: Array, b: Array) -> Array:
    total = a + b
    back = total - a
    return to_odd(total, (a - (total - back)) + (b - back))


def fma32(a: Array, b: Array, c: Array) -> Array:
    product = a.astype(np.float64) * b.astype(np.float64)  # exact
    return exact_sum(product, np.broadcast_to(c.astype(np.float64), product.shape)).astype(
        np.float32
    )


def toward_zero(value: Array) -> Array:
    """A double to a float, rounded to zero."""
    near = value.astype(np.float32)
    over = np.abs(near.astype(np.float64)) > np.abs(value)
    return np.where(over, near.view(np.uint32) - 1, near.view(np.uint32)).view(np.float32)


def divide(a: Array, b: Array) -> Array:
    """Integers, rounded to zero; by zero: all ones, as the hardware has it."""
    safe = np.where(b == 0, 1, b).astype(b.dtype)
    magnitude = np.abs(a.astype(object)) // np.abs(safe.astype(object))
    signed = np.where((a < 0) != (safe < 0), -magnitude, magnitude)
    bits = 8 * a.dtype.itemsize
    wrapped = np.array([int(v) & (1 << bits) - 1 for v in signed.ravel()], dtype=f"u{bits // 8}")
    return np.where(b == 0, wrapped.dtype.type(2**bits - 1), wrapped).view(a.dtype)


def remainder(a: Array, b: Array) -> Array:
    return (a - divide(a, b) * b).astype(a.dtype)


def shift_left(a: Array, n: Array) -> Array:
    width = 8 * a.dtype.itemsize
    by = (n & np.uint32(width - 1)).astype(a.dtype)
    return np.where(n >= width, a.dtype.type(0), a << by)


def shift_right(a: Array, n: Array) -> Array:
    width = 8 * a.dtype.itemsize
    by = np.minimum(n, np.uint32(width - 1)).astype(a.dtype)
    out = a >> by
    return out if a.dtype.kind == "i" else np.where(n >= width, a.dtype.type(0), out)


def permute(a: Array, b: Array, select: Array) -> Array:
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    out = np.zeros(np.broadcast(a, b, select).shape, np.uint32)
    for i in range(4):
        of = select >> np.uint32(4 * i) & np.uint32(15)
        byte = (both >> (of & np.uint32(7)).astype(np.uint64) * np.uint64(8)).astype(np.uint32)
        byte &= np.uint32(255)
        sign = np.where(byte & 128 != 0, np.uint32(255), np.uint32(0))
        out |= np.where(of & 8 != 0, sign, byte) << np.uint32(8 * i)
    return out


def insert_bits(a: Array, b: Array, at: Array, n: Array) -> Array:
    """The lowest n bits of a in place of those of b from bit `at` on."""
    at, n = (v.astype(np.uint64) & np.uint64(255) for v in (at, n))
    if int(np.max(at)) > 31 or int(np.max(n)) > 32:
        raise ValueError("bits beyond a word")
    mask = (np.uint64(1) << n) - np.uint64(1) << at
    return ((a.astype(np.uint64) << at & mask) | (b.astype(np.uint64) & ~mask)).astype(np.uint32)


def dot4(a: Array, b: Array, c: Array, signed_a: bool, signed_b: bool) -> Array:
    out = c.copy()
    for i in range(4):
        x, y = (
            (v >> np.uint32(8 * i)).astype(np.int8 if signed else np.uint8).astype(np.int32)
            for v, signed in ((a, signed_a), (b, signed_b))
        )
        out = out + x * y
    return out


def popcount(a: Array) -> Array:
    out = np.zeros(a.shape, np.uint32)
    for i in range(8 * a.dtype.itemsize):
        out += (a >> a.dtype.type(i)).astype(np.uint32) & np.uint32(1)
    return out


def leading_zeros(a: Array) -> Array:
    width = 8 * a.dtype.itemsize
    out = np.full(a.shape, width, np.uint32)
    for i in range(width):
        out = np.where(a >> a.dtype.type(i) & a.dtype.type(1) != 0, np.uint32(width - 1 - i), out)
    return out


def largest(a: Array, b: Array) -> Array:
    if a.dtype.kind != "f":
        return np.maximum(a, b)
    out = np.fmax(a, b)  # a number rather than a NaN
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), b, a), out)


def smallest(a: Array, b: Array) -> Array:
    if a.dtype.kind != "f":
        return np.minimum(a, b)
    out = np.fmin(a, b)
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), a, b), out)


def negate(a: Array) -> Array:
    if a.dtype.kind != "f":
        return (np.zeros(1, a.dtype) - a).astype(a.dtype)
    bits = a.view(f"u{a.dtype.itemsize}")
    sign = bits.dtype.type(1 << 8 * a.dtype.itemsize - 1)
    return (bits ^ sign).view(a.dtype)


def multiply_high(a: Array, b: Array) -> Array:
    if a.dtype.itemsize == 4:
        wide = np.int64 if a.dtype.kind == "i" else np.uint64
        return (a.astype(wide) * b.astype(wide) >> wide(32)).astype(a.dtype)
    wide_product = a.astype(object) * b.astype(object)
    mask = (1 << 64) - 1
    return np.array([int(v) >> 64 & mask for v in wide_product], np.uint64).view(a.dtype)


def widened(a: Array, b: Array) -> Array:
    wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
    return a.astype(wide) * b.astype(wide)


COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
OPPOSITE = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}


def compare(how: str, a: Array, b: Array) -> Array:
    if how in ("num", "nan"):
        nan = np.isnan(a) | np.isnan(b)
        return nan if how == "nan" else ~nan
    if how == "ne":  # of floats: only where both are numbers
        numbers = a.dtype.kind != "f" or ~(np.isnan(a) | np.isnan(b))
        return (a != b) & numbers
    if how in OPPOSITE:
        return ~compare(OPPOSITE[how], a, b)
    return COMPARE[how](a, b)


def to_integer(value: Array, wanted: Any) -> Array:
    """A whole float to an integer that holds it as well as it can; NaN: 0."""
    info = np.iinfo(wanted)
    wide = np.nan_to_num(value.astype(np.float64), nan=0.0)
    inside = np.clip(wide, float(info.min), float(info.max))
    out = inside.astype(wanted) if info.bits < 64 else wide.astype(wanted)
    return np.where(wide >= float(info.max), info.max, out).astype(wanted)


ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def convert(value: Array, wanted: Any, how: list[str]) -> Array:
    """cvt: `how` are the rounding and other modifiers."""
    if "sat" in how or "ftz" in how:
        raise NotImplementedError("cvt with .sat or .ftz")
    integer = next((ROUND[h] for h in how if h in ROUND), None)
    if value.dtype.kind == "f":
        if integer:
            value = integer(value)
        if np.dtype(wanted).kind == "f":
            if "rz" in how and np.dtype(wanted) == np.float32:
                return toward_zero(value.astype(np.float64))
            if any(h in ("rm", "rp", "rz") for h in how):
                raise NotImplementedError("cvt with this rounding")
            return value.astype(wanted)
        return to_integer(value, wanted)
    if np.dtype(wanted).kind == "f" and "rn" not in how:
        raise NotImplementedError("cvt with this rounding")
    return value.astype(wanted)


def floats(exact: Callable[[Array, Array], Array], how: list[str], a: Array, b: Array) -> Array:
    """Add, subtract or multiply, rounded as asked: rn is what numpy does."""
    if "rz" not in how:
        return exact(a, b)
    if a.dtype != np.float32:
        raise NotImplementedError("rounding of doubles to zero")
    x, y = a.astype(np.float64), b.astype(np.float64)
    if exact is np.multiply:
        return toward_zero(x * y)
    shape = np.broadcast(x, y).shape
    x, y = np.broadcast_to(x, shape), np.broadcast_to(y, shape)
    return toward_zero(exact_sum(x, y if exact is np.add else -y))


def binary(name: str, how: list[str]) -> Callable[[Array, Array], Array] | None:
    """An operation of two values of one type."""
    simple: dict[str, Callable[[Array, Array], Array]] = {
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
        "max": largest, "min": smallest, "rem": remainder,
    }  # fmt: skip
    if name in simple:
        return simple[name]
    sums = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
    if name == "mul" and "wide" in how:
        return widened
    if name == "mul" and "hi" in how:
        return multiply_high
    if name in sums:
        return lambda a, b: floats(sums[name], how, a, b)
    if name == "div":
        return lambda a, b: a / b if a.dtype.kind == "f" else divide(a, b)
    if name == "copysign":  # the sign of a, the rest of b
        return lambda a, b: np.copysign(b, a)
    return None


UNARY: dict[str, Callable[[Array], Array]] = {
    "not": np.invert,
    "neg": negate,
    "abs": np.abs,
    "rcp": lambda a: a.dtype.type(1) / a,
    "sqrt": np.sqrt,
    "popc": popcount,
    "clz": leading_zeros,
}
