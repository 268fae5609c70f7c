"""Many texts of one caller, with a model that writes several at the same time."""

import queue
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..run.engine import EngineDead
from ..run.requests import QueueFull, Request, Ticket, Update
from .served import ServedModel


class BulkWriter:
    """Writes any number of requests. Use it from one thread at a time.

    model_path, options: of `ServedModel`, which says what they raise.
    """

    def __init__(self, model_path: str | Path, **options: Any):
        self._came: queue.SimpleQueue[Sequence[Update]] = queue.SimpleQueue()
        self.model = ServedModel(model_path, self._came.put, **options)

    def run(self, requests: Iterable[Request]) -> Iterator[tuple[int, Ticket, str]]:
        """The number of each request (0, 1, ...), its ticket and its text, as they end.

        requests: of one text each; taken one by one as places get free. Raises the first error;
        then, and when the iterator is closed, the others are cancelled.
        """
        left = enumerate(requests)
        held: tuple[int, Request] | None = None  # the queue had no room for it
        running: dict[int, _Running] = {}  # by number of the ticket
        try:
            while True:
                while len(running) < 2 * self.model.n_parallel:
                    found = next(left, None) if held is None else held
                    held = None
                    if found is None:
                        break
                    try:
                        ticket = self.model.engine.submit(found[1])
                    except QueueFull:
                        held = found
                        break
                    running[ticket.number] = _Running(found[0], ticket)
                if not running:
                    if held is None:
                        return
                    # What waits is of an earlier run, and cancelled: the next step drops it.
                    self.model.engine.call(lambda: None)
                    continue
                for update in self._came.get():
                    # Others are of requests that were cancelled.
                    if (of := running.get(update.ticket.number)) and of.add(update):
                        del running[of.ticket.number]
                        yield of.number, of.ticket, "".join(of.texts)
        finally:
            with suppress(EngineDead):
                for of in running.values():
                    self.model.engine.cancel(of.ticket)

    def close(self) -> None:
        """Frees the model."""
        self.model.close()


class _Running:
    """A request that is being written."""

    def __init__(self, number: int, ticket: Ticket):
        self.number, self.ticket = number, ticket
        self.texts: list[str] = []

    def add(self, update: Update) -> bool:
        """Was this the last update? `Ticket.ended` does not tell: it is set before the last text is
        here. Raises an update's error."""
        if update.error is not None:
            raise update.error
        if update.piece is None:
            return False
        self.texts.append(update.piece.text)
        return update.piece.reason is not None
