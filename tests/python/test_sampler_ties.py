"""What each sampler leaves of tokens that are equally likely, by its definition in numpy.

After the sampler a high temperature makes what it leaves about equally likely, so that a few draws
show all of it. Of equal tokens those with the lower id come first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from powerinfer_cpp.core.sampler import Sampler

Filter = Callable[[np.ndarray, float], np.ndarray]
OFF = {"temperature": 1e4, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}


def chances(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def falling(values: np.ndarray, *then: np.ndarray) -> np.ndarray:
    """Indices by falling values, those of equal ones by the next values, at last by themselves."""
    return np.lexsort((np.arange(len(values)), *(-v for v in reversed((values, *then)))))


def top_k(logits: np.ndarray, k: float) -> np.ndarray:
    return falling(logits)[: int(k)]


def top_p(logits: np.ndarray, p: float) -> np.ndarray:
    """The fewest most likely tokens whose chances reach p."""
    order = falling(logits)
    before = np.cumsum(chances(logits)[order]) < p
    return order[: np.count_nonzero(before) + 1]


def min_p(logits: np.ndarray, p: float) -> np.ndarray:
    found = chances(logits)
    return np.flatnonzero(found >= p * found.max())


def typical_p(logits: np.ndarray, p: float) -> np.ndarray:
    """The fewest tokens of the most usual information whose chances exceed p."""
    found = chances(logits)
    information = -np.log(found)
    order = falling(-abs(information - (found * information).sum()), logits)
    before = np.cumsum(found[order]) <= p
    return order[: np.count_nonzero(before) + 1]


def top_n_sigma(logits: np.ndarray, n: float) -> np.ndarray:
    return np.flatnonzero(logits >= logits.max() - n * logits.std())


def xtc(logits: np.ndarray, threshold: float) -> np.ndarray:
    """All but the tokens that reach the threshold, of which the least likely stays."""
    order = falling(logits)
    reach = np.count_nonzero(chances(logits) >= threshold)
    return order[max(reach - 1, 0) :]


def mirostat_1(logits: np.ndarray, tau: float) -> np.ndarray:
    """As many as have a surprise of 2 tau by Zipf's law, whose exponent the first 100 show."""
    n, order = len(logits), falling(logits)
    best = np.log(chances(logits)[order[:100]])
    steps = np.log(np.arange(2, len(best) + 1) / np.arange(1, len(best)))
    exponent = (steps * (best[:-1] - best[1:])).sum() / (steps**2).sum()
    excess = exponent - 1
    width = (excess * 4**tau / (1 - n**-excess)) ** (1 / exponent)
    assert width < 0.5 or abs(width - round(width)) > 1e-6
    return order[: max(int(width), 1)]


def mirostat_2(logits: np.ndarray, tau: float) -> np.ndarray:
    surprise = -np.log2(chances(logits))
    order = falling(logits)
    return order[: max(np.count_nonzero(surprise <= 2 * tau), 1)]


FILTERS: dict[str, tuple[Filter, dict[str, object]]] = {
    "top_k": (top_k, {}),
    "top_p": (top_p, {}),
    "min_p": (min_p, {}),
    "typical_p": (typical_p, {}),
    "top_n_sigma": (top_n_sigma, {}),
    "xtc_threshold": (xtc, {"xtc_probability": 1.0}),
    "mirostat_tau": (mirostat_1, {"mirostat_mode": 1, "mirostat_eta": 0.0, "temperature": 1.0}),
    "mirostat_tau 2": (mirostat_2, {"mirostat_mode": 2, "mirostat_eta": 0.0, "temperature": 1.0}),
}


def left(logits: np.ndarray, n_draws: int, accepted: tuple[int, ...] = (), **given: object) -> set:
    """The tokens that so many draws show."""
    sampler = Sampler(seed=1, **(OFF | given))
    sampler.accept(accepted)
    row = logits.astype(np.float32)
    return {sampler.sample(row, len(row)) for _ in range(n_draws)}


def check(name: str, logits: np.ndarray, value: float, **given: object) -> None:
    """Compares what is left with what the definition of a filter leaves. Where the last step is
    not a high temperature, unlikely tokens need not show."""
    expected, more = FILTERS[name]
    ids = np.flatnonzero(np.isfinite(logits))
    kept = ids[expected(logits[ids], float(np.float32(value)))]
    rest = chances(logits[kept] / {**OFF, **more}["temperature"])
    n_draws = 15 * len(kept)
    found = left(logits, n_draws, **{name.split(" ")[0]: value}, **more, **given)
    assert set(kept[rest * n_draws > 14]) <= found <= set(kept), (name, value, sorted(found))


def with_ties(random: np.random.Generator, n: int) -> np.ndarray:
    """Logits of few values, far enough from each other that no sum of chances is near a limit."""
    found = random.choice([2.0, 1.25, 0.5, -1.75, -3.0], n, p=[0.1, 0.3, 0.2, 0.2, 0.2])
    found[-2:] = -3.0, 1.25
    return found


VALUES = {
    "top_k": (1, 2, 5, 17, 60),
    "top_p": (0.03, 0.21, 0.47, 0.83, 0.97),
    "min_p": (0.01, 0.2, 0.4, 0.6, 1.0),
    "typical_p": (0.03, 0.21, 0.47, 0.83, 0.97),
    "top_n_sigma": (0.1, 0.7, 1.3, 2.2),
    "xtc_threshold": (0.004, 0.013, 0.05, 0.3),
    "mirostat_tau": (0.3, 1.1, 1.7, 2.3),
    "mirostat_tau 2": (0.3, 2.1, 2.6, 3.7),
}


@pytest.mark.parametrize("name", FILTERS)
def test_a_limit_among_equal_tokens(name: str) -> None:
    random = np.random.default_rng(len(name))
    for n in (3, 9, 64, 110):
        for value in VALUES[name]:
            check(name, with_ties(random, n), value)
    if name == "mirostat_tau":
        return  # counts tokens that cannot be chosen, too
    for value in VALUES[name][1:3]:  # the best of many blocks of a vocabulary
        logits = np.full(1500, -np.inf)
        logits[random.choice(1500, 70, replace=False)] = with_ties(random, 70)
        check(name, logits, value)


@pytest.mark.parametrize(
    "name, n, value, n_left",
    [
        ("top_k", 8, 5, 5),
        ("top_k", 1500, 70, 70),
        ("top_k", 200, 199, 199),  # too many for a list of the best
        ("top_p", 8, 0.5, 4),  # just reached
        ("top_p", 8, 0.5 + 2**-20, 5),
        ("top_p", 8, 0.0, 1),
        ("top_p", 256, 0.25, 64),  # as many as are sorted at first
        ("top_p", 256, 65 / 256, 65),
        ("min_p", 8, 1.0, 8),
        ("typical_p", 8, 0.5, 5),  # must be exceeded
        ("typical_p", 8, 0.5 - 2**-20, 4),
        ("typical_p", 256, 0.25, 65),
        ("top_n_sigma", 8, 1e-6, 8),  # the deviation is 0
        ("xtc_threshold", 8, 0.125, 1),  # all reach it
        ("xtc_threshold", 8, 0.125 + 2**-20, 8),
        ("xtc_threshold", 2, 0.5, 1),
        ("mirostat_tau 2", 8, 1.51, 8),
        ("mirostat_tau 2", 8, 1.49, 1),
    ],
)
def test_all_are_equal(name: str, n: int, value: float, n_left: int) -> None:
    expected, _ = FILTERS[name]
    equal, never = np.full(n, -7.25), np.full(40, -np.inf)
    assert len(expected(equal, value)) == n_left
    for logits in (equal, np.append(equal, never), np.append(never, equal)):
        check(name, logits, value)


def test_equal_to_the_bound_of_top_n_sigma() -> None:
    """Half the logits are one deviation above the mean and half one below it."""
    logits = np.array([3.0, 1.0, 1.0, 3.0, 1.0, 3.0, 3.0, 1.0])
    assert len(top_n_sigma(logits, 2.0)) == 8
    check("top_n_sigma", logits, 2.0)
    check("top_n_sigma", logits, 2 - 2**-20)


def test_filters_after_another() -> None:
    """What one leaves is sorted or not; the next finds the same in it."""
    random = np.random.default_rng(5)
    for first, then in [
        ("top_k", "top_p"),
        ("top_k", "typical_p"),
        ("typical_p", "top_p"),
        ("top_p", "xtc_threshold"),
        ("top_n_sigma", "top_p"),
        ("min_p", "top_k"),
    ]:
        for one, two in zip(VALUES[first][1:], reversed(VALUES[then][1:]), strict=False):
            logits = with_ties(random, 120)
            kept = np.sort(FILTERS[first][0](logits, float(np.float32(one))))
            kept = kept[FILTERS[then][0](logits[kept], float(np.float32(two)))]
            names = [
                {"typical_p": "typical", "xtc_threshold": "xtc"}.get(name, name)
                for name in (first, then, "temperature")
            ]
            given = {first: one, then: two, "samplers": names, "xtc_probability": 1.0}
            assert left(logits, 15 * len(kept), **given) == set(kept), given


def test_greedy_choices() -> None:
    random = np.random.default_rng(7)
    for n in (1, 2, 63, 64, 65, 1000):
        for _ in range(20):
            logits = random.integers(-2, 3, n) / 2  # no value is rare
            logits[random.random(n) < 0.1] = -np.inf
            logits[0] = max(logits[0], -4)
            for given in ({"temperature": 0.0}, {"top_k": 1, "temperature": 1.0}):
                assert left(logits, 1, **given) == {int(np.argmax(logits))}
    assert left(np.array([-5.0, -0.0, 0.0]), 9, temperature=0.0) == {1}  # zeros are equal
    assert left(np.array([-5.0, -0.0, 0.0]), 200, top_k=2) == {1, 2}


def test_draws_among_equal_tokens() -> None:
    """Each is as likely as the other, wherever the temperature lies between its limits."""
    logits = np.array([0.0, -1.0, 0.0, -1.0, 0.0])
    for given in ({"temperature": 0.7}, {"temperature": 0.7, "dynatemp_range": 0.5}):
        temperature = given["temperature"]
        if "dynatemp_range" in given:
            found = chances(logits)
            share = -(found * np.log(found)).sum() / np.log(len(logits))
            temperature = 0.2 + share * 1.0
        sampler, n = Sampler(seed=3, **(OFF | given)), 5000
        row = logits.astype(np.float32)
        drawn = np.bincount([sampler.sample(row, len(row)) for _ in range(n)], minlength=5)
        expected = n * chances(logits / temperature)
        assert (abs(drawn - expected) < 4 * np.sqrt(expected)).all(), (drawn, expected)


def repetitions(tokens: tuple[int, ...], allowed: int, factor: float, base: float) -> dict:
    """DRY's penalties: by the longest end of the text that a token has followed before."""
    lengths: dict[int, int] = {}
    for at, token in enumerate(tokens):
        n = 0
        while n < at and tokens[at - 1 - n] == tokens[-1 - n]:
            n += 1
        lengths[token] = max(lengths.get(token, 0), n)
    return {t: factor * base ** (n - allowed) for t, n in lengths.items() if n and n >= allowed}


PENALTIES = {
    "dry": (
        {"dry_multiplier": 2.0, "dry_base": 2.0, "dry_allowed_length": 1},
        lambda logit, token, tokens: logit - repetitions(tokens, 1, 2.0, 2.0).get(token, 0),
    ),
    "penalties": (
        {"repeat_penalty": 2.0, "frequency_penalty": 0.5, "presence_penalty": 0.25},
        lambda logit, token, tokens: (
            (logit * 2 if logit <= 0 else logit / 2) - 0.5 * tokens.count(token) - 0.25
            if token in tokens
            else logit
        ),
    ),
}


@pytest.mark.parametrize("step", PENALTIES)
def test_equal_by_a_penalty(step: str) -> None:
    """Penalties make tokens equal to others, before the best are looked for and after that."""
    tokens = (7, 8, 3, 7, 8, 4, 8, 5, 8, 5, 7, 8)  # 3 and 4 follow both, 5 the last
    given, penalised = PENALTIES[step]
    wanted = {1: 0.5, 3: 0.5, 4: 0.5, 5: 0.5, 6: 0.5, 7: 0.25, 8: 0.5, 9: 0.5}
    logits = np.full(80, -40.0)
    steps = np.arange(-64, 65) / 8  # all these are exact
    for token, value in wanted.items():
        fitting = [x for x in steps if penalised(x, token, tokens) == value]
        logits[token] = fitting[0]
    after = np.array([penalised(x, i, tokens) for i, x in enumerate(logits)])
    changed = set(np.flatnonzero(after != logits))
    assert changed >= ({3, 4, 5} if step == "dry" else {3, 4, 5, 7, 8})
    given = given | {"dry_penalty_last_n": -1, "repeat_last_n": -1}
    assert left(logits, 1, tokens, temperature=0.0, **given) == {1}
    for k in range(1, 10):
        expected = set(top_k(after, k))
        for order in (None, ["top_n_sigma", step, "top_k", "temperature"]):
            assert left(logits, 300, tokens, top_k=k, samplers=order, **given) == expected, k
    for p in (0.2, 0.6, 0.95):
        assert left(logits, 300, tokens, top_p=p, **given) == set(top_p(after, p)), p
