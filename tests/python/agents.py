"""Sessions of agents, in the words of each dialect: what clients of 2026 send again with each turn.

A session is a list of steps, which each dialect tells in its own way.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from powerinfer_cpp.text.tools.arguments import read_arguments

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()


@dataclass(frozen=True)
class User:
    """The user's text; later: the system's, in the middle of a chat."""

    text: str
    system: bool = False


@dataclass(frozen=True)
class Made:
    """What the assistant thought, said and called: ids, names and arguments, or an input.

    hosted: how the dialects that know a hosted tool name the call. dropped: items of searches that
    ran elsewhere, by dialects.
    """

    text: str = ""
    thoughts: str = ""
    calls: Sequence[tuple[str, str, Any]] = ()
    hosted: str = ""
    dropped: Sequence[str] = ()


@dataclass(frozen=True)
class Results:
    """Results of calls by ids: parts, of a text, an image (None), a file (name, text) or found
    tools (a list). failed: ids. more: a text of the user that comes with them."""

    of: dict[str, Sequence[Any]]
    failed: Sequence[str] = ()
    more: str = ""


Step = User | Made | Results


@dataclass(frozen=True)
class Session:
    """tools: functions, by names and descriptions. dialect: in which its client speaks."""

    dialect: str
    system: str
    tools: dict[str, str]
    steps: Sequence[Step]
    custom: Sequence[str] = ()  # tools whose input is a free text
    hosted: Sequence[dict[str, Any]] = field(default_factory=list)  # offered to everybody

    def body(self, dialect: str, steps: Sequence[Step]) -> dict[str, Any]:
        """A request that sends these steps in a dialect."""
        return _BODIES[dialect](self, steps)


PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "all": {"type": "boolean"}},
}
FREE = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input, as it is."}},
    "required": ["input"],
}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# ---- Anthropic's ------------------------------------------------------------------------------


def _anthropic(session: Session, steps: Sequence[Step]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for step in steps:
        if isinstance(step, User):
            blocks: list[dict[str, Any]] = [{"type": "text", "text": step.text}]
            if step.system:
                tool = {"type": "tool_reference", "name": next(iter(session.tools))}
                blocks.append({"type": "tool_addition", "tool": tool})
            messages.append({"role": "system" if step.system else "user", "content": blocks})
        elif isinstance(step, Made):
            messages.append({"role": "assistant", "content": _made(step)})
        else:
            results = [_result(step, id_) for id_ in step.of]
            more = [{"type": "text", "text": step.more}] if step.more else []
            messages.append({"role": "user", "content": [*results, *more]})
    tools = [
        {
            "name": name,
            "description": about,
            "input_schema": FREE if name in session.custom else PARAMETERS,
            "defer_loading": True,
        }
        for name, about in session.tools.items()
    ]
    bill = f"x-anthropic-billing-header: cc_version=2.1; cch={len(steps):05x};"
    system = [
        {"type": "text", "text": bill},
        {"type": "text", "text": session.system, "cache_control": {"type": "ephemeral"}},
    ]
    hosted = session.hosted if session.dialect == "messages" else ()
    made = {"model": "m", "max_tokens": 1, "system": system, "messages": messages}
    return {**made, "tools": [*tools, *hosted], "thinking": {"type": "disabled"}}


def _made(step: Made) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if step.thoughts:
        blocks.append({"type": "thinking", "thinking": step.thoughts, "signature": "c2ln"})
        blocks.append({"type": "redacted_thinking", "data": "c2VjcmV0"})
    blocks += [{"type": "text", "text": step.text, "citations": None}] if step.text else []
    for id_, name, given in step.calls:
        kind = "server_tool_use" if step.hosted else "tool_use"
        if isinstance(given, str):
            given = read_arguments(given) if given.startswith("{") else {"input": given}
        blocks.append({"type": kind, "id": id_, "name": name, "input": given})
    return blocks


def _result(step: Results, id_: str) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    for part in step.of[id_]:
        if part is None:
            source = {"type": "base64", "media_type": "image/png", "data": PNG}
            content.append({"type": "image", "source": source})
        elif isinstance(part, tuple):
            source = {"type": "text", "media_type": "text/plain", "data": part[1]}
            content.append({"type": "document", "title": part[0], "source": source})
        elif isinstance(part, list):
            content += [{"type": "tool_reference", "tool_name": name} for name in part]
        else:
            content.append({"type": "text", "text": part})
    return {
        "type": "tool_result",
        "tool_use_id": id_,
        "content": content[0]["text"] if len(content) == 1 and "text" in content[0] else content,
        "is_error": id_ in step.failed,
    }


# ---- OpenAI's ---------------------------------------------------------------------------------


def _told(part: Any, kinds: tuple[str, str, str]) -> dict[str, Any]:
    """A part of a result. kinds: of texts, images and files."""
    text, image, file = kinds
    if part is None:
        url = f"data:image/png;base64,{PNG}"
        return {"type": image, "image_url": {"url": url} if image == "image_url" else url}
    if isinstance(part, tuple):
        data = base64.b64encode(part[1].encode()).decode()
        of = {"filename": part[0], "file_data": f"data:text/plain;base64,{data}"}
        return {"type": file, **({"file": of} if file == "file" else of)}
    return {"type": text, "text": "\n".join(part) if isinstance(part, list) else part}


def _content(step: Results, id_: str, kinds: tuple[str, str, str]) -> str | list[dict[str, Any]]:
    parts = list(step.of[id_])
    if id_ in step.failed:
        parts[0] = f"Error: {parts[0]}"
    if len(parts) == 1 and isinstance(parts[0], str):
        return parts[0]
    return [_told(part, kinds) for part in parts]


def _chat(session: Session, steps: Sequence[Step]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": session.system}]
    for step in steps:
        if isinstance(step, User):
            role = "developer" if step.system else "user"
            messages.append({"role": role, "content": step.text})
        elif isinstance(step, Made):
            said: dict[str, Any] = {"role": "assistant", "content": step.text or None}
            said |= {"reasoning_content": step.thoughts} if step.thoughts else {}
            calls = [_chat_call(*call) for call in step.calls]
            messages.append({**said, "refusal": None, **({"tool_calls": calls} if calls else {})})
        else:
            kinds = ("text", "image_url", "file")
            messages += [
                {"role": "tool", "tool_call_id": id_, "content": _content(step, id_, kinds)}
                for id_ in step.of
            ]
            messages += [{"role": "user", "content": step.more}] if step.more else []
    tools: list[dict[str, Any]] = [
        {"type": "custom", "custom": {"name": name, "description": about}}
        if name in session.custom
        else {
            "type": "function",
            "function": {"name": name, "description": about, "parameters": PARAMETERS},
        }
        for name, about in session.tools.items()
    ]
    hosted = session.hosted if session.dialect == "chat/completions" else ()
    return {"model": "m", "max_tokens": 1, "messages": messages, "tools": [*tools, *hosted]}


def _chat_call(id_: str, name: str, given: Any) -> dict[str, Any]:
    if isinstance(given, str) and not given.startswith("{"):
        return {"id": id_, "type": "custom", "custom": {"name": name, "input": given}}
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": _text(given)}}


def _responses(session: Session, steps: Sequence[Step]) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for step in steps:
        if isinstance(step, User):
            role = "developer" if step.system else "user"
            content = [{"type": "input_text", "text": step.text}]
            items.append({"type": "message", "role": role, "content": content})
        elif isinstance(step, Made):
            items += _items(step)
        else:
            kinds = ("input_text", "input_image", "input_file")
            for id_ in step.of:
                kind = "custom" if id_.startswith("ctc") else "function"
                kind = "custom_tool_call_output" if kind == "custom" else "function_call_output"
                output = _content(step, id_, kinds)
                items.append({"type": kind, "call_id": id_, "output": output})
            items += [{"role": "user", "content": step.more}] if step.more else []
    tools: list[dict[str, Any]] = [
        {"type": "custom", "name": name, "description": about}
        if name in session.custom
        else {"type": "function", "name": name, "description": about, "parameters": PARAMETERS}
        for name, about in session.tools.items()
    ]
    hosted = session.hosted if session.dialect == "responses" else ()
    made = {"model": "m", "max_output_tokens": 1, "instructions": session.system, "store": False}
    return {**made, "input": items, "tools": [*tools, *hosted], "include": []}


def _items(step: Made) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for kind in step.dropped:
        action = {"type": "search", "query": "why"}
        items.append({"type": kind, "id": "ws_1", "status": "completed", "action": action})
    if step.thoughts:
        content = [{"type": "reasoning_text", "text": step.thoughts}]
        told = {"type": "reasoning", "id": "rs_1", "summary": [], "content": content}
        items.append({**told, "encrypted_content": "gAAAA"})
    if step.text:
        content = [{"type": "output_text", "text": step.text, "annotations": []}]
        items.append({"type": "message", "role": "assistant", "id": "msg_1", "content": content})
    for id_, name, given in step.calls:
        call: dict[str, Any] = {"call_id": id_, "status": "completed"}
        if step.hosted:
            items.append({"type": step.hosted, **call, "action": given})
        elif isinstance(given, str) and not given.startswith("{"):
            items.append({"type": "custom_tool_call", **call, "name": name, "input": given})
        else:
            items.append({"type": "function_call", **call, "name": name, "arguments": _text(given)})
    return items


_BODIES = {"messages": _anthropic, "chat/completions": _chat, "responses": _responses}


# ---- Sessions ---------------------------------------------------------------------------------


def _work(n: int, name: str, prefix: str = "toolu") -> list[Step]:
    """Turns of reading files, as agents spend most of their time."""
    found: list[Step] = []
    for i in range(n):
        given = {"path": f"src/part{i}.py", "all": i % 2 == 0}
        found.append(
            Made(f"Reading {i}.", f"It may be in {i}.", [(f"{prefix}_{i:02}", name, given)])
        )
        found.append(Results({f"{prefix}_{i:02}": [f"{i}: {given}"]}))
    return found


SEARCHED = Session(
    "messages",
    "You are an agent for code.",
    {"ToolSearch": "Finds tools.", "Read": "Reads.", f"mcp__{'a1b2' * 15}__list_all": "Lists."},
    [
        User("Fix the build."),
        User("More tools are there.", system=True),
        Made(calls=[("toolu_a", "ToolSearch", {"path": "select:TaskStop,Read"})]),
        Results(
            {"toolu_a": [["TaskStop", "Read"]]}, more="<system-reminder>Go on.</system-reminder>"
        ),
        Made("Now.", calls=[("toolu_b", "Read", {"path": "a.png"}), ("toolu_c", "Read", {})]),
        Results({"toolu_b": ["It shows", None], "toolu_c": ["no path"]}, failed=["toolu_c"]),
        Made("", "A document.", [("toolu_d", "Read", {"path": "notes.txt"})]),
        Results({"toolu_d": [("notes.txt", "Line 1\nLine 2")]}),
        *_work(13, "Read"),
        Made("It builds."),
        User("Thanks. And the tests?"),
        *_work(2, "Read", "toolv"),
        Made("They pass."),
        User("Done?"),
    ],
    hosted=[{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}],
)
_PATCH = "*** Begin Patch\n*** Update File: a.py\n-x = 1\n+x = '2'\n*** End Patch"
HOSTED = Session(
    "responses",
    "You are an agent in a terminal.",
    {"apply_patch": "Changes files.", "shell": "Runs.", "files.read": "Reads."},
    [
        User("<environment_context>bash</environment_context>"),
        User("Rename x."),
        Made(
            "",
            "Look first.",
            [("call_a", "local_shell", {"command": ["ls"], "env": {}})],
            hosted="local_shell_call",
        ),
        Results({"call_a": ["a.py"]}),
        Made("Found it.", dropped=["web_search_call"], calls=[("ctc_a", "apply_patch", _PATCH)]),
        Results({"ctc_a": ["Success"]}),
        Made("", calls=[("call_c", "shell", '{"path": "pytest -k \\"a')]),
        Results({"call_c": ["arguments are no JSON"]}),
        *_work(14, "files.read", "call"),
        Made("Renamed."),
        User("Show me."),
        Made("", calls=[("call_d", "shell", {"path": "shot"})]),
        Results({"call_d": ["here:", None, "and"]}),
        *_work(1, "files.read", "cell"),
        Made("That is all."),
        User("Done?"),
    ],
    custom=["apply_patch"],
    hosted=[{"type": "web_search"}, {"type": "image_generation"}, {"type": "local_shell"}],
)
FUNCTIONS = Session(
    "chat/completions",
    "You are an assistant for code.",
    {"read": "Reads.", "edit": "Edits."},
    [
        User("Explain a.ts."),
        Made("", "Read it.", [("call_00_a", "read", {"path": "a.ts"}), ("call_01_b", "edit", {})]),
        Results({"call_00_a": ["export {}"], "call_01_b": ["no path"]}, failed=["call_01_b"]),
        Made("", calls=[("call_c", "edit", '{"path": "a.ts", "all": true, "te')]),
        Results({"call_c": ["The arguments are invalid"]}),
        *_work(15, "read", "call"),
        Made("It exports nothing."),
        User("And b?"),
        *_work(2, "read", "cell"),
        Made("Nor does b."),
        User("Done?"),
    ],
)
_STEP = "[read_file for '{0}'] Result:\n{0} has 3 lines"
IN_TEXTS = Session(
    "chat/completions",
    "Tools are in XML.",
    {},
    [
        User("<task>Sort it.</task>"),
        *(
            step
            for i in range(20)
            for step in (
                Made(f"<read_file><path>{i}.c</path></read_file>", f"Look at {i}."),
                User(_STEP.format(f"{i}.c")),
            )
        ),
    ],
)
SESSIONS = {
    "tools that are searched": SEARCHED,
    "custom and hosted tools": HOSTED,
    "functions": FUNCTIONS,
    "tools in texts": IN_TEXTS,
}
