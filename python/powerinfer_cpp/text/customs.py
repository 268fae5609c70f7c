"""What a chat template takes of a chat, and chats changed so that it takes them.

A template is asked once, by rendering small chats with words that nobody writes: what it does with
the texts of one request says nothing about those of the next.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any

from .template import ChatTemplate, suppressed_refusal
from .tools import Style
from .tools.history import with_names, with_text_arguments, with_told_results, with_written_calls

Message = dict[str, Any]


def _says(role: str, text: str) -> Message:
    return {"role": role, "content": text}


_ARGUMENTS = {"qzkey": "qzvalue"}
_PROPERTIES = {"qzkey": {"type": "string", "description": "qz"}}
_TOOL = {
    "name": "qzname",
    "description": "qz",
    "parameters": {"type": "object", "properties": _PROPERTIES, "required": ["qzkey"]},
}
_TOOLS = [{"type": "function", "function": _TOOL}]
_ASK, _SAID, _AGAIN = _says("user", "qzask"), _says("assistant", "qzsaid"), _says("user", "qzagain")
_FIRST, _LATER = _says("system", "qzfirst"), _says("system", "qzlater")
_RESULT = {**_says("tool", "qzresult"), "tool_call_id": "qzcall000", "name": "qzname"}


def _called(arguments: Any) -> Message:
    function = {"name": "qzname", "arguments": arguments}
    call = {"id": "qzcall000", "type": "function", "function": function}
    return {**_says("assistant", ""), "tool_calls": [call]}


class Customs:
    """What one template takes.

    style: how it writes calls; None: it knows none, or in a way that is not known here.
    """

    def __init__(self, template: ChatTemplate, style: Style | None):
        self._template, self._style = template, style
        self._takes_calls = "tool_calls" in template.source

    def fitted(self, messages: Sequence[Message]) -> list[Message]:
        """(Checked) messages as the template takes them. Raises TemplateError by a limit.

        What the system says stands before the user's next message where the template refuses or
        drops it, and results are the user's; a message that may not follow the one before is joined
        to it, and an empty one of the user's comes first where there must be one.
        """
        found = self._shaped([dict(message) for message in with_names(messages)])
        if any("tool_calls" in message for message in found) and self._wants_texts:
            found = [dict(message) for message in with_text_arguments(found)]
        if any(message["role"] == "tool" for message in found) and not self._takes_results:
            found = [dict(message) for message in with_told_results(found)]
        if any(message["role"] == "system" for message in found):
            found = self._folded(found)
        if self._lacks_question(found):
            n_heads = len(list(takewhile(_is_system, found)))
            found = [*found[:n_heads], {"role": "user", "content": ""}, *found[n_heads:]]
        groups: list[list[Message]] = []
        for message in found:
            if groups and not self._may_follow(groups[-1][-1], message):
                groups[-1].append(message)
            else:
                groups.append([message])
        return [_joined(group) for group in groups]

    def _shaped(self, messages: Sequence[Message]) -> list[Message]:
        """Messages with their calls as the style has them."""
        if self._style is None:
            return list(messages)
        found = self._style.history(list(messages))
        if self._takes_calls:
            return found
        return [dict(message) for message in with_written_calls(found, self._style.written)]

    def _folded(self, messages: Sequence[Message]) -> list[Message]:
        """Messages with the system's where they may stand."""
        heads = list(takewhile(_is_system, messages))
        if len(heads) > 1 and self._takes_system and not self._takes_later_system:
            messages = [_joined(heads), *messages[len(heads) :]]
        found: list[Message] = []
        held: list[Message] = []
        for i, message in enumerate(messages):
            role = message["role"]
            if role == "system" and not (self._takes_later_system if i else self._takes_system):
                held.append({**message, "role": "user"})
                continue
            if held and role == "user":
                message, held = _joined([*held, message]), []
            elif held and role != "tool":  # results stay behind their calls
                found.append(_joined(held))
                held = []
            found.append(message)
        return [*found, _joined(held)] if held else found

    def _lacks_question(self, messages: Sequence[Message]) -> bool:
        """Must a message of the user's come first?"""
        if not any(message["role"] == "user" for message in messages):
            return not self._takes_no_question
        said = next(message for message in messages if not _is_system(message))
        return said["role"] == "assistant" and not self._takes_answer_first

    def _may_follow(self, before: Message, message: Message) -> bool:
        roles = before["role"], message["role"]
        if roles == ("user", "user"):
            return self._takes_neighbours
        if roles == ("assistant", "assistant"):
            return "tool_calls" in before or self._takes_neighbours
        return roles != ("tool", "user") or self._takes_user_behind_results

    # ---- What the template is asked -------------------------------------------------------

    @cached_property
    def _wants_texts(self) -> bool:
        """Does it write the arguments of calls as they are, so that they must be JSON texts? Others
        would write a text as a string of JSON."""
        shown = self._rendered(_ASK, _called(_ARGUMENTS), _RESULT)
        if shown is not None and str(_ARGUMENTS) not in shown:
            return False
        text = json.dumps(_ARGUMENTS)
        return text in (self._rendered(_ASK, _called(text), _RESULT) or "")

    @cached_property
    def _takes_system(self) -> bool:
        return self._shows(_FIRST, _ASK) or not self._shows(_ASK)

    @cached_property
    def _takes_later_system(self) -> bool:
        """Not only as the first message?"""
        return self._shows(_ASK, _SAID, _LATER, _AGAIN) or not self._shows(_ASK, _SAID, _AGAIN)

    @cached_property
    def _takes_no_question(self) -> bool:
        return self._shows(_SAID) or not self._shows(_ASK, _SAID)

    @cached_property
    def _takes_answer_first(self) -> bool:
        return self._shows(_SAID, _AGAIN) or not self._shows(_ASK, _SAID, _AGAIN)

    @cached_property
    def _takes_neighbours(self) -> bool:
        return self._shows(_ASK, _AGAIN) or not self._shows(_ASK)

    @cached_property
    def _takes_results(self) -> bool:
        return self._shows(_ASK, self._call, _RESULT) or not self._shows(_ASK, self._call)

    @cached_property
    def _takes_user_behind_results(self) -> bool:
        return self._shows(_ASK, self._call, _RESULT, _AGAIN) or not self._takes_results

    @property
    def _call(self) -> Message:
        return _called(json.dumps(_ARGUMENTS) if self._wants_texts else _ARGUMENTS)

    def _shows(self, *messages: Message) -> bool:
        """Does a prompt have the texts of all these messages?"""
        text = self._rendered(*messages)
        return text is not None and all(message["content"] in text for message in messages)

    def _rendered(self, *messages: Message) -> str | None:
        """The prompt; None if the template refuses the messages."""
        called = any("tool_calls" in message for message in messages)
        names = self._template.without_tools
        names = {**names, "tools": _TOOLS} if called else names
        with suppressed_refusal():
            return self._template.render(self._shaped(messages), **names)
        return None


def _is_system(message: Message) -> bool:
    return bool(message["role"] == "system")


def _joined(group: Sequence[Message]) -> Message:
    """Messages as one: the first, with the texts and calls of all."""
    if len(group) == 1:
        return group[0]
    texts = [message["content"] for message in group if message["content"]]
    found = {**group[0], **group[-1], "role": group[0]["role"], "content": "\n\n".join(texts)}
    calls = [call for message in group for call in message.get("tool_calls", ())]
    return {**found, "tool_calls": calls} if calls else found
