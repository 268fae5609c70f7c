"""What other dialects than OpenAI's chats refuse, and how their requests end early."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving
from powerinfer_cpp.core.errors import RequestError
from powerinfer_cpp.server.served import ServedModel
from serving import openai
from test_dialects import ADD, ASK, TOOL, anthropic, user
from test_dialects import running as running  # a fixture

BAD_MESSAGES: dict[str, tuple[dict[str, Any], str]] = {
    "no max_tokens": ({"max_tokens": None}, "max_tokens"),
    "max_tokens 0": ({"max_tokens": 0}, "max_tokens must be at least 1"),
    "no messages": ({"messages": []}, "at least one message"),
    "role": ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    "a call last": (
        {
            "messages": [
                *user(),
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "x", "name": "f", "input": {}}],
                },
            ]
        },
        "its results must follow",
    ),
    "a beginning of a forced call": (
        {
            "messages": [*user(), {"role": "assistant", "content": "A"}],
            "tools": [TOOL],
            "tool_choice": {"type": "any"},
        },
        "another beginning",
    ),
    "negative temperature": ({"temperature": -3}, "temperature"),
    "image": (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        "messages[0].content[0] is of type 'image'",
    ),
    "tool_use of the user": (
        {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "x"}]}]},
        "is of type 'tool_use'",
    ),
    "text without text": (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0]: ",
    ),
    "hosted tool": (
        {"tools": [{"type": "web_search_20250305", "name": "w"}], "tool_choice": {"type": "any"}},
        "no tools",
    ),
    "tool without a name": ({"tools": [{"input_schema": ADD}]}, "tools[0].function.name"),
    "unknown tool": ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "'x'"),
    "unknown choice": ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "'some'"),
    "any without tools": ({"tool_choice": {"type": "any"}}, "no tools"),
    "schema": ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
    "stops": ({"stop_sequences": ["x"] * 1000}, "stop_sequences"),
    "template": ({"chat_template": "x"}, "chat_template"),
    "template options": ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    "too long": ({"messages": user("word " * 2000)}, "context"),
    "temperature": ({"temperature": "hot"}, "temperature"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", BAD_MESSAGES)
def test_bad_messages(running: serving.InThread, name: str, stream: bool) -> None:
    changes, words = BAD_MESSAGES[name]
    body = {"model": "x", "max_tokens": 4, "messages": user(), "stream": stream, **changes}
    found = running.post("v1/messages", body)
    assert found.status_code == 400, found.text
    told = found.json()
    assert told["type"] == "error" and told["error"]["type"] == "invalid_request_error"
    assert words in told["error"]["message"]


BAD_RESPONSES: dict[str, tuple[dict[str, Any], str]] = {
    "no input": ({"input": None}, "input"),
    "empty input": ({"input": []}, "at least one message"),
    "state": ({"previous_response_id": "resp_1"}, "previous_response_id"),
    "conversation": ({"conversation": "conv_1"}, "conversation"),
    "background": ({"background": True}, "background"),
    "nothing but a reference": (
        {"input": [{"type": "item_reference", "id": "x"}]},
        "at least one message",
    ),
    "image": (
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "input[0].content[0] is of type 'input_image'",
    ),
    "role": ({"input": [{"role": "critic", "content": "x"}]}, "input[0]"),
    "call without name": ({"input": [{"type": "function_call", "call_id": "x"}]}, "input[0]"),
    "choice": ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
    "required without tools": ({"tool_choice": "required", "tools": []}, "no tools"),
    "format": ({"text": {"format": {"type": "xml"}}}, "text.format"),
    "schema": ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
    "max_output_tokens": ({"max_output_tokens": 0}, "max_output_tokens"),
    "template": ({"chat_template": "x"}, "chat_template"),
    "temperature": ({"temperature": -0.5}, "temperature"),
    "top_p": ({"top_p": 1.5}, "top_p"),
    "too long": ({"input": "word " * 2000}, "context"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", BAD_RESPONSES)
def test_bad_responses(running: serving.InThread, name: str, stream: bool) -> None:
    changes, words = BAD_RESPONSES[name]
    body = {"model": "x", "input": ASK, "stream": stream, **changes}
    found = running.post("v1/responses", body)
    assert found.status_code == 400, found.text
    told = found.json()["error"]
    assert told["type"] == "invalid_request_error" and words in told["message"]


def test_clients_raise_what_they_should(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens must be"):
        claude.messages.create(model="x", max_tokens=0, messages=user())
    with pytest.raises(anthropic.BadRequestError, match="chat_template"):
        claude.messages.count_tokens(model="x", messages=user(), extra_body={"chat_template": "x"})
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(model="x", input=ASK, previous_response_id="resp_1")


def test_an_error_in_the_middle(
    claude: anthropic.Anthropic,
    client: openai.OpenAI,
    running: serving.InThread,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = running.model

    class Break:
        """A logits processor that fails at a later token."""

        n = 0
        failure: ValueError

        def __call__(self, _ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
            self.n += 1
            if self.n == 200:
                raise self.failure
            scores[of.model.eos] = -np.inf
            return scores

    original = ServedModel.request

    def request(self: ServedModel, prompt: Any, **options: Any) -> Any:
        return replace(original(self, prompt, **options), processors=Break)

    monkeypatch.setattr(ServedModel, "request", request)
    asked: dict[str, Any] = {"model": "x", "max_tokens": 300, "messages": user()}
    for failure, words, of_claude, of_openai in (
        (
            RequestError("this went wrong"),
            "this went wrong",
            anthropic.BadRequestError,
            openai.BadRequestError,
        ),
        # Of the server's own faults a client is told the kind only.
        (
            ValueError("/a/secret/path"),
            r"the server failed \(ValueError\)",
            anthropic.InternalServerError,
            openai.InternalServerError,
        ),
    ):
        Break.failure = failure
        with (
            pytest.raises(anthropic.APIStatusError, match=words),
            claude.messages.stream(**asked) as stream,
        ):
            stream.get_final_message()
        with pytest.raises(of_claude, match=words):
            claude.messages.create(**asked)
        last = list(client.responses.create(model="x", input=ASK, stream=True))[-1]
        assert last.type == "response.failed" and re.search(words, last.response.error.message)
        with pytest.raises(of_openai, match=words):
            client.responses.create(model="x", input=ASK)


def test_keys(model_path: Path) -> None:
    from powerinfer_cpp.server.settings import Settings

    with serving.in_thread(model_path, Settings(api_keys=("secret",))) as running:
        body = {"model": "x", "max_tokens": 2, "messages": user()}
        refused = running.post("v1/messages", body)
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "authentication_error"
        known = anthropic.Anthropic(base_url=running.url, api_key="secret", max_retries=0)
        assert known.messages.create(**body).content


@pytest.mark.parametrize("path", ["v1/messages", "v1/responses"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_ends_when_the_client_goes_away(running: serving.InThread, path: str, stream: bool) -> None:
    # It never ends by itself: no token ends a text that has to go on.
    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 5000}}}
    wanted = {"type": "json_schema", "name": "x", "schema": {**schema, "required": ["a"]}}
    said = {"messages": user(), "max_tokens": 900, "output_config": {"format": wanted}}
    if path == "v1/responses":
        said = {"input": ASK, "max_output_tokens": 900, "text": {"format": wanted}}
    connection = running.ask(path, {"model": "x", "stream": stream, **said})
    serving.wait_for(lambda: not running.idle)
    before = running.model.scheduler.done.n_requests
    connection.close()
    serving.wait_for(lambda: running.idle)
    assert running.model.scheduler.done.n_requests == before  # it was cancelled
