"""JSON that follows a schema, as rules in llguidance's notation.

Every scalar of JSON is one terminal; none can go on where JSON's punctuation follows, so terminals
lose no reading here (lexemes.py). Strings, those of keys and constants among them, may be written
with every escape of JSON.
"""

import json
from decimal import Decimal
from math import gcd, lcm
from typing import Any

from pieces import Array, Const, Number, Object, Piece, Schemas, String, extra_key
from ranges import (
    NUMBER,
    Bounds,
    closed,
    decimals,
    first_multiple,
    fractions,
    integers,
    limit,
    scaled,
)
from schemas import Reader
from serve import Refused
from strings import Strings, Wanted
from trials import disjoint, possible

# White space in JSON, as in llama.cpp: with more, weak models write nothing else.
WHITESPACE = r" |\n[ \t]{0,20}"
MOST_STATES = 5000  # of an object with numbers of properties
MOST_LISTED = 300  # numbers that are written out
_EXACT = 2**53  # whole numbers that llguidance keeps


def quoted(text: str) -> str:
    """A literal in llguidance's notation. Raises Refused."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused("the JSON schema asks for half of a character") from None
    return json.dumps(text)


def repeated(what: str, least: int, most: int | None) -> str:
    """So many times; most None: without end."""
    return f"({what}){{{least},{'' if most is None else most}}}" if most != 0 else ""


class JsonRules:
    """Rules for any number of schemas, which share their names."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._names: dict[str, str] = {}  # of terminals and other shared rules, by definition
        self._places: dict[tuple[int, ...], str | None] = {}
        self._open: set[str] = set()  # places that are being written
        self._used: set[str] = set()  # those of them that were named
        self._kept: list[Any] = []  # schemas whose ids are keys
        self._space = self._terminal(f"/{WHITESPACE}/") + "?"
        self._strings = Strings(self._terminal)

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def add(self, schema: Any) -> str:
        """The name of the rule for a schema, as schema_text.parsed returns it. Raises Refused."""
        self._reader = Reader(schema)
        self._kept.append(schema)
        try:
            name = self._place((schema,))
        except Refused as error:
            raise Refused(f"the JSON schema cannot be used: {error}") from None
        if name is None:
            raise Refused("the JSON schema cannot be used: no JSON fits it")
        return name

    # ---- Names ----

    def _rule(self, body: str) -> str:
        name = f"j{len(self._lines)}"
        self._lines.append(f"{name}: {body}")
        return name

    def _shared(self, body: str) -> str:
        if body not in self._names:
            self._names[body] = self._rule(body)
        return self._names[body]

    def _terminal(self, body: str) -> str:
        if body not in self._names:
            name = self._names[body] = f"J{len(self._lines)}"
            self._lines.append(f"{name}: {body}")
        return self._names[body]

    def _place(self, schemas: Schemas) -> str | None:
        """The rule for a value that fits all of these schemas; None if none does."""
        key = tuple(id(schema) for schema in schemas)
        if key not in self._places:
            at = len(self._lines)
            name = self._places[key] = f"j{at}"
            self._lines.append("")
            self._open.add(name)
            pieces = self._reader.pieces(schemas)
            ways = [way for piece in pieces if (way := self._piece(piece)) is not None]
            self._open.remove(name)
            self._lines[at] = f"{name}: {' | '.join(dict.fromkeys(ways))}"
            if not ways:
                if name in self._used:
                    raise Refused("it asks for JSON without end")
                self._places[key] = None
                self._lines[at] = ""
        found = self._places[key]
        if found is not None and found in self._open:
            self._used.add(found)
        return found

    # ---- Pieces ----

    def _piece(self, piece: Piece) -> str | None:
        if isinstance(piece, Const):
            return self._value(piece.value)
        if isinstance(piece, Number):
            return self._number(piece)
        if isinstance(piece, String):
            return self._string(piece)
        if isinstance(piece, Array):
            return self._array(piece)
        if isinstance(piece, Object):
            return self._object(piece)
        return '"null"' if piece.type == "null" else '("true" | "false")'

    def _value(self, value: Any) -> str:
        """One value, with white space as anywhere."""
        w = self._space
        if isinstance(value, dict):
            pairs = [
                f'{self._strings.literal(name)} {w} ":" {w} {self._value(one)}'
                for name, one in value.items()
            ]
            return f'"{{" {w} {self._listed(pairs)} "}}"'
        if isinstance(value, list):
            return f'"[" {w} {self._listed([self._value(one) for one in value])} "]"'
        if isinstance(value, Decimal):
            return quoted(str(value))
        if isinstance(value, str):
            return self._strings.literal(value)
        return quoted(json.dumps(value))

    def _listed(self, parts: list[str]) -> str:
        return f' "," {self._space} '.join(f"{part} {self._space}" for part in parts)

    def _string(self, piece: String) -> str | None:
        found = self._strings.of(piece.wanted)
        if not found.sure and not possible(piece.wanted):
            return None
        return self._terminal(self._strings.inside(found))

    def _number(self, piece: Number) -> str | None:
        bounds = piece.bounds
        if piece.whole or any(step == int(step) for step in bounds.multiples):
            return self._whole(bounds)
        if bounds.low is None and bounds.high is None and not bounds.multiples:
            return self._terminal(f"/{NUMBER}/")
        text = decimals(bounds)
        if text is None:
            return None
        parts = [text, limit(bounds)]
        if bounds.multiples:
            if len(bounds.multiples) > 1:
                raise Refused("two multipleOf of one number")
            step = bounds.multiples[0]
            if bounds.low is not None and bounds.high is not None:
                first = first_multiple(step, bounds.low)
                if not any(bounds.admits(first + i * step) for i in range(2)):
                    return None
            steps = fractions(step)
            if steps is None:
                raise Refused(f"multipleOf {step} of decimals")
            parts.append(steps)
        return self._terminal(" & ".join(f"/{part}/" for part in parts))

    def _whole(self, bounds: Bounds) -> str | None:
        low, high = bounds.whole()
        step = 1
        for one in bounds.multiples:  # n is a multiple of a / 10**k
            a, k = scaled(one)
            step = lcm(step, a // gcd(a, 10**k))
        if step == 1:
            text = integers(low, high)
            return None if text is None else self._terminal(f"/{text}/")
        low, high = closed(low, high)
        first, last = -(-low // step), high // step
        if first > last:
            return None
        if last - first < MOST_LISTED:
            listed = "|".join(str(step * i) for i in range(first, last + 1))
            return self._terminal(f"/{listed}/")
        if step >= 2**31:
            raise Refused(f"multipleOf {step} is too large")
        low, high = max(low, -_EXACT), min(high, _EXACT)
        if low > high:
            raise Refused(f"multipleOf {step} of large numbers")
        wanted = {"type": "integer", "multipleOf": step, "minimum": low, "maximum": high}
        return self._shared(f"%json {json.dumps(wanted)}")

    # ---- Arrays ----

    def _array(self, piece: Array) -> str | None:
        w = self._space
        first: list[str] = []
        rest, ended = None, piece.rest is None
        for schemas in piece.first[: piece.most]:
            if (item := self._place(schemas)) is None:
                ended = True
                break
            first.append(item)
        if not ended and piece.rest is not None and (piece.most is None or piece.most > len(first)):
            rest = self._place(piece.rest)
        n, most = len(first), piece.most
        if rest is None:
            most = n if most is None else min(most, n)
        if most is not None and most < piece.least:
            return None
        tail = ""
        if rest is not None:
            least = max(0, piece.least - max(n, 1))
            end = None if most is None else most - max(n, 1)
            tail = repeated(f'"," {w} {rest} {w}', least, end)
            if n == 0:
                tail = f"{rest} {w} {tail}"
                tail = tail if piece.least else f"({tail})?"
        for i in reversed(range(n)):
            comma = f'"," {w} ' if i else ""
            tail = f"{comma}{first[i]} {w} {tail}"
            # In rules of their own: groups in groups are too deep for hundreds of items.
            tail = self._rule(tail) + ("" if i < piece.least else "?")
        return f'"[" {w} {tail} "]"'

    # ---- Objects ----

    def _object(self, piece: Object) -> str | None:
        keys = dict(piece.keys)
        others = piece.others
        if others is None and not piece.closed:
            named = piece.named or piece.patterns
            others = None if named and piece.least <= len(keys) else ()
        for name in piece.needed:
            if name not in keys:
                keys[name] = extra_key(piece, name)
        needed = set(piece.needed)
        known: list[tuple[str, bool]] = []  # pairs, and whether they are needed
        for name, schemas in keys.items():
            value = self._place(schemas) if self._named(piece, name) else None
            if value is not None:
                w = self._space
                pair = f'{self._strings.literal(name)} {w} ":" {w} {value} {w}'
                known.append((pair, name in needed))
            elif name in needed:
                return None
        return self._states(piece, known, self._others(piece, keys, others))

    def _named(self, piece: Object, name: str) -> bool:
        """May a key have this name?"""
        return not piece.names or self._reader.fits(name, self._reader.pieces(piece.names))

    def _others(
        self, piece: Object, keys: dict[str, Schemas], others: Schemas | None
    ) -> str | None:
        """A pair whose key is not named; None if there is none."""
        patterns = list(piece.patterns)
        if not disjoint(patterns):
            raise Refused("a key may match two of its patternProperties")
        wanted: list[tuple[Wanted, Schemas]] = [
            (({"patternProperties": [pattern]},), piece.patterns[pattern]) for pattern in patterns
        ]
        if others is not None:
            wanted.append((({"unlike": patterns},) if patterns else (), others))
        ways = [
            (key, schemas) for asked, schemas in wanted for key in self._keys(piece, keys, asked)
        ]
        pairs = []
        for key, schemas in ways:
            if (value := self._place(schemas)) is not None:
                pairs.append(f'{key} {self._space} ":" {self._space} {value} {self._space}')
        return self._shared(" | ".join(pairs)) if pairs else None

    def _keys(self, piece: Object, keys: dict[str, Schemas], wanted: Wanted) -> list[str]:
        """Keys that are not named."""
        wanted = (*wanted, {"without": list(keys)}) if keys else wanted
        found = self._reader.both([String("string", wanted)], self._reader.pieces(piece.names))
        return [way for one in found if (way := self._piece(one)) is not None]

    def _states(
        self, piece: Object, known: list[tuple[str, bool]], other: str | None
    ) -> str | None:
        """Pairs in their order, with the number of those written so far."""
        w, most = self._space, piece.most
        least = piece.least
        if most is not None and other is None and most >= len(known):
            most = None
        if most is None and least <= sum(needed for _, needed in known):
            least = 0
        if known and most is None and least <= 1:
            return f'"{{" {w} {self._uncounted(known, other, least)} "}}"'
        cap = max(1, least, 0 if most is None else most)
        if cap * len(known) > MOST_STATES and cap > 1:
            raise Refused("minProperties or maxProperties is large")

        def end(n: int) -> str | None:
            fewest = max(0, least - n)
            if most is not None and fewest > most - n:
                return None
            if other is None or most is not None and most == n:
                return None if fewest else ""
            further = None if most is None else most - max(n, 1)
            more = repeated(f'"," {w} {other}', max(0, fewest - (n == 0)), further)
            if n:
                return more
            return f"{other} {more}" if fewest else f"({other} {more})?"

        following = [end(n) for n in range(cap + 1)]
        for i, (pair, needed) in reversed(list(enumerate(known))):
            now: list[str | None] = []
            for n in range(min(cap, i) + 1):
                ways = []
                after = following[min(n + 1, cap)]
                if after is not None and (most is None or n < most):
                    comma = f'"," {w} ' if n else ""
                    ways.append(f"{comma}{pair} {after}")
                if not needed and following[n] is not None:
                    ways.append(following[n] or '""')
                now.append(self._rule(" | ".join(ways)) if ways else None)
            following = now + [None] * (cap + 1 - len(now))
        return None if following[0] is None else f'"{{" {w} {following[0]} "}}"'

    def _uncounted(self, known: list[tuple[str, bool]], other: str | None, least: int) -> str:
        """Pairs in their order, at least one if least is 1. In halves of halves: a rule for each
        pair within the rule of the one before it would be nested too deeply."""
        w = self._space
        needed = [i for i, (_, is_needed) in enumerate(known) if is_needed]

        def behind(low: int, high: int) -> str:
            """Pairs of this range, behind others."""
            if high - low == 1:
                pair, is_needed = known[low]
                return f'"," {w} {pair}' if is_needed else f'("," {w} {pair})?'
            middle = (low + high) // 2
            return self._shared(f"{behind(low, middle)} {behind(middle, high)}")

        def first(low: int, high: int) -> str:
            """The same, with no others before them, and at least one."""
            if high - low == 1:
                return known[low][0]
            middle = (low + high) // 2
            ways = f"{first(low, middle)} {behind(middle, high)}"
            if not any(low <= i < middle for i in needed):
                ways += f" | {first(middle, high)}"
            return self._shared(ways)

        more = repeated(f'"," {w} {other}', 0, None) if other else ""
        ways = [f"{first(0, len(known))} {more}"]
        if not needed and other:
            ways.append(f"{other} {more}")
        if not needed and not least:
            ways.append('""')
        return f"({' | '.join(ways)})"
