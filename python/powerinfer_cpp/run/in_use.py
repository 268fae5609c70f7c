"""What many threads may use at the same time, and one may end."""

import os
import time
import weakref

_LOOK_SECONDS = 0.002


class InUse:
    """Knows who uses something that does not change. Each use is `with in_use():`; users never wait
    for each other, and `end` waits for all of them.

    ended: the message of the ValueError for those who come after the end. over: was that?

    A use lasts as long as its object, which the `with` holds. A count that is raised and lowered
    would be wrong for ever after a Ctrl-C between the two, or within one of them, and `end` would
    wait for ever.
    """

    def __init__(self, ended: str):
        self._words, self.over = ended, False
        self._uses: set[weakref.ref[_Use]] = set()
        self._process = os.getpid()

    def __call__(self) -> "_Use":
        """A use. Raises ValueError after the end."""
        use = _Use()
        # Before the look at `over`: either this sees the end, or the end sees this use.
        self._uses.add(weakref.ref(use, self._uses.discard))
        if self.over:
            del use  # not held by the error, which others may keep
            self.check()
        return use

    def check(self) -> None:
        """Raises ValueError if it has ended."""
        if self.over:
            raise ValueError(self._words)

    def end(self) -> None:
        """Returns when nobody uses it any more; nobody may begin from now on."""
        self.over = True
        # In a fork, the other threads are not there, and their uses never end.
        while os.getpid() == self._process and any(use() for use in list(self._uses)):
            time.sleep(_LOOK_SECONDS)


class _Use:
    """A use, while this object exists."""

    __slots__ = ("__weakref__",)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass
