"""Features of the server in pairs: each text is what it is alone, and the engine lives on.

A feature of a server (drafts, prompts on disk, states, storage) meets every other one in one of the
servers here. In each of them the features of requests (grammars, several texts, echo with
log-probabilities, stops, thoughts, tools) meet each other and those of the server, while watchers
of the live view come and go, clients go away, and positions run out.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import serving
import small_states
from circles import FULL, pick
from powerinfer_cpp.bundle import bundle
from powerinfer_cpp.llama_speculative import LlamaPromptLookupDecoding
from powerinfer_cpp.run import prefixes
from powerinfer_cpp.run.prefix_files import PrefixFiles
from test_failing_disk import Disk
from test_thinking import INSIDE

pytest.importorskip("llguidance")
N_CTX = 1024
SYSTEM = "A small bear saw a bird and a fox and a bird and a fox. "
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "integer"}},
                "required": [key],
                "additionalProperties": False,
            },
        },
    }
    for name, key in (("add", "a"), ("take", "b"))
]
# What completions and chats may ask for; each meets each.
TEXTS: dict[str, dict[str, Any]] = {
    "grammar": {"grammar": 'root ::= ("yes" | "no " [a-f]{1,6} | "perhaps")+ "."'},
    "n": {"n": 3},
    "echo": {"echo": True, "logprobs": 2},
    "stop": {"stop": ["e", "yesyes"]},
}
CHATS: dict[str, dict[str, Any]] = {
    "grammar": TEXTS["grammar"],
    "n": {"n": 2},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "stop": {"stop": ["e"]},
    "thoughts": {"reasoning_budget": 6},
    "tools": {"tools": TOOLS, "tool_choice": "required"},
}
SERVERS: list[tuple[str, ...]] = [
    ("drafts", "prefixes"),
    ("drafts", "states"),
    ("drafts", "storage"),
    ("prefixes", "states"),
    ("prefixes", "storage"),
]
if FULL:
    SERVERS += [(), ("drafts",), ("prefixes",), ("states",), ("storage",)]


def requests() -> list[tuple[str, dict[str, Any]]]:
    """Routes and bodies: every pair of features that a request can have, and each alone."""
    found: list[tuple[str, dict[str, Any]]] = []
    for route, features in (("v1/completions", TEXTS), ("v1/chat/completions", CHATS)):
        names = [(), *itertools.combinations(features, 1), *itertools.combinations(features, 2)]
        for i, pair in enumerate(names):
            if {"grammar", "tools"} <= set(pair):
                continue  # is refused
            body: dict[str, Any] = {"seed": i, "temperature": 0.9, "max_tokens": 14}
            if route == "v1/completions":
                body["prompt"] = SYSTEM + ("The bird said" if i % 3 else "The fox")
            else:
                asks = "Why?" if i % 3 else "Who?"
                body["messages"] = [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": asks},
                ]
                body["max_tokens"] = 40
            for name in pair:
                body |= features[name]
            found.append((route, body))
    return found


REQUESTS = requests()


def told(answer: Any) -> Any:
    """What must be equal of an answer: all but what is new each time."""
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    for choice in choices:
        for call in choice.get("message", {}).get("tool_calls", []):
            del call["id"]
    return choices


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pairs")


@pytest.fixture(scope="module")
def disk(model_path: Path, folder: Path) -> Disk:
    path = folder / "model.gguf"
    bundle(model_path, path, verbose=False)
    return Disk(path)


@pytest.fixture(scope="module")
def states(folder: Path) -> Path:
    (folder / "states").mkdir()
    return small_states.make(folder / "states", INSIDE)


def options_of(features: Sequence[str], folder: Path) -> dict[str, Any]:
    options: dict[str, Any] = {
        "n_ctx": N_CTX,
        "bundle": False,
        "kv_overrides": {"tokenizer.chat_template": INSIDE},
    }
    if "drafts" in features:
        options["draft_model"] = LlamaPromptLookupDecoding()
    if "prefixes" in features:
        options["prefix_files"] = PrefixFiles(folder / "-".join(features), 64 << 20)
    return options


@contextlib.contextmanager
def server(
    features: Sequence[str], disk: Disk, states: Path, folder: Path
) -> Iterator[serving.InThread]:
    path = states if "states" in features else disk.path
    options = options_of(features, folder)
    options |= {"n_parallel": 4, "n_kv": 3 * N_CTX, "n_queue": 512, "n_batch": 96, "n_ubatch": 32}
    if "storage" in features:
        with serving.in_thread(path, **options) as whole:
            plan = whole.model.runtime.plan()
        options["ram_budget"] = (plan["total"] - plan["ram"]["ffn"] // 2) / (1 << 30)
    with serving.in_thread(path, **options) as found:
        if "storage" in features:
            assert found.model.runtime.plan()["storage"]["ffn"] > 0
        assert (found.model.prefixes is not None) == ("prefixes" in features)
        yield found


@pytest.fixture(scope="module")
def wanted(disk: Disk, states: Path, folder: Path) -> dict[bool, list[Any]]:
    """What each request gets alone, of the model with states and of the other."""
    found = {}
    for has_states in (False, True):
        path = states if has_states else disk.path
        with serving.in_thread(path, n_parallel=1, **options_of((), folder)) as plain:
            found[has_states] = [told(plain.post(*request)) for request in REQUESTS]
    return found


def watch(running: serving.InThread, stop: threading.Event) -> None:
    """Watchers that come, look a moment and go."""
    while not stop.is_set():
        with running.connect(serving.request("view/stream", b"", "GET")):
            time.sleep(0.01)
        time.sleep(0.01)


def vanish(running: serving.InThread, stop: threading.Event) -> None:
    """Clients that ask for something and go."""
    for i in itertools.count():
        if stop.is_set():
            return
        route, body = REQUESTS[i % len(REQUESTS)]
        with running.ask(route, {**body, "stream": bool(i % 2)}):
            time.sleep(0.004 * (i % 5))
        time.sleep(0.02)


@pytest.mark.parametrize("features", SERVERS, ids="-".join)
def test_pairs(
    features: tuple[str, ...],
    disk: Disk,
    states: Path,
    folder: Path,
    wanted: dict[bool, list[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefixes, "PIECE_BYTES", 64 << 10)  # the budgets are small
    # In the quick circle each server has half of the requests.
    half = pick(slice(SERVERS.index(features) % 2, None, 2), slice(None))
    asked, want = REQUESTS[half], wanted["states" in features][half]
    with server(features, disk, states, folder) as running:
        n_free = len(running.model.scheduler._sequences._free)
        stop = threading.Event()
        beside = [threading.Thread(target=each, args=(running, stop)) for each in (watch, vanish)]
        for each in beside:
            each.start()
        try:
            for i in range(pick(1, 3)):
                if "prefixes" in features and i == 2:  # nothing can be kept any more
                    shutil.rmtree(folder / "-".join(features))
                with ThreadPoolExecutor(12) as pool:
                    answers = pool.map(lambda request: running.post(*request), asked)
                    for request, answer, equal in zip(asked, answers, want, strict=True):
                        assert told(answer) == equal, (features, i, json.dumps(request[1]))
        finally:
            stop.set()
            for each in beside:
                each.join()
        serving.wait_for(lambda: running.idle)
        serving.wait_for(lambda: running.model.scheduler.watch is None)
        if "storage" in features:
            disk.fail()
            try:
                failed = [running.post(*request).status_code for request in asked[:3]]
            finally:
                disk.mend()
            assert set(failed) <= {200, 500}
            assert [told(running.post(*request)) for request in asked[:3]] == want[:3]
        assert running.get("health").status_code == 200
        sequences = running.model.scheduler._sequences
        assert len(sequences._free) + sequences.n_kept == n_free
        assert not running.model.scheduler._left


def test_every_pair_is_there() -> None:
    """Of servers, all that can be: no model with states runs from storage by neurons."""
    of_servers = {frozenset(pair) for pair in SERVERS}
    every = itertools.combinations(("drafts", "prefixes", "states", "storage"), 2)
    assert {frozenset(pair) for pair in every} - of_servers == {frozenset(("states", "storage"))}
    for route, features in (("v1/completions", TEXTS), ("v1/chat/completions", CHATS)):
        bodies = [body for to, body in REQUESTS if to == route]
        for a, b in itertools.combinations(features, 2):
            both = {*features[a], *features[b]}
            there = any(both <= set(body) for body in bodies)
            assert there or {a, b} == {"grammar", "tools"}, (a, b)
