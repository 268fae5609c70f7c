"""Calls in tags, read as they are written: a head with the name, arguments in tags of their own or
as a JSON object, and an end. Models leave out ends of values and calls, and write what looks like
an end into values."""

import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .events import unfinished
from .heads import head
from .kinds import Parameters
from .reader import CallReader, Functions, Reading, function_named
from .values import JSON, LONG, MAX_DEPTH, MOST_SPACE, SHORT, Step, past_space

_CDATA, _CDATA_END = "<![CDATA[", "]]>"


@dataclass(frozen=True)
class Tags:
    """How a style writes calls.

    heads, ends: texts before and after the arguments. argument: texts around a value. around: texts
    that stand before and behind calls. padded: line breaks next to the tags of a value are part of
    it. mark: stands before all tags, which may stand in values as well. wraps: may stand before and
    behind arguments as JSON.
    """

    heads: tuple[str, ...]
    ends: tuple[str, ...]
    argument: tuple[str, str] | None
    around: tuple[str, ...]
    padded: bool
    mark: str
    wraps: tuple[str, ...] = ()

    @property
    def lines(self) -> bool:
        """Do the ends of values stand on lines of their own?"""
        return self.argument is not None and self.argument[1].startswith("\n")


class TagCall(Reading):
    """Reads a call between the markers of a style."""

    def __init__(self, tags: Tags, functions: Functions, fenced: bool = False):
        self.fenced = fenced
        self.pieces: list[str] = []
        self._tags, self._functions = tags, functions
        self._heads, self._ends = (
            [head(text) for text in texts] for texts in (tags.heads, tags.ends)
        )
        self._end = self._ends[0]
        self._argument = head(tags.argument[0]) if tags.argument else None
        self._wraps = [head(text) for text in tags.wraps]
        self._object: CallReader | None = None
        self._keys: set[str] = set()
        self._key, self._closing = "", ""  # of a value, and what ends it
        self._marks: tuple[str, ...] = ()  # what may end it
        self._text = self._cdata = False  # it is a text; it is marked as one
        self._parts: list[str] = []  # of a value that is no text
        self._last = ""  # the last character that was taken of it
        self._led = False  # it began with a line break
        self._streams = False  # it is passed on
        self._at = self._in_head

    @property
    def _of(self) -> Parameters:
        return self._functions[self.name or ""]

    def cut(self) -> None:
        if self._object is not None:
            self._object.cut()
            self._take_object()
            return
        self.complete = self._at == self._among and self._of.required <= self._keys
        if self._keys or self.begun:
            self.pieces.append('"}' if self._streams else "}")
        elif self.complete:
            self.pieces.append("{}")
            self.begun = True

    def _take_object(self) -> None:
        assert self._object is not None
        self.begun, self.complete = self._object.begun, self._object.complete
        self.fenced = self._object.fenced
        self.pieces += self._object.pieces
        self._object.pieces.clear()

    # ---- States ----

    def _in_head(self, text: str, at: int, final: bool) -> tuple[int, Step]:
        at = past_space(text, at)
        waits = False
        for one in self._heads:
            step, behind, found = one.match(text, at, final)
            waits |= step is Step.MORE
            if step is Step.END and not waits:  # one that stands before it comes first
                self.id, said = "".join(found.get("id", "").split()) or None, found.get("name")
                self.name = function_named(said or self.id or "", self._functions, is_id=not said)
                if self.name is not None:
                    self._at = self._among
                    return behind, Step.MORE
        return at, Step.MORE if waits and not final else Step.REFUSED

    def _among(self, text: str, at: int, final: bool) -> tuple[int, Step]:
        """Between the arguments."""
        at = past_space(text, at)
        if at == len(text):
            return at, Step.MORE
        for end in self._ends:
            step, behind, _ = end.match(text, at, final)
            if step is Step.END:
                self._close()
                return behind, Step.END
            if step is Step.MORE:
                return at, step
        for wrap in self._wraps:
            step, behind, _ = wrap.match(text, at, final)
            if step is not Step.REFUSED:
                return behind if step is Step.END else at, Step.MORE
        fresh = not self._keys and self._object is None
        if text[at] in '{"`' and fresh:
            self._object = CallReader(self._functions, name=self.name)
            self._object.fenced = self.fenced
            self._at = self._in_object
            return at, Step.MORE
        if text[at] == "`" and self.fenced:
            return at + 1, Step.MORE
        if self._argument is not None and self._object is None:
            step, behind, found = self._argument.match(text, at, final)
            if step is Step.END:
                self._begin_value(found)
                return behind, Step.MORE
            if step is Step.MORE:
                return at, step
        step = _begins(text, at, self._tags.around, final)
        if step is Step.END:  # the call has no end of its own
            self._close()
        return at, step

    def _close(self) -> None:
        if self._object is None:
            self.pieces.append("}" if self._keys else "{}")
        self.begun = self.complete = True

    def _in_object(self, text: str, at: int, final: bool) -> tuple[int, Step]:
        assert self._object is not None
        at, step = self._object.take(text, at, final)
        if step is Step.REFUSED:  # what follows may be the end of the call
            self._object.cut()
        self._take_object()
        if step is Step.MORE or not self.complete:
            return at, step
        self._at = self._among
        return at, Step.MORE

    # ---- Values ----

    def _begin_value(self, found: dict[str, str]) -> None:
        assert self._tags.argument is not None and self._argument is not None
        self._key = found["key"]
        self._closing = self._tags.argument[1].strip().replace("{key}", self._key)
        told = found.get("text")
        self._text = self._of.is_text(self._key)
        self._text |= told in ("true", "string") and self._of.may_be_text(self._key)
        stem = self._argument.stem if self._text or not self._tags.mark else ""
        marks = (self._closing, stem, self._end.stem, *self._tags.around)
        self._marks = tuple(dict.fromkeys(mark for mark in marks if mark))
        self._parts, self._last, self._led, self._streams = [], "", False, False
        self._cdata, self._at = False, self._before_value

    def _before_value(self, text: str, at: int, final: bool) -> tuple[int, Step]:
        behind = past_space(text, at)
        if behind - at < MOST_SPACE and not self._tags.mark:
            step = _begins(text, behind, (_CDATA,), final) if behind < len(text) else Step.MORE
            if step is Step.MORE and not final:
                return at, step
            if step is Step.END:
                self._cdata = True
                self._text |= self._of.may_be_text(self._key)
                at = behind + len(_CDATA)
        self._at = self._in_value
        return at, Step.MORE

    def _in_value(self, text: str, at: int, final: bool) -> tuple[int, Step]:
        marks = (_CDATA_END,) if self._cdata else self._marks
        begin, ends = at, _any_of(marks)
        while found := ends.search(text, begin, at + LONG):
            step = self._ends_value(found, text, at, final)
            if step is Step.END:
                return self._whole(text, at, found)
            if step is Step.MORE:
                return self._hold(text, at, found.start())
            begin = found.end()
        stop = min(len(text), at + LONG)
        # One mark may begin as another does, which was found and is none.
        return self._hold(text, at, stop - unfinished(text[at:stop], marks))

    def _ends_value(self, found: re.Match[str], text: str, at: int, final: bool) -> Step:
        """Is this the end of the value (END), or a part of it (REFUSED)?"""
        mark, start, behind = found[0], found.start(), found.end()
        if self._cdata:
            return _follows(text, behind, (self._closing,), final)
        if mark == self._closing:
            stem = (self._argument.stem,) if self._argument else ()
            fence = ("```",) if self.fenced else ()
            follow = (*stem, self._end.stem, *fence, *self._tags.around)
            return _follows(text, behind, follow, final)
        before = text[start - 1] if start > at else self._last
        if self._text and self._tags.lines and before not in ("", "\n"):
            return Step.REFUSED
        if self._argument is not None and mark == self._argument.stem:
            step, _, named = self._argument.match(text, start, False)  # a cut one is no value
            if step is not Step.END:
                return step
            key = named["key"]
            new = key != self._key and key not in self._keys and self._of.declares(key)
            return Step.END if new else Step.REFUSED
        if not self._text:
            return Step.END
        return _follows(text, behind, self._tags.around, final)

    def _hold(self, text: str, at: int, stop: int) -> tuple[int, Step]:
        """Takes the text of a value up to a place, and passes it on if it is a long text."""
        if not self._text:
            if stop > at:
                self._parts.append(text[at:stop])
                self._last = text[stop - 1]
            return stop, Step.MORE
        if not self._streams:
            begin = at + self._leads(text[at:stop])
            if stop - begin - text[begin:stop].endswith("\n") <= SHORT:
                return at, Step.MORE
            at = begin
            self._begin_pair('"')
            self._streams = True
        stop -= text[at:stop].endswith("\n")
        if stop > at:
            self.pieces.append(JSON(text[at:stop])[1:-1])
            self._last = text[stop - 1]
        return stop, Step.MORE

    def _leads(self, text: str) -> bool:
        """Does a value begin with a line break that is not its own?"""
        self._led = text.startswith("\n") and not self._tags.padded and not self._cdata
        return self._led

    def _whole(self, text: str, at: int, found: re.Match[str]) -> tuple[int, Step]:
        """Takes the end of a value."""
        value = "".join(self._parts) + text[at : found.start()]
        if not self._streams and self._leads(value):
            value = value[1:]
        lines = self._tags.lines or found[0] != self._closing
        if self._led or lines and not self._cdata:
            value = value.removesuffix("\n")
        if self._streams:
            self.pieces.append(JSON(value)[1:-1] + '"')
        else:
            try:
                written = self._written(value)
            except (ValueError, RecursionError):
                return found.start(), Step.REFUSED
            self._begin_pair(written)
        self._streams, self._at = False, self._among
        if self._cdata:
            return past_space(text, found.end()) + len(self._closing), Step.MORE
        return found.end() if found[0] == self._closing else found.start(), Step.MORE

    def _written(self, value: str) -> str:
        mark = self._tags.mark
        if self._text and not self._of.is_text(self._key):
            return JSON(value)
        if mark and mark in value and not self._text:
            return JSON(_tree(value, mark, self._of, self._of.schema(self._key)))
        return self._of.written(self._key, value)

    def _begin_pair(self, value: str) -> None:
        self.pieces.append(f"{', ' if self._keys else '{'}{JSON(self._key)}: {value}")
        self._keys.add(self._key)
        self.begun = True


@functools.lru_cache(maxsize=256)
def _any_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    # The longest first: one may begin with another.
    return re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))))


def _begins(text: str, at: int, marks: Sequence[str], final: bool) -> Step:
    """Does one of the marks stand at a place (END), or not (REFUSED)?"""
    if any(text.startswith(mark, at) for mark in marks):
        return Step.END
    rest = text[at : at + max(map(len, marks), default=0)]
    return Step.REFUSED if final or not any(mark.startswith(rest) for mark in marks) else Step.MORE


def _follows(text: str, at: int, marks: Sequence[str], final: bool) -> Step:
    """Does a mark, or the end of the answer, follow (END), or something else (REFUSED)?"""
    behind = past_space(text, at)
    if behind - at >= MOST_SPACE:
        return Step.END
    step = _begins(text, behind, marks, False)
    return Step.END if step is Step.MORE and final else step


def _tree(text: str, mark: str, of: Parameters, schema: Any) -> Any:
    """The value of a text with tags in it: a list of what stands in <item>, or an object. Raises
    ValueError."""
    # Texts, each but the last followed by "/" or "" and the name of a tag.
    tokens = re.split(rf"{re.escape(mark)}<(/?)([^<>]+)>", text)

    def read(at: int, schema: Any, depth: int) -> tuple[Any, int]:
        """The value from a text on, and the place behind its last one."""
        if depth > MAX_DEPTH:
            raise ValueError("tags are nested too deeply")
        if tokens[at + 1 : at + 2] != [""]:
            return json.loads(of.written_as(schema, tokens[at])), at + 1
        found = []
        while tokens[at + 1 : at + 2] == [""]:
            name = tokens[at + 2]
            value, end = read(at + 3, of.schema(name, schema or {}), depth + 1)
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
