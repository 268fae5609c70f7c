"""Alternatives of a place in JSON, of one type each: what they are, and two of them at once."""

from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from ranges import Bounds
from schema_text import asks_nothing
from trials import matches

TYPES = ("null", "boolean", "number", "string", "array", "object")

Schemas = tuple[Any, ...]  # schemas that must all hold


@dataclass(frozen=True, eq=False)
class Piece:
    """One of the alternatives of a place; type: one of TYPES, or "const"."""

    type: str


@dataclass(frozen=True, eq=False)
class Const(Piece):
    value: Any = None


@dataclass(frozen=True, eq=False)
class Number(Piece):
    whole: bool = False
    bounds: Bounds = field(default_factory=Bounds)


@dataclass(frozen=True, eq=False)
class String(Piece):
    """wanted: what llguidance enforces, as schemas that must all hold."""

    wanted: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, eq=False)
class Array(Piece):
    """first: schemas of the first items. rest: of the others, None if there must be none."""

    first: tuple[Schemas, ...] = ()
    rest: Schemas | None = ()
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, eq=False)
class Object(Piece):
    """keys: schemas of the keys that are named. others: of others, None if nothing was said.
    patterns: of keys that match. names: of all keys. closed: no keys but those that something
    allows."""

    keys: dict[str, Schemas] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    others: Schemas | None = None
    patterns: dict[str, Schemas] = field(default_factory=dict)
    names: Schemas = ()
    least: int = 0
    most: int | None = None
    named: bool = False  # by a keyword `properties`, even if it is empty
    closed: bool = False


def any_type() -> list[Piece]:
    """Anything."""
    return [
        Piece("null"),
        Piece("boolean"),
        Number("number"),
        String("string"),
        Array("array"),
        Object("object"),
    ]


def all_types(pieces: list[Piece]) -> bool:
    return {piece.type for piece in pieces if is_any(piece)} == set(TYPES)


def is_any(piece: Piece) -> bool:
    """Does it allow all of its type?"""
    if isinstance(piece, Number):
        b = piece.bounds
        return not piece.whole and b.low is None and b.high is None and not b.multiples
    if isinstance(piece, String):
        return not piece.wanted
    if isinstance(piece, Array):
        return not piece.first and piece.rest == () and not piece.least and piece.most is None
    if isinstance(piece, Object):
        nothing = not piece.named and not piece.needed and not piece.patterns and not piece.names
        free = piece.others is None or all(map(asks_nothing, piece.others))
        return nothing and free and not piece.least and piece.most is None and not piece.closed
    return not isinstance(piece, Const)


def extra_key(piece: Object, name: str) -> Schemas:
    """The schemas of a key that is not named."""
    found = matching(piece, name)
    if found or any(matches(pattern, name) for pattern in piece.patterns):
        return found
    return (False,) if piece.closed and piece.others is None else piece.others or ()


def matching(piece: Object, name: str) -> Schemas:
    found: Schemas = ()
    for pattern, schemas in piece.patterns.items():
        if matches(pattern, name):
            found = joined(found, schemas)
    return found


def with_patterns(piece: Object) -> Object:
    """With the schemas of patterns at the named keys that match."""
    if not piece.patterns:
        return piece
    keys = {name: schemas + matching(piece, name) for name, schemas in piece.keys.items()}
    return replace(piece, keys=keys)


def both_arrays(a: Array, b: Array) -> Array | None:
    """Arrays that are one of each; None if there are none."""
    first = []
    for i in range(max(len(a.first), len(b.first))):
        parts = [one.first[i] if i < len(one.first) else one.rest for one in (a, b)]
        if parts[0] is None or parts[1] is None:
            break
        first.append(joined(parts[0], parts[1]))
    whole = len(first) == max(len(a.first), len(b.first))
    ended = not whole or a.rest is None or b.rest is None
    rest = None if ended else joined(a.rest or (), b.rest or ())
    most = min([m for m in (a.most, b.most) if m is not None], default=None)
    found = Array("array", tuple(first), rest, max(a.least, b.least), most)
    n = longest(found)
    return None if n is not None and n < found.least else found


def both_objects(a: Object, b: Object) -> Object:
    """Objects that are one of each."""
    keys: dict[str, Schemas] = {}
    for name in dict.fromkeys([*a.keys, *b.keys]):
        keys[name] = ()
        for one in (a, b):
            schemas = one.keys[name] if name in one.keys else extra_key(one, name)
            keys[name] = joined(keys[name], schemas)
    others = a.others if b.others is None else b.others
    if a.others is not None and b.others is not None:
        others = joined(a.others, b.others)
    patterns = dict(a.patterns)
    for name, schemas in b.patterns.items():
        patterns[name] = joined(patterns.get(name, ()), schemas)
    # A key that only one side's patterns know is one of the others for the other side.
    for one, other in ((a, b), (b, a)):
        for name in one.patterns.keys() - other.patterns.keys():
            patterns[name] = joined(patterns[name], other.others or ())
    return Object(
        "object",
        keys,
        tuple(dict.fromkeys([*a.needed, *b.needed])),
        others,
        patterns,
        joined(a.names, b.names),
        max(a.least, b.least),
        min([m for m in (a.most, b.most) if m is not None], default=None),
        a.named or b.named,
        a.closed or b.closed,
    )


def joined(some: Schemas, others: Schemas) -> Schemas:
    known = {id(schema) for schema in some}
    return some + tuple(schema for schema in others if id(schema) not in known)


def longest(piece: Array) -> int | None:
    """The most items; None: any number."""
    if piece.rest is not None:
        return piece.most
    return len(piece.first) if piece.most is None else min(piece.most, len(piece.first))


def same(a: Any, b: Any) -> bool:
    """Are two values the same in JSON's sense? 1 is 1.0, but not true."""
    if type_of(a) != type_of(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b


def type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((int | Decimal, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"
