"""The server as an ASGI application: routes, and who may use them."""

import asyncio
import contextlib
import functools
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from anyio import to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from ..core.errors import about_request
from . import discovery, status
from .answering import ClientGone, StreamResponse, WholeResponse, encode, while_connected
from .background import EMBEDDING
from .dialects import native, openai
from .dialects.bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    ModelBody,
    TemplateBody,
    TokenizeBody,
    check_adapters,
    decode,
    n_texts,
)
from .dialects.infill import InfillBody, infill_job
from .dialects.messages import CountBody, MessagesBody, count_tokens, messages_job
from .dialects.native import NativeBody, NativeCompletionBody
from .dialects.openapi import description
from .dialects.responses import ResponsesBody, count_response_tokens, responses_job
from .errors import Refusal, log, refusal_of
from .limits import (
    Arriving,
    Body,
    Guard,
    Guarded,
    RawHeaders,
    check_depth,
    owner_key,
    refused,
)
from .models import Models
from .recorded import Recorded, packed, recorded_bytes
from .settings import Settings
from .shares import ProcessorTime, Shares
from .texts import Job, answer
from .update_queues import UpdateQueues
from .view import MOST_WATCHERS, View

PAGE = Path(__file__).parent / "page"
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_POLICY = "default-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; \
frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

# What a client may take of the processor at once beside texts that are written: seconds of work,
# and requests, each of which counts for what the event loop does for it.
WORK_BURST, REQUEST_BURST, REQUEST_SECONDS = 0.5, 0.5, 0.001
# Who has asked for such a part of these waits so long: time to see that it has gone.
OFTEN, GONE_SECONDS = 0.1, 0.005
TOLD_SECONDS = 0.1  # for so long what a server tells may be told again, while texts are written
REFUSED_SECONDS = 0.25  # until a client is told that it asks for too much at once
# Fields that ask for a grammar.
_WITH_GRAMMAR = (
    *("grammar", "response_format", "tools", "text", "output_config", "output_format"),
    "json_schema",
)

Kind, Made = TypeVar("Kind"), TypeVar("Made")
Serve = Callable[[Request], Awaitable[Response]]


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
        self._recorded = Recorded(settings.max_recorded)
        self._began = int(time.time())
        # What may take long runs in threads. Each sender has a share of them and of the time: one
        # for work of some milliseconds, another for what may take a second.
        quick, long = (ProcessorTime(self._writing, WORK_BURST) for _ in range(2))
        self._tokenising, self._templates = Shares(4, 2, quick), Shares(4, 2, quick)
        self._telling = Shares(4, 1, quick)
        self._grammars, self._large = Shares(4, 1, long), Shares(4, 1, long)
        self._embedding = Shares(1, 1, long)
        self._requests = ProcessorTime(self._writing, REQUEST_BURST)
        self._turns: Counter[str] = Counter()  # requests of a sender that wait for time
        self._answers: dict[Any, tuple[float, bytes]] = {}  # what was told, and when
        self._views: dict[str, View] = {}
        self._state_watchers: Counter[str] = Counter()  # streams of /models/sse, by sender
        files = PAGE.glob("*.*") if settings.page else ()
        self._files = {f"/{file.name}": file for file in files if file.suffix in _TYPES}
        if "/index.html" in self._files:
            self._files["/"] = self._files["/index.html"]
        self.app = Starlette(
            routes=[
                *self._both("/health", self._health, ["GET"]),
                *self._both("/models", self._models, ["GET"]),
                *self._both("/models/sse", self._model_events, ["GET"]),
                *self._both("/models/load", self._not_in_turn, ["POST"]),
                *self._both("/models/unload", self._not_in_turn, ["POST"]),
                *self._both("/models/{model:path}", self._model, ["GET"]),
                *self._both("/chat/completions", self._chat, ["POST"]),
                *self._both("/chat/completions/input_tokens", self._count_chat, ["POST"]),
                *self._both("/responses", self._responses, ["POST"]),
                *self._both("/responses/input_tokens", self._count_response, ["POST"]),
                Route("/v1/messages", self._guarded(self._messages), methods=["POST"]),
                Route(
                    "/v1/messages/count_tokens", self._guarded(self._count_tokens), methods=["POST"]
                ),
                *self._both("/completions", self._completions, ["POST"]),
                *self._both("/embeddings", self._embeddings, ["POST"]),
                Route("/completion", self._guarded(self._completion), methods=["POST"]),
                Route("/infill", self._guarded(self._infill), methods=["POST"]),
                Route("/view", self._guarded(self._view), methods=["GET"]),
                Route("/view/stream", self._guarded(self._view_stream), methods=["GET"]),
                *self._both("/props", self._props, ["GET"]),
                Route("/lora-adapters", self._guarded(self._lora_adapters), methods=["GET"]),
                Route("/slots", self._guarded(self._slots), methods=["GET"]),
                Route("/metrics", self._guarded(self._metrics), methods=["GET"]),
                Route("/tokenize", self._guarded(self._tokenize), methods=["POST"]),
                Route("/detokenize", self._guarded(self._detokenize), methods=["POST"]),
                Route("/tokenizer_info", self._guarded(self._tokenizer_info), methods=["GET"]),
                Route("/apply-template", self._guarded(self._apply_template), methods=["POST"]),
                Route("/openapi.json", self._guarded(self._openapi), methods=["GET"]),
                *[Route(path, self._page, methods=["GET"]) for path in self._files],
            ],
            exception_handlers={HTTPException: _http_error, Exception: _any_error},
            lifespan=self._lifespan,
        )
        self._guard = Guard(settings, self._files.__contains__)
        if guarded:
            self.app.add_middleware(Guarded, guard=self._guard, turn=self._turn)
        self.app.state.server = self

    def _writing(self) -> set[str]:
        """The senders whose texts are written now."""
        models = self.models.all().values()
        texts = [text for model in models for text in model.engine.snapshot.texts]
        return {ticket.request.sender for ticket, *_ in texts}

    def end(self) -> None:
        """Ends the answers that are being written, with an error that says so. The process ends."""
        self.models.closing = True
        for view in self._views.values():
            view.ended = True
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

    def _both(self, path: str, serve: Serve, methods: list[str]) -> list[Route]:
        """A route with and without /v1, as llama.cpp has them."""
        guarded = self._guarded(serve)
        return [Route(p, guarded, methods=methods) for p in (f"/v1{path}", path)]

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.queues.open()
        self.models.load()
        yield
        await to_thread.run_sync(self.models.close)

    def _guarded(self, serve: Serve) -> Serve:
        """The same; errors become responses in the dialect of the path. The body is counted until
        the response begins."""

        async def guarded(request: Request) -> Response:
            request.state.body = Body(request, self.settings, self.arriving)
            try:
                return await serve(request)
            except ClientGone:
                return Response(status_code=499)  # nobody gets it
            except Exception as error:
                refusal = refusal_of(error)
                if refusal.status == 429:  # a client that asks again at once costs little
                    request.state.body.close()
                    await asyncio.sleep(REFUSED_SECONDS)
                return refused(refusal, request.scope["path"])
            finally:
                request.state.body.close()

        return guarded

    async def _body(self, request: Request, kind: type[Kind]) -> Kind:
        data = await request.state.body.read()

        def read() -> Kind:
            check_depth(data, self.settings.max_depth)
            return decode(data, kind)

        if not request.state.body.large:
            return read()
        return await self._shared(self._large, request, read)

    async def _shared(
        self, shares: Shares, request: Request, work: Callable[..., Made], *of: Any
    ) -> Made:
        """What work gives, in a thread, when it is the turn of the request's sender. Raises
        ClientGone, and Refusal if too many of the sender wait."""
        sender = request.scope.get("sender", "")
        if request.state.body.large:
            shares = self._large
        return await while_connected(request.receive, shares.run(sender, work, *of))

    # ---- Texts ---------------------------------------------------------------------------

    async def _completions(self, request: Request) -> Response:
        body = await self._body(request, CompletionBody)
        return await self._answer(request, body, openai.completion_job)

    async def _completion(self, request: Request) -> Response:
        body = await self._body(request, NativeCompletionBody)
        return await self._answer(request, body, native.completion_job)

    async def _infill(self, request: Request) -> Response:
        body = await self._body(request, InfillBody)
        return await self._answer(request, body, infill_job)

    async def _chat(self, request: Request) -> Response:
        body = await self._body(request, ChatBody)
        return await self._answer(request, body, openai.chat_job)

    async def _responses(self, request: Request) -> Response:
        body = await self._body(request, ResponsesBody)
        return await self._answer(request, body, responses_job)

    async def _messages(self, request: Request) -> Response:
        body = await self._body(request, MessagesBody)
        return await self._answer(request, body, messages_job)

    async def _count_tokens(self, request: Request) -> Response:
        body = await self._body(request, CountBody)
        model = self.models.get(body.model)
        return _json(await self._prepared(request, body, count_tokens, model, body))

    async def _count_chat(self, request: Request) -> Response:
        body = await self._body(request, ChatBody)
        return await self._counted(request, body, openai.count_chat_tokens)

    async def _count_response(self, request: Request) -> Response:
        body = await self._body(request, ResponsesBody)
        return await self._counted(request, body, count_response_tokens)

    async def _counted(self, request: Request, body: Any, count: Callable[..., int]) -> Response:
        model = self.models.get(body.model)
        n = await self._prepared(request, body, count, model, body)
        return _json({"object": "response.input_tokens", "input_tokens": n})

    async def _answer(self, request: Request, body: Any, make: Callable[..., Job]) -> Response:
        model, name = self.models.get(body.model), self.models.name_of(body.model)
        if body.lora is not None:
            check_adapters(body.lora, [scale for _, scale in model.runtime.adapters.listed()])
        owner, sender = (request.scope.get(key, "") for key in ("owner", "sender"))
        model.engine.check_room(sender, n_texts(body))
        of = (model, name, body, self.settings, owner)
        job = (await self._prepared(request, body, make, *of)).sent_by(sender)
        taken = self._recorded.take(sender, recorded_bytes(job.requests), model.reserve)
        stream, path = bool(body.stream), request.scope["path"]
        return answer(self.queues, job, stream, self.settings, path, taken)

    async def _prepared(
        self, request: Request, body: Any, make: Callable[..., Made], *of: Any
    ) -> Made:
        """What make gives, in a thread. Who only needs tokens does not wait for templates, and
        neither of them for grammars, each of which may take seconds. Raises ClientGone."""
        if any(getattr(body, name, None) for name in _WITH_GRAMMAR):
            shares = self._grammars
        elif isinstance(body, CompletionBody | NativeBody):
            shares = self._tokenising
        else:
            shares = self._templates
        return await self._shared(shares, request, make, *of)

    async def _embeddings(self, request: Request) -> Response:
        body = await self._body(request, EmbeddingBody)
        model, name = self.models.get(body.model), self.models.name_of(body.model)
        inputs = openai.embedding_inputs(model, body, self.settings)
        sender = request.scope.get("sender", "")
        n_bytes = openai.embedding_bytes(model, len(inputs))
        taken = self._recorded.take(sender, n_bytes, model.reserve)

        def work() -> Awaitable[bytes]:
            in_turn = functools.partial(self._embedding.run, sender, background=EMBEDDING)
            return openai.embeddings(model, name, body, inputs, in_turn)

        return WholeResponse(work, request.scope["path"], taken.close)

    # ---- Tokens --------------------------------------------------------------------------

    async def _tokenize(self, request: Request) -> Response:
        body = await self._body(request, TokenizeBody)
        text = body.content if body.prompt is None else body.prompt
        if text is None:
            raise Refusal(400, "there is no content", "content")
        special = body.add_special_tokens if body.add_special is None else body.add_special
        model = self.models.get(body.model)
        data = text.encode("utf-8", "surrogatepass")

        def work() -> bytes:
            ids = model.prompts.tokenize(data, bool(special), body.parse_special)
            return encode({"tokens": ids})

        return _as_json(await self._shared(self._tokenising, request, work))

    async def _detokenize(self, request: Request) -> Response:
        body = await self._body(request, DetokenizeBody)
        model = self.models.get(body.model)

        def work() -> bytes:
            with about_request():
                data = model.prompts.detokenize(body.tokens, special=True)
            text = packed(data.decode("utf-8", "replace"))
            return encode({"content": text, "prompt": text})

        return _as_json(await self._shared(self._tokenising, request, work))

    async def _tokenizer_info(self, request: Request) -> Response:
        model = self.models.get(request.query_params.get("model"))
        return _as_json(await self._told(request, status.tokenizer_info, model))

    async def _apply_template(self, request: Request) -> Response:
        body = await self._body(request, TemplateBody)
        model = self.models.get(body.model)
        turn = await self._prepared(request, body, openai.turn_of, model, body)
        return _json({"prompt": turn.text})

    # ---- Status --------------------------------------------------------------------------

    async def _told(
        self,
        request: Request,
        tell: Callable[..., Any],
        *of: Any,
        written: Callable[[Any], bytes] = encode,
    ) -> bytes:
        """What tell says, as JSON. While texts are written, all who ask within TOLD_SECONDS get the
        same."""
        when, data = self._answers.get((tell, of), (-math.inf, b""))
        if time.monotonic() - when < TOLD_SECONDS and self._writing():
            return data
        data = await self._shared(self._telling, request, lambda: written(tell(*of)))
        self._answers[tell, of] = time.monotonic(), data
        return data

    async def _health(self, request: Request) -> Response:
        if self.models.fault is not None:
            raise Refusal(500, "the engine has stopped: the server must be restarted")
        if not self.models.ready:
            raise Refusal(503, "Loading model")
        return _json({"status": "ok"})

    async def _models(self, request: Request) -> Response:
        return _json(discovery.models(self.models, self._began))

    async def _model_events(self, request: Request) -> Response:
        sender = request.scope.get("sender", "")
        if self._state_watchers[sender] >= MOST_WATCHERS:
            raise Refusal(429, f"{MOST_WATCHERS} streams of this client are there already")
        self._state_watchers[sender] += 1

        def closed() -> None:
            self._state_watchers[sender] -= 1
            self._state_watchers += Counter()  # without those that are 0

        return StreamResponse(
            lambda: discovery.model_events(self.models),
            lambda refusal: b"",
            request.scope["path"],
            self.settings.send_seconds,
            closed=closed,
        )

    async def _not_in_turn(self, request: Request) -> Response:
        await self._body(request, ModelBody)
        raise Refusal(501, "all models are loaded at the start, and stay so until the server ends")

    async def _model(self, request: Request) -> Response:
        name = request.path_params["model"]
        return _json(discovery.model_entry(self.models, name, self._began))

    async def _props(self, request: Request) -> Response:
        name = request.query_params.get("model")
        of = (self.models.get(name), self.models.name_of(name), self.settings)
        return _as_json(await self._told(request, discovery.props, *of))

    async def _lora_adapters(self, request: Request) -> Response:
        return _json(status.adapters(self.models.get(request.query_params.get("model"))))

    async def _slots(self, request: Request) -> Response:
        model = self.models.get(request.query_params.get("model"))
        return _as_json(await self._told(request, status.slots, model))

    async def _metrics(self, request: Request) -> Response:
        text = await self._told(request, status.metrics, self.models, written=bytes)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    # ---- The page ------------------------------------------------------------------------

    def _view_of(self, request: Request) -> View:
        given = request.query_params.get("model")
        model, name = self.models.get(given), self.models.name_of(given)
        if name not in self._views:
            self._views[name] = View(model)
        return self._views[name]

    async def _view(self, request: Request) -> Response:
        return _as_json(await self._told(request, self._view_of(request).describe))

    async def _view_stream(self, request: Request) -> Response:
        view, owner = self._view_of(request), request.scope.get("owner", "")
        if not view.live:
            raise Refusal(501, "neurons cannot be watched while a device computes some of them")
        sender = request.scope.get("sender", "")
        view.check_room(sender)
        return StreamResponse(
            lambda: view.frames(owner, sender),
            lambda refusal: b"",
            request.scope["path"],
            self.settings.send_seconds,
            b"application/octet-stream",
        )

    async def _openapi(self, request: Request) -> Response:
        return Response(description(), media_type="application/json")

    async def _page(self, request: Request) -> Response:
        file = self._files[request.scope["path"]]
        headers = {"content-security-policy": _POLICY, "cache-control": "no-cache"}
        return FileResponse(file, headers=headers, media_type=_TYPES[file.suffix])


def _json(value: Any) -> Response:
    return _as_json(encode(value))


def _as_json(data: bytes) -> Response:
    return Response(data, media_type="application/json")


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {404: "there is no such path", 405: "this path does not take this method"}
    message = words.get(error.status_code, str(error.detail))
    response = refused(Refusal(error.status_code, message), request.scope["path"])
    response.headers.update(error.headers or {})  # Allow
    return response


def _any_error(request: Request, error: Exception) -> Response:
    return refused(refusal_of(error), request.scope["path"])
