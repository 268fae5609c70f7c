"""Replays traces through the engine's cache of neurons, and through others to compare with."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._native import ffi, lib
from ..core.errors import check
from ..core.structs import sized
from ..measure.trace import Trace

POLICIES = {  # names in tables -> pi_cache_policy
    "powerinfer": lib.PI_CACHE_OWN,
    "lru": lib.PI_CACHE_LRU,
    "static": lib.PI_CACHE_STATIC,
    "belady": lib.PI_CACHE_BELADY,
}


@dataclass(frozen=True)
class Slots:
    """Slots for the first rows of neurons, and for the rest of neurons."""

    first: int
    rest: int


@dataclass(frozen=True)
class Counts:
    """What a policy found and missed: parts of neurons, and reads, over `tokens`."""

    tokens: int
    first_needed: int
    first_missed: int
    rest_needed: int
    rest_missed: int
    reads: int

    @property
    def hits(self) -> float:
        """Share of the needed parts that were in memory."""
        needed = self.first_needed + self.rest_needed
        return 1 - (self.first_missed + self.rest_missed) / max(needed, 1)

    @property
    def reads_per_token(self) -> float:
        return self.reads / max(self.tokens, 1)


@dataclass(frozen=True)
class Disk:
    """Reads and bytes a second; a read takes the longer of both."""

    iops: float = 50000
    bandwidth: float = 1e9


def shared(trace: Trace, share: float) -> Slots:
    """Slots for this share of the neurons; where every first row is always needed, for all of
    them."""
    n = round(share * trace.parts)
    return Slots(trace.parts if trace.proposed is None else n, n)


def split(trace: Trace, n_bytes: int, disk: Disk) -> Slots:
    """Slots in n_bytes, divided as the engine does: by the rates of the profile, or of the trace
    if there is no profile. Raises ValueError if all first rows are needed and do not fit."""
    if not (trace.first_bytes and trace.rest_bytes):
        raise ValueError("the trace does not say how large neurons are: use --share")
    if trace.proposed is None:
        left = n_bytes - trace.first_bytes * trace.parts
        if left < 0:
            need = trace.first_bytes * trace.parts / (1 << 30)
            raise ValueError(f"all first rows are needed for every token: {need:.3f} GiB")
        return Slots(trace.parts, min(trace.parts, left // trace.rest_bytes))
    first, rest = _rates(trace)
    if trace.sizes is not None:  # of neurons that are there
        there = np.arange(trace.n_ff) < trace.sizes[:, None]
        first, rest = first[there], rest[there]
    cost = sized("pi_disk_cost")
    cost.least_s, cost.byte_s = 1 / disk.iops, 1 / disk.bandwidth
    out = ffi.new("int64_t[2]")
    check(
        lib.pi_split_cache(
            n_bytes,
            trace.first_bytes,
            trace.rest_bytes,
            trace.parts,
            ffi.from_buffer("float[]", first),
            ffi.from_buffer("float[]", rest),
            cost,
            out,
            out + 1,
        )
    )
    return Slots(out[0], out[1])


def _rates(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Expected needs of first rows and of the rest, float32 [blocks, n_ff]: the profile's firings,
    and as many proposals per firing as the trace has."""
    rates = trace.rates
    if rates is None:
        sums = np.zeros((trace.n_blocks, trace.n_ff), np.int64)
        for token in trace.computed:
            sums += np.unpackbits(token, axis=-1, count=trace.n_ff, bitorder="little")
        rates = (sums / max(trace.n_tokens, 1)).astype(np.float32)
    proposed, computed = trace.per_token()
    first = np.minimum(1, rates * np.float32(proposed / max(computed, 1e-9)))
    return np.ascontiguousarray(first, np.float32), np.ascontiguousarray(rates, np.float32)


def simulate(
    trace: Trace,
    slots: Slots,
    policy: str,
    warm_up: int = 0,
    seed: int = 1,
    experts: bool = False,
) -> Counts:
    """What one of POLICIES finds and misses after the first `warm_up` tokens. The cache starts
    with the profile's best neurons, if there is a profile. experts: the trace has layers as blocks
    and whole experts as neurons, which the engine keeps in another way. Raises ValueError for
    static without a profile, and for a warm-up as long as the trace."""
    if policy == "static" and trace.rates is None:
        raise ValueError("static needs the profile of the model")
    if not 0 <= warm_up < trace.n_tokens:
        raise ValueError(f"warm-up must be shorter than the trace's {trace.n_tokens} tokens")
    params: Any = sized("pi_cache_trace")
    params.n_tokens, params.n_blocks = trace.n_tokens, trace.n_blocks
    params.n_ff, params.warm_up = trace.n_ff, warm_up
    params.experts = experts
    params.computed = computed = ffi.from_buffer("uint8_t[]", trace.computed)
    kept: list[Any] = [computed]
    if trace.proposed is not None:
        params.proposed = ffi.from_buffer("uint8_t[]", trace.proposed)
    if trace.rates is not None:
        kept = [*kept, *(ffi.from_buffer("float[]", rates) for rates in _rates(trace))]
        params.first_rate, params.rest_rate = kept[-2:]
    out = sized("pi_cache_counts")
    check(lib.pi_simulate_cache(params, POLICIES[policy], slots.first, slots.rest, seed, out))
    del kept  # C uses their memory until here
    names = ("first_needed", "first_missed", "rest_needed", "rest_missed", "reads")
    return Counts(trace.n_tokens - warm_up, *(getattr(out, name) for name in names))


def compare(trace: Trace, slots: Slots, warm_up: int = 0, seed: int = 1) -> dict[str, Counts]:
    """Counts of every policy, by its name; static only if the trace has a profile."""
    return {
        policy: simulate(trace, slots, policy, warm_up, seed)
        for policy in POLICIES
        if policy != "static" or trace.rates is not None
    }
