"""What Python does for a token does not grow with the text: the memory that it takes for a token
after a long text is that after a short one."""

from __future__ import annotations

import contextlib
import statistics
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from powerinfer_cpp.core.logits import LogitsProcessorList, StoppingCriteriaList
from powerinfer_cpp.core.sampler import Samplers
from powerinfer_cpp.core.sampling import Sampling
from powerinfer_cpp.core.sequences import context as context_module
from powerinfer_cpp.core.sequences.context import Context
from powerinfer_cpp.core.work import NEURON_COUNTS, PARTS, Work
from powerinfer_cpp.run.drafts import Drafts, LlamaDraftModel
from powerinfer_cpp.run.growing import GrowingIds
from powerinfer_cpp.run.loop import Loop
from powerinfer_cpp.run.requests import Request
from powerinfer_cpp.run.scheduler import Scheduler
from powerinfer_cpp.text.completion import Piece, Writer

N_CTX, N_VOCAB, TOKENS = 40_000, 64, 60
SHORT, LONG = 100, 30_000
NOISE = 2048  # bytes; a list of the long text has 240,000


class FakeSession:
    """Computes nothing: all tokens have the same logits."""

    def __init__(self, *_: Any, **__: Any):
        self.n_batch, self.n_ctx, self.n_vocab = 512, N_CTX, N_VOCAB
        self._logits = np.zeros(N_VOCAB, np.float32)
        self._work = Work(0, np.zeros(len(PARTS)), np.zeros((1, len(NEURON_COUNTS))))
        self._n: dict[int, int] = {}

    def eval(self, tokens: np.ndarray, *_: Any, **__: Any) -> None:
        assert len(tokens) <= self.n_batch

    def logits(self, row: int) -> np.ndarray:
        return self._logits

    logits_pointer = logits

    def work(self) -> Work:
        return self._work

    def length(self, sequence: int = 0) -> int:
        return 0

    def guess(self, token: int, sequence: int = 0) -> tuple[int, float]:
        return 1, 1.0

    def truncate(self, n: int, sequence: int = 0) -> None:
        pass

    def match(self, ids: np.ndarray, *_: Any) -> int:
        return 0

    def sample_rows(self, samplers: Any, rows: list[int]) -> list[int]:
        return [1 for _ in rows]


class FakeModel:
    n_vocab, has_experts, has_states = N_VOCAB, False, False


class FakeSampler:
    """Always chooses the same token; counts what is accepted."""

    seconds = 0.0

    def __init__(self) -> None:
        self.n_accepted = 0

    def accept(self, tokens: Any) -> None:
        self.n_accepted += len(tokens)

    def sample(self, logits: np.ndarray, n_vocab: int) -> int:
        return 1


class FakeSamplers(Samplers):
    def __init__(self, last_n: int) -> None:
        self.last_n, self.made = last_n, FakeSampler()

    def make(self, params: Sampling, seed: int, ids: Sequence[int] = (), *_: Any) -> Any:
        self.made.accept(self.recent(ids, params))
        return self.made


class FakeRuntime:
    held = staticmethod(contextlib.nullcontext)
    prompts = SimpleNamespace(token_bytes=lambda token: b"a")

    def __init__(self) -> None:
        self.samplers = FakeSamplers(64)

    def open_context(self) -> Context:
        return Context(FakeModel(), False)  # type: ignore[arg-type]


class NoDraft(LlamaDraftModel):
    def __call__(self, input_ids: np.ndarray, /, **kwargs: Any) -> np.ndarray:
        assert input_ids[-1] == 1
        return np.array([2, 3], dtype=np.intc)  # both are wrong


def bytes_per_step(step: Callable[[], Any]) -> float:
    """The most that a step has beyond what was there before; half of the steps take no more."""
    for _ in range(5):
        step()
    taken = []
    tracemalloc.start()
    try:
        for _ in range(TOKENS):
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            step()
            taken.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    return statistics.median(taken)


@pytest.fixture
def fake_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "Session", FakeSession)


def generation(n: int, draft: bool, functions: bool) -> Iterator[tuple[int, Piece | None]]:
    seen: list[int] = []

    def processor(ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
        seen[:] = [len(ids)]
        return logits

    def criterion(ids: np.ndarray, logits: np.ndarray) -> bool:
        return len(ids) != seen[0]

    runtime = FakeRuntime()
    loop = Loop(runtime)  # type: ignore[arg-type]
    request = Request(
        [1] * n,
        1,
        processors=(lambda: LogitsProcessorList([processor])) if functions else None,
        criteria=StoppingCriteriaList([criterion]) if functions else None,
        drafts=(lambda: Drafts(NoDraft(), 512, N_VOCAB)) if draft else None,
        endless=True,
    )
    steps = loop.run(request)
    next(steps)
    assert runtime.samplers.made.n_accepted <= 64 + 1
    return steps


@pytest.mark.usefixtures("fake_session")
@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("functions", [False, True])
def test_generate(draft: bool, functions: bool) -> None:
    short, long = (
        bytes_per_step(partial(next, generation(n, draft, functions))) for n in (SHORT, LONG)
    )
    assert abs(long - short) < NOISE, (short, long)


def scheduled(n: int, functions: bool) -> Scheduler:
    def processor(ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
        assert len(ids) >= n and not ids.flags.writeable
        return logits

    scheduler = Scheduler(
        FakeSession(),  # type: ignore[arg-type]
        4,
        64,
        2,
        8,
        FakeSamplers(64),
        lambda token: b"a",
    )
    request = Request(
        ids=[1] * n,
        limit=1000,
        stops=[b"stop"],
        processors=(lambda: LogitsProcessorList([processor])) if functions else None,
        criteria=(lambda ids, logits: len(ids) < n) if functions else None,
    )
    (ticket,) = scheduler.tickets([request])
    scheduler.add(ticket)
    while not scheduler.step():  # until the prompt is computed
        pass
    return scheduler


@pytest.mark.parametrize("functions", [False, True])
def test_scheduler(functions: bool) -> None:
    short, long = (bytes_per_step(scheduled(n, functions).step) for n in (SHORT, LONG))
    assert abs(long - short) < NOISE, (short, long)


def test_writer() -> None:
    costs = []
    for n in (SHORT, LONG):
        writer = Writer(N_CTX, [b"a stop string"])
        for _ in range(n):
            writer.push(b"a ")
        costs.append(bytes_per_step(partial(writer.push, b"a ")))
    assert abs(costs[1] - costs[0]) < NOISE, costs


def test_growing_ids() -> None:
    ids, views = GrowingIds([5, 6]), []
    for token in range(200):
        ids.append(token)
        views.append(ids.all)
    assert len(ids) == 202 and ids.all.dtype == np.intc
    for i, view in enumerate(views):  # earlier views stay as they were
        assert view.tolist() == [5, 6, *range(i + 1)]
    with pytest.raises(ValueError, match="read-only"):
        ids.all[0] = 1
