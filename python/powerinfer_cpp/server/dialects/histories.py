"""Histories as all dialects tell them, to messages in OpenAI's older shape.

What a model said, thought and called stays, and so do results, also those of tools that a hosted
service ran: these are calls like others. What only such a service can read is dropped.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import Refusal, left_out
from .foreign import FIELDS
from .offered import spaced
from .parts import Part, Piece, failed, has_text, joined, parts_of, piece_of, text_of

_ROLES = {"developer": "system"}  # templates know no developer

_Is = Callable[[Part], bool]


@dataclass
class _Said:
    """A message that is being put together. more: further keys of it."""

    role: str
    more: dict[str, Any]
    pieces: list[Piece] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def message(self) -> dict[str, Any]:
        found = {**self.more, "role": self.role, "content": joined(self.pieces)}
        if self.thoughts:
            found["reasoning_content"] = "\n".join(self.thoughts)
        return {**found, "tool_calls": self.calls} if self.calls else found


class History:
    """A chat that is put together from what a dialect has, in its order.

    answered: ids of calls whose results it has. tools: those that were defined within the history,
    in the dialect's shape.
    """

    def __init__(self, answered: Iterable[object] = ()) -> None:
        self.tools: list[Any] = []
        self._answered = set(map(str, answered))
        self._said: list[_Said] = []
        self._open: _Said | None = None  # the assistant's last message, if nothing follows it
        self._thoughts: list[str] = []  # that no message has yet

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages."""
        return [said.message() for said in self._said]

    def message(
        self,
        where: str,
        role: str,
        content: object,
        asks: bool = False,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds a message with its content, in parts of any dialect. where: names the content in
        errors. asks: it is the user's, and the assistant has said nothing since. more: further keys
        of the message. Raises Refusal."""
        role, more, self._open = _ROLES.get(role, role), dict(more or {}), None
        parts, said = parts_of(where, content), None
        for part_where, part in parts:
            kind = str(part.get("type"))
            if kind in _HOSTED and str(part.get("id")) not in self._answered:
                left_out(f"parts of type {kind!r} without a result")
                continue
            if kind.endswith("tool_use") or kind in _THOUGHTS:
                self._of_assistant(part_where, role, kind, part)
                continue
            if kind.endswith("tool_result"):
                given = part.get("content")
                self.result(f"{part_where}.content", part.get("tool_use_id"), given, part)
                said = None
                continue
            self._keep_tool(part)
            piece = piece_of(part_where, part, asks)
            if piece is None:
                continue
            if role == "assistant":
                said = self._assistant()
            elif said is None:
                said = self._begin(role, more)
            said.pieces.append(piece)
        if role == "assistant" and (more or self._thoughts or not parts):
            self._assistant().more.update(more)
        elif role != "assistant" and not parts:
            self._begin(role, more)

    def thinks(self, text: str) -> None:
        """Adds thoughts, which belong to what the assistant says or calls next."""
        self._thoughts += [text] if text else []

    def call(self, where: str, id_: object, name: object, arguments: object) -> None:
        """Adds a call to what the assistant said last, or as a message of its own. Raises
        Refusal."""
        if not isinstance(name, str):
            raise Refusal(400, f"{where}: name must be a text", where)
        function = {"name": name, "arguments": arguments}
        call = {"id": id_ if isinstance(id_, str) else "", "type": "function", "function": function}
        self._assistant().calls.append(call)

    def result(
        self,
        where: str,
        id_: object,
        content: object,
        of: Part,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds the result of a call. where: names the content in errors. of: says whether the call
        failed. more: further keys of the message. Raises Refusal."""
        text = text_of(where, content)
        if of.get("is_error") is True or of.get("status") == "failed":
            text = failed(text)
        named = {"tool_call_id": id_} if isinstance(id_, str) else {}
        self._begin("tool", {**(more or {}), **named}).pieces.append(Piece(text))
        self._open = None

    def _begin(self, role: str, more: dict[str, Any]) -> _Said:
        self._said.append(_Said(role, more))
        return self._said[-1]

    def _assistant(self) -> _Said:
        """The assistant's message that goes on, or a new one, with what it thought before."""
        if self._open is None:
            self._open = self._begin("assistant", {})
        self._open.thoughts += self._thoughts
        self._thoughts = []
        return self._open

    def _of_assistant(self, where: str, role: str, kind: str, part: Part) -> None:
        if role != "assistant":
            raise Refusal(400, f"{where} is of type {kind[:80]!r}, which is the assistant's", where)
        if kind in _THOUGHTS:
            self.thinks(text_of(where, part.get(_THOUGHTS[kind])))
        else:
            self.call(where, part.get("id"), part.get("name"), part.get("input"))

    def _keep_tool(self, part: Part) -> None:
        """Keeps the tool that a part defines."""
        tool = part.get("tool") if part.get("type") == "tool_addition" else None
        if isinstance(tool, Mapping) and isinstance(tool.get("definition"), Mapping):
            self.tools.append(tool["definition"])


_HOSTED = ("server_tool_use", "mcp_tool_use")  # without a result, the service was to go on

# Kinds of parts that are thoughts, and where their text stands; nobody else reads redacted ones.
_THOUGHTS = {"thinking": "thinking", "reasoning": "text", "redacted_thinking": ""}


def _question(of: Sequence[Part], is_made: _Is, is_result: _Is) -> int:
    """Where in messages or items the user's question begins: behind the last that the assistant
    made. What comes with results of its calls is none, as clients send their images so."""
    for i in range(len(of) - 1, -1, -1):
        if is_result(of[i]):
            return len(of)
        if is_made(of[i]):
            return i + 1
    return 0


# ---- Chats and messages ----------------------------------------------------------------------


def of_messages(messages: Sequence[Mapping[str, Any]], omits: bool = False) -> History:
    """The history of OpenAI's chats or Anthropic's messages. omits: media that the user asks about
    are named only, as those of earlier messages are. Raises Refusal."""
    begin = len(messages) if omits else _question(messages, _is_assistant, _has_results)
    history = History(id_ for message in messages for id_ in _results(message))
    for i, message in enumerate(messages):
        where, more = f"messages[{i}]", dict(message)
        role, content = more.pop("role", None), more.pop("content", None)
        if not isinstance(role, str):
            raise Refusal(400, f"{where}.role must be a text", where)
        if role in ("tool", "function"):
            id_ = more.get("tool_call_id") or more.get("name")
            failure = {"is_error": more.pop("is_error", None)}
            history.result(f"{where}.content", id_, content, failure, more)
            continue
        if role == "assistant":
            refusal = more.pop("refusal", None)
            content = content or refusal
            _keep_calls(more)
        history.message(f"{where}.content", role, content, i >= begin and role == "user", more)
    return history


def _is_assistant(message: Part) -> bool:
    return bool(message.get("role") == "assistant")


def _has_results(message: Part) -> bool:
    return message.get("role") in ("tool", "function") or any(True for _ in _results(message))


def _results(message: Part) -> Iterator[object]:
    """Ids of the calls whose results are parts of a message."""
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, Mapping) and str(part.get("type")).endswith("tool_result"):
            yield part.get("tool_use_id")


def _keep_calls(message: dict[str, Any]) -> None:
    """Makes a message's calls of all kinds those of functions."""
    old, calls = message.pop("function_call", None), message.get("tool_calls")
    if isinstance(old, Mapping) and not calls:
        message["tool_calls"] = [{"id": str(old.get("name")), "function": old}]
    elif isinstance(calls, list):
        message["tool_calls"] = [_as_function(call) for call in calls]


def _as_function(call: Any) -> Any:
    custom = call.get("custom") if isinstance(call, Mapping) else None
    if not isinstance(custom, Mapping):
        return call
    function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
    return {"id": call.get("id"), "type": "function", "function": function}


# ---- Responses -------------------------------------------------------------------------------

# Fields of an item that say what a call is given, and those that say what came of it.
_GIVEN = ("arguments", "input", "action", "actions", "operation", "code", "queries")
_CAME = ("output", "outputs", "results", "error")
# Items that are for the service that made them, or that it keeps.
_SERVICE = (
    *("item_reference", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
    *("configuration_update", "compaction_trigger"),
)


def of_items(
    items: Sequence[Mapping[str, Any]], instructions: str | None = None, omits: bool = False
) -> History:
    """The history of OpenAI's responses. Instructions and what the system says first are one.
    omits: as in `of_messages`. Raises Refusal."""
    history, first = History(), 0
    if instructions:
        heads = [instructions]
        while first < len(items) and _is_of_system(items[first]):
            heads.append(text_of(f"input[{first}].content", items[first].get("content")))
            first += 1
        history.message("instructions", "system", "\n\n".join(filter(None, heads)))
    begin = len(items) if omits else _question(items, _is_made, _is_output)
    for i, item in enumerate(items[first:], first):
        is_message = "role" in item or "content" in item
        kind = item.get("type") or ("message" if is_message else "item_reference")
        _read_item(history, f"input[{i}]", str(kind), item, i >= begin)
    return history


def _is_of_system(item: Part) -> bool:
    role, kind = item.get("role"), item.get("type", "message")
    return role in ("system", "developer") and kind == "message"


def _is_made(item: Part) -> bool:
    kind = str(item.get("type"))
    return _is_assistant(item) or kind == "reasoning" or kind.endswith("_call")


def _is_output(item: Part) -> bool:
    return str(item.get("type")).endswith("_output")


def _read_item(history: History, where: str, kind: str, item: Part, asks: bool) -> None:
    role, id_ = item.get("role"), item.get("call_id") or item.get("id")
    if kind == "message":
        if role not in ("user", "assistant", "system", "developer"):
            words = "must be user, assistant, system or developer"
            raise Refusal(400, f"{where}.role {words}", where)
        history.message(f"{where}.content", role, item.get("content"), asks and role == "user")
    elif kind == "reasoning":
        history.thinks(text_of(f"{where}.content", item.get("content") or item.get("summary")))
    elif kind in ("additional_tools", "tool_search_output"):
        tools = item.get("tools")
        tools = tools if isinstance(tools, list) else []
        history.tools += tools
        if kind == "tool_search_output":
            named = [tool.get("name") for tool in tools if isinstance(tool, Mapping)]
            text = "\n".join(name for name in named if isinstance(name, str))
            history.result(where, id_, text, item)
    elif kind.endswith("_output"):
        came = item.get("output", item.get("result"))
        came = item.get("status") if came is None else came
        history.result(f"{where}.output", id_, came, item)
    elif kind == "image_generation_call":
        history.message(where, "assistant", {"type": "image"})
    elif kind.endswith("_call") or kind == "program":
        _read_call(history, where, kind, item, id_)
    elif kind == "configuration_update" and FIELDS["text"].asks(item.get("text")):
        raise Refusal(400, f"{where}.text is not supported: use text.format", where)
    elif kind not in _SERVICE and has_text(item):
        history.message(where, "assistant", text_of(where, item))
    else:
        left_out(f"input of type {kind!r}")


def _read_call(history: History, where: str, kind: str, item: Part, id_: object) -> None:
    """A call of any tool, with its result if the item has it. One whose result is nowhere is that
    of a search whose findings the assistant has told."""
    came = next((name for name in _CAME if item.get(name) is not None), None)
    if came is None and "call_id" not in item:
        left_out(f"input of type {kind!r}")
        return
    field_ = next((name for name in _GIVEN if item.get(name) is not None), "arguments")
    given = item.get(field_)
    if not isinstance(given, Mapping) and field_ != "arguments":
        given = {field_: given}
    named = item.get("name", None if kind == "function_call" else kind.removesuffix("_call"))
    history.call(where, id_, spaced(item.get("namespace"), named), given)
    if came == "error":
        history.result(f"{where}.error", id_, item[came], {"is_error": isinstance(item[came], str)})
    elif came is not None:
        history.result(f"{where}.{came}", id_, item[came], item)
