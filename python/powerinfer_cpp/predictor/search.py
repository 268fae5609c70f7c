"""Chooses the predictor of each layer: the fewest total bytes within the target perplexity.

Each layer can run in exact mode, or at any of RECALLS with the rank that then reads the fewest
bytes (predictor, gates of proposed neurons, up and down of firing ones). The perplexity cost of a
recall differs between layers, so it is measured with one layer predicted and the others in exact
mode. A single price of perplexity, in bytes, then determines the choice in all layers. The lowest
price at which the running model loses no more than the target is used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .train import Curve

RECALLS = (0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.95, 0.965, 0.975, 0.985, 0.99, 0.995, 0.998, 0.9995)
PROBES = (2, 6)  # indices in RECALLS at which the loss of each layer is measured
# Prices of a doubled perplexity, as multiples of exact mode's bytes: from "only bytes count" to "a
# millionth more is not worth a tenth of the bytes".
PRICES = tuple(np.geomspace(1, 1e5, 41))
STEP = 32  # ranks are multiples of this: whole blocks of Q8_0


@dataclass(frozen=True)
class Costs:
    """Bytes that one token reads in a layer's feed-forward block.

    first: the gates (ups, if there are none) of all neurons; rest: their other rows; per_rank: a
    predictor, for each of its hidden units. smooth: the activation is never zero, and its threshold
    applies only in exact mode; so a proposed neuron is read completely, and so is a layer without a
    predictor in a file that has predictors.
    """

    first: float
    rest: float
    per_rank: float
    smooth: bool = False

    def exact(self, fired: float) -> float:
        return self.first + fired * self.rest

    def without(self, fired: float) -> float:
        """Bytes of a layer without a predictor in a file that has predictors."""
        return self.first + self.rest if self.smooth else self.exact(fired)

    def predicted(self, rank: int, curve: Curve, at: int) -> float:
        whole = curve.predicted[at] if self.smooth else curve.hit[at]
        return float(rank * self.per_rank + curve.predicted[at] * self.first + whole * self.rest)


@dataclass(frozen=True)
class Choice:
    """A choice for a layer. rank: 0 without a predictor. at: index in RECALLS. curve: curve of the
    best predictor. without_bytes: bytes without a predictor, if other layers have one."""

    rank: int
    at: int
    n_bytes: float
    exact_bytes: float
    without_bytes: float
    curve: Curve


def start_rank(rates: np.ndarray, n_embd: int) -> int:
    """The first rank of the search: smaller for sparser and more skewed layers.

    rates: [n_ff], how often each neuron fires. The skewness is the share of neurons that make 80%
    of the firings.
    """
    falling = np.sort(rates)[::-1].cumsum()
    reached = np.searchsorted(falling, 0.8 * falling[-1]) + 1
    wanted = n_embd * np.sqrt(rates.mean()) * reached / len(rates)
    return min(ladder(n_embd), key=lambda rank: abs(np.log(rank / max(wanted, 1.0))))


def ladder(n_embd: int) -> list[int]:
    """Ranks to try: 32, 64, 128 ... below n_embd."""
    ranks = [STEP]
    while ranks[-1] * 2 < n_embd:
        ranks.append(ranks[-1] * 2)
    return ranks


def choose(
    at: int, start: int, ranks: list[int], costs: Costs, candidate: Callable[[int], Curve]
) -> Choice:
    """A layer's best rank at RECALLS[at], by descent from `start`. candidate: trains a rank."""

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
    fired = curve.fired
    return Choice(best, at, cost(best), costs.exact(fired), costs.without(fired), curve)


def losses(measured: Sequence[float]) -> np.ndarray:
    """A layer's loss at each of RECALLS, from the losses measured at PROBES.

    The loss is a power of the missed share. Firings near zero are missed first, so the exponent is
    above 1; it is limited because of noise in the measurements.
    """
    missed = np.log(1 - np.array(RECALLS))
    at, found = missed[list(PROBES)], np.log(np.maximum(measured, 1e-6))
    power = np.clip(np.polyfit(at, found, 1)[0], 1, 3)
    return np.exp(power * missed + np.mean(found - power * at))


def exactly(choice: Choice) -> Choice:
    """The layer in a file without predictors."""
    return replace(choice, rank=0, n_bytes=choice.exact_bytes)


def without(choice: Choice) -> Choice:
    """The layer without a predictor, in a file that has predictors."""
    return replace(choice, rank=0, n_bytes=choice.without_bytes)


def worth_while(choices: Sequence[Choice]) -> Sequence[Choice]:
    """The choices, or exact mode for all layers if the choices do not read less."""
    if sum(c.n_bytes for c in choices) < sum(c.exact_bytes for c in choices):
        return choices
    return [exactly(c) for c in choices]


def cheapest(options: Sequence[Choice], lost: np.ndarray, price: float) -> Choice:
    """The cheapest option, or no predictor; price: bytes for a loss of 1.

    options, lost: one for each of RECALLS.
    """

    def cost(choice: Choice) -> float:
        return choice.n_bytes + price * lost[choice.at]

    best = min(options, key=cost)
    return best if cost(best) < best.without_bytes else without(best)


def first_within(loss: Callable[[int], float], n: int, target: float) -> int | None:
    """The first of 0..n-1 whose loss is at most the target, by bisection; None if even the last
    loses more."""
    low, high = 0, n - 1
    if loss(high) > target:
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if loss(middle) <= target else (middle + 1, high)
    return high
