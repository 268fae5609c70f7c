"""What is served where: a row of the table, of which openapi.py makes a description."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..dialects.dialect import OPENAI, Dialect
from ..limits import Body

JSON, EVENTS, TEXT = "application/json", "text/event-stream", "text/plain"
BYTES = "application/octet-stream"


class Cost(Enum):
    """What a body takes, of texts before they begin. Who only needs tokens does not wait for
    templates, and neither of them for the tokens of thousands of texts, for grammars or colours,
    which may take a second or more."""

    TOKENS = "tokens"
    MANY_TEXTS = "many texts"
    TEMPLATE = "template"
    GRAMMAR = "grammar"
    COLOURS = "colours"


@dataclass(frozen=True)
class Call:
    """A request on its route. body: decoded, as the route says; None for a GET. arriving: its
    bytes, counted with those of others."""

    route: "Route"
    request: Request
    arriving: Body
    body: Any = None

    @property
    def owner(self) -> str:
        """Whose prefixes it may use: a key, or "" for all without one."""
        return str(self.request.scope.get("owner", ""))

    @property
    def sender(self) -> str:
        """Who takes turns with others."""
        return str(self.request.scope.get("sender", ""))

    @property
    def dialect(self) -> Dialect:
        """How it is refused: some paths have bodies of two dialects."""
        found: Dialect = getattr(self.body, "dialect", self.route.dialect)
        return found

    @property
    def cost(self) -> Cost:
        """What is to be done for it."""
        asks = getattr(self.body, "asks_for_grammar", False)
        return Cost.GRAMMAR if asks else self.route.cost

    @property
    def model(self) -> str | None:
        """The name of a model that it gives."""
        if self.route.body is not None:
            return getattr(self.body, "model", None)
        return self.request.query_params.get("model")


Serve = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True)
class Route:
    """A path. says: for the description. body: what a POST takes; None: it is a GET. gives: the
    type of its answer. streams: is it given as events, if the body asks for that? asks_model: a
    query may name one of several models."""

    path: str
    says: str
    serve: Serve
    body: type[msgspec.Struct] | None = None
    dialect: Dialect = OPENAI
    cost: Cost = Cost.TOKENS
    gives: str = JSON
    streams: bool = False
    asks_model: bool = False

    @property
    def method(self) -> str:
        """GET or POST."""
        return "GET" if self.body is None else "POST"

    @property
    def paths(self) -> list[str]:
        """With and without /v1, as llama.cpp has them."""
        bare = self.path.startswith("/v1/") and self.dialect.bare
        return [self.path, self.path.removeprefix("/v1")] if bare else [self.path]


def json(value: Any) -> Response:
    """The response with a value."""
    return as_json(msgspec.json.encode(value))


def as_json(data: bytes) -> Response:
    """The response with what is JSON already."""
    return Response(data, media_type=JSON)
