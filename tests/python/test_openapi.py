"""The description of the server: complete, and no request that follows it ends in a 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import serving
from test_vectors import converted

ROUNDS = 25  # requests drawn for each route
NOT_HERE = {501}  # of a model that does not rank, or has no vectors
# What models that give no text are for.
OF_VECTORS = {"/", "/embed", "/info", "/v1/embeddings", "/v1/rerank", "/v1/score", "/v2/rerank"}


@pytest.fixture(scope="module")
def running(model_path: Path) -> Iterator[serving.InThread]:
    with serving.in_thread(model_path, n_ctx=64) as found:
        yield found


@pytest.fixture(params=["text", "bert", "bert-rank"])
def of_kind(
    request: pytest.FixtureRequest, running: serving.InThread, tmp_path: Path
) -> Iterator[serving.InThread]:
    """A server of a model that gives text, vectors or scores."""
    if request.param == "text":
        yield running
        return
    with serving.in_thread(converted(tmp_path, request.param).path) as found:
        yield found


@pytest.fixture(scope="module")
def document(running: serving.InThread) -> dict[str, Any]:
    return running.get("openapi.json").json()


def test_every_route_is_described(running: serving.InThread, document: dict[str, Any]) -> None:
    described = {(path, method.upper()) for path, of in document["paths"].items() for method in of}
    server = running.server
    served = {
        (route.path.replace(":path}", "}"), method)
        for route in server.app.routes
        for method in route.methods - {"HEAD"}
        if method != "GET" or route.path not in server.page.files
    }
    assert described == served


def schema(document: dict[str, Any], path: str) -> dict[str, Any]:
    """The body of a route."""
    content = document["paths"][path]["post"]["requestBody"]["content"]
    name = content["application/json"]["schema"]["$ref"].split("/")[-1]
    return document["components"]["schemas"][name]


def test_bodies_are_described(document: dict[str, Any]) -> None:
    chat = schema(document, "/chat/completions")
    assert chat["required"] == ["messages"]
    assert {"temperature", "tools", "response_format", "stream"} <= set(chat["properties"])
    answers = document["paths"]["/chat/completions"]["post"]["responses"]["200"]["content"]
    assert "text/event-stream" in answers
    for path, thinks in (
        ("/v1/chat/completions", True),
        ("/v1/messages", True),
        ("/v1/completions", False),
        ("/completion", False),
        ("/infill", False),
    ):
        assert ("reasoning_effort" in schema(document, path)["properties"]) == thinks


@pytest.mark.nightly
@pytest.mark.peer("schemathesis")
def test_what_follows_the_description(of_kind: serving.InThread, document: dict[str, Any]) -> None:
    """Also bodies that do not follow it, and strange values of those that do."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis import GenerationMode

    described = schemathesis.openapi.from_dict(document)
    seen: dict[int, int] = {}
    for result in described.get_all_operations():
        operation = result.ok()
        again = f"/v1{operation.path}" in document["paths"]  # the same with another path
        if again or operation.path == "/view/stream":  # which has no end
            continue
        if not of_kind.model.writes and operation.path not in OF_VECTORS:
            continue
        # Nothing can be wrong with a request that has no body.
        modes = list(GenerationMode) if operation.method == "post" else [GenerationMode.POSITIVE]
        for mode in modes:

            @settings(
                max_examples=ROUNDS,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def check(case: Any) -> None:
                answer = case.call(base_url=of_kind.url.rstrip("/"), timeout=serving.SECONDS)
                told = answer.status_code < 500 or answer.status_code in NOT_HERE
                assert told, (case.as_curl_command(), answer.text)
                seen[answer.status_code] = seen.get(answer.status_code, 0) + 1

            check()
    wrong = seen[400] + seen.get(422, 0)
    # Of two fields that say what is ranked, a body that is right has one: few that are drawn do.
    least = ROUNDS if of_kind.model.writes else ROUNDS // 3
    assert seen[200] > least and wrong > ROUNDS, seen
    assert of_kind.get("health").status_code == 200
