"""The checker of PTX's memory model (tests/gpu/memory_model.py) against programs whose outcome is
known: from the PTX manual, and from the paper that it follows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))

from litmus import allows

Threads = list[str | tuple[str, int, int]]
STALE = {"a": 1, "b": 0}
BOTH_OLD = {"a": 0, "b": 0}
BOTH_NEW = {"a": 1, "b": 1}
TWO_ORDERS = {"a": 1, "b": 0, "c": 1, "d": 0}
CHAIN = {"a": 1, "b": 1, "c": 0}


def passing(write: str, read: str, cta: int = 1, gpu: int = 0) -> Threads:
    """Message passing: a value, a flag; from block 0 of GPU 0 to another thread."""
    return [(f"st x 1; {write}", 0, 0), (f"{read}; ld b x", cta, gpu)]


def buffering(fence: str, other: str = "") -> Threads:
    """Store buffering: each writes, then reads what the other one writes."""
    first = f"st.relaxed.gpu x 1; {fence}; ld.relaxed.gpu a y"
    return [first, f"st.relaxed.gpu y 1; {other or fence}; ld.relaxed.gpu b x"]


def loading(between: str = "") -> Threads:
    """Load buffering: each reads, then writes what the other one reads."""
    first = f"ld.relaxed.gpu a x; {between.format('a')}; st.relaxed.gpu y 1"
    return [first, f"ld.relaxed.gpu b y; {between.format('b')}; st.relaxed.gpu x 1"]


def readers(fence: str, order: str = "relaxed") -> Threads:
    """Two threads read two independent writes, in opposite order."""
    first = f"ld.{order}.gpu a x; {fence}; ld.{order}.gpu b y"
    second = f"ld.{order}.gpu c y; {fence}; ld.{order}.gpu d x"
    return ["st.relaxed.gpu x 1", "st.relaxed.gpu y 1", first, second]


def chain(scope: str) -> Threads:
    """A flag within a block, then one to another block."""
    middle = f"ld.acquire.cta a y; st.release.{scope} z 1"
    last = ("ld.acquire.gpu b z; ld c x", 1, 0)
    return [("st x 1; st.release.cta y 1", 0, 0), (middle, 0, 0), last]


RELEASE, ACQUIRE = "st.release.gpu y 1", "ld.acquire.gpu a y"
FENCED = "fence.acq_rel.gpu; st.relaxed.gpu y 1", "ld.relaxed.gpu a y; fence.acq_rel.gpu"
ONE_READER = "ld.relaxed.gpu a x; {}; st.relaxed.gpu y 1"
LAST_READER = "ld.acquire.gpu b y; ld.relaxed.gpu c x"
CASES: dict[str, tuple[bool, dict[str, int], Threads]] = {
    "MP, weak": (True, STALE, passing("st y 1", "ld a y")),
    "MP, relaxed": (True, STALE, passing("st.relaxed.gpu y 1", "ld.relaxed.gpu a y")),
    "MP, release and acquire": (False, STALE, passing(RELEASE, ACQUIRE)),
    "MP, no acquire": (True, STALE, passing(RELEASE, "ld.relaxed.gpu a y")),
    "MP, fences": (False, STALE, passing(*FENCED)),
    "MP, membar": (False, STALE, passing("membar.gl; st.relaxed.gpu y 1", ACQUIRE)),
    "MP, a fence and a weak flag": (True, STALE, passing("fence.sc.gpu; st y 1", FENCED[1])),
    "MP, one fence": (True, STALE, passing(FENCED[0], "ld.relaxed.gpu a y")),
    "MP, cta, same block": (
        False, STALE, passing("st.release.cta y 1", "ld.acquire.cta a y", cta=0)),
    "MP, cta, other block": (True, STALE, passing("st.release.cta y 1", "ld.acquire.cta a y")),
    "MP, one scope too small": (True, STALE, passing("st.release.cta y 1", ACQUIRE)),
    "MP, gpu, other GPU": (True, STALE, passing(RELEASE, "ld.acquire.sys a y", gpu=1)),
    "MP, sys, other GPU": (
        False, STALE, passing("st.release.sys y 1", "ld.acquire.sys a y", gpu=1)),
    "MP, non-coherent": (True, STALE, [f"st x 1; {RELEASE}", f"{ACQUIRE}; ld.global.nc b x"]),
    "MP, barrier": (False, {"a": 0}, [("st x 1; bar.sync 0", 0, 0), ("bar.sync 0; ld a x", 0, 0)]),
    "SB, relaxed": (True, BOTH_OLD, buffering("")),
    "SB, acq_rel": (True, BOTH_OLD, buffering("fence.acq_rel.gpu")),
    "SB, sc": (False, BOTH_OLD, buffering("fence.sc.gpu")),
    "SB, sc of two scopes": (False, BOTH_OLD, buffering("fence.sc.sys", "fence.sc.gpu")),
    "SB, sc of a block": (True, BOTH_OLD, buffering("fence.sc.cta")),
    "LB, relaxed": (True, BOTH_NEW, loading()),
    "LB, dependencies": (False, BOTH_NEW, loading("stop {} 1")),
    "LB, acquire": (False, BOTH_NEW, [t.replace("ld.relaxed", "ld.acquire").replace(  # type: ignore[union-attr]
        "st.relaxed", "st.release") for t in loading()]),
    "CoRR, strong": (
        False, STALE, ["st.relaxed.gpu x 1", "ld.relaxed.gpu a x; ld.relaxed.gpu b x"]),
    "CoRR, weak": (True, STALE, ["st.relaxed.gpu x 1", "ld a x; ld b x"]),
    "CoRR, scope too small": (
        True, STALE, ["st.relaxed.cta x 1", "ld.relaxed.cta a x; ld.relaxed.cta b x"]),
    "CoRW": (False, {"a": 1}, ["ld a x; st x 1"]),
    "CoWR": (False, {"a": 0}, ["st x 1; ld a x"]),
    "CoWW": (False, {"a": 2, "b": 1}, [
        "st.relaxed.gpu x 1; st.relaxed.gpu x 2", "ld.relaxed.gpu a x; ld.relaxed.gpu b x"]),
    "IRIW, acquire": (True, TWO_ORDERS, readers("", "acquire")),
    "IRIW, acq_rel": (True, TWO_ORDERS, readers("fence.acq_rel.gpu")),
    "IRIW, sc": (False, TWO_ORDERS, readers("fence.sc.gpu")),
    "IRIW, sc of a block": (True, TWO_ORDERS, readers("fence.sc.cta")),
    "atomic": (False, BOTH_OLD, ["atom.gpu.add a x 1", "atom.gpu.add b x 1"]),
    "atomic, scope too small": (True, BOTH_OLD, ["atom.cta.add a x 1", "atom.cta.add b x 1"]),
    "WRC": (False, CHAIN, [
        "st.relaxed.gpu x 1", ONE_READER.format("fence.acq_rel.gpu"), LAST_READER]),
    "WRC, no fence": (True, CHAIN, ["st.relaxed.gpu x 1", ONE_READER.format(""), LAST_READER]),
    "chain of scopes": (False, CHAIN, chain("gpu")),
    "chain, scope too small": (True, CHAIN, chain("cta")),
    "through an atomic": (False, {"b": 2, "c": 0}, [
        f"st x 1; {RELEASE}", "atom.add.gpu a y 1", "ld.acquire.gpu b y; ld c x"]),
    "not through a store": (True, {"a": 1, "b": 2, "c": 0}, [
        f"st x 1; {RELEASE}", "ld.relaxed.gpu a y; stop a 1; st.relaxed.gpu y 2",
        "ld.acquire.gpu b y; ld c x"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_known_programs(name: str) -> None:
    expected, state, threads = CASES[name]
    assert allows(state, *threads) is expected
