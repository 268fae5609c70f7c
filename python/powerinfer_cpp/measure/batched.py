"""Speed of several texts in one session, from ids to logits, through the C API only.

Each text has ids of its own, so that those of a mixture choose experts of their own: equal texts
would share them, and a step would read less than one of texts that differ.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import add
from typing import Any

import numpy as np

from ..core.model import Model
from ..core.session import OpTime, Session
from ..core.work import Work
from .bench import make_ids, ordinary_ids


@dataclass(frozen=True)
class Test:
    """n_texts prompts of n_prompt tokens each, then n_gen steps of one token for each text."""

    n_prompt: int
    n_gen: int
    n_texts: int

    @property
    def n_each(self) -> int:
        """Tokens of a text."""
        return self.n_prompt + self.n_gen

    @property
    def n_kv(self) -> int:
        """Positions of all texts."""
        return self.n_texts * self.n_each


@dataclass(frozen=True)
class Phase:
    """Prompts or generated tokens over all repetitions.

    n_tokens: those of all texts in one repetition. samples_ns: time of each repetition. work: cost
    of the tokens. ops: times of the operators, empty unless measured.
    """

    n_tokens: int
    samples_ns: list[int]
    work: Work
    ops: list[OpTime]


@dataclass(frozen=True)
class Result:
    """Result of a test. token_ns: time of each step, which is how long a text waits for a token."""

    test: Test
    prompts: Phase
    generated: Phase
    token_ns: list[int]

    @property
    def samples_ns(self) -> list[int]:
        """Time of each repetition, of both phases together."""
        both = zip(self.prompts.samples_ns, self.generated.samples_ns, strict=True)
        return [sum(pair) for pair in both]


def tests(prompts: Sequence[int], gens: Sequence[int], texts: Sequence[int]) -> list[Test]:
    """Every size of prompt with every number of generated tokens and of texts; those without any
    token are skipped."""
    return [Test(*sizes) for sizes in product(prompts, gens, texts) if any(sizes[:2])]


def session_fields(tests: Sequence[Test], fields: dict[str, Any]) -> dict[str, Any]:
    """pi_session_params with room for each of the tests. fields: those that the caller chose; a
    step is one call, so n_batch must be at least the number of texts."""
    n_texts = max(test.n_texts for test in tests)
    return {
        **fields,
        "n_ctx": max(test.n_each for test in tests),
        "n_seq": n_texts,
        "n_logits": n_texts,
        "n_checkpoints": 0,  # sequences are only cut at 0
        "n_kv_old": 0,
    }


def text_ids(test: Test, among: np.ndarray, seed: int, given: np.ndarray | None) -> np.ndarray:
    """int32 [n_texts, n_each]: the ids of each text. Given ones are dealt out, one text after the
    other."""
    return make_ids(test.n_kv, among, seed, given).reshape(test.n_texts, test.n_each)


def measure(
    model: Model,
    test: Test,
    repetitions: int,
    seed: int,
    given: np.ndarray | None,
    ops: bool = False,
    among: np.ndarray | None = None,
    **fields: int,
) -> Result:
    """Runs a test in its own session, after a warm-up run that is not counted.

    Arguments as of `bench.measure`.
    """
    session = Session(model, interruptible=False, verbose=True, **session_fields([test], fields))
    try:
        ids = text_ids(test, ordinary_ids(model) if among is None else among, seed, given)
        prompts, steps = np.split(ids, [test.n_prompt], axis=1)
        for repetition in range(-1, repetitions):
            if repetition <= 0:  # begins anew after the warm-up
                filled, decoded, token_ns = _Times(session, ops), _Times(session, ops), []
            for text in range(test.n_texts):
                session.truncate(0, text)
            with filled.measured():
                _fill(session, prompts)
            with decoded.measured():
                token_ns += _decode(session, steps)
        return Result(test, filled.phase(prompts.size), decoded.phase(steps.size), token_ns)
    finally:
        session.close()


class _Times:
    """What a phase took so far. ops: its operators are measured, too."""

    def __init__(self, session: Session, ops: bool):
        self._session, self._with_ops = session, ops
        self._samples: list[int] = []
        self._work: list[Work] = []
        self._ops: dict[tuple[str, str], OpTime] = {}

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Within it, one repetition is computed."""
        before = self._session.work()
        self._session.profile(self._with_ops)
        start = time.perf_counter_ns()
        yield
        self._samples.append(time.perf_counter_ns() - start)
        self._session.profile(False)
        self._work.append(self._session.work() - before)
        for op in self._session.op_times() if self._with_ops else ():
            old = self._ops.get((op.part, op.op))
            if old is not None:
                sums = old.calls + op.calls, old.seconds + op.seconds, old.n_bytes + op.n_bytes
                op = OpTime(op.part, op.op, *sums)
            self._ops[op.part, op.op] = op

    def phase(self, n_tokens: int) -> Phase:
        """All of them. n_tokens: of one repetition."""
        return Phase(n_tokens, self._samples, reduce(add, self._work), list(self._ops.values()))


def _fill(session: Session, ids: np.ndarray) -> None:
    """Computes int32 ids [n_texts, n_prompt], one text behind the other in calls of n_batch rows,
    and fetches the logits of each text's last row."""
    n_texts, n_prompt = ids.shape
    tokens, last = ids.reshape(-1), np.arange(ids.size) % max(1, n_prompt) == n_prompt - 1
    texts = np.repeat(np.arange(n_texts, dtype=np.int32), n_prompt)
    for first in range(0, ids.size, session.n_batch):
        rows = slice(first, first + session.n_batch)
        session.eval(tokens[rows], keep=last[rows], sequences=texts[rows])
        for row in np.flatnonzero(last[rows]).tolist():
            session.logits_pointer(row)


def _decode(session: Session, ids: np.ndarray) -> list[int]:
    """Computes int32 ids [n_texts, n_gen] as generated tokens, one of each text in a step; returns
    nanoseconds for each step."""
    n_texts = len(ids)
    texts, all_rows = np.arange(n_texts, dtype=np.int32), np.ones(n_texts, dtype=bool)
    times = []
    for tokens in np.ascontiguousarray(ids.T):
        start = time.perf_counter_ns()
        session.eval(tokens, keep=all_rows, sequences=texts, generated=all_rows)
        for row in range(n_texts):
            session.logits_pointer(row)
        times.append(time.perf_counter_ns() - start)
    return times
