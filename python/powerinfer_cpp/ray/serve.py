"""The server on Ray Serve: `serve run powerinfer_cpp.ray:app models=model.gguf`.

A front takes requests, and passes each to a replica of its model, which runs the application of
`powerinfer serve`. Replicas of a model keep prefixes of their own, so the front sends what begins
alike to the same one.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Scope

from ..server.app import Server
from ..server.dialects.dialect import dialect_of
from ..server.errors import Refusal, refusal_of
from ..server.limits import Arriving, Guard, read_body
from ..server.settings import Settings

ROUTER = "ray.serve.experimental.consistent_hash_router:ConsistentHashRouter"
AFFINITIES = ("session", "prefix")
_OF_ALL_MODELS = ("/models/sse", "/models/load", "/models/unload")
SESSION = "x-session-id"
PREFIX = 256  # characters of a prompt that tell where it goes
_SCOPE = (
    *("type", "http_version", "method", "path", "root_path", "query_string", "headers", "scheme"),
    *("owner", "sender"),  # which the guard has added
)


def build_app(
    models: str | Path | list[str] | Mapping[str, str | Path],
    replicas: int | tuple[int, int] = 1,
    affinity: str = "session",
    cpus: float = 1,
    options: Mapping[str, Any] | None = None,
    settings: Settings | None = None,
) -> Application:
    """An application of Ray Serve with a deployment for each model.

    models: a file, several (comma-separated in a text), or files by name. replicas: of each model,
    or the least and the most; the number then follows the requests. affinity: "session": requests
    with the same header x-session-id go to the same replica; "prefix": those whose prompts begin
    alike. cpus: of a replica, which computes with as many threads. options: of
    `ServedModel`. settings: limits, keys, and the names by which clients reach the front, beside
    addresses and localhost. Raises ValueError for bad arguments and OSError for a missing file.
    """
    if affinity not in AFFINITIES:
        raise ValueError(f"affinity must be one of {', '.join(AFFINITIES)}")
    paths = _paths(models)
    given = {"n_threads": max(1, int(cpus)), "verbose": False, **dict(options or {})}
    limits = dict(vars(settings or Settings()))
    handles = {
        name: _deployment(name, replicas, cpus, int(given.get("n_parallel", 4))).bind(
            name, str(path), given, limits
        )
        for name, path in paths.items()
    }
    return _Front.bind(handles, affinity, limits)


def app(arguments: dict[str, Any]) -> Application:
    """`build_app` for `serve run`, which gives arguments as texts: replicas "2" or "1-4", and
    of the settings hosts, origins and api_keys, each with commas between several."""
    found = dict(arguments)
    given = {name: found.pop(name) for name in ("hosts", "origins", "api_keys") if name in found}
    if given:
        several = {name: tuple(str(text).split(",")) for name, text in given.items()}
        found["settings"] = Settings(**several)
    replicas = found.get("replicas", 1)
    if isinstance(replicas, str):
        least, _, most = replicas.partition("-")
        found["replicas"] = (int(least), int(most)) if most else int(least)
    if "cpus" in found:
        found["cpus"] = float(found["cpus"])
    return build_app(**found)


def _deployment(name: str, replicas: int | tuple[int, int], cpus: float, n_parallel: int) -> Any:
    scaling: dict[str, Any] = {"num_replicas": replicas}
    if isinstance(replicas, tuple):
        least, most = replicas
        scaling = {
            "autoscaling_config": {
                "min_replicas": least,
                "max_replicas": most,
                "target_ongoing_requests": n_parallel,
            }
        }
    return serve.deployment(
        _Replica,
        name=name,
        ray_actor_options={"num_cpus": cpus},
        # A replica queues by itself, and says when it is full.
        max_ongoing_requests=100_000,
        request_router_config=RequestRouterConfig(request_router_class=ROUTER),
        **scaling,
    )


def _paths(models: str | Path | list[str] | Mapping[str, str | Path]) -> dict[str, Path]:
    if isinstance(models, str | Path):
        models = str(models).split(",")
    if not isinstance(models, Mapping):
        models = {Path(path).name.removesuffix(".gguf"): path for path in models}
    found = {name: Path(path).resolve() for name, path in models.items()}
    for path in found.values():
        if not path.is_file():
            raise FileNotFoundError(f"{path}: there is no such file")
    return found


class _Replica:
    """A server without sockets: an ASGI application whose messages are streamed to the front,
    which has let the requests in."""

    def __init__(self, name: str, path: str, options: dict[str, Any], settings: dict[str, Any]):
        self._server = Server({name: Path(path)}, options, Settings(**settings), guarded=False)
        self._server.models.load()
        self._server.models.wait()
        if self._server.models.failure is not None:
            raise self._server.models.failure

    def check_health(self) -> None:
        """Ray replaces the replica if this raises."""
        if (fault := self._server.models.fault) is not None:
            raise RuntimeError(str(fault))

    async def asgi(self, scope: dict[str, Any], body: bytes) -> AsyncIterator[Message]:
        """The messages that answer a request. Closing the iterator ends the work. Raises what keeps
        the answer from its end."""
        self._server.queues.open()
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        gone = asyncio.Event()
        parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if parts:
                return parts.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def run() -> None:
            try:
                await self._server.app(scope, receive, messages.put)
            finally:
                messages.put_nowait(None)

        task, ended = asyncio.ensure_future(run()), False
        try:
            while (message := await messages.get()) is not None:
                ended = message["type"] == "http.response.body" and not message.get("more_body")
                yield message
            if not ended:
                await task
                raise RuntimeError("the answer has no end")
        finally:
            gone.set()
            with suppress(Exception):
                await asyncio.wait_for(task, 10)


@serve.deployment(name="front", num_replicas=1, max_ongoing_requests=100_000)
class _Front:
    """Takes requests, and chooses the model and the session of each."""

    def __init__(
        self, handles: dict[str, DeploymentHandle], affinity: str, settings: dict[str, Any]
    ):
        self._handles, self._affinity = handles, affinity
        self._settings, self._arriving = Settings(**settings), Arriving()
        self._guard = Guard(self._settings, lambda path: False)

    async def __call__(self, request: Request) -> Response:
        request = Request(_without_prefix(request.scope), request.receive)
        response = self._guard.answer(request.scope)
        try:
            response = response or await self._answer(request)
        except Exception as error:
            response = dialect_of(request.scope["path"]).refused(refusal_of(error))
        response.raw_headers += self._guard.headers(request.scope)
        return response

    async def _answer(self, request: Request) -> Response:
        path = request.scope["path"].removeprefix("/v1")
        body = await read_body(request, self._settings, self._arriving)
        if path == "/models":
            return await self._models(request)
        named = _named(body) if body else _Named()
        name = named.model or request.query_params.get("model")
        if path.startswith("/models/") and path not in _OF_ALL_MODELS:
            name = path.removeprefix("/models/")
        session = request.headers.get(SESSION, "")
        if self._affinity == "prefix":
            session = _prefix(named)
        begun, rest = await _begin(self._handle(name), session, request, body)
        response = StreamingResponse(rest, begun["status"])
        response.raw_headers = [tuple(header) for header in begun["headers"]]
        return response

    def _handle(self, name: str | None) -> DeploymentHandle:
        if len(self._handles) > 1 and name is not None and name not in self._handles:
            raise Refusal(404, f"there is no model {name!r}", "model")
        return self._handles.get(name or "") or next(iter(self._handles.values()))

    async def _models(self, request: Request) -> Response:
        """The lists of all models together."""
        data: list[Any] = []
        for handle in self._handles.values():
            begun, rest = await _begin(handle, "", request, b"")
            text = b"".join([part async for part in rest])
            if begun["status"] != 200:
                return Response(text, begun["status"], media_type="application/json")
            data += msgspec.json.decode(text)["data"]
        body = msgspec.json.encode({"object": "list", "data": data})
        return Response(body, media_type="application/json")


async def _begin(
    handle: DeploymentHandle, session: str, request: Request, body: bytes
) -> tuple[Message, AsyncIterator[bytes]]:
    """The beginning of a replica's answer, and the parts of its body. If the replica is lost before
    the end, the parts raise, and the connection is cut: no client takes that for an end."""
    scope = {name: request.scope[name] for name in _SCOPE if name in request.scope}
    options = {"stream": True, **({"session_id": session} if session else {})}
    messages = handle.options(**options).asgi.remote(scope, body)
    begun = await anext(messages)

    async def rest() -> AsyncIterator[bytes]:
        async for message in messages:
            if part := message.get("body", b""):
                yield part

    return begun, rest()


def _without_prefix(scope: Scope) -> Scope:
    """The scope of a request to an application whose route_prefix is /."""
    prefix, path = scope.get("root_path", "").rstrip("/"), scope["path"]
    if path == prefix or path.startswith(f"{prefix}/"):
        path = path[len(prefix) :] or "/"
    return {**scope, "path": path, "root_path": ""}


class _Named(msgspec.Struct):
    """What of a body tells where it goes."""

    model: str | None = None
    messages: Any = None
    prompt: Any = None
    system: Any = None
    instructions: Any = None
    input: Any = None


def _named(body: bytes) -> _Named:
    try:
        return msgspec.json.decode(body, type=_Named)
    except (msgspec.DecodeError, RecursionError):
        return _Named()  # the replica says what is wrong


def _prefix(named: _Named) -> str:
    """A name for what a prompt begins with."""
    for begin in (named.messages, named.prompt, named.input):
        if begin:
            told = named.system or named.instructions
            text = msgspec.json.encode([told, begin])[:PREFIX]
            return hashlib.blake2b(text, digest_size=16).hexdigest()
    return ""
