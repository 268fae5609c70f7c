"""Earlier tool calls and their results among a chat's messages."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .definitions import ToolRequest

Message = Mapping[str, Any]

_INTRODUCTION = """\
You can call functions. Each line between <tools> and </tools> describes one of them as JSON:
<tools>
{tools}
</tools>
To call a function, write its name and its arguments as a JSON object, like this:
<tool_call>
{{"name": "the function's name", "arguments": {{"an argument's name": "its value"}}}}
</tool_call>
The results come between <tool_response> and </tool_response>."""


def checked_calls(where: str, calls: object) -> list[dict[str, Any]]:
    """An assistant's calls in OpenAI's shape, with arguments as dicts: so templates expect them.

    where: names the message in errors. Raises ValueError for another shape.
    """
    where += ".tool_calls"
    if isinstance(calls, str | bytes | Mapping) or not isinstance(calls, Sequence):
        raise ValueError(f"{where} must be a list")
    found = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ValueError(f"{where}[{i}] must be an object with function.name")
        arguments = function.get("arguments")
        try:
            if arguments is None or isinstance(arguments, str):
                arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, Mapping):
            raise ValueError(f"{where}[{i}].function.arguments must be the text of a JSON object")
        found.append({**call, "type": "function", "function": {**function, "arguments": arguments}})
    return found


def has_tools(messages: Sequence[Message]) -> bool:
    """Whether some (checked) message is a tool's, or calls one."""
    return any(message["role"] == "tool" or "tool_calls" in message for message in messages)


def without_tools(
    messages: Sequence[Message], request: ToolRequest | None, system: bool = True
) -> list[dict[str, Any]]:
    """Messages for formats that know no tools: these are described in the style of Hermes.

    messages: checked, not empty. The description goes into the first system message; without one,
    into a new one or, without `system`, into the first message of the user. Calls become text of
    the assistant, and results a message of the user.
    """
    found: list[dict[str, Any]] = []
    after_result = False
    for message in messages:
        role, text = message["role"], message["content"]
        if role == "tool":
            text = f"<tool_response>\n{text}\n</tool_response>"
            if after_result:
                found[-1]["content"] += f"\n{text}"
            else:
                found.append({"role": "user", "content": text})
        else:
            calls = [_written(call["function"]) for call in message.get("tool_calls", ())]
            text = "\n".join([text, *calls] if text else calls) if calls else text
            kept = {key: value for key, value in message.items() if key != "tool_calls"}
            found.append({**kept, "content": text})
        after_result = role == "tool"
    if request is not None:
        tools = "\n".join(json.dumps(tool.as_dict(), ensure_ascii=False) for tool in request.tools)
        _introduce(found, _INTRODUCTION.format(tools=tools), system)
    return found


def _introduce(messages: list[dict[str, Any]], text: str, system: bool) -> None:
    """Puts a text into the system message, or where it can stand without one."""
    for role in ("system",) if system else ("system", "user"):
        for i, message in enumerate(messages):
            if message["role"] == role:
                parts = (
                    [message["content"], text] if role == "system" else [text, message["content"]]
                )
                messages[i] = {**message, "content": "\n\n".join(part for part in parts if part)}
                return
    messages.insert(0, {"role": "system" if system else "user", "content": text})


def _written(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
