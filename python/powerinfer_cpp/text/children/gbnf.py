"""GBNF, llama.cpp's notation of grammars: a parser, and a translation into llguidance's notation.

The translation keeps the language exactly. llguidance splits text into terminals greedily, so a
part of a grammar may only become a terminal where no other reading is lost by that; lexemes.py
decides it. All else becomes rules over single characters.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from characters import ALL, LAST, Ranges, merged

MAX_REPEATS = 2000  # as in llama.cpp


class GbnfError(ValueError):
    """One sentence about what is wrong, with the line."""


@dataclass(frozen=True, eq=False)
class Char:
    """One character of a set: sorted ranges of code points that do not touch."""

    ranges: Ranges


@dataclass(frozen=True, eq=False)
class Token:
    """One token by its number, or any but that."""

    number: int
    negated: bool


@dataclass(frozen=True, eq=False)
class Ref:
    name: str


@dataclass(frozen=True, eq=False)
class Seq:
    parts: "tuple[Node, ...]"


@dataclass(frozen=True, eq=False)
class Alt:
    parts: "tuple[Node, ...]"


@dataclass(frozen=True, eq=False)
class Repeat:
    """least to most times; most None: without end."""

    part: "Node"
    least: int
    most: int | None


Node = Char | Token | Ref | Seq | Alt | Repeat
Rules = dict[str, Node]
EMPTY = Seq(())

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_INT = re.compile(r"[0-9]+")
_TOKEN = re.compile(r"<\[([0-9]{1,9})\]>")
_DIGITS = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", **{c: c for c in '\\"[]-^/'}}


ANY = Char(ALL)


class _Parser:
    def __init__(self, text: str):
        self.text, self.at = text, 0
        self.rules: Rules = {}
        self.uses: dict[str, int] = {}  # where a name is first used

    def error(self, words: str, at: int | None = None) -> GbnfError:
        at = self.at if at is None else at
        line = self.text.count("\n", 0, at) + 1
        return GbnfError(f"line {line} of the grammar: {words}")

    def expected(self, what: str) -> GbnfError:
        rest = self.text[self.at : self.at + 12].split("\n")[0]
        return self.error(f"expected {what}, found {ascii(rest) if rest else 'the end'}")

    def peek(self, n: int = 1) -> str:
        return self.text[self.at : self.at + n]

    def space(self, lines: bool) -> None:
        """Skips white space and comments; lines: ends of lines as well."""
        while (c := self.peek()) and (c in " \t#" or lines and c in "\r\n"):
            if c == "#":
                while self.peek() not in ("", "\r", "\n"):
                    self.at += 1
            else:
                self.at += 1

    def name(self) -> str:
        match = _NAME.match(self.text, self.at)
        if match is None:
            raise self.expected("the name of a rule")
        self.at = match.end()
        return match[0]

    def grammar(self) -> Rules:
        self.space(True)
        while self.peek():
            name = self.name()
            self.space(False)
            if self.peek(3) != "::=":
                raise self.expected("::=")
            self.at += 3
            self.space(True)
            self.rules[name] = self.alternatives(False)
            if self.peek() not in ("", "\r", "\n"):
                raise self.expected("the end of the line")
            self.space(True)
        for name, at in self.uses.items():
            if name not in self.rules:
                raise self.error(f"there is no rule {name}", at)
        if "root" not in self.rules:
            raise GbnfError("the grammar has no rule root")
        return self.rules

    def alternatives(self, nested: bool) -> Node:
        found = [self.sequence(nested)]
        while self.more(nested):
            self.at += 1
            self.space(True)
            found.append(self.sequence(nested))
        return found[0] if len(found) == 1 else Alt(tuple(found))

    def more(self, nested: bool) -> bool:
        """Is a | next? A rule's alternatives may begin on lines of their own."""
        if not nested and self.peek() in ("\r", "\n"):
            before = self.at
            self.space(True)
            if self.peek() != "|":
                self.at = before
        return self.peek() == "|"

    def sequence(self, nested: bool) -> Node:
        found: list[Node] = []
        while c := self.peek():
            if c in "*+?{":
                if not found:
                    raise self.expected("something to repeat")
                found[-1] = self.repeated(found[-1], nested)
            elif (item := self.item(c)) is not None:
                found.append(item)
            else:
                break
            self.space(nested)
        return found[0] if len(found) == 1 else Seq(tuple(found))

    def item(self, c: str) -> Node | None:
        if c == '"':
            return self.literal()
        if c == "[":
            return self.character_set()
        if c == ".":
            self.at += 1
            return ANY
        if c in "<!":
            return self.token()
        if c == "(":
            self.at += 1
            self.space(True)
            inner = self.alternatives(True)
            if self.peek() != ")":
                raise self.expected(")")
            self.at += 1
            return inner
        if _NAME.match(c):
            at = self.at
            name = self.name()
            self.uses.setdefault(name, at)
            return Ref(name)
        return None

    def token(self) -> Token:
        negated = self.peek() == "!"
        self.at += negated
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            raise self.error("a token must be given by its number, as <[123]>")
        self.at = match.end()
        return Token(int(match[1]), negated)

    def literal(self) -> Node:
        self.at += 1
        found: list[Node] = []
        while (c := self.peek()) != '"':
            if not c:
                raise self.expected('"')
            code = self.character()
            found.append(Char(((code, code),)))
        self.at += 1
        return found[0] if len(found) == 1 else Seq(tuple(found))

    def character_set(self) -> Char:
        begin = self.at
        self.at += 1
        negated = self.peek() == "^"
        self.at += negated
        found = []
        while (c := self.peek()) != "]":
            if not c:
                raise self.expected("]")
            low = high = self.character()
            if self.peek() == "-" and self.peek(2) not in ("-]", "-"):
                self.at += 1
                high = self.character()
                if high < low:
                    raise self.error("a range of characters ends before it begins", begin)
            found.append((low, high))
        self.at += 1
        return Char(merged(found, negated))

    def character(self) -> int:
        """A character of a literal or a set, as its code point."""
        c = self.peek()
        self.at += 1
        if c != "\\":
            code = ord(c)
        else:
            kind = self.peek()
            self.at += 1
            if kind in _ESCAPES:
                return ord(_ESCAPES[kind])
            digits = self.peek(_DIGITS.get(kind, 0))
            if not digits or not re.fullmatch(f"[0-9a-fA-F]{{{_DIGITS[kind]}}}", digits):
                raise self.error(f"\\{kind + digits} is no escape of GBNF")
            self.at += len(digits)
            code = int(digits, 16)
        if code > LAST or 0xD800 <= code < 0xE000:
            raise self.error(f"{code:#x} is no character")
        return code

    def repeated(self, part: Node, nested: bool) -> Node:
        kind = self.peek()
        self.at += 1
        if kind != "{":
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[kind]
            return Repeat(part, least, most)
        self.space(nested)
        least = 0 if self.peek() == "," else self.number()
        most = least
        self.space(nested)
        if self.peek() == ",":
            self.at += 1
            self.space(nested)
            most = None if self.peek() == "}" else self.number()
            self.space(nested)
        if self.peek() != "}":
            raise self.expected("}")
        self.at += 1
        if most is not None and most < least:
            raise self.error(f"{{{least},{most}}} asks for at least {least} and at most {most}")
        return Repeat(part, least, most)

    def number(self) -> int:
        match = _INT.match(self.text, self.at)
        if match is None:
            raise self.expected("a number")
        if len(match[0]) > 9 or int(match[0]) > MAX_REPEATS:
            raise self.error(f"{match[0][:12]} repetitions are more than {MAX_REPEATS}")
        self.at = match.end()
        return int(match[0])


def parse(text: str) -> Rules:
    """The rules of a text in GBNF, by name. Raises GbnfError."""
    rules = _Parser(text).grammar()
    _refuse_left_recursion(rules)
    return rules


def last_token(rules: Rules) -> int:
    """The highest number of the tokens that the rules name; -1 without tokens."""
    found, todo = -1, list(rules.values())
    while todo:
        node = todo.pop()
        found = max(found, node.number) if isinstance(node, Token) else found
        todo += inner(node)
    return found


def inner(node: Node) -> "tuple[Node, ...]":
    """The nodes directly inside a node."""
    if isinstance(node, Seq | Alt):
        return node.parts
    return (node.part,) if isinstance(node, Repeat) else ()


def names(node: Node) -> Iterator[str]:
    """The rules that a node names."""
    todo = [node]
    while todo:
        at = todo.pop()
        if isinstance(at, Ref):
            yield at.name
        todo += inner(at)


def nullable_rules(rules: Rules) -> set[str]:
    """The rules that admit the empty text."""
    found: set[str] = set()
    while True:
        more = {name for name in rules.keys() - found if is_nullable(rules[name], found)}
        if not more:
            return found
        found |= more


def is_nullable(node: Node, nullable: set[str]) -> bool:
    """Does it admit the empty text? nullable: the rules that do."""
    if isinstance(node, Ref):
        return node.name in nullable
    if isinstance(node, Seq):
        return all(is_nullable(part, nullable) for part in node.parts)
    if isinstance(node, Alt):
        return any(is_nullable(part, nullable) for part in node.parts)
    if isinstance(node, Repeat):
        return node.least == 0 or is_nullable(node.part, nullable)
    return False


def _refuse_left_recursion(rules: Rules) -> None:
    nullable = nullable_rules(rules)

    def first(node: Node) -> Iterator[str]:
        """The rules with which it may begin."""
        if isinstance(node, Ref):
            yield node.name
        elif isinstance(node, Seq):
            for part in node.parts:
                yield from first(part)
                if not is_nullable(part, nullable):
                    return
        elif not (isinstance(node, Repeat) and node.most == 0):
            for part in inner(node):
                yield from first(part)

    begins = {name: set(first(node)) for name, node in rules.items()}
    if (name := in_a_circle(begins)) is not None:
        raise GbnfError(f"the rule {name} begins with itself: left recursion cannot be used")


def in_a_circle(edges: dict[str, set[str]]) -> str | None:
    """A name from which edges lead back to it; None if there is none."""
    state: dict[str, int] = {}  # 1: on the path, 2: done
    for begin in edges:
        if begin in state:
            continue
        state[begin] = 1
        path = [(begin, iter(sorted(edges[begin])))]
        while path:
            name, rest = path[-1]
            following = next(rest, None)
            if following is None:
                state[name] = 2
                path.pop()
            elif state.get(following) == 1:
                return following
            elif following not in state:
                state[following] = 1
                path.append((following, iter(sorted(edges[following]))))
    return None


def _with_text(rules: Rules) -> set[str]:
    """The rules that admit more than the empty text."""
    found: set[str] = set()
    while True:
        more = {name for name in rules.keys() - found if _has_text(rules[name], found)}
        if not more:
            return found
        found |= more


def _has_text(node: Node, rules: set[str]) -> bool:
    if isinstance(node, Ref):
        return node.name in rules
    if isinstance(node, Char | Token):
        return True
    if isinstance(node, Repeat) and node.most == 0:
        return False
    return any(_has_text(part, rules) for part in inner(node))


def simplified(rules: Rules) -> Rules:
    """The rules that root needs, with the same language; what is repeated is never empty."""
    return _Simpler(rules).found


class _Simpler:
    def __init__(self, rules: Rules):
        self.nullable, self.with_text = nullable_rules(rules), _with_text(rules)
        self.found: Rules = {}
        self.todo: list[str] = []
        self.use("root")
        while self.todo:
            name = self.todo.pop()
            body = rules[name.removesuffix("'")]
            self.found[name] = self.full(body) if name.endswith("'") else self.same(body)

    def use(self, name: str) -> Ref:
        if name not in self.found:
            self.found[name] = EMPTY  # for now
            self.todo.append(name)
        return Ref(name)

    def same(self, node: Node) -> Node:
        """A node with the same language."""
        if not _has_text(node, self.with_text):
            return EMPTY
        if isinstance(node, Ref):
            return self.use(node.name)
        if isinstance(node, Seq):
            return _seq([self.same(part) for part in node.parts])
        if isinstance(node, Alt):
            return Alt(tuple(self.same(part) for part in node.parts))
        if isinstance(node, Repeat):
            if is_nullable(node.part, self.nullable):
                return Repeat(self.full(node.part), 0, node.most)
            return Repeat(self.same(node.part), node.least, node.most)
        return node

    def full(self, node: Node) -> Node:
        """The same without the empty text; the node has other texts."""
        if not is_nullable(node, self.nullable):
            return self.same(node)
        if isinstance(node, Ref):
            return self.use(node.name + "'")
        if isinstance(node, Alt):
            return _alt([self.full(part) for part in node.parts if self.has_text(part)])
        if isinstance(node, Repeat):
            return Repeat(self.full(node.part), 1, node.most)
        assert isinstance(node, Seq)
        ways = []
        parts = [part for part in node.parts if self.has_text(part)]
        for i, part in enumerate(parts):  # the first part that is not empty
            ways.append(_seq([self.full(part), *map(self.same, parts[i + 1 :])]))
        return _alt(ways)

    def has_text(self, node: Node) -> bool:
        return _has_text(node, self.with_text)


def _seq(parts: list[Node]) -> Node:
    flat = [p for part in parts for p in (part.parts if isinstance(part, Seq) else (part,))]
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def _alt(parts: list[Node]) -> Node:
    return parts[0] if len(parts) == 1 else Alt(tuple(parts))
