"""A thread that runs a scheduler: requests come from other threads, updates leave step by step."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from ..core.log import logger
from .requests import Request, Ticket, Update
from .scheduler import Scheduler

Result = TypeVar("Result")
SNAPSHOT_SECONDS = 0.02


class EngineDead(Exception):
    """The engine's thread has ended after an error."""


class Engine:
    """Runs a scheduler in a thread of its own.

    deliver: called in that thread with the updates of each step, without lock; must not block.
    """

    def __init__(self, scheduler: Scheduler, deliver: Callable[[Sequence[Update]], None]):
        self._scheduler, self._deliver = scheduler, deliver
        self._changed = threading.Condition()
        self._calls: list[Callable[[], None]] = []
        self._closing = False
        self.error: BaseException | None = None  # why the thread has ended
        self.snapshot = scheduler.snapshot()  # of a moment ago: who asks waits for no step
        self._when = scheduler.n_changes, time.monotonic()
        self._thread = threading.Thread(target=self._run, name="powerinfer engine", daemon=True)
        self._thread.start()

    def check_room(self, sender: str, n: int) -> None:
        """Raises QueueFull if the sender's queue has no room for n texts now; it waits for no step,
        and so may be asked before the work for these texts begins."""
        self._scheduler.check_room(Counter({sender: n}))

    def submit(self, request: Request) -> Ticket:
        """Queues a request; as submit_all."""
        return self.submit_all([request])[0]

    def submit_all(self, requests: Sequence[Request]) -> list[Ticket]:
        """Queues requests, all or none; waits for no step. Raises the errors of Scheduler.tickets,
        and EngineDead."""
        tickets = self._scheduler.tickets(requests)

        def add() -> None:
            for ticket in tickets:
                try:
                    self._scheduler.add(ticket)
                except Exception as error:
                    ticket.ended = time.perf_counter()
                    lost = range(ticket.request.n)
                    self._send([Update(ticket, i, None, (), error) for i in lost])

        self._tell(add)
        return tickets

    def cancel(self, ticket: Ticket) -> None:
        """Ends a request; waits for no step. Updates of the step that runs may still come."""
        self._tell(lambda: self._scheduler.cancel(ticket))

    def call(self, function: Callable[[], Result]) -> Result:
        """The result of a function that runs in the engine's thread, between two steps."""
        done = threading.Event()
        found: list[Any] = []

        def run() -> None:
            try:
                found.extend((function(), None))
            except BaseException as error:
                found.extend((None, error))
            done.set()

        self._tell(run)
        while not done.wait(1):
            ended = self.error is not None or not self._thread.is_alive()
            if ended and not done.is_set():
                raise EngineDead(f"the engine has stopped: {self.error or 'it was closed'}")
        value, error = found
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """Ends the thread after its step; requests that are left get no more updates."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _tell(self, function: Callable[[], None]) -> None:
        with self._changed:
            if self.error is not None or self._closing:
                raise EngineDead(f"the engine has stopped: {self.error or 'it was closed'}")
            self._calls.append(function)
            self._changed.notify()

    def _run(self) -> None:
        try:
            while self._take_calls():
                updates = self._scheduler.step()
                self._take_snapshot()
                self._send(updates)
        except BaseException as error:
            with self._changed:
                self.error = error
                calls, self._calls = self._calls, []
            for call in calls:  # requests among them fail with the others
                with suppress(Exception):
                    call()
            with suppress(Exception):
                logger.error("the engine has stopped: %r", error, exc_info=error)
            self._send(self._scheduler.fail_all(EngineDead(f"the engine has stopped: {error}")))

    def _take_snapshot(self) -> None:
        """Renews the snapshot where a text has got or left its place, and else from time to time:
        making one takes as long as choosing a token."""
        when = self._scheduler.n_changes, time.monotonic()
        if when[0] != self._when[0] or when[1] - self._when[1] > SNAPSHOT_SECONDS:
            self._when = when
            with suppress(Exception):  # who asks for it sees an older one
                self.snapshot = self._scheduler.snapshot()

    def _send(self, updates: Sequence[Update]) -> None:
        """Delivers updates. Who takes them may be gone: that ends nothing here."""
        if updates:
            with suppress(Exception):
                self._deliver(updates)

    def _take_calls(self) -> bool:
        """Runs what other threads asked for; waits while there is nothing to do. False: it ends."""
        while True:
            with self._changed:
                while not self._calls and self._scheduler.idle and not self._closing:
                    self._changed.wait()
                calls, self._calls = self._calls, []
                if self._closing:
                    return False
            for call in calls:
                call()
            if not self._scheduler.idle:
                return True
