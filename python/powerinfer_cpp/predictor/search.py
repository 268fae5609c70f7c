"""Which predictor each layer gets: the smallest total of bytes at which the model stays as good.

A recall that all layers share is the one free number. At a given recall each layer takes the rank
that makes it read the fewest bytes (predictor, gates of what it proposes, up and down of what
fires), or none where exact mode reads less. The lowest recall at which the model in the loop
loses no more than the target wins.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .train import Curve

RECALLS = (0.8, 0.85, 0.9, 0.93, 0.95, 0.965, 0.975, 0.985, 0.99, 0.995, 0.998, 0.9995)
STEP = 32  # ranks are multiples: whole blocks of Q8_0


@dataclass(frozen=True)
class Costs:
    """Bytes that one token reads in a layer's feed-forward block.

    first: of the gates (ups, where there are none) of all neurons; rest: of their other rows;
    per_rank: of a predictor, for each of its hidden units.
    """

    first: float
    rest: float
    per_rank: float

    def exact(self, fired: float) -> float:
        return self.first + fired * self.rest

    def predicted(self, rank: int, curve: Curve, at: int) -> float:
        return float(
            rank * self.per_rank + curve.predicted[at] * self.first + curve.hit[at] * self.rest
        )


@dataclass(frozen=True)
class Choice:
    """rank: 0 without a predictor. curve: of the best that was found, None where none was tried."""

    rank: int
    n_bytes: float
    exact_bytes: float
    curve: Curve


def start_rank(rates: np.ndarray, n_embd: int) -> int:
    """Where the search begins: sparser and more skewed layers get smaller predictors.

    rates: [n_ff], how often each neuron fires. The skewness is the share of neurons that make up
    80% of the firings.
    """
    falling = np.sort(rates)[::-1].cumsum()
    reached = np.searchsorted(falling, 0.8 * falling[-1]) + 1
    wanted = n_embd * np.sqrt(rates.mean()) * reached / len(rates)
    return min(ladder(n_embd), key=lambda rank: abs(np.log(rank / max(wanted, 1.0))))


def ladder(n_embd: int) -> list[int]:
    """Ranks that are tried: 32, 64, 128 ... below n_embd."""
    ranks = [STEP]
    while ranks[-1] * 2 < n_embd:
        ranks.append(ranks[-1] * 2)
    return ranks


def choose(
    at: int, start: int, ranks: list[int], costs: Costs, candidate: Callable[[int], Curve]
) -> Choice:
    """A layer's best at RECALLS[at], from `start` on downhill. candidate: trains a rank."""

    def cost(rank: int) -> float:
        return costs.predicted(rank, candidate(rank), at)

    best = start
    for step in (-1, 1):
        while 0 <= ranks.index(best) + step < len(ranks):
            other = ranks[ranks.index(best) + step]
            if cost(other) >= cost(best):
                break
            best = other
    curve = candidate(best)
    exact = costs.exact(curve.fired)
    pays = cost(best) < exact
    return Choice(best if pays else 0, cost(best) if pays else exact, exact, curve)


def lowest_recall(loss: Callable[[int], float], target: float) -> int | None:
    """Index of the lowest of RECALLS whose loss is at most the target, by bisection; None where
    even the highest loses more."""
    low, high = 0, len(RECALLS) - 1
    if loss(high) > target:
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if loss(middle) <= target else (middle + 1, high)
    return high
