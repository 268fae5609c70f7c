"""Calls that are read when all of their text is there: Python, and what Gemma 4 writes.

Each reader takes the text between a style's markers and gives its calls, or None for what is none.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import literals
from .definitions import Tool
from .reader import is_object, past_string


@dataclass(frozen=True)
class Read:
    """A call that was read. arguments: the text of a JSON object. id: the model's own, if its
    template wants it back."""

    name: str
    arguments: str
    id: str | None = None


Tools = Mapping[str, Tool]  # by name
Reader = Callable[[str, Tools], list[Read] | None]


def _json(arguments: Any) -> str | None:
    """Arguments as text; None if they are no object, or nested too deeply."""
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return text if is_object(text) else None


def python(text: str, tools: Tools) -> list[Read] | None:
    """Python's syntax: [name(a="x", n=3), ...], or calls on lines of their own. Line breaks may
    stand in texts as they are: some templates write them so."""
    source = text.strip()
    try:
        calls = literals.calls(source)
    except ValueError:
        try:
            calls = literals.calls(source.replace("\n", "\\n"))
        except ValueError:
            return None
    found = []
    for name, given in calls:
        arguments = _json(given) if name in tools else None
        if arguments is None:
            return None
        found.append(Read(name, arguments))
    return found or None


_UNQUOTED = re.compile(r"\s*call:([\w-]+)\s*(\{.*\})\s*", re.DOTALL)
_RAW = '<|"|>'
_NEXT = re.compile(r'[<"{,]')
_KEY = re.compile(r'[{,]\s*([^\s{}\[\],:"<]+)\s*:')


def unquoted(text: str, tools: Tools) -> list[Read] | None:
    """call:NAME{key:<|"|>text<|"|>,n:3}: JSON with bare keys and another quote."""
    match = _UNQUOTED.fullmatch(text)
    if match is None or match[1] not in tools:
        return None
    written = _as_json(match[2])
    return [Read(match[1], written)] if written is not None and is_object(written) else None


def _as_json(text: str) -> str | None:
    """The same with quotes around keys and texts; None if a text has no end."""
    found, at = [], 0
    while match := _NEXT.search(text, at):
        sign, begin = match[0], match.start()
        found.append(text[at:begin])
        if sign in "{,":
            key = _KEY.match(text, begin)
            at = key.end() if key else begin + 1
            if key:
                before, behind = text[begin : key.start(1)], text[key.end(1) : at]
                found.append(f'{before}"{key[1]}"{behind}')
            else:
                found.append(sign)
        elif sign == '"':
            at = past_string(text, begin + 1)
            if at < 0:
                return None
            found.append(text[begin:at])
        else:
            end = text.find(_RAW, begin + len(_RAW))
            if end < 0 or not text.startswith(_RAW, begin):
                return None
            found.append(json.dumps(text[begin + len(_RAW) : end], ensure_ascii=False))
            at = end + len(_RAW)
    return "".join([*found, text[at:]])
