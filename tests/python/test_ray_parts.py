"""What powerinfer_cpp.ray does by itself, with a stand-in for Ray: many texts, and the front."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import serving
from powerinfer_cpp.core.sampling import Sampling
from powerinfer_cpp.run.requests import Request, Update
from powerinfer_cpp.server.bulk import BulkWriter
from powerinfer_cpp.server.settings import Settings
from ray_stand_in import Dataset, Handle
from ray_stand_in import ray as ray  # a fixture
from small_mixtures import Mixture
from starlette.requests import Request as HttpRequest

from powerinfer_cpp import Llama, RequestError

httpx = serving.httpx
Ray = Callable[[str], ModuleType]
PROMPTS = [
    f"{who} {did}" for who in ("The dog", "A cat", "Lily") for did in ("ran", "saw a", "said")
]
OPTIONS: dict[str, Any] = {"n_ctx": 64}


# ---- Many texts ----


@pytest.fixture
def writer(model_path: Path) -> Iterator[BulkWriter]:
    found = BulkWriter(model_path, n_parallel=2, n_queue=1, verbose=False, **OPTIONS)
    yield found
    found.close()


def requests(writer: BulkWriter, n: int) -> Iterator[Request]:
    for i in range(n):
        yield writer.model.request(PROMPTS[i % len(PROMPTS)], max_tokens=1 + i % 7, seed=i)


def test_more_texts_than_may_wait(writer: BulkWriter, model_path: Path) -> None:
    """However late the updates come, and however small the queue is."""
    deliver = writer._came.put

    def late(updates: Sequence[Update]) -> None:
        time.sleep(0.002)  # ticket.ended is set by now
        deliver(updates)

    writer.model.engine._deliver = late
    found = {i: text for i, _, text in writer.run(requests(writer, 30))}
    with Llama(model_path, verbose=False, **OPTIONS) as llm:
        for i in range(30):
            prompt = PROMPTS[i % len(PROMPTS)]
            want = llm(prompt, max_tokens=1 + i % 7, seed=i)["choices"][0]["text"]
            assert found.pop(i) == want
    assert found == {}


def test_an_error_ends_the_others(writer: BulkWriter) -> None:
    def broken(ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
        raise RequestError("broken")

    bad = Request(writer.model.prompts.tokenize(b"The dog"), 20, processors=lambda: broken)
    long = writer.model.request("The dog", max_tokens=50, params=Sampling(temperature=0))
    for at in (0, 3):
        with pytest.raises(RequestError, match="broken"):
            list(writer.run([long] * at + [bad] + [long] * 2))
    first, *_ = writer.run([long, long])
    given_up = writer.run([long] * 5)
    next(given_up)
    given_up.close()
    serving.wait_for(lambda: writer.model.engine.call(lambda: writer.model.scheduler.idle))
    assert [text for _, _, text in writer.run([long])] == [first[2]]


def test_complete(ray: Ray, model_path: Path) -> None:
    with Llama(model_path, verbose=False, **OPTIONS) as llm:
        want = [llm(p, max_tokens=9, seed=3, top_k=20)["choices"][0]["text"] for p in PROMPTS * 2]
    rows = Dataset([{"prompt": p, "row": i} for i, p in enumerate(PROMPTS * 2)])
    options = {**OPTIONS, "n_parallel": 3, "n_queue": 0}
    done = ray("data").complete(rows, model_path, max_tokens=9, seed=3, top_k=20, options=options)
    assert [(row["row"], row["completion"]) for row in done.iter_rows()] == list(enumerate(want))


def test_perplexity_of_a_long_document(ray: Ray, model_path: Path) -> None:
    """It has more windows than may wait, and every token after the first of its window counts."""
    texts = [" ".join(PROMPTS), "", "once " * 200]
    options = {"n_ctx": 8, "n_parallel": 2, "n_queue": 3}
    rows = Dataset([{"text": text} for text in texts])
    found = ray("data").perplexity(rows, model_path, options=options)
    nll: list[float] = []
    n_windows = 0
    with Llama(model_path, verbose=False, logits_all=True, n_ctx=8) as llm:
        for text in texts:
            ids = llm.tokenize(text.encode())
            for first in range(0, len(ids), 8):
                window = ids[first : first + 8]
                n_windows += len(window) > 1
                llm.reset()
                llm.eval(window)
                logs = llm.logits_to_logprobs(llm.scores[: len(window) - 1])
                nll += (-logs[np.arange(len(window) - 1), window[1:]]).tolist()
    assert n_windows > 25 and (found.n_tokens, found.n_windows) == (len(nll), n_windows)
    assert found.perplexity == pytest.approx(np.exp(np.mean(nll)), rel=1e-5)


@pytest.mark.slow
def test_experts_from_the_disk(ray: Ray, tmp_path: Path) -> None:
    """Work over a dataset with a mixture that does not fit."""
    path = Mixture(n_layer=2).write(tmp_path / "model.gguf")
    rows = Dataset([{"prompt": prompt} for prompt in PROMPTS])
    text = Dataset([{"text": " ".join(PROMPTS)}])
    gib: float | None = None
    for stored in (False, True):
        writer = BulkWriter(path, n_parallel=16, verbose=False, ram_budget=gib, **OPTIONS)
        assert bool(writer.model.runtime.plan()["storage"]) == stored
        gib = gib or 0.8 * writer.model.runtime.plan()["total"] / (1 << 30)
        writer.close()
    found = []
    for more in ({}, {"ram_budget": gib}):
        options = {**OPTIONS, **more}
        done = ray("data").complete(rows, path, max_tokens=12, seed=3, options=options)
        estimate = ray("data").perplexity(text, path, options=options)
        found.append(([row["completion"] for row in done.iter_rows()], estimate))
    assert found[0] == found[1]


# ---- The front ----


class Front:
    """The front of build_app's application, with its replicas in this process."""

    def __init__(self, ray: Ray, models: dict[str, Path], settings: Settings | None, **more: Any):
        serve = ray("serve")
        options = {"n_ctx": 128, "n_parallel": 2, "seed": 1}
        bound = serve.build_app(models, options=options, settings=settings, **more)
        kind, handles, *rest = bound
        self.handles = {
            name: Handle(replica(*arguments)) for name, (replica, *arguments) in handles.items()
        }
        self._front = kind(self.handles, *rest)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await (await self._front(HttpRequest(scope, receive)))(scope, receive, send)

    def ask(self, method: str, path: str, prefix: str = "", **options: Any) -> httpx.Response:
        """prefix: the application's route_prefix."""

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self, root_path=prefix)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as one:
                return await one.request(method, path, **options)

        return asyncio.run(ask())

    def close(self) -> None:
        for handle in self.handles.values():
            handle._replica._server.models.close()


@pytest.fixture
def front(ray: Ray, model_path: Path) -> Iterator[Callable[..., Front]]:
    made: list[Front] = []

    def front(settings: Settings | None = None, *names: str, **more: Any) -> Front:
        made.append(Front(ray, dict.fromkeys(names or ("m",), model_path), settings, **more))
        return made[-1]

    yield front
    for each in made:
        each.close()


BODY = {"prompt": "The dog", "max_tokens": 4, "seed": 1}


def test_who_may_use_the_front(front: Callable[..., Front]) -> None:
    settings = Settings(api_keys=("k",), origins=("https://app.example",), max_body=1000)
    of = front(settings, "a", "b")
    key = {"authorization": "Bearer k"}
    for path in ("/v1/models", "/models", "/v1/models/a", "/v1/completions"):
        assert of.ask("GET", path).status_code == 401, path
        refused = of.ask("GET", path, headers={**key, "host": "evil.example"})
        assert refused.status_code == 403, path
    found = of.ask("GET", "/v1/models", headers=key)
    assert [entry["id"] for entry in found.json()["data"]] == ["a", "b"]
    assert of.ask("GET", "/v1/models/b", headers=key).json()["id"] == "b"
    assert of.ask("GET", "/v1/models/c", headers=key).status_code == 404
    assert of.ask("GET", "/health").json() == {"status": "ok"}  # as without Ray
    headers = {**key, "origin": "https://app.example"}
    answer = of.ask("POST", "/v1/completions", headers=headers, json={**BODY, "model": "b"})
    assert answer.status_code == 200 and answer.json()["model"] == "b"
    for name in ("access-control-allow-origin", "x-content-type-options"):
        assert len(answer.headers.get_list(name)) == 1
    large = of.ask("POST", "/v1/completions", headers=key, json={"prompt": "x" * 1000})
    assert large.status_code == 413  # the limit of the settings


def test_keys_come_before_bodies(front: Callable[..., Front]) -> None:
    of = front(Settings(api_keys=("k",)))
    n_read = 0

    async def body() -> Any:
        nonlocal n_read
        n_read += 1
        yield b"x"

    assert of.ask("POST", "/v1/completions", content=body()).status_code == 401 and n_read == 0
    asked = {"origin": "http://127.0.0.1", "access-control-request-headers": "x-a"}
    preflight = of.ask("OPTIONS", "/v1/completions", headers=asked)
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-headers"] == "x-a"
    for refused in (of.ask("GET", "/v1/models", headers=asked), preflight):  # pages can read why
        assert refused.headers.get_list("access-control-allow-origin") == [asked["origin"]]


def test_names_of_the_host(front: Callable[..., Front], ray: Ray, model_path: Path) -> None:
    named = {"host": "ai.example"}
    assert front().ask("GET", "/v1/models", headers=named).status_code == 403
    known = front(Settings(hosts=("ai.example",)))
    assert known.ask("GET", "/v1/models", headers=named).status_code == 200
    # As `serve run` gives them.
    bound = ray("serve").app({"models": str(model_path), "hosts": "a.example,b.example"})
    assert bound[-1]["hosts"] == ("a.example", "b.example")


def test_a_prefix_of_all_routes(front: Callable[..., Front]) -> None:
    of = front(Settings(api_keys=("k",)))
    for path in ("/small/v1/models", "/v1/models"):  # servers differ in what they pass on
        assert of.ask("GET", path, "/small").status_code == 401
        found = of.ask("GET", path, "/small", headers={"x-api-key": "k"})
        assert [entry["id"] for entry in found.json()["data"]] == ["m"]
    assert of.ask("GET", "/small/health", "/small").json() == {"status": "ok"}
    answer = of.ask(
        "POST", "/small/v1/completions", "/small", headers={"x-api-key": "k"}, json=BODY
    )
    assert answer.status_code == 200


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_replica_that_is_lost(front: Callable[..., Front], at: int) -> None:
    """Before its answer a 500, and then no end: what has come is not taken for the whole."""
    of = front()
    of.handles["m"].lost = at
    body = {**BODY, "max_tokens": 60, "temperature": 0, "stream": True}
    if at == 0:
        found = of.ask("POST", "/v1/completions", json=body)
        assert found.status_code == 500 and found.json()["error"]["type"] == "server_error"
    else:
        with pytest.raises(RuntimeError, match="the actor died"):
            of.ask("POST", "/v1/completions", json=body)


def test_an_answer_without_an_end(ray: Ray, model_path: Path) -> None:
    """An application that fails within its answer does not end it."""
    replica = ray("serve")._Replica("m", str(model_path), {"n_ctx": 64}, {})

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        if scope["path"] == "/error":
            raise KeyError("x")

    replica._server.app = app

    async def messages(path: str) -> list[Any]:
        return [each async for each in replica.asgi({"type": "http", "path": path}, b"")]

    with pytest.raises(KeyError):
        asyncio.run(messages("/error"))
    with pytest.raises(RuntimeError, match="no end"):
        asyncio.run(messages("/"))
    replica._server.models.close()
