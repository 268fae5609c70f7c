"""Work over `ray.data.Dataset`s: every actor has the model open once, and takes batches of rows."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ray.data import ActorPoolStrategy, Dataset

from ..convert.statistics import Statistics
from ..core.model import Model
from ..core.sampling import Sampling, further
from ..measure.perplexity import Estimate
from ..profile.counters import EngineCounter, check_sparse
from ..profile.text import windows
from ..run.requests import Request
from ..server.bulk import BulkWriter

BATCH = 16  # rows that an actor computes together

Batch = dict[str, np.ndarray]


def complete(
    dataset: Dataset,
    model: str | Path,
    *,
    column: str = "prompt",
    output: str = "completion",
    max_tokens: int = 128,
    stop: Sequence[str] | None = None,
    seed: int = 0,
    actors: int = 1,
    threads: int | None = None,
    options: Mapping[str, Any] | None = None,
    **sampling: float,
) -> Dataset:
    """The dataset with completions of a column of prompts.

    Each is the text that `Llama(model, **options)(prompt, max_tokens, stop=stop, seed=seed,
    **sampling)` gives. actors: processes that have the model open, each with `threads` CPUs
    (default: 1). Ray needs a CPU beside those of the actors to read the dataset, or nothing moves.
    """
    given = {
        "model": str(model),
        "column": column,
        "output": output,
        "request": {"max_tokens": max_tokens, "stop": stop, "seed": seed},
        "sampling": further("complete", sampling),
        "options": dict(options or {}),
    }
    return _mapped(dataset, _Completer, given, actors, threads)


def perplexity(
    dataset: Dataset,
    model: str | Path,
    *,
    column: str = "text",
    actors: int = 1,
    threads: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Estimate:
    """The perplexity of a column of texts: exp of the mean negative log-likelihood of every token
    after the first of its window.

    A text that is longer than the context is cut into windows of `options["n_ctx"]` tokens. Raises
    ValueError if no token is scored.
    """
    given = {"model": str(model), "column": column, "options": dict(options or {})}
    scored = _mapped(dataset, _Scorer, given, actors, threads)
    sums = np.zeros(4)
    for row in scored.iter_rows():
        sums += [row["nll"], row["squares"], row["tokens"], row["windows"]]
    total, squares, n, n_windows = sums
    if n == 0:
        raise ValueError("the dataset has no text of two tokens")
    mean = total / n
    value = math.exp(mean)
    error = value * math.sqrt(max(0.0, squares / n - mean**2) / max(1, n - 1))
    return Estimate(value, error, int(n_windows), int(n))


def profile(
    dataset: Dataset,
    model: str | Path,
    *,
    column: str = "text",
    corpus: str = "dataset",
    separator: bytes | None = None,
    n_ctx: int = 512,
    actors: int = 1,
    threads: int | None = None,
) -> Statistics:
    """Firing counts of a column of texts, summed over all rows.

    The same numbers as one process counts that profiles each row as a text of its own
    (`powerinfer profile`, with the same separator and windows). Raises ValueError for a dataset
    without text.
    """
    given = {"model": str(model), "column": column, "separator": separator, "n_ctx": n_ctx}
    counted = _mapped(dataset, _Counter, given, actors, threads)
    total: Statistics | None = None
    for row in counted.iter_rows():
        layers, counts, first = [], np.frombuffer(row["counts"], np.uint64), 0
        for shape in np.reshape(row["shapes"], (-1, 2)):
            n = int(np.prod(shape))
            layers.append(counts[first : first + n].reshape(shape))
            first += n
        part = Statistics(layers, int(row["tokens"]), corpus)
        total = part if total is None else total + part
    if total is None or total.tokens == 0:
        raise ValueError("the dataset has no text")
    return total


def _mapped(
    dataset: Dataset, kind: type, given: dict[str, Any], actors: int, threads: int | None
) -> Dataset:
    n = threads or 1
    return dataset.map_batches(
        kind,
        batch_size=BATCH,
        compute=ActorPoolStrategy(size=actors),
        num_cpus=n,
        fn_constructor_kwargs={**given, "threads": n},
    )


class _Completer:
    def __init__(
        self,
        model: str,
        column: str,
        output: str,
        request: dict[str, Any],
        sampling: dict[str, float],
        options: Mapping[str, Any],
        threads: int,
    ):
        self._writer = BulkWriter(model, **_options(threads, options))
        self._column, self._output, self._request = column, output, request
        self._params = Sampling(**sampling)

    def __call__(self, batch: Batch) -> Batch:
        requests = (
            self._writer.model.request(str(prompt), params=self._params, **self._request)
            for prompt in batch[self._column]
        )
        texts = np.empty(len(batch[self._column]), dtype=object)
        for i, _, text in self._writer.run(requests):
            texts[i] = text
        return {**batch, self._output: texts}


class _Scorer:
    def __init__(self, model: str, column: str, options: Mapping[str, Any], threads: int):
        self._writer = BulkWriter(model, **_options(threads, options))
        self._column = column

    def __call__(self, batch: Batch) -> Batch:
        rows: list[int] = []  # of each window
        n = len(batch[self._column])
        sums = {name: np.zeros(n) for name in ("nll", "squares", "tokens", "windows")}
        scores: dict[int, tuple[float, float, int]] = {}
        for i, ticket, _ in self._writer.run(self._windows(batch[self._column], rows)):
            nll = -np.array([c.logprob for c in ticket.echoed[1:]])
            scores[i] = float(nll.sum()), float((nll**2).sum()), len(nll)
        for i, row in enumerate(rows):  # in this order, whichever window was ready first
            for name, value in zip(sums, (*scores[i], 1), strict=True):
                sums[name][row] += value
        return sums

    def _windows(self, texts: Iterable[Any], rows: list[int]) -> Iterator[Request]:
        """A request for each window of two tokens or more; the number of its text is added to
        rows."""
        model = self._writer.model
        n_ctx = model.n_ctx
        for row, text in enumerate(texts):
            ids = model.prompts.tokenize(str(text).encode("utf-8", "surrogatepass"))
            for first in range(0, len(ids), n_ctx):
                window = ids[first : first + n_ctx]
                if len(window) > 1:
                    rows.append(row)
                    yield model.request(window, max_tokens=0, logprobs=0, echo=True)


def _options(threads: int, options: Mapping[str, Any]) -> dict[str, Any]:
    return {"n_threads": threads, "n_parallel": BATCH, "verbose": False, **options}


class _Counter:
    def __init__(self, model: str, column: str, separator: bytes | None, n_ctx: int, threads: int):
        self._model = Model(model, n_threads=threads)
        check_sparse(self._model)
        self._column, self._separator = column, separator
        self._n_ctx = min(n_ctx, self._model.n_ctx_train)
        self._new: Callable[[], EngineCounter] = lambda: EngineCounter(
            self._model, self._n_ctx, n_threads=threads
        )

    def __call__(self, batch: Batch) -> Batch:
        counter, n = self._new(), 0
        for text in batch[self._column]:
            data = text if isinstance(text, bytes) else str(text).encode()
            if not data.strip():
                continue
            for window in windows(self._model, data, self._separator, self._n_ctx):
                counter.add(window)
                n += len(window)
        counts = counter.counts()
        return {
            "counts": np.array([b"".join(c.tobytes() for c in counts)], dtype=object),
            "shapes": np.array([[n for c in counts for n in c.shape]]),
            "tokens": np.array([n]),
        }
