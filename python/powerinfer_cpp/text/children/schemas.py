"""What a JSON schema says, as alternatives of one type each.

As in llama.cpp, what a schema does not mention is limited, although JSON Schema allows it, since
weak models may otherwise never finish: an object that names keys has no others unless
additionalProperties allows them, and numbers have up to 16 digits unless the bounds ask for more.
Keywords that ask for nothing are dropped; those that cannot be enforced are refused by name.

Schemas that hold at the same place ($ref, allOf, anyOf and their neighbours) are merged; those of
keys and items are kept as lists of schemas that must all hold, and merged when they are needed, so
that schemas may refer to themselves.
"""

from dataclasses import replace
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from formats import FORMATS
from pieces import (
    TYPES,
    Array,
    Const,
    Number,
    Object,
    Piece,
    Schemas,
    String,
    all_types,
    any_type,
    both_arrays,
    both_objects,
    extra_key,
    is_any,
    longest,
    same,
    type_of,
    with_patterns,
)
from ranges import Bounds
from schema_text import (
    IN_PLACE,
    REFUSED,
    TYPED,
    asks_nothing,
    count,
    decimal,
    every,
    refers,
    short,
    unsupported,
)
from serve import Refused
from trials import admits, possible

MOST_PIECES = 400  # alternatives of one place

_FREE = ("", "^", "$", ".*", "^.*", ".*$")  # patterns that every text has


class Reader:
    """Reads one schema text."""

    def __init__(self, root: Any):
        self.root = root
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
            raise Refused(f"the JSON schema has {short(schema)} where a schema must be")
        for key in REFUSED:
            if key in schema:
                raise unsupported(key)
        found: list[Piece] = any_type()
        typed = False
        for key, value in schema.items():
            if key in TYPED or key == "type":
                if not typed:
                    found, typed = self.both(found, self._typed(schema)), True
            elif key in IN_PLACE:
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
            raise Refused(f"{key} must be a list of schemas, is {short(value)}")
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
            raise Refused(f"$ref {short(ref)} refers to itself")
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
                at = next((s for s in every(at) if names[0] in (s.get("$anchor"),)), None)
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
            for schema in every(self.root):
                if ref in (schema.get("$id"), schema.get("id")):
                    return schema
        raise Refused(f"$ref {short(ref)} names nothing in the JSON schema")

    def _without(self, found: list[Piece], excluded: Any) -> list[Piece]:
        """`not`: types that it excludes as a whole; what it does not touch stays."""
        gone = self._read(excluded)
        whole = {piece.type for piece in gone if is_any(piece)}
        left = []
        for piece in found:
            if piece.type in whole or isinstance(piece, Const) and type_of(piece.value) in whole:
                continue
            if self._overlap([piece], gone):
                raise unsupported("not")
            left.append(piece)
        return left

    def _conditional(self, found: list[Piece], schema: dict[str, Any]) -> list[Piece]:
        ways = [schema.get("then", True), schema.get("else", True)]
        if all(asks_nothing(way) for way in ways):
            return found
        condition = self.both(found, self._read(schema["if"]))
        if not condition:  # never
            return self.both(found, self._read(ways[1]))
        raise unsupported("if")

    # ---- One schema's own keywords ----

    def _typed(self, schema: dict[str, Any]) -> list[Piece]:
        given = schema.get("type", list(TYPES))
        types = given if isinstance(given, list) else [given]
        found: list[Piece] = []
        for name in types:
            if name not in (*TYPES, "integer"):
                raise Refused(f"type must be one of JSON's types, is {short(name)}")
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
                raise Refused(f"{key} must be a number, is {short(schema[key])}")
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
                raise Refused(f"multipleOf must be above 0, is {short(step)}")
            bounds.multiples = (step,)
        return [Number("number", whole, bounds)]

    def _string(self, schema: dict[str, Any]) -> list[Piece]:
        wanted: dict[str, Any] = {}
        for key in ("minLength", "maxLength"):
            if key in schema:
                wanted[key] = count(schema, key)
        for key in ("pattern", "format"):
            if key in schema and not isinstance(schema[key], str):
                raise Refused(f"{key} must be a text, is {short(schema[key])}")
        if schema.get("pattern", "") not in _FREE:
            wanted["pattern"] = schema["pattern"]
        if schema.get("format") in FORMATS:
            wanted["format"] = schema["format"]
        if wanted.get("minLength") == 0:
            del wanted["minLength"]
        return [String("string", (wanted,) if wanted else ())]

    def _array(self, schema: dict[str, Any]) -> list[Piece]:
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        if isinstance(rest, list):  # before 2020
            first, rest = rest, schema.get("additionalItems", True)
        if not isinstance(first, list):
            raise Refused(f"prefixItems must be a list, is {short(first)}")
        if "unevaluatedItems" in schema and not asks_nothing(schema["unevaluatedItems"]):
            # Other schemas of the same place may have items of their own, which count as well.
            if any(key in schema for key in IN_PLACE):
                raise unsupported("unevaluatedItems")
            if "items" not in schema:
                rest = schema["unevaluatedItems"]
        least = count(schema, "minItems")
        most = count(schema, "maxItems") if "maxItems" in schema else None
        if "contains" in schema:
            least = max(least, self._contains(schema))
        found = Array("array", tuple((one,) for one in first), (rest,), least, most)
        if rest is False or rest is True or asks_nothing(rest):
            found = replace(found, rest=None if rest is False else ())
        unique = schema.get("uniqueItems", False)
        if unique is not False and (longest(found) is None or (longest(found) or 0) > 1):
            raise unsupported("uniqueItems")
        return [found]

    @staticmethod
    def _contains(schema: dict[str, Any]) -> int:
        """The least items, if `contains` asks for no more than a number of them."""
        least = count(schema, "minContains", 1)
        if "maxContains" in schema or least and not asks_nothing(schema["contains"]):
            raise unsupported("contains")
        return least

    def _object(self, schema: dict[str, Any]) -> list[Piece]:
        keys, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for key, value in (("properties", keys), ("patternProperties", patterns)):
            if not isinstance(value, dict):
                raise Refused(f"{key} must be an object of schemas, is {short(value)}")
        needed = schema.get("required", [])
        if isinstance(needed, bool):  # of draft 3, at the key
            needed = []
        if not isinstance(needed, list) or not all(isinstance(name, str) for name in needed):
            raise Refused(f"required must be a list of names, is {short(needed)}")
        for key in ("dependentRequired", "dependentSchemas", "dependencies"):
            value = schema.get(key, {})
            if not isinstance(value, dict) or any(
                not (one == [] or asks_nothing(one)) for one in value.values()
            ):
                raise unsupported(key)
        found = Object(
            "object",
            {name: (one,) for name, one in keys.items()},
            tuple(dict.fromkeys(needed)),
            (schema["additionalProperties"],) if "additionalProperties" in schema else None,
            {name: (one,) for name, one in patterns.items()},
            self._names(schema),
            count(schema, "minProperties"),
            count(schema, "maxProperties") if "maxProperties" in schema else None,
            "properties" in schema,
            self._unevaluated(schema),
        )
        return [with_patterns(found)]

    def _names(self, schema: dict[str, Any]) -> Schemas:
        names = schema.get("propertyNames", True)
        if asks_nothing(names) or any(is_any(p) for p in self._read(names) if p.type == "string"):
            return ()
        return (names,)

    @staticmethod
    def _unevaluated(schema: dict[str, Any]) -> bool:
        value = schema.get("unevaluatedProperties", True)
        if value is not False and not asks_nothing(value):
            raise unsupported("unevaluatedProperties")
        return value is False

    # ---- Two at the same place ----

    def _limited(self, pieces: list[Piece]) -> list[Piece]:
        if len(pieces) > MOST_PIECES:
            raise Refused(f"the JSON schema has more than {MOST_PIECES} alternatives at a place")
        return pieces

    def both(self, some: list[Piece], others: list[Piece]) -> list[Piece]:
        """All alternatives of `some` that are one of `others` as well."""
        if some is others or all_types(some):
            return self._limited(others)
        if all_types(others):
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
                if both is None or isinstance(both, String) and not possible(both.wanted):
                    continue
                if isinstance(both, Object) and any(
                    self._never(both.keys.get(name, extra_key(both, name))) for name in both.needed
                ):
                    continue
                return True
        return False

    def _never(self, schemas: Schemas) -> bool:
        """Is there no value for these schemas? False if unknown, as for those with references."""
        if any(refers(schema) for schema in schemas):
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
            return both_arrays(a, b)
        if isinstance(a, Object) and isinstance(b, Object):
            return both_objects(a, b)
        return a

    # ---- Values ----

    def fits(self, value: Any, pieces: list[Piece]) -> bool:
        """Is a value one of the alternatives?"""
        return any(self._fits(value, piece) for piece in pieces)

    def _fits(self, value: Any, piece: Piece) -> bool:
        if isinstance(piece, Const):
            return same(value, piece.value)
        if type_of(value) != piece.type:
            return False
        if isinstance(piece, Number):
            number = decimal(value)
            assert number is not None
            return piece.bounds.admits(number) and (not piece.whole or number == int(number))
        if isinstance(piece, String):
            return not piece.wanted or admits(piece.wanted, value)
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
