"""uvicorn's HTTP protocol with limits for clients that send or take nothing."""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from .connections import ABORT, GONE, Connections
from .limits import RawHeaders, sender_of
from .settings import Settings

# What a chunked body may have beside its data, for each byte of it: "1\r\nx\r\n" is a chunk.
_AROUND = 8
_PIECE = 8 << 10  # bytes that are parsed at once


# Does somebody ask too often, by the headers, and the address that they come from?
Overdue = Callable[[RawHeaders, tuple[str, int] | None], bool]

_TOO_MANY = (
    b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n"
    b"connection: close\r\n\r\n"
)


def timed_protocol(
    settings: Settings, connections: Connections, overdue: Overdue
) -> type[HttpToolsProtocol]:
    """A protocol that closes connections whose request line and headers take too long or are too
    large, those whose clients take nothing of a response, and those that are too many.

    Trailers of a body are dropped: nothing here asks for them, and uvicorn would keep them all.
    Who asks too often is refused as soon as its headers are here: all that comes after them takes
    the event loop several times as long.
    """

    class Timed(HttpToolsProtocol):
        holder = ""
        _headers_due: asyncio.TimerHandle | None = None
        _in_headers = False
        _in_body = False
        _refused = False  # all that comes on this connection
        _n_bytes = 0  # of headers that are not complete
        _n_around = 0  # of the body that arrives: what is no data, less what it may have
        _running: RequestResponseCycle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.holder = sender_of(self.client)
            if connections.add(self):
                self._expect_headers()
            else:
                transport.abort()

        def abort(self) -> None:
            """Closes the connection at once."""
            self.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            connections.drop(self)
            self._got_headers()
            super().connection_lost(exc)
            # self.cycle is the latest request. If several came at once, another one is running.
            if self._running is not None and not self._running.response_complete:
                self._running.disconnected = True
                self._running.message_event.set()

        def data_received(self, data: bytes) -> None:
            # The next request on a connection that is kept open begins, or what follows a body that
            # was refused.
            if self._headers_due is None and (self.cycle is None or self.cycle.response_complete):
                self._expect_headers()
            # In pieces: the parser calls back for every header, and a hundred kB may hold many.
            for at in range(0, len(data), _PIECE):
                self._parse(data[at : at + _PIECE])
                if self.transport.is_closing():
                    return

        def _parse(self, data: bytes) -> None:
            super().data_received(data)
            if self._in_headers:
                self._n_bytes += len(data)
                if self._n_bytes > settings.max_headers:
                    self._close()
            elif self._in_body:
                self._n_around += len(data)
                if self._n_around > settings.max_around + len(data):
                    self._close()

        def on_message_begin(self) -> None:
            self._in_headers, self._n_bytes = True, 0
            super().on_message_begin()

        def on_header(self, name: bytes, value: bytes) -> None:
            if self._in_headers:
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._in_headers, self._in_body, self._n_around = False, True, 0
            self._got_headers()
            self._refused = self._refused or overdue(self.headers, self.client)
            if not self._refused:
                super().on_headers_complete()
            elif not self.transport.is_closing():
                self.transport.write(_TOO_MANY)
                self.transport.close()

        def on_body(self, body: bytes) -> None:
            self._n_around -= (1 + _AROUND) * len(body)
            if not self._refused:
                super().on_body(body)

        def on_message_complete(self) -> None:
            self._in_body = False
            if self._refused:
                return
            if not self.cycle.response_complete:
                connections.busy(self)
            super().on_message_complete()

        def on_response_complete(self) -> None:
            if not self.pipeline and not self.transport.is_closing():
                connections.idle(self)
            super().on_response_complete()
            self._expect_taken()

        def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
            self._running = cycle
            more: dict[str, Any] = cycle.scope  # type: ignore[assignment]
            more[ABORT], more[GONE] = self.transport.abort, lambda: cycle.disconnected
            super()._start_asgi_task(cycle, app)

        def _expect_headers(self) -> None:
            self._headers_due = self.loop.call_later(settings.header_seconds, self._close)

        def _got_headers(self) -> None:
            if self._headers_due is not None:
                self._headers_due.cancel()
                self._headers_due = None

        def _close(self) -> None:
            self._got_headers()
            if not self.transport.is_closing():
                self.transport.close()
            self._expect_taken()

        def _expect_taken(self) -> None:
            """Ends the connection if nothing of what was written leaves; closing it does not, as
            long as there is something to send."""
            left = self.transport.get_write_buffer_size()

            def check() -> None:
                now = self.transport.get_write_buffer_size()
                if now >= left:
                    self.transport.abort()
                elif now:
                    self._expect_taken()

            if left:
                self.loop.call_later(settings.send_seconds, check)

    return Timed
