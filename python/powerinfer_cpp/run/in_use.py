"""What many threads may use at the same time, and one may end."""

import os
import threading


class InUse:
    """Counts who uses something that does not change. Use it with `with`; users never wait for each
    other, and `end` waits for all of them.

    ended: the message of the ValueError for those who come after the end. over: was that?
    """

    def __init__(self, ended: str):
        self._words, self._n, self.over = ended, 0, False
        self._process = os.getpid()
        self._changed = threading.Condition(threading.Lock())

    def __enter__(self) -> None:
        with self._changed:
            self.check()
            self._n += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._n -= 1
            if self.over and self._n == 0:
                self._changed.notify_all()

    def check(self) -> None:
        """Raises ValueError if it has ended."""
        if self.over:
            raise ValueError(self._words)

    def end(self) -> None:
        """Returns when nobody uses it any more; nobody may begin from now on."""
        with self._changed:
            self.over = True
            if os.getpid() == self._process:  # in a fork, the other threads are not there
                self._changed.wait_for(lambda: self._n == 0)
