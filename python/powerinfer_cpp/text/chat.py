"""Prompts from chat messages: named chat formats, and a model file's own template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..core.logits import StoppingCriteriaList
from .customs import Customs
from .template import ChatTemplate
from .tools import Thoughts, ToolRequest, style_of, thoughts_of
from .tools.history import checked_calls, with_thoughts

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Prompt:
    """A prompt, and the stop strings of its format. criteria: functions that end the answer."""

    text: str
    stop: list[str] = field(default_factory=list)
    criteria: StoppingCriteriaList | None = None


class ChatFormat(Protocol):
    """Turns messages into a prompt. request: the tools that its answer may call, for a format that
    has a `style`; others get none. A format that `takes_names` gets further names for a template as
    keywords."""

    def __call__(
        self, messages: Sequence[Message], request: ToolRequest | None = None
    ) -> Prompt: ...


def content_text(message: Message) -> str:
    """The text of a message; the texts of a list of parts are joined.

    Raises ValueError for content that is not text.
    """
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        kinds = [part.get("type") if isinstance(part, Mapping) else None for part in content]
        if all(kind == "text" for kind in kinds):
            return "".join(str(part.get("text", "")) for part in content)
        raise ValueError("messages may hold text only, no images or other parts")
    raise ValueError("the content of a message must be text")


def check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages with their contents as text, arguments of tool calls as dicts, and thoughts, which
    are called `reasoning` or `thinking` as well, as `reasoning_content`.

    Raises ValueError for malformed messages.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise ValueError("messages must be a list of dicts with role and content")
    if not messages:
        raise ValueError("messages must hold at least one message")
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError("messages must be dicts with a role")
    return [_checked(f"messages[{i}]", message) for i, message in enumerate(messages)]


def _checked(where: str, message: Message) -> dict[str, Any]:
    found = {**message, "content": content_text(message)}
    calls = found.pop("tool_calls", None)
    if calls:  # templates ask whether the key is there; clients also send null
        found["tool_calls"] = checked_calls(where, calls)
    thoughts = None
    for name in _THOUGHTS:
        given = found.pop(name, None)
        if given is not None and not isinstance(given, str):
            raise ValueError(f"{where}.{name} must be text")
        thoughts = thoughts or given
    if thoughts and found["role"] == "assistant":
        found[_THOUGHTS[0]] = thoughts
    return found


_THOUGHTS = ("reasoning_content", "reasoning", "thinking")  # keys of a message


@dataclass(frozen=True)
class Turns:
    """A chat format with a prefix and a suffix for the text of each role.

    answer: beginning of the answer; None: the assistant's prefix. begin: beginning of the prompt.
    default_system: used without a system message; None: then there is no system turn. joined: puts
    the system's text into the first user message, with fields {system} and {user}. thoughts: how
    models of the format write them; None: they have none.
    """

    user: tuple[str, str]
    assistant: tuple[str, str]
    system: tuple[str, str] = ("", "\n")
    answer: str | None = None  # None: the assistant's prefix without the space at its end
    begin: str = ""
    default_system: str | None = None
    joined: str | None = None
    stop: tuple[str, ...] = ()
    thoughts: Thoughts | None = None

    def __call__(self, messages: Sequence[Message], request: ToolRequest | None = None) -> Prompt:
        turns = check_messages(messages)
        told = [m["content"] for m in turns if m["role"] == "system"]
        system = "\n".join(told) if told else self.default_system
        turns = [m for m in turns if m["role"] != "system"]
        parts = [self.begin]
        if system is not None and self.joined is not None:
            first = next((i for i, m in enumerate(turns) if m["role"] == "user"), None)
            if first is None:
                first = 0
                turns.insert(0, {"role": "user", "content": ""})
            # The later field first, so that a field name inside a message is not replaced.
            text = self.joined.replace("{user}", turns[first]["content"])
            text = text.replace("{system}", system, 1)
            turns[first] = {"role": "user", "content": text}
        elif system is not None:
            parts += [self.system[0], system, self.system[1]]
        for message in turns:
            role = message["role"]
            if role not in ("user", "assistant"):
                raise ValueError(f"this chat format has no role {role!r}")
            before, after = self.user if role == "user" else self.assistant
            parts += [before, message["content"], after]
        answer = self.assistant[0].rstrip(" ") if self.answer is None else self.answer
        return Prompt("".join(parts) + answer, [s for s in self.stop if s])


# Qwen 3 and others; a model that writes no tags has no thoughts.
_THINK = Thoughts("<think>", "</think>")
_CHATML = Turns(
    system=("<|im_start|>system\n", "<|im_end|>\n"),
    user=("<|im_start|>user\n", "<|im_end|>\n"),
    assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
    stop=("<|im_end|>",),
    thoughts=_THINK,
)
_LLAMA_2 = Turns(
    user=("<s>[INST] ", " [/INST]"),
    assistant=(" ", " </s>"),
    answer="",
    joined="<<SYS>>\n{system}\n<</SYS>>\n\n{user}",
    stop=("</s>",),
)


def _header(role: str) -> tuple[str, str]:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>"


# The public prompt formats of well-known models.
FORMATS: dict[str, Turns] = {
    "llama-2": _LLAMA_2,
    "llama-3": Turns(
        begin="<|begin_of_text|>",
        system=_header("system"),
        user=_header("user"),
        assistant=_header("assistant"),
        stop=("<|eot_id|>",),
    ),
    "chatml": _CHATML,
    "chatml-function-calling": _CHATML,  # calls need no format of their own: tool_chat.py
    "qwen": Turns(
        system=_CHATML.system,
        user=_CHATML.user,
        assistant=_CHATML.assistant,
        default_system="You are a helpful assistant.",
        stop=("<|im_end|>", "<|endoftext|>"),
        thoughts=_THINK,
    ),
    "mistral-instruct": Turns(
        begin="<s>",
        user=("[INST] ", " [/INST]"),
        assistant=(" ", "</s>"),
        answer="",
        joined="{system}\n\n{user}",
        stop=("</s>",),
    ),
    "gemma": Turns(
        begin="<bos>",
        user=("<start_of_turn>user\n", "<end_of_turn>\n"),
        assistant=("<start_of_turn>model\n", "<end_of_turn>\n"),
        joined="{system}\n\n{user}",
        stop=("<end_of_turn>",),
    ),
    "zephyr": Turns(
        system=("<|system|>\n", "</s>\n"),
        user=("<|user|>\n", "</s>\n"),
        assistant=("<|assistant|>\n", "</s>\n"),
        stop=("</s>",),
    ),
    "vicuna": Turns(
        system=("", " "),
        user=("USER: ", " "),
        assistant=("ASSISTANT: ", "</s>"),
        default_system="A chat between a curious user and an artificial intelligence assistant. "
        "The assistant gives helpful, detailed, and polite answers to the user's questions.",
        stop=("</s>", "USER:"),
    ),
    "alpaca": Turns(
        system=("", "\n\n"),
        user=("### Instruction:\n", "\n\n"),
        assistant=("### Response:\n", "\n\n"),
        default_system="Below is an instruction that describes a task. Write a response that "
        "appropriately completes the request.",
        stop=("### Instruction:", "</s>"),
    ),
    "open-orca": Turns(
        system=("", "<|end_of_turn|>\n"),
        user=("User: ", "<|end_of_turn|>\n"),
        assistant=("Assistant: ", "<|end_of_turn|>\n"),
        stop=("<|end_of_turn|>", "User:"),
    ),
    "openchat": Turns(
        system=("", "<|end_of_turn|>"),
        user=("GPT4 Correct User: ", "<|end_of_turn|>"),
        assistant=("GPT4 Correct Assistant: ", "<|end_of_turn|>"),
        begin="<s>",
        stop=("<|end_of_turn|>",),
    ),
    "phind": Turns(
        system=("### System Prompt\n", "\n\n"),
        user=("### User Message\n", "\n\n"),
        assistant=("### Assistant\n", "\n\n"),
        default_system="You are an intelligent programming assistant.",
        stop=("### User Message", "</s>"),
    ),
    "intel": Turns(
        system=("### System:\n", "\n"),
        user=("### User:\n", "\n"),
        assistant=("### Assistant:\n", "\n"),
        stop=("### User:", "</s>"),
    ),
    "mistrallite": Turns(
        system=("<|system|>", "</s>\n"),
        user=("<|prompter|>", "</s>\n"),
        assistant=("<|assistant|>", "</s>\n"),
        stop=("</s>",),
    ),
    "oasst_llama": Turns(
        system=("[INST] <<SYS>>\n", "\n<</SYS>>\n\n"),
        user=("<|prompter|>", "</s>\n"),
        assistant=("<|assistant|>", "</s>\n"),
        stop=("</s>",),
    ),
    "redpajama-incite": Turns(
        user=("<human>: ", "\n"),
        assistant=("<bot>: ", "\n"),
        stop=("<human>",),
    ),
    "chatglm3": Turns(
        system=("<|system|>\n ", "\n"),
        user=("<|user|>\n ", "\n"),
        assistant=("<|assistant|>\n ", "\n"),
        answer="<|assistant|>",
        stop=("<|user|>", "<|observation|>"),
    ),
    "saiga": Turns(
        system=("<s>system\n", "</s>\n"),
        user=("<s>user\n", "</s>\n"),
        assistant=("<s>bot\n", "</s>\n"),
        answer="<s>bot",
        stop=("</s>", "<s>"),
    ),
    "baichuan": Turns(
        user=("<reserved_102>", ""),
        assistant=("<reserved_103>", ""),
        system=("", ""),
        stop=("<reserved_102>",),
    ),
    "baichuan-2": Turns(
        user=("<reserved_106>", ""),
        assistant=("<reserved_107>", ""),
        system=("", ""),
        stop=("<reserved_106>",),
    ),
    "openbuddy": Turns(
        user=("User: ", "\n"),
        assistant=("Assistant: ", "\n"),
        system=("", "\n\n"),
        stop=("User:",),
    ),
    "snoozy": Turns(
        user=("### Prompt:\n", "\n"),
        assistant=("### Response:\n", "\n"),
        system=("### Instruction:\n", "\n"),
        default_system="The prompt below is a question to answer, a task to complete, or a "
        "conversation to respond to; decide which and write an appropriate response.",
        stop=("### Prompt:",),
    ),
    "pygmalion": Turns(
        user=("<|user|>", "\n"),
        assistant=("<|model|>", "\n"),
        system=("<|system|>", "\n"),
        stop=("<|user|>",),
    ),
}


# Of models without a template, as in llama-cpp-python.
FALLBACK = "llama-2"

# Handlers of whole chats that a program has added, by their names: llama_chat_format.py.
registered: dict[str, Any] = {}


def named_format(name: str) -> ChatFormat:
    """The format with this name. Raises ValueError for an unknown name."""
    if name not in FORMATS:
        known = ", ".join([*FORMATS, *registered])
        raise ValueError(f"chat_format {name!r} is unknown; known are {known}")
    return FORMATS[name]


def chosen(name: str | None, handler: Any) -> tuple[Any, ChatFormat | None]:
    """The handler of whole chats, and the format that is used without or by it; each may be None.

    name: of a format or a registered handler. Raises ValueError if there is none, and if the
    handler cannot be called.
    """
    if name is not None and not isinstance(name, str):
        raise ValueError(f"chat_format must be the name of a format, not {name!r}")
    if handler is None and name in registered:
        handler = registered[name]
    if handler is None:
        return None, named_format(name) if name else None
    if not callable(handler):
        raise ValueError("chat_handler must be a function that answers chats")
    return handler, getattr(handler, "format", None)


class TemplateFormat:
    """The format of a model file's template. Raises TemplateError (a ValueError).

    source: the template. style: how it writes calls of tools; None if it knows none, or in a way
    that is not known here. thoughts: how it writes thoughts; None: it has none.
    """

    takes_names = True

    def __init__(self, source: str, bos: str, eos: str):
        self.source = source
        self.style, self._eos = style_of(source), eos
        self._template = ChatTemplate(source, bos, eos)
        self._customs = Customs(self._template, self.style)
        self.thoughts = thoughts_of(source, self._template.rendered)

    def __call__(
        self,
        messages: Sequence[Message],
        request: ToolRequest | None = None,
        /,
        add_generation_prompt: bool = True,
        **names: Any,
    ) -> Prompt:
        checked = with_thoughts(check_messages(messages), self.thoughts)
        fitted = self._customs.fitted(checked)
        offered = self._template.without_tools
        if request is not None:
            offered = {**offered, "tools": [tool.as_dict() for tool in request.tools]}
        text = self._template.render(fitted, add_generation_prompt, **{**offered, **names})
        return Prompt(text, [self._eos] if self._eos else [])
