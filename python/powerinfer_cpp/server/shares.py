"""Places for work that may take long, shared fairly among those who send it."""

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread

from .background import Background
from .errors import Refusal

Result = TypeVar("Result")


class Shares:
    """Places, of which each sender has only a few at the same time; senders take turns.

    each: places of one sender. pause: a place is kept after its work, for so many times as long as
    that took, if busy() says that others would notice. most_waiting: of one sender, more are
    refused. Use it from one event loop.
    """

    def __init__(
        self,
        places: int,
        each: int,
        pause: float = 0.0,
        busy: Callable[[], bool] = lambda: True,
        most_waiting: int = 1024,
    ):
        self._free, self._each, self._most_waiting = places, each, most_waiting
        self._pause, self._busy = pause, busy
        self._threads = CapacityLimiter(places)  # not those that all others share
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def n_held(self) -> int:
        """Places that are taken."""
        return self._held.total()

    @property
    def n_waiting(self) -> int:
        """Who waits for a place."""
        return sum(map(len, self._waiting.values()))

    async def run(
        self,
        sender: str,
        work: Callable[..., Result],
        *of: Any,
        background: Background | None = None,
    ) -> Result:
        """What work gives, in a thread, when it is the sender's turn. background: one of these.
        Raises Refusal if too many of a sender wait. Who is cancelled waits no more, but has the
        place until the thread is done: it cannot be stopped."""
        if self._may_have_one(sender):
            self._take(sender)
        else:
            await self._turn(sender)
        if background is not None:
            task = asyncio.ensure_future(background.run(work, *of))
        else:
            task = asyncio.ensure_future(to_thread.run_sync(work, *of, limiter=self._threads))

        loop, begun = asyncio.get_running_loop(), time.monotonic()

        def done(task: asyncio.Future[Result]) -> None:
            if self._pause and self._busy():
                loop.call_later(self._pause * (time.monotonic() - begun), self._give_back, sender)
            else:
                self._give_back(sender)
            if not task.cancelled():
                task.exception()  # nobody may be there who reads it

        task.add_done_callback(done)
        return await asyncio.shield(task)

    def _may_have_one(self, sender: str) -> bool:
        return self._free > 0 and self._held[sender] < self._each

    def _take(self, sender: str) -> None:
        self._free -= 1
        self._held[sender] += 1

    async def _turn(self, sender: str) -> None:
        queue = self._waiting.setdefault(sender, deque())
        if len(queue) >= self._most_waiting:
            raise Refusal(429, f"{len(queue)} requests of this client are waiting already")
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn  # `_hand_out` takes the place
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(sender)
            elif turn in queue:
                queue.remove(turn)
                if not queue and self._waiting.get(sender) is queue:
                    del self._waiting[sender]
            raise

    def _give_back(self, sender: str) -> None:
        self._free += 1
        self._held[sender] -= 1
        self._held += Counter()  # drops those who have none
        self._hand_out()

    def _hand_out(self) -> None:
        """Gives free places to those who wait, and puts who gets one behind the others."""
        for sender in list(self._waiting):
            if not self._may_have_one(sender):
                continue
            queue = self._waiting.pop(sender)
            while queue and queue[0].cancelled():  # gone, and not yet told
                queue.popleft()
            if queue:
                self._take(sender)
                queue.popleft().set_result(None)
            if queue:
                self._waiting[sender] = queue
