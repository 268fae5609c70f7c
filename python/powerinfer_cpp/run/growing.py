"""Ids of a text that grows by one token at a time."""

from collections.abc import Sequence

import numpy as np

from ..core.session import as_tokens


class GrowingIds:
    """The ids of a text as an array, without a copy of all of them for each token."""

    def __init__(self, ids: Sequence[int]):
        self._data = np.array(as_tokens(ids), dtype=np.intc)
        self._n = len(self._data)

    def __len__(self) -> int:
        return self._n

    def append(self, token: int) -> None:
        """Adds a token."""
        if self._n == len(self._data):
            more = np.empty(self._n + max(64, self._n // 2), dtype=np.intc)
            more[: self._n] = self._data
            self._data = more
        self._data[self._n] = token
        self._n += 1

    @property
    def all(self) -> np.ndarray:
        """intc [n], a view to read: it stays as it is when tokens are added."""
        view = self._data[: self._n]
        view.flags.writeable = False
        return view
