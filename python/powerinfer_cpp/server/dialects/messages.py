"""Anthropic's Messages API: bodies to chats, and answers as content blocks."""

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from ...text.grammar import LlamaGrammar
from ...text.tool_chat import Turn
from ...text.tools import Part, Thought
from ..errors import Refusal
from ..served import ServedModel
from ..settings import Settings
from ..texts import Job, event
from .asked import constraint, text_options, time_limit
from .bodies import Sampled, UpTo1, UpTo2, check_count, check_stops, typed
from .chats import Block, BlockForm, chat_request, chat_turn
from .dialect import ANTHROPIC
from .histories import of_messages
from .offered import Offered
from .parts import text_of

Content = str | list[dict[str, Any] | str]


class Message(msgspec.Struct, kw_only=True):
    """One of a body's messages."""

    role: Literal["user", "assistant", "system"]
    content: Content


class CountBody(Sampled, kw_only=True):
    """POST /v1/messages/count_tokens."""

    GRAMMARS = (*Sampled.GRAMMARS, "tools", "output_config", "output_format")

    messages: list[Message]
    system: Content | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None  # its name before output_config had a format
    temperature: UpTo2 | None = None  # Anthropic: up to 1
    top_p: UpTo1 | None = None


class MessagesBody(CountBody, kw_only=True):
    """POST /v1/messages."""

    max_tokens: int
    stop_sequences: list[str] | None = None


class _Choice(msgspec.Struct, kw_only=True):
    disable_parallel_tool_use: bool | None = None


class _ChosenTool(_Choice, kw_only=True):
    name: str


class _Format(msgspec.Struct, kw_only=True):
    schema: dict[str, Any]


_CHOICES: Mapping[str, type[_Choice]] = {
    "auto": _Choice,
    "any": _Choice,
    "none": _Choice,
    "tool": _ChosenTool,
}
_OPENAI_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def messages_job(
    model: ServedModel, name: str, body: MessagesBody, settings: Settings, owner: str
) -> Job:
    """The job of a message. Raises Refusal and ValueError."""
    check_count(body.max_tokens, "max_tokens")
    stops = body.stop_sequences or []
    check_stops(stops, "stop_sequences", settings)
    formats = {
        "output_config__format": _format("output_config.format", body.output_config),
        "output_format": _format("output_format", {"format": body.output_format}),
    }
    turn = _turn(model, body, constraint(body, **formats))
    request = chat_request(
        model,
        turn,
        stops,
        criteria=time_limit(model, body, turn.criteria),
        **text_options(model, body, settings, owner),
    )
    return Job(model, [request], MessagesForm(turn, name, stops))


def count_tokens(model: ServedModel, body: CountBody) -> int:
    """Tokens of the prompt. Raises Refusal and ValueError."""
    return len(model.prompts.ids(_turn(model, body, None).text))


def _turn(model: ServedModel, body: CountBody, grammar: LlamaGrammar | None) -> Turn:
    given = [{"role": each.role, "content": each.content} for each in body.messages]
    history = of_messages(given, model.omit_media)
    messages = history.messages
    if system := text_of("system", _kept(body.system)):
        messages.insert(0, {"role": "system", "content": system})
    choice, parallel = _choice(body.tool_choice)
    if len(messages) > 1 and messages[-1]["role"] == "assistant":
        _check_begun(messages[-1], grammar, choice)
    thinking = body.thinking(model.thinking, (body.output_config or {}).get("effort"))
    offered = Offered.of(body.tools, history.tools, anthropic=True)
    return chat_turn(model, messages, offered, choice, parallel, grammar, thinking)


# A client begins its system prompt with a block for the bill, which differs in each request: behind
# it, nothing of an earlier prompt would be known.
_BILL = "x-anthropic-billing-header"


def _kept(system: Content | None) -> Content | None:
    """What the system says, without what is for its service alone."""
    if not isinstance(system, list):
        return system
    return [
        block
        for block in system
        if not (isinstance(block, dict) and str(block.get("text")).startswith(_BILL))
    ]


def _check_begun(message: Mapping[str, Any], grammar: LlamaGrammar | None, choice: Any) -> None:
    """Refuses a last message of the assistant's that the answer cannot continue."""
    if message.get("tool_calls"):
        raise Refusal(400, "the last message calls a tool: its results must follow", "messages")
    if grammar is not None or choice not in (None, "auto", "none"):
        words = "the last message is the assistant's, and the answer must have another beginning"
        raise Refusal(400, words, "messages")


def _choice(given: Mapping[str, Any] | None) -> tuple[Any, bool | None]:
    """OpenAI's tool_choice and parallel_tool_calls."""
    if given is None:
        return None, None
    choice = typed("tool_choice", given, _CHOICES)
    parallel = not choice.disable_parallel_tool_use
    if isinstance(choice, _ChosenTool):
        return {"type": "function", "function": {"name": choice.name}}, parallel
    return _OPENAI_CHOICES[given["type"]], parallel


def _format(where: str, config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The format of a config as a response_format. where: names it in errors."""
    wanted = (config or {}).get("format")
    if wanted is None:
        return None
    if not isinstance(wanted, dict):
        raise Refusal(400, f"{where} must be an object", where)
    schema = typed(where, wanted, {"json_schema": _Format}).schema
    return {"type": "json_schema", "json_schema": {"schema": schema}}


class MessagesForm(BlockForm):
    """Content blocks. stops: the client's stop sequences."""

    dialect = ANTHROPIC

    def __init__(self, turn: Turn, model: str, stops: Sequence[str]):
        super().__init__(turn)
        self._model, self._stops = model, stops

    def answer(self, found: Sequence[Part]) -> Any:
        """The message."""
        content = [_block(part) for part in found]
        return {**self._message(content, self._usage()), **self._stop()}

    def opening(self) -> bytes:
        """message_start, with the counts of the prompt."""
        return _event("message_start", message=self._message([], self._usage()))

    def block_begins(self, block: Block) -> bytes:
        """content_block_start."""
        begun: dict[str, Any] = {"type": "text", "text": ""}
        if block.call is not None:
            begun = _tool_use(block.call.id, block.call.name, {})
        elif block.thought:
            begun = {"type": "thinking", "thinking": "", "signature": ""}
        return _event("content_block_start", index=block.index, content_block=begun)

    def block_grows(self, block: Block, text: str) -> bytes:
        """content_block_delta."""
        delta = {"type": "text_delta", "text": text}
        if block.call is not None:
            delta = {"type": "input_json_delta", "partial_json": text}
        elif block.thought:
            delta = {"type": "thinking_delta", "thinking": text}
        return _event("content_block_delta", index=block.index, delta=delta)

    def block_ends(self, block: Block) -> bytes:
        """content_block_stop; thoughts are signed before it."""
        data = b""
        if block.thought:
            delta = {"type": "signature_delta", "signature": _signature(block.text)}
            data = _event("content_block_delta", index=block.index, delta=delta)
        return data + _event("content_block_stop", index=block.index)

    def alive(self) -> bytes:
        """A ping."""
        return _event("ping")

    def end(self) -> bytes:
        """message_delta with the reason and all counts, and message_stop."""
        delta = _event("message_delta", delta=self._stop(), usage=self._usage())
        return delta + _event("message_stop")

    def _message(self, content: list[Any], usage: dict[str, int]) -> dict[str, Any]:
        return {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _usage(self) -> dict[str, int]:
        """Token counts: input_tokens are those that were computed."""
        reused = self.ticket.n_reused
        return {
            "input_tokens": len(self.ticket.request.ids) - reused,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": reused,
            "output_tokens": self.last.n_tokens,
        }

    def _stop(self) -> dict[str, str | None]:
        """Why the answer ended. Stop texts of the chat format are no stop sequences."""
        reason, stop = self.reason, self.last.stop
        if reason == "stop" and stop in self._stops:
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        named = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
        return {"stop_reason": named[reason], "stop_sequence": None}


def _block(part: Part) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, Thought):
        return {"type": "thinking", "thinking": part.text, "signature": _signature(part.text)}
    return _tool_use(part.id, part.name, msgspec.Raw(part.arguments.encode("utf-8")))


def _signature(thoughts: str) -> str:
    """Clients want one, and send it back; it proves nothing here."""
    return hashlib.sha256(thoughts.encode("utf-8", "surrogatepass")).hexdigest()


def _tool_use(id_: str, name: str, given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": given}


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)
