"""uvicorn's HTTP protocol with limits for clients that send or take nothing."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from .settings import Settings

# In the scope of a request: closes its connection at once, with what was not sent yet.
ABORT = "powerinfer.abort"


def timed_protocol(settings: Settings) -> type[HttpToolsProtocol]:
    """A protocol that closes connections whose request line and headers take too long or are too
    large, and those whose clients take nothing of a response."""

    class Timed(HttpToolsProtocol):
        _headers_due: asyncio.TimerHandle | None = None
        _in_headers = False
        _n_bytes = 0  # of headers that are not complete
        _running: RequestResponseCycle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_headers()

        def connection_lost(self, exc: Exception | None) -> None:
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
            super().data_received(data)
            if self._in_headers:
                self._n_bytes += len(data)
                if self._n_bytes > settings.max_headers:
                    self._close()

        def on_message_begin(self) -> None:
            self._in_headers, self._n_bytes = True, 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._in_headers = False
            self._got_headers()
            super().on_headers_complete()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._expect_taken()

        def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
            self._running = cycle
            cycle.scope[ABORT] = self.transport.abort  # type: ignore[typeddict-unknown-key]
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
