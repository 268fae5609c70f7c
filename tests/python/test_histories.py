"""What becomes of each kind of part and item in a history, in all dialects."""

from __future__ import annotations

import base64
import contextlib
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("msgspec")

from powerinfer_cpp.core.errors import RequestError  # noqa: E402
from powerinfer_cpp.server.dialects.histories import of_items, of_messages  # noqa: E402
from powerinfer_cpp.server.dialects.offered import Offered, choice_of  # noqa: E402
from powerinfer_cpp.server.dialects.parts import text_of  # noqa: E402
from powerinfer_cpp.server.errors import Refusal  # noqa: E402
from powerinfer_cpp.text.chat import check_messages  # noqa: E402
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
    "what a tool gave": ({"title": "T", "n": [1]}, '{"title": "T", "n": [1]}', False),
    "what a tool gave as its content": ({"content": "x", "success": True}, "x", False),
    "a resource": (
        {"type": "resource", "resource": {"uri": "u", "text": "x"}},
        "x",
        False,
    ),
    "a resource of bytes": (
        {"type": "resource", "resource": {"uri": "u", "blob": "AA=="}},
        "[file omitted]",
        True,
    ),
    "an encrypted summary": ({"type": "compaction", "encrypted_content": "x"}, "", False),
    "a result without a word": ({"type": "x_create_result", "is_file_update": True}, "", False),
    "a made file": ({"type": "x_output", "file_id": "f"}, "[file omitted]", True),
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
        asked = [{"role": "assistant", "content": ""}, {"role": "user", "content": [part]}]
        with pytest.raises(Refusal, match=r"messages\[1\].*the model of this server reads text"):
            of_messages(asked)
        assert of_messages(asked, omits=True).messages[-1]["content"] == expected
        with pytest.raises(Refusal, match=r"input\[1\].*--omit-media"):
            of_items(asked)
        assert of_items(asked, omits=True).messages[-1]["content"] == expected
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
    "configuration_update": (
        {"reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}},
        [],
    ),
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
        ({"type": "function_call_output", "output": 3}, r"input\[0\].output must be a text"),
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
    tools = {"type": "additional_tools", "role": "developer", "tools": [{"name": "f"}]}
    found = of_items([*system, tools, *system], "Be kind.")
    assert [m["content"] for m in found.messages] == ["Be kind.\n\nAnd short.", "And short.", ""]
    assert found.tools == [{"name": "f"}]


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


KINDS = [*ITEMS, "text", "image", "document", "file", "tool_use", "tool_result", "thinking", "x"]
FIELDS = [
    *("type", "role", "content", "text", "source", "file", "output", "tools", "tool", "name"),
    *("id", "call_id", "tool_use_id", "arguments", "input", "action", "results", "error", "status"),
    *("title", "lines", "return_code", "exit_code", "data", "file_data", "summary", "namespace"),
    *("custom", "format", "function", "parameters", "input_schema", "tool_calls", "function_call"),
]


def anything(rng: random.Random, depth: int = 4) -> Any:
    """A value of JSON that looks like what clients send, and is often wrong."""
    draw = rng.randrange(8 if depth else 5)
    if draw > 4:
        return {rng.choice(FIELDS): anything(rng, depth - 1) for _ in range(rng.randrange(5))}
    if draw == 4 and depth:
        return [anything(rng, depth - 1) for _ in range(rng.randrange(3))]
    return rng.choice([None, 0, -1.5, True, "", "data:text/plain;base64,YQ==", *KINDS * 2])


def readings(role: str, kind: str, given: dict[str, Any]) -> list[Callable[[], object]]:
    """All that a client's object can be."""
    return [
        lambda: check_messages(of_messages([{"role": role, **given}]).messages),
        lambda: check_messages(of_messages([{"role": role, "content": [given, "x"]}]).messages),
        lambda: check_messages(of_items([{"role": role, "type": kind, **given}]).messages),
        lambda: Offered.of([given]),
        lambda: Offered.of([given], [given], anthropic=True),
        lambda: ToolRequest.of([], choice_of(given)),
    ]


def test_whatever_is_sent_is_read_or_refused() -> None:
    rng, n_read = random.Random(1), 0
    for _ in range(4000):
        drawn = anything(rng)
        given = drawn if isinstance(drawn, dict) else {"content": drawn}
        role = rng.choice(["user", "assistant", "system", "tool"])
        for read in readings(role, rng.choice(KINDS), given):
            with contextlib.suppress(Refusal, RequestError, ValueError):
                read()
                n_read += 1
    assert n_read > 4000
