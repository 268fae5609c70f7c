"""What a JSON schema says, as alternatives of one type each.

As in llama.cpp, what a schema does not mention is limited, although JSON Schema allows it, since
weak models may otherwise never finish: an object that names keys has no others unless
additionalProperties allows them, and numbers have up to 16 digits unless the bounds ask for more.
Keywords that ask for nothing are dropped; those that cannot be enforced are refused by name.

Schemas that hold at the same place ($ref, allOf, anyOf and their neighbours) are merged; those of
keys and items are kept as lists of schemas that must all hold, and merged when they are needed, so
that schemas may refer to themselves.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from ranges import Bounds
from serve import Refused

MOST_PIECES = 400  # alternatives of one place
MOST_DIGITS = 400  # of a number in a schema
TYPES = ("null", "boolean", "number", "string", "array", "object")

Schemas = tuple[Any, ...]  # schemas that must all hold

_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
_FORMATS |= {"uri"}
# Their texts would have digits without end. Longer ones mean nothing.
_FORMAT_LENGTHS = {"date-time": 35, "time": 24, "duration": 40}

_BY_TYPE = {
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems")
    + ("contains", "minContains", "maxContains", "unevaluatedItems"),
    "object": ("properties", "required", "additionalProperties", "patternProperties")
    + ("minProperties", "maxProperties", "propertyNames", "unevaluatedProperties")
    + ("dependentRequired", "dependentSchemas", "dependencies"),
}
_TYPED = {key for keys in _BY_TYPE.values() for key in keys}
_IN_PLACE = ("$ref", "allOf", "anyOf", "oneOf", "enum", "const", "not", "if")
_REFUSED = ("$dynamicRef", "$recursiveRef", "extends", "disallow", "divisibleBy")


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


def parsed(text: str) -> Any:
    """A schema from its JSON, with exact numbers: int and Decimal. Raises Refused."""

    def number(digits: str) -> Decimal:
        value = Decimal(digits)
        if abs(value.adjusted()) > MOST_DIGITS or len(digits) > MOST_DIGITS:
            raise Refused(f"a number of the JSON schema has more than {MOST_DIGITS} digits")
        return value

    def whole(digits: str) -> int:
        return int(number(digits))

    def constant(name: str) -> None:
        raise ValueError(f"{name} is no number of JSON")

    try:
        return json.loads(text, parse_int=whole, parse_float=number, parse_constant=constant)
    except RecursionError:
        raise Refused("the JSON schema is nested too deeply") from None
    except ValueError as error:
        raise Refused(f"the JSON schema is no JSON: {' '.join(str(error).split())[:300]}") from None


def decimal(value: Any) -> Decimal | None:
    """A number of a schema or value; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    return Decimal(value)


class Reader:
    """Reads one schema text. admits: whether llguidance admits a string for schemas of strings."""

    def __init__(self, root: Any, admits: Callable[[tuple[dict[str, Any], ...], str], bool]):
        self.root, self._admits = root, admits
        self._opening: list[int] = []  # schemas of $ref that are being read

    # ---- Reading ----

    def pieces(self, schemas: Schemas) -> list[Piece]:
        """The alternatives that all of these schemas allow; without schemas: anything."""
        found: list[Piece] | None = None
        for schema in schemas:
            more = self._read(schema)
            found = more if found is None else self.both(found, more)
        return any_type() if found is None else found

    def _read(self, schema: Any) -> list[Piece]:
        if schema is True:
            return any_type()
        if schema is False:
            return []
        if not isinstance(schema, dict):
            raise Refused(f"the JSON schema has {_short(schema)} where a schema must be")
        for key in _REFUSED:
            if key in schema:
                raise _unsupported(key)
        found: list[Piece] = any_type()
        typed = False
        for key, value in schema.items():
            if key in _TYPED or key == "type":
                if not typed:
                    found, typed = self.both(found, self._typed(schema)), True
            elif key in _IN_PLACE:
                found = self._in_place(found, schema, key, value)
        return found

    def _in_place(
        self, found: list[Piece], schema: dict[str, Any], key: str, value: Any
    ) -> list[Piece]:
        if key == "$ref":
            return self.both(found, self._referred(value))
        if key == "const":
            return self.both(found, [Const("const", value)])
        if key == "not":
            return self._without(found, value)
        if key == "if":
            return self._conditional(found, schema)
        if not isinstance(value, list) or not value and key != "enum":
            raise Refused(f"{key} must be a list of schemas, is {_short(value)}")
        if key == "enum":
            return self.both(found, [Const("const", one) for one in value])
        if key == "allOf":
            for one in value:
                found = self.both(found, self._read(one))
            return found
        ways = [self._read(one) for one in value]
        if key == "oneOf":
            # As they are beside this schema's own keywords, which may tell them apart.
            ways = [self.both(found, way) for way in ways]
            ways = [way for way in ways if way]
            for i, one in enumerate(ways):
                for other in ways[:i]:
                    if self._overlap(one, other):
                        raise Refused(
                            "oneOf with alternatives that may hold together cannot be enforced; "
                            "anyOf can"
                        )
            return self._limited([piece for way in ways for piece in way])
        return self.both(found, [piece for way in ways for piece in way])

    def _referred(self, ref: Any) -> list[Piece]:
        target = self.target(ref)
        if id(target) in self._opening:
            raise Refused(f"$ref {_short(ref)} refers to itself")
        self._opening.append(id(target))
        try:
            return self._read(target)
        finally:
            self._opening.pop()

    def target(self, ref: Any) -> Any:
        """What a reference within the text names. Raises Refused."""
        if isinstance(ref, str) and ref.startswith("#"):
            names = unquote(ref[1:]).split("/")
            at = self.root
            if names[0]:
                at = next((s for s in _every(at) if names[0] in (s.get("$anchor"),)), None)
                names = names[:1]
            for name in names[1:]:
                name = name.replace("~1", "/").replace("~0", "~")
                if isinstance(at, list) and name.isdecimal() and int(name) < len(at):
                    at = at[int(name)]
                elif isinstance(at, dict) and name in at:
                    at = at[name]
                else:
                    at = None
                    break
            if isinstance(at, dict | bool):
                return at
        elif isinstance(ref, str):
            for schema in _every(self.root):
                if ref in (schema.get("$id"), schema.get("id")):
                    return schema
        raise Refused(f"$ref {_short(ref)} names nothing in the JSON schema")

    def _without(self, found: list[Piece], excluded: Any) -> list[Piece]:
        """`not`: types that it excludes as a whole; what it does not touch stays."""
        gone = self._read(excluded)
        whole = {piece.type for piece in gone if _is_any(piece)}
        left = []
        for piece in found:
            if piece.type in whole or isinstance(piece, Const) and _type(piece.value) in whole:
                continue
            if self._overlap([piece], gone):
                raise _unsupported("not")
            left.append(piece)
        return left

    def _conditional(self, found: list[Piece], schema: dict[str, Any]) -> list[Piece]:
        ways = [schema.get("then", True), schema.get("else", True)]
        if all(_asks_nothing(way) for way in ways):
            return found
        condition = self.both(found, self._read(schema["if"]))
        if not condition:  # never
            return self.both(found, self._read(ways[1]))
        raise _unsupported("if")

    # ---- One schema's own keywords ----

    def _typed(self, schema: dict[str, Any]) -> list[Piece]:
        given = schema.get("type", list(TYPES))
        types = given if isinstance(given, list) else [given]
        found: list[Piece] = []
        for name in types:
            if name not in (*TYPES, "integer"):
                raise Refused(f"type must be one of JSON's types, is {_short(name)}")
        if "number" in types:
            types = [name for name in types if name != "integer"]
        for name in dict.fromkeys(types):
            if name in ("number", "integer"):
                found += self._number(schema, name == "integer")
            elif name == "string":
                found += self._string(schema)
            elif name == "array":
                found += self._array(schema)
            elif name == "object":
                found += self._object(schema)
            else:
                found.append(Piece(name))
        return found

    def _number(self, schema: dict[str, Any], whole: bool) -> list[Piece]:
        bounds = Bounds()

        def value(key: str) -> Decimal:
            number = decimal(schema[key])
            if number is None:
                raise Refused(f"{key} must be a number, is {_short(schema[key])}")
            return number

        low_open, high_open = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        if "minimum" in schema:
            bounds.at_least(value("minimum"), low_open is True)
        if "maximum" in schema:
            bounds.at_most(value("maximum"), high_open is True)
        if low_open is not None and not isinstance(low_open, bool):
            bounds.at_least(value("exclusiveMinimum"), True)
        if high_open is not None and not isinstance(high_open, bool):
            bounds.at_most(value("exclusiveMaximum"), True)
        if "multipleOf" in schema:
            step = value("multipleOf")
            if step <= 0:
                raise Refused(f"multipleOf must be above 0, is {_short(step)}")
            bounds.multiples = (step,)
        return [Number("number", whole, bounds)]

    def _string(self, schema: dict[str, Any]) -> list[Piece]:
        wanted: dict[str, Any] = {}
        for key in ("minLength", "maxLength"):
            if key in schema:
                wanted[key] = _count(schema, key)
        for key in ("pattern", "format"):
            if key in schema and not isinstance(schema[key], str):
                raise Refused(f"{key} must be a text, is {_short(schema[key])}")
        if schema.get("pattern", "") not in ("", ".*", "^.*", "^.*$", ".*$"):
            wanted["pattern"] = schema["pattern"]
        elif schema.get("pattern"):
            wanted["pattern"] = "^.*$"
        if schema.get("format") in _FORMATS:
            name = wanted["format"] = schema["format"]
            if name in _FORMAT_LENGTHS:
                wanted.setdefault("maxLength", _FORMAT_LENGTHS[name])
        if wanted.get("minLength") == 0:
            del wanted["minLength"]
        return [String("string", (wanted,) if wanted else ())]

    def _array(self, schema: dict[str, Any]) -> list[Piece]:
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        if isinstance(rest, list):  # before 2020
            first, rest = rest, schema.get("additionalItems", True)
        if not isinstance(first, list):
            raise Refused(f"prefixItems must be a list, is {_short(first)}")
        if "unevaluatedItems" in schema and not _asks_nothing(schema["unevaluatedItems"]):
            # Other schemas of the same place may have items of their own, which count as well.
            if any(key in schema for key in _IN_PLACE):
                raise _unsupported("unevaluatedItems")
            if "items" not in schema:
                rest = schema["unevaluatedItems"]
        least = _count(schema, "minItems")
        most = _count(schema, "maxItems") if "maxItems" in schema else None
        if "contains" in schema:
            least = max(least, self._contains(schema))
        found = Array("array", tuple((one,) for one in first), (rest,), least, most)
        if rest is False or rest is True or _asks_nothing(rest):
            found = replace(found, rest=None if rest is False else ())
        unique = schema.get("uniqueItems", False)
        if unique is not False and (_longest(found) is None or (_longest(found) or 0) > 1):
            raise _unsupported("uniqueItems")
        return [found]

    @staticmethod
    def _contains(schema: dict[str, Any]) -> int:
        """The least items, if `contains` asks for no more than a number of them."""
        least = _count(schema, "minContains", 1)
        if "maxContains" in schema or least and not _asks_nothing(schema["contains"]):
            raise _unsupported("contains")
        return least

    def _object(self, schema: dict[str, Any]) -> list[Piece]:
        keys, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for key, value in (("properties", keys), ("patternProperties", patterns)):
            if not isinstance(value, dict):
                raise Refused(f"{key} must be an object of schemas, is {_short(value)}")
        needed = schema.get("required", [])
        if isinstance(needed, bool):  # of draft 3, at the key
            needed = []
        if not isinstance(needed, list) or not all(isinstance(name, str) for name in needed):
            raise Refused(f"required must be a list of names, is {_short(needed)}")
        for key in ("dependentRequired", "dependentSchemas", "dependencies"):
            value = schema.get(key, {})
            if not isinstance(value, dict) or any(
                not (one == [] or _asks_nothing(one)) for one in value.values()
            ):
                raise _unsupported(key)
        found = Object(
            "object",
            {name: (one,) for name, one in keys.items()},
            tuple(dict.fromkeys(needed)),
            (schema["additionalProperties"],) if "additionalProperties" in schema else None,
            {name: (one,) for name, one in patterns.items()},
            self._names(schema),
            _count(schema, "minProperties"),
            _count(schema, "maxProperties") if "maxProperties" in schema else None,
            "properties" in schema,
            self._unevaluated(schema),
        )
        return [self._shared(found)]

    def _names(self, schema: dict[str, Any]) -> Schemas:
        names = schema.get("propertyNames", True)
        if _asks_nothing(names) or any(_is_any(p) for p in self._read(names) if p.type == "string"):
            return ()
        return (names,)

    @staticmethod
    def _unevaluated(schema: dict[str, Any]) -> bool:
        value = schema.get("unevaluatedProperties", True)
        if value is not False and not _asks_nothing(value):
            raise _unsupported("unevaluatedProperties")
        return value is False

    @staticmethod
    def _shared(piece: Object) -> Object:
        """With the schemas of patterns at the named keys that match."""
        if not piece.patterns:
            return piece
        keys = {name: schemas + _matching(piece, name) for name, schemas in piece.keys.items()}
        return replace(piece, keys=keys)

    # ---- Two at the same place ----

    def _limited(self, pieces: list[Piece]) -> list[Piece]:
        if len(pieces) > MOST_PIECES:
            raise Refused(f"the JSON schema has more than {MOST_PIECES} alternatives at a place")
        return pieces

    def both(self, some: list[Piece], others: list[Piece]) -> list[Piece]:
        """All alternatives of `some` that are one of `others` as well."""
        if some is others or _all_types(some):
            return self._limited(others)
        if _all_types(others):
            return self._limited(some)
        if len(some) * len(others) > 50 * MOST_PIECES:
            raise Refused(f"the JSON schema has more than {MOST_PIECES} alternatives at a place")
        found = [both for a in some for b in others if (both := self._merged(a, b)) is not None]
        return self._limited(found)

    def _overlap(self, some: list[Piece], others: list[Piece]) -> bool:
        """May a value be one of both? True if unknown."""
        for a in some:
            for b in others:
                both = self._merged(a, b)
                if both is None:
                    continue
                if isinstance(both, Object) and any(
                    self._never(both.keys.get(name, extra_key(both, name))) for name in both.needed
                ):
                    continue
                return True
        return False

    def _never(self, schemas: Schemas) -> bool:
        """Is there no value for these schemas? False if unknown, as for those with references."""
        if any(_refers(schema) for schema in schemas):
            return False
        return not self.pieces(schemas)

    def _merged(self, a: Piece, b: Piece) -> Piece | None:
        if isinstance(a, Const):
            return a if self.fits(a.value, [b]) else None
        if isinstance(b, Const):
            return b if self.fits(b.value, [a]) else None
        if a.type != b.type:
            return None
        if isinstance(a, Number) and isinstance(b, Number):
            return Number("number", a.whole or b.whole, a.bounds.both(b.bounds))
        if isinstance(a, String) and isinstance(b, String):
            wanted = [*a.wanted, *(one for one in b.wanted if one not in a.wanted)]
            return String("string", tuple(wanted))
        if isinstance(a, Array) and isinstance(b, Array):
            return self._merged_arrays(a, b)
        if isinstance(a, Object) and isinstance(b, Object):
            return self._merged_objects(a, b)
        return a

    @staticmethod
    def _merged_arrays(a: Array, b: Array) -> Array | None:
        first = []
        for i in range(max(len(a.first), len(b.first))):
            parts = [one.first[i] if i < len(one.first) else one.rest for one in (a, b)]
            if parts[0] is None or parts[1] is None:
                break
            first.append(_joined(parts[0], parts[1]))
        whole = len(first) == max(len(a.first), len(b.first))
        ended = not whole or a.rest is None or b.rest is None
        rest = None if ended else _joined(a.rest or (), b.rest or ())
        most = min([m for m in (a.most, b.most) if m is not None], default=None)
        found = Array("array", tuple(first), rest, max(a.least, b.least), most)
        longest = _longest(found)
        return None if longest is not None and longest < found.least else found

    @staticmethod
    def _merged_objects(a: Object, b: Object) -> Object | None:
        keys: dict[str, Schemas] = {}
        for name in dict.fromkeys([*a.keys, *b.keys]):
            keys[name] = ()
            for one in (a, b):
                schemas = one.keys[name] if name in one.keys else extra_key(one, name)
                keys[name] = _joined(keys[name], schemas)
        others = a.others if b.others is None else b.others
        if a.others is not None and b.others is not None:
            others = _joined(a.others, b.others)
        patterns = dict(a.patterns)
        for name, schemas in b.patterns.items():
            patterns[name] = _joined(patterns.get(name, ()), schemas)
        # A key that only one side's patterns know is one of the others for the other side.
        for one, other in ((a, b), (b, a)):
            for name in one.patterns.keys() - other.patterns.keys():
                patterns[name] = _joined(patterns[name], other.others or ())
        return Object(
            "object",
            keys,
            tuple(dict.fromkeys([*a.needed, *b.needed])),
            others,
            patterns,
            _joined(a.names, b.names),
            max(a.least, b.least),
            min([m for m in (a.most, b.most) if m is not None], default=None),
            a.named or b.named,
            a.closed or b.closed,
        )

    # ---- Values ----

    def fits(self, value: Any, pieces: list[Piece]) -> bool:
        """Is a value one of the alternatives?"""
        return any(self._fits(value, piece) for piece in pieces)

    def _fits(self, value: Any, piece: Piece) -> bool:
        if isinstance(piece, Const):
            return same(value, piece.value)
        if _type(value) != piece.type:
            return False
        if isinstance(piece, Number):
            number = decimal(value)
            assert number is not None
            return piece.bounds.admits(number) and (not piece.whole or number == int(number))
        if isinstance(piece, String):
            return not piece.wanted or self._admits(piece.wanted, value)
        if isinstance(piece, Array):
            if len(value) < piece.least or piece.most is not None and len(value) > piece.most:
                return False
            if piece.rest is None and len(value) > len(piece.first):
                return False
            for i, one in enumerate(value):
                schemas = piece.first[i] if i < len(piece.first) else piece.rest or ()
                if not self.fits(one, self.pieces(schemas)):
                    return False
        if isinstance(piece, Object):
            if len(value) < piece.least or piece.most is not None and len(value) > piece.most:
                return False
            if not all(name in value for name in piece.needed):
                return False
            for name, one in value.items():
                if piece.names and not self.fits(name, self.pieces(piece.names)):
                    return False
                schemas = piece.keys[name] if name in piece.keys else extra_key(piece, name)
                if not self.fits(one, self.pieces(schemas)):
                    return False
        return True


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


def _all_types(pieces: list[Piece]) -> bool:
    return {piece.type for piece in pieces if _is_any(piece)} == set(TYPES)


def _is_any(piece: Piece) -> bool:
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
        free = piece.others is None or all(map(_asks_nothing, piece.others))
        return nothing and free and not piece.least and piece.most is None and not piece.closed
    return not isinstance(piece, Const)


def extra_key(piece: Object, name: str) -> Schemas:
    """The schemas of a key that is not named."""
    found = _matching(piece, name)
    if found or any(matches(pattern, name) for pattern in piece.patterns):
        return found
    return (False,) if piece.closed and piece.others is None else piece.others or ()


def _matching(piece: Object, name: str) -> Schemas:
    found: Schemas = ()
    for pattern, schemas in piece.patterns.items():
        if matches(pattern, name):
            found = _joined(found, schemas)
    return found


def matches(pattern: str, name: str) -> bool:
    """Does a key match a pattern of patternProperties?"""
    try:
        return re.search(pattern, name, re.ASCII) is not None
    except (re.error, OverflowError):
        raise Refused(f"patternProperties has {_short(pattern)}, which cannot be read") from None


def _joined(some: Schemas, others: Schemas) -> Schemas:
    known = {id(schema) for schema in some}
    return some + tuple(schema for schema in others if id(schema) not in known)


def _longest(piece: Array) -> int | None:
    """The most items; None: any number."""
    if piece.rest is not None:
        return piece.most
    return len(piece.first) if piece.most is None else min(piece.most, len(piece.first))


def _asks_nothing(schema: Any) -> bool:
    """Is this certainly a schema that all values fit?"""
    if isinstance(schema, bool):
        return schema
    asks = (*_TYPED, *_IN_PLACE, *_REFUSED, "type")
    return isinstance(schema, dict) and not any(key in asks for key in schema)


def _refers(schema: Any) -> bool:
    return any("$ref" in one for one in _every(schema))


def _every(root: Any) -> Iterator[dict[str, Any]]:
    """All objects in a schema's text."""
    todo = [root]
    while todo:
        at = todo.pop()
        if isinstance(at, dict):
            yield at
            todo += at.values()
        elif isinstance(at, list):
            todo += at


def _count(schema: dict[str, Any], key: str, missing: int = 0) -> int:
    value = decimal(schema.get(key, missing))
    if value is None or value < 0 or value != int(value):
        raise Refused(f"{key} must be a whole number, is {_short(schema[key])}")
    return int(value)


def same(a: Any, b: Any) -> bool:
    """Are two values the same in JSON's sense? 1 is 1.0, but not true."""
    if _type(a) != _type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((int | Decimal, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"


def _unsupported(key: str) -> Refused:
    return Refused(f"{key} cannot be enforced as it is used here")


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
