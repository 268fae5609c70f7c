"""Saved states of sequences, a cache of them in memory, and checkpoints (docs/states.md).

A sequence whose layers have a state cannot go back to a position. So the state is kept where later
prompts are likely to go on. The engine does nothing of that for models without such layers.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .._native import lib
from .logits import Ids, Scores
from .model import Model

STATE_VERSION = 3  # increased when older states would continue differently
NUMERICS: int = lib.pi_numerics()  # raised when any result is rounded differently
GRID = 1024  # positions between those of a long prompt
NEAR = 32  # so many positions are rather computed again than kept
# Rows of a sequence in one call, after which it can be cut to any of them: those of drafts.
REPLAYED = 16


@dataclass
class LlamaState:
    """A computed sequence, returned by `Llama.save_state`; can be pickled.

    input_ids: intc [n_tokens]. scores: float32 [n, n_vocab], the logits of the last n tokens: of
    all with logits_all, otherwise of one, or none before anything is computed. llama_state: keys
    and values, llama_state_size bytes. generated: bool [n_tokens], True for generated tokens.
    n_prompt: number of leading tokens that a prompt would compute the same way. whole: it can only
    be continued at its end, since layers have a state, or gave up what is behind their window
    (docs/states.md). random: state of the random
    numbers, or None. version, numerics: STATE_VERSION and NUMERICS when it was saved.
    """

    input_ids: Ids
    scores: Scores
    n_tokens: int
    llama_state: bytes
    llama_state_size: int
    generated: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    n_prompt: int
    whole: bool = False
    random: Any = None
    version: int = 0  # also the value for pickles without a version
    numerics: int = 0

    # The model whose budget a cache used for this state, and the reservation, freed with the state.
    _reserved: ClassVar[tuple[Model, Any] | None] = None

    @property
    def n_bytes(self) -> int:
        """Bytes of memory of this state."""
        arrays = self.input_ids, self.scores, self.generated
        return sum(array.nbytes for array in arrays) + self.llama_state_size

    def reusable(self, ids: np.ndarray) -> int:
        """How many of its leading tokens a prompt of these ids need not compute."""
        before = ids[: len(ids) - 1]  # the last one's logits are needed
        same = common_prefix(self.input_ids[: self.n_prompt], before)
        return same if same == self.n_tokens or not self.whole else 0

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_reserved"}


class BaseLlamaCache(ABC):
    """What `Llama.set_cache` takes: states by their tokens, found by a common beginning."""

    def __init__(self, capacity_bytes: int = 2 << 30):
        self.capacity_bytes = capacity_bytes

    @property
    @abstractmethod
    def cache_size(self) -> int:
        """Bytes of all states."""

    @abstractmethod
    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """The state with the longest common prefix. Raises KeyError if there is none."""

    @abstractmethod
    def __contains__(self, key: Sequence[int]) -> bool:
        """Is there a state that begins with the first of these tokens?"""

    @abstractmethod
    def __setitem__(self, key: Sequence[int], state: LlamaState) -> None:
        """Keeps a state, and removes others if capacity_bytes requires it."""


class LlamaRAMCache(BaseLlamaCache):
    """States in memory, by their tokens; the least recently used are removed first.

    capacity_bytes: limit for all states together. A larger state is not kept.
    """

    def __init__(self, capacity_bytes: int = 2 << 30):
        super().__init__(capacity_bytes)
        self._states: OrderedDict[tuple[int, ...], LlamaState] = OrderedDict()

    @property
    def cache_size(self) -> int:
        """Bytes of all states."""
        return sum(state.n_bytes for state in self._states.values())

    def _longest(self, key: Sequence[int]) -> tuple[int, ...] | None:
        """The key with the longest common prefix with `key` that its state can be continued with;
        None if there is none."""
        wanted, best, most = np.asarray(key), None, 0
        for known, state in self._states.items():
            n = common_prefix(wanted, np.asarray(known))
            if n > most and (n == len(known) or not state.whole):
                best, most = known, n
        return best

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """The state with the longest common prefix. Raises KeyError if there is none."""
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
        """Removes the least recently used state."""
        self._states.popitem(last=False)

    def reserved(self, model: Model) -> int:
        """Bytes of its states that are reserved in a model's budget."""
        states = self._states.values()
        return sum(s.n_bytes for s in states if s._reserved and s._reserved[0] is model)


LlamaCache = LlamaRAMCache


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the common prefix of two arrays [n], [m]."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if differs.size else n


def checkpoints_of(n: int, shared: Iterable[int] = ()) -> set[int]:
    """Positions of a prompt of n ids.

    shared: where other prompts are expected to go on in another way. The last position is one of
    them, unless another is near: prompts are repeated, and may be asked for several texts.
    """
    found = {*range(GRID, n, GRID), *(at for at in shared if NEAR < at < n)}
    if n - 1 - max(found, default=0) > NEAR:
        found.add(n - 1)
    return found


def parting(known: np.ndarray, ids: np.ndarray, same: int) -> set[int]:
    """The position where ids [n] part from those that were computed before, if that is far behind
    the first `same` ones, which need not be computed again: a third prompt may begin alike."""
    at = common_prefix(known, ids)
    return {at} if same + NEAR < at < len(ids) else set()


def checkpoint_flags(first: int, n: int, positions: Collection[int]) -> np.ndarray | None:
    """bool [n]: whether a checkpoint is kept before each of n rows that begin at a position. None:
    before none."""
    chosen = [at - first for at in positions if first <= at < first + n]
    if not chosen:
        return None
    found = np.zeros(n, dtype=bool)
    found[chosen] = True
    return found
