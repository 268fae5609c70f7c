"""Where requests of clients meet the engine's thread: updates go to whoever waits for them."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from anyio import CapacityLimiter, to_thread

from ..run.engine import EngineDead
from ..run.requests import Request, Ticket, Update
from .errors import log
from .served import ServedModel


class UpdateQueues:
    """Sends updates of engines to coroutines of one event loop, which it wakes once per step."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        # By the ids of their tickets.
        self._waiting: dict[int, tuple[Ticket, asyncio.Queue[Update]]] = {}
        self._ended: Exception | None = None
        self._recalls = CapacityLimiter(1)

    def open(self) -> None:
        """Begins to send, to coroutines of the loop that runs."""
        self._loop = asyncio.get_running_loop()

    def deliver(self, updates: Sequence[Update]) -> None:
        """For `ServedModel`: called in the engine's thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._hand_out, updates)

    def end(self, error: Exception) -> int:
        """Ends all that is being written with this error, and what is begun later; says how many
        requests there were."""
        self._ended = error
        for ticket, queue in self._waiting.values():
            queue.put_nowait(Update(ticket, 0, None, error=error))
        return len(self._waiting)

    def _hand_out(self, updates: Sequence[Update]) -> None:
        for update in updates:
            waits = self._waiting.get(id(update.ticket))
            if waits is not None:
                waits[1].put_nowait(update)

    async def recall(self, model: ServedModel, requests: Sequence[Request]) -> None:
        """Brings what is known of the prompts from disk into memory, where it is not yet."""
        prefixes = model.prefixes
        if prefixes is None:
            return

        def wanted() -> list[tuple[Request, list[str]]]:
            found = [(of, prefixes.wanted(of.owner, of.ids)) for of in requests]
            # An echo needs the logits of its whole prompt, which are not kept.
            return [(of, names) for of, names in found if names and not of.echo]

        for of, names in await to_thread.run_sync(wanted):
            await to_thread.run_sync(
                prefixes.recall, of.owner, of.ids, names, of.sender, limiter=self._recalls
            )

    def begin(self, model: ServedModel, requests: Sequence[Request]) -> "PendingRequests":
        """Hands requests to a model's engine, all or none. Raises what `Engine.submit_all`
        raises, and what `end` was given."""
        if self._ended is not None:
            raise self._ended
        tickets = model.engine.submit_all(requests)
        queue: asyncio.Queue[Update] = asyncio.Queue()
        # Updates come through this loop, so none of them has been handed out yet.
        self._waiting.update((id(ticket), (ticket, queue)) for ticket in tickets)
        return PendingRequests(self, model, tickets, queue)

    def forget(self, ticket: Ticket) -> None:
        """Ends the delivery to a ticket."""
        self._waiting.pop(id(ticket), None)


class PendingRequests:
    """Requests that are being written. Use it with `with`: leaving it early cancels them."""

    def __init__(
        self,
        queues: UpdateQueues,
        model: ServedModel,
        tickets: list[Ticket],
        queue: "asyncio.Queue[Update]",
    ):
        self._queues, self._model, self.tickets, self._queue = queues, model, tickets, queue
        self._first: dict[int, int] = {}  # by id of the ticket: the number of its first text
        n = 0
        for ticket in tickets:
            self._first[id(ticket)] = n
            n += ticket.request.n

    def __enter__(self) -> "PendingRequests":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancels what has not ended."""
        for ticket in self.tickets:
            self._queues.forget(ticket)
            if log.isEnabledFor(logging.INFO):
                log.info(_figures(ticket))
            if ticket.ended is None:
                with suppress(EngineDead):
                    self._model.engine.cancel(ticket)

    def place(self, update: Update) -> int:
        """The number of an update's text among all texts."""
        return self._first[id(update.ticket)] + update.index

    async def updates(self) -> AsyncIterator[list[Update]]:
        """Updates as they come, until all texts have ended. Raises the error of the first text that
        fails."""
        left = sum(ticket.request.n for ticket in self.tickets)
        while left:
            found = [await self._queue.get()]
            while not self._queue.empty():
                found.append(self._queue.get_nowait())
            for update in found:
                if update.error is not None:
                    raise update.error
                left -= update.piece is not None and update.piece.reason is not None
            yield found


def _figures(ticket: Ticket) -> str:
    """What a request took, for the log."""
    n_prompt, known = len(ticket.request.ids), ticket.n_reused
    said = f"request {ticket.number}: {n_prompt} tokens of prompt, {known} of them known"
    if ticket.began is None:
        return f"{said}; it was not begun"
    said += f", waited {ticket.began - ticket.asked:.2f} s"
    if ticket.first is None:
        return f"{said}; it ended before its first token"
    ended = time.perf_counter() if ticket.ended is None else ticket.ended
    seconds = ended - ticket.first
    rate = f", {ticket.n_tokens / seconds:.1f} a second" if seconds > 0 else ""
    said += f", first token after {ticket.first - ticket.began:.2f} s; {ticket.n_tokens} written"
    return said + rate + ("" if ticket.ended is not None else "; cut off")
