"""Routes that tell what the server and its models are and do, and the page that shows it."""

import time
from collections import Counter
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from .. import discovery, status
from ..answering import StreamResponse
from ..dialects.bodies import ModelBody
from ..errors import Refusal
from ..highlight import HighlightBody, highlighted
from ..models import Models
from ..settings import Settings
from ..view import MOST_WATCHERS, View
from .preparing import Preparing
from .route import BYTES, EVENTS, TEXT, Call, Cost, Route, as_json, json


class StateRoutes:
    """What is told of models. views: by name, once somebody has asked for one."""

    def __init__(self, models: Models, settings: Settings, preparing: Preparing):
        self._models, self._settings, self._preparing = models, settings, preparing
        self._began = int(time.time())
        self.views: dict[str, View] = {}
        self._watchers: Counter[str] = Counter()  # streams of /models/sse, by sender

    def table(self) -> list[Route]:
        """The routes."""
        return [
            Route(
                "/v1/health",
                "200 when requests can be served, 503 while models load.",
                self._health,
            ),
            Route("/v1/models", "The models.", self._list),
            Route(
                "/v1/models/sse",
                "The states of models, whenever they change.",
                self._states,
                gives=EVENTS,
            ),
            Route("/v1/models/load", "501: all models are loaded.", self._not_in_turn, ModelBody),
            Route(
                "/v1/models/unload", "501: all models stay loaded.", self._not_in_turn, ModelBody
            ),
            Route("/v1/models/{model:path}", "A model.", self._model),
            Route(
                "/v1/props",
                "The model's context, template, capabilities and plan.",
                self._props,
                asks_model=True,
            ),
            Route(
                "/lora-adapters",
                "The model's LoRA adapters and their scales.",
                self._adapters,
                asks_model=True,
            ),
            Route("/slots", "Texts that are being written.", self._slots, asks_model=True),
            Route("/metrics", "Counts for Prometheus.", self._metrics, gives=TEXT),
            Route(
                "/tokenizer_info",
                "The model's special tokens and template.",
                self._tokenizer_info,
                asks_model=True,
            ),
            Route(
                "/view", "The layers of the model, and where they lie.", self._view, asks_model=True
            ),
            Route(
                "/view/stream",
                "The neurons that fire, or experts that are chosen, some times a second.",
                self._view_stream,
                gives=BYTES,
                asks_model=True,
            ),
            Route(
                "/highlight",
                "The parts of a code, for its colours on the page.",
                self._highlight,
                HighlightBody,
                cost=Cost.COLOURS,
            ),
        ]

    async def _health(self, call: Call) -> Response:
        if self._models.fault is not None:
            raise Refusal(500, "the engine has stopped: the server must be restarted")
        if not self._models.ready:
            raise Refusal(503, "Loading model")
        return json({"status": "ok"})

    async def _list(self, call: Call) -> Response:
        return json(discovery.models(self._models, self._began))

    async def _states(self, call: Call) -> Response:
        sender = call.sender
        if self._watchers[sender] >= MOST_WATCHERS:
            raise Refusal(429, f"{MOST_WATCHERS} streams of this client are there already")
        self._watchers[sender] += 1

        def closed() -> None:
            self._watchers[sender] -= 1
            self._watchers += Counter()  # without those that are 0

        return StreamResponse(
            lambda: discovery.model_events(self._models),
            lambda refusal: b"",
            call.route.dialect,
            self._settings.send_seconds,
            closed=closed,
        )

    async def _not_in_turn(self, call: Call) -> Response:
        raise Refusal(501, "all models are loaded at the start, and stay so until the server ends")

    async def _model(self, call: Call) -> Response:
        name = call.request.path_params["model"]
        return json(discovery.model_entry(self._models, name, self._began))

    async def _props(self, call: Call) -> Response:
        of = (self._models.get(call.model), self._models.name_of(call.model), self._settings)
        return as_json(await self._preparing.told(call, discovery.props, *of))

    async def _adapters(self, call: Call) -> Response:
        return json(status.adapters(self._models.get(call.model)))

    async def _slots(self, call: Call) -> Response:
        model = self._models.get(call.model)
        return as_json(await self._preparing.told(call, status.slots, model))

    async def _metrics(self, call: Call) -> Response:
        tell = self._preparing.told(call, status.metrics, self._models, written=bytes)
        return Response(await tell, media_type=f"{TEXT}; version=0.0.4; charset=utf-8")

    async def _tokenizer_info(self, call: Call) -> Response:
        model = self._models.get(call.model)
        return as_json(await self._preparing.told(call, status.tokenizer_info, model))

    # ---- Neurons as they fire ------------------------------------------------------------

    def _view_of(self, call: Call) -> View:
        model, name = self._models.get(call.model), self._models.name_of(call.model)
        if name not in self.views:
            self.views[name] = View(model)
        return self.views[name]

    async def _view(self, call: Call) -> Response:
        return as_json(await self._preparing.told(call, self._view_of(call).describe))

    async def _view_stream(self, call: Call) -> Response:
        view = self._view_of(call)
        if not self._models.get(call.model).writes:
            raise Refusal(501, "this model writes no texts, whose neurons could be watched")
        if not view.live:
            raise Refusal(501, "neurons cannot be watched while a device computes some of them")
        view.check_room(call.sender)
        return StreamResponse(
            lambda: view.frames(call.owner, call.sender),
            lambda refusal: b"",
            call.route.dialect,
            self._settings.send_seconds,
            BYTES.encode(),
        )

    async def _highlight(self, call: Call) -> Response:
        return json(await self._preparing.made(call, highlighted, call.body))


class Page:
    """The files of the page, by path; none, where it is not wanted."""

    def __init__(self, wanted: bool):
        found = [file for file in _FOLDER.rglob("*.*") if file.suffix in _TYPES]
        named = {f"/{file.relative_to(_FOLDER).as_posix()}": file for file in found}
        self.files = named if wanted else {}
        if "/index.html" in self.files:
            self.files["/"] = self.files["/index.html"]

    async def serve(self, request: Request) -> Response:
        """The file of the path."""
        file = self.files[request.scope["path"]]
        headers = {"content-security-policy": _POLICY, "cache-control": "no-cache"}
        return FileResponse(file, headers=headers, media_type=_TYPES[file.suffix])


_FOLDER = Path(__file__).parents[1] / "page"
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_POLICY = "default-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; \
frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
