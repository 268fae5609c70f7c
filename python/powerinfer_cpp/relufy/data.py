"""A text as tokens: those that `powerinfer perplexity` sees."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..convert import convert
from ..core.model import Model
from ..measure.perplexity import text_tokens

_HELD_OUT = 50  # without a text for it, one in so many tokens is held out
_MOST_HELD_OUT = 64  # windows


@dataclass(frozen=True)
class Tokens:
    """learnt: int32 [n]. held_out: int32 [n, n_ctx + 1], windows that are not learnt from. bos: the
    first token of every window, or None."""

    learnt: np.ndarray
    held_out: np.ndarray
    bos: int | None

    def batch(self, seed: int, step: int, n_batch: int) -> np.ndarray:
        """int32 [n_batch, n_ctx + 1]: windows at random places, which follow from seed and step."""
        width = self.held_out.shape[1]
        rng = np.random.default_rng([seed, step])
        starts = rng.integers(0, len(self.learnt) - width + 1, n_batch)
        return self._windows(self.learnt, starts, width)

    def _windows(self, ids: np.ndarray, starts: np.ndarray, width: int) -> np.ndarray:
        return begun(np.stack([ids[start : start + width] for start in starts]), self.bos)


def begun(windows: np.ndarray, bos: int | None) -> np.ndarray:
    """The windows, changed to begin with BOS."""
    if bos is not None:
        windows[:, 0] = bos
    return windows


def read_tokens(
    checkpoint: Path,
    scratch: Path,
    text: tuple[Path, bytes],
    held_out: tuple[Path, bytes] | None,
    separator: bytes | None,
    n_ctx: int,
) -> Tokens:
    """Tokens of a text and of a held-out text (names and contents), cut as `perplexity` does.

    Without the latter the end of the text is held out. scratch: a file for the checkpoint's
    vocabulary. Raises ValueError for texts that are too short, and the errors of `convert`.
    """
    convert(checkpoint, outfile=scratch, vocab_only=True, log=lambda _line: None)
    model = Model(str(scratch), vocab_only=True)
    try:
        bos = model.bos if model.bos >= 0 and (model.add_bos or separator) else None
        ids = _ids(model, *text, separator)
        others = _ids(model, *held_out, separator) if held_out else None
    finally:
        model.close()
    width = n_ctx + 1
    if others is None:
        kept = min(_MOST_HELD_OUT, max(1, len(ids) // _HELD_OUT // width)) * width
        ids, others = ids[:-kept], ids[-kept:]
    if min(len(ids), len(others)) < width:
        short = held_out[0] if held_out and len(others) < width else text[0]
        raise ValueError(f"{short}: too short for windows of {n_ctx} tokens to learn and to test")
    n = min(_MOST_HELD_OUT, len(others) // width)
    return Tokens(ids, begun(others[: n * width].reshape(n, width).copy(), bos), bos)


def _ids(model: Model, path: Path, text: bytes, separator: bytes | None) -> np.ndarray:
    try:
        return text_tokens(model, text, separator)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
