"""A text as windows of tokens, as profiles and the training of predictors read it."""

from itertools import islice

import numpy as np

from ..model import Model
from ..perplexity import text_tokens


def windows(
    model: Model, text: bytes, separator: bytes | None, n_ctx: int, n_tokens: int | None = None
) -> list[np.ndarray]:
    """int32 [n_ctx] each, the last one shorter: the first n_tokens tokens of a text, or all.

    The tokens are `perplexity`'s, with BOS in the first place of every window where the file wants
    it. Raises ValueError for a text without tokens.
    """
    parts = text.split(separator) if separator else [text]
    ids: list[int] = []
    for part in parts:
        if part.strip():
            ids += text_tokens(model, part, separator)
        if n_tokens is not None and len(ids) >= n_tokens:
            break
    stream = np.array(list(islice(ids, n_tokens)), dtype=np.int32)
    if not len(stream):
        raise ValueError("the text is empty")
    found = [stream[first : first + n_ctx].copy() for first in range(0, len(stream), n_ctx)]
    if model.bos >= 0 and (model.add_bos or separator):
        for window in found:
            window[0] = model.bos
    return found
