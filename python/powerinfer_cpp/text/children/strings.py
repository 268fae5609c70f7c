"""Texts that follow JSON Schema's keywords, as terminals over the spellings of JSON.

A terminal of llguidance may have intersections and complements at any place. So what looks ahead
becomes an intersection with all that follows, and what looks back (`^`, `\\b`, lookbehind) a
condition on the character before: what may stand from a place on is a `Tail`, made from the end of
the pattern to its beginning.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from characters import ALL, UNPRINTABLE, WORD, Ranges, common, merged, others, spelled
from ecma import Edge, Look, Pattern, PatternError, parse
from formats import FORMATS
from gbnf import Alt, Char, Repeat, Seq
from properties import characters_of
from schema_text import short
from serve import Refused

MOST_LOOKS = 400  # of assertions, with the repetitions around them written out
MOST_CONDITIONS = 16  # on the character before a place
LONGEST = 10**9  # characters of a text; more is no limit
NAMED = 100  # characters of an expression that gets a name where it may stand twice

# Keywords that must all hold: minLength, maxLength, pattern, format; of keys also patternProperties
# and unlike, patterns of which all or none must match, and without, texts that it must not be.
Wanted = tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Language:
    """Some texts. rank: 0 a name or group, 1 a sequence, 2 what several allow, 3 alternatives.
    nullable: is the empty text one of them? sure: is there certainly one? is_ascii: has none of
    them a character beyond ASCII?"""

    text: str
    rank: int
    nullable: bool
    sure: bool = True
    is_ascii: bool = True

    def within(self, rank: int) -> str:
        return self.text if self.rank <= rank else f"({self.text})"


EMPTY = Language('""', 0, True)  # the empty text alone
NOTHING = Language("", 0, False, False)  # no text

Condition = tuple[bool, Ranges]  # may a place be the beginning? the characters that may be before
ANYWHERE: Condition = (True, ALL)
NOWHERE: Condition = (False, ())
START: Condition = (True, ())
AFTER_WORD: Condition = (False, WORD)

Tail = dict[Condition, Language]  # what may follow a place, by what stands before it


def sequence(parts: Iterable[Language]) -> Language:
    found = [part for part in parts if part is not EMPTY]
    if any(part is NOTHING for part in found):
        return NOTHING
    if len(found) < 2:
        return found[0] if found else EMPTY
    nullable, sure = all(p.nullable for p in found), all(p.sure for p in found)
    is_ascii = all(p.is_ascii for p in found)
    return Language(" ".join(p.within(1) for p in found), 1, nullable, sure, is_ascii)


def either(parts: Iterable[Language]) -> Language:
    found = list(dict.fromkeys(part for part in parts if part is not NOTHING))
    if len(found) < 2:
        return found[0] if found else NOTHING
    nullable, sure = any(p.nullable for p in found), any(p.sure for p in found)
    is_ascii = all(p.is_ascii for p in found)
    return Language(" | ".join(p.within(2) for p in found), 3, nullable, sure, is_ascii)


def repeated(part: Language, least: int, most: int | None) -> Language:
    most = None if most is None or most > LONGEST else most
    if part is NOTHING:
        return EMPTY if least == 0 else NOTHING
    if least > LONGEST or part is EMPTY or most == 0:
        return NOTHING if least > LONGEST else EMPTY
    if (least, most) == (1, 1):
        return part
    short_form = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    times = short_form or f"{{{least},{'' if most is None else most}}}"
    nullable, sure = least == 0 or part.nullable, least == 0 or part.sure
    return Language(part.within(0) + times, 1, nullable, sure, part.is_ascii)


def _each(text: str) -> Iterable[Ranges]:
    """The characters of a text, as sets. Raises Refused."""
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise Refused("it asks for half of a character, a surrogate alone")
    return (((ord(c), ord(c)),) for c in text)


def both_conditions(a: Condition, b: Condition) -> Condition:
    if ANYWHERE in (a, b):
        return a if b == ANYWHERE else b
    return a[0] and b[0], common(a[1], b[1])


def opposite(condition: Condition) -> Condition:
    return not condition[0], others(condition[1])


class Strings:
    """Makes expressions in llguidance's notation. terminal: gives a body a name."""

    def __init__(self, terminal: Callable[[str], str]):
        self._terminal = terminal
        self._one: dict[tuple[Ranges, Ranges], Language] = {}
        self.all = repeated(self.one(ALL), 0, None)
        self._asserts: dict[Pattern, bool] = {}
        self._known_lengths: dict[Pattern, tuple[int, float]] = {}
        self._looks = 0

    def literal(self, text: str) -> str:
        """The terminal for one text. Raises Refused."""
        return self._terminal(self.inside(sequence(self.one(c, UNPRINTABLE) for c in _each(text))))

    @staticmethod
    def inside(found: Language) -> str:
        """A terminal's body: a text of JSON, with its quotes."""
        return f'/"/ {found.within(1)} /"/'

    def of(self, wanted: Wanted) -> Language:
        """The texts that these keywords allow. Raises Refused."""
        parts = [part for keywords in wanted for part in self._keywords(keywords)]
        found = self._all_of(parts or [self.all])
        if found is NOTHING or not found.is_ascii:
            return found
        # A weak model whose next sign is not allowed would write codes of letters to the end.
        plain = self._all_of([found, repeated(self.one(ALL, UNPRINTABLE), 0, None)])
        return replace(plain, sure=found.sure)

    def _keywords(self, keywords: dict[str, Any]) -> Iterable[Language]:
        least, most = keywords.get("minLength", 0), keywords.get("maxLength")
        if least or most is not None:
            if most is not None and most < least:
                yield NOTHING
            else:
                yield repeated(self.one(ALL), least, most)
        if "pattern" in keywords:
            yield self.pattern(keywords["pattern"], "pattern")
        if "format" in keywords:
            yield self.pattern(FORMATS[keywords["format"]], "format")
        for pattern in keywords.get("patternProperties", ()):
            yield self.pattern(pattern, "patternProperties")
        for pattern in keywords.get("unlike", ()):
            yield self.without(self.pattern(pattern, "patternProperties"))
        if "without" in keywords:
            names = [sequence(map(self.one, _each(name))) for name in keywords["without"]]
            yield self.without(either(names))

    def pattern(self, pattern: str, field: str) -> Language:
        """The texts in which a pattern finds something. field: who asks. Raises Refused."""
        self._looks = 0
        try:
            node = parse(pattern, characters_of)
            return self._found(self._before(node, {ANYWHERE: self.all}))
        except PatternError as error:
            raise Refused(f"{field} {short(pattern)}: {error}") from None

    # ---- Expressions ----

    def one(self, ranges: Ranges, by_code: Ranges = ALL) -> Language:
        """One character of a set. by_code: as for `spelled`."""
        if (ranges, by_code) not in self._one:
            made = NOTHING
            if ranges:
                name = self._terminal(f"/{spelled(ranges, by_code)}/")
                made = Language(name, 0, False, True, ranges[-1][1] < 0x80)
            self._one[ranges, by_code] = made
        return self._one[ranges, by_code]

    def _all_of(self, parts: list[Language]) -> Language:
        """Texts that are one of each."""
        found = list(dict.fromkeys(part for part in parts if part != self.all))
        if NOTHING in found:
            return NOTHING
        if len(found) < 2:
            return found[0] if found else self.all
        nullable = all(part.nullable for part in found)
        text = " & ".join(p.text if p.rank == 2 else p.within(0) for p in found)
        return Language(text, 2, nullable, nullable, any(part.is_ascii for part in found))

    def without(self, gone: Language) -> Language:
        """All texts but these."""
        if gone is NOTHING:
            return self.all
        if gone == self.all:
            return NOTHING
        text = f"{self.all.within(0)} & ~{gone.within(0)}"
        return Language(text, 2, not gone.nullable, not gone.nullable, False)

    def _named(self, found: Language) -> Language:
        """The same, short enough to stand at several places."""
        if len(found.text) <= NAMED:
            return found
        return replace(found, text=self._terminal(found.text), rank=0)

    def _plain(self, node: Pattern) -> Language:
        """The texts of a node without assertions."""
        if isinstance(node, Char):
            return self.one(node.ranges)
        if isinstance(node, Seq):
            return sequence(map(self._plain, node.parts))
        if isinstance(node, Alt):
            return either(map(self._plain, node.parts))
        assert isinstance(node, Repeat)
        return repeated(self._plain(node.part), node.least, node.most)

    # ---- Assertions ----

    def _has_assertions(self, node: Pattern) -> bool:
        if node not in self._asserts:
            inside = node.parts if isinstance(node, Seq | Alt) else ()
            inside = (node.part,) if isinstance(node, Repeat) else inside
            found = isinstance(node, Edge | Look) or any(map(self._has_assertions, inside))
            self._asserts[node] = found
        return self._asserts[node]

    def _found(self, tail: Tail) -> Language:
        """Texts with a place that the tail follows."""
        ways = []
        for (start, chars), found in tail.items():
            if (start, chars) == ANYWHERE:
                ways.append(self.all if found.nullable else sequence([self.all, found]))
                continue
            found = self._named(found)
            ways.append(found if start else NOTHING)
            ways.append(sequence([self.all, self.one(chars), found]))
        return self.all if self.all in ways else either(ways)

    def _before(self, node: Pattern, tail: Tail) -> Tail:
        """What may follow a place where a node stands before a tail. Raises PatternError."""
        if not self._has_assertions(node):
            return self._text(self._plain(node), tail)
        if isinstance(node, Seq):
            return self._parts(node.parts, tail)
        if isinstance(node, Alt):
            tail = {condition: self._named(found) for condition, found in tail.items()}
            plain = tuple(part for part in node.parts if not self._has_assertions(part))
            rest = [part for part in node.parts if self._has_assertions(part)]
            tails = [self._before(part, tail) for part in rest]
            return self._one_of([*tails, self._before(Alt(plain), tail)] if plain else tails)
        if isinstance(node, Repeat):
            return self._repeat(node, tail)
        self._looks += 1
        if self._looks > MOST_LOOKS:
            raise PatternError(f"more than {MOST_LOOKS} assertions, with repetitions written out")
        if isinstance(node, Look):
            if node.behind:
                before = self._last(node.part)
                before = opposite(before) if node.negated else before
                return self._meet({before: self.all}, tail)
            ahead = self._before(node.part, {ANYWHERE: self.all})
            return self._meet(self._opposite(ahead) if node.negated else ahead, tail)
        assert isinstance(node, Edge)
        if node.kind == "end":
            return {condition: EMPTY for condition, found in tail.items() if found.nullable}
        if node.kind == "start":
            return self._meet({START: self.all}, tail)
        word = sequence([self.one(WORD), self.all])
        rest = either([EMPTY, sequence([self.one(others(WORD)), self.all])])
        if node.kind == "word":
            word, rest = rest, word
        return self._meet({AFTER_WORD: word, opposite(AFTER_WORD): rest}, tail)

    def _parts(self, parts: tuple[Pattern, ...], tail: Tail) -> Tail:
        """A sequence; parts without assertions side by side are one."""
        run: list[Pattern] = []
        for part in reversed(parts):
            if not self._has_assertions(part):
                run.append(part)
                continue
            tail = self._before(part, self._text(self._plain(Seq(tuple(run[::-1]))), tail))
            run = []
        return self._text(self._plain(Seq(tuple(run[::-1]))), tail)

    def _text(self, found: Language, tail: Tail) -> Tail:
        """A text without assertions before a tail."""
        if found is EMPTY:
            return tail
        ways: list[Tail] = []
        for (start, chars), rest in tail.items():
            if (start, chars) == ANYWHERE:
                ways.append({ANYWHERE: sequence([found, rest])})
                continue
            rest = self._named(rest)
            if found.nullable:
                ways.append({(start, chars): rest})
            ending = sequence([self.all, self.one(chars)])
            ways.append({ANYWHERE: sequence([self._all_of([found, ending]), rest])})
        return self._one_of(ways)

    def _one_of(self, tails: list[Tail]) -> Tail:
        found: dict[Condition, list[Language]] = {}
        for tail in tails:
            for condition, rest in tail.items():
                found.setdefault(condition, []).append(rest)
        return self._limited({c: either(ways) for c, ways in found.items()})

    @staticmethod
    def _limited(tail: Tail) -> Tail:
        tail = {c: rest for c, rest in tail.items() if rest is not NOTHING and c != NOWHERE}
        if len(tail) > MOST_CONDITIONS:
            raise PatternError("what it asks of the character before a place is too much")
        return tail

    def _meet(self, some: Tail, more: Tail) -> Tail:
        """What both allow."""
        more = {c: self._named(rest) for c, rest in more.items()} if len(some) > 1 else more
        return self._one_of(
            [
                {both_conditions(a, b): self._all_of([ways, rest])}
                for a, ways in some.items()
                for b, rest in more.items()
            ]
        )

    def _opposite(self, tail: Tail) -> Tail:
        """What the tail does not allow."""
        cases: list[Condition] = [ANYWHERE]
        for condition in tail:
            parts = [both_conditions(a, b) for a in cases for b in (condition, opposite(condition))]
            cases = [part for part in parts if part != NOWHERE]
            if len(cases) > MOST_CONDITIONS:
                raise PatternError("what it asks of the character before a place is too much")
        tail = {c: self._named(rest) for c, rest in tail.items()}
        return {
            case: self.without(
                either(rest for c, rest in tail.items() if both_conditions(case, c) == case)
            )
            for case in cases
        }

    def _last(self, node: Pattern) -> Condition:
        """The places behind this, if it is a character or the beginning."""
        if isinstance(node, Char):
            return False, node.ranges
        if isinstance(node, Edge) and node.kind == "start":
            return START
        if isinstance(node, Alt):
            ways = [self._last(part) for part in node.parts]
            return any(start for start, _ in ways), merged(r for _, ranges in ways for r in ranges)
        if isinstance(node, Seq) and not node.parts or isinstance(node, Repeat) and not node.least:
            return ANYWHERE
        if isinstance(node, Repeat) and node.least == 1:
            return self._last(node.part)
        raise PatternError("a lookbehind of more than one character cannot be enforced")

    def _repeat(self, node: Repeat, tail: Tail) -> Tail:
        """A repetition with assertions: of a language where each time is decided within itself,
        else written out."""
        if tail == {ANYWHERE: self.all}:  # which takes further times, too
            node = Repeat(node.part, node.least, node.least)
        if self._is_local(node.part, 0):
            once = self._before(node.part, {ANYWHERE: EMPTY})
            first = once.pop(START, NOTHING)
            if once.keys() <= {ANYWHERE} and not first.nullable and node.most != 0:
                return self._times(first, once.get(ANYWHERE, NOTHING), node, tail)
        if node.most is None:
            return self._until_the_end(node, tail)
        for i in range(node.most):
            tail = {c: self._named(rest) for c, rest in tail.items()}
            again = self._before(node.part, tail)
            tail = again if i >= node.most - node.least else self._one_of([again, tail])
            if not tail:
                break
        return tail

    def _times(self, first: Language, other: Language, node: Repeat, tail: Tail) -> Tail:
        """Repetitions of a language, of which the first one may be another at the beginning."""
        found = self._text(repeated(other, node.least, node.most), tail)
        if first is NOTHING:
            return found
        most = None if node.most is None else node.most - 1
        behind = self._text(repeated(other, max(0, node.least - 1), most), tail)
        begun = self._meet({START: self.all}, self._text(first, behind))
        return self._one_of([found, begun])

    def _is_local(self, node: Pattern, rest: int) -> bool:
        """Do its assertions ask for no more characters behind them than it has itself? rest: at
        least so many of a repeated part stand behind the node."""
        if not self._has_assertions(node):
            return True
        if isinstance(node, Seq):
            for part in reversed(node.parts):
                if not self._is_local(part, rest):
                    return False
                rest += self._lengths(part)[0]
            return True
        if isinstance(node, Alt):
            return all(self._is_local(part, rest) for part in node.parts)
        if isinstance(node, Repeat):
            return self._is_local(node.part, rest)
        if isinstance(node, Look) and not node.behind:
            return self._lengths(node.part)[1] <= rest and not self._has_assertions(node.part)
        if isinstance(node, Edge) and node.kind in ("word", "inside"):
            return rest > 0
        return not (isinstance(node, Edge) and node.kind == "end")

    def _lengths(self, node: Pattern) -> tuple[int, float]:
        """The fewest and the most characters of a node."""
        if node in self._known_lengths:
            return self._known_lengths[node]
        if isinstance(node, Char):
            found: tuple[int, float] = 1, 1
        elif isinstance(node, Edge | Look):
            found = 0, 0
        elif isinstance(node, Repeat):
            few, many = self._lengths(node.part)
            often = math.inf if node.most is None or node.most > LONGEST else node.most
            found = min(few * node.least, LONGEST), many * often if many and often else 0
        else:
            sizes = [self._lengths(part) for part in node.parts]
            fewest, most = [few for few, _ in sizes], [many for _, many in sizes]
            found = (min(fewest), max(most)) if isinstance(node, Alt) else (sum(fewest), sum(most))
        found = found[0], found[1] if found[1] <= LONGEST else math.inf
        self._known_lengths[node] = found
        return found

    def _until_the_end(self, node: Repeat, tail: Tail) -> Tail:
        """Characters before each of which something holds, to the end of the text, as in
        `(?:(?!x).)*$`: none of the texts that begin at one may break it."""
        *looks, last = node.part.parts if isinstance(node.part, Seq) else (node.part,)
        if tail != {ANYWHERE: EMPTY} or not isinstance(last, Char):
            raise PatternError("an assertion within a repetition without end cannot be enforced")
        holds = self._parts(tuple(looks), {ANYWHERE: self.all})
        broken = self._opposite(holds)
        if any(condition != ANYWHERE for condition in broken):
            raise PatternError("an assertion within a repetition without end cannot be enforced")
        more = repeated(self.one(ALL), 1, None)
        wrong = sequence([self.all, self._all_of([broken.get(ANYWHERE, NOTHING), more])])
        found = repeated(self.one(last.ranges), node.least, None)
        return self._limited({ANYWHERE: self._all_of([found, self.without(wrong)])})
