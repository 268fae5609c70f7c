"""Who holds connections: a process may have only so many, and clients open what they like."""

from collections import Counter, OrderedDict
from typing import Protocol

# In the scope of a request: closes its connection at once, with what was not sent yet; and says
# whether the client has closed it.
ABORT, GONE = "powerinfer.abort", "powerinfer.gone"

MOST = 20_000  # each takes some 10 kB
# Files that a process has open beside them, and connections that the system has accepted before
# they are counted here.
RESERVE = 1024
BACKLOG = 512


def most_of(n_files: int | None) -> int:
    """How many connections a process may have that may have so many open files; None: any
    number."""
    return MOST if n_files is None else min(MOST, max(n_files // 2, n_files - RESERVE))


class Connection(Protocol):
    """holder: whose it is. abort: closes it at once."""

    holder: str

    def abort(self) -> None: ...


class Connections:
    """Connections of all clients, at most so many.

    When there are more, who holds most gives one up: the oldest on which it waits for no answer, or
    else the newest. A new one of a client that would have as many is refused. Use it from one event
    loop.
    """

    def __init__(self, most: int):
        self.most = most
        self._held: Counter[str] = Counter()
        self._all: dict[str, OrderedDict[Connection, None]] = {}  # oldest first
        self._idle: dict[str, OrderedDict[Connection, None]] = {}  # likewise

    def add(self, new: Connection) -> bool:
        """Counts a connection, which asks for nothing yet. False: it is refused, not counted."""
        if self._held.total() >= self.most and not self._give_up_one(new.holder):
            return False
        self._held[new.holder] += 1
        self._all.setdefault(new.holder, OrderedDict())[new] = None
        self.idle(new)
        return True

    def drop(self, gone: Connection) -> None:
        """Counts a connection no more; once is enough."""
        _remove(self._idle, gone)
        if _remove(self._all, gone):
            self._held[gone.holder] -= 1
            if not self._held[gone.holder]:
                del self._held[gone.holder]

    def idle(self, waits: Connection) -> None:
        """From now on it asks for nothing, or has not said all of what it asks for."""
        self._idle.setdefault(waits.holder, OrderedDict())[waits] = None

    def busy(self, asks: Connection) -> None:
        """From now on it waits for an answer."""
        _remove(self._idle, asks)

    def _give_up_one(self, newcomer: str) -> bool:
        """Closes a connection to make room for one of a newcomer, if that is fair."""
        held, ours = self._held, self._held[newcomer]
        found = max(self._idle, key=held.__getitem__, default=newcomer)
        if found in self._idle and (found == newcomer or held[found] > ours + 1):
            gone = next(iter(self._idle[found]))
        else:
            found = max(held, key=held.__getitem__)
            if held[found] <= ours + 1:
                return False
            gone = next(reversed(self._all[found]))
        self.drop(gone)
        gone.abort()
        return True


def _remove(of: dict[str, OrderedDict[Connection, None]], gone: Connection) -> bool:
    """Removes a connection of its holder's. Was it there?"""
    held = of.get(gone.holder)
    if held is None or gone not in held:
        return False
    del held[gone]
    if not held:
        del of[gone.holder]
    return True
