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


def log_likelihoods(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """float64 [n]: log-probability of targets [n] under logits [n, n_vocab]."""
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x[np.arange(len(x)), targets] - np.log(np.exp(x).sum(axis=1))


def perplexity(
    model: Model, session: Session, text: bytes, n_ctx: int, separator: bytes | None
) -> Estimate:
    """Perplexity of a text, in windows of n_ctx tokens as `windows` cuts them.

    session: keeps the logits of at least n_batch rows. Raises ValueError for a text that fills no
    window, or windows too short to score.
    """
    if n_ctx < 4:
        raise ValueError(f"windows of {n_ctx} tokens leave nothing to score: use at least 4")
    ids = text_tokens(model, text, separator)
    if len(ids) < n_ctx:
        raise ValueError(f"the text has {len(ids)} tokens, fewer than one window of {n_ctx}")
    replaced = model.bos if model.bos >= 0 and (model.add_bos or separator) else None
    n_windows = len(ids) // n_ctx
    total = squares = 0.0
    count = 0
    with Progress("perplexity", n_windows, "windows") as progress:
        for window, first in windows(ids, n_ctx, replaced, bool(separator)):
            nll = -_score(session, window, first)
            total, squares, count = total + nll.sum(), squares + (nll**2).sum(), count + len(nll)
            progress.update(1, f"PPL {math.exp(total / count):.4f}")
    mean = total / count
    variance = max(0.0, squares / count - mean**2)
    value = math.exp(mean)
    return Estimate(value, value * math.sqrt(variance / max(1, count - 1)), n_windows, count)


def _score(session: Session, window: np.ndarray, first: int) -> np.ndarray:
    """float64: log-likelihoods of window[first:], each by the tokens before it."""
    session.truncate(0)
    keep = np.arange(len(window)) >= first - 1  # row i predicts token i + 1
    keep[-1] = False
    parts = []
    for a in range(0, len(window), session.n_batch):
        b = min(a + session.n_batch, len(window))
        session.eval(window[a:b], keep[a:b])
        rows = np.flatnonzero(keep[a:b])
        if len(rows):
            logits = np.stack([session.logits(int(row)) for row in rows])
            parts.append(log_likelihoods(logits, window[a + rows + 1]))
    return np.concatenate(parts)
