"""Tensor formats: sizes, and conversion to and from float32 with the engine's codecs."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np

from .._native import ffi, lib
from ..core.errors import check

F32, F16, BF16 = 0, 1, 30  # GGUF ids of the formats without blocks
_PIECE = 1 << 18  # elements, about, that a thread encodes at a time: 50 ms


@dataclass(frozen=True)
class Format:
    """A tensor format.

    name: as GGUF tools print it, for example "Q4_0". type: its id in GGUF files. A block of `block`
    elements takes `block_bytes` bytes; a row of a tensor is a whole number of blocks.
    """

    name: str
    type: int
    block: int
    block_bytes: int

    @property
    def quantised(self) -> bool:
        """Whether several elements share a scale."""
        return self.block > 1

    def n_bytes(self, n: int) -> int:
        """Bytes of n elements, n a multiple of the block."""
        return n // self.block * self.block_bytes

    def fits(self, row: int) -> bool:
        """Whether rows of this many elements can be stored."""
        return row % self.block == 0


@cache
def format_by_name(name: str) -> Format:
    """The format with this name, in any case. Raises ValueError for an unknown one."""
    type_id, block, block_bytes = ffi.new("uint32_t *"), ffi.new("int64_t *"), ffi.new("int64_t *")
    upper = name.upper()
    if not lib.pi_type_by_name(upper.encode(), type_id, block, block_bytes):
        raise ValueError(f"unknown tensor format {name!r}")
    return Format(upper, type_id[0], block[0], block_bytes[0])


def encode(fmt: Format, values: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    """Bytes (uint8, 1-D) of float values in a format; values.size must be a multiple of the block.

    importance: [row], not negative, for values in rows of this size: the squared error of a column
    counts as often. Several threads encode, each some blocks; the result does not depend on them.

    Raises ValueError if the sizes do not fit, the format cannot be written, or a finite value is
    beyond its range: of blocks, whose scales are halves, as well as of F16.
    """
    if fmt.type == F32:
        return np.ascontiguousarray(values, dtype=np.float32).reshape(-1).view(np.uint8)
    if fmt.type == F16:
        with np.errstate(over="ignore"):
            halves = np.ascontiguousarray(values, dtype=np.float16).reshape(-1)
        lost = np.isinf(halves) & np.isfinite(np.reshape(values, -1))
        if lost.any():
            value = np.reshape(values, -1)[lost.argmax()]
            raise ValueError(f"a value of {value:g} is beyond the range of F16")
        return halves.view(np.uint8)
    source = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
    out = np.empty(fmt.n_bytes(source.size), dtype=np.uint8)
    weights = None if importance is None else np.ascontiguousarray(importance, dtype=np.float32)
    unit = fmt.block if weights is None else max(1, weights.size)
    step = max(1, _PIECE // unit) * unit

    def piece(a: int) -> None:
        given = source[a : a + step]
        into = out[fmt.n_bytes(a) : fmt.n_bytes(a + given.size)]
        data = ffi.from_buffer("float[]", given)
        target = ffi.from_buffer(into, require_writable=True)
        if weights is None:
            check(lib.pi_encode(fmt.type, data, given.size, target, into.nbytes))
            return
        row = ffi.from_buffer("float[]", weights)
        n = given.size
        check(lib.pi_encode_weighted(fmt.type, data, n, row, weights.size, target, into.nbytes))

    if source.size <= step or not fmt.quantised:
        step = max(1, source.size)
        piece(0)
    else:
        with ThreadPoolExecutor(lib.pi_default_threads()) as threads:
            list(threads.map(piece, range(0, source.size, step)))
    return out


@cache
def can_encode(fmt: Format) -> bool:
    """Whether values can be written in the format."""
    try:
        encode(fmt, np.zeros(fmt.block))
    except ValueError:
        return False
    return True


def decode(type_id: int, data: np.ndarray, n: int) -> np.ndarray:
    """n float32 values from raw bytes (uint8, contiguous) in the format with this GGUF id.

    Raises ValueError if the sizes do not fit, UnsupportedModelError for unknown formats.
    """
    if type_id == F32:
        return data.view(np.float32)[:n]
    if type_id == F16:
        return data.view(np.float16)[:n].astype(np.float32)
    out = np.empty(n, dtype=np.float32)
    source = np.ascontiguousarray(data)
    check(
        lib.pi_decode(
            type_id,
            ffi.from_buffer(source),
            source.nbytes,
            ffi.from_buffer("float[]", out, require_writable=True),
            n,
        )
    )
    return out
