"""Random JSON schemas, and values that probably fit them."""

from __future__ import annotations

import random
from typing import Any

WORDS = ["", "a", "cat", "x-1", 'q"\\', "\u00e9\u20ac", "a\nb", "2020-02-29", "a b"]
KEYS = ["a", "b", "x-1", "\u00e9", 'k"']
NUMBERS = [0, 1, -1, 7, 10, 100, -30, 0.5, 2.25, -0.125, 12.5, 1e3, 3.0]
BIG = [2**53 + 1, -(2**53) - 3, 2**63 - 1, -(2**63), 653247040368672769, 10**25 + 7]


def schema(draw: random.Random, depth: int = 3) -> Any:
    kind = draw.choice(["scalar", "scalar", "object", "object", "array", "some", "any", "const"])
    if depth == 0 and kind not in ("any", "const"):
        kind = "scalar"
    made: dict[str, Any] = {}
    if kind == "any":
        return draw.choice([True, {}, {"title": "x"}, {"type": ["string", "null"]}])
    if kind == "const":
        made = draw.choice(
            [{"const": constant(draw)}, {"enum": [constant(draw) for _ in range(3)]}]
        )
    elif kind == "scalar":
        made = scalar(draw)
    elif kind == "array":
        made = array(draw, depth)
    elif kind == "object":
        made = object_(draw, depth)
    else:
        ways = [schema(draw, depth - 1) for _ in range(draw.randint(1, 3))]
        made = {draw.choice(["anyOf", "anyOf", "allOf"]): ways}
        if draw.random() < 0.3:
            made |= draw.choice([scalar, lambda d: object_(d, 1), lambda d: array(d, 1)])(draw)
    if draw.random() < 0.2:
        made[draw.choice(["description", "$comment", "x-order", "default", "format"])] = "words"
    return made


def scalar(draw: random.Random) -> dict[str, Any]:
    kind = draw.choice(["string", "integer", "number", "boolean", "null", "two"])
    if kind == "two":
        return {"type": draw.sample(["string", "integer", "number", "boolean", "null"], 2)}
    made: dict[str, Any] = {"type": kind}
    if kind == "string":
        if draw.random() < 0.3:
            made["maxLength"] = draw.randint(0, 6)
        if draw.random() < 0.2:
            made["minLength"] = draw.randint(0, 3)
        if draw.random() < 0.2:
            made["pattern"] = draw.choice(
                ["^[a-z]*$", "a", "^x-[0-9]+$", "^(?!x)", "^(?=.{2})[^-]+"]
            )
        if draw.random() < 0.2:
            made["format"] = draw.choice(["path", "date", "password", "x"])
    if kind in ("integer", "number"):
        numbers = [n for n in NUMBERS + BIG if kind == "number" or n == int(n)]
        for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if draw.random() < 0.25:
                made[key] = draw.choice(numbers)
        if draw.random() < 0.15:
            made["multipleOf"] = draw.choice([1, 3, 10] if kind == "integer" else [0.25, 0.5, 1, 2])
    return made


def array(draw: random.Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "array"}
    if draw.random() < 0.3:
        n = draw.randint(1, 3)
        made["prefixItems"] = [schema(draw, depth - 1) for _ in range(n)]
    if draw.random() < 0.7:
        made["items"] = schema(draw, depth - 1) if draw.random() < 0.8 else False
    for key in ("minItems", "maxItems"):
        if draw.random() < 0.3:
            made[key] = draw.randint(0, 4)
    if draw.random() < 0.1:
        made["uniqueItems"] = False
    return made


def object_(draw: random.Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object"}
    names = draw.sample(KEYS, draw.randint(0, 4))
    if names or draw.random() < 0.5:
        made["properties"] = {name: schema(draw, depth - 1) for name in names}
    if draw.random() < 0.6:
        made["required"] = [name for name in KEYS if draw.random() < 0.3]
    if draw.random() < 0.4:
        made["additionalProperties"] = draw.choice([True, False, schema(draw, depth - 1)])
    for key in ("minProperties", "maxProperties"):
        if draw.random() < 0.15:
            made[key] = draw.randint(0, 4)
    if draw.random() < 0.1:
        made["propertyNames"] = {"type": "string"}
    if draw.random() < 0.15:
        made["patternProperties"] = {"^x": schema(draw, depth - 1), "^[a\u00e9]$": True}
    return made


def value(draw: random.Random, depth: int = 2) -> Any:
    """Any JSON value."""
    kind = draw.choice(["word", "number", "number", "plain", "list", "object"])
    if depth == 0 and kind in ("list", "object"):
        kind = "word"
    if kind == "word":
        return draw.choice(WORDS)
    if kind == "number":
        return draw.choice(NUMBERS)
    if kind == "plain":
        return draw.choice([True, False, None])
    if kind == "list":
        return [value(draw, depth - 1) for _ in range(draw.randint(0, 3))]
    return {name: value(draw, depth - 1) for name in draw.sample(KEYS, draw.randint(0, 2))}


def constant(draw: random.Random) -> Any:
    return draw.choice(BIG) if draw.random() < 0.3 else value(draw, 1)


def fitting(draw: random.Random, of: Any, depth: int = 5) -> Any:
    """A value that may fit, with its keys in the order of the schema."""
    if not isinstance(of, dict) or depth == 0:
        return value(draw, 1)
    if "const" in of:
        return of["const"]
    if "enum" in of:
        return draw.choice(of["enum"])
    if "anyOf" in of and draw.random() < 0.7:
        return fitting(draw, draw.choice(of["anyOf"]), depth - 1)
    if "allOf" in of and draw.random() < 0.7:
        whole: dict[str, Any] = {}
        for part in of["allOf"]:
            if isinstance(part, dict):
                whole |= part
        return fitting(draw, whole, depth - 1)
    types = of.get("type", ["object", "array", "string"])
    kind = draw.choice(types) if isinstance(types, list) else types
    if kind == "string":
        return draw.choice(WORDS)
    if kind in ("integer", "number"):
        ends = [of[k] for k in of if k.endswith("imum") and not isinstance(of[k], bool)]
        near = draw.choice([*ends, *NUMBERS])
        if kind == "integer" or abs(near) > 2**40:
            return int(near) + draw.choice([0, 0, 1, -1])
        return near + draw.choice([0, 0, 1, -1, 0.5, 0.125])
    if kind == "boolean":
        return draw.random() < 0.5
    if kind == "null":
        return None
    if kind == "array":
        n = draw.randint(of.get("minItems", 0), max(of.get("minItems", 0), of.get("maxItems", 3)))
        first = of.get("prefixItems", [])
        rest = of.get("items", True)
        return [fitting(draw, first[i] if i < len(first) else rest, depth - 1) for i in range(n)]
    made = {}
    named, needed = of.get("properties", {}), of.get("required", [])
    for name in [*named, *(name for name in needed if name not in named)]:
        if name in needed or draw.random() < 0.5:
            made[name] = fitting(
                draw, named.get(name, of.get("additionalProperties", True)), depth - 1
            )
    if "patternProperties" in of and draw.random() < 0.5:
        made[draw.choice(["x", "x-2"])] = fitting(draw, of["patternProperties"]["^x"], depth - 1)
    free = "additionalProperties" in of or not named
    if free and draw.random() < 0.5:
        name = draw.choice(["zz", "a0", "\u4e2d"])
        made[name] = fitting(draw, of.get("additionalProperties", True), depth - 1)
    return made
