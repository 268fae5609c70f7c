"""Reads the JSON of a tool call as it is written.

So arguments can be sent on before they are complete, and what is read does not depend on how the
text was cut into pieces. Whoever writes the text may be an attacker, so each character is looked at
a fixed number of times, and no single search is long: others wait for Python's lock meanwhile.
"""

import json
import re
from collections.abc import Callable, Set
from enum import Enum
from typing import Any, NoReturn

MAX_DEPTH = 64  # of arguments; deeper ones would exhaust the stack of whoever parses them
LONG = 1 << 16  # characters that one search may take

SPACE = " \t\r\n"
_SPACES = re.compile(r"[ \t\r\n]*")
_ARGUMENTS = ("arguments", "parameters")
_NAMES = ("name", "tool_name")
_KNOWN = (*_ARGUMENTS, *_NAMES, "type", "id", "tool_call_id", "description")
_CLOSING = {"{": "}", "[": "]"}

# Of a string: what is before its end. Of a list or object: what has no brackets.
_IN_STRING = re.compile(r'[^"\\]*(?:\\.[^"\\]*){0,256}', re.DOTALL)
_IN_BRACKETS = re.compile(r'(?:[^"{}\[\]]+|"[^"\\]*"){0,256}')
_IN_WORD = re.compile(r"[0-9A-Za-z+.-]*")


class Step(Enum):
    """Why a reader takes no more of a text."""

    MORE = 0  # all was taken and belongs to the value, which goes on; or a call has begun
    END = 1  # the last character taken is the last one of the value
    PAST = 2  # the value ended before the next character
    WRONG = 3  # the last character taken makes the value unusable
    REFUSED = 4  # the next character cannot follow


# A state of a reader takes what it can of text[at:end], and gives the place behind and the reason.
State = Callable[[str, int, int], tuple[int, Step]]


def past_space(text: str, at: int, end: int) -> int:
    """The place behind JSON's white space from `at` on."""
    return _SPACES.match(text, at, end).end()  # type: ignore[union-attr]


def past_string(text: str, at: int) -> int:
    """The place behind the JSON string whose first quote is before `at`; -1: it has no end."""
    while at < len(text):
        at = _IN_STRING.match(text, at, at + LONG).end()  # type: ignore[union-attr]
        if text.startswith('"', at):
            return at + 1
        at += 2 * text.startswith("\\", at)
    return -1


def parsed(text: str) -> Any:
    """A JSON text as a value, in which numbers are texts. Raises ValueError."""

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse, parse_int=str, parse_float=str)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def is_object(text: str) -> bool:
    """Whether a text is a JSON object, not nested more than MAX_DEPTH deep."""
    text = text.strip(SPACE)
    end, step = Value().take(text, 0, len(text))
    if end < len(text) or step not in (Step.MORE, Step.END):
        return False
    try:
        return isinstance(parsed(text), dict)
    except ValueError:
        return False


class Value:
    """Finds the end of a JSON value. Only brackets and quotes are looked at; `parsed` says whether
    the text is JSON."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._open: list[str] = []  # brackets that are to be closed
        self._quoted = self._escaped = False

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def take(self, text: str, at: int, end: int) -> tuple[int, Step]:
        """The place behind what was taken of text[at:end], and why no more was."""
        begin, step = at, Step.MORE
        first = not self._pieces
        while at < end and step is Step.MORE:
            if self._quoted:
                at, step = self._in_string(text, at, end)
            elif self._open or first:
                at, step = self._in_brackets(text, at, end, first)
            else:
                at, step = self._in_word(text, at, end)
            first = False
        if at > begin:
            self._pieces.append(text[begin : at - (step is Step.WRONG)])
        return at, step

    def _in_string(self, text: str, at: int, end: int) -> tuple[int, Step]:
        if self._escaped:
            self._escaped = False
            return at + 1, Step.MORE
        stop = min(end, at + LONG)
        at = _IN_STRING.match(text, at, stop).end()  # type: ignore[union-attr]
        if at == stop:
            return at, Step.MORE
        self._quoted = self._escaped = text[at] == "\\"
        return at + 1, Step.MORE if self._quoted or self._open else Step.END

    def _in_word(self, text: str, at: int, end: int) -> tuple[int, Step]:
        """In a number or a word, which ends with what follows."""
        stop = min(end, at + LONG)
        at = _IN_WORD.match(text, at, stop).end()  # type: ignore[union-attr]
        if at == stop:
            return at, Step.MORE
        return (at, Step.PAST) if text[at] in SPACE + ",}]" else (at + 1, Step.WRONG)

    def _in_brackets(self, text: str, at: int, end: int, first: bool) -> tuple[int, Step]:
        """Within a list or object, or where a value begins."""
        if not first:
            stop = min(end, at + LONG)
            at = _IN_BRACKETS.match(text, at, stop).end()  # type: ignore[union-attr]
            if at == stop:
                return at, Step.MORE
        char = text[at]
        if char in _CLOSING:
            self._open.append(_CLOSING[char])
            return (at + 1, Step.MORE) if len(self._open) <= MAX_DEPTH else (at, Step.REFUSED)
        if char in "}]":
            if not self._open or self._open.pop() != char:
                return at, Step.REFUSED
            return at + 1, Step.MORE if self._open else Step.END
        if char == '"':
            self._quoted = True
        elif first and char != "-" and not (char.isascii() and char.isalnum()):
            return at, Step.REFUSED
        return at + 1, Step.MORE


class Reading:
    """Reads a call by states. begun: it is certain that this is a call."""

    begun = False
    _at: State

    def take(self, text: str, at: int, end: int) -> tuple[int, Step]:
        """The place behind what was taken of text[at:end]; MORE, END (of the call), WRONG or
        REFUSED. MORE also where it turns out that this is a call."""
        begun, step = self.begun, Step.MORE
        while at < end and step is Step.MORE and self.begun == begun:
            at, step = self._at(text, at, end)
        return at, step


class CallReader(Reading):
    """Reads {"name": ..., "arguments": {...}}, where the keys may stand in any order and
    "parameters" may replace "arguments"; or, with `name`, the arguments alone.

    names: functions that may be called. strict: refuse other keys that come before the arguments,
    because the text may be some other JSON object. After each call of `take`, `pieces` has the new
    text of arguments; whoever takes it empties it.
    """

    id: str | None = None  # of the model's own, which nobody wants back

    def __init__(self, names: Set[str], strict: bool = False, name: str | None = None):
        self.name = name
        self.complete = False  # the arguments are a complete JSON object
        self.pieces: list[str] = []
        self._names, self._strict, self._alone = names, strict, name is not None
        self._key = _ARGUMENTS[0] if self._alone else ""
        self._early: str | None = None  # arguments that came before the name, or are no object
        self._value = Value()
        self._streams = False  # the value consists of arguments that are passed on
        self._at: State = self._before_value if self._alone else self._before_object

    def _before_object(self, text: str, at: int, _end: int) -> tuple[int, Step]:
        self._at = self._before_first_key
        return (at + 1, Step.MORE) if text[at] == "{" else (at, Step.REFUSED)

    def _before_first_key(self, text: str, at: int, end: int) -> tuple[int, Step]:
        at = past_space(text, at, end)
        if text[at : min(end, at + 1)] == "}":
            return at + 1, self._close()
        return self._before_key(text, at, end)

    def _before_key(self, text: str, at: int, end: int) -> tuple[int, Step]:
        at = past_space(text, at, end)
        if at == end:
            return at, Step.MORE
        self._value, self._at = Value(), self._in_key
        return at, Step.MORE if text[at] == '"' else Step.REFUSED

    def _in_key(self, text: str, at: int, end: int) -> tuple[int, Step]:
        at, step = self._value.take(text, at, end)
        if step is Step.MORE:
            return at, step
        try:
            self._key = parsed(self._value.text)
        except ValueError:
            return at, Step.WRONG
        if self._strict and not self.begun and self._key not in _KNOWN:
            return at, Step.WRONG
        self._at = self._before_colon
        return at, Step.MORE

    def _before_colon(self, text: str, at: int, end: int) -> tuple[int, Step]:
        at = past_space(text, at, end)
        if at == end:
            return at, Step.MORE
        self._at = self._before_value
        return (at + 1, Step.MORE) if text[at] == ":" else (at, Step.REFUSED)

    def _before_value(self, text: str, at: int, end: int) -> tuple[int, Step]:
        at = past_space(text, at, end)
        if at == end:
            return at, Step.MORE
        named = self._key in _ARGUMENTS and self.name is not None and not self.begun
        self._streams = named and text[at] == "{"
        if self._alone and not self._streams:
            return at, Step.REFUSED
        self.begun |= self._streams
        self._value, self._at = Value(), self._in_value
        return at, Step.MORE

    def _in_value(self, text: str, begin: int, end: int) -> tuple[int, Step]:
        at, step = self._value.take(text, begin, end)
        if self._streams and at > begin:
            self.pieces.append(text[begin:at])
        if step not in (Step.END, Step.PAST):
            return at, step
        self._at = self._after_value
        if not self._accept():
            return at, Step.WRONG if step is Step.END else Step.REFUSED
        return at, Step.END if self._alone else Step.MORE

    def _accept(self) -> bool:
        """Takes over the value that has just ended; False if it is unusable."""
        text = self._value.text
        if self._streams:
            self._streams, self.complete = False, is_object(text)
            return self.complete
        if self.begun:
            return True
        if self._key in _NAMES:
            try:
                name = parsed(text)
            except ValueError:
                return False
            self.name = name if isinstance(name, str) and name in self._names else None
            return self.name is not None
        if self._key in _ARGUMENTS:
            self._early = text
        return True

    def _after_value(self, text: str, at: int, end: int) -> tuple[int, Step]:
        at = past_space(text, at, end)
        if at == end:
            return at, Step.MORE
        if text[at] == "}":
            return at + 1, self._close()
        self._at = self._before_key
        return (at + 1, Step.MORE) if text[at] == "," else (at, Step.REFUSED)

    def _close(self) -> Step:
        """The end of the object; arguments that could not be passed on are, now."""
        if self.begun:
            return Step.END
        try:
            early = None if self._early is None else parsed(self._early)
        except ValueError:
            return Step.WRONG
        # Some models write arguments as a text of JSON, and none for functions without parameters.
        text = "{}" if early is None else early if isinstance(early, str) else self._early
        if self.name is None or not is_object(text):
            return Step.WRONG
        self.begun = self.complete = True
        self.pieces.append(text)
        return Step.END
