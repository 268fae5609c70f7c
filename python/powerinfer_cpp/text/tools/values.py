"""Values as models write them, rewritten as JSON while they are read.

Models mean JSON and write something near it: Python's words, quotes and numbers, keys without
quotes, line breaks and quotes inside texts, commas too many or too few, doubled braces. What is
passed on is JSON whatever comes next, since only what is certain is passed on, and `closing` ends
it at any time.

A text comes in pieces. What cannot be told yet is left, and comes again with more behind it; it is
short, so the time is in proportion to the text. No single search is long: others wait for Python's
lock meanwhile.
"""

import json
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

MAX_DEPTH = 64  # of arguments; deeper ones would exhaust the stack of whoever parses them
LONG = 1 << 16  # characters that one search may take
MOST_SPACE = 256  # characters that are looked past to see what follows
# A text is passed on when it is whole, or longer than this: a command or path that is cut would do
# something else, and clients show a long text while it is written.
SHORT = 256
_MOST_WORD = 1024  # characters of a key, number or word

JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_RAW = '<|"|>'  # Gemma's quote, which needs no escapes
_QUOTES = (_RAW, '"""', "'''", '"', "'")
_CLOSING = {"{": "}", "[": "]", "(": ")"}

_SPACES = re.compile(r"\s*")
_SIMPLE = re.compile(
    rf"(?:\"([^\"\\\x00-\x1f]{{0,{SHORT}}})\"|'([^'\\\x00-\x1f]{{0,{SHORT}}})')(?=\s?[,}}\])])"
)
_PLAIN = {quote: re.compile(rf"[^{quote[0]}\\]+") for quote in _QUOTES}
_ESCAPE = re.compile(
    r"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|U[0-9a-fA-F]{8}|N\{[^{}\\]{1,80}\}|[0-7]{1,3}|[\s\S])"
)
_LENGTHS = {"u": 6, "x": 4, "U": 10, "N": 90}  # of escapes
_PYTHON = {"a": "\a", "v": "\v", "\n": ""}
_KEY = re.compile(
    rf'"(?:[^"\\]|\\.){{0,{_MOST_WORD}}}"'
    rf"|'(?:[^'\\]|\\.){{0,{_MOST_WORD}}}'"
    rf'|<\|"\|>[^<]{{0,{_MOST_WORD}}}<\|"\|>'
    rf"|[^\s{{}}\[\](),:=<>\"'`]{{1,{_MOST_WORD}}}",
    re.DOTALL,
)
_WORD = re.compile(rf"[^\s{{}}\[\](),:=<>\"'`;]{{1,{_MOST_WORD}}}")
_BARE = re.compile(rf"[^,{{}}\[\]()\n<\"'`]{{1,{_MOST_WORD}}}")  # a text without quotes
_NEXT_KEY = re.compile(r"\s[\w$.-]+\s*[:=](?!/)")
_BEHIND_TEXT = ",:}])<\"'`;"  # what may follow a text; another quote belongs to it
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_PYTHON_NUMBER = re.compile(r"[+-]?(?:0[xXoObB][\da-fA-F_]+|[\d_]*\.?[\d_]*(?:[eE][+-]?\d+)?)")
_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}


class Step(Enum):
    """Why a reader takes no more of a text."""

    MORE = 0  # what follows decides
    END = 1  # it ended before what was left
    REFUSED = 2  # what was left cannot follow


# A state of a reader takes what it can of a text from a place on, and gives the place behind and
# the reason. The last flag: nothing will follow.
State = Callable[[str, int, bool], tuple[int, Step]]


class States:
    """Reads by states, until none of them takes more."""

    _at: State

    def take(self, text: str, at: int, final: bool = False) -> tuple[int, Step]:
        """The place behind what was taken of a text from `at` on, and why no more was. What is left
        must come again, with more behind it. final: nothing will follow."""
        while True:
            before = at, self._at
            at, step = self._at(text, at, final)
            if step is not Step.MORE or before == (at, self._at):
                return at, step


def past_space(text: str, at: int) -> int:
    """The place behind white space of any kind from `at` on."""
    return _SPACES.match(text, at).end()  # type: ignore[union-attr]


def key_at(text: str, at: int, final: bool) -> tuple[int, Step, str]:
    """The place of the value behind a key; END, MORE or REFUSED; the key, as it is written."""
    match = _KEY.match(text, at)
    if match is None:
        waits = text[at] in "\"'<" and len(text) - at < 2 * _MOST_WORD + 2 and not final
        return at, Step.MORE if waits else Step.REFUSED, ""
    behind = past_space(text, match.end())
    far = behind - match.end() >= MOST_SPACE
    if far or behind == len(text) or text[behind] not in ":=":
        waits = behind == len(text) and not final and not far
        return at, Step.MORE if waits else Step.REFUSED, ""
    return behind + 1, Step.END, match[0]


def plain_key(written: str) -> str:
    """The text of a key."""
    return json.loads(as_json(written)) if written[0] in "\"'<" else written


def as_json(text: str) -> str:
    """A whole value as JSON. Raises ValueError if it is none."""
    value = Value()
    at, step = value.take(text, 0, True)
    if step is not Step.END or past_space(text, at) != len(text):
        raise ValueError("this is no value")
    return "".join(value.pieces)


@dataclass
class _Bracket:
    """An open bracket. closing: the one that ends it, in the text; written: in JSON. pairs: it
    holds keys and values. bare: its texts may have no quotes. place: in what is held, of round
    brackets around what may be one value; -1: they are a list."""

    closing: str
    written: str
    pairs: bool
    bare: bool
    place: int = -1
    any: bool = False  # it has an element
    doubled: int = 0  # braces that stood behind the first one


class Value(States):
    """Reads a value, and writes it as JSON. call: it consists of arguments, which may stand in
    round brackets, as in Python.

    After each call of `take`, `pieces` has what is certain; whoever takes it empties it. keys: of
    the outermost object.
    """

    def __init__(self, call: bool = False):
        self.pieces: list[str] = []
        self.keys: set[str] = set()
        self._call = call
        self._python = False
        self._open: list[_Bracket] = []
        self._n_passed = 0  # of the open brackets: they were passed on
        self._n_undecided = 0  # of the open brackets: whether they are lists
        self._held: list[str] = []  # JSON that waits for a value
        self._comma = False  # nothing followed yet
        self._bare = False  # the key has no quotes, and so a text may have none
        self._quote, self._literal = "", False  # of a text; it has no escapes
        self._text: list[str] = []  # of it, as JSON
        self._n_text = 0
        self._streams = False  # it is passed on
        self._at: State = self._value

    @property
    def closing(self) -> str:
        """What makes JSON of all that was passed on."""
        brackets = "".join(bracket.written for bracket in self._open[: self._n_passed])
        return ('"' if self._streams else "") + brackets[::-1]

    @property
    def rests(self) -> bool:
        """Is nothing missing but the last bracket?"""
        return len(self._open) == 1 and self._at == self._element and not self._comma

    def _pass(self) -> None:
        if not self._n_undecided and self._held:
            self.pieces += self._held
            self._n_passed = len(self._open)
            self._held.clear()

    def _begin(self) -> None:
        """An element begins in the innermost bracket."""
        if self._open:
            if self._open[-1].any and not self._open[-1].pairs:
                self._held.append(", ")
            self._open[-1].any = True

    def _end(self) -> tuple[State, Step]:
        """What follows a value."""
        self._comma = False
        return self._element, Step.MORE if self._open else Step.END

    # ---- States ----

    def _value(self, text: str, at: int, final: bool) -> tuple[int, Step]:
        at = past_space(text, at)
        if at == len(text):
            return at, Step.MORE
        char = text[at]
        if char in _CLOSING:
            if len(self._open) == MAX_DEPTH:
                return at, Step.REFUSED
            self._begin()
            outer = self._call and not self._open
            self._python |= outer and char == "("
            pairs = char == "{" or outer and char == "("
            self._open.append(_Bracket(_CLOSING[char], "}" if pairs else "]", pairs, self._bare))
            self._held.append("{" if pairs else "[")
            if char == "(" and not pairs:
                self._open[-1].place = len(self._held) - 1
                self._n_undecided += 1
            self._at, self._comma = self._element, False
            return at + 1, Step.MORE
        if simple := _SIMPLE.match(text, at):  # as most are
            self._begin()
            self._held.append(JSON(simple[1] or simple[2] or ""))
            self._pass()
            self._at, step = self._end()
            return simple.end(), step
        if char in "\"'<":
            return self._open_text(text, at, final)
        return self._word(text, at, final)

    def _element(self, text: str, at: int, final: bool) -> tuple[int, Step]:
        """Within a bracket, between its elements."""
        at = past_space(text, at)
        if at == len(text):
            return at, Step.MORE
        char, bracket = text[at], self._open[-1]
        if char in ",;":
            self._comma = True
            if bracket.place >= 0:
                bracket.place = -1
                self._n_undecided -= 1
                self._pass()
            return at + 1, Step.MORE
        if char in ")]}":
            return self._close(text, at, final)
        if not bracket.pairs:
            self._at, self._bare = self._value, bracket.bare
            return at, Step.MORE
        if char == "{" and not bracket.any:
            bracket.doubled += 1
            return at + 1, Step.MORE
        behind, step, written = key_at(text, at, final)
        if step is not Step.END:
            return at, step
        try:
            key = plain_key(written)
        except ValueError:
            return at, Step.REFUSED
        if len(self._open) == 1:
            self.keys.add(key)
        self._held.append(f"{', ' if bracket.any else ''}{JSON(key)}: ")
        self._bare = written == key and text[behind - 1] == ":"
        bracket.any, self._at = True, self._value
        return behind, Step.MORE

    def _close(self, text: str, at: int, final: bool) -> tuple[int, Step]:
        """At a closing bracket, which may end others that stayed open within its own."""
        places = [i for i, bracket in enumerate(self._open) if bracket.closing == text[at]]
        if not places:
            return at, Step.REFUSED
        begin, at = at, at + 1
        for _ in range(self._open[places[-1]].doubled):
            behind = past_space(text, at)
            near = behind - at < MOST_SPACE
            if behind == len(text) and not final and near:
                return begin, Step.MORE
            if text[behind : behind + 1] == "}" and near:
                at = behind + 1
        while len(self._open) > places[-1]:
            bracket = self._open.pop()
            self._n_undecided -= bracket.place >= 0
            if bracket.place >= 0 and bracket.any:
                self._held[bracket.place] = ""
            else:
                self._held.append(bracket.written)
            self._n_passed = min(self._n_passed, len(self._open))
        self._pass()
        self._at, step = self._end()
        return at, step

    def _word(self, text: str, at: int, final: bool) -> tuple[int, Step]:
        match = (_BARE if self._bare else _WORD).match(text, at)
        if match is None:
            return at, Step.REFUSED
        said, behind = match[0], match.end()
        if len(said) == _MOST_WORD:
            return at, Step.REFUSED
        if behind == len(text) and (self._open or not final):  # more of it was cut
            return at, Step.MORE
        follows = text[behind : behind + 1]
        if follows in ("'", '"') and said.lower() in ("r", "u"):
            self._literal = said.lower() == "r"
            return self._open_text(text, behind, final, at)
        if self._bare:
            said = _NEXT_KEY.split(said, maxsplit=1)[0].rstrip()  # a comma is missing before it
            behind = at + len(said)
        written = _scalar(said)
        if written is None and not self._bare:
            return at, Step.REFUSED
        self._begin()
        self._held.append(JSON(said) if written is None else written)
        self._pass()
        self._at, step = self._end()
        return behind, step

    # ---- Texts ----

    def _open_text(
        self, text: str, at: int, final: bool, begin: int | None = None
    ) -> tuple[int, Step]:
        """At a quote. begin: of a prefix."""
        begin = at if begin is None else begin
        rest = text[at : at + len(_RAW)]
        if not final and rest in ("'", '"', "''", '""', *(_RAW[:n] for n in range(1, len(_RAW)))):
            return begin, Step.MORE
        quote = next((quote for quote in _QUOTES if rest.startswith(quote)), "")
        if not quote:
            return begin, Step.REFUSED
        self._quote, self._text, self._n_text = quote, [], 0
        self._literal &= begin < at
        self._begin()
        self._at = self._in_text
        return at + len(quote), Step.MORE

    def _in_text(self, text: str, at: int, final: bool) -> tuple[int, Step]:
        quote = self._quote
        if plain := _PLAIN[quote].match(text, at, at + LONG):
            self._say(JSON(plain[0])[1:-1])
            return plain.end(), Step.MORE
        if at == len(text):
            return at, Step.MORE
        if text[at] == "\\":
            return self._escape(text, at, final)
        if text.startswith(quote, at):
            return self._quoted(text, at, final)
        if quote.startswith(text[at:]):  # one that is cut is none of the text
            return len(text) if final else at, Step.MORE
        self._say(JSON(text[at])[1:-1])
        return at + 1, Step.MORE

    def _quoted(self, text: str, at: int, final: bool) -> tuple[int, Step]:
        """At a quote, which ends the text or belongs to it."""
        behind = at + len(self._quote)
        if len(self._quote) == 1:
            follows = past_space(text, behind)
            near = follows - behind < MOST_SPACE
            if follows == len(text) and not final and near:
                return at, Step.MORE
            char = text[follows : follows + 1] if near else ""
            if (
                self._python and char and char in "\"'"
            ):  # Python joins texts that stand side by side
                rest = text[follows : follows + 3]
                if not final and len(rest) < 3 and rest == char * len(rest):
                    return at, Step.MORE
                self._quote = rest if rest == char * 3 else char
                return follows + len(self._quote), Step.MORE
            if char and char not in _BEHIND_TEXT and not self._bare and not self._python:
                self._say(JSON(self._quote)[1:-1])
                return behind, Step.MORE
        if self._streams:
            self.pieces.append('"')
        else:
            self._held.append(f'"{"".join(self._text)}"')
            self._pass()
        self._streams, self._literal = False, False
        self._at, step = self._end()
        return behind, step

    def _escape(self, text: str, at: int, final: bool) -> tuple[int, Step]:
        if self._quote == _RAW:
            self._say("\\\\")
            return at + 1, Step.MORE
        char = text[at + 1 : at + 2]
        most = 4 if self._python and char.isdecimal() else _LENGTHS.get(char, 2)
        if len(text) - at < most and not final and "}" not in text[at : at + most]:
            return at, Step.MORE
        match = _ESCAPE.match(text, at)
        if match is None or self._literal:
            self._say(JSON(text[at : at + 2])[1:-1])
            return min(at + 2, len(text)), Step.MORE
        written = _escaped(match[0], self._python)
        if written is None:  # of no language: the backslash belongs to the text
            self._say("\\\\")
            return at + 1, Step.MORE
        self._say(written)
        return match.end(), Step.MORE

    def _say(self, written: str) -> None:
        """Adds JSON to a text."""
        if self._streams:
            self.pieces.append(written)
            return
        self._text.append(written)
        self._n_text += len(written)
        if self._n_text > SHORT and not self._n_undecided:
            self._held.append('"' + "".join(self._text))
            self._pass()
            self._streams = True


def _scalar(said: str) -> str | None:
    """A number or word as JSON; None: it is neither."""
    if _NUMBER.fullmatch(said):
        return said
    if (word := _WORDS.get(said.lower())) is not None:
        return word
    if not _PYTHON_NUMBER.fullmatch(said) or not any(char.isdecimal() for char in said):
        return None
    try:
        whole = not re.search(r"[.eE]", said) or said.lstrip("+-")[:2].lower() == "0x"
        return JSON(int(said, 0) if whole else float(said))
    except (ValueError, OverflowError):
        return None


def _escaped(escape: str, python: bool) -> str | None:
    """An escape as JSON; None: it is none."""
    kind, code = escape[1], escape[2:]
    if kind in '"\\/bfnrt' or kind == "u" and code:
        return escape
    if kind == "'":
        return "'"
    if kind in "xU" and code:
        return _character(int(code, 16))
    if python and kind.isdecimal():
        return _character(int(escape[1:], 8)) if kind in "01234567" else None
    if kind == "N" and code:
        try:
            return JSON(unicodedata.lookup(code[1:-1]))[1:-1]
        except KeyError:
            return None
    return JSON(_PYTHON[kind])[1:-1] if python and kind in _PYTHON else None


def _character(code: int) -> str | None:
    if code > 0x10FFFF:
        return None
    return f"\\u{code:04x}" if 0xD800 <= code < 0xE000 else JSON(chr(code))[1:-1]
