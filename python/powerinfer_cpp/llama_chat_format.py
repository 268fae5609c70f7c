"""Chat formats under the names of llama-cpp-python's module, and how to add others.

A formatter turns messages into a prompt: `Llama` then does the rest (tools, grammars, streams), as
with its own formats. A handler answers a chat by itself, with whatever it calls of the `Llama`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .core.logits import Ids, Scores, StoppingCriteriaList
from .text import chat
from .text.customs import Customs
from .text.template import ChatTemplate
from .text.tools import ToolRequest, style_of, thoughts_of
from .text.tools.history import with_thoughts

Messages = Sequence[Mapping[str, Any]]


@dataclass
class ChatFormatterResponse:
    """A prompt. stop: texts that end the answer. stopping_criteria: functions that end it.

    added_special: there for llama-cpp-python's sake; a prompt gets BOS if the file asks for it and
    it does not begin with it.
    """

    prompt: str
    stop: str | list[str] | None = None
    stopping_criteria: StoppingCriteriaList | None = None
    added_special: bool = False


class ChatFormatter(Protocol):
    """Turns messages into a prompt. Further keywords: functions, function_call (both None), tools,
    tool_choice."""

    def __call__(self, *, messages: Any, **kwargs: Any) -> ChatFormatterResponse: ...


class LlamaChatCompletionHandler(Protocol):
    """Answers a chat: gets the `Llama` and all arguments of create_chat_completion, and gives what
    that gives."""

    def __call__(self, *, llama: Any, messages: Any, **kwargs: Any) -> Any: ...


class LlamaChatCompletionHandlerNotFoundException(ValueError):
    """There is no chat format with this name."""


class Jinja2ChatFormatter:
    """A formatter that renders a Jinja template, in a process with limits like the templates of
    files.

    eos_token, bos_token: texts of these tokens; the first one ends the answer, as does each of
    stop_token_ids. Raises TemplateError (a ValueError) for what is no template, and when it refuses
    messages.
    """

    def __init__(
        self,
        template: str,
        eos_token: str,
        bos_token: str,
        add_generation_prompt: bool = True,
        stop_token_ids: Sequence[int] | None = None,
    ):
        self.template, self.eos_token, self.bos_token = template, eos_token, bos_token
        self.add_generation_prompt = add_generation_prompt
        self.stop_token_ids = None if stop_token_ids is None else set(stop_token_ids)
        self.style = style_of(template)  # how it writes calls of tools
        self._template = ChatTemplate(template, bos_token, eos_token)
        self.customs = Customs(self._template, self.style)
        self.thoughts = thoughts_of(template, self._template.rendered)

    def __call__(self, *, messages: Messages, **kwargs: Any) -> ChatFormatterResponse:
        """The prompt. kwargs: further names for the template."""
        names = {"functions": None, **kwargs}
        if names.get("tools") is None:
            names |= self._template.without_tools
        begins = names.pop("add_generation_prompt", self.add_generation_prompt)
        prompt = self._template.render(list(messages), begins, **names)
        stop = [self.eos_token] if self.eos_token else []
        return ChatFormatterResponse(prompt, stop, self._criteria(), added_special=True)

    def to_chat_handler(self) -> "FormatHandler":
        """For `Llama(chat_handler=)`."""
        return FormatHandler(self)

    def _criteria(self) -> StoppingCriteriaList | None:
        ends = self.stop_token_ids
        if ends is None:
            return None

        def ended(ids: Ids, logits: Scores) -> bool:
            return int(ids[-1]) in ends

        return StoppingCriteriaList([ended])


class _Format:
    """A formatter as a chat.ChatFormat."""

    def __init__(self, formatter: ChatFormatter):
        self._formatter = formatter
        self.style = getattr(formatter, "style", None)
        self.thoughts = getattr(formatter, "thoughts", None)
        self.takes_names = isinstance(formatter, Jinja2ChatFormatter)

    def __call__(
        self, messages: Messages, request: ToolRequest | None = None, /, **names: Any
    ) -> chat.Prompt:
        checked = with_thoughts(chat.check_messages(messages), self.thoughts)
        if isinstance(self._formatter, Jinja2ChatFormatter):
            checked = self._formatter.customs.fitted(checked)
        tools = None if request is None else [tool.as_dict() for tool in request.tools]
        # With the names that llama-cpp-python gives: a formatter may want any of them.
        given = {
            "messages": checked,
            "functions": None,
            "function_call": None,
            "tools": tools,
            "tool_choice": None if request is None else request.choice,
        }
        found = self._formatter(**{**given, **names})
        stop = [found.stop] if isinstance(found.stop, str) else list(found.stop or [])
        return chat.Prompt(found.prompt, stop, found.stopping_criteria)


class FormatHandler:
    """A handler that answers as `Llama` does, with a formatter's prompt."""

    def __init__(self, formatter: ChatFormatter):
        self.format = _Format(formatter)

    def __call__(self, *, llama: Any, messages: Messages, **kwargs: Any) -> Any:
        """What llama.create_chat_completion gives; kwargs: its other arguments."""
        known = inspect.signature(llama.create_chat_completion).parameters.values()
        defaults = {p.name: p.default for p in known if p.default is not p.empty}
        given = {**defaults, **{name: kwargs.pop(name) for name in defaults if name in kwargs}}
        return llama._answer({**given, "messages": messages, "sampling": kwargs}, self.format)


chat_formatter_to_chat_completion_handler = FormatHandler


class LlamaChatCompletionHandlerRegistry:
    """The handlers that `Llama(chat_format=)` finds by name, beside the formats of chat.FORMATS.

    All instances are the same registry.
    """

    def register_chat_completion_handler(
        self, name: str, chat_handler: LlamaChatCompletionHandler, overwrite: bool = False
    ) -> None:
        """Adds a handler. Raises ValueError for a name that is taken, unless overwrite."""
        if not overwrite and (name in chat.FORMATS or name in chat.registered):
            raise ValueError(f"chat_format {name!r} is registered already: pass overwrite=True")
        chat.registered[name] = chat_handler

    def unregister_chat_handler(self, name: str) -> None:
        """Removes a handler. Raises ValueError if none was registered under this name."""
        if chat.registered.pop(name, None) is None:
            raise ValueError(f"no chat_format {name!r} is registered")

    def get_chat_completion_handler_by_name(self, name: str) -> LlamaChatCompletionHandler:
        """The handler. Raises LlamaChatCompletionHandlerNotFoundException."""
        if name in chat.registered:
            return chat.registered[name]
        try:
            return FormatHandler(_formatter(name))
        except ValueError as error:
            raise LlamaChatCompletionHandlerNotFoundException(str(error)) from None


def get_chat_completion_handler(name: str) -> LlamaChatCompletionHandler:
    """The handler with this name. Raises LlamaChatCompletionHandlerNotFoundException."""
    return LlamaChatCompletionHandlerRegistry().get_chat_completion_handler_by_name(name)


def register_chat_completion_handler(name: str) -> Callable[[Any], Any]:
    """A decorator that registers a handler for `Llama(chat_format=name)`."""

    def decorate(handler: Any) -> Any:
        LlamaChatCompletionHandlerRegistry().register_chat_completion_handler(name, handler)
        return handler

    return decorate


def register_chat_format(name: str) -> Callable[[Any], Any]:
    """A decorator that registers a formatter for `Llama(chat_format=name)`."""

    def decorate(formatter: Any) -> Any:
        handler = FormatHandler(formatter)
        LlamaChatCompletionHandlerRegistry().register_chat_completion_handler(name, handler)
        return formatter

    return decorate


def hf_tokenizer_config_to_chat_formatter(
    tokenizer_config: Mapping[str, Any], add_generation_prompt: bool = True
) -> Jinja2ChatFormatter:
    """The formatter of a tokenizer_config.json. Raises ValueError if it has no chat_template."""
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {each["name"]: each["template"] for each in template}
        template = named.get("default")
    if not isinstance(template, str):
        raise ValueError("the tokenizer_config has no chat_template")
    eos, bos = (
        str(token["content"] if isinstance(token, Mapping) else token or "")
        for token in map(tokenizer_config.get, ("eos_token", "bos_token"))
    )
    return Jinja2ChatFormatter(template, eos, bos, add_generation_prompt)


def hf_tokenizer_config_to_chat_completion_handler(
    tokenizer_config: Mapping[str, Any], add_generation_prompt: bool = True
) -> FormatHandler:
    """The same as a handler."""
    return FormatHandler(
        hf_tokenizer_config_to_chat_formatter(tokenizer_config, add_generation_prompt)
    )


def _formatter(name: str) -> ChatFormatter:
    """A format of chat.FORMATS as a formatter. Raises ValueError for an unknown name."""
    known = chat.named_format(name)

    def formatter(messages: Messages, **kwargs: Any) -> ChatFormatterResponse:
        prompt = known(messages)
        return ChatFormatterResponse(prompt.text, list(prompt.stop))

    formatter.__doc__ = f"The prompt of chat_format {name!r}."
    return formatter


format = _formatter("vicuna")  # llama-cpp-python's name for it
format_alpaca = _formatter("alpaca")
format_baichuan = _formatter("baichuan")
format_baichuan2 = _formatter("baichuan-2")
format_chatglm3 = _formatter("chatglm3")
format_chatml = _formatter("chatml")
format_gemma = _formatter("gemma")
format_intel = _formatter("intel")
format_llama2 = _formatter("llama-2")
format_llama3 = _formatter("llama-3")
format_mistral_instruct = _formatter("mistral-instruct")
format_mistrallite = _formatter("mistrallite")
format_oasst_llama = _formatter("oasst_llama")
format_open_orca = _formatter("open-orca")
format_openbuddy = _formatter("openbuddy")
format_openchat = _formatter("openchat")
format_phind = _formatter("phind")
format_pygmalion = _formatter("pygmalion")
format_qwen = _formatter("qwen")
format_redpajama_incite = _formatter("redpajama-incite")
format_saiga = _formatter("saiga")
format_snoozy = _formatter("snoozy")
format_zephyr = _formatter("zephyr")
