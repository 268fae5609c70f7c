"""One turn of a chat in which tools may be called: its prompt, its grammar, and its parser."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..core.logits import StoppingCriteriaList
from ..core.model import Model
from .chat import ChatFormat, Message, Prompt, check_messages
from .grammar import LlamaGrammar
from .template import TemplateError
from .tools import HERMES, Style, ToolParser, ToolRequest
from .tools.history import has_tools, without_tools


@dataclass(frozen=True)
class Turn:
    """What generates an answer. parser: turns its text into events; None: all of it is content.

    shown: ids of control tokens that are part of the text, by their texts. criteria: functions of
    the format that end the answer.
    """

    text: str
    stop: list[str]
    grammar: LlamaGrammar | None = None
    parser: ToolParser | None = None
    shown: dict[str, int] = field(default_factory=dict)
    criteria: StoppingCriteriaList | None = None


def prepare(
    chat_format: ChatFormat,
    messages: Sequence[Message],
    request: ToolRequest | None,
    control: Callable[[Style], dict[str, int]],
    grammar: LlamaGrammar | None = None,
) -> Turn:
    """The turn that answers messages.

    control: control_tokens of the model. grammar: one that the caller wants. Raises the errors of
    the format, and ValueError if a forced call cannot be constrained.
    """
    prompt, style = _prompt(chat_format, messages, request)
    ends = prompt.criteria
    if request is None:
        return Turn(prompt.text, prompt.stop, grammar, criteria=ends)
    shown, parser = control(style), ToolParser(style, request.names)
    if not request.forced:
        return Turn(prompt.text, prompt.stop, grammar, parser, shown, ends)
    if grammar is not None:
        raise ValueError("tool_choice forces a call, so there can be no other grammar")
    grammar = LlamaGrammar.from_tool_calls(style.forced(request), shown)
    parser.push(style.begin)  # the prompt ends with it, so it is not generated
    return Turn(prompt.text + style.begin, prompt.stop, grammar, parser, shown, ends)


def control_tokens(model: Model, style: Style) -> dict[str, int]:
    """Ids of the control tokens with which a model writes a style's calls, by their texts."""
    found = {}
    for text in style.control:
        data = text.encode("utf-8")
        for token in model.tokenize(data, special=True):
            if model.text(token, True) == data and not model.text(token):
                found[text] = token
    return found


def _prompt(
    chat_format: ChatFormat, messages: Sequence[Message], request: ToolRequest | None
) -> tuple[Prompt, Style]:
    """The prompt, and how its answer will write calls.

    Formats without tools get a description of them, and of calls in the style of Hermes.
    """
    style = getattr(chat_format, "style", None)
    if style is not None:
        return chat_format(messages, request), style
    checked = check_messages(messages)
    if request is None and not has_tools(checked):
        return chat_format(messages), HERMES
    try:
        return chat_format(without_tools(checked, request)), HERMES
    except TemplateError:  # it may refuse messages of the system
        return chat_format(without_tools(checked, request, system=False)), HERMES
