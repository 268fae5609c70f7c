"""The server, asked by OpenAI's client: answers are those of `Llama` alone."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving
from powerinfer_cpp.text import answers
from serving import openai

from powerinfer_cpp import Llama

PROMPTS = ("Once upon a time, there was a", "The dog", "One day, a big bear went into the forest")
MESSAGES = [
    {"role": "system", "content": "You tell stories."},
    {"role": "user", "content": "Tell me of a bear."},
]
ADD = {
    "type": "object",
    "properties": {"a": {"enum": [7, 8]}, "unit": {"enum": ["cm", "m"]}},
    "required": ["a", "unit"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": ADD}},
    {"type": "function", "function": {"name": "now"}},
]


@pytest.fixture(scope="module")
def running(model_path: Path) -> Iterator[serving.InThread]:
    with serving.in_thread(model_path, n_parallel=3, n_ctx=1024) as found:
        yield found


@pytest.fixture(scope="module")
def llm(model_path: Path) -> Iterator[Llama]:
    with Llama(model_path, n_ctx=1024, logits_all=True, verbose=False) as found:
        yield found


# ---- Completions ----


def test_completions_are_those_of_llama(client: openai.OpenAI, llm: Llama) -> None:
    """For every seed, and with the cache cold or warm."""
    for _ in range(2):
        for seed, prompt in enumerate(PROMPTS):
            found = client.completions.create(model="m", prompt=prompt, max_tokens=24, seed=seed)
            want = llm(prompt, max_tokens=24, seed=seed)
            assert found.choices[0].text == want["choices"][0]["text"]
            assert found.choices[0].finish_reason == want["choices"][0]["finish_reason"]
            usage = found.usage.model_dump()
            assert {name: usage[name] for name in want["usage"]} == want["usage"]
            assert found.object == "text_completion" and found.model == "model"
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0, "max_tokens": 40},
        {"temperature": 1.5, "max_tokens": 20, "stop": [" the", "little"]},
        {"seed": 3, "n": 3, "max_tokens": 12},
        {"seed": 3, "logprobs": 2, "echo": True, "max_tokens": 5},
        {"seed": 3, "logprobs": 0, "max_tokens": 5, "n": 2},
        {"seed": 5, "max_tokens": 12, "presence_penalty": 1, "frequency_penalty": 0.5},
        {"seed": 5, "max_tokens": 6, "logit_bias": {"263": 100}},
        {"seed": 5, "max_tokens": 12, "top_k": 3, "min_p": 0.2, "repeat_penalty": 1.3},
        {
            "seed": 5,
            "max_tokens": 12,
            "samplers": ["dry", "top_p", "temperature"],
            "dry_multiplier": 3.0,
            "dry_allowed_length": 1,
            "dry_sequence_breakers": ["."],
        },
    ],
)
def test_stream_equals_whole(client: openai.OpenAI, llm: Llama, options: dict[str, Any]) -> None:
    ours = answers.Samplers.__annotations__.keys() | {"top_k", "min_p", "repeat_penalty"}
    options, extra = ({k: v for k, v in options.items() if (k in ours) == own} for own in (0, 1))
    options = {"model": "m", "prompt": PROMPTS[0], "seed": 1, **options}
    done = client.completions.create(**options, extra_body=extra)
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    tokens: dict[int, list] = {}
    n_usage = 0
    usage = {"include_usage": True}
    for chunk in client.completions.create(
        **options, extra_body=extra, stream=True, stream_options=usage
    ):
        n_usage += chunk.usage is not None
        if chunk.usage:
            assert chunk.usage.completion_tokens == done.usage.completion_tokens
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
            if choice.logprobs:
                tokens.setdefault(choice.index, []).extend(choice.logprobs.token_logprobs)
    assert n_usage == 1 and len(done.choices) == options.get("n", 1)
    for i, choice in enumerate(done.choices):
        assert choice.index == i
        assert texts[i] == choice.text and reasons[i] == choice.finish_reason
        given = {k: v for k, v in {**options, **extra}.items() if k not in ("model", "n")}
        want = llm(**{**given, "seed": options["seed"] + i})["choices"][0]
        assert (choice.text, choice.finish_reason) == (want["text"], want["finish_reason"])
        if "logprobs" in options:
            assert choice.logprobs.model_dump() == want["logprobs"]
            assert tokens[i] == want["logprobs"]["token_logprobs"]


def test_several_prompts_and_ids(client: openai.OpenAI, llm: Llama) -> None:
    ids = [llm.tokenize(prompt.encode()) for prompt in PROMPTS]
    want = [llm(p, max_tokens=6, seed=2 + i)["choices"][0]["text"] for p in PROMPTS for i in (0, 1)]
    for prompts in (list(PROMPTS), ids):
        found = client.completions.create(model="m", prompt=prompts, max_tokens=6, seed=2, n=2)
        assert [choice.text for choice in found.choices] == want
        assert [choice.index for choice in found.choices] == list(range(6))
        assert found.usage.prompt_tokens == sum(map(len, ids))
    one = client.completions.create(model="m", prompt=ids[1], max_tokens=6, seed=2)
    assert one.choices[0].text == want[2]


def test_a_stop_ends_the_text_before_it(client: openai.OpenAI) -> None:
    asked = {"model": "m", "prompt": PROMPTS[0], "temperature": 0}
    long = client.completions.create(**asked, max_tokens=30).choices[0].text
    stop = long[20:24]
    found = client.completions.create(**asked, max_tokens=30, stop=stop).choices[0]
    assert found.text == long[: long.index(stop)] and found.finish_reason == "stop"


def test_what_lm_evaluation_harness_sends(client: openai.OpenAI, llm: Llama) -> None:
    """The prompt's tokens with log-probabilities, and one token more or none."""
    ids = llm.tokenize(PROMPTS[2].encode())
    for n in (1, 0):
        found = client.completions.create(
            model="m", prompt=[ids, ids], max_tokens=n, temperature=0, logprobs=1, echo=True, seed=1
        )
        for choice in found.choices:
            given = choice.logprobs
            assert len(given.token_logprobs) == len(ids) + n and given.token_logprobs[0] is None
            for token, logprob, top in list(
                zip(given.tokens, given.token_logprobs, given.top_logprobs, strict=True)
            )[1:]:
                assert top[token] == logprob
        assert found.usage.completion_tokens == 2 * n
    nothing = client.completions.create(model="m", prompt=PROMPTS[0], max_tokens=0)
    assert nothing.choices[0].text == "" and nothing.usage.completion_tokens == 0


# ---- Chats ----


def chat_stream(client: openai.OpenAI, **options: Any) -> tuple[str, list[dict], str | None]:
    """Content, calls and reason of a streamed chat."""
    content, reason, calls = "", None, []
    chunks = list(client.chat.completions.create(**options, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    for chunk in chunks:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reason = choice.finish_reason or reason
            for call in choice.delta.tool_calls or []:
                if call.index == len(calls):
                    calls.append({"id": call.id, "name": call.function.name, "arguments": ""})
                calls[call.index]["arguments"] += call.function.arguments or ""
    return content, calls, reason


@pytest.mark.parametrize("temperature", [0, 1.2])
def test_chats_are_those_of_llama(client: openai.OpenAI, llm: Llama, temperature: float) -> None:
    given = {"temperature": temperature, "seed": 4, "max_tokens": 24}
    want = llm.create_chat_completion(MESSAGES, **given)["choices"][0]
    for changes in ({}, {"max_tokens": None, "max_completion_tokens": 24}):
        asked = {"model": "m", "messages": MESSAGES, **given, **changes}
        found = client.chat.completions.create(**asked)
        assert found.object == "chat.completion"
        choice = found.choices[0]
        assert choice.message.content == want["message"]["content"]
        assert choice.finish_reason == want["finish_reason"]
        content, calls, reason = chat_stream(client, **asked)
        assert (content, calls, reason) == (choice.message.content, [], choice.finish_reason)
    developer = [{**MESSAGES[0], "role": "developer"}, MESSAGES[1]]
    again = client.chat.completions.create(model="m", messages=developer, **given)
    assert again.choices[0].message.content == want["message"]["content"]


def test_chats_with_logprobs_and_parts(client: openai.OpenAI, llm: Llama) -> None:
    given = {"seed": 4, "max_tokens": 6, "logprobs": True, "top_logprobs": 3, "temperature": 0.5}
    want = llm.create_chat_completion(MESSAGES, **given)["choices"][0]
    found = client.chat.completions.create(model="m", messages=MESSAGES, **given, n=2)
    logprobs = found.choices[0].logprobs.model_dump(exclude_unset=True)
    assert logprobs == want["logprobs"] and len(found.choices) == 2
    parts = [{"type": "text", "text": MESSAGES[1]["content"]}]
    asked = [MESSAGES[0], {"role": "user", "content": parts}]
    again = client.chat.completions.create(model="m", messages=asked, **given)
    assert again.choices[0].message.content == want["message"]["content"]


def test_tools(client: openai.OpenAI) -> None:
    asked = {"model": "m", "messages": MESSAGES, "tools": TOOLS, "seed": 1, "max_tokens": 120}
    named = {"type": "function", "function": {"name": "add"}}
    found = client.chat.completions.create(**asked, tool_choice=named).choices[0]
    (call,) = found.message.tool_calls
    assert found.finish_reason == "tool_calls" and call.function.name == "add"
    assert set(json.loads(call.function.arguments)) == {"a", "unit"}
    content, calls, reason = chat_stream(client, **asked, tool_choice=named)
    assert [(c["name"], c["arguments"]) for c in calls] == [("add", call.function.arguments)]
    assert content == "" and reason == "tool_calls" and calls[0]["id"]
    answered = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "15"},
    ]
    asked["messages"] = answered
    assert client.chat.completions.create(**asked).choices[0].finish_reason
    required = client.chat.completions.create(**asked, tool_choice="required").choices[0]
    assert required.message.tool_calls[0].function.name in ("add", "now")


def test_json_schemas(client: openai.OpenAI) -> None:
    schema = {**ADD, "properties": {**ADD["properties"], "ok": {"type": "boolean"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    asked = {"model": "m", "messages": MESSAGES, "max_tokens": 60, "response_format": form}
    for seed in range(3):
        found = client.chat.completions.create(**asked, seed=seed).choices[0].message.content
        given = json.loads(found)
        assert given["a"] in (7, 8) and given["unit"] in ("cm", "m")
        assert chat_stream(client, **asked, seed=seed)[0] == found
    yes = {"grammar": 'root ::= "yes" | "no"'}
    held = client.completions.create(model="m", prompt="Well?", max_tokens=9, extra_body=yes)
    assert held.choices[0].text in ("yes", "no")


# ---- Embeddings ----


def test_embeddings(client: openai.OpenAI, running: serving.InThread, model_path: Path) -> None:
    with Llama(model_path, embedding=True, pooling_type=1, n_ctx=1024, verbose=False) as llm:
        want = np.array(llm.embed(list(PROMPTS), normalize=True), dtype=np.float32)
        ids = llm.tokenize(PROMPTS[1].encode())
    floats = client.embeddings.create(
        model="m", input=list(PROMPTS), encoding_format="float", dimensions=want.shape[1]
    )
    packed = client.embeddings.create(model="m", input=list(PROMPTS))  # asks for base64
    for found in (floats, packed):
        vectors = np.array([each.embedding for each in found.data], dtype=np.float32)
        assert (vectors == want).all() and [each.index for each in found.data] == [0, 1, 2]
    body = {"input": [ids], "encoding_format": "base64"}
    raw = running.post("embeddings", body).json()["data"][0]["embedding"]
    assert (np.frombuffer(base64.b64decode(raw), "<f4") == want[1]).all()
    assert floats.usage.total_tokens == packed.usage.prompt_tokens > len(ids)
    for changes in (
        {"dimensions": want.shape[1] + 1},
        {"input": []},
        {"input": [5] * 1100},
        {"encoding_format": "x"},
    ):
        refused = running.post("v1/embeddings", {"input": "x", **changes})
        assert refused.status_code == 400, refused.text


# ---- Errors ----


def test_errors_are_openais(client: openai.OpenAI, running: serving.InThread) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="m", prompt="x", n=0)
    assert refused.value.param == "n" and refused.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="m", prompt=[5] * 1100)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="m", messages=[{"role": "wizard", "content": "x"}])
    assert "wizard" in refused.value.message
    with pytest.raises(openai.BadRequestError, match="response_format"):
        client.chat.completions.create(
            model="m", messages=MESSAGES, response_format={"type": "poem"}
        )
    with pytest.raises(openai.NotFoundError) as lost:
        client.files.list()
    assert lost.value.type == "not_found_error"
    method = running.get("v1/completions")
    assert method.status_code == 405 and method.headers["allow"] == "POST"
    assert method.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "x", "suffix": "y"},
        {"prompt": "x", "best_of": 3},
        {"prompt": []},
        {"prompt": ["x", 3]},
        {"prompt": [[]]},
        {"prompt": [1, -1]},
        {"prompt": [10**9]},
        {"prompt": 3},
        {"prompt": "x", "max_tokens": "many"},
        {"prompt": "x", "temperature": 1e39},
        {"prompt": "x", "temperature": -3},
        {"prompt": "x", "temperature": 2.1},
        {"prompt": "x", "top_p": -0.1},
        {"prompt": "x", "frequency_penalty": 2.5},
        {"prompt": "x", "presence_penalty": -3},
        {"prompt": [5, 10**9]},
        {"prompt": "x", "top_p": 7},
        {"prompt": "x", "samplers": ["top_q"]},
        {"prompt": "x", "dry_multiplier": 1, "dry_sequence_breakers": [""]},
        {"prompt": "x", "dry_sequence_breakers": ["a"] * 33},
        {"prompt": "x", "top_k": 2**40},
        {"prompt": "x", "logprobs": 10**6},
        {"prompt": "x", "logit_bias": {"a": 1}},
        {"prompt": "x", "logit_bias": {"-1": 1}},
        {"prompt": "x", "grammar": "no grammar"},
        {"prompt": "x", "stop": [3]},
        [],
        "x",
        None,
    ],
)
def test_bad_bodies(running: serving.InThread, body: Any) -> None:
    refused = running.post("v1/completions", body)
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert error["type"] == "invalid_request_error" and error["message"]
    if isinstance(body, dict):
        assert running.post("v1/completions", {**body, "stream": True}).status_code == 400
    assert running.post("v1/completions", {"prompt": "x", "max_tokens": 1}).status_code == 200


def test_a_chat_without_template_and_unknown_fields(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(
        model="m", messages=MESSAGES, max_tokens=2, user="u", store=False, metadata={"a": "b"}
    )
    assert found.choices[0].message.content is not None
    for field, given in (("chat_template", {"x": "{{ 1 }}"}), ("chat_template_kwargs", "x")):
        with pytest.raises(openai.BadRequestError, match=field):
            client.chat.completions.create(model="m", messages=MESSAGES, extra_body={field: given})


# ---- Access ----


def test_keys(model_path: Path) -> None:
    from powerinfer_cpp.server import Settings

    keys = ("first", "zw\u00f6lf \u20ac", "third")
    with serving.in_thread(model_path, Settings(api_keys=keys)) as running:
        for key in keys:
            header = f"Bearer {key}".encode()
            body = {"prompt": PROMPTS[0], "max_tokens": 2, "temperature": 0}
            for name, value in (("authorization", header), ("x-api-key", key.encode())):
                found = running.post("v1/completions", body, headers={name: value})
                assert found.status_code == 200, found.text
            # What one key's clients asked is not found by others.
            cached = found.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert (cached > 0) == (name == "x-api-key")
            first = running.post("v1/completions", body, headers={"authorization": header}).json()
            assert first["timings"]["cache_n"] > 0
        for wrong in ("x", "firs", "third\u00e9", "first,third", "\U0001f511"):
            headers = {"authorization": f"Bearer {wrong}".encode()}
            refused = running.get("v1/models", headers=headers)
            assert refused.status_code == 401, wrong
        with pytest.raises(openai.AuthenticationError) as error:
            running.openai("other").models.list()
        assert error.value.code == "invalid_api_key"
        assert running.get("health").status_code == 200  # for those who watch the server
        for path in ("metrics", "slots", "props", "v1/models", "tokenizer_info", "none"):
            assert running.get(path).status_code == 401, path


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from powerinfer_cpp.server import limits
    from powerinfer_cpp.server.settings import Settings

    guard = limits.Guard(Settings(api_keys=("a", "b", "c")), lambda path: False)
    for i, key in enumerate((b"a", b"b", b"c")):
        for header in ((b"authorization", b"bearer " + key), (b"x-api-key", key)):
            assert guard._owner([header]) == guard.sender([header], None) == f"key {i}"
    # What is searched for is a digest: equal beginnings say nothing.
    assert all(len(digest) == 32 for digest in guard._owners)
    with pytest.raises(limits.Refusal):
        guard._owner([(b"authorization", b"Basic a")])


def test_hosts_and_origins(running: serving.InThread, model_path: Path) -> None:
    from powerinfer_cpp.server import Settings

    here = f"127.0.0.1:{running.port}"
    for host in ("127.0.0.1", here, "localhost:80", "a.localhost", "[::1]:8", "192.168.0.9"):
        assert running.get("health", headers={"host": host}).status_code == 200, host
    bad = (
        "evil.example",
        f"evil.example:{running.port}",
        "127.0.0.1.evil.example",
        "",
        "localhost.",
    )
    for host in bad:
        refused = running.get("health", headers={"host": host})
        assert refused.status_code == 403, host
        assert refused.json()["error"]["type"] == "permission_error"
    for origin in ("http://evil.example", "null", "http://localhost:1", f"https://{here}.evil"):
        headers = {"origin": origin}
        assert running.get("v1/models", headers=headers).status_code == 403, origin
        assert running.post("v1/completions", {"prompt": "x"}, headers=headers).status_code == 403
    same = running.get("v1/models", headers={"origin": f"http://{here}"})
    assert same.status_code == 200
    assert same.headers["access-control-allow-origin"] == f"http://{here}"
    assert same.headers["x-content-type-options"] == "nosniff"
    settings = Settings(hosts=("ai.example",), origins=("https://app.example",))
    with serving.in_thread(model_path, settings) as other:
        headers = {"host": "AI.example:443", "origin": "https://app.example"}
        assert other.get("v1/models", headers=headers).status_code == 200
        asked = {**headers, "access-control-request-method": "POST"}
        import httpx

        preflight = httpx.options(other.url + "v1/completions", headers=asked)
        assert preflight.status_code == 204
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        # Clients in browsers send headers of their own.
        own = "authorization,anthropic-beta,x-stainless-retry-count,openai-organization"
        asked["access-control-request-headers"] = own
        preflight = httpx.options(other.url + "v1/completions", headers=asked)
        assert preflight.headers["access-control-allow-headers"] == own
        assert "Access-Control-Request-Headers" in preflight.headers["vary"]
        asked["origin"] = "https://evil.example"
        preflight = httpx.options(other.url + "v1/completions", headers=asked)
        assert preflight.status_code == 403
        assert "access-control-allow-headers" not in preflight.headers
        with pytest.raises(openai.PermissionDeniedError):
            openai.OpenAI(
                base_url=other.url + "v1", api_key="x", default_headers={"host": "x.example"}
            ).models.list()
