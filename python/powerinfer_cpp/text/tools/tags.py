"""Calls in tags, read as they are written: a head with the name, arguments in tags of their own or
as a JSON object, and an end."""

import functools
import json
import re
from collections.abc import Mapping
from typing import Any

from . import literals
from .definitions import Tool
from .events import Search, unfinished
from .reader import MAX_DEPTH, SPACE, CallReader, Reading, State, Step, is_object

_MOST_HOLE = 256  # characters of a name or key
_MOST_SPACE = 256  # before what may be CDATA
_HOLE = re.compile(r"(\{(?:name|key|id|text)\}|\s+)")
_ID = re.compile(r"(?:functions\.)?([\w-]+):\d+")  # an id that holds the name
_CDATA = "<![CDATA["
_SPACES = re.compile(r"\s*")
_TEXT = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


@functools.cache
def _parts(text: str) -> tuple[tuple[str, str], ...]:
    """Pairs of a hole and the characters that end it, or of "" and a text."""
    texts = [part for part in _HOLE.split(text) if part]
    found = []
    for i, part in enumerate(texts):
        if not _HOLE.fullmatch(part) or part.isspace():
            found.append(("", part))
            continue
        after = texts[i + 1 : i + 3]
        spaced = not after or after[0].isspace()
        first = "".join(following[0] for following in after[spaced : spaced + 1])
        found.append((part[1:-1], (SPACE if spaced else "") + (first or "<{")))
    return tuple(found)


class Pattern:
    """Matches a text with holes, such as <parameter={key}>, character by character. White space
    stands for any, or none. found: what the holes have."""

    def __init__(self, text: str):
        self.found: dict[str, str] = {}
        self._parts = _parts(text.strip())
        self._at = self._n = 0  # a part, and how many of its characters were read

    @property
    def fresh(self) -> bool:
        """Was nothing read?"""
        return not (self._at or self._n or self.found)

    def push(self, char: str) -> Step:
        """MORE, END, PAST or REFUSED."""
        while self._at < len(self._parts):
            hole, text = self._parts[self._at]
            if hole and char not in text:
                found = self.found.get(hole, "") + char
                self.found[hole] = found
                return Step.MORE if len(found) <= _MOST_HOLE else Step.REFUSED
            if hole and not self.found.get(hole):
                return Step.MORE if char in SPACE else Step.REFUSED
            if not hole and not text.isspace():
                if char != text[self._n]:
                    return Step.REFUSED
                self._n += 1
                if self._n == len(text):
                    self._at, self._n = self._at + 1, 0
                return Step.MORE if self._at < len(self._parts) else Step.END
            if not hole and char.isspace():
                return Step.MORE
            self._at += 1
        return Step.PAST


class TagCall(Reading):
    """Reads a call between the markers of a style, as CallReader reads one in JSON.

    call, argument: texts before and after the arguments and around a value, as a style has them.
    padded: line breaks next to the tags of a value are part of it. mark: stands before all tags,
    which may stand in values as well.
    """

    def __init__(
        self,
        call: tuple[str, str],
        argument: tuple[str, str] | None,
        padded: bool,
        tools: Mapping[str, Tool],
        mark: str = "",
    ):
        self.name: str | None = None
        self.id: str | None = None  # the model's own
        self.complete = False
        self.pieces: list[str] = []
        self._end, self._argument, self._padded, self._tools = call[1], argument, padded, tools
        self._mark, self._closing = mark, ""
        self._head = Pattern(call[0])
        self._marks: list[Pattern] = []  # what may come next, while it is read
        self._object: CallReader | None = None
        self._ended = False  # nothing but the end may follow
        self._written: list[str] = []  # all pieces
        self._key, self._text = "", False  # of a value; it is a raw text
        self._search = Search("")  # for the end of a value
        self._held: list[str] = []  # of a value
        self._fresh = False  # nothing of a text was passed on
        self._at: State = self._in_head

    def _add(self, text: str) -> None:
        self.pieces.append(text)
        self._written.append(text)

    def _in_head(self, text: str, at: int, end: int) -> tuple[int, Step]:
        if self._head.fresh:
            at = _past_any_space(text, at, end)
        step = Step.MORE
        while at < end and step is Step.MORE:
            step = self._head.push(text[at])
            at += step in (Step.MORE, Step.END)
        if step in (Step.MORE, Step.REFUSED):
            return at, step
        found = {hole: text.strip() for hole, text in self._head.found.items()}
        self.id = found.get("id")
        own = _ID.fullmatch(self.id or "")
        self.name = found.get("name") or (own[1] if own else None)
        if self.name not in self._tools:
            return at, Step.WRONG if step is Step.END else Step.REFUSED
        self.begun, self._at = True, self._among
        return at, Step.MORE

    def _among(self, text: str, at: int, end: int) -> tuple[int, Step]:
        """Between the arguments."""
        if not self._marks:
            at = _past_any_space(text, at, end)
            if at == end:
                return at, Step.MORE
            if text[at] == "{" and not self._written:
                self._object, self._at = CallReader({self.name}, name=self.name), self._in_object
                return at, Step.MORE
            wanted = [self._end]
            if self._argument is not None and not self._ended:
                wanted.append(self._argument[0])
            self._marks = [Pattern(text) for text in wanted]
        while at < end:
            steps = [(mark, mark.push(text[at])) for mark in self._marks]
            self._marks = [mark for mark, step in steps if step is Step.MORE]
            for mark, step in steps:
                if step is Step.END:
                    self._marks = []
                    if mark.found:
                        self._begin_value(mark.found)
                        return at + 1, Step.MORE
                    self._close()
                    return at + 1, Step.END
            if not self._marks:
                return at, Step.REFUSED
            at += 1
        return at, Step.MORE

    def _close(self) -> None:
        if not self._ended:
            self._add("}" if self._written else "{}")
        self.complete = is_object("".join(self._written))

    def _in_object(self, text: str, at: int, end: int) -> tuple[int, Step]:
        at, step = self._object.take(text, at, end)
        for piece in self._object.pieces:
            self._add(piece)
        self._object.pieces.clear()
        if step is Step.END and self._object.complete:
            self._ended, self._at = True, self._among
            return at, Step.MORE
        return at, step

    def _begin_value(self, found: Mapping[str, str]) -> None:
        self._key = found["key"].strip()
        self._closing = self._argument[1].strip().replace("{key}", self._key)
        self._search = Search(self._closing)
        told = found.get("text")
        schema = _schema(self._tools[self.name], self._key)
        self._text = told == "true" or (told is None and _is_text(schema))
        self._held, self._fresh, self._at = [], True, self._in_value

    def _in_value(self, text: str, at: int, end: int) -> tuple[int, Step]:
        behind = self._search.push(text, at, end)
        if behind < 0:
            self._hold(text[at:end])
            return end, Step.MORE
        self._hold(text[at : behind - 1])
        held = "".join(self._held) + text[behind - 1]
        value = held[: -len(self._closing)]
        self._at = self._among
        if self._fresh:
            return behind, self._whole(value)
        self._add(_escaped(value if self._padded else value.removesuffix("\n")) + '"')
        return behind, Step.MORE

    def _hold(self, piece: str) -> None:
        """Takes a piece of a value, and passes on what is certain if it is a text."""
        self._held.append(piece)
        if not self._text or not piece:
            return
        text = "".join(self._held)
        if self._fresh:
            start = text.lstrip()
            if _CDATA.startswith(start[: len(_CDATA)]) and len(text) <= _MOST_SPACE:
                return
            self._fresh = False
            self._begin_pair('"')
            text = text if self._padded else text.removeprefix("\n")
        marks = (self._closing,) if self._padded else (self._closing, "\n" + self._closing)
        n = unfinished(text, marks)
        self._held = [text[len(text) - n :]]
        if len(text) > n:
            self._add(_escaped(text[: len(text) - n]))

    def _whole(self, text: str) -> Step:
        """Takes a value of which all is there."""
        is_text = self._text
        bare = text.strip()
        if bare.startswith(_CDATA) and bare.endswith("]]>"):
            text, is_text = bare[len(_CDATA) : -3], True
        elif not self._padded:
            text = text.removeprefix("\n").removesuffix("\n")
        try:
            if is_text:
                value: Any = text
            elif self._mark and self._mark in text:
                value = _tree(text, self._mark, _schema(self._tools[self.name], self._key))
            else:
                value = _value(text)
            written = _TEXT(value)
        except (TypeError, ValueError, RecursionError):
            return Step.WRONG
        self._begin_pair(written)
        return Step.MORE

    def _begin_pair(self, value: str) -> None:
        self._add(f"{', ' if self._written else '{'}{_TEXT(self._key)}: {value}")


def _past_any_space(text: str, at: int, end: int) -> int:
    """The place behind white space of any kind from `at` on."""
    return _SPACES.match(text, at, end).end()  # type: ignore[union-attr]


def _schema(tool: Tool, key: str) -> Mapping[str, Any]:
    return _inner(tool.parameters, key)


def _inner(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The schema of a property, or of the items of a list."""
    properties = schema.get("properties")
    found = properties.get(key) if isinstance(properties, Mapping) else schema.get("items")
    return found if isinstance(found, Mapping) else {}


def _is_text(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") in ("string", ["string"])


def _tree(text: str, mark: str, schema: Mapping[str, Any]) -> Any:
    """The value of a text with tags in it: a list of what stands in <item>, or an object. Raises
    ValueError."""
    # Texts, each but the last followed by "/" or "" and the name of a tag.
    tokens = re.split(rf"{re.escape(mark)}<(/?)([^<>]+)>", text)

    def read(at: int, schema: Mapping[str, Any], depth: int) -> tuple[Any, int]:
        """The value from a text on, and the place behind its last one."""
        if depth > MAX_DEPTH:
            raise ValueError("tags are nested too deeply")
        if tokens[at + 1 : at + 2] != [""]:
            return tokens[at] if _is_text(schema) else _value(tokens[at]), at + 1
        found = []
        while tokens[at + 1 : at + 2] == [""]:
            name = tokens[at + 2]
            value, end = read(at + 3, _inner(schema, name), depth + 1)
            if tokens[end : end + 2] != ["/", name]:
                raise ValueError(f"<{name}> is not closed")
            found.append((name, value))
            at = end + 2
        if all(name == "item" for name, _ in found):
            return [value for _, value in found], at + 1
        return dict(found), at + 1

    value, end = read(0, schema, 0)
    if end != len(tokens):
        raise ValueError("a tag is closed that was not opened")
    return value


def _escaped(text: str) -> str:
    return _TEXT(text)[1:-1]


def _value(text: str) -> Any:
    """The value that a text stands for: JSON, Python of templates that know no JSON, or itself."""
    stripped = text.strip()
    if stripped in literals.WORDS:
        return literals.WORDS[stripped]
    try:
        return json.loads(stripped)
    except (ValueError, RecursionError):
        if stripped[:1] not in ("{", "["):
            return text
    try:
        return literals.value(stripped)
    except ValueError:
        return text
