"""Saved sequences: the state of one, and a cache of many in memory."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .model import Model

STATE_VERSION = 1  # raised when an older state would not go on as it was


@dataclass
class LlamaState:
    """A computed sequence, as `Llama.save_state` gives it; can be pickled.

    input_ids: intc [n_tokens]. scores: float32 [n, n_vocab], the logits of the last n tokens: all
    of them with logits_all, otherwise one, or none before anything is computed. llama_state: keys
    and values, llama_state_size bytes. generated: bool [n_tokens], the tokens that were computed as
    generated ones. n_prompt: leading tokens that a prompt would compute the same way. random:
    state of the random numbers, or None. version: the STATE_VERSION it was saved by.
    """

    input_ids: np.ndarray
    scores: np.ndarray
    n_tokens: int
    llama_state: bytes
    llama_state_size: int
    generated: np.ndarray
    n_prompt: int
    random: Any = None
    version: int = 0  # also what pickles count as that know no version

    # The model from whose budget a cache took its bytes, and what gives them back with the state.
    _reserved: ClassVar[tuple[Model, Any] | None] = None

    @property
    def n_bytes(self) -> int:
        """Memory that it takes."""
        arrays = self.input_ids, self.scores, self.generated
        return sum(array.nbytes for array in arrays) + self.llama_state_size

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_reserved"}


class LlamaRAMCache:
    """States by the tokens that they hold, in memory; the least recently used go first.

    capacity_bytes: of all states together. A state larger than that is not kept.
    """

    def __init__(self, capacity_bytes: int = 2 << 30):
        self.capacity_bytes = capacity_bytes
        self._states: OrderedDict[tuple[int, ...], LlamaState] = OrderedDict()

    @property
    def cache_size(self) -> int:
        """Bytes of the states."""
        return sum(state.n_bytes for state in self._states.values())

    def _longest(self, key: Sequence[int]) -> tuple[int, ...] | None:
        """The key that shares the longest beginning with `key`, if any shares one."""
        wanted, best, most = np.asarray(key), None, 0
        for known in self._states:
            n = common_prefix(wanted, np.asarray(known))
            if n > most:
                best, most = known, n
        return best

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """The state with the longest common beginning. Raises KeyError when none has one."""
        found = self._longest(key)
        if found is None:
            raise KeyError("no state begins with these tokens")
        self._states.move_to_end(found)
        return self._states[found]

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._longest(key) is not None

    def __setitem__(self, key: Sequence[int], state: LlamaState) -> None:
        self._states.pop(tuple(key), None)
        self._states[tuple(key)] = state
        while self._states and self.cache_size > self.capacity_bytes:
            self.forget_oldest()

    def forget_oldest(self) -> None:
        """Forgets the state that was not used for longest."""
        self._states.popitem(last=False)

    def reserved(self, model: Model) -> int:
        """Bytes of its states that are taken from a model's budget."""
        states = self._states.values()
        return sum(s.n_bytes for s in states if s._reserved and s._reserved[0] is model)


LlamaCache = LlamaRAMCache


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Number of elements in which two arrays [n], [m] agree from the beginning."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if differs.size else n
