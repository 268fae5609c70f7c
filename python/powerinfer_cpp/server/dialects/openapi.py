"""GET /openapi.json: what the routes take and give, from the classes of their bodies."""

from functools import cache
from typing import Any

import msgspec

from .bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    ModelBody,
    TemplateBody,
    TokenizeBody,
)
from .infill import InfillBody
from .messages import CountBody, MessagesBody
from .native import NativeCompletionBody
from .responses import ResponsesBody

_JSON, _EVENTS, _TEXT = "application/json", "text/event-stream", "text/plain"
_BYTES = "application/octet-stream"
# By path: what it is for, and the body that it takes. Those with /v1 exist without it as well,
# except Anthropic's.
POSTS: dict[str, tuple[str, type[msgspec.Struct]]] = {
    "/v1/chat/completions": ("Answers a chat (OpenAI).", ChatBody),
    "/v1/chat/completions/input_tokens": ("Counts the tokens of a chat (OpenAI).", ChatBody),
    "/v1/completions": ("Continues texts (OpenAI).", CompletionBody),
    "/completion": ("Continues texts (llama.cpp).", NativeCompletionBody),
    "/infill": ("Writes between two texts (llama.cpp).", InfillBody),
    "/v1/embeddings": ("Vectors of texts (OpenAI).", EmbeddingBody),
    "/v1/responses": ("Answers a chat, without state (OpenAI).", ResponsesBody),
    "/v1/responses/input_tokens": ("Counts the tokens of a chat (OpenAI).", ResponsesBody),
    "/v1/messages": ("Answers a chat (Anthropic).", MessagesBody),
    "/v1/messages/count_tokens": ("Counts the tokens of a chat (Anthropic).", CountBody),
    "/v1/models/load": ("501: all models are loaded.", ModelBody),
    "/v1/models/unload": ("501: all models stay loaded.", ModelBody),
    "/tokenize": ("The ids of a text.", TokenizeBody),
    "/detokenize": ("The text of ids.", DetokenizeBody),
    "/apply-template": ("The prompt of a chat.", TemplateBody),
}
# By path: what it tells, and in which form.
GETS: dict[str, tuple[str, str]] = {
    "/v1/health": ("200 when requests can be served, 503 while models load.", _JSON),
    "/v1/models": ("The models.", _JSON),
    "/v1/models/sse": ("The states of models, whenever they change.", _EVENTS),
    "/v1/models/{model}": ("A model.", _JSON),
    "/v1/props": ("The model's context, template, capabilities and plan.", _JSON),
    "/lora-adapters": ("The model's LoRA adapters and their scales.", _JSON),
    "/slots": ("Texts that are being written.", _JSON),
    "/metrics": ("Counts for Prometheus.", _TEXT),
    "/tokenizer_info": ("The model's special tokens and template.", _JSON),
    "/view": ("The layers of the model, and where they lie.", _JSON),
    "/view/stream": (
        "The neurons that fire, or experts that are chosen, some times a second.",
        _BYTES,
    ),
    "/openapi.json": ("This description.", _JSON),
}
_STREAMED = (
    ChatBody,
    CompletionBody,
    NativeCompletionBody,
    InfillBody,
    ResponsesBody,
    MessagesBody,
)
_OF_MODEL = ("/v1/props", "/lora-adapters", "/slots", "/tokenizer_info", "/view", "/view/stream")
ANTHROPICS = "/v1/messages"


def all_paths(path: str) -> list[str]:
    """The paths of a route: with and without /v1."""
    short = path.startswith("/v1/") and not path.startswith(ANTHROPICS)
    return [path, path.removeprefix("/v1")] if short else [path]


@cache
def description() -> bytes:
    """The OpenAPI 3.1 document."""
    kinds = sorted({kind for _, kind in POSTS.values()}, key=lambda kind: kind.__name__)
    refs, schemas = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    for kind in kinds:
        for name in getattr(kind, "UNUSED", ()):
            del schemas[kind.__name__]["properties"][name]
    of_kind = dict(zip(kinds, refs, strict=True))
    paths: dict[str, Any] = {}
    for path, (text, kind) in POSTS.items():
        content = {_JSON: {"schema": of_kind[kind]}}
        streams = kind in _STREAMED and not path.endswith("/input_tokens")
        given = [_JSON, _EVENTS] if streams else [_JSON]
        post = {**_operation(text, given), "requestBody": {"required": True, "content": content}}
        paths.update((each, {"post": post}) for each in all_paths(path))
    for path, (text, kind_of_answer) in GETS.items():
        get = _operation(text, [kind_of_answer])
        named = {"name": "model", "schema": {"type": "string"}}
        if path in _OF_MODEL:
            get["parameters"] = [{**named, "in": "query"}]
        elif "{model}" in path:
            get["parameters"] = [{**named, "in": "path", "required": True}]
        paths.update((each, {"get": get}) for each in all_paths(path))
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


def _operation(text: str, kinds: list[str]) -> dict[str, Any]:
    error = {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "summary": text,
        "responses": {
            "200": {"description": "The answer.", "content": {kind: {} for kind in kinds}},
            "default": {"description": "What is wrong.", "content": error},
        },
    }
