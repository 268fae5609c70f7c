"""Tools that requests of all dialects offer, which of them may be called, and how calls of custom
tools are answered."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import serving
from powerinfer_cpp.core.errors import RequestError
from powerinfer_cpp.server import errors
from powerinfer_cpp.server.dialects.offered import Offered, choice_of
from powerinfer_cpp.server.errors import Refusal
from powerinfer_cpp.text.tools import ToolRequest
from serving import openai

GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "*"'}


def test_tools_of_all_dialects() -> None:
    custom = {"name": "patch", "description": "Patches.", "format": GRAMMAR}
    nested = {**custom, "format": {"type": "grammar", "grammar": GRAMMAR}}
    for tool in ({"type": "custom", **custom}, {"type": "custom", "custom": nested}):
        found = Offered.of([tool])
        (patch,) = found.tools
        assert (patch.name, patch.description, found.custom) == ("patch", "Patches.", {"patch"})
        (given,) = patch.parameters["properties"].values()
        assert given["type"] == "string" and 'lark):\nstart: "*"' in given["description"]
    function = {"name": "f", "description": "F.", "parameters": {"type": "object"}}
    for tool in ({"type": "function", **function}, {"type": "function", "function": function}):
        assert Offered.of([tool]).tools[0].as_dict() == {"type": "function", "function": function}
    mine = {"name": "f", "input_schema": {"type": "object"}, "description": "F."}
    for tool in (mine, {**mine, "type": "custom", "defer_loading": True}):
        found = Offered.of([tool], anthropic=True)
        assert found.tools[0].as_dict()["function"] == function and not found.custom
    space = {"type": "namespace", "name": "mcp__s__", "tools": [{"type": "function", "name": "f"}]}
    found = Offered.of([space])
    assert [tool.name for tool in found.tools] == ["mcp__s__f"]
    assert found.spaces == {"mcp__s__f": ("mcp__s__", "f")}
    added = Offered.of(
        [{"type": "function", "name": "f", "description": "Old."}],
        [{"type": "function", "name": "f", "description": "New."}],
    )
    assert [tool.description for tool in added.tools] == ["New."]


def test_tools_of_others_are_left_out_with_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "_left_out", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            kinds = ("web_search", "mcp", "image_generation", "apply_patch", "\x1b[31m")
            assert Offered.of([{"type": kind} for kind in kinds]).tools == []
            kinds = ("bash_20250124", "mcp_toolset", "text_editor_20250728")
            assert Offered.of([{"type": kind} for kind in kinds], anthropic=True).tools == []
    assert len(caplog.records) == 8 and "'web_search'" in caplog.text and "\x1b" not in caplog.text
    for i in range(200):  # nobody fills the log
        errors.left_out(f"x{i}")
    assert len(caplog.records) == 100


def test_tools_that_are_wrong() -> None:
    for tool, words in (
        (3, r"tools\[0\] must be an object"),
        ({"type": "function"}, r"tools\[0\].function.name"),
        ({"type": "function", "function": 3}, r"tools\[0\].function must be"),
        ({}, r"tools\[0\].function must be"),
        ({"type": "function", "name": "a b"}, "function.name must be 1 to 128"),
        ({"type": "custom", "name": ""}, r"tools\[0\].function.name"),
        ({"type": "namespace", "name": "s", "tools": [{"type": "function"}]}, r"\.tools\[0\]"),
    ):
        with pytest.raises((Refusal, RequestError), match=words):
            Offered.of([tool])
    twice = Offered.of([{"type": "function", "name": "f"}] * 2)
    with pytest.raises(ValueError, match="'f' a second time"):
        ToolRequest.of(twice.tools)


def test_choices_of_all_dialects() -> None:
    tools = Offered.of([{"type": "function", "name": n} for n in ("f", "g")])
    named = {"type": "function", "name": "f"}
    for choice, names, forced in (
        (named, {"f"}, True),
        ({"type": "function", "function": {"name": "g"}}, {"g"}, True),
        ({"type": "custom", "name": "g"}, {"g"}, True),
        ({"type": "custom", "custom": {"name": "g"}}, {"g"}, True),
        ({"type": "allowed_tools", "mode": "auto", "tools": [named]}, {"f"}, False),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [named, {"type": "mcp"}]},
            {"f"},
            True,
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "g"}}],
                },
            },
            {"g"},
            False,
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]},
            set(),
            False,
        ),
        ("required", {"f", "g"}, True),
        (None, {"f", "g"}, False),
    ):
        found = ToolRequest.of(tools.tools, choice_of(choice))
        assert found is not None and (found.names, found.forced) == (names, forced)
        assert len(found.tools) == 2  # all of them are described
    for choice in (
        {"type": "web_search"},
        {"type": "function"},
        {"type": "function", "name": "h"},
        {"type": "allowed_tools"},
        {"type": "allowed_tools", "mode": "some", "tools": [named]},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "h"}]},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp"}]},
        3,
    ):
        with pytest.raises(ValueError, match="tool_choice"):
            ToolRequest.of(tools.tools, choice_of(choice))


# ---- Answers ----------------------------------------------------------------------------------

INPUT = '*** Begin "Patch"\n+\u00e9\\'
WRITTEN = (
    "Well.\n<tool_call>\n"
    + json.dumps({"name": "patch", "arguments": {"input": INPUT}})
    + '\n</tool_call>\n<tool_call>\n{"name": "mcp__s__f", "arguments": {"a": 1}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def running(model_path: Path) -> Iterator[serving.InThread]:
    with serving.in_thread(model_path, n_ctx=1024, chat_format="chatml") as found:
        yield found


def test_calls_of_custom_tools_are_answered_as_such(
    client: openai.OpenAI, says: Callable[[str], None]
) -> None:
    says(WRITTEN)
    space = {
        "type": "namespace",
        "name": "mcp__s",
        "description": "",
        "tools": [
            {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
        ],
    }
    asked: dict[str, Any] = {
        "model": "x",
        "input": "Go",
        "max_output_tokens": 500,
        "tools": [{"type": "custom", "name": "patch"}, space],
    }
    whole = client.responses.create(**asked)
    events = list(client.responses.create(stream=True, **asked))
    for output in (whole.output, events[-1].response.output):
        _, patch, call = output
        assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "patch", INPUT)
        assert (call.type, call.name, call.arguments) == ("function_call", "f", '{"a": 1}')
        assert call.namespace == "mcp__s"
    told = {event.type: event for event in events if "custom_tool_call_input" in event.type}
    assert told["response.custom_tool_call_input.delta"].delta == INPUT
    assert told["response.custom_tool_call_input.done"].input == INPUT
    # What was answered can be sent back.
    items = [item.to_dict() for item in whole.output]
    results = [
        {"type": "custom_tool_call_output", "call_id": whole.output[1].call_id, "output": "ok"}
    ]
    client.responses.create(**{**asked, "input": [*items, *results], "max_output_tokens": 16})


def test_calls_of_custom_tools_in_chats(client: openai.OpenAI, says: Callable[[str], None]) -> None:
    says(WRITTEN)
    asked: dict[str, Any] = {
        "model": "x",
        "messages": [{"role": "user", "content": "Go"}],
        "tools": [
            {"type": "custom", "custom": {"name": "patch"}},
            {"type": "function", "function": {"name": "mcp__s__f"}},
        ],
    }
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.finish_reason == "tool_calls"
    patch, call = whole.message.tool_calls
    assert (patch.type, patch.custom.name, patch.custom.input) == ("custom", "patch", INPUT)
    assert call.function.arguments == '{"a": 1}'
    streamed = ""
    for chunk in client.chat.completions.create(stream=True, **asked):
        for part in chunk.choices[0].delta.tool_calls or ():
            streamed += part.to_dict().get("custom", {}).get("input", "")
    assert streamed == INPUT
    said = [
        *asked["messages"],
        whole.message.to_dict(),
        {"role": "tool", "tool_call_id": patch.id, "content": "ok"},
    ]
    client.chat.completions.create(**{**asked, "messages": said, "max_tokens": 1})


def test_limits_that_are_none_are_refused(running: serving.InThread) -> None:
    for name in ("max_completion_tokens", "max_tokens", "n_predict"):
        body = {"messages": [{"role": "user", "content": "Hi"}], name: -5}
        assert name in serving.refused(running.post("v1/chat/completions", body))["message"]
