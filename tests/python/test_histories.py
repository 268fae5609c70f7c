"""What becomes of each kind of part and item in a history, and of each kind of tool that is
offered, in all dialects."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import serving
from serving import openai

pytest.importorskip("msgspec")

from powerinfer_cpp.core.errors import RequestError  # noqa: E402
from powerinfer_cpp.server import errors  # noqa: E402
from powerinfer_cpp.server.dialects.histories import of_items, of_messages  # noqa: E402
from powerinfer_cpp.server.dialects.offered import Offered, choice_of  # noqa: E402
from powerinfer_cpp.server.dialects.parts import text_of  # noqa: E402
from powerinfer_cpp.server.errors import Refusal  # noqa: E402
from powerinfer_cpp.text.tools import ToolRequest  # noqa: E402


def b64(data: str | bytes) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def document(kind: str, **source: Any) -> dict[str, Any]:
    return {"type": "document", "source": {"type": kind, **source}}


# Parts, and what becomes of them in a history; what is True is refused in a question.
PARTS: dict[str, tuple[Any, str, bool]] = {
    "text": ({"type": "text", "text": "a "}, "a ", False),
    "refusal": ({"type": "refusal", "refusal": "No."}, "No.", False),
    "a string": ("a", "a", False),
    "image": ({"type": "image", "source": {"type": "url", "url": "x"}}, "[image omitted]", True),
    "image_url": ({"type": "image_url", "image_url": {"url": "x"}}, "[image omitted]", True),
    "input_image": ({"type": "input_image", "image_url": "x"}, "[image omitted]", True),
    "screenshot": ({"type": "computer_screenshot"}, "[image omitted]", True),
    "audio": ({"type": "input_audio", "input_audio": {"data": ""}}, "[audio omitted]", True),
    "spoken": ({"type": "output_audio", "transcript": "Hm"}, "Hm", False),
    "video": ({"type": "video_url", "video_url": {"url": "x"}}, "[video omitted]", True),
    "text document": (
        {**document("text", data="a\nb"), "title": "T", "context": "C"},
        "T\nC\na\nb",
        False,
    ),
    "document of parts": (document("content", content=[{"type": "text", "text": "a"}]), "a", False),
    "document in base64": (
        document("base64", media_type="text/csv", data=b64("a,é")),
        "a,é",
        False,
    ),
    "pdf": (
        document("base64", media_type="application/pdf", data=b64("%PDF-1.7")),
        "[document omitted]",
        True,
    ),
    "document elsewhere": (document("url", url="https://x"), "[document omitted]", True),
    "stored document": (document("file", file_id="f"), "[document omitted]", True),
    "a file's text": (
        {
            "type": "input_file",
            "filename": "a.md",
            "file_data": f"data:text/markdown;base64,{b64('#')}",
        },
        "a.md\n#",
        False,
    ),
    "a file of a chat": (
        {"type": "file", "file": {"filename": "b.json", "file_data": b64("{}")}},
        "b.json\n{}",
        False,
    ),
    "a file's bytes": (
        {"type": "file", "file": {"filename": "c", "file_data": b64(b"\xff\x00")}},
        "[document omitted]",
        True,
    ),
    "a stored file": ({"type": "input_file", "file_id": "f"}, "[document omitted]", True),
    "search result": (
        {
            "type": "search_result",
            "source": "https://x",
            "title": "T",
            "content": [{"type": "text", "text": "a"}],
        },
        "T\nhttps://x\na",
        False,
    ),
    "tool_reference": ({"type": "tool_reference", "tool_name": "f"}, "f", False),
    "tool_addition": (
        {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}},
        "",
        False,
    ),
    "container_upload": ({"type": "container_upload", "file_id": "f"}, "[file omitted]", False),
    "web results": (
        [{"type": "web_search_result", "title": "T", "url": "u", "encrypted_content": "x"}],
        "T\nu",
        False,
    ),
    "a fetched page": (
        {"type": "web_fetch_result", "url": "u", "content": document("text", data="a")},
        "u\na",
        False,
    ),
    "output of a program": (
        {
            "type": "code_execution_result",
            "stdout": "o",
            "stderr": "e",
            "return_code": 2,
            "content": [],
        },
        "o\ne\nexit code 2",
        False,
    ),
    "output of a shell": (
        {"stdout": "o", "stderr": "", "outcome": {"type": "exit", "exit_code": 1}},
        "o\nexit code 1",
        False,
    ),
    "changed lines": ({"type": "x_result", "lines": ["-a", "+b"]}, "-a\n+b", False),
    "found tools": (
        {
            "type": "tool_search_tool_search_result",
            "tool_references": [{"type": "tool_reference", "tool_name": n} for n in "fg"],
        },
        "f\ng",
        False,
    ),
    "an error": (
        {"type": "web_search_tool_result_error", "error_code": "unavailable"},
        "Error: unavailable",
        False,
    ),
    "a later kind with a text": ({"type": "poem", "text": "a"}, "a", False),
    "a later kind with parts": (
        {"type": "poem", "content": [{"type": "image"}, {"type": "text", "text": "a"}]},
        "[image omitted]\na",
        True,
    ),
    "a later kind without": ({"type": "hologram", "data": "x"}, "[hologram omitted]", True),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part(name: str) -> None:
    part, expected, refused = PARTS[name]
    assert text_of("content", part) == expected
    found = of_messages(
        [
            {"role": "user", "content": [part] if isinstance(part, dict) else part},
            {"role": "assistant", "content": "Hm"},
            {"role": "user", "content": "x"},
        ]
    )
    assert "".join(m["content"] for m in found.messages) == f"{expected}Hmx"
    result = {"type": "tool_result", "tool_use_id": "t", "content": part}
    (only,) = of_messages([{"role": "user", "content": [result]}]).messages
    assert only == {"role": "tool", "tool_call_id": "t", "content": expected}
    if refused:
        with pytest.raises(Refusal, match=r"messages\[1\].*the model of this server reads text"):
            of_messages([{"role": "assistant", "content": ""}, {"role": "user", "content": [part]}])
    else:
        text_of("content", part, asks=True)


def test_parts_run_on_but_for_those_that_stand_apart() -> None:
    image = {"type": "image"}
    said = [
        {"type": "text", "text": "See "},
        {"type": "text", "text": "it:"},
        image,
        "and\n",
        image,
    ]
    assert text_of("x", said) == "See it:\n[image omitted]\nand\n[image omitted]"
    for content, words in (
        (3, "x must be a text or a list"),
        ([3], r"x\[0\] must be a part"),
        ([{"type": "text"}], r"x\[0\]: text must be"),
        ([{"type": "text", "text": 3}], r"x\[0\]: text must be"),
        ([{"type": "refusal"}], "refusal must be"),
    ):
        with pytest.raises(Refusal, match=words):
            text_of("x", content)


def test_images_that_come_with_results_are_no_question() -> None:
    """Clients of chats send them as the user's, behind the results."""
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    said = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "below"},
    ]
    seen = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    assert of_messages([*said, seen]).messages[-1]["content"] == "[image omitted]"
    used = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "below"}
    messages = [
        {"role": "assistant", "content": [used]},
        {"role": "user", "content": [result, {"type": "image"}]},
    ]
    assert of_messages(messages).messages[-1]["content"] == "[image omitted]"
    output = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]}
    shown = {"role": "user", "content": [{"type": "input_image"}]}
    found = of_items([{"type": "function_call", "call_id": "c", "name": "f"}, output, shown])
    assert [m["content"] for m in found.messages[1:]] == ["[image omitted]"] * 2
    with pytest.raises(Refusal, match=r"input\[0\].content\[0\] is of type 'input_image'"):
        of_items([shown])


# ---- Messages ---------------------------------------------------------------------------------


def calls_of(message: dict[str, Any]) -> list[tuple[str, Any]]:
    functions = [call["function"] for call in message.get("tool_calls", ())]
    return [(function["name"], function["arguments"]) for function in functions]


def test_tools_of_a_hosted_service_are_calls_like_others() -> None:
    content = [
        {"type": "thinking", "thinking": "Search.", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "I look."},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "s1",
            "content": [{"type": "web_search_result", "title": "T", "url": "u"}],
        },
        {"type": "mcp_tool_use", "id": "m1", "name": "find", "server_name": "s", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "m1", "is_error": True, "content": "gone"},
        {"type": "compaction", "content": "So far: nothing."},
        {"type": "fallback", "to": {"model": "x"}},
        {"type": "text", "text": "It is so."},
    ]
    found = of_messages([{"role": "assistant", "content": content}]).messages
    assert [m["role"] for m in found] == ["assistant", "tool", "assistant", "tool", "assistant"]
    assert [m["content"] for m in found] == [
        "I look.",
        "T\nu",
        "",
        "Error: gone",
        "So far: nothing.\nIt is so.",
    ]
    assert found[0]["reasoning_content"] == "Search."
    assert calls_of(found[0]) == [("web_search", {"query": "q"})]
    assert calls_of(found[2]) == [("find", {})] and found[3]["tool_call_id"] == "m1"
    with pytest.raises(Refusal, match=r"content\[1\] is of type 'server_tool_use'"):
        of_messages([{"role": "user", "content": content[2:5]}])
    # The service was to go on with it.
    (only,) = of_messages([{"role": "assistant", "content": content[2:4]}]).messages
    assert only == {"role": "assistant", "content": "I look."}


def test_older_shapes_of_chats() -> None:
    found = of_messages(
        [
            {"role": "developer", "content": [{"type": "text", "text": "Be kind."}], "name": "n"},
            {
                "role": "assistant",
                "content": None,
                "function_call": {"name": "f", "arguments": "{"},
            },
            {"role": "function", "name": "f", "content": "x"},
            {"role": "assistant", "content": None, "refusal": "I will not."},
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "c", "type": "custom", "custom": {"name": "p", "input": "*"}}
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "y"}]},
            {"role": "tool", "tool_call_id": "c", "content": "z", "is_error": True},
        ]
    ).messages
    assert found[0] == {"role": "system", "content": "Be kind.", "name": "n"}
    assert calls_of(found[1]) == [("f", "{")] and found[2]["tool_call_id"] == "f"
    assert found[3]["content"] == "I will not." and calls_of(found[4]) == [("p", {"input": "*"})]
    assert [m["content"] for m in found[5:]] == ["y", "Error: z"]
    with pytest.raises(Refusal, match=r"messages\[0\].role must be"):
        of_messages([{"content": "x"}])


# ---- Items ------------------------------------------------------------------------------------

# Items, and the messages that they become: role, content, calls.
ITEMS: dict[str, tuple[dict[str, Any], list[tuple[str, str, list[tuple[str, Any]]]]]] = {
    "web_search_call": ({"id": "w", "status": "completed", "action": {"type": "search"}}, []),
    "image_generation_call": ({"id": "i", "result": "x"}, [("assistant", "[image omitted]", [])]),
    "file_search_call": (
        {"id": "f", "queries": ["q"], "results": [{"filename": "a", "text": "b"}]},
        [("assistant", "", [("file_search", {"queries": ["q"]})]), ("tool", "a\nb", [])],
    ),
    "code_interpreter_call": (
        {"id": "i", "code": "1", "outputs": [{"type": "logs", "logs": "2"}, {"type": "image"}]},
        [
            ("assistant", "", [("code_interpreter", {"code": "1"})]),
            ("tool", "2\n[image omitted]", []),
        ],
    ),
    "mcp_call": (
        {"id": "m", "name": "f", "server_label": "s", "arguments": "{}", "output": "x"},
        [("assistant", "", [("f", "{}")]), ("tool", "x", [])],
    ),
    "computer_call": (
        {"call_id": "c", "action": {"type": "wait"}},
        [("assistant", "", [("computer", {"type": "wait"})])],
    ),
    "computer_call_output": (
        {"call_id": "c", "output": {"type": "computer_screenshot", "image_url": "x"}},
        [("tool", "[image omitted]", [])],
    ),
    "local_shell_call": (
        {"call_id": "c", "action": {"command": ["ls"]}},
        [("assistant", "", [("local_shell", {"command": ["ls"]})])],
    ),
    "local_shell_call_output": ({"id": "c", "output": "a"}, [("tool", "a", [])]),
    "shell_call": (
        {"call_id": "c", "action": {"commands": ["ls"]}},
        [("assistant", "", [("shell", {"commands": ["ls"]})])],
    ),
    "shell_call_output": (
        {"call_id": "c", "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "timeout"}}]},
        [("tool", "a\nit took too long", [])],
    ),
    "apply_patch_call": (
        {"call_id": "c", "operation": {"type": "delete_file", "path": "a"}},
        [("assistant", "", [("apply_patch", {"type": "delete_file", "path": "a"})])],
    ),
    "apply_patch_call_output": (
        {"call_id": "c", "status": "failed", "output": "no file"},
        [("tool", "Error: no file", [])],
    ),
    "custom_tool_call": (
        {"call_id": "c", "name": "patch", "input": "*** Begin"},
        [("assistant", "", [("patch", {"input": "*** Begin"})])],
    ),
    "custom_tool_call_output": ({"call_id": "c", "output": "ok"}, [("tool", "ok", [])]),
    "tool_search_call": (
        {"call_id": "c", "execution": "client", "arguments": {"query": "q"}},
        [("assistant", "", [("tool_search", {"query": "q"})])],
    ),
    "tool_search_output": (
        {"call_id": "c", "tools": [{"type": "function", "name": "found"}]},
        [("tool", "found", [])],
    ),
    "function_call": (
        {"call_id": "c", "namespace": "mcp__s", "name": "f", "arguments": '{"a'},
        [("assistant", "", [("mcp__s__f", '{"a')])],
    ),
    "mcp_list_tools": ({"id": "l", "server_label": "s", "tools": []}, []),
    "mcp_approval_request": ({"id": "r", "name": "f", "arguments": "{}"}, []),
    "mcp_approval_response": ({"approval_request_id": "r", "approve": True}, []),
    "item_reference": ({"id": "x"}, []),
    "compaction": ({"encrypted_content": "x"}, []),
    "compaction_trigger": ({}, []),
    "ghost_snapshot": ({"ghost_commit": {"id": "x"}}, []),
    "additional_tools": ({"role": "developer", "tools": [{"type": "function", "name": "g"}]}, []),
    "configuration_update": ({"reasoning": {"effort": "low"}}, []),
    "later_search_call": ({"id": "x", "action": {}}, []),
    "later_call": ({"call_id": "c", "input": {"a": 1}}, [("assistant", "", [("later", {"a": 1})])]),
    "later_call_output": ({"call_id": "c", "output": "x"}, [("tool", "x", [])]),
    "later_message": ({"content": [{"type": "later_text", "text": "x"}]}, [("assistant", "x", [])]),
}


@pytest.mark.parametrize("kind", ITEMS)
def test_an_item(kind: str) -> None:
    item, expected = ITEMS[kind]
    said = [
        {"role": "user", "content": "Hi"},
        {"type": kind, **item},
        {"role": "user", "content": "x"},
    ]
    history = of_items(said)
    found = history.messages[1:-1]
    assert [(m["role"], m["content"], calls_of(m)) for m in found] == expected
    assert [m["tool_call_id"] for m in found if m["role"] == "tool"] == [
        item.get("call_id", item.get("id")) for m in found if m["role"] == "tool"
    ]
    assert [tool["name"] for tool in history.tools] == [t["name"] for t in item.get("tools", ())]


def test_items_that_change_what_is_asked_are_refused() -> None:
    for item, words in (
        ({"role": "critic", "content": "x"}, r"input\[0\].role must be"),
        ({"type": "function_call", "call_id": "c"}, r"input\[0\]: name must be"),
        (
            {"type": "configuration_update", "text": {"format": {"type": "json_object"}}},
            r"input\[0\].text is not supported",
        ),
    ):
        with pytest.raises(Refusal, match=words):
            of_items([item])


def test_thoughts_and_calls_belong_to_what_was_said() -> None:
    def thought(text: str) -> dict[str, Any]:
        return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}

    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    items = [
        thought("a"),
        {"role": "assistant", "content": "One."},
        thought("b"),
        call,
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        thought("c"),
        call,
        {"type": "reasoning", "encrypted_content": "x", "summary": []},
        {"role": "assistant", "content": "Two."},
    ]
    found = of_items(items, "Be kind.").messages
    assert [m["role"] for m in found] == ["system", "assistant", "tool", "assistant", "assistant"]
    assert found[1]["reasoning_content"] == "a\nb" and calls_of(found[1]) == [("f", "{}")]
    assert found[3]["reasoning_content"] == "c" and found[4]["content"] == "Two."
    system = [{"role": "developer", "content": "And short."}, {"role": "system", "content": ""}]
    assert of_items(system, "Be kind.").messages[0]["content"] == "Be kind.\n\nAnd short."


@pytest.mark.xdist_group("timed")
def test_long_histories_are_read_in_linear_time() -> None:
    n = 5_000
    text, image = {"type": "text", "text": "x"}, {"type": "image"}
    thought = {"type": "reasoning", "content": [text]}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    start = time.process_time()
    of_items([thought, call] * n).messages  # noqa: B018
    of_items([{"type": "additional_tools", "tools": [{"type": "x"}]}] * n).messages  # noqa: B018
    said = [{"role": "user", "content": [text, image] * n}, {"role": "assistant", "content": "x"}]
    assert len(of_messages(said).messages[0]["content"]) == 18 * n - 1
    of_messages([{"role": "assistant", "content": [call, text]}] * n).messages  # noqa: B018
    tools = [{"type": "function", "name": f"f{i % 10}"} for i in range(n)]
    assert len(Offered.of([], tools).tools) == 10
    assert time.process_time() - start < 5  # it takes a tenth of a second


# ---- Tools ------------------------------------------------------------------------------------

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
