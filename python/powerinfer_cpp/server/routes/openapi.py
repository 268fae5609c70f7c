"""GET /openapi.json: what the routes take and give."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .route import EVENTS, JSON, Route


def description(routes: Sequence[Route]) -> bytes:
    """The OpenAPI 3.1 document of the routes, from the classes of their bodies."""
    found = {route.body for route in routes if route.body is not None}
    kinds = sorted(found, key=lambda kind: kind.__name__)
    refs, schemas = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    for kind in kinds:
        for name in getattr(kind, "UNUSED", ()):
            del schemas[kind.__name__]["properties"][name]
    of_kind = dict(zip(kinds, refs, strict=True))
    paths: dict[str, Any] = {}
    for route in routes:
        told = _operation(route, of_kind)
        names = [path.replace(":path}", "}") for path in route.paths]
        paths.update((name, {route.method.lower(): told}) for name in names)
    document = {
        "openapi": "3.1.0",
        "info": {"title": "powerinfer_cpp", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": {**schemas, "Error": {"type": "object", "required": ["error"]}},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }
    return msgspec.json.encode(document)


def _operation(route: Route, of_kind: Mapping[type[msgspec.Struct], Any]) -> dict[str, Any]:
    given = [route.gives, EVENTS] if route.streams else [route.gives]
    error = {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    told: dict[str, Any] = {
        "summary": route.says,
        "responses": {
            "200": {"description": "The answer.", "content": {kind: {} for kind in given}},
            "default": {"description": "What is wrong.", "content": error},
        },
    }
    if route.body is not None:
        content = {JSON: {"schema": of_kind[route.body]}}
        told["requestBody"] = {"required": True, "content": content}
    named = {"name": "model", "schema": {"type": "string"}}
    if route.asks_model:
        told["parameters"] = [{**named, "in": "query"}]
    elif "{model" in route.path:
        told["parameters"] = [{**named, "in": "path", "required": True}]
    return told
