"""Which of three circles of tests runs: `./run test`, `./run test --all`, `./run test --nightly`.

What a quicker circle leaves out runs in the wider one; nothing is left out of the widest. conftest
sets PI_CIRCLE and PI_RECORD before it imports a test. The C++ programs read PI_CIRCLE, too
(tests/circle.h).
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
CIRCLE = os.environ.get("PI_CIRCLE", "nightly")  # a file that is run by hand runs in full
FULL = CIRCLE != "test"
RECORDS = bool(os.environ.get("PI_RECORD"))  # is --record given?


def pick(quick: T, full: T) -> T:
    """The cases of the quick circle, or those of the wider ones."""
    return full if FULL else quick


def _commits() -> int | None:
    """How many commits lead to this one; None where that is unknown."""
    root = Path(__file__).resolve().parents[2]
    try:
        done = subprocess.run(
            ["git", "-C", root, "rev-list", "--count", "HEAD"], capture_output=True, text=True
        )
    except OSError:
        return None
    return int(done.stdout) if done.returncode == 0 else None


def third(cases: Iterable[T]) -> list[T]:
    """In the circle `all` every third case, another third with every commit; otherwise all.

    Some thirds cost more than others, so --record (effort.py) runs all cases.
    """
    found = list(cases)
    commits = _commits() if CIRCLE == "all" and not RECORDS else None
    return found if commits is None else found[commits % 3 :: 3]


def pairwise(**axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Combinations in which any two values of two axes meet; all combinations in wider circles.

    Greedy: of all combinations each time the first one that has most pairs that are still missing.
    """
    everything = list(itertools.product(*axes.values()))
    if FULL:
        return everything

    def pairs(case: tuple[Any, ...]) -> set[tuple[int, int, Any, Any]]:
        places = itertools.combinations(range(len(case)), 2)
        return {(i, j, case[i], case[j]) for i, j in places}

    missing = set().union(*map(pairs, everything)) if everything else set()
    chosen = []
    while missing:
        best = max(everything, key=lambda case: len(pairs(case) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen or everything
