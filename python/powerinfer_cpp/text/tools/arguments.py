"""Arguments of earlier calls, also those that a limit of tokens cut, or that are not quite JSON."""

import json
import re
from collections.abc import Mapping
from typing import Any

from .values import LONG

_SIGN = re.compile(r'["{}\[\],:]')
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_IN_STRING = re.compile(r'[^"\\]*(?:\\.[^"\\]*){0,256}', re.DOTALL)
_HALF = re.compile(r"u[0-9a-fA-F]{0,3}\Z")
_DECODER = json.JSONDecoder(strict=False)  # with line breaks in strings
_CLOSING = {"{": "}", "[": "]"}


def read_arguments(given: object) -> dict[str, Any]:
    """The arguments of a call, which are a JSON text or a mapping, as a dict of what JSON can hold.

    Of a text that is no JSON object stays what can be read: of a cut one all that is whole, and
    strings as far as they go; of several objects the first; of anything else nothing. Raises
    TypeError or ValueError for what JSON cannot hold.
    """
    if not isinstance(given, str):
        found = json.loads(json.dumps(dict(given) if isinstance(given, Mapping) else given))
        return found if isinstance(found, dict) else {}
    found = _first_value(given)
    if isinstance(found, str):  # some clients write the text as a JSON string again
        found = _first_value(found)
    return found if isinstance(found, dict) else {}


def _first_value(text: str) -> Any:
    """The value that a text begins with, as far as it goes; None if there is none."""
    text = text.strip()
    for read in (str, _closed):
        try:
            found = _DECODER.raw_decode(read(text))[0]
            return _encodable(found) if _SURROGATE.search(text) else found
        except (ValueError, RecursionError):
            continue
    return None


def _encodable(value: Any) -> Any:
    """A value with ? for each half of a surrogate pair that is alone."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _closed(text: str) -> str:
    """A JSON text that was cut, without what is not whole, and with its brackets closed."""
    closing: list[str] = []  # of the brackets that are open
    kept = 0  # what is before it is whole
    at, is_value = 0, True  # is the next string a value, or the name of one?
    while found := _SIGN.search(text, at):
        sign, at = found[0], found.end()
        if sign == '"':
            begin, at = at, _past_string(text, at)
            if at < 0 and is_value:
                return _whole_characters(text, begin) + '"' + "".join(reversed(closing))
            if at < 0:
                break
            kept = at if is_value else kept
        elif sign in _CLOSING:
            closing.append(_CLOSING[sign])
            kept, is_value = at, sign == "["
        elif not closing or sign in "}]" and sign != closing[-1]:
            break
        elif sign in "}]":
            closing.pop()
            kept = at
        elif sign == ",":
            kept, is_value = found.start(), closing[-1] == "]"
        else:
            is_value = True
    return text[:kept] + "".join(reversed(closing))


def _past_string(text: str, at: int) -> int:
    """The place behind the JSON string whose first quote is before `at`; -1: it has no end."""
    while at < len(text):
        at = _IN_STRING.match(text, at, at + LONG).end()  # type: ignore[union-attr]
        if text.startswith('"', at):
            return at + 1
        at += 2 * text.startswith("\\", at)
    return -1


def _whole_characters(text: str, begin: int) -> str:
    """A text whose last string begins there and has no end, without half of an escape."""
    half = _HALF.search(text, max(begin, len(text) - 4))
    for end in (len(text), half.start() if half else begin):
        n_backslashes = end - max(begin, len(text[begin:end].rstrip("\\")) + begin)
        if n_backslashes % 2:
            return text[: end - 1]
    return text
