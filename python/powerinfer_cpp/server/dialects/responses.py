"""OpenAI's Responses API without its state: bodies to chats, and answers as items."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from ...text.tool_chat import Turn
from ...text.tools import Call, Part, Thought
from ..errors import Refusal
from ..served import ServedModel
from ..settings import Settings
from ..texts import Job, event
from .asked import constraint, text_options, time_limit
from .bodies import OpenAISampled, TextPart, check_count, joined_texts, typed
from .chats import Block, BlockForm, chat_request, chat_turn

# Fields that ask for what a server keeps, and this one keeps nothing.
STATEFUL = ("previous_response_id", "conversation", "background", "prompt")


class ResponsesBody(OpenAISampled, kw_only=True):
    """POST /v1/responses."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    previous_response_id: Any = None
    conversation: Any = None
    background: Any = None
    prompt: Any = None


class _Message(msgspec.Struct, kw_only=True):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[dict[str, Any]]


class _FunctionCall(msgspec.Struct, kw_only=True):
    call_id: str
    name: str
    arguments: str


class _FunctionOutput(msgspec.Struct, kw_only=True):
    call_id: str
    output: str | list[dict[str, Any]]


class _Reasoning(msgspec.Struct, kw_only=True):
    content: list[dict[str, Any]] | None = None
    summary: list[dict[str, Any]] | None = None


class _Refused(msgspec.Struct, kw_only=True):
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


_ITEMS: Mapping[str, Any] = {
    "message": _Message,
    "function_call": _FunctionCall,
    "function_call_output": _FunctionOutput,
    "reasoning": _Reasoning,
}
_THOUGHTS: Mapping[str, Any] = {"reasoning_text": TextPart, "summary_text": TextPart}
_PARTS: Mapping[str, Any] = {
    "input_text": TextPart,
    "output_text": TextPart,
    "text": TextPart,
    "refusal": _Refused,
}


def responses_job(
    model: ServedModel, name: str, body: ResponsesBody, settings: Settings, owner: str
) -> Job:
    """The job of a response. Raises Refusal and ValueError."""
    for field in STATEFUL:
        if getattr(body, field):
            raise Refusal(400, f"{field} is not supported: this server keeps no responses", field)
    check_count(body.max_output_tokens, "max_output_tokens")
    turn = chat_turn(
        model,
        _messages(body),
        _tools(body.tools),
        _choice(body.tool_choice),
        body.parallel_tool_calls,
        constraint(body, text__format=_format(body.text)),
        body.thinking(model.thinking),
    )
    request = chat_request(
        model,
        turn,
        [],
        criteria=time_limit(model, body, turn.criteria),
        **text_options(model, body, settings, owner),
    )
    return Job(model, [request], ResponsesForm(turn, name, body, model.prompts.behind))


def _messages(body: ResponsesBody) -> list[dict[str, Any]]:
    """Messages in OpenAI's older shape. Instructions and what the system says first are one, and so
    are thoughts, a text and the calls that follow it."""
    thoughts = ""  # of the assistant's next item
    found: list[dict[str, Any]] = []
    if body.instructions:
        found.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*found, {"role": "user", "content": body.input}]
    for i, given in enumerate(body.input):
        where, before = f"input[{i}]", found[-1] if found else {}
        item = typed(where, {"type": "message", **given}, _ITEMS)
        if isinstance(item, _Message):
            text = joined_texts(f"{where}.content", item.content, _PARTS)
            role = "system" if item.role == "developer" else item.role
            if len(found) == 1 and role == before["role"] == "system" and body.instructions:
                found[0] = {**before, "content": f"{body.instructions}\n\n{text}"}
            else:
                found.append({"role": role, "content": text})
                thoughts = _thinks(found, thoughts)
        elif isinstance(item, _FunctionCall):
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            if before.get("role") == "assistant":
                found[-1] = {**before, "tool_calls": [*before.get("tool_calls", []), call]}
            else:
                found.append({"role": "assistant", "content": None, "tool_calls": [call]})
            thoughts = _thinks(found, thoughts)
        elif isinstance(item, _FunctionOutput):
            text = joined_texts(f"{where}.output", item.output, _PARTS)
            found.append({"role": "tool", "tool_call_id": item.call_id, "content": text})
        else:
            given = item.content or item.summary or ()
            thoughts += joined_texts(f"{where}.content", given, _THOUGHTS)
    return found


def _thinks(found: list[dict[str, Any]], thoughts: str) -> str:
    """Adds thoughts to the last message, if it is the assistant's; those that are left."""
    last = found[-1]
    if not thoughts or last["role"] != "assistant":
        return thoughts
    found[-1] = {**last, "reasoning_content": last.get("reasoning_content", "") + thoughts}
    return ""


def _tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Functions in OpenAI's older shape. Other tools are those of a hosted service: clients offer
    them to every server."""
    if tools is None:
        return None
    names = ("name", "description", "parameters", "strict")
    return [
        {"type": "function", "function": {name: tool.get(name) for name in names}}
        for tool in tools
        if tool.get("type") == "function"
    ]


def _choice(given: str | Mapping[str, Any] | None) -> Any:
    """tool_choice in OpenAI's older shape."""
    if given is None or isinstance(given, str):
        return given
    if given.get("type") != "function" or not isinstance(given.get("name"), str):
        raise Refusal(400, "tool_choice must name a function, or be a word", "tool_choice")
    return {"type": "function", "function": {"name": given["name"]}}


def _format(text: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """text.format as a response_format."""
    wanted = (text or {}).get("format")
    if wanted is None:
        return None
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "json_schema" and isinstance(wanted.get("schema"), dict):
        return {"type": kind, "json_schema": wanted}
    if kind in ("text", "json_object"):
        return {"type": kind}
    raise Refusal(
        400, "text.format must be of type text, json_object, or json_schema with a schema", "text"
    )


class ResponsesForm(BlockForm):
    """Items of a response. count: tokens of a text."""

    def __init__(
        self,
        turn: Turn,
        model: str,
        body: ResponsesBody,
        behind: Callable[[str], Sequence[int]],
    ):
        super().__init__(turn)
        params = body.sampling()
        self._head = {
            "id": _new_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": body.reasoning or {"effort": None, "summary": None},
            "store": False,
            "temperature": params.temperature,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": params.top_p,
            "truncation": "disabled",
        }
        self._behind = behind
        self._number = 0  # of the next event
        self._output: list[dict[str, Any]] = []
        self._id = ""  # of the item that is being written

    def answer(self, found: Sequence[Part]) -> Any:
        """The response."""
        for i, part in enumerate(found):
            if isinstance(part, Call):
                item = _call(_new_id("fc"), part.id, part.name, part.arguments, "completed")
            else:
                cut = self.reason == "length" and i == len(found) - 1
                if isinstance(part, Thought):
                    item = _reasoning(_new_id("rs"), part.text, _status(not cut))
                else:
                    item = _message(_new_id("msg"), [_text(part)], _status(not cut))
            self._output.append(item)
        return self._ended()

    def opening(self) -> bytes:
        """response.created and response.in_progress."""
        response = self._response("in_progress")
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._event(kind, response=response) for kind in kinds)

    def block_begins(self, block: Block) -> bytes:
        """An item is added, and to a message its part."""
        if block.call is not None:
            self._id = _new_id("fc")
            item = self._item(block, "in_progress")
            return self._of(block, "response.output_item.added", item=item)
        if block.thought:
            self._id = _new_id("rs")
            item = _reasoning(self._id, "", "in_progress")
            added = self._of(block, "response.output_item.added", item=item)
            part = {"type": "reasoning_text", "text": ""}
            return added + self._of_part(block, "response.content_part.added", part=part)
        self._id = _new_id("msg")
        item = _message(self._id, [], "in_progress")
        added = self._of(block, "response.output_item.added", item=item)
        return added + self._of_part(block, "response.content_part.added", part=_text(""))

    def block_grows(self, block: Block, text: str) -> bytes:
        """A delta of a text, or of arguments."""
        if block.call is not None:
            kind = "response.function_call_arguments.delta"
            return self._of(block, kind, item_id=self._id, delta=text)
        if block.thought:
            return self._of_part(block, "response.reasoning_text.delta", delta=text)
        return self._of_part(block, "response.output_text.delta", delta=text, logprobs=[])

    def block_ends(self, block: Block) -> bytes:
        """What was written is told once more as a whole."""
        item = self._item(block, _status(block.complete))
        self._output.append(item)
        if block.call is not None:
            of = {"item_id": self._id, "name": block.call.name, "arguments": block.text}
            data = self._of(block, "response.function_call_arguments.done", **of)
        elif block.thought:
            data = self._of_part(block, "response.reasoning_text.done", text=block.text)
            part = {"type": "reasoning_text", "text": block.text}
            data += self._of_part(block, "response.content_part.done", part=part)
        else:
            data = self._of_part(block, "response.output_text.done", text=block.text, logprobs=[])
            data += self._of_part(block, "response.content_part.done", part=_text(block.text))
        return data + self._of(block, "response.output_item.done", item=item)

    def end(self) -> bytes:
        """response.completed or response.incomplete."""
        ended = self._ended()
        return self._event(f"response.{ended['status']}", response=ended)

    def error(self, refusal: Refusal) -> bytes:
        """response.failed."""
        error = {"code": refusal.code or "server_error", "message": refusal.message}
        return self._event("response.failed", response={**self._response("failed"), "error": error})

    def _ended(self) -> dict[str, Any]:
        cut = self.reason == "length"
        n_prompt, n_written = len(self.ticket.request.ids), self.last.n_tokens
        thoughts = "".join(
            part["text"]
            for item in self._output
            if item["type"] == "reasoning"
            for part in item["content"]
        )
        reused = {"cached_tokens": self.ticket.n_reused, "cache_write_tokens": 0}
        return {
            **self._response(_status(not cut)),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": {
                "input_tokens": n_prompt,
                "input_tokens_details": reused,
                "output_tokens": n_written,
                "output_tokens_details": {"reasoning_tokens": len(self._behind(thoughts))},
                "total_tokens": n_prompt + n_written,
            },
        }

    def _response(self, status: str) -> dict[str, Any]:
        state = {"status": status, "error": None, "incomplete_details": None, "usage": None}
        return {**self._head, **state, "output": list(self._output)}

    def _item(self, block: Block, status: str) -> dict[str, Any]:
        if block.thought:
            return _reasoning(self._id, block.text, status)
        if block.call is None:
            return _message(self._id, [_text(block.text)], status)
        return _call(self._id, block.call.id, block.call.name, block.text, status)

    def _of(self, block: Block, kind: str, **fields: Any) -> bytes:
        return self._event(kind, output_index=block.index, **fields)

    def _of_part(self, block: Block, kind: str, **fields: Any) -> bytes:
        return self._of(block, kind, item_id=self._id, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number - 1, **fields}, kind)


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


def _status(complete: bool) -> str:
    return "completed" if complete else "incomplete"


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message(id_: str, content: list[Any], status: str) -> dict[str, Any]:
    said = {"type": "message", "role": "assistant", "content": content}
    return {"id": id_, "status": status, **said}


def _reasoning(id_: str, text: str, status: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}] if text else []
    said = {"type": "reasoning", "summary": [], "content": content}
    return {"id": id_, "status": status, **said}


def _call(id_: str, call_id: str, name: str, arguments: str, status: str) -> dict[str, Any]:
    called = {"call_id": call_id, "name": name, "arguments": arguments}
    return {"id": id_, "type": "function_call", "status": status, **called}
