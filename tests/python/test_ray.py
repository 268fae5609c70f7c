"""powerinfer_cpp.ray: the server on Ray Serve, and work over Datasets."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.profile import profile as profile_here
from small_mixtures import Mixture

from powerinfer_cpp import Llama

pytestmark = [pytest.mark.nightly, pytest.mark.peer("ray")]  # 751 MB of packages

PROMPTS = [
    f"{who} {did}" for who in ("The dog", "A cat", "Lily") for did in ("ran", "saw a", "said")
]
OPTIONS: dict[str, Any] = {"n_ctx": 128}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray of one machine, which claims five CPUs: an actor for each of four shards, and one."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=5, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def model_file(model_path: Path) -> Path:
    return model_path.resolve()


def dataset(column: str, texts: list[str]) -> Any:
    import ray.data

    return ray.data.from_items([{column: text, "row": i} for i, text in enumerate(texts)])


def test_complete(cluster: None, model_file: Path) -> None:
    from powerinfer_cpp.ray import complete

    with Llama(model_file, verbose=False, **OPTIONS) as llm:
        want = [llm(p, max_tokens=16, seed=3, top_k=20)["choices"][0]["text"] for p in PROMPTS]
    found = complete(
        dataset("prompt", PROMPTS).repartition(3),
        model_file,
        max_tokens=16,
        seed=3,
        top_k=20,
        actors=2,
        options=OPTIONS,
    )
    rows = sorted(found.take_all(), key=lambda row: row["row"])
    assert [row["completion"] for row in rows] == want


def test_experts_from_the_disk(cluster: None, tmp_path: Path) -> None:
    """Two actors, each with a cache of its own, of a mixture that does not fit."""
    from powerinfer_cpp.ray import complete, perplexity

    path = Mixture(n_layer=2).write(tmp_path / "model.gguf")
    with Llama(path, verbose=False, **OPTIONS) as llm:
        want = [llm(p, max_tokens=16, seed=3)["choices"][0]["text"] for p in PROMPTS]
        whole = llm.plan()["total"] / (1 << 30)
    small = {**OPTIONS, "ram_budget": 0.9 * whole}
    with Llama(path, verbose=False, **small) as llm:
        assert llm.plan()["storage"]
    data = dataset("prompt", PROMPTS).repartition(2)
    rows = complete(data, path, max_tokens=16, seed=3, actors=2, options=small).take_all()
    assert [row["completion"] for row in sorted(rows, key=lambda row: row["row"])] == want
    texts = dataset("text", [" ".join(PROMPTS)])
    found = [perplexity(texts, path, options=o).perplexity for o in (OPTIONS, small)]
    assert found[0] == found[1]


def test_perplexity(cluster: None, model_file: Path) -> None:
    from powerinfer_cpp.ray import perplexity

    texts = [" ".join(PROMPTS[:n]) + "." for n in range(1, 8)] + ["", "once " * 100]
    estimate = perplexity(dataset("text", texts), model_file, options=OPTIONS)
    nll: list[float] = []
    with Llama(model_file, verbose=False, logits_all=True, **OPTIONS) as llm:
        for text in texts:
            ids = llm.tokenize(text.encode())
            for first in range(0, len(ids), OPTIONS["n_ctx"]):
                window = ids[first : first + OPTIONS["n_ctx"]]
                llm.reset()
                llm.eval(window)
                x = llm.scores[: len(window) - 1].astype(np.float64)
                x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
                nll += (-x[np.arange(len(window) - 1), window[1:]]).tolist()
    assert estimate.n_tokens == len(nll)
    assert estimate.perplexity == pytest.approx(np.exp(np.mean(nll)), rel=1e-6)


def test_profile_of_shards(cluster: None, model_file: Path, tmp_path: Path) -> None:
    from powerinfer_cpp.ray import profile

    shards = [" ".join(PROMPTS[i:] * 8) for i in range(4)]
    found = profile(dataset("text", shards).repartition(4), model_file, n_ctx=64, actors=4)
    model = Model(str(model_file))
    counts, tokens = 0, 0
    for i, shard in enumerate(shards):
        path = tmp_path / f"{i}.txt"
        path.write_text(shard)
        one = profile_here(model, text=path, n_ctx=64)
        counts, tokens = counts + one.counts, tokens + one.tokens
    model.close()
    assert found.tokens == tokens and np.array_equal(found.counts, counts)


@contextlib.contextmanager
def running(app: Any, prefix: str = "") -> Iterator[str]:
    from ray import serve

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(http_options={"port": port})
    serve.run(app, route_prefix=prefix or "/")
    try:
        yield f"http://127.0.0.1:{port}{prefix}"
    finally:
        serve.shutdown()


def test_serve(cluster: None, model_file: Path) -> None:
    import httpx
    from powerinfer_cpp.ray import build_app

    chat = {"messages": [{"role": "user", "content": "Tell me a story."}], "seed": 1}
    with Llama(model_file, verbose=False, n_ctx=256) as llm:
        want = llm(PROMPTS[0], max_tokens=24, seed=1)["choices"][0]["text"]
    app = build_app(model_file, replicas=2, options={"n_ctx": 256})
    with running(app) as url, httpx.Client(base_url=url, timeout=60) as client:
        assert client.get("/health").json() == {"status": "ok"}
        assert len(client.get("/v1/models").json()["data"]) == 1
        body = {"prompt": PROMPTS[0], "max_tokens": 24, "seed": 1}
        known = []
        for _ in range(6):
            answer = client.post("/v1/completions", json=body, headers={"x-session-id": "a"})
            assert answer.json()["choices"][0]["text"] == want
            known.append(answer.json()["timings"]["cache_n"])
        # All but the first found their prompt: one replica has answered.
        assert known[0] == 0 and min(known[1:]) > 0
        with client.stream(
            "POST", "/v1/chat/completions", json={**chat, "max_tokens": 20, "stream": True}
        ) as stream:
            lines = [line for line in stream.iter_lines() if line]
        assert lines[-1] == "data: [DONE]" and len(lines) > 2
        # A client that goes away ends the work.
        long = {**chat, "max_tokens": 200, "stream": True}
        headers = {"x-session-id": "b"}
        with client.stream("POST", "/v1/chat/completions", json=long, headers=headers) as stream:
            next(stream.iter_lines())
        for _ in range(50):
            slots = client.get("/slots", headers=headers).json()
            if not any(slot["is_processing"] for slot in slots):
                break
        assert not any(slot["is_processing"] for slot in slots)
        bad = client.post("/v1/chat/completions", json={**chat, "n": 1000})
        assert bad.status_code == 400 and "n must be" in bad.json()["error"]["message"]


def test_keys_and_a_prefix(cluster: None, model_file: Path) -> None:
    import httpx
    from powerinfer_cpp.ray import build_app
    from powerinfer_cpp.server import Settings

    app = build_app(model_file, options={"n_ctx": 128}, settings=Settings(api_keys=("k",)))
    with running(app, "/small") as url, httpx.Client(timeout=60) as client:
        assert client.get(f"{url}/health").json() == {"status": "ok"}
        assert client.get(f"{url}/v1/models").status_code == 401
        headers = {"authorization": "Bearer k"}
        assert len(client.get(f"{url}/v1/models", headers=headers).json()["data"]) == 1
        refused = client.get(f"{url}/v1/models", headers={**headers, "host": "evil.example"})
        assert refused.status_code == 403


def kill(name: str) -> None:
    """Ends the processes whose command lines have this name."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if name in file.read_text(errors="replace"):
                os.kill(int(file.parent.name), signal.SIGKILL)


def test_a_replica_that_dies(cluster: None, model_file: Path) -> None:
    """A stream is cut, and never ends as if it were whole."""
    import httpx
    from powerinfer_cpp.ray import build_app

    app = build_app({"mortal": model_file}, options={"n_ctx": 1024})
    body = {"prompt": PROMPTS[0], "max_tokens": 1000, "temperature": 0, "stream": True}
    body["logit_bias"] = {"2": -100}
    with running(app) as url, httpx.Client(base_url=url, timeout=60) as client:
        lines: list[str] = []
        with (
            pytest.raises(httpx.HTTPError),
            client.stream("POST", "/v1/completions", json=body) as stream,
        ):
            for line in stream.iter_lines():
                lines.append(line)
                if len(lines) == 1:
                    kill("ServeReplica:default:mortal")
        assert lines and "[DONE]" not in "".join(lines)


def test_arguments(model_file: Path) -> None:
    from powerinfer_cpp.ray import app, build_app

    assert app({"models": str(model_file), "replicas": "1-3", "cpus": "1"}) is not None
    with pytest.raises(ValueError, match="affinity"):
        build_app(model_file, affinity="none")
    with pytest.raises(FileNotFoundError):
        build_app("missing.gguf")
