"""Speed measurements from ids to logits, through the C API only."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.errors import UnsupportedModelError
from ..core.model import Model
from ..core.session import OpTime, Session
from ..core.work import Work
from ..placement.energy import EnergyMeter

_NOT_OF_TEXTS = (2, 3, 5)  # tokenizer.ggml.token_type: unknown, control, unused


@dataclass(frozen=True)
class Test:
    """n_prompt tokens as a prompt, or n_gen tokens one by one, after n_depth other tokens."""

    n_prompt: int
    n_gen: int
    n_depth: int

    @property
    def name(self) -> str:
        """llama-bench's name, for example pp512 or tg128 @ d512."""
        name = f"pp{self.n_prompt}" if self.n_prompt else f"tg{self.n_gen}"
        return f"{name} @ d{self.n_depth}" if self.n_depth else name

    @property
    def n_tokens(self) -> int:
        """Tokens that are timed."""
        return self.n_prompt or self.n_gen


@dataclass(frozen=True)
class Result:
    """Result of a test over all repetitions.

    samples_ns: time of each repetition. token_ns: time of each generated token. work: cost of the
    tokens. ops: times of the operators, empty unless measured. joules: energy, None if it cannot be
    read.
    """

    test: Test
    samples_ns: list[int]
    token_ns: list[int]
    work: Work
    ops: list[OpTime]
    joules: float | None = None

    @property
    def joules_per_token(self) -> float | None:
        """Energy of the whole processor per token, including idle parts and other work."""
        if self.joules is None:
            return None
        return self.joules / (self.test.n_tokens * len(self.samples_ns))

    @property
    def samples_ts(self) -> list[float]:
        """Tokens per second of each repetition."""
        return speeds(self.test.n_tokens, self.samples_ns)


def speeds(n_tokens: int, samples_ns: Sequence[int]) -> list[float]:
    """Tokens per second of repetitions with so many tokens each."""
    return [n_tokens * 1e9 / max(1, ns) for ns in samples_ns]


def tests(prompts: Sequence[int], gens: Sequence[int], depths: Sequence[int]) -> list[Test]:
    """Every prompt test, then every generation test, at every depth; sizes of 0 are skipped."""
    pairs = [(p, 0) for p in prompts if p] + [(0, n) for n in gens if n]
    return [Test(p, n, d) for p, n in pairs for d in depths]


def session_fields(tests: Sequence[Test], fields: dict[str, Any]) -> dict[str, Any]:
    """pi_session_params with room for each of the tests. fields: those that the caller chose."""
    need = max(test.n_depth + test.n_tokens for test in tests)
    return {**fields, "n_ctx": need, "n_logits": 1, "n_checkpoints": 1}


def ordinary_ids(model: Model, bounds: tuple[int, int] | None = None) -> np.ndarray:
    """int32 [n]: ids of tokens that texts are made of: no special ones, nor rows that pad the
    vocabulary. bounds: the first and last id that may be among them. Raises ValueError if none is.
    """
    types: Any = model.gguf.value("tokenizer.ggml.token_type", [])
    known = np.asarray(types[: model.n_vocab], dtype=np.int64)
    ids = np.flatnonzero(~np.isin(known, _NOT_OF_TEXTS)).astype(np.int32)
    if not ids.size:  # without types: what is after unk, bos and eos
        ids = np.arange(min(3, model.n_vocab - 1), model.n_vocab, dtype=np.int32)
    if bounds is not None:
        first, last = bounds
        ids = ids[(ids >= first) & (ids <= last)]
        if not ids.size:
            raise ValueError(f"no id from {first} to {last} is an ordinary token of {model.path}")
    return ids


def make_ids(n: int, among: np.ndarray, seed: int, given: np.ndarray | None) -> np.ndarray:
    """int32 [n] ids: the given ones, repeated if needed, or random ones of `among`."""
    if given is not None:
        return np.resize(given, n).astype(np.int32)
    return np.random.default_rng(seed).choice(among, n)


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

    The ids are given, or random ones of `among` (None: the ordinary ones), so no sampling is timed.
    ops: also measure the operators, which slows the test down. fields: fields of pi_session_params.
    """
    need = test.n_depth + test.n_tokens
    session = Session(model, interruptible=False, verbose=True, **session_fields([test], fields))
    try:
        ids = make_ids(need, ordinary_ids(model) if among is None else among, seed, given)
        before, timed = ids[: test.n_depth], ids[test.n_depth :]
        _fill(session, before)
        samples, tokens, begin = [], [], session.work()
        energy = EnergyMeter()
        for repetition in range(-1, repetitions):
            try:
                session.truncate(test.n_depth)
            except UnsupportedModelError:  # windows had no room for what was before
                session.truncate(0)
                _fill(session, before)
            if repetition == 0:
                begin = session.work()
                session.profile(ops)
                energy.start()
            warms_up = repetition < 0  # so this one keeps what the others begin with
            start = time.perf_counter_ns()
            if test.n_prompt:
                _fill(session, timed, warms_up)
                each = []
            else:
                each = _decode(session, timed, warms_up)
            if repetition >= 0:
                samples.append(time.perf_counter_ns() - start)
                tokens += each
        joules = energy.joules()
        session.profile(False)
        work = session.work() - begin
        return Result(test, samples, tokens, work, session.op_times() if ops else [], joules)
    finally:
        session.close()


def _fill(session: Session, ids: np.ndarray, checkpoint: bool = False) -> None:
    """Computes ids as a prompt in calls of n_batch rows, and fetches the last row's logits.
    checkpoint: one is kept before the first."""
    for first in range(0, len(ids), session.n_batch):
        chunk = ids[first : first + session.n_batch]
        session.eval(chunk, checkpoint=_before_first(len(chunk), checkpoint and first == 0))
        session.logits_pointer(len(chunk) - 1)


def _decode(session: Session, ids: np.ndarray, checkpoint: bool) -> list[int]:
    """Computes ids one by one as generated tokens; returns nanoseconds for each. checkpoint: one is
    kept before the first."""
    times, generated = [], np.ones(1, dtype=bool)
    for i in range(len(ids)):
        start = time.perf_counter_ns()
        kept = _before_first(1, checkpoint and i == 0)
        session.eval(ids[i : i + 1], generated=generated, checkpoint=kept)
        session.logits_pointer(0)
        times.append(time.perf_counter_ns() - start)
    return times


def _before_first(n: int, checkpoint: bool) -> np.ndarray | None:
    """bool [n] for `Session.eval`: whether a checkpoint is kept before the first of n rows."""
    return np.arange(n) == 0 if checkpoint else None
