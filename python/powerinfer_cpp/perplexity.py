"""Perplexity: how surprised a model is by a text."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .model import Model, Session
from .progress import Progress


@dataclass(frozen=True)
class Estimate:
    """exp of the mean negative log-likelihood of n_tokens tokens, and its standard error."""

    perplexity: float
    error: float
    n_windows: int
    n_tokens: int


def text_tokens(model: Model, text: bytes, separator: bytes | None) -> list[int]:
    """Ids of a text: one document with BOS if the file wants it or, split at the separator, each
    stripped document that is not empty as BOS, document, EOS."""
    if not separator:
        return ([model.bos] if model.add_bos else []) + model.tokenize(text)
    begin = [model.bos] if model.bos >= 0 else []
    end = [model.eos] if model.eos >= 0 else []
    ids: list[int] = []
    for document in text.split(separator):
        if document.strip():
            ids += begin + model.tokenize(document.strip()) + end
    return ids


def windows(
    ids: list[int], n_ctx: int, bos: int | None, by_document: bool
) -> Iterator[tuple[np.ndarray, int]]:
    """Windows of a token list, and the first token in each that is scored.

    The list is cut into windows of n_ctx without overlap; what is left at the end is dropped. The
    first token of each is replaced by BOS (unless bos is None). Scored are, by the tokens before
    them in the window,
    - with documents (a separator): the last n_ctx/2 tokens, positions n_ctx/2 .. n_ctx-1;
    - without: positions n_ctx/2 + 1 .. n_ctx-1, one fewer, exactly as llama-perplexity.
    66,210 tokens in windows of 256 thus give 258 windows, with documents 33,024 scored tokens.
    """
    first = n_ctx // 2 if by_document else n_ctx // 2 + 1
    for start in range(0, len(ids) - n_ctx + 1, n_ctx):
        window = np.array(ids[start : start + n_ctx], dtype=np.int32)
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
    """How far a model's distributions are from a reference's, over the same scored tokens.

    kl: Kullback-Leibler divergence of the model from the reference in nats, float64 [n_tokens].
    same_top: share of tokens for which both find the same one likeliest.
    """

    chosen: Estimate
    reference: Estimate
    kl: np.ndarray
    same_top: float

    @property
    def mean(self) -> float:
        """Mean divergence."""
        return float(self.kl.mean())

    @property
    def mean_error(self) -> float:
        """Standard error of the mean."""
        return float(self.kl.std() / math.sqrt(max(1, len(self.kl) - 1)))

    @property
    def p99(self) -> float:
        """99th percentile of the divergences."""
        return float(np.percentile(self.kl, 99))


class _Sums:
    """Negative log-likelihoods on the way to an estimate."""

    def __init__(self) -> None:
        self.total = self.squares = 0.0
        self.count = 0

    def add(self, nll: np.ndarray) -> None:
        self.total += nll.sum()
        self.squares += (nll**2).sum()
        self.count += len(nll)

    def estimate(self, n_windows: int) -> Estimate:
        mean = self.total / self.count
        variance = max(0.0, self.squares / self.count - mean**2)
        value, n = math.exp(mean), self.count
        return Estimate(value, value * math.sqrt(variance / max(1, n - 1)), n_windows, n)


def _cut(
    model: Model, text: bytes, n_ctx: int, separator: bytes | None
) -> tuple[list[int], int | None]:
    """Ids of the text, and what takes the first place of each window."""
    if n_ctx < 4:
        raise ValueError(f"windows of {n_ctx} tokens leave nothing to score: use at least 4")
    ids = text_tokens(model, text, separator)
    if len(ids) < n_ctx:
        raise ValueError(f"the text has {len(ids)} tokens, fewer than one window of {n_ctx}")
    return ids, model.bos if model.bos >= 0 and (model.add_bos or separator) else None


def perplexity(
    model: Model, session: Session, text: bytes, n_ctx: int, separator: bytes | None
) -> Estimate:
    """Perplexity of a text, in windows of n_ctx tokens as `windows` cuts them.

    session: keeps the logits of at least n_batch rows. Raises ValueError for a text that fills no
    window, or windows too short to score.
    """
    ids, replaced = _cut(model, text, n_ctx, separator)
    n_windows, sums = len(ids) // n_ctx, _Sums()
    with Progress("perplexity", n_windows, "windows") as progress:
        for window, first in windows(ids, n_ctx, replaced, bool(separator)):
            for logits, targets in _rows(session, window, first):
                sums.add(-log_likelihoods(logits, targets))
            progress.update(1, f"PPL {math.exp(sums.total / sums.count):.4f}")
    return sums.estimate(n_windows)


def compare(
    chosen: tuple[Model, Session],
    reference: tuple[Model, Session],
    text: bytes,
    n_ctx: int,
    separator: bytes | None,
) -> Comparison:
    """Both perplexities, and the divergence of the chosen model from the reference.

    Raises what `perplexity` raises, and ValueError for models of different vocabularies.
    """
    ids, replaced = _cut(chosen[0], text, n_ctx, separator)
    if chosen[0].n_vocab != reference[0].n_vocab or ids != text_tokens(
        reference[0], text, separator
    ):
        raise ValueError(f"{reference[0].path}: has another vocabulary than {chosen[0].path}")
    n_windows, sums, divergences, same = len(ids) // n_ctx, (_Sums(), _Sums()), [], 0
    with Progress("perplexity", n_windows, "windows") as progress:
        for window, first in windows(ids, n_ctx, replaced, bool(separator)):
            pairs = [_rows(session, window, first) for _, session in (chosen, reference)]
            for (ours, targets), (theirs, _) in zip(*pairs, strict=True):
                q, p = log_softmax(ours), log_softmax(theirs)
                at = np.arange(len(targets))
                sums[0].add(-q[at, targets])
                sums[1].add(-p[at, targets])
                divergences.append((np.exp(p) * (p - q)).sum(axis=1))
                same += int((q.argmax(axis=1) == p.argmax(axis=1)).sum())
            progress.update(1, f"PPL {math.exp(sums[0].total / sums[0].count):.4f}")
    kl = np.maximum(np.concatenate(divergences), 0.0)  # rounding may leave -1e-17
    estimates = [each.estimate(n_windows) for each in sums]
    return Comparison(*estimates, kl, same / len(kl))


def _rows(
    session: Session, window: np.ndarray, first: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(logits float32 [n, n_vocab], targets int32 [n]) for window[first:], in parts."""
    session.truncate(0)
    keep = np.arange(len(window)) >= first - 1  # row i predicts token i + 1
    keep[-1] = False
    for a in range(0, len(window), session.n_batch):
        b = min(a + session.n_batch, len(window))
        session.eval(window[a:b], keep[a:b])
        rows = np.flatnonzero(keep[a:b])
        if len(rows):
            logits = np.stack([session.logits(int(row)) for row in rows])
            yield logits, window[a + rows + 1]
