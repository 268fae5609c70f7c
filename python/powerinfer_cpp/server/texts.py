"""What all dialects share: requests are written, and their pieces collected or streamed."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from ..completion import Dicts, Piece, usage
from ..scheduler import Request, Ticket, Update
from ..served import ServedModel
from .answering import Stream, Whole, encode, joined
from .desk import Desk, Writing
from .errors import Refusal
from .settings import Settings


@dataclass(frozen=True)
class Job:
    """Requests of one body. dicts: makes those of a text, by its number and its ticket."""

    model: ServedModel
    requests: Sequence[Request]
    dicts: Callable[[int, Ticket], Dicts]
    head: dict[str, Any]
    with_usage: bool = False  # a stream ends with token counts


def answer(desk: Desk, job: Job, stream: bool, settings: Settings, path: str) -> Response:
    """The response for a job, in OpenAI's shape."""
    if not stream:
        return Whole(lambda: whole(desk, job), path)
    return Stream(lambda: events(desk, job), _event_of, path, settings.send_seconds)


async def collect(writing: Writing) -> list[list[Piece]]:
    """All pieces of each text."""
    pieces: list[list[Piece]] = [[] for ticket in writing.tickets for _ in range(ticket.request.n)]
    async for updates in writing.updates():
        for update in updates:
            if update.piece is not None:
                pieces[writing.place(update)].append(update.piece)
    return pieces


async def whole(desk: Desk, job: Job) -> dict[str, Any]:
    """The answer as one dict."""
    with desk.begin(job.model, job.requests) as writing:
        pieces = await collect(writing)
    owners = [ticket for ticket in writing.tickets for _ in range(ticket.request.n)]
    choices = [
        job.dicts(i, ticket).choice(every)
        for i, (ticket, every) in enumerate(zip(owners, pieces, strict=True))
    ]
    n_written = sum(every[-1].n_tokens for every in pieces)
    return {
        **job.head,
        "choices": choices,
        "usage": counts(writing.tickets, n_written),
        "timings": timings(writing.tickets),
    }


async def events(desk: Desk, job: Job) -> AsyncIterator[bytes]:
    """The answer as server-sent events."""
    with desk.begin(job.model, job.requests) as writing:
        made: dict[int, Dicts] = {}
        n_written: dict[int, int] = {}
        left = sum(ticket.request.n for ticket in writing.tickets)
        async for updates in joined(writing.updates()):
            chunks = []
            for i, update in merged(writing, updates):
                if i not in made:
                    made[i] = job.dicts(i, update.ticket)
                    chunks += made[i].begin()
                piece = update.piece
                assert piece is not None
                fresh = made[i].push(piece)
                if fresh and i == 0:  # which token of which request the view shows for this text
                    last = {"request": update.ticket.number, "token": piece.n_tokens - 1}
                    fresh[0]["view"] = last
                chunks += fresh
                n_written[i] = piece.n_tokens
                left -= piece.reason is not None
            if not left and chunks and not job.with_usage:
                chunks[-1]["timings"] = timings(writing.tickets)
            yield b"".join(map(event, chunks))
    if job.with_usage:
        last = {**job.head, "choices": [], "timings": timings(writing.tickets)}
        if last.get("object") == "chat.completion":
            last["object"] = "chat.completion.chunk"
        yield event({**last, "usage": counts(writing.tickets, sum(n_written.values()))})
    yield b"data: [DONE]\n\n"


def merged(writing: Writing, updates: Sequence[Update]) -> list[tuple[int, Update]]:
    """The updates with the numbers of their texts; those of a text as one."""
    found: dict[int, Update] = {}
    for update in updates:
        if update.piece is None:
            continue
        i, piece = writing.place(update), update.piece
        if i in found and (before := found[i].piece) is not None:
            joint = Piece(
                before.text + piece.text, piece.reason, piece.n_tokens, before.placed + piece.placed
            )
            tokens = [*found[i].tokens, *update.tokens]
            found[i] = Update(update.ticket, update.index, joint, tokens)
        else:
            found[i] = update
    return list(found.items())


def event(data: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + encode(data) + b"\n\n"


def _event_of(refusal: Refusal) -> bytes:
    return event(refusal.openai())


def counts(tickets: Sequence[Ticket], n_written: int) -> dict[str, Any]:
    """`usage`: tokens of all prompts and texts."""
    n_prompt = sum(len(ticket.request.ids) for ticket in tickets)
    cached = sum(ticket.n_reused for ticket in tickets)
    return {**usage(n_prompt, n_written), "prompt_tokens_details": {"cached_tokens": cached}}


def timings(tickets: Sequence[Ticket]) -> dict[str, float]:
    """llama.cpp's `timings`: of several requests the sums, with the times of the slowest."""
    n_prompt = sum(len(t.request.ids) - t.n_reused for t in tickets)
    n_written = sum(t.n_tokens for t in tickets)
    prompt_s = max(((t.first or 0) - (t.began or 0) for t in tickets if t.first), default=0.0)
    written_s = max(((t.ended or 0) - (t.first or 0) for t in tickets if t.ended), default=0.0)
    return {
        "cache_n": sum(t.n_reused for t in tickets),
        "prompt_n": n_prompt,
        "prompt_ms": 1e3 * prompt_s,
        "prompt_per_second": n_prompt / prompt_s if prompt_s > 0 else 0.0,
        "predicted_n": n_written,
        "predicted_ms": 1e3 * written_s,
        "predicted_per_second": n_written / written_s if written_s > 0 else 0.0,
    }
