"""A text as windows of tokens, for profiles and for the training of predictors."""

from pathlib import Path

import numpy as np

from ..core.model import Model
from ..measure.perplexity import text_tokens

BYTES_PER_TOKEN = 8  # twice what texts have
MARGIN = 64  # tokens before a cut that may be others
MOST_PIPED = 1 << 30  # bytes of a text from a pipe or device, which may have no end


def read(path: str | Path) -> bytes:
    """What a text file, or a pipe like <(zcat F), holds. To be called once: a pipe is empty then.

    Raises OSError, and ValueError for a pipe or device with more than MOST_PIPED bytes.
    """
    path = Path(path)
    with path.open("rb") as file:
        if path.is_file():
            return file.read()
        parts, room = [], MOST_PIPED
        while part := file.read(min(1 << 20, room + 1)):
            parts.append(part)
            room -= len(part)
            if room < 0:
                raise ValueError(
                    f"{path}: no file, and more than {MOST_PIPED >> 20} MiB come out of it: write "
                    "the text to a file"
                )
        return b"".join(parts)


def windows(
    model: Model, text: bytes, separator: bytes | None, n_ctx: int, n_tokens: int | None = None
) -> list[np.ndarray]:
    """The first n_tokens tokens of a text, or all, as int32 [n_ctx] each; the last may be shorter.

    The tokens are those of `perplexity`, with BOS first in every window if the file asks for it.
    Raises ValueError for a text without tokens.
    """
    parts = text.split(separator) if separator else [text]
    found, n = [np.empty(0, dtype=np.int32)], 0
    for part in parts:
        if part.strip():
            found.append(_beginning(model, part, separator, n_tokens and n_tokens - n))
            n += len(found[-1])
        if n_tokens is not None and n >= n_tokens:
            break
    stream = np.concatenate(found)[:n_tokens]
    if not len(stream):
        raise ValueError("the text is empty")
    cut = [stream[first : first + n_ctx].copy() for first in range(0, len(stream), n_ctx)]
    if model.bos >= 0 and (model.add_bos or separator):
        for window in cut:
            window[0] = model.bos
    return cut


def _beginning(
    model: Model, text: bytes, separator: bytes | None, n_tokens: int | None
) -> np.ndarray:
    """The ids of a text, or n_tokens of them and perhaps more, without those of all of it."""
    size = None if n_tokens is None else BYTES_PER_TOKEN * (n_tokens + MARGIN)
    while size is not None and size < len(text):
        # Where the text is cut, tokens are others than in the text; before that they are the same.
        cut = max(text.rfind(b"\n", 0, size), text.rfind(b" ", 0, size))
        ids = text_tokens(model, text[: cut if cut > size // 2 else size], separator)
        if len(ids) >= n_tokens + MARGIN:
            return ids[:-MARGIN]
        size *= 4
    return text_tokens(model, text, separator)
