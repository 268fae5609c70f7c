"""Where requests of clients meet the engine's thread: updates go to whoever waits for them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from ..engine import EngineDead
from ..scheduler import Request, Ticket, Update
from ..served import ServedModel


class Desk:
    """Sends updates of engines to coroutines of one event loop, which it wakes once per step."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[int, asyncio.Queue[Update]] = {}  # by id of the ticket

    def open(self) -> None:
        """Begins to send, to coroutines of the loop that runs."""
        self._loop = asyncio.get_running_loop()

    def deliver(self, updates: Sequence[Update]) -> None:
        """For `ServedModel`: called in the engine's thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._hand_out, updates)

    def _hand_out(self, updates: Sequence[Update]) -> None:
        for update in updates:
            queue = self._waiting.get(id(update.ticket))
            if queue is not None:
                queue.put_nowait(update)

    def begin(self, model: ServedModel, request: Request) -> "Writing":
        """Hands a request to a model's engine. Raises what `Engine.submit` raises."""
        ticket = model.engine.submit(request)
        # The engine's updates come through this loop, so none of them has been handed out yet.
        queue = self._waiting[id(ticket)] = asyncio.Queue()
        return Writing(self, model, ticket, queue)

    def forget(self, ticket: Ticket) -> None:
        """Ends the delivery to a ticket."""
        self._waiting.pop(id(ticket), None)


class Writing:
    """A request that is being written. Use it with `with`: leaving it early cancels the request."""

    def __init__(
        self, desk: Desk, model: ServedModel, ticket: Ticket, queue: "asyncio.Queue[Update]"
    ):
        self._desk, self._model, self.ticket, self._queue = desk, model, ticket, queue
        self._left = ticket.request.n  # texts that have not ended

    def __enter__(self) -> "Writing":
        return self

    def __exit__(self, *_: object) -> None:
        self._desk.forget(self.ticket)
        if self._left:
            with suppress(EngineDead):
                self._model.engine.cancel(self.ticket)

    async def updates(self) -> AsyncIterator[list[Update]]:
        """Updates as they come, until all texts have ended: those of a moment together. Raises the
        error of the first text that fails."""
        while self._left:
            found = [await self._queue.get()]
            while not self._queue.empty():
                found.append(self._queue.get_nowait())
            for update in found:
                if update.error is not None:
                    raise update.error
                self._left -= update.piece is not None and update.piece.reason is not None
            yield found
