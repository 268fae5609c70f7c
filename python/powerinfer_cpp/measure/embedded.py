"""Speed of vectors and scores, from ids to what pooling gives."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from ..core.model import Model
from ..core.sequences.embedding import MEAN, NONE, Embedder, embedding_fields, pooling_of
from ..core.session import OpTime
from .bench import make_ids, ordinary_ids, speeds

_LEAST = 8  # of mixed lengths, the shortest text is this part of the longest


@dataclass(frozen=True)
class Test:
    """n_texts texts of one request, of n_prompt tokens each; mixed: of lengths from an eighth of
    that on, evenly spread."""

    n_prompt: int
    n_texts: int
    mixed: bool = False

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text."""
        least = max(1, self.n_prompt // _LEAST) if self.mixed else self.n_prompt
        return [round(n) for n in np.linspace(self.n_prompt, least, self.n_texts)]

    @property
    def name(self) -> str:
        """For example embed 29-234 x 32."""
        found = self.lengths
        span = f"{found[-1]}-" if found[-1] != found[0] else ""
        return f"embed {span}{self.n_prompt} x {self.n_texts}"


@dataclass(frozen=True)
class Result:
    """Result of a test over all repetitions. samples_ns: time of each. ops: times of the operators,
    empty unless measured."""

    test: Test
    samples_ns: list[int]
    ops: list[OpTime]

    @property
    def samples_ts(self) -> list[float]:
        """Tokens per second of each repetition."""
        return speeds(sum(self.test.lengths), self.samples_ns)


def tests(prompts: Sequence[int], texts: Sequence[int], mixed: bool) -> list[Test]:
    """Every length with every number of texts; lengths of 0 are skipped."""
    return [Test(p, n, mixed) for p, n in product(prompts, texts) if p]


def session_fields(tests: Sequence[Test], fields: dict[str, Any]) -> dict[str, Any]:
    """pi_session_params with room for each of the tests. fields: those that the caller chose."""
    own = {**fields, "n_ctx": max(test.n_prompt for test in tests)}
    return embedding_fields(own, MEAN)


def measure(
    model: Model,
    test: Test,
    repetitions: int,
    seed: int,
    given: np.ndarray | None,
    ops: bool = False,
    among: np.ndarray | None = None,
    **fields: Any,
) -> Result:
    """Runs a test in its own session, after a warm-up run that is not counted. Arguments as of
    `bench.measure`. Raises ValueError for a model that pools nothing."""
    if (pooling := pooling_of(model)) == NONE:
        raise ValueError(f"{model.path}: this model gives no vectors of whole texts")
    of_session = {**fields, "n_ctx": test.n_prompt, "interruptible": False}
    embedder = Embedder(model, pooling, **of_session)
    try:
        lengths = test.lengths
        ids = make_ids(sum(lengths), ordinary_ids(model) if among is None else among, seed, given)
        texts = np.split(ids, np.cumsum(lengths)[:-1])
        samples = []
        for repetition in range(-1, repetitions):
            if repetition == 0:
                embedder.session.profile(ops)
            start = time.perf_counter_ns()
            embedder.pooled(texts)
            if repetition >= 0:
                samples.append(time.perf_counter_ns() - start)
        embedder.session.profile(False)
        return Result(test, samples, embedder.session.op_times() if ops else [])
    finally:
        embedder.close()
