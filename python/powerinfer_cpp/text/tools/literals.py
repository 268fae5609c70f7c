"""Python's literals and calls, in one pass. `ast` would read them as well, but a text of a megabyte
keeps Python's lock for seconds there, and the memory of a tree for each of its numbers."""

import ast
import json
import keyword
import re
import sys
import unicodedata
from typing import Any

MAX_DEPTH = 200  # of brackets, as in Python itself
WORDS: dict[str, Any] = {"True": True, "False": False, "None": None}
_JSON_WORDS = {"true": True, "false": False, "null": None}
# What Python can write and JSON has no word for; json.dumps refuses it.
_NO_JSON = object()

_NAME = re.compile(r"[^\W\d]\w*")
_LINE_SPACE = re.compile(r"(?:[ \t\f]+|\\\n|#[^\n]*)*")
_ANY_SPACE = re.compile(r"(?:[ \t\f\n]+|\\\n|#[^\n]*)*")
_WHOLE = re.compile(r"(?:0|[1-9][0-9]{0,4299})(?![\w.])")  # as many digits as int() takes
_FLOAT = re.compile(
    r"(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)(?![\w.])"
)
_NUMBER = re.compile(r"[0-9.][\w.]{0,4400}")  # of another form
_QUOTE = re.compile(r"([A-Za-z]{0,2})(\"\"\"|'''|\"|')")
# What stands before the end of a string, by what ends it.
_BEFORE = {
    quote: re.compile(rf"[^{quote[0]}\\{line}]*(?:\\[\s\S][^{quote[0]}\\{line}]*){{0,256}}")
    for quote, line in (('"', r"\n"), ("'", r"\n"), ('"""', ""), ("'''", ""))
}
_ESCAPE = re.compile(
    r"\\(\n|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^{}]*\}|[0-7]{1,3}|[\s\S])"
)
_ESCAPED = {
    **{"\n": "", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b"},
    **{"f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"},
}

Call = tuple[str, dict[str, Any]]


def value(text: str) -> Any:
    """The value of a literal. Raises ValueError for what is none."""
    source = _Source(text, json_too=False)
    found = source.value()
    source.end()
    return found


def calls(text: str) -> list[Call]:
    """The names and arguments of calls with keywords: in lists, or on lines of their own. JSON's
    words and strings may stand for Python's. Raises ValueError for anything else."""
    source, found = _Source(text, json_too=True), []
    source.next_line()
    while not source.at_end():
        found += source.calls()
        more = source.taken(";")
        if not source.next_line() and not more:
            raise ValueError("a statement has no end")
    return found


class _Source:
    """A text that is being read. All but `end` are told what to read by whoever calls; each raises
    ValueError if it is not there. json_too: JSON's words and strings are read as well."""

    def __init__(self, text: str, json_too: bool):
        self._text = text.replace("\r\n", "\n").replace("\r", "\n")
        self._at = 0
        self._json_too = json_too
        self._words = WORDS | _JSON_WORDS if json_too else WORDS
        self.depth = 0  # of brackets

    # ---- Signs ----

    def _skip(self) -> None:
        spaces = _ANY_SPACE if self.depth else _LINE_SPACE
        self._at = spaces.match(self._text, self._at).end()  # type: ignore[union-attr]

    def taken(self, sign: str) -> bool:
        """Takes a sign if it comes next; brackets are counted."""
        if self._text.startswith(sign, self._at):
            self._at += 1
            if sign in "([{":
                self.depth += 1
                if self.depth > MAX_DEPTH:
                    raise ValueError("brackets are nested too deeply")
            elif sign in ")]}":
                self.depth -= 1
            self._skip()
            return True
        return False

    def wanted(self, sign: str) -> None:
        """Takes a sign."""
        if not self.taken(sign):
            raise ValueError(f"{sign} is missing")

    def at_end(self) -> bool:
        """Is nothing left?"""
        return self._at == len(self._text)

    def end(self) -> None:
        """Takes the end."""
        self._skip()
        if not self.at_end():
            raise ValueError("the literal ends before the text")

    def next_line(self) -> bool:
        """Takes the ends of lines, up to what stands on one. Is the line over, or the text?"""
        self._skip()
        over = self.at_end()
        while self._text.startswith("\n", self._at):
            over, begin = True, self._at + 1
            self._at = _LINE_SPACE.match(self._text, begin).end()  # type: ignore[union-attr]
            if self._text[self._at : self._at + 1] not in ("", "\n") and self._at > begin:
                raise ValueError("a line is indented")
        return over

    # ---- Expressions ----

    def _name(self) -> str:
        match = _NAME.match(self._text, self._at)
        if match is None:
            raise ValueError("a name is missing")
        self._at = match.end()
        self._skip()
        return match[0] if match[0].isascii() else unicodedata.normalize("NFKC", match[0])

    def calls(self) -> list[Call]:
        """Takes a call, or a list of calls."""
        if self.taken("("):
            found = self.calls()
            self.wanted(")")
            return found
        if not self.taken("["):
            return [self.call()]
        found = []
        while not self.taken("]"):
            found.append(self.call())
            if not self.taken(","):
                self.wanted("]")
                break
        return found

    def call(self) -> Call:
        """Takes a call."""
        if self.taken("("):
            found = self.call()
            self.wanted(")")
            return found
        name, given = self._name(), {}
        self.wanted("(")
        while not self.taken(")"):
            key = self._name()
            self.wanted("=")
            given[key] = self.value()
            if keyword.iskeyword(key):
                raise ValueError(f"{key} is no name")
            if not self.taken(","):
                self.wanted(")")
                break
        if keyword.iskeyword(name):
            raise ValueError(f"{name} is no name")
        return name, given

    def value(self) -> Any:
        """Takes a literal, with the space behind it."""
        char = self._text[self._at : self._at + 1]
        if char == "[":
            self.taken("[")
            return self._items("]")[0]
        if char == "(":
            self.taken("(")
            found, alone = self._items(")")
            return found[0] if alone else tuple(found)
        if char == "{":
            self.taken("{")
            return self._pairs()
        if char in ("+", "-"):
            self.taken(char)
            number = self.value() if self._text.startswith("(", self._at) else self._number()
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise ValueError("a sign is not before a number")
            return -number if char == "-" else number
        if char.isdecimal() or char == ".":
            return self._number()
        if (match := _QUOTE.match(self._text, self._at)) is not None:
            return self._strings(match)
        name = self._name()
        if name not in self._words:
            raise ValueError(f"{name} is no literal")
        return self._words[name]

    def _items(self, closing: str) -> tuple[list[Any], bool]:
        """The items up to a bracket; is it one without a comma?"""
        found: list[Any] = []
        while not self.taken(closing):
            found.append(self.value())
            if not self.taken(","):
                self.wanted(closing)
                return found, len(found) == 1
        return found, False

    def _pairs(self) -> Any:
        """A dict, or a set, up to its bracket."""
        found: dict[Any, Any] = {}
        while not self.taken("}"):
            key = self.value()
            if not found and not self._text.startswith(":", self._at):
                self.taken(",")
                self._items("}")
                return _NO_JSON
            self.wanted(":")
            value = self.value()
            try:
                found[key] = value
            except TypeError:
                raise ValueError("a key is a list") from None
            if not self.taken(","):
                self.wanted("}")
                break
        return found

    def _number(self) -> Any:
        text, at = self._text, self._at
        found: Any
        if match := _WHOLE.match(text, at):
            found = int(match[0])  # more than some thousand digits are a ValueError
        elif match := _FLOAT.match(text, at):
            found = float(match[0])
        elif text.startswith("...", at):
            found, match = _NO_JSON, re.compile(r"\.{3}").match(text, at)
        elif match := _NUMBER.match(text, at):
            try:
                found = ast.literal_eval(match[0])
            except SyntaxError as error:
                raise ValueError(str(error)) from None
            if isinstance(found, complex):
                found = _NO_JSON
        else:
            raise ValueError("a number is missing")
        self._at = match.end()  # type: ignore[union-attr]
        self._skip()
        return found

    def _strings(self, match: re.Match[str] | None) -> Any:
        """Strings that stand side by side, which are one. match: the quote of the first."""
        found: list[str] = []
        no_json = False
        while match is not None:
            prefix, quote = match[1].lower(), match[2]
            body = self._body(match.end(), quote)
            self._skip()
            match = _QUOTE.match(self._text, self._at)
            if prefix not in ("", "u", "r", "b", "br", "rb"):
                raise ValueError(f"{prefix} stands before a string")
            no_json |= "b" in prefix
            alone = not found and match is None
            as_json = self._json_too and alone and not prefix and quote == '"'
            if "r" in prefix or "\\" not in body:
                found.append(body)
            elif as_json and (said := _json_text(body)):
                found.append(said)
            else:
                found.append(_ESCAPE.sub(_unescaped, body))
        return _NO_JSON if no_json else "".join(found)

    def _body(self, at: int, quote: str) -> str:
        """Takes a string up to its end; what is between its quotes, as it is written."""
        text, begin, before = self._text, at, _BEFORE[quote]
        while True:
            at = before.match(text, at).end()  # type: ignore[union-attr]
            if text.startswith(quote, at):
                self._at = at + len(quote)
                return text[begin:at]
            if at >= len(text) - 1 or text[at] == "\n" and len(quote) == 1:
                raise ValueError("a string has no end")
            at += 2 if text[at] == "\\" else 1


def _json_text(body: str) -> str | None:
    try:
        return json.loads(f'"{body}"')
    except ValueError:
        return None


def _unescaped(match: re.Match[str]) -> str:
    """What an escape stands for; an unknown one for itself. Raises ValueError."""
    said = match[1]
    if said in _ESCAPED:
        return _ESCAPED[said]
    if said in ("x", "u", "U", "N"):
        raise ValueError("an escape is cut")
    if said[0] == "N" and len(said) > 1:
        try:
            return unicodedata.lookup(said[2:-1])
        except KeyError as error:
            raise ValueError(str(error)) from None
    if said[0] in "xuU" and len(said) > 1:
        code = int(said[1:], 16)
        if code > sys.maxunicode:
            raise ValueError("an escape is no character")
        return chr(code)
    return chr(int(said, 8)) if said[0] in "01234567" else f"\\{said}"
