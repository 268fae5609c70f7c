"""Patterns of ECMA-262, as RegExp with the flag u reads them: a parser.

A JSON schema's `pattern` is written in this language. What it has in common with others is written
alike and means something else: `.`, `\\s`, `\\w`, `&&` in a class. So a pattern is parsed here, and
the engine only gets sets of characters, sequences, alternatives and repetitions (strings.py).

Beyond the flag u, an escaped sign that has no meaning in any language is that sign, as without the
flag: `\\@` and `\\-`. Groups that capture are groups: what they hold matters to nothing but
backreferences, which are refused.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from characters import DIGIT, LAST, LINE_ENDS, SPACE, WORD, Ranges, merged, others
from gbnf import EMPTY, Alt, Char, Repeat, Seq

MAX_DEPTH = 60  # groups in groups

_CLASSES = {"d": DIGIT, "s": SPACE, "w": WORD}
_CONTROLS = {"f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_SYNTAX = "^$\\.*+?()[]{}|/"
_SIGNS = " !\"#%&',-:;=@_~"  # that may be escaped although they mean nothing
_QUANTIFIERS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_BRACES = re.compile(r"\{([0-9]+)(?:(,)([0-9]*))?\}")
_NAME = re.compile(r"<((?:[^\W\d]|\$)[\w$]*)>")
_PROPERTY = re.compile(r"\{(\w{1,30}=)?([A-Z]\w{0,40}|cntrl|digit|punct|space)\}", re.ASCII)
_HEX = re.compile(r"[0-9A-Fa-f]+")


class PatternError(ValueError):
    """What is wrong with a pattern, in a few words."""


@dataclass(frozen=True, eq=False)
class Edge:
    """A place, without characters. kind: "start", "end", "word", "inside" (no edge of a word)."""

    kind: str


@dataclass(frozen=True, eq=False)
class Look:
    """What must follow a place, or stand before it; negated: must not."""

    part: "Pattern"
    behind: bool
    negated: bool


Pattern = Char | Seq | Alt | Repeat | Edge | Look


def parse(pattern: str, characters_of: Callable[[str], Ranges | None]) -> Pattern:
    r"""The nodes of a pattern. characters_of: those of a Unicode property, as `\p{...}` names it;
    None for a name that there is not. Raises PatternError."""
    return _Parser(pattern, characters_of).whole()


class _Parser:
    def __init__(self, text: str, characters_of: Callable[[str], Ranges | None]):
        self.text, self.at, self.depth = text, 0, 0
        self.characters_of = characters_of
        self.names: set[str] = set()
        self.known: dict[Ranges, Char] = {}

    def whole(self) -> Pattern:
        found = self.alternatives()
        if self.at < len(self.text):
            raise PatternError(") closes no group")
        return found

    # ---- Structure ----

    def peek(self, n: int = 1) -> str:
        return self.text[self.at : self.at + n]

    def take(self, words: str) -> bool:
        """Goes over these characters, if they are next."""
        found = self.text.startswith(words, self.at)
        self.at += len(words) if found else 0
        return found

    def alternatives(self) -> Pattern:
        found = [self.sequence()]
        while self.take("|"):
            found.append(self.sequence())
        return found[0] if len(found) == 1 else Alt(tuple(found))

    def sequence(self) -> Pattern:
        found: list[Pattern] = []
        while self.peek() not in ("", "|", ")"):
            found.append(self.term())
        return found[0] if len(found) == 1 else Seq(tuple(found)) if found else EMPTY

    def term(self) -> Pattern:
        assertion = self.assertion()
        if assertion is not None:
            if self.quantifier() is not None:
                raise PatternError("an assertion cannot be repeated")
            return assertion
        part = self.atom()
        times = self.quantifier()
        if times is None:
            return part
        if self.quantifier() is not None:
            raise PatternError("a repetition cannot be repeated without a group")
        return Repeat(part, *times)

    def quantifier(self) -> tuple[int, int | None] | None:
        """(least, most) times; None where nothing is repeated."""
        c = self.peek()
        if c in _QUANTIFIERS:
            times: tuple[int, int | None] = _QUANTIFIERS[c]
            self.at += 1
        elif match := _BRACES.match(self.text, self.at):
            least, comma, most = match.groups()
            if max(len(least), len(most or "")) > 15:
                raise PatternError(f"{match[0][:20]}... repeats too often")
            times = int(least), int(most) if most else None if comma else int(least)
            if times[1] is not None and times[1] < times[0]:
                raise PatternError(f"the numbers of {match[0]} are out of order")
            self.at = match.end()
        else:
            return None
        self.take("?")  # the fewest first: the same texts
        return times

    def assertion(self) -> Pattern | None:
        if self.take("^"):
            return Edge("start")
        if self.take("$"):
            return Edge("end")
        if self.take("\\b"):
            return Edge("word")
        if self.take("\\B"):
            return Edge("inside")
        for opening in ("(?=", "(?!", "(?<=", "(?<!"):
            if self.take(opening):
                return Look(self.group(), "<" in opening, opening[-1] == "!")
        return None

    def group(self) -> Pattern:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise PatternError(f"groups are nested more than {MAX_DEPTH} deep")
        found = self.alternatives()
        if not self.take(")"):
            raise PatternError("a group is not closed")
        self.depth -= 1
        return found

    def atom(self) -> Pattern:
        c = self.peek()
        if c == "(":
            return self.capture()
        self.at += 1
        if c == ".":
            return self.char(others(LINE_ENDS))
        if c == "[":
            return self.char(self.character_class())
        if c == "\\":
            return self.char(self.escape(False))
        if c in "*+?":
            raise PatternError(f"{c} has nothing to repeat")
        if c in "{}]":
            raise PatternError(f"{c} must be escaped: \\{c}")
        return self.char(((ord(c), ord(c)),))

    def capture(self) -> Pattern:
        if self.take("(?:"):
            return self.group()
        self.take("(")
        if self.take("?"):
            match = _NAME.match(self.text, self.at)
            if match is None:
                raise PatternError(f"(?{self.peek(2)} begins no group of ECMA-262")
            if match[1] in self.names:
                raise PatternError(f"two groups are named {match[1]}")
            self.names.add(match[1])
            self.at = match.end()
        return self.group()

    def char(self, ranges: Ranges) -> Char:
        # Without surrogates: half of a pair matches no character.
        return self.known.setdefault(ranges, Char(merged(ranges)))

    # ---- Characters ----

    def character_class(self) -> Ranges:
        negated = self.take("^")
        found: list[tuple[int, int]] = []
        while not self.take("]"):
            low = self.class_atom()
            if self.peek() == "-" and self.peek(2) not in ("-]", "-"):
                self.at += 1
                high = self.class_atom()
                if not (_single(low) and _single(high)):
                    raise PatternError(r"a class such as \w is no end of a range; write - as \-")
                if high[0][0] < low[0][0]:
                    raise PatternError("a range of characters ends before it begins")
                low = ((low[0][0], high[0][0]),)
            found += low
        return merged(found, negated)

    def class_atom(self) -> Ranges:
        c = self.peek()
        if not c:
            raise PatternError("a class of characters is not closed")
        self.at += 1
        return self.escape(True) if c == "\\" else ((ord(c), ord(c)),)

    def escape(self, in_class: bool) -> Ranges:
        """The characters of an escape, behind its backslash."""
        c = self.peek()
        self.at += 1
        if not c:
            raise PatternError("a backslash ends the pattern")
        if c.lower() in _CLASSES:
            found = _CLASSES[c.lower()]
            return found if c.islower() else others(found)
        if c in "pP":
            found = self.property()
            return found if c == "p" else others(found)
        if c in "123456789" or c == "k":
            raise PatternError(f"\\{c} refers back to a group, which cannot be enforced")
        code = self.code(c, in_class)
        if code is None:
            raise PatternError(f"\\{c} is no escape of ECMA-262 with the flag u")
        return ((code, code),)

    def code(self, c: str, in_class: bool) -> int | None:
        """The character of an escape that stands for one; None if it is none."""
        if c in _CONTROLS:
            return _CONTROLS[c]
        if c in _SYNTAX or c in _SIGNS:
            return ord(c)
        if c == "b" and in_class:
            return 8
        if c == "0" and self.peek() not in tuple("0123456789"):
            return 0
        if c == "c" and (letter := self.peek()).isascii() and letter.isalpha():
            self.at += 1
            return ord(letter) % 32
        if c == "x":
            return self.digits(2)
        if c == "u":
            return self.unicode()
        return None

    def digits(self, n: int) -> int | None:
        """A number of n hexadecimal digits."""
        text = self.peek(n)
        if len(text) < n or not _HEX.fullmatch(text):
            return None
        self.at += n
        return int(text, 16)

    def unicode(self) -> int | None:
        if self.take("{"):
            match = _HEX.match(self.text, self.at)
            if match is None or not self.text.startswith("}", match.end()):
                return None
            self.at = match.end() + 1
            digits = match[0].lstrip("0")
            if len(digits) > 6 or int(digits or "0", 16) > LAST:
                raise PatternError(f"\\u{{{match[0][:8]}}} is beyond the last character")
            return int(digits or "0", 16)
        first, at = self.digits(4), self.at
        if first is not None and 0xD800 <= first < 0xDC00 and self.take("\\u"):
            second = self.digits(4)
            if second is not None and 0xDC00 <= second < 0xE000:
                return 0x10000 + ((first & 0x3FF) << 10) + (second & 0x3FF)
            self.at = at
        return first

    def property(self) -> Ranges:
        match = _PROPERTY.match(self.text, self.at)
        found = None if match is None else self.characters_of(match[0][1:-1])
        if match is None or found is None:
            end = self.text.find("}", self.at, self.at + 40)
            name = self.text[self.at : end + 1] if end >= 0 else ""
            raise PatternError(f"\\p{name} is no property of characters that is known")
        self.at = match.end()
        return found


def _single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]
