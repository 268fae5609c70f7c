"""Which sequence of a session holds what: texts that are being written, and prefixes that are kept
for later prompts."""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.log import say
from ..core.session import Session
from ..core.state import NEAR, parting

MOST_SEQUENCES = 256  # of a session
PAGE = 64  # positions that a sequence takes at once
# Beside those of all texts that are written: one for the next text, where what it begins with is
# copied from another, and one that is filled from the disk.
_BESIDE = 2


class Sequences:
    """Hands out the sequences of a session.

    A text takes one, and gives it back when it ends. Its positions are then kept, until the room is
    needed: a later prompt that begins in the same way copies them, which costs no memory (pages are
    shared). Prompts of one owner find only prefixes of that owner: how long an answer takes tells
    whether its prompt was known. Room is taken from the sender that keeps most, the oldest first:
    nobody's short prompts drop the chats of others.
    """

    def __init__(self, session: Session, n_seq: int):
        self._session = session
        self._free = list(range(n_seq))[::-1]
        self._owner: dict[int, str] = {}  # of sequences in use and kept ones
        self._sender: dict[int, str] = {}  # likewise
        self._prompt: dict[int, np.ndarray] = {}  # what these were taken for
        self._kept: OrderedDict[int, None] = OrderedDict()  # oldest first
        self.when_dropped: Callable[[int], None] | None = None  # called with its number

    @property
    def n_kept(self) -> int:
        """Sequences that are kept."""
        return len(self._kept)

    @property
    def has_room(self) -> bool:
        """Can one be taken without harm to texts that are being written?"""
        return bool(self._free) or len(self._kept) > 1

    def take(
        self, owner: str, ids: np.ndarray, generated: np.ndarray, sender: str = ""
    ) -> tuple[int, int]:
        """A sequence for int32 ids [n], generated: bool [n]; and how many of its positions it has.
        sender: who keeps it later.

        At least the last position is left to compute. Raises what the session raises, with nothing
        taken.
        """
        best, found, before = 0, None, len(ids) - 1
        for seq, of in self._owner.items():
            known = ids[:before], generated[:before]
            same = self._session.match(*known, seq) if of == owner else 0
            if same > best:
                best, found = same, seq
        if found in self._kept:
            if self._session.length(found) <= best + 1 or self._is_next_turn(found, best):
                self._session.truncate(best, found)
                self._session.rest(found, False)
                del self._kept[found]
                self._prompt[found], self._sender[found] = ids, sender
                return found, best
            self._kept.move_to_end(found)
        seq = self._unused(found)
        self._owner[seq], self._prompt[seq], self._sender[seq] = owner, ids, sender
        try:
            if found is not None:
                self._session.copy(found, seq, best)
        except BaseException:
            self._drop(seq)
            raise
        return seq, best

    def _is_next_turn(self, seq: int, best: int) -> bool:
        """Does a text that begins with so many positions of a sequence that is kept go on from all
        of its prompt, and would take the place of another that is kept?"""
        return not self._free and best + NEAR >= len(self._prompt[seq])

    def partings(self, seq: int, done: int) -> set[int]:
        """Where the prompt of a sequence, which has so many positions, parts from others of its
        owner: later ones may begin in the same way."""
        found: set[int] = set()
        for other, ids in self._prompt.items():
            if other != seq and self._owner[other] == self._owner[seq]:
                found |= parting(ids, self._prompt[seq], done)
        return {max(found)} if found else found

    def leave(self, seq: int, n: int) -> None:
        """Ends the use of a sequence; later prompts may begin with its first n positions. Never
        fails: what cannot be cut there is not kept."""
        try:
            self._session.truncate(n, seq)
            if self._session.length(seq):
                self._session.rest(seq)
                self._kept[seq] = None
                return
        except Exception as error:
            say(f"a sequence was not kept: {error}", False, logging.WARNING)
        self._drop(seq)

    def forget_one(self) -> bool:
        """Frees a sequence that is kept: the oldest of the sender whose ones hold most pages. Is
        there one?"""
        if not self._kept:
            return False
        self._drop(self._oldest_of_most(lambda seq: -(-self._session.length(seq) // PAGE)))
        return True

    def _unused(self, source: int | None) -> int:
        """A free sequence; not the one that is to be copied."""
        if not self._free:
            self._drop(self._oldest_of_most(lambda seq: 1, source))
        return self._free.pop()

    def _oldest_of_most(self, weight: Callable[[int], int], but: int | None = None) -> int:
        """Of the sequences that are kept, the oldest of the sender with the largest sum of
        weights."""
        of: Counter[str] = Counter()
        kept = [seq for seq in self._kept if seq != but]
        for seq in kept:
            of[self._sender[seq]] += weight(seq)
        most = max(of.values())
        return next(seq for seq in kept if of[self._sender[seq]] == most)

    def _drop(self, seq: int) -> None:
        """Frees a sequence; one whose positions cannot be freed is not used again."""
        self._kept.pop(seq, None)
        del self._owner[seq], self._prompt[seq], self._sender[seq]
        try:
            self._session.truncate(0, seq)
            self._free.append(seq)
            if self.when_dropped is not None:
                self.when_dropped(seq)
        except Exception as error:
            say(f"a sequence is lost: {error}", False, logging.WARNING)


def fields(
    n_parallel: int,
    n_ctx: int,
    n_kv: int | None,
    n_batch: int,
    n_pins: int = 0,
    has_states: bool = False,
) -> dict[str, Any]:
    """Fields of a session for so many texts at the same time, and as many prefixes as it can hold.

    n_kv: positions of all together; None: n_parallel * n_ctx. n_pins: further sequences, the last
    ones. has_states: the model has layers with a state, for which each sequence takes memory; then
    it keeps no more prefixes than `take` needs. Raises ValueError for more sequences than a session
    can have.
    """
    if n_parallel + _BESIDE + n_pins > MOST_SEQUENCES:
        most = MOST_SEQUENCES - _BESIDE - n_pins
        words = " where prompts are kept on disk" if n_pins else ""
        raise ValueError(f"n_parallel may be at most {most}{words}")
    n_kv = n_parallel * n_ctx if n_kv is None else n_kv
    n_batch = max(n_batch, 2 * n_parallel + 1)  # a prompt goes on beside texts that are written
    most = n_parallel + 2 if has_states else max(2 * n_parallel, n_parallel + 32)
    n_seq = min(MOST_SEQUENCES, most + n_pins)
    n_logits = min(n_batch, n_parallel + 32)
    return {
        "n_seq": n_seq,
        "n_active": n_parallel + _BESIDE,
        "n_kv": max(n_kv, n_ctx),
        "n_batch": n_batch,
        "n_logits": n_logits,
    }
