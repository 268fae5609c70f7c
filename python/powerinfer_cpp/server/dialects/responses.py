"""OpenAI's Responses API without its state: bodies to chats, and answers as items."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...text.tool_chat import Turn
from ...text.tools import Call, CallBegin, Part, Thought
from ..errors import Refusal
from ..served import ServedModel
from ..settings import Settings
from ..texts import Job, event
from .asked import constraint, text_options, time_limit
from .bodies import OpenAISampled, check_count
from .chats import Block, BlockForm, chat_request, chat_turn
from .histories import of_items
from .offered import Offered, choice_of

# Fields that ask for what a server keeps, and this one keeps nothing.
STATEFUL = ("previous_response_id", "conversation", "background", "prompt")


class ResponsesBody(OpenAISampled, kw_only=True):
    """POST /v1/responses."""

    GRAMMARS = (*OpenAISampled.GRAMMARS, "tools", "text")

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


def responses_job(
    model: ServedModel, name: str, body: ResponsesBody, settings: Settings, owner: str
) -> Job:
    """The job of a response. Raises Refusal and ValueError."""
    for field in STATEFUL:
        if getattr(body, field):
            raise Refusal(400, f"{field} is not supported: this server keeps no responses", field)
    check_count(body.max_output_tokens, "max_output_tokens")
    turn, offered = _turn(model, body)
    request = chat_request(
        model,
        turn,
        [],
        criteria=time_limit(model, body, turn.criteria),
        **text_options(model, body, settings, owner),
    )
    return Job(model, [request], ResponsesForm(turn, name, body, offered, model.prompts.behind))


def count_response_tokens(model: ServedModel, body: ResponsesBody) -> int:
    """Tokens of the prompt. Raises Refusal and ValueError."""
    return len(model.prompts.ids(_turn(model, body)[0].text))


def _turn(model: ServedModel, body: ResponsesBody) -> tuple[Turn, Offered]:
    given = body.input
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    history = of_items(given, body.instructions, model.omit_media)
    offered = Offered.of(body.tools, history.tools)
    turn = chat_turn(
        model,
        history.messages,
        offered,
        choice_of(body.tool_choice),
        body.parallel_tool_calls,
        constraint(body, text__format=_format(body.text)),
        body.thinking(model.thinking),
    )
    return turn, offered


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
    """Items of a response. offered: tells the kinds of calls. behind: tokens of a text."""

    def __init__(
        self,
        turn: Turn,
        model: str,
        body: ResponsesBody,
        offered: Offered,
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
        self._spaces, self._behind = offered.spaces, behind
        self._number = 0  # of the next event
        self._output: list[dict[str, Any]] = []
        self._id = ""  # of the item that is being written

    def answer(self, found: Sequence[Part]) -> Any:
        """The response."""
        for i, part in enumerate(found):
            if isinstance(part, Call):
                item = self._call(_new_id("fc"), part, part.arguments, "completed")
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

    def alive(self) -> bytes:
        """An event: Codex gives up after five minutes without one, and a comment is none."""
        return self._event("response.in_progress", response=self._response("in_progress"))

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
            return self._of(block, f"{_stream(block.call)}.delta", item_id=self._id, delta=text)
        if block.thought:
            return self._of_part(block, "response.reasoning_text.delta", delta=text)
        return self._of_part(block, "response.output_text.delta", delta=text, logprobs=[])

    def block_ends(self, block: Block) -> bytes:
        """What was written is told once more as a whole."""
        item = self._item(block, _status(block.complete))
        self._output.append(item)
        if block.call is not None:
            of = {"input": block.text}
            if not block.call.custom:
                of = {"name": item["name"], "arguments": block.text}
            data = self._of(block, f"{_stream(block.call)}.done", item_id=self._id, **of)
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
        return self._call(self._id, block.call, block.text, status)

    def _call(self, id_: str, call: Call | CallBegin, given: str, status: str) -> dict[str, Any]:
        space, name = self._spaces.get(call.name, (None, call.name))
        kind, field = (
            ("custom_tool_call", "input") if call.custom else ("function_call", "arguments")
        )
        called = {"call_id": call.id, "name": name, field: given}
        called |= {} if space is None else {"namespace": space}
        return {"id": id_, "type": kind, "status": status, **called}

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


def _stream(call: CallBegin) -> str:
    """The events of what a call is given."""
    return f"response.{'custom_tool_call_input' if call.custom else 'function_call_arguments'}"
