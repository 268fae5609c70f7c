"""Perplexity of a text, and comparison of two models or modes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.model import Model
from ..core.progress import Progress
from ..core.session import Session
from ..core.work import Work


@dataclass(frozen=True)
class Estimate:
    """exp of the mean negative log-likelihood of n_tokens tokens, and its standard error.

    work: work for the distributions of the scored tokens, without the tokens before them.
    """

    perplexity: float
    error: float
    n_windows: int
    n_tokens: int
    work: Work | None = None


def text_tokens(model: Model, text: bytes, separator: bytes | None) -> np.ndarray:
    """Ids of a text, int32 [n]. Without a separator: one document, with BOS if the file asks for
    it. With a separator: BOS, document, EOS for each stripped document that is not empty."""
    if not separator:
        begin = np.array([model.bos] if model.add_bos else [], dtype=np.int32)
        return np.concatenate([begin, model.token_array(text)])
    begin = np.array([model.bos] if model.bos >= 0 else [], dtype=np.int32)
    end = np.array([model.eos] if model.eos >= 0 else [], dtype=np.int32)
    parts = [np.empty(0, dtype=np.int32)]
    for document in text.split(separator):
        if document.strip():
            parts += begin, model.token_array(document.strip()), end
    return np.concatenate(parts)


def windows(
    ids: np.ndarray, n_ctx: int, bos: int | None, by_document: bool
) -> Iterator[tuple[np.ndarray, int]]:
    """Windows of tokens, int32 [n], and the first token in each that is scored.

    They are cut into windows of n_ctx without overlap; a shorter rest is dropped. BOS replaces
    the first token of each window (unless bos is None). These tokens are scored, given the tokens
    before them in the window:
    - with documents (a separator): the last n_ctx/2 tokens, positions n_ctx/2 .. n_ctx-1;
    - without: positions n_ctx/2 + 1 .. n_ctx-1, one fewer, exactly as llama-perplexity.
    So 66,210 tokens in windows of 256 give 258 windows; with documents, 33,024 scored tokens.
    """
    first = n_ctx // 2 if by_document else n_ctx // 2 + 1
    for start in range(0, len(ids) - n_ctx + 1, n_ctx):
        window = ids[start : start + n_ctx].copy()
        if bos is not None:
            window[0] = bos
        yield window, first


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """float64 [n, n_vocab]: log-probabilities."""
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    return x


def log_likelihoods(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """float64 [n]: log-probability of targets [n] under logits [n, n_vocab]."""
    return log_softmax(logits)[np.arange(len(logits)), targets]


@dataclass(frozen=True)
class Comparison:
    """Difference between the distributions of a model and a reference, over the same tokens.

    kl: Kullback-Leibler divergence of the model from the reference in nats; log_ratio: the model's
    negative log-likelihood minus the reference's; both float64 [n_tokens]. same_top: share of
    tokens for which both have the same most likely token.
    """

    chosen: Estimate
    reference: Estimate
    kl: np.ndarray
    log_ratio: np.ndarray
    same_top: float

    @property
    def mean(self) -> float:
        """Mean divergence."""
        return float(self.kl.mean())

    @property
    def p99(self) -> float:
        """99th percentile of the divergences."""
        return float(np.percentile(self.kl, 99))


def standard_error(values: np.ndarray) -> float:
    """Standard error of the mean."""
    return float(values.std() / math.sqrt(max(1, len(values) - 1)))


class _Scorer:
    """Collects negative log-likelihoods for an estimate, and their work."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.total = self.squares = 0.0
        self.count = 0
        self.work: Work | None = None

    def add(self, nll: np.ndarray) -> None:
        self.total += nll.sum()
        self.squares += (nll**2).sum()
        self.count += len(nll)

    @property
    def perplexity(self) -> float:
        return math.exp(self.total / self.count)

    def estimate(self, n_windows: int) -> Estimate:
        mean, n, value = self.total / self.count, self.count, self.perplexity
        variance = max(0.0, self.squares / n - mean**2)
        error = value * math.sqrt(variance / max(1, n - 1))
        return Estimate(value, error, n_windows, n, self.work)

    def rows(self, window: np.ndarray, first: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(logits float32 [n, n_vocab], targets int32 [n]) of the tokens from `first` on in a
        window [n_ctx], in parts whose sizes depend only on the arguments.

        The row before a scored token gives its logits. These rows count as generated, the rows
        before them as a prompt, so every sparse mode computes them as in real use.
        """
        session = self.session
        session.truncate(0)
        for a in range(0, first - 1, session.n_batch):
            prompt = window[a : min(a + session.n_batch, first - 1)]
            session.eval(prompt, np.zeros(len(prompt), dtype=bool))
        begin = session.work()
        for a in range(first - 1, len(window) - 1, session.n_batch):
            part = window[a : min(a + session.n_batch, len(window) - 1)]
            all_rows = np.ones(len(part), dtype=bool)
            session.eval(part, all_rows, generated=all_rows)
            targets = window[a + 1 : a + 1 + len(part)]
            yield np.stack([session.logits(row) for row in range(len(part))]), targets
        spent = session.work() - begin
        self.work = spent if self.work is None else self.work + spent


def scoring_fields(n_ctx: int, fields: dict[str, Any]) -> dict[str, Any]:
    """pi_session_params of a session for `perplexity` and `compare`. fields: those that the caller
    chose."""
    sizes = {
        "n_ctx": n_ctx,
        "n_batch": min(fields["n_batch"], n_ctx),
        "n_checkpoints": 0,
        "n_kv_old": 0,
    }
    return {**fields, **sizes}


def _cut(
    model: Model, text: bytes, n_ctx: int, separator: bytes | None
) -> tuple[np.ndarray, int | None]:
    """Ids of the text, and the id (or None) that replaces the first token of each window."""
    if n_ctx < 4:
        raise ValueError(f"windows of {n_ctx} tokens leave nothing to score: use at least 4")
    ids = text_tokens(model, text, separator)
    if len(ids) < n_ctx:
        raise ValueError(f"the text has {len(ids)} tokens, fewer than one window of {n_ctx}")
    return ids, model.bos if model.bos >= 0 and (model.add_bos or separator) else None


def perplexity(
    model: Model, session: Session, text: bytes, n_ctx: int, separator: bytes | None
) -> Estimate:
    """Perplexity of a text in windows of n_ctx tokens (see `windows`); every scored token is
    computed in the session's sparse mode.

    session: must keep the logits of at least n_batch rows. Raises ValueError if the text is shorter
    than a window, or if windows are too short.
    """
    ids, replaced = _cut(model, text, n_ctx, separator)
    n_windows, scorer = len(ids) // n_ctx, _Scorer(session)
    with Progress("perplexity", n_windows, "windows") as progress:
        for window, first in windows(ids, n_ctx, replaced, bool(separator)):
            for logits, targets in scorer.rows(window, first):
                scorer.add(-log_likelihoods(logits, targets))
            progress.update(1, f"PPL {scorer.perplexity:.4f}")
    return scorer.estimate(n_windows)


def compare(
    chosen: tuple[Model, Session],
    reference: tuple[Model, Session],
    text: bytes,
    n_ctx: int,
    separator: bytes | None,
) -> Comparison:
    """Both perplexities, and the divergence of the chosen model from the reference.

    Raises the errors of `perplexity`, and ValueError for models with different vocabularies.
    """
    ids, replaced = _cut(chosen[0], text, n_ctx, separator)
    same_sizes = chosen[0].n_vocab == reference[0].n_vocab
    if not (same_sizes and np.array_equal(ids, text_tokens(reference[0], text, separator))):
        raise ValueError(f"{reference[0].path}: has another vocabulary than {chosen[0].path}")
    n_windows, ours, theirs = len(ids) // n_ctx, _Scorer(chosen[1]), _Scorer(reference[1])
    divergences, ratios, same = [], [], 0
    with Progress("perplexity", n_windows, "windows") as progress:
        for window, first in windows(ids, n_ctx, replaced, bool(separator)):
            pairs = [scorer.rows(window, first) for scorer in (ours, theirs)]
            for (logits, targets), (expected, _) in zip(*pairs, strict=True):
                q, p = log_softmax(logits), log_softmax(expected)
                at = np.arange(len(targets)), targets
                ours.add(-q[at])
                theirs.add(-p[at])
                divergences.append((np.exp(p) * (p - q)).sum(axis=1))
                ratios.append(p[at] - q[at])
                same += int((q.argmax(axis=1) == p.argmax(axis=1)).sum())
            progress.update(1, f"PPL {ours.perplexity:.4f}")
    kl = np.maximum(np.concatenate(divergences), 0.0)  # rounding may leave -1e-17
    estimates = ours.estimate(n_windows), theirs.estimate(n_windows)
    return Comparison(*estimates, kl, np.concatenate(ratios), same / len(kl))
