"""Ids of a text that grows by one token at a time."""

from collections.abc import Sequence

import numpy as np

from ..core.session import as_tokens


class GrowingIds:
    """The ids of a text as an array, and which of them were generated, without a copy of all of
    them for each token. generated: bool [n] of the first ones; None: they are a prompt."""

    def __init__(self, ids: Sequence[int] | np.ndarray, generated: np.ndarray | None = None):
        self._ids = np.array(as_tokens(ids), dtype=np.intc)
        self._n = len(self._ids)
        self._generated = np.zeros(self._n, dtype=bool)
        if generated is not None:
            self._generated[:] = generated

    def __len__(self) -> int:
        return self._n

    def append(self, token: int, generated: bool = True) -> None:
        """Adds a token."""
        if self._n == len(self._ids):
            more = max(64, self._n // 2)
            self._ids = np.concatenate([self._ids, np.empty(more, dtype=np.intc)])
            self._generated = np.concatenate([self._generated, np.empty(more, dtype=bool)])
        self._ids[self._n], self._generated[self._n] = token, generated
        self._n += 1

    @property
    def all(self) -> np.ndarray:
        """intc [n], a view to read: it stays as it is when tokens are added."""
        view = self._ids[: self._n]
        view.flags.writeable = False
        return view

    @property
    def generated(self) -> np.ndarray:
        """bool [n], a view: which of them were generated."""
        return self._generated[: self._n]

    @property
    def written(self) -> bool:
        """Was the last one generated?"""
        return self._n > 0 and bool(self._generated[self._n - 1])
