"""What answers keep until they are written: their texts, and log-probabilities.

A client may ask for a product of prompts, texts, tokens and candidates: the product has a limit.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..run.requests import Request
from .errors import Refusal

# Bytes of a token's text; of a recorded token besides; and of each of its candidates, nearly all of
# it JSON: once in parts, once as a body, and once on its way through the socket.
TEXT_BYTES = 8
TOKEN_BYTES = 1024
CANDIDATE_BYTES = 256
# An answer of so many bytes counts as nothing.
SMALL = 1 << 20


def recorded_bytes(requests: Sequence[Request]) -> int:
    """Bytes that the answers to requests take at most, until they are written."""
    found = 0
    for of in requests:
        found += of.n * of.limit * TEXT_BYTES
        if of.n_top is not None:
            tokens = of.n * max(1, of.limit) + (len(of.ids) if of.echo else 0)
            found += tokens * (TOKEN_BYTES + CANDIDATE_BYTES * (of.n_top + 1))
    return found


def check_recorded(requests: Sequence[Request], most: int, names: Sequence[str]) -> None:
    """Refuses requests of one body whose answers would take more than so many bytes. names: of the
    fields whose product it is, the last for its `param`. Raises Refusal."""
    n_bytes = recorded_bytes(requests)
    if n_bytes > most:
        fields = ", ".join(names[:-1]) + f" and {names[-1]}"
        raise Refusal(
            400,
            f"{fields} together ask for up to {n_bytes >> 20} MiB of answers and recorded tokens; "
            f"this server keeps at most {most >> 20} MiB for a client (--max-recorded)",
            names[-1],
        )


class Recorded:
    """Bytes that running answers may take, by client. most: of one client."""

    def __init__(self, most: int):
        self._most = most
        self._taken: dict[str, int] = {}

    def take(
        self, client: str, n_bytes: int, reserve: Callable[[str, int], Callable[[], None]]
    ) -> "Taken":
        """Room for an answer, until it is closed. reserve: takes it from the model's budget, and
        gives what gives it back.

        Raises Refusal if the client's answers take too much together, and what reserve raises.
        """
        if n_bytes <= SMALL:
            return Taken(self, client, 0, None)
        taken = self._taken.get(client, 0)
        if taken + n_bytes > self._most:
            raise Refusal(
                429,
                f"the server is busy: this client's other answers may take {taken >> 20} MiB, and "
                f"this one {n_bytes >> 20}, which is more than {self._most >> 20} together",
            )
        release = reserve("answers of the server", n_bytes)
        self._taken[client] = taken + n_bytes
        return Taken(self, client, n_bytes, release)

    def give_back(self, client: str, n_bytes: int) -> None:
        """Ends what was taken."""
        left = self._taken.get(client, 0) - n_bytes
        if left > 0:
            self._taken[client] = left
        else:
            self._taken.pop(client, None)


class Taken:
    """Room for an answer. release: gives back what the model's budget has reserved."""

    def __init__(self, of: Recorded, client: str, n_bytes: int, release: Callable[[], None] | None):
        self._of, self._client, self.n_bytes, self._release = of, client, n_bytes, release

    def close(self) -> None:
        """Gives it back; once is enough."""
        release, self._release = self._release, None
        if release is not None:
            self._of.give_back(self._client, self.n_bytes)
            release()


def packed(value: Any) -> msgspec.Raw:
    """A part of an answer as JSON: a tenth of what its dicts take."""
    return msgspec.Raw(msgspec.json.encode(value))
