"""The server as an ASGI application: what is served where, and who may use it."""

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from anyio import to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from .answering import ClientGone
from .dialects.dialect import dialect_of
from .errors import Refusal, log, refusal_of
from .limits import Arriving, Body, Guard, Guarded, RawHeaders, owner_key
from .models import Models
from .recorded import Recorded
from .routes.openapi import description
from .routes.preparing import Preparing
from .routes.route import Call, Route, as_json
from .routes.states import Page, StateRoutes
from .routes.texts import TextRoutes
from .routes.vectors import VectorRoutes
from .settings import Settings
from .shares import ProcessorTime
from .update_queues import UpdateQueues

# Requests that a client may make at once beside texts that are written, in seconds of what each
# counts: what the event loop does for it.
REQUEST_BURST, REQUEST_SECONDS = 0.5, 0.001
# Who has asked for such a part of these waits so long: time to see that it has gone.
OFTEN, GONE_SECONDS = 0.1, 0.005
REFUSED_SECONDS = 0.25  # until a client is told that it asks for too much at once


def build_app(
    paths: Mapping[str, Path], options: Mapping[str, Any], settings: Settings | None = None
) -> Starlette:
    """An application that serves the models of files, by name.

    options: of `ServedModel`. The models load while it answers 503.
    """
    return Server(paths, options, settings or Settings()).app


class Server:
    """What the routes share. guarded: False where another process has let the requests in."""

    def __init__(
        self,
        paths: Mapping[str, Path],
        options: Mapping[str, Any],
        settings: Settings,
        guarded: bool = True,
    ):
        self.queues = UpdateQueues()
        if "prefix_files" in options:
            of_owner = functools.partial(owner_key, settings=settings)
            options = {**options, "owner_key": of_owner}
        self.models = Models(paths, self.queues, options)
        self.settings = settings
        self.arriving = Arriving()
        self._requests = ProcessorTime(self.models.writing, REQUEST_BURST)
        self._turns: Counter[str] = Counter()  # requests of a sender that wait for time
        self._preparing = Preparing(self.models, settings)
        self._states = StateRoutes(self.models, settings, self._preparing)
        recorded = Recorded(settings.max_recorded)
        self._texts = TextRoutes(self.models, settings, self.queues, self._preparing, recorded)
        self._vectors = VectorRoutes(self.models, settings, self._preparing, recorded)
        described = Route("/openapi.json", "This description.", self._describe)
        self.routes = [
            *self._texts.table(),
            *self._vectors.table(),
            *self._states.table(),
            described,
        ]
        self.page = page = Page(settings.page)
        self.app = Starlette(
            routes=[
                *[
                    StarletteRoute(path, self._served(route), methods=[route.method])
                    for route in self.routes
                    for path in route.paths
                ],
                *[StarletteRoute(path, page.serve, methods=["GET"]) for path in page.files],
            ],
            exception_handlers={HTTPException: _http_error, Exception: _any_error},
            lifespan=self._lifespan,
        )
        self._guard = Guard(settings, page.files.__contains__)
        if guarded:
            self.app.add_middleware(Guarded, guard=self._guard, turn=self._turn)
        self.app.state.server = self

    def end(self) -> None:
        """Ends the answers that are being written, with an error that says so. The process ends."""
        self.models.closing = True
        for view in self._states.views.values():
            view.ended = True
        self._vectors.end()
        n = self.queues.end(Refusal(503, "the server is ending"))
        if n:
            log.warning("the server ends: %d requests that are being answered are cut off", n)

    def overdue(self, headers: RawHeaders, client: tuple[str, int] | None) -> bool:
        """Do so many requests of who sent these headers wait for its turn that it gets none?"""
        most = self.settings.max_turns
        if self._turns.total() < most:  # nearly always
            return False
        return self._turns[self._guard.sender(headers, client)] >= most

    async def _turn(self, sender: str) -> None:
        """Waits until a sender may ask; who asks without end does so for a share of the time.
        Raises Refusal if too many of its requests wait already."""
        self._requests.spend(sender, REQUEST_SECONDS)
        seconds = self._requests.wait(sender)
        if self._requests.spent(sender) > OFTEN * REQUEST_BURST:
            seconds = max(seconds, GONE_SECONDS)
        if seconds:
            if self._turns[sender] >= self.settings.max_turns:
                raise Refusal(429, f"{self._turns[sender]} requests of this client wait already")
            self._turns[sender] += 1
            try:
                await asyncio.sleep(seconds)
            finally:
                self._turns[sender] -= 1
                if not self._turns[sender]:
                    del self._turns[sender]

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.queues.open()
        self.models.load()
        yield
        await to_thread.run_sync(self.models.close)

    def _served(self, route: Route) -> Callable[[Request], Awaitable[Response]]:
        """What answers requests on a route, also those that are refused. The body is counted until
        the response begins."""

        async def served(request: Request) -> Response:
            call = Call(route, request, Body(request, self.settings, self.arriving))
            try:
                if route.body is not None:
                    call = await self._preparing.read(call)
                return await route.serve(call)
            except ClientGone:
                return Response(status_code=499)  # nobody gets it
            except Exception as error:
                refusal = refusal_of(error)
                if refusal.status == 429:  # a client that asks again at once costs little
                    call.arriving.close()
                    await asyncio.sleep(REFUSED_SECONDS)
                return call.dialect.refused(refusal)
            finally:
                call.arriving.close()

        return served

    async def _describe(self, call: Call) -> Response:
        return as_json(description(self.routes))


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {404: "there is no such path", 405: "this path does not take this method"}
    message = words.get(error.status_code, str(error.detail))
    refusal = Refusal(error.status_code, message)
    response = dialect_of(request.scope["path"]).refused(refusal)
    response.headers.update(error.headers or {})  # Allow
    return response


def _any_error(request: Request, error: Exception) -> Response:
    return dialect_of(request.scope["path"]).refused(refusal_of(error))
