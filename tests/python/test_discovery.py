"""What editors and agents ask before they use a server, as they ask it."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import serving
import tiny
from powerinfer_cpp.server import models as models_module
from powerinfer_cpp.server.served import ServedModel
from powerinfer_cpp.server.settings import Defaults, Settings
from powerinfer_cpp.server.view import MOST_WATCHERS
from powerinfer_cpp.text.abilities import abilities
from powerinfer_cpp.text.chat import FORMATS, TemplateFormat
from serving import httpx

CHATS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}<|assistant|>"
THINKS = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<think>"
    "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}\n{% endfor %}<|assistant|>"
    "{% if reasoning_effort %}<effort>{{ reasoning_effort }}{% endif %}"
)


@pytest.fixture(scope="module")
def running(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chats = tiny.make(tmp_path_factory.mktemp("chats"), CHATS)
    settings = Settings(defaults=Defaults({"temperature": 0.25}, 77, {}, True))
    models = {"stories": model_path, "chats": chats}
    with serving.in_thread(models, settings, n_ctx=1024) as found:
        yield found


def test_zed_sends_tools(running: serving.InThread) -> None:
    """It lists models, and asks /props of each for its abilities and its context."""
    for entry in running.get("v1/models").json()["data"]:
        for path in ("props", "v1/props"):
            told = running.get(f"{path}?model={entry['id']}").json()
            assert told["chat_template_caps"]["supports_tools"] is True
            assert not any(told["modalities"].values())
            assert told["default_generation_settings"]["n_ctx"] == entry["meta"]["n_ctx"]


def test_pi_wants_states(running: serving.InThread) -> None:
    for path in ("models", "v1/models"):
        states = [entry["status"]["value"] for entry in running.get(path).json()["data"]]
        assert states == ["loaded", "loaded"]


def test_a_model_that_loads_or_cannot(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, wrong = threading.Event(), []

    def slow(*args: Any, **options: Any) -> ServedModel:
        assert go.wait(60)
        if wrong:
            raise ValueError("it cannot")
        return ServedModel(*args, **options)

    monkeypatch.setattr(models_module, "ServedModel", slow)
    for fails in (False, True):
        go.clear()
        wrong[:] = [1] * fails
        with serving.in_thread(model_path, ready=False) as running:
            assert running.get("models").json()["data"][0]["status"] == {"value": "loading"}
            head = serving.request("models/sse", b"").replace(b"POST", b"GET")
            with running.connect(head) as client:
                client.settimeout(20)
                assert _events(client, 1) == [("model", "status_change", "loading")]
                go.set()
                state = "failed" if fails else "loaded"
                assert _events(client, 1) == [("model", "status_change", state)]


def _events(client: socket.socket, n: int) -> list[tuple[str, str, str]]:
    data = b""
    while len(found := re.findall(rb"data: (\{.*\})\n", data)) < n:
        data += client.recv(1 << 16)
    told = map(json.loads, found)
    return [(each["model"], each["event"], each["data"]["status"]) for each in told]


def test_what_a_model_is(running: serving.InThread, model_path: Path) -> None:
    listed = running.get("v1/models").json()
    assert [entry["id"] for entry in listed["data"]] == [m["name"] for m in listed["models"]]
    entry, other = listed["data"][0], listed["models"][0]
    size, n_bytes = entry["meta"]["size"], model_path.stat().st_size
    assert size == int(other["size"]) and 0.9 * n_bytes < size <= n_bytes
    assert entry["meta"]["ftype"] == other["details"]["quantization_level"] == "Q8_0"
    assert entry["meta"]["vocab_type"] == 1 and other["details"]["family"] == "llama"
    assert entry["architecture"] == {"input_modalities": ["text"], "output_modalities": ["text"]}
    # A model that only continues texts offers no chats, so no tools.
    assert [m["capabilities"] for m in listed["models"]] == [
        ["completion"],
        ["completion", "tools"],
    ]


def test_defaults_are_those_of_texts(running: serving.InThread) -> None:
    told = running.get("props?model=stories").json()["default_generation_settings"]["params"]
    done = running.post("completion", {"prompt": "Once", "model": "stories", "seed": 1}).json()
    used = done["generation_settings"]
    for name in told.keys() & used.keys() - {"seed"}:
        assert told[name] == used[name], name
    assert told["temperature"] == 0.25 and told["n_predict"] == 77
    assert done["tokens_predicted"] == 77


def test_special_tokens(running: serving.InThread) -> None:
    told, same = running.get("props").json(), running.get("tokenizer_info").json()
    for name in ("bos_token", "eos_token"):
        assert told[name] == same[name] and told[name]


def test_a_model_without_thoughts(running: serving.InThread) -> None:
    for model in ("stories", "chats"):
        assert running.get(f"props?model={model}").json()["enable_thinking"] is None


def test_nothing_is_loaded_in_turn(running: serving.InThread) -> None:
    for path in ("models/load", "v1/models/unload"):
        answer = running.post(path, {"model": "stories"})
        assert answer.status_code == 501
        assert "all models are loaded" in answer.json()["error"]["message"]
    assert running.post("models/load", {}).status_code == 400


@pytest.mark.parametrize("route", ["chat/completions", "responses"])
def test_tokens_are_counted(running: serving.InThread, route: str) -> None:
    said = [{"role": "user", "content": "How many tokens are this?"}]
    tools = [{"name": "f", "parameters": {"type": "object", "properties": {}}}]
    if route == "responses":
        body = {"input": said, "tools": [{"type": "function", **tool} for tool in tools]}
    else:
        body = {"messages": said, "tools": [{"type": "function", "function": t} for t in tools]}
    body |= {"model": "chats"}
    counted = running.post(f"v1/{route}/input_tokens", body).json()
    limit = {"max_output_tokens": 1} if route == "responses" else {"max_tokens": 1}
    usage = running.post(f"v1/{route}", {**body, **limit}).json()["usage"]
    n = usage.get("input_tokens", usage.get("prompt_tokens"))
    assert counted == {"object": "response.input_tokens", "input_tokens": n}


def test_abilities_of_templates() -> None:
    plain, thinks = (TemplateFormat(source, "<s>", "</s>") for source in (CHATS, THINKS))
    for each in (plain, thinks, FORMATS["chatml"]):
        assert abilities(each)["supports_tools"]
    names = ("supports_preserve_reasoning", "supports_reasoning_effort")
    assert [abilities(plain)[name] for name in names] == [False, False]
    assert [abilities(thinks)[name] for name in names] == [True, True]


def test_a_stream_of_states_ends_with_its_client(running: serving.InThread) -> None:
    with httpx.stream("GET", running.url + "models/sse", timeout=20) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        first = next(answer.iter_lines())
        assert json.loads(first.removeprefix("data: "))["data"]["status"] == "loaded"
    assert running.get("health").status_code == 200
    serving.wait_for(lambda: not running.server._states._watchers)


def test_streams_of_states_are_few(running: serving.InThread) -> None:
    head = serving.request("models/sse", b"").replace(b"POST", b"GET")
    with contextlib.ExitStack() as stack:
        for _ in range(MOST_WATCHERS):
            stack.enter_context(running.connect(head)).recv(64)
        assert running.get("models/sse").status_code == 429
    serving.wait_for(lambda: not running.server._states._watchers)
