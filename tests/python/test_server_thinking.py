"""Models that think, in all dialects of the server, with real clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import serving
import tiny
from powerinfer_cpp.server.served import ServedModel
from serving import later, openai
from test_thinking import INSIDE, QWEN

anthropic = later("anthropic")

ASK = [{"role": "user", "content": "Why?"}]
SAID = "<think>\nHm. So.\n</think>\n\nYes."
ADD = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALL = '<think>\nHm.\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
Says = Callable[[str], None]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("thinking")
    return {
        name: tiny.make(folder / name, source)
        for name, source in (("closed", QWEN), ("opened", INSIDE))
    }


@pytest.fixture(scope="module")
def running(paths: dict[str, Path]) -> Iterator[serving.InThread]:
    with serving.in_thread(paths["closed"], n_ctx=1024, n_parallel=2) as found:
        yield found


@pytest.fixture(scope="module")
def opened(paths: dict[str, Path]) -> Iterator[serving.InThread]:
    with serving.in_thread(paths["opened"], n_ctx=1024, n_parallel=2) as found:
        yield found


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prompts that the model gets."""
    seen: list[str] = []
    original = ServedModel.request

    def request(self: ServedModel, prompt: Any, **options: Any) -> Any:
        seen.append(prompt)
        return original(self, prompt, **options)

    monkeypatch.setattr(ServedModel, "request", request)
    return seen


# ---- Answers ----


def test_chats(client: openai.OpenAI, says: Says) -> None:
    says(SAID)
    asked = {"model": "x", "messages": ASK, "max_tokens": 200}
    made = client.chat.completions.create(**asked)
    whole, details = made.choices[0].message, made.usage.completion_tokens_details
    assert details.reasoning_tokens == len("Hm. So.")  # a token is a byte here
    usage = {"stream_options": {"include_usage": True}}
    *_, last = client.chat.completions.create(stream=True, **usage, **asked)
    assert last.usage.completion_tokens_details == details
    assert (whole.content, whole.reasoning_content) == ("Yes.", "Hm. So.")
    streamed = {"content": "", "reasoning_content": ""}
    order = []
    for chunk in client.chat.completions.create(stream=True, **asked):
        delta = chunk.choices[0].delta.to_dict()
        for key in streamed:
            if delta.get(key):
                streamed[key] += delta[key]
                order.append(key)
    assert streamed == {"content": "Yes.", "reasoning_content": "Hm. So."}
    assert order == sorted(order, reverse=True)  # thoughts come first
    several = client.chat.completions.create(**asked, n=2)
    assert [c.message.reasoning_content for c in several.choices] == ["Hm. So."] * 2
    raw = client.chat.completions.create(**asked, extra_body={"reasoning_format": "none"})
    assert raw.choices[0].message.content == SAID


def test_messages(claude: anthropic.Anthropic, says: Says) -> None:
    says(SAID)
    asked = {"model": "x", "messages": ASK, "max_tokens": 200}
    whole = claude.messages.create(**asked)
    thought, text = whole.content
    assert (thought.type, thought.thinking) == ("thinking", "Hm. So.") and thought.signature
    assert (text.type, text.text) == ("text", "Yes.") and whole.stop_reason == "end_turn"
    events = list(claude.messages.create(stream=True, **asked))
    kinds = [e.delta.type for e in events if e.type == "content_block_delta"]
    with claude.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    assert "thinking_delta" in kinds and "signature_delta" in kinds
    blocks = [
        [block.to_dict(exclude_none=True) for block in each.content] for each in (streamed, whole)
    ]
    assert blocks[0] == blocks[1]
    cut = claude.messages.create(**{**asked, "max_tokens": 12})
    assert [block.type for block in cut.content] == ["thinking"] and cut.stop_reason == "max_tokens"
    says(CALL)
    tool = {"name": "add", "description": "Adds.", "input_schema": ADD}
    called = claude.messages.create(**asked, tools=[tool])
    assert [block.type for block in called.content] == ["thinking", "tool_use"]


def test_responses(client: openai.OpenAI, says: Says) -> None:
    says(SAID)
    asked = {"model": "x", "input": "Why?", "max_output_tokens": 200}
    whole = client.responses.create(**asked)
    thought, message = whole.output
    assert thought.type == "reasoning" and thought.status == "completed"
    assert [part.text for part in thought.content] == ["Hm. So."]
    assert message.content[0].text == whole.output_text == "Yes."
    details = whole.usage.output_tokens_details
    assert details.reasoning_tokens == len("Hm. So.")  # a token is a byte here
    events = list(client.responses.create(stream=True, **asked))
    deltas = [e.delta for e in events if e.type == "response.reasoning_text.delta"]
    assert "".join(deltas) == "Hm. So." and len(deltas) >= 1
    (done,) = [e for e in events if e.type == "response.reasoning_text.done"]
    assert done.text == "Hm. So." and done.output_index == 0
    last = events[-1].response
    assert [item.type for item in last.output] == ["reasoning", "message"]
    assert last.output[0].content == thought.content and last.usage == whole.usage
    cut = client.responses.create(**{**asked, "max_output_tokens": 12})
    assert [item.status for item in cut.output] == ["incomplete"]


# ---- What is asked for ----


def test_earlier_thoughts_reach_the_template(
    client: openai.OpenAI, claude: anthropic.Anthropic, prompts: list[str]
) -> None:
    """In each dialect's words; the template writes those of a last message."""
    begun = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    for messages in (
        [*ASK, begun],
        [*ASK, {**begun, "reasoning_content": None, "reasoning": "Hm."}],
    ):
        client.chat.completions.create(model="x", messages=messages, max_tokens=1)
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "Yes."},
    ]
    said = [*ASK, {"role": "assistant", "content": blocks}]
    claude.messages.create(model="x", messages=said, max_tokens=1)
    content = [{"type": "reasoning_text", "text": "Hm."}]
    summary = [{"type": "summary_text", "text": "Hm."}]
    for thought in ({"content": content, "summary": []}, {"summary": summary}):
        items = [
            *ASK,
            {"type": "reasoning", "id": "rs_1", **thought},
            {"role": "assistant", "content": "Yes."},
        ]
        client.responses.create(model="x", input=items, max_output_tokens=1)
    assert len(prompts) == 5 and len(set(prompts)) == 1
    assert prompts[0].endswith("assistant\n<think>\nHm.\n</think>\n\nYes.")


def test_thoughts_before_a_call(client: openai.OpenAI, prompts: list[str]) -> None:
    items = [
        *ASK,
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
        },
        {"type": "function_call", "call_id": "a", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "3"},
    ]
    client.responses.create(model="x", input=items, max_output_tokens=1)
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "3"},
    ]
    client.chat.completions.create(model="x", messages=messages, max_tokens=1)
    assert prompts[0] == prompts[1]


def test_thoughts_are_turned_off_in_every_dialect(
    client: openai.OpenAI, claude: anthropic.Anthropic, prompts: list[str]
) -> None:
    chats: list[dict[str, Any]] = [
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
        {"extra_body": {"enable_thinking": False}},
        {"extra_body": {"reasoning_budget": 0}},
        {"extra_body": {"thinking_budget_tokens": 0}},
        {"reasoning_effort": "none"},
    ]
    for more in chats:
        client.chat.completions.create(model="x", messages=ASK, max_tokens=1, **more)
    claude.messages.create(model="x", messages=ASK, max_tokens=1, thinking={"type": "disabled"})
    client.responses.create(
        model="x", input="Why?", max_output_tokens=1, reasoning={"effort": "none"}
    )
    assert len(set(prompts)) == 1 and prompts[0].endswith("<think>\n\n</think>\n\n")
    prompts.clear()
    for thinking in ({"type": "adaptive"}, {"type": "enabled", "budget_tokens": 2000}):
        claude.messages.create(model="x", messages=ASK, max_tokens=1, thinking=thinking)
    assert all(prompt.endswith("assistant\n") for prompt in prompts)


def test_a_budget(opened: serving.InThread) -> None:
    body = {"messages": ASK, "max_tokens": 60, "logit_bias": {"2": -100}, "seed": 3}
    without = opened.post("v1/chat/completions", body).json()["choices"][0]["message"]
    assert without["content"] == "" and len(without["reasoning_content"]) > 30
    for more in ({"reasoning_budget": 9}, {"thinking_budget_tokens": 9}):
        found = opened.post("v1/chat/completions", {**body, **more}).json()["choices"][0]
        message = found["message"]
        assert without["reasoning_content"].startswith(message["reasoning_content"])
        assert message["content"] and found["finish_reason"] == "length"
    asked = {"messages": ASK, "max_tokens": 60, "seed": 3, "temperature": 2}
    budget = {"thinking": {"type": "enabled", "budget_tokens": 9}}
    blocks = opened.post("v1/messages", {**asked, **budget}).json()["content"]
    assert blocks[0]["type"] == "thinking" and len(blocks[0]["thinking"]) <= 60


def test_a_forced_call_follows_thoughts(opened: serving.InThread) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": ADD}}]
    body = {"messages": ASK, "max_tokens": 300, "seed": 3, "reasoning_budget": 9}
    forced = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    found = opened.post("v1/chat/completions", {**body, **forced}).json()["choices"][0]
    assert found["message"]["reasoning_content"] and found["message"]["tool_calls"]
    assert found["finish_reason"] == "tool_calls"
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": ADD}}
    found = opened.post("v1/chat/completions", {**body, "response_format": schema}).json()
    message = found["choices"][0]["message"]
    assert message["reasoning_content"] and '"a"' in message["content"]


def test_a_begun_answer(running: serving.InThread, prompts: list[str]) -> None:
    begun = [*ASK, {"role": "assistant", "content": "Because"}]
    for more in ({}, {"continue_final_message": True, "add_generation_prompt": False}):
        body = {"messages": begun, "max_tokens": 2, **more}
        assert running.post("v1/chat/completions", body).status_code == 200
        shown = running.post("apply-template", {"messages": begun, **more}).json()["prompt"]
        assert shown == prompts.pop() and shown.endswith("assistant\nBecause")
    body = {"messages": begun, "continue_final_message": False}
    shown = running.post("apply-template", body).json()["prompt"]
    assert shown.endswith("Because<|im_end|>\n<|im_start|>assistant\n")
    body = {"messages": ASK, "add_generation_prompt": False}
    assert running.post("apply-template", body).json()["prompt"].endswith("Why?<|im_end|>\n")


BAD = (
    ({"chat_template_kwargs": 3}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking"),
    ({"enable_thinking": "no"}, "enable_thinking"),
    ({"reasoning_budget": "x"}, "reasoning_budget"),
    ({"reasoning_budget": -7}, "reasoning_budget"),
    ({"thinking_budget_tokens": 1.5}, "thinking_budget_tokens"),
    ({"reasoning_effort": "much"}, "reasoning_effort"),
    ({"reasoning_format": "xml"}, "reasoning_format"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"chat_template": "x"}, "chat_template"),
)


@pytest.mark.parametrize(("fields", "name"), BAD)
def test_what_cannot_be_asked_for(
    running: serving.InThread, fields: dict[str, Any], name: str
) -> None:
    for path in ("v1/chat/completions", "v1/messages", "v1/responses", "apply-template"):
        asked = {"input": "Why?"} if path == "v1/responses" else {"messages": ASK}
        if path == "v1/messages":
            asked["max_tokens"] = 1
        error = serving.refused(running.post(path, {**asked, **fields}))
        assert name in error["message"] or error.get("param") == name, error


def test_names_that_are_those_of_the_code(running: serving.InThread) -> None:
    names = (
        "request",
        "functions",
        "tool_choice",
        "more",
        "names",
        "source",
        "begins",
        "environment",
    )
    for name in (*names, "a b", "", "__class__", "loop", "range"):
        body = {"messages": ASK, "chat_template_kwargs": {name: 1}}
        assert running.post("apply-template", body).status_code == 200, name
    body = {"messages": ASK, "chat_template_kwargs": {"self": 1}}
    serving.refused(running.post("apply-template", body))


def test_what_the_dialects_cannot_ask_for(running: serving.InThread) -> None:
    for thinking in ({"type": "odd"}, {"type": "enabled", "budget_tokens": 0}, 3):
        body = {"messages": ASK, "max_tokens": 1, "thinking": thinking}
        assert "thinking" in serving.refused(running.post("v1/messages", body))["message"]
    body = {"messages": ASK, "max_tokens": 1, "output_config": {"effort": "much"}}
    assert "effort" in serving.refused(running.post("v1/messages", body))["message"]
    for reasoning in ({"effort": 3}, {"effort": "much"}, 3):
        body = {"input": "Why?", "reasoning": reasoning}
        assert (
            "effort" in str(serving.refused(running.post("v1/responses", body))) or reasoning == 3
        )


def test_what_the_page_asks_first(running: serving.InThread, opened: serving.InThread) -> None:
    """Does a chat think that does not say so? Here the model decides, there the prompt does."""
    for found in (running, opened):
        assert found.get("props").json()["enable_thinking"] is True


# ---- The command ----


def test_options_of_the_command(paths: dict[str, Path]) -> None:
    off = '{"enable_thinking": false}'
    line = [paths["closed"], "-c", "256", "--chat-template-kwargs", off]
    with serving.program(*line, "--reasoning-format", "none") as found:
        shown = found.post("apply-template", {"messages": ASK}).json()["prompt"]
        assert shown.endswith("<think>\n\n</think>\n\n")
        assert found.get("props").json()["enable_thinking"] is False
        body = {"messages": ASK, "enable_thinking": True}
        shown = found.post("apply-template", body).json()["prompt"]
        assert shown.endswith("assistant\n")
