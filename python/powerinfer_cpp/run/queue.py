"""Texts that wait for a place in a scheduler, and who may ask for more."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from ..core.errors import ContextOverflowError, RequestError
from .generation import Generation
from .requests import QueueFull, Request, Ticket
from .turns import Waiting


class Queue:
    """Any thread may ask whether there is room, and for tickets; the rest is for the thread that
    runs the scheduler.

    n_ctx: positions of a text. n_parallel: texts that are written at the same time. n_queue: of
    one sender that may wait.
    """

    def __init__(self, n_ctx: int, n_parallel: int, n_queue: int):
        self._n_ctx, self._n_parallel, self._n_queue = n_ctx, n_parallel, n_queue
        self._waiting: Waiting[Generation] = Waiting()
        self._numbers = itertools.count(1)
        self._promised: Counter[str] = Counter()  # texts of tickets that are not added yet
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def tickets(self, requests: Sequence[Request], n_active: int) -> list[Ticket]:
        """Checked requests, to be added, all or none; n_active: texts that are written.

        They may wait if their sender's queue has room for all their texts, or is empty: however
        many one sender asks for at once, it is taken. Others do not count. Raises QueueFull,
        RequestError for an empty prompt, and ContextOverflowError for one that leaves no room.
        """
        for request in requests:
            if not request.ids:
                raise RequestError("the prompt is empty")
            if len(request.ids) + (request.limit > 0) > self._n_ctx:
                raise ContextOverflowError(
                    f"the prompt has {len(request.ids)} tokens, which leaves no room in a context "
                    f"of {self._n_ctx} (-c, for which --kv-size or a smaller -np makes room)"
                )
        more: Counter[str] = Counter()
        for request in requests:
            more[request.sender or request.owner] += request.n
        with self._lock:
            self.check_room(more, n_active)
            self._promised.update(more)
        numbers = [next(self._numbers) for _ in requests]
        now = time.perf_counter()
        return [Ticket(of, i, now, numbers[0]) for of, i in zip(requests, numbers, strict=True)]

    def check_room(self, more: Mapping[str, int], n_active: int) -> None:
        """Raises QueueFull if a sender's queue has no room for so many texts more."""
        room = self._n_queue + max(0, self._n_parallel - n_active)
        for sender, n_more in more.items():
            n = self._waiting.of(sender) + self._promised[sender]
            if n and n + n_more > room:
                raise QueueFull(f"{n} texts of this client are waiting already")

    def redeem(self, ticket: Ticket) -> None:
        """Ends a ticket's promise: its texts are added next."""
        of = ticket.request
        with self._lock:
            self._promised.subtract({of.sender or of.owner: of.n})
            self._promised += Counter()  # drops those who have none

    def add(self, texts: Sequence[Generation]) -> None:
        """Adds the texts of a ticket."""
        with self._lock:
            for text in texts:
                self._waiting.add(text)

    def put_back(self, text: Generation) -> None:
        """Adds a text before the others of its request."""
        with self._lock:
            self._waiting.add(text, first=True)

    def take(
        self, places: Mapping[str, int], may: Callable[[Generation], bool]
    ) -> Generation | None:
        """The next text that may begin, by the places that senders have."""
        with self._lock:
            return self._waiting.take(places, may)

    def firsts(self) -> Iterator[Generation]:
        """The first text of each request."""
        for sender in self._waiting.senders():
            yield from self._waiting.firsts(sender)

    def remove(self, tickets: Collection[int]) -> None:
        """Removes the texts of tickets with these numbers."""
        with self._lock:
            self._waiting.remove(lambda text: text.ticket.number in tickets)

    def clear(self) -> list[Generation]:
        """Removes all texts, and gives them."""
        with self._lock:
            texts, self._waiting = list(self._waiting), Waiting()
            return texts
