"""Earlier tool calls and their results among a chat's messages."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .arguments import read_arguments
from .definitions import ToolRequest
from .thoughts import Thoughts

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

    where: names the message in errors. Raises ValueError for another shape; of arguments that are
    broken as their model wrote them stays what can be read.
    """
    where += ".tool_calls"
    if isinstance(calls, str | bytes | Mapping) or not isinstance(calls, Sequence):
        raise ValueError(f"{where} must be a list")
    found = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ValueError(f"{where}[{i}] must be an object with function.name")
        if not isinstance(call.get("id"), str | None):
            raise ValueError(f"{where}[{i}].id must be a string")
        try:
            arguments = read_arguments(function.get("arguments"))
        except (TypeError, ValueError, RecursionError):
            words = "function.arguments must hold only what JSON can"
            raise ValueError(f"{where}[{i}].{words}") from None
        # Some templates write the function as it is: the name comes first.
        function = {"name": function["name"], "arguments": arguments}
        kept = {key: value for key, value in call.items() if value is not None}
        found.append({**kept, "type": "function", "function": function})
    return found


def one_by_one(messages: Sequence[Message]) -> list[Message]:
    """(Checked) messages with at most one call in each, followed by its result.

    Templates of Llama 3 refuse several calls in a message, though its models write them.
    """
    found: list[Message] = []
    at = 0
    while at < len(messages):
        message, at = messages[at], at + 1
        if "tool_calls" not in message:
            found.append(message)
            continue
        results: dict[str | None, list[Message]] = {}
        while at < len(messages) and messages[at]["role"] == "tool":
            results.setdefault(_id(messages[at]), []).append(messages[at])
            at += 1
        for i, call in enumerate(message["tool_calls"]):
            content = "" if i else message["content"]
            found.append({**message, "content": content, "tool_calls": [call]})
            found += results.pop(call.get("id"), [])
        found += [result for rest in results.values() for result in rest]
    return found


def _id(of: Message, key: str = "tool_call_id") -> str | None:
    found = of.get(key)
    return found if isinstance(found, str) else None


def with_short_ids(messages: Sequence[Message]) -> list[Message]:
    """(Checked) messages whose calls have ids of 9 letters and digits: templates of Mistral refuse
    others, which chats that another server began have."""

    def short(given: object) -> str:
        if isinstance(given, str) and re.fullmatch("[A-Za-z0-9]{9}", given):
            return given
        return hashlib.sha256(str(given).encode("utf-8", "surrogatepass")).hexdigest()[:9]

    found = []
    for message in messages:
        if calls := message.get("tool_calls"):
            calls = [{**call, "id": short(call.get("id"))} for call in calls]
            message = {**message, "tool_calls": calls}
        elif message["role"] == "tool":
            message = {**message, "tool_call_id": short(message.get("tool_call_id"))}
        found.append(message)
    return found


def with_text_arguments(messages: Sequence[Message]) -> list[Message]:
    """(Checked) messages whose arguments are JSON texts, for templates that join them to texts."""
    found = []
    for message in messages:
        if calls := message.get("tool_calls"):
            written = [
                {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}
                for call in calls
            ]
            calls = [{**call, "function": of} for call, of in zip(calls, written, strict=True)]
            message = {**message, "tool_calls": calls}
        found.append(message)
    return found


def with_written_calls(
    messages: Sequence[Message], written: Callable[[Sequence[Message]], str]
) -> list[Message]:
    """(Checked) messages whose calls are part of their texts, for templates that know none.

    written: calls as the model writes them.
    """
    found = []
    for message in messages:
        if calls := message.get("tool_calls"):
            kept = {key: value for key, value in message.items() if key != "tool_calls"}
            message = {**kept, "content": message["content"] + written(calls)}
        found.append(message)
    return found


def with_thoughts(messages: Sequence[Message], thoughts: Thoughts | None) -> list[dict[str, Any]]:
    """(Checked) messages with their thoughts where a template looks for them."""
    found = []
    for message in messages:
        changed = dict(message)
        said = changed.pop("reasoning_content", None)
        if said and thoughts is not None:
            if thoughts.field == "content":
                changed["content"] = thoughts.written(said) + changed["content"] + thoughts.last
            elif thoughts.field is not None:
                changed[thoughts.field] = said
        found.append(changed)
    return found


def in_channels(messages: Sequence[Message]) -> list[Message]:
    """(Checked) messages as the template of gpt-oss takes them: one call in each, and with thoughts
    no other text."""
    found = []
    for message in one_by_one(messages):
        thoughts = message.get("thinking")
        if thoughts and message.get("tool_calls") and message["content"]:
            thoughts = f"{thoughts}\n\n{message['content']}"
            message = {**message, "thinking": thoughts, "content": ""}
        found.append(message)
    return found


def without_empty_texts(messages: Sequence[Message]) -> list[Message]:
    """(Checked) messages that call tools and say nothing have None as content: some templates look
    for that."""
    return [
        {**message, "content": None}
        if message.get("tool_calls") and not message["content"]
        else message
        for message in messages
    ]


def has_tools(messages: Sequence[Message]) -> bool:
    """Whether some (checked) message is a tool's, or calls one."""
    return any(message["role"] == "tool" or "tool_calls" in message for message in messages)


def with_names(messages: Sequence[Message]) -> list[Message]:
    """(Checked) messages whose results have the names of their calls: some templates want them, and
    clients leave them out."""
    names: dict[str | None, str] = {}
    found: list[Message] = []
    for message in messages:
        for call in message.get("tool_calls", ()):
            names[_id(call, "id")] = call["function"]["name"]
        name = names.get(_id(message))
        if message["role"] == "tool" and name is not None and not message.get("name"):
            message = {**message, "name": name}
        found.append(message)
    return found


def with_told_results(messages: Sequence[Message]) -> list[Message]:
    """(Checked) messages whose results of tools are the user's, for templates that know none."""
    found: list[Message] = []
    results: list[str] = []  # of the last messages
    for message in [*messages, None]:
        if message is not None and message["role"] == "tool":
            results.append(f"<tool_response>\n{message['content']}\n</tool_response>")
            continue
        if results:
            found.append({"role": "user", "content": "\n".join(results)})
            results = []
        found += [] if message is None else [message]
    return found


def without_tools(messages: Sequence[Message], request: ToolRequest | None) -> list[dict[str, Any]]:
    """Messages for formats that know no tools: these are described in the style of Hermes.

    messages: checked, not empty. The description goes into the first system message, or into a new
    one. Calls become text of the assistant, and results a message of the user.
    """
    found: list[dict[str, Any]] = []
    for message in with_told_results(messages):
        text = message["content"]
        calls = [_written(call["function"]) for call in message.get("tool_calls", ())]
        kept = {key: value for key, value in message.items() if key != "tool_calls"}
        text = "\n".join([text, *calls] if text else calls) if calls else text
        found.append({**kept, "content": text})
    if request is not None:
        tools = "\n".join(json.dumps(tool.as_dict(), ensure_ascii=False) for tool in request.tools)
        _introduce(found, _INTRODUCTION.format(tools=tools))
    return found


def _introduce(messages: list[dict[str, Any]], text: str) -> None:
    """Puts a text into the first system message, or before all of them."""
    for i, message in enumerate(messages):
        if message["role"] == "system":
            parts = (message["content"], text)
            messages[i] = {**message, "content": "\n\n".join(part for part in parts if part)}
            return
    messages.insert(0, {"role": "system", "content": text})


def _written(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
