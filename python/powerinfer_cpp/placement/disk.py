"""How fast the disk of a file is: random reads and reads in order, by the engine's own reader."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .._native import ffi, lib
from ..core.errors import check, encoded

KB = 1024
SIZES = (4 * KB, 8 * KB, 16 * KB, 64 * KB)
DEPTHS = (1, 16, 128)
IN_ORDER = ((512 * KB, 1), (512 * KB, 8))  # sizes and depths of reads in order


@dataclass(frozen=True)
class Rate:
    """A way of reading and its speed.

    n_bytes: of a read. depth: reads in flight. again: repeats the offsets of the previous run, to
    detect a cache in between. cpu_s: seconds of the processor for a read. io: "uring" or "threads";
    note: why not uring or direct.
    """

    n_bytes: int
    depth: int
    in_order: bool
    again: bool
    reads_per_s: float
    bytes_per_s: float
    cpu_s: float
    io: str
    note: str
    direct: bool
    align: int
    file_bytes: int


def measure(
    path: str,
    n_bytes: int = 8 * KB,
    depth: int = 128,
    in_order: bool = False,
    size: int = 0,
    seconds: float = 0.5,
    seed: int = 1,
    again: bool = False,
) -> Rate:
    """Reads a file for so many seconds, within `size` bytes of its beginning (0: all of it).

    Raises OSError, and ValueError where there are fewer than 64 MiB to read.
    """
    params = ffi.new("pi_disk_params *", lib.pi_disk_default_params())
    params.n_bytes, params.depth, params.in_order = n_bytes, depth, in_order
    params.size, params.seconds, params.seed = size, seconds, seed
    out = ffi.new("pi_disk_report *")
    out.struct_size = ffi.sizeof("pi_disk_report")
    check(lib.pi_measure_disk(encoded(path), params, out), path)
    return Rate(
        n_bytes,
        depth,
        in_order,
        again,
        out.reads_per_s,
        out.bytes_per_s,
        out.cpu_s,
        ffi.string(out.io).decode(),
        ffi.string(out.note).decode("utf-8", "replace"),
        out.direct,
        out.align,
        out.file_bytes,
    )


def sweep(path: str, size: int = 0, seconds: float = 0.5) -> Iterator[Rate]:
    """Random reads of SIZES at DEPTHS, the last places again, and reads in order.

    Each takes `seconds`. Places that are read again come faster if something on the way has kept
    them: the cache of a virtual machine's host, for example. Then the others may be too fast, too.
    """
    seed = 0
    for depth in DEPTHS:
        for n_bytes in SIZES:
            seed += 1
            yield measure(path, n_bytes, depth, size=size, seconds=seconds, seed=seed)
    yield measure(path, n_bytes, depth, size=size, seconds=seconds, seed=seed, again=True)
    for n_bytes, depth in IN_ORDER:
        yield measure(path, n_bytes, depth, True, size, seconds)


def cost(rates: Sequence[Rate]) -> tuple[float, float]:
    """(a, b): a random read of so many KB takes a + b KB microseconds in a deep queue.

    Least squares of relative errors, neither negative.
    """
    deepest = max(r.depth for r in rates if not r.in_order)
    points = [
        (r.n_bytes / KB, 1e6 / r.reads_per_s)
        for r in rates
        if not (r.in_order or r.again) and r.depth == deepest
    ]
    # Each equation a + b x = y is divided by y: a u + b v = 1.
    u = [1 / y for _, y in points]
    v = [x / y for x, y in points]
    uu, uv, vv = (
        sum(p * q for p, q in zip(s, t, strict=True)) for s, t in ((u, u), (u, v), (v, v))
    )
    det = uu * vv - uv * uv
    a = (vv * sum(u) - uv * sum(v)) / det if det else 0.0
    if a <= 0:
        return 0.0, sum(v) / vv
    b = (uu * sum(v) - uv * sum(u)) / det
    return (a, b) if b >= 0 else (sum(u) / uu, 0.0)
