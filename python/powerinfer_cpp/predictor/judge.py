"""Runs the model to measure how much its predictors raise perplexity, and how surely."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.model import Model
from ..core.options import SPARSE_MODES
from ..core.session import Session
from ..measure.perplexity import log_likelihoods

_SURE = 1.645  # standard errors below which 95% of a normal distribution are


@dataclass(frozen=True)
class Likelihood:
    """Negative log-likelihoods of windows, in nats, without each first token. sums, counts: float64
    [windows], of a window's tokens, and how many these are."""

    sums: np.ndarray
    counts: np.ndarray

    @property
    def mean(self) -> float:
        """Of all tokens."""
        return float(self.sums.sum() / self.counts.sum())


@dataclass(frozen=True)
class Loss:
    """Relative increase of the perplexity: 0.001 is 0.1%. error: its standard error on other text
    of the kind; most: what it stays below there with a probability of 95%."""

    mean: float
    error: float
    most: float

    def __str__(self) -> str:
        return f"{self.mean:+.3%} ± {self.error:.3%}"


def likelihood(model: Model, windows: Sequence[np.ndarray], mode: str, **fields: Any) -> Likelihood:
    """That of windows of tokens. mode: sparse mode. fields: fields of pi_session_params."""
    n_ctx = max(map(len, windows))
    options = {
        **fields,
        "n_ctx": n_ctx,
        "n_batch": n_ctx,
        "n_ubatch": min(n_ctx, fields.get("n_ubatch", 512)),
        "n_logits": n_ctx,
        "n_checkpoints": 0,
        "n_kv_old": 0,
        "sparse": SPARSE_MODES.index(mode),
    }
    session, sums = Session(model, **options), []
    for window in windows:
        session.truncate(0)
        session.eval(window, np.ones(len(window), dtype=bool))
        logits = np.stack([session.logits(row) for row in range(len(window) - 1)])
        sums.append(-log_likelihoods(logits, window[1:]).sum())
    session.close()
    return Likelihood(np.array(sums), np.array([len(window) - 1.0 for window in windows]))


def loss(found: Likelihood, reference: Likelihood) -> Loss:
    """That of the same windows against a reference.

    Tokens of a window are alike, so that windows are what is drawn: the error is that of a ratio of
    sums over windows. Of few windows the quantile is Student's (its first term).
    """
    difference, total = found.sums - reference.sums, found.counts.sum()
    mean, n = float(difference.sum() / total), len(difference)
    left = difference - mean * found.counts
    error = math.sqrt(float((left**2).sum()) * n / max(1, n - 1)) / float(total)
    sure = _SURE * (1 + (_SURE**2 + 1) / (4 * max(1, n - 1)))
    rise = math.exp(mean)
    return Loss(rise - 1, rise * error, math.exp(mean + sure * error) - 1)
