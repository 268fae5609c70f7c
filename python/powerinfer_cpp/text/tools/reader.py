"""Reads a tool call as it is written: JSON with a name and arguments, or arguments behind a name.

So arguments can be sent on before they are complete, and what is read does not depend on how the
text was cut into pieces. Whoever writes the text may be an attacker, so each character is looked at
a bounded number of times.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NoReturn

from .kinds import Parameters
from .values import JSON, MAX_DEPTH, States, Step, Value, as_json, key_at, past_space, plain_key

ARGUMENTS = ("arguments", "parameters", "args", "input")
_NAMES = ("name", "tool_name")
# Around name and arguments, or the name itself.
_WRAPPERS = ("function", "function_call", "tool_call", "tool")
_KNOWN = (*ARGUMENTS, *_NAMES, *_WRAPPERS, "type", "id", "tool_call_id", "description", "index")
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
# What models write around a name where an id has it, as Kimi's: functions.NAME:0.
_PREFIX = re.compile(r"functions?[._:]?")
_NUMBER = re.compile(r"[:._#-]?\d+|:\w*")

# A fence before a call or its arguments.
FENCE = re.compile(r"```\w{0,32}[ \t]{0,32}(?:\r?\n|(?=[{\[<\"]))")
_MOST_FENCE = 80

Functions = Mapping[str, Parameters]


def is_object(text: str) -> bool:
    """Whether a text is a JSON object, not nested more than MAX_DEPTH deep."""

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is not JSON")

    try:
        value = json.loads(text, parse_constant=refuse, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    depth = deepest = 0
    for found in _BRACKETS.finditer(text):
        depth += (found[0] in ("{", "[")) - (found[0] in ("}", "]"))
        deepest = max(deepest, depth)
    return isinstance(value, dict) and deepest <= MAX_DEPTH


def function_named(said: str, functions: Functions, is_id: bool = False) -> str | None:
    """The function that a name, or an id of a call, means; None: there is none."""
    said = "".join(said.split())
    prefix = _PREFIX.match(said)
    texts = [said] if prefix is None else [said, said[prefix.end() :]]
    for text in texts:
        if text in functions:
            return text
    ids = texts if is_id else texts[1:]
    found = (
        name
        for text in ids
        for name in functions
        if text.startswith(name) and _NUMBER.fullmatch(text, len(name))
    )
    return max(found, key=len, default=None)


def waits_for_fence(text: str, at: int, final: bool) -> bool:
    """May what there is of a text become a fence?"""
    return not final and len(text) - at < _MOST_FENCE and "\n" not in text[at:]


class Reading(States, ABC):
    """Reads a call. begun: it is certain that this is a call. complete: and that it is whole.

    After each call of `take`, `pieces` has the new JSON of its arguments; whoever takes it empties
    it.
    """

    name: str | None = None
    id: str | None = None  # the model's own, if its template wants it back
    begun = complete = False
    fenced = False  # a fence began before the arguments
    pieces: list[str]

    @abstractmethod
    def cut(self) -> None:
        """Nothing of the call follows: makes JSON of what was passed on."""


class CallReader(Reading):
    """Reads {"name": ..., "arguments": {...}}, where the keys may stand in any order and have other
    usual names; or, with `name`, the arguments alone, also in round brackets.

    functions: those that may be called. strict: refuse other keys that come before the arguments,
    because the text may be some other JSON object.
    """

    def __init__(self, functions: Functions, strict: bool = False, name: str | None = None):
        self.name = name
        self.pieces: list[str] = []
        self._functions, self._strict, self._alone = functions, strict, name is not None
        self._key = ARGUMENTS[0] if self._alone else ""
        self._early: str | None = None  # arguments that came before the name, or are no object
        self._beside: dict[str, str] = {}  # values of other keys, which may be arguments
        self._value = Value()
        self._streams = False  # the value consists of arguments that are passed on
        self._doubled = 0  # braces that stood behind the first one
        self._n_open = 0  # objects around what is read
        self._fresh = True  # the object has no keys yet
        self._at = self._before_value if self._alone else self._before_object

    def cut(self) -> None:
        if self._streams and self.begun:
            self._streams = False
            self.complete = self._value.rests and self._has(self._value.keys)
            self.pieces.append(self._value.closing)

    def _has(self, keys: set[str]) -> bool:
        return self._functions[self.name or ""].required <= keys

    def _before_object(self, text: str, at: int, _final: bool) -> tuple[int, Step]:
        if text[at : at + 1] != "{":
            return at, Step.REFUSED
        self._n_open, self._at = 1, self._among
        return at + 1, Step.MORE

    def _among(self, text: str, at: int, final: bool) -> tuple[int, Step]:
        """Between keys and values."""
        at = past_space(text, at)
        if at == len(text):
            return at, Step.MORE
        char = text[at]
        if char == "," or char == "`" and self.fenced:
            return at + 1, Step.MORE
        if char == "}":
            self._n_open -= 1
            return at + 1, Step.MORE if self._n_open else self._close()
        if char == "{" and self._fresh:
            self._doubled += 1
            return at + 1, Step.MORE
        behind, step, written = key_at(text, at, final)
        if step is not Step.END:
            return at, step
        try:
            self._key = plain_key(written)
        except ValueError:
            return at, Step.REFUSED
        self._fresh = False
        known = self._key in _KNOWN or self.begun and not self._strict
        if not known and (self._strict or self.name is None and self._key in self._functions):
            if self._strict:
                return at, Step.REFUSED
            self.name, self._key = self._key, ARGUMENTS[0]  # {NAME: {...}}
        self._at = self._before_value
        return behind, Step.MORE

    def _names_again(self, text: str, at: int, final: bool) -> Step | None:
        """Are the arguments within an object that has the name as well? Then it is read."""
        behind = past_space(text, at + 1)
        if behind == len(text):
            return None if final else Step.MORE
        _, step, written = key_at(text, behind, final)
        if step is Step.END:
            key = written.strip("\"'")
            if key not in _NAMES or self._functions[self.name or ""].declares(key):
                return None
            self._alone, self._at = False, self._before_object
            return Step.MORE
        return step if step is Step.MORE else None

    def _before_value(self, text: str, at: int, final: bool) -> tuple[int, Step]:
        at = past_space(text, at)
        if at == len(text):
            return at, Step.MORE
        char = text[at]
        if char == "`" and self._alone and self.fenced:  # nothing stands in it
            return at, self._close()
        if char == "`":
            fence = FENCE.match(text, at)
            if fence is None:
                return at, Step.MORE if waits_for_fence(text, at, final) else Step.REFUSED
            self.fenced = True
            return fence.end(), Step.MORE
        if char == "{" and self._alone and (step := self._names_again(text, at, final)):
            return at, step
        if char == "{" and self._key in _WRAPPERS and self.name is None:
            self._n_open, self._fresh, self._at = self._n_open + 1, True, self._among
            return at + 1, Step.MORE
        self._streams = self._key in ARGUMENTS and self.name is not None and not self.begun
        self._streams &= char == "{" or self._alone and char == "("
        if char in "}]" and self._key in ARGUMENTS and not self._alone:  # there are none
            self._early, self._at = None, self._among
            return at, Step.MORE
        self._value, self._at = Value(call=self._alone), self._in_value
        return at, Step.MORE

    def _in_value(self, text: str, at: int, final: bool) -> tuple[int, Step]:
        at, step = self._value.take(text, at, final)
        if self._streams:
            self.begun |= bool(self._value.pieces)
            self.pieces += self._value.pieces
            self._value.pieces.clear()
        if step is not Step.END:
            return at, step
        self._at = self._among
        if self._streams:
            self._streams, self.complete = False, True
            return at, Step.END if self._alone else Step.MORE
        if not self.begun and not self._accept():
            return at, Step.REFUSED
        return at, self._close() if self._alone else Step.MORE

    def _accept(self) -> bool:
        """Takes over the value that has just ended; False if it is unusable."""
        text = "".join(self._value.pieces)
        if self._key in _NAMES or self._key in _WRAPPERS and text.startswith('"'):
            name = json.loads(text)
            self.name = function_named(name, self._functions) if isinstance(name, str) else None
            return self.name is not None
        if self._key in ARGUMENTS:
            self._early = text
        elif self._key not in _KNOWN:
            self._beside[self._key] = text
        return True

    def _all_beside(self) -> str | None:
        """The arguments that stand beside the name."""
        of = self._functions.get(self.name or "")
        found = [
            f"{JSON(key)}: {text}" for key, text in self._beside.items() if of and of.declares(key)
        ]
        return f"{{{', '.join(found)}}}" if found else None

    def _close(self) -> Step:
        """The end of the object; arguments that could not be passed on are, now."""
        if not self.begun:
            text = _object_of(self._all_beside() if self._early is None else self._early)
            if self.name is None or text is None:
                return Step.REFUSED
            self.pieces.append(text)
            self.begun = self.complete = True
        self._at = self._behind
        return Step.MORE if self._doubled else Step.END

    def _behind(self, text: str, at: int, final: bool) -> tuple[int, Step]:
        """Behind the object, where as many braces end it as began it."""
        at = past_space(text, at)
        if at == len(text) and not final:
            return at, Step.MORE
        if text[at : at + 1] != "}":
            self.complete &= not self._strict
            return at, Step.END
        self._doubled -= 1
        return at + 1, Step.MORE if self._doubled else Step.END


def _object_of(written: str | None) -> str | None:
    """Arguments that are no object: some models write them as a text of JSON, in a list, or none
    for functions without parameters. None: they are something else."""
    value = None if written is None else json.loads(written)
    if isinstance(value, str) and value.strip():
        try:
            return _object_of(as_json(value))
        except ValueError:
            return None
    if isinstance(value, dict):
        return written
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        return written[1:-1] if written else None
    empty = value is None or isinstance(value, str | list) and not any(value)
    return "{}" if empty else None
