"""uvicorn's HTTP protocol with a limit for headers that never end."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


def timed_protocol(seconds: float) -> type[HttpToolsProtocol]:
    """A protocol that closes connections whose request line and headers take longer than that."""

    class Timed(HttpToolsProtocol):
        _headers_due: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._got_headers()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            # The next request on a connection that is kept open begins.
            if self._headers_due is None and (self.cycle is None or self.cycle.response_complete):
                self._expect_headers()
            super().data_received(data)

        def on_headers_complete(self) -> None:
            self._got_headers()
            super().on_headers_complete()

        def _expect_headers(self) -> None:
            self._headers_due = self.loop.call_later(seconds, self._close)

        def _got_headers(self) -> None:
            if self._headers_due is not None:
                self._headers_due.cancel()
                self._headers_due = None

        def _close(self) -> None:
            self._headers_due = None
            if not self.transport.is_closing():
                self.transport.close()

    return Timed
