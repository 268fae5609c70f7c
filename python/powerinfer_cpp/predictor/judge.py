"""Runs the model to measure how much its predictors raise perplexity."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.model import Model
from ..core.options import SPARSE_MODES
from ..core.session import Session
from ..measure.perplexity import log_likelihoods


def mean_nll(model: Model, windows: Sequence[np.ndarray], mode: str, **fields: Any) -> float:
    """Mean negative log-likelihood, in nats, of all tokens of the windows except the first.

    mode: sparse mode. fields: fields of pi_session_params.
    """
    n_ctx = max(map(len, windows))
    options = {
        **fields,
        "n_ctx": n_ctx,
        "n_batch": n_ctx,
        "n_ubatch": min(n_ctx, fields.get("n_ubatch", 512)),
        "n_logits": n_ctx,
        "n_checkpoints": 0,
        "sparse": SPARSE_MODES.index(mode),
    }
    session, total, count = Session(model, **options), 0.0, 0
    for window in windows:
        session.truncate(0)
        session.eval(window, np.ones(len(window), dtype=bool))
        logits = np.stack([session.logits(row) for row in range(len(window) - 1)])
        total -= float(log_likelihoods(logits, window[1:]).sum())
        count += len(window) - 1
    session.close()
    return total / count


def loss(nll: float, reference: float) -> float:
    """Relative increase of the perplexity over the reference: 0.001 is 0.1%."""
    return math.exp(nll - reference) - 1
