"""What all dialects share: requests are written, and their pieces collected or streamed."""

import io
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anyio import to_thread
from starlette.responses import Response

from ..run.requests import Request, Ticket, Update
from ..text.completion import Piece
from ..text.logprobs import Placed
from .answering import StreamResponse, WholeResponse, encode, joined
from .dialects.dialect import OPENAI
from .errors import Refusal
from .recorded import SMALL, Taken
from .served import ServedModel
from .settings import Settings
from .update_queues import PendingRequests, UpdateQueues

# Characters of an answer that take some milliseconds to read, or tens if a client chose them so:
# more are read in a thread.
LONG = 16 << 10


# A comment, which clients do not see, and proxies take for an answer.
_ALIVE = b": it is being computed\n\n"


class Form(ABC):
    """How a dialect writes the answer of one job: at once, or as server-sent events."""

    dialect = OPENAI
    silence: float | None = None  # seconds until `alive`, before the first piece; None: as usual

    @abstractmethod
    def whole(self, tickets: Sequence[Ticket], pieces: Sequence[Sequence[Piece]]) -> Any:
        """The answer at once. tickets: of the requests. pieces: of each text."""

    def begin(self, tickets: Sequence[Ticket]) -> bytes:
        """Events before any push."""
        return b""

    @abstractmethod
    def push(self, i: int, part: Piece) -> bytes:
        """Events for the next piece of a text; i: its number."""

    def alive(self) -> bytes:
        """Where nothing else is to be told for long."""
        return _ALIVE

    def end(self) -> bytes:
        """Events after all pieces."""
        return b""

    def error(self, refusal: Refusal) -> bytes:
        """The event in place of what would follow."""
        return event(self.dialect.body(refusal), self.dialect.event)


@dataclass(frozen=True)
class Job:
    """Requests of one body, and the form of their answer."""

    model: ServedModel
    requests: Sequence[Request]
    form: Form

    def sent_by(self, sender: str) -> "Job":
        """The same, for which this sender takes turns with others."""
        return replace(self, requests=[replace(each, sender=sender) for each in self.requests])


def answer(
    queues: UpdateQueues, job: Job, stream: bool, settings: Settings, taken: Taken
) -> Response:
    """The response for a job. taken: what its answer keeps, which ends with it."""
    dialect = job.form.dialect
    if not stream:
        return WholeResponse(lambda: whole(queues, job, taken.n_bytes), dialect, taken.close)
    return StreamResponse(
        lambda: events(queues, job, taken.n_bytes),
        job.form.error,
        dialect,
        settings.send_seconds,
        closed=taken.close,
    )


async def whole(queues: UpdateQueues, job: Job, n_bytes: int) -> bytes:
    """The answer as JSON. n_bytes: what it may take; a large one is written in a thread."""
    await queues.recall(job.model, job.requests)
    with queues.begin(job.model, job.requests) as writing:
        texts = [Joined() for _ in owners(writing.tickets)]
        async for updates in writing.updates():
            for update in updates:
                texts[writing.place(update)].add(update)

    def written() -> bytes:
        pieces = [[text.piece] for text in texts]
        return encode(job.form.whole(writing.tickets, pieces))

    return await _apart(written, n_bytes, sum(text.n_chars for text in texts))


async def events(queues: UpdateQueues, job: Job, n_bytes: int) -> AsyncIterator[bytes]:
    """The answer as server-sent events. n_bytes: as for whole."""
    await queues.recall(job.model, job.requests)
    with queues.begin(job.model, job.requests) as writing:
        begun, n_chars = False, 0
        async for updates in joined(writing.updates(), job.form.silence):
            found = merged(writing, updates)
            n_chars += sum(len(part.text) for _, part in found)

            def written(
                begun: bool = begun,
                found: list[tuple[int, Piece]] = found,
                silent: bool = not updates,
            ) -> bytes:
                data = [] if begun else [job.form.begin(writing.tickets)]
                data += [job.form.push(i, part) for i, part in found]
                data += [job.form.alive()] if silent else []
                return b"".join(data)

            data = await _apart(written, n_bytes, n_chars)
            begun = True
            yield data
    yield await _apart(job.form.end, n_bytes, n_chars)


async def _apart(work: Callable[[], bytes], n_bytes: int, n_chars: int) -> bytes:
    """What work gives; in a thread, if it is about many bytes. n_chars: of all that the answer has
    so far, since where a call or the thoughts end, all of them is read or counted once more."""
    return await to_thread.run_sync(work) if n_bytes > SMALL or n_chars > LONG else work()


class Joined:
    """Pieces of a text that follow each other, as one: each takes a hundred times the bytes of its
    text."""

    def __init__(self) -> None:
        self._text, self._last = io.StringIO(), Piece("", None, 0)
        self._placed: list[Placed] = []
        self._ids: list[int] = []
        self.n_chars = 0

    def add(self, update: Update) -> None:
        """Adds the piece of an update, if it has one."""
        if update.piece is not None:
            self._last = update.piece
            self.n_chars += self._text.write(update.piece.text)
            self._placed += update.piece.placed
            self._ids += update.tokens

    @property
    def piece(self) -> Piece:
        """All of them."""
        text = self._text.getvalue()
        return replace(self._last, text=text, placed=self._placed, ids=self._ids)


def merged(writing: PendingRequests, updates: Sequence[Update]) -> list[tuple[int, Piece]]:
    """The pieces of updates with the numbers of their texts; those of a text as one."""
    found: dict[int, Joined] = {}
    for update in updates:
        if update.piece is not None:
            found.setdefault(writing.place(update), Joined()).add(update)
    return [(i, text.piece) for i, text in found.items()]


def owners(tickets: Sequence[Ticket]) -> list[Ticket]:
    """The ticket of each text."""
    return [ticket for ticket in tickets for _ in range(ticket.request.n)]


def event(data: Any, name: str | None = None) -> bytes:
    """A server-sent event, with a name in the dialects that name them."""
    named = b"" if name is None else b"event: %s\n" % name.encode()
    return named + b"data: " + encode(data) + b"\n\n"


PROGRESS_SECONDS = 0.25  # between two words about a prompt


def prompt_progress(model: ServedModel, ticket: Ticket) -> dict[str, float] | None:
    """llama.cpp's `prompt_progress` of a request: tokens of its prompt, those that were known and
    those that are computed, and how long it has taken so far; None before it begins."""
    if ticket.began is None:
        return None
    n_ids, n_done = len(ticket.request.ids), ticket.n_reused
    if ticket.first is not None:
        n_done = n_ids
    for other, index, _, done in model.engine.snapshot.texts:
        if other is ticket and index == 0:
            n_done = max(n_done, min(done, n_ids))
    ended = time.perf_counter() if ticket.first is None else ticket.first
    spent = 1e3 * (ended - ticket.began)
    known = ticket.n_reused
    return {"total": n_ids, "cache": known, "processed": n_done, "time_ms": spent}


def timings(tickets: Sequence[Ticket], now: float = 0.0) -> dict[str, float]:
    """llama.cpp's `timings`: of several requests the sums, with the times of the slowest. now: the
    time of time.perf_counter(), for texts that are being written."""
    n_prompt = sum(len(t.request.ids) - t.n_reused for t in tickets)
    n_written = sum(t.n_tokens for t in tickets)
    prompt_s = max(((t.first or 0) - (t.began or 0) for t in tickets if t.first), default=0.0)
    written_s = max(
        ((t.ended or now) - (t.first or 0) for t in tickets if t.ended or (now and t.first)),
        default=0.0,
    )
    return {
        "cache_n": sum(t.n_reused for t in tickets),
        "prompt_n": n_prompt,
        "prompt_ms": 1e3 * prompt_s,
        "prompt_per_token_ms": 1e3 * prompt_s / max(1, n_prompt),
        "prompt_per_second": n_prompt / prompt_s if prompt_s > 0 else 0.0,
        "predicted_n": n_written,
        "predicted_ms": 1e3 * written_s,
        "predicted_per_token_ms": 1e3 * written_s / max(1, n_written),
        "predicted_per_second": n_written / written_s if written_s > 0 else 0.0,
        "draft_n": sum(t.n_drafted for t in tickets),
        "draft_n_accepted": sum(t.n_accepted for t in tickets),
    }
