"""Tensors and keys that families with a state in some layers share."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..tensors import Output, Weights, computed, from_weight, row_order
from ..writer import Entry, array


def convolution(
    weights: Weights,
    theirs: str,
    ours: str,
    channels: int,
    taps: int,
    order: np.ndarray | None = None,
) -> Output:
    """The weights of a causal convolution over each channel, [channels, taps]: always F32.

    order: row r is the checkpoint's row order[r].
    """
    weight = weights.take(f"{theirs}.weight", channels, 1, taps).reshaped(channels, taps)
    return replace(row_order(f"{ours}.weight", weight, order), exact=True)


def decay(
    weights: Weights, theirs: str, ours: str, n_head: int, order: np.ndarray | None = None
) -> Output:
    """What the state of a head fades by, from its logarithm: negative."""

    def values(log: np.ndarray) -> np.ndarray:
        return -np.exp(log if order is None else log[order])

    return computed(ours, weights.take(theirs, n_head), values)


def time_step(
    weights: Weights, theirs: str, ours: str, n_head: int, order: np.ndarray | None = None
) -> Output:
    """The bias of the time step of each head."""
    weight = weights.take(theirs, n_head)
    return from_weight(ours, weight) if order is None else row_order(ours, weight, order)


def recurrent_layers(architecture: str, recurrent: list[bool]) -> Iterator[Entry]:
    """Which layers have a state instead of attention."""
    yield array(f"{architecture}.attention.recurrent_layers", "BOOL", recurrent)
