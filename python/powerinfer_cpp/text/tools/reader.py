"""Reads the JSON of a tool call as it is written, character by character.

So arguments can be sent on before they are complete, and what is read does not depend on how the
text was cut into pieces.
"""

import json
from collections.abc import Set
from enum import Enum
from typing import Any, NoReturn

MAX_DEPTH = 64  # of arguments; deeper ones would exhaust the stack of whoever parses them

SPACE = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")
_NAMES = ("name", "tool_name")
_KNOWN = (*_ARGUMENTS, *_NAMES, "type", "id", "tool_call_id", "description")
_CLOSING = {"{": "}", "[": "]"}


class Step(Enum):
    """What became of a character."""

    MORE = 0  # it belongs to the value, which goes on
    END = 1  # it is the last one of the value
    PAST = 2  # the value ended before it
    WRONG = 3  # it belongs to the value, which turns out to be unusable
    REFUSED = 4  # it cannot follow


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
    value, text = Value(), text.strip(SPACE)
    if any(value.push(char) not in (Step.MORE, Step.END) for char in text):
        return False
    try:
        return isinstance(parsed(text), dict)
    except ValueError:
        return False


class Value:
    """Finds the end of a JSON value. Only brackets and quotes are looked at; `parsed` says whether
    the text is JSON."""

    def __init__(self) -> None:
        self._chars: list[str] = []
        self._open: list[str] = []  # brackets that are to be closed
        self._quoted = self._escaped = False

    @property
    def text(self) -> str:
        return "".join(self._chars)

    def push(self, char: str) -> Step:
        step = self._step(char)
        if step in (Step.MORE, Step.END):
            self._chars.append(char)
        return step

    def _step(self, char: str) -> Step:
        if self._quoted:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._quoted = False
                return Step.MORE if self._open else Step.END
            return Step.MORE
        if not self._open and self._chars:  # a number or a word: what follows ends it
            if char in SPACE or char in ",}]":
                return Step.PAST
            return Step.MORE if char.isascii() and (char.isalnum() or char in "+-.") else Step.WRONG
        if char in _CLOSING:
            self._open.append(_CLOSING[char])
            return Step.MORE if len(self._open) <= MAX_DEPTH else Step.REFUSED
        if char in "}]":
            if not self._open or self._open.pop() != char:
                return Step.REFUSED
            return Step.MORE if self._open else Step.END
        if char == '"':
            self._quoted = True
            return Step.MORE
        if self._open:
            return Step.MORE
        return Step.MORE if char == "-" or (char.isascii() and char.isalnum()) else Step.REFUSED


class CallReader:
    """Reads {"name": ..., "arguments": {...}}, where the keys may stand in any order and
    "parameters" may replace "arguments"; or, with `name`, the arguments alone.

    names: functions that may be called. strict: refuse other keys that come before the arguments,
    because the text may be some other JSON object. After each character, `pieces` has the new text
    of arguments; whoever takes it empties it.
    """

    id: str | None = None  # of the model's own, which nobody wants back

    def __init__(self, names: Set[str], strict: bool = False, name: str | None = None):
        self.name = name
        self.begun = False  # it is certain that this is a call
        self.complete = False  # the arguments are a complete JSON object
        self.pieces: list[str] = []
        self._names, self._strict, self._alone = names, strict, name is not None
        self._key = _ARGUMENTS[0] if self._alone else ""
        self._early: str | None = None  # arguments that came before the name, or are no object
        self._value = Value()
        self._streams = False  # the value consists of arguments that are passed on
        self._at = self._before_value if self._alone else self._before_object

    def push(self, char: str) -> Step:
        """MORE, END (of the call), WRONG or REFUSED."""
        return self._at(char)

    def _before_object(self, char: str) -> Step:
        self._at = self._before_first_key
        return Step.MORE if char == "{" else Step.REFUSED

    def _before_first_key(self, char: str) -> Step:
        return self._close() if char == "}" else self._before_key(char)

    def _before_key(self, char: str) -> Step:
        if char in SPACE:
            return Step.MORE
        self._value, self._at = Value(), self._in_key
        return self._value.push(char) if char == '"' else Step.REFUSED

    def _in_key(self, char: str) -> Step:
        if self._value.push(char) is Step.MORE:
            return Step.MORE
        try:
            self._key = parsed(self._value.text)
        except ValueError:
            return Step.WRONG
        if self._strict and not self.begun and self._key not in _KNOWN:
            return Step.WRONG
        self._at = self._before_colon
        return Step.MORE

    def _before_colon(self, char: str) -> Step:
        if char == ":":
            self._at = self._before_value
        return Step.MORE if char in SPACE or char == ":" else Step.REFUSED

    def _before_value(self, char: str) -> Step:
        if char in SPACE:
            return Step.MORE
        named = self._key in _ARGUMENTS and self.name is not None and not self.begun
        self._streams = named and char == "{"
        if self._alone and not self._streams:
            return Step.REFUSED
        self.begun |= self._streams
        self._value, self._at = Value(), self._in_value
        return self._in_value(char)

    def _in_value(self, char: str) -> Step:
        step = self._value.push(char)
        if self._streams and step in (Step.MORE, Step.END):
            self.pieces.append(char)
        if step not in (Step.END, Step.PAST):
            return step
        self._at = self._after_value
        if not self._accept():
            return Step.WRONG if step is Step.END else Step.REFUSED
        if self._alone:
            return Step.END
        return Step.MORE if step is Step.END else self._after_value(char)

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

    def _after_value(self, char: str) -> Step:
        if char == "}":
            return self._close()
        if char == ",":
            self._at = self._before_key
        return Step.MORE if char in SPACE or char == "," else Step.REFUSED

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
