"""Responses that are written while the engine works, and end when the client goes away."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from .connections import ABORT
from .dialects.dialect import Dialect
from .errors import Refusal, refusal_of

# Tokens are joined for this long, after the first: a client spends some 0.1 ms on each chunk.
JOIN_SECONDS = 0.008
# Without a word for so long, before anything was sent and afterwards, a client or a proxy between
# may give up: nginx does after 60 s.
FIRST_SILENCE, SILENCE = 2.0, 15.0

encode = msgspec.json.encode


class ClientGone(Exception):
    """The client has closed the connection."""


class ClientStalled(Exception):
    """The client takes nothing."""


async def while_connected(receive: Receive, work: Awaitable[Any]) -> Any:
    """The result of work; cancelled, and ClientGone, when the client goes away first."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    watch, task = asyncio.ensure_future(gone()), asyncio.ensure_future(work)
    try:
        await asyncio.wait((watch, task), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for each in (watch, task):
            each.cancel()
        await asyncio.gather(watch, task, return_exceptions=True)


async def _abort(scope: Scope, receive: Receive) -> None:
    """Closes a connection whose client takes nothing; an orderly end would wait for it."""
    if ABORT in scope:
        scope[ABORT]()
        while (await receive())["type"] != "http.disconnect":
            pass


class WholeResponse(Response):
    """A JSON body that work gives. closed: when it was sent, or is not wanted any more."""

    def __init__(
        self,
        work: Callable[[], Awaitable[bytes]],
        dialect: Dialect,
        closed: Callable[[], None] = lambda: None,
    ):
        super().__init__(media_type="application/json")
        self._work, self._dialect, self._closed = work, dialect, closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        finally:
            self._closed()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await while_connected(receive, self._work())
        except ClientGone:
            return
        except Exception as error:
            await self._dialect.refused(refusal_of(error))(scope, receive, send)
            return
        await Response(body, media_type="application/json")(scope, receive, send)


class StreamResponse(Response):
    """Server-sent events.

    events: gives bytes that are sent as they are; what it raises before the first is a response of
    its own, and afterwards an event. error: that event. seconds: for a client to take them.
    kind: the type of the content. closed: when it has ended.
    """

    def __init__(
        self,
        events: Callable[[], AsyncIterator[bytes]],
        error: Callable[[Refusal], bytes],
        dialect: Dialect,
        seconds: float,
        kind: bytes = b"text/event-stream; charset=utf-8",
        closed: Callable[[], None] = lambda: None,
    ):
        super().__init__()
        self._kind, self._closed, self._dialect = kind, closed, dialect
        self._events, self._error, self._seconds = events, error, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._run(scope, receive, send))
        except ClientStalled:
            await _abort(scope, receive)
        except ClientGone:
            return
        finally:
            self._closed()

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False
        events = self._events()
        try:
            async for data in events:
                if not begun:
                    await self._begin(send)
                    begun = True
                await self._send(send, data)
        except (ClientGone, ClientStalled):
            raise
        except Exception as error:
            refusal = refusal_of(error)
            if not begun:
                await self._dialect.refused(refusal)(scope, receive, send)
                return
            await self._send(send, self._error(refusal))
        finally:
            await events.aclose()  # type: ignore[attr-defined]
        await self._give(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self, send: Send) -> None:
        headers = [
            (b"content-type", self._kind),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),  # a proxy must not hold events back
        ]
        await self._give(send, {"type": "http.response.start", "status": 200, "headers": headers})

    async def _send(self, send: Send, data: bytes) -> None:
        await self._give(send, {"type": "http.response.body", "body": data, "more_body": True})

    async def _give(self, send: Send, message: Message) -> None:
        """Raises ClientStalled if the client takes nothing, and ClientGone. Only here an OSError is
        the client's: elsewhere the disk's that the model is read from looks the same."""
        try:
            with anyio.fail_after(self._seconds):
                await send(message)
        except TimeoutError:
            raise ClientStalled from None
        except OSError:
            raise ClientGone from None


async def joined(
    parts: AsyncIterator[list[Any]], often: float | None = None
) -> AsyncIterator[list[Any]]:
    """The parts; the first at once, and then those that come within some milliseconds together.
    Where none comes for long, an empty one. often: how many seconds are long before the first."""
    waiting: list[Any] = []
    changed, done = asyncio.Event(), False
    failure: list[BaseException] = []
    loop = asyncio.get_running_loop()
    heard, patience = loop.time(), FIRST_SILENCE if often is None else often
    begun = False
    # One timer, which looks when it is due: none is set anew for each part.
    timer: list[asyncio.TimerHandle] = []

    def look() -> None:
        left = heard + patience - loop.time()
        if left <= 0:
            changed.set()
        timer[:] = [loop.call_later(left if left > 0 else patience, look)]

    async def collect() -> None:
        nonlocal done
        try:
            async for part in parts:
                waiting.extend(part)
                changed.set()
        except Exception as error:
            failure.append(error)
        done = True
        changed.set()

    task = asyncio.ensure_future(collect())
    look()
    try:
        while True:
            await changed.wait()
            changed.clear()
            silent = not waiting and not done
            if waiting or silent:
                found = list(waiting)
                waiting.clear()
                begun = begun or bool(found)
                heard, patience = loop.time(), SILENCE if begun or often is None else often
                yield found
            if done and not waiting:
                break
            if not silent:
                await asyncio.sleep(JOIN_SECONDS)
        if failure:
            raise failure[0]
    finally:
        timer[0].cancel()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
