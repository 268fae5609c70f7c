"""One turn of a chat: its prompt, its grammar, and the parser of its thoughts and calls."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..core.logits import StoppingCriteriaList
from ..core.model import Model
from ..core.state import common_prefix
from .chat import ChatFormat, Message, Prompt, check_messages
from .grammar import LlamaGrammar
from .thinking import EFFORT_NAMES, Thinking
from .thought_limit import ThoughtLimit
from .tools import (
    HERMES,
    STYLES,
    Parser,
    Style,
    Thoughts,
    ToolRequest,
    parser_of,
)
from .tools.history import has_tools, without_tools


@dataclass(frozen=True)
class Turn:
    """What generates an answer. parser: turns its text into events; None: all of it is content.

    shown: ids of control tokens that are part of the text, by their texts. criteria: functions of
    the format that end the answer. limit: of its thoughts, for which a grammar waits; None: there
    is nothing to watch. shared: how many characters of the text other prompts are expected to
    begin with.
    """

    text: str
    stop: list[str]
    grammar: LlamaGrammar | None = None
    parser: Parser | None = None
    shown: dict[str, int] = field(default_factory=dict)
    criteria: StoppingCriteriaList | None = None
    limit: ThoughtLimit | None = None
    shared: tuple[int, ...] = ()


def prepare(
    chat_format: ChatFormat,
    messages: Sequence[Message],
    request: ToolRequest | None,
    control: Callable[[Iterable[str]], dict[str, int]],
    grammar: LlamaGrammar | None = None,
    thinking: Thinking | None = None,
    compare: bool = False,
) -> Turn:
    """The turn that answers messages.

    control: control_tokens of the model. grammar: one that the caller wants. compare: finds what
    the prompt shares with others. Raises the errors of the format, and ValueError if a forced call
    cannot be constrained.
    """
    thinking = thinking or Thinking()
    forced = request is not None and request.forced
    if forced and grammar is not None:
        raise ValueError("tool_choice forces a call, so there can be no other grammar")
    constrained = forced or grammar is not None
    messages, begun = _begun(messages, thinking, constrained)
    prompt, style = _prompt(chat_format, messages, request, thinking)
    shared = []
    for other in _others(messages) if compare else ():
        with suppress(ValueError):  # the format may refuse it
            said = _prompt(chat_format, other, request, thinking)[0].text
            shared.append(_common(prompt.text, said))
    tags: Thoughts | None = getattr(chat_format, "thoughts", None)
    text, in_messages = prompt.text, bool(style.answer)
    text += "" if begun is None else _beginning(begun, tags, text, style.answer)
    closes = tags is not None and tags.opened_by(text)
    # The template knows no way to turn thoughts off; or they are a message, which a call ends.
    closes = closes and (thinking.on is False or (in_messages and constrained))
    if closes:
        text += f"{tags.closing}{NEXT}" if in_messages else tags.tail
    answers = in_messages and not forced and bool(closes or grammar or begun and begun["content"])
    text += style.answer if answers and begun is None else ""
    thinks = begun is not None and not begun["content"] and "reasoning_content" in begun
    opened = tags is not None and (tags.opened_by(text) or thinks)
    has_begun = begun is not None and bool(begun["content"] or begun.get("reasoning_content"))
    waits = opened and constrained
    if forced and not style.can_force(request):
        style = HERMES
    how = {"opened": opened, "begun": has_begun, "waits": waits, "raw": thinking.raw}
    parser = parser_of(style, request, tags, **how)
    if in_messages and (answers or opened):  # it sees how the answer begins
        has_thought = begun["reasoning_content"].rstrip() if thinks else ""
        parser.push(style.answer if answers else tags.head + has_thought)
    shown = control(_control(style, request, tags)) if parser or tags else {}
    if forced:
        assert request is not None
        calls = style.forced(request)
        if opened:  # thoughts come first, so the prompt cannot end with the beginning of a call
            calls["before"] = style.begin + calls["before"]
        else:
            text += "" if text.endswith(style.begin) else style.begin
            parser.push(style.begin)
        grammar = LlamaGrammar.from_tool_calls(calls, shown)
    limit = None
    if tags is not None and (waits if constrained else thinking.budget is not None):
        limit = ThoughtLimit(tags, opened, thinking.budget, shown)
    # A grammar says where its text ends, which may have the words of the format in it.
    stop = [] if constrained else prompt.stop
    return Turn(text, stop, grammar, parser, shown, prompt.criteria, limit, tuple(shared))


_OTHER = "\ue000"  # a text that begins like no other


def _others(messages: Sequence[Message]) -> Iterable[Sequence[Message]]:
    """Chats whose prompts are likely to be asked for, too: the next turn, for which templates may
    leave out the thoughts of this one; and another last message of the user, which is what chats
    with the same system prompt, or an edited message, differ in."""
    answered = {"role": "assistant", "content": _OTHER}, {"role": "user", "content": _OTHER}
    yield [*messages, *answered]
    last = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=None)
    if last is not None:
        yield [*messages[:last], {**messages[last], "content": _OTHER}, *messages[last + 1 :]]


def _common(a: str, b: str) -> int:
    """How many characters two texts begin with alike."""
    return common_prefix(
        *(np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4") for text in (a, b))
    )


# What templates know instead, which refuse other words.
_KNOWN_EFFORTS = {
    "harmony": {"minimal": "low", "xhigh": "high", "max": "high"},
    "hunyuan": {"minimal": "low", "medium": "high", "xhigh": "high", "max": "high"},
    "kimi-3": {"minimal": "low", "medium": "high", "xhigh": "max"},
    "atem": {"minimal": "low", "max": "xhigh"},
}
# Words that turn thoughts on, and off as far as that goes, where a template has no other way.
_SWITCHES = {
    "harmony": {False: "low"},
    "atem": {False: "low"},
    "hunyuan": {False: "no_think", True: "high"},
}
NEXT = "<|start|>assistant"  # with what messages begin behind others
# Texts of control tokens that end messages, which need not end the answer.
_ENDS = {text for style in STYLES.values() if style.answer for text in style.control}


def _control(style: Style, request: ToolRequest | None, tags: Thoughts | None) -> list[str]:
    """Texts that the parser looks for."""
    found = list(style.control) if request is not None or style.answer else []
    return found if tags is None else [*found, tags.opening, tags.closing, tags.lead]


def control_tokens(model: Model, texts: Iterable[str]) -> dict[str, int]:
    """Ids of the control tokens of which texts are made, by their own texts.

    A token that ends answers goes on doing that, but for those whose messages it ends, and Solar.
    """
    found = {}
    for text in texts:
        for token in model.tokenize(text.encode("utf-8"), special=True):
            data = model.text(token, True)
            ends = model.ends(token) and text not in _ENDS
            if data and not model.text(token) and not ends:
                found[data.decode("utf-8", "replace")] = token
    return found


def _begun(
    messages: Sequence[Message], thinking: Thinking, constrained: bool
) -> tuple[Sequence[Message], Mapping[str, Any] | None]:
    """The messages before the answer, and a last one of the assistant's that the answer continues.
    Raises ValueError if it cannot."""
    last = messages[-1] if isinstance(messages, Sequence) and len(messages) > 1 else None
    is_answer = isinstance(last, Mapping) and last.get("role") == "assistant"
    if not is_answer:
        if thinking.continues:
            raise ValueError(
                "continue_final_message: the last message must be one of the assistant's, behind "
                "another one"
            )
        return messages, None
    if thinking.continues and constrained:
        raise ValueError(
            "continue_final_message: the last message is the assistant's, and the answer must have "
            "another beginning"
        )
    if thinking.continues and last.get("tool_calls"):
        raise ValueError(
            "continue_final_message: the last message calls a tool: its results must follow"
        )
    free = not constrained and not last.get("tool_calls") and thinking.begins
    if thinking.continues is False or not (thinking.continues or free):
        return messages, None
    (checked,) = check_messages(messages[-1:])
    return messages[:-1], checked


def _beginning(begun: Mapping[str, Any], tags: Thoughts | None, prompt: str, answer: str) -> str:
    """What a begun answer adds to a prompt. Text means that the thoughts are over. answer: as in
    Style."""
    content, thoughts = begun["content"], begun.get("reasoning_content", "")
    if content and (tags is None or not thoughts and answer):
        return answer + content
    if tags is None:
        return content
    head = "" if tags.opened_by(prompt) or not thoughts else tags.head
    if not content:
        return head + thoughts
    closed = tags.opened_by(prompt) or thoughts
    return head + thoughts + (tags.tail if closed else "") + content


def _prompt(
    chat_format: ChatFormat,
    messages: Sequence[Message],
    request: ToolRequest | None,
    thinking: Thinking,
) -> tuple[Prompt, Style]:
    """The prompt, and how its answer will write calls.

    Formats without tools get a description of them, and of calls in the style of Hermes.
    """
    names: dict[str, Any] = {}
    style = getattr(chat_format, "style", None)
    if getattr(chat_format, "takes_names", False):
        names = thinking.template_names()
        of = style.name if style is not None else ""
        switch = _SWITCHES.get(of, {}).get(thinking.on)
        if switch is not None:  # a word that is asked for counts more than that it thinks
            told = dict.fromkeys(EFFORT_NAMES, switch)
            names = {**told, **names} if thinking.on else names | told
        known = _KNOWN_EFFORTS.get(of, {})
        names |= {name: known.get(names[name], names[name]) for name in EFFORT_NAMES & names.keys()}
        if not thinking.begins and not thinking.continues:
            names["add_generation_prompt"] = False
    if style is not None:
        return chat_format(messages, request, **names), style
    checked = check_messages(messages)
    if request is None and not has_tools(checked):
        return chat_format(messages, **names), HERMES
    return chat_format(without_tools(checked, request), **names), HERMES
