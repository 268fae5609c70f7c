"""Who is next, where many senders share an engine."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Text(Protocol):
    """What waits. body: number of the request, or of several that were asked for together."""

    @property
    def sender(self) -> str: ...
    @property
    def body(self) -> int: ...


Waits = TypeVar("Waits", bound=Text)


class Waiting(Generic[Waits]):
    """Texts that wait for a place. Senders take turns, and each sender's bodies; texts of a body
    come in order."""

    def __init__(self) -> None:
        self._by: OrderedDict[str, OrderedDict[int, deque[Waits]]] = OrderedDict()
        self._n: Counter[str] = Counter()
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def __iter__(self) -> Iterator[Waits]:
        return (text for bodies in self._by.values() for queue in bodies.values() for text in queue)

    def of(self, sender: str) -> int:
        """How many texts of a sender wait."""
        return self._n[sender]

    def add(self, text: Waits, first: bool = False) -> None:
        """Adds a text, behind those of its body or before them."""
        queue = self._by.setdefault(text.sender, OrderedDict()).setdefault(text.body, deque())
        if first:
            queue.appendleft(text)
        else:
            queue.append(text)
        self._count(text.sender, 1)

    def take(self, places: Mapping[str, int], may: Callable[[Waits], bool]) -> Waits | None:
        """The next text that may begin; of the sender with the fewest places, by sender."""
        for few in sorted({0, *places.values()}):
            for sender, bodies in self._by.items():
                if places.get(sender, 0) != few:
                    continue
                for body, queue in bodies.items():
                    found = next((i for i, text in enumerate(queue) if may(text)), None)
                    if found is not None:
                        return self._taken(sender, body, found)
        return None

    def _taken(self, sender: str, body: int, i: int) -> Waits:
        bodies = self._by.pop(sender)
        queue = bodies.pop(body)
        text = queue[i]
        del queue[i]
        if queue:  # behind the others
            bodies[body] = queue
        if bodies:
            self._by[sender] = bodies
        self._count(sender, -1)
        return text

    def senders(self) -> Iterator[str]:
        """Of whom texts wait."""
        return iter(self._by)

    def firsts(self, sender: str) -> Iterator[Waits]:
        """The first text of each body of a sender."""
        return (queue[0] for queue in self._by[sender].values())

    def remove(self, gone: Callable[[Waits], bool]) -> None:
        """Removes texts."""
        for sender, bodies in list(self._by.items()):
            for body, queue in list(bodies.items()):
                left = deque(text for text in queue if not gone(text))
                self._count(sender, len(left) - len(queue))
                bodies[body] = left
                if not left:
                    del bodies[body]
            if not bodies:
                del self._by[sender]

    def clear(self) -> None:
        """Removes all texts."""
        self._by.clear()
        self._n.clear()
        self._total = 0

    def _count(self, sender: str, more: int) -> None:
        self._total += more
        self._n[sender] += more
        if not self._n[sender]:
            del self._n[sender]


def shared(wanted: Mapping[Key, int], n: int) -> dict[Key, int]:
    """n things for those who want so many of them: nobody gets more than it wants, nor more than
    another who still wants some, but for one that is left over."""
    found: dict[Key, int] = {}
    left = len(wanted)
    for key, most in sorted(wanted.items(), key=lambda each: each[1]):
        found[key] = max(0, min(most, -(-n // left)))
        n -= found[key]
        left -= 1
    return found
