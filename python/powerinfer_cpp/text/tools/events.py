"""What an answer consists of, as it is written: texts, thoughts and calls; and their dicts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, AnyStr, Protocol


@dataclass(frozen=True)
class Content:
    """Text outside of thoughts and calls."""

    text: str


@dataclass(frozen=True)
class Thought:
    """A piece of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True)
class CallBegin:
    """The beginning of a call. index: calls of an answer are counted from 0. custom: its arguments
    are a free text, as of OpenAI's custom tools."""

    index: int
    id: str
    name: str
    custom: bool = False


@dataclass(frozen=True)
class CallArguments:
    """The next piece of a call's arguments: a JSON text or, custom, a free one."""

    index: int
    text: str
    custom: bool = False


@dataclass(frozen=True)
class CallEnd:
    """The end of a call. complete: its arguments are a JSON object. raw: all of its text."""

    index: int
    complete: bool
    raw: str


Event = Content | Thought | CallBegin | CallArguments | CallEnd


class Parser(Protocol):
    """Turns the text of one answer into events. All cuts of a text into pieces give the same
    events, but for the lengths of adjacent texts.

    push: what is certain after this text. finish: the rest, at the end of the answer. reason: the
    finish_reason of an answer that ended for this reason.
    """

    def push(self, text: str) -> list[Event]: ...
    def finish(self) -> list[Event]: ...
    def reason(self, reason: str) -> str: ...


class ByStates:
    """Reads an answer in states. Each is given a text and a place in it; it takes what it can from
    there on, and gives the events and the place behind. What it leaves is held until more comes:
    only what may become a mark, so that each push costs what its own text does."""

    _held: str
    _at: Callable[[str, int], tuple[list[Event], int]]

    def push(self, text: str) -> list[Event]:
        """What is certain after this text."""
        text, at = self._held + text, 0
        found: list[Event] = []
        while at < len(text):
            before = at, self._at
            events, at = self._at(text, at)
            found += events
            if before == (at, self._at):
                break
        self._held = text[at:]
        return found


def unfinished(text: AnyStr, marks: Sequence[AnyStr]) -> int:
    """Length of the longest end of a text with which one of the marks begins."""
    begins = {mark[:1] for mark in marks}
    longest = max(map(len, marks), default=0)
    # From the longest on: what is looked at in vain is no longer held.
    for at in range(max(0, len(text) - longest + 1), len(text)):
        if text[at : at + 1] in begins and any(mark.startswith(text[at:]) for mark in marks):
            return len(text) - at
    return 0


def deltas(events: Iterable[Event]) -> Iterator[dict[str, Any]]:
    """The events as deltas of OpenAI's chunks."""
    for event in events:
        if isinstance(event, Content):
            yield {"content": event.text}
        elif isinstance(event, Thought):
            yield {"reasoning_content": event.text}
        elif isinstance(event, CallBegin):
            yield {"tool_calls": [{"index": event.index, **_call(event, "")}]}
        elif isinstance(event, CallArguments):
            grown = {"function": {"arguments": event.text}}
            if event.custom:
                grown = {"custom": {"input": event.text}}
            yield {"tool_calls": [{"index": event.index, **grown}]}


@dataclass(frozen=True)
class Call:
    """A complete call. arguments: the text of a JSON object or, custom, a free one."""

    id: str
    name: str
    arguments: str
    custom: bool = False


Part = str | Thought | Call


def parts(events: Iterable[Event]) -> list[Part]:
    """The texts, thoughts and calls of an answer in their order, from all of its events.

    A call that is not complete is text. No text is empty, and none follows another.
    """
    found: list[Part] = []
    kind: type[Content] | type[Thought] = Content
    text: list[str] = []
    pieces: list[str] = []

    def add(to: type[Content] | type[Thought], piece: str) -> None:
        nonlocal kind
        if to is not kind:
            end_text()
            kind = to
        text.append(piece)

    def end_text() -> None:
        if any(text):
            joined = "".join(text)
            found.append(joined if kind is Content else Thought(joined))
        text.clear()

    for event in events:
        if isinstance(event, Content | Thought):
            add(type(event), event.text)
        elif isinstance(event, CallBegin):
            begun, pieces = event, []
        elif isinstance(event, CallArguments):
            pieces.append(event.text)
        elif event.complete:
            end_text()
            found.append(Call(begun.id, begun.name, "".join(pieces), begun.custom))
        else:
            add(Content, event.raw)
    end_text()
    return found


def message(events: Iterable[Event]) -> dict[str, Any]:
    """The assistant's message in OpenAI's shape, from all events of an answer.

    Without thoughts there is no key reasoning_content, and without calls no key tool_calls; with
    calls and without text, content is None.
    """
    found = parts(events)
    text = "".join(part for part in found if isinstance(part, str))
    thoughts = "".join(part.text for part in found if isinstance(part, Thought))
    calls = [_call(part, part.arguments) for part in found if isinstance(part, Call)]
    said: dict[str, Any] = {"role": "assistant", "content": text}
    if thoughts:
        said["reasoning_content"] = thoughts
    if calls:
        said.update(content=text or None, tool_calls=calls)
    return said


def _call(of: CallBegin | Call, arguments: str) -> dict[str, Any]:
    if of.custom:
        custom = {"name": of.name, "input": arguments}
        return {"id": of.id, "type": "custom", "custom": custom}
    function = {"name": of.name, "arguments": arguments}
    return {"id": of.id, "type": "function", "function": function}
