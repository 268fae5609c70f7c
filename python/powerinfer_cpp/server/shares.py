"""Places and time for work beside the engine, shared fairly among those who send it."""

import asyncio
import functools
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread

from ..run.pace import BESIDE, Credit, share
from ..text.processor_time import Measured
from .background import Background
from .errors import Refusal

Result = TypeVar("Result")

RECHECK_SECONDS = 0.5  # for who has no time left: the others may have ended


class ProcessorTime:
    """Seconds of the processor that senders may take beside the engine.

    While others write texts, a sender has `burst` seconds at once, and they come back with `part`
    of its share of the time (`Pace`): it shares with those who write. writing: the senders whose
    texts are written now.
    """

    def __init__(self, writing: Callable[[], Collection[str]], burst: float, part: float = BESIDE):
        self._writing, self._burst, self._part = writing, burst, part
        self._credit, self._earned = Credit(), time.monotonic()

    def spend(self, sender: str, seconds: float) -> None:
        """Counts time that a sender took."""
        if self._others(sender):
            self._earn()
            self._credit.spend(sender, seconds)

    def spent(self, sender: str) -> float:
        """Seconds that a sender has taken while others write, and not got back."""
        return self._credit.spent(sender) if self._others(sender) else 0.0

    def wait(self, sender: str) -> float:
        """In how many seconds a sender has time again."""
        if not self._others(sender):
            return 0.0
        self._earn()
        return max(0.0, self._credit.spent(sender) - self._burst) / self._share()

    def _others(self, sender: str) -> bool:
        return any(each != sender for each in self._writing())

    def _share(self) -> float:
        return share(len(self._writing()) + 1) * self._part

    def _earn(self) -> None:
        now = time.monotonic()
        self._credit.earn((now - self._earned) * self._share())
        self._earned = now


class Shares:
    """Places, of which each sender has only a few at the same time; senders take turns.

    each: places of one sender. processor: what the work takes is counted there, and who has no time
    left waits. most_waiting: of one sender, more are refused. Use it from one event loop.
    """

    def __init__(
        self,
        places: int,
        each: int,
        processor: ProcessorTime | None = None,
        most_waiting: int = 1024,
    ):
        self._free, self._each, self._most_waiting = places, each, most_waiting
        self._processor = processor
        self._recheck: asyncio.TimerHandle | None = None
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
        Raises Refusal if too many calls of a sender wait. A thread cannot be stopped: a call that
        is cancelled keeps its place until its thread has ended."""
        if self._may_have_one(sender):
            self._take(sender)
        else:
            await self._turn(sender)
        measured = Measured(functools.partial(work, *of))
        if background is not None:
            task = asyncio.ensure_future(background.run(measured))
        else:
            task = asyncio.ensure_future(to_thread.run_sync(measured, limiter=self._threads))

        def done(task: asyncio.Future[Result]) -> None:
            if self._processor is not None:
                self._processor.spend(sender, measured.seconds)
            self._give_back(sender)
            if not task.cancelled():
                task.exception()  # nobody may be there who reads it

        task.add_done_callback(done)
        return await asyncio.shield(task)

    def _may_have_one(self, sender: str) -> bool:
        return self._free > 0 and self._held[sender] < self._each and not self._wait(sender)

    def _wait(self, sender: str) -> float:
        return 0.0 if self._processor is None else self._processor.wait(sender)

    def _take(self, sender: str) -> None:
        self._free -= 1
        self._held[sender] += 1

    async def _turn(self, sender: str) -> None:
        queue = self._waiting.setdefault(sender, deque())
        if len(queue) >= self._most_waiting:
            raise Refusal(429, f"{len(queue)} requests of this client are waiting already")
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        self._look_again()
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
        self._look_again()

    def _look_again(self) -> None:
        """Later, if there are free places and those who wait have no time."""
        if not self._free or self._recheck is not None:
            return
        late = [wait for sender in self._waiting if (wait := self._wait(sender))]
        if late:

            def again() -> None:
                self._recheck = None
                self._hand_out()

            seconds = min(RECHECK_SECONDS, *late)
            self._recheck = asyncio.get_running_loop().call_later(seconds, again)
