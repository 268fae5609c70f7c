"""JSON schemas against the package jsonschema: what fits is admitted, what is admitted fits."""

from __future__ import annotations

import json
import random
from typing import Any

import llguidance
import pytest
import random_schemas

from powerinfer_cpp import LlamaGrammar

BYTES = llguidance.LLTokenizer("byte")


def matcher(schema: Any) -> llguidance.LLMatcher:
    made = LlamaGrammar.from_json_schema(schema if schema is not True else "true")
    return llguidance.LLMatcher(BYTES, made._compiled, log_level=0)


def admits(schema: Any, text: str) -> bool:
    return takes(matcher(schema), text)


def takes(at: llguidance.LLMatcher, text: str) -> bool:
    ids = list(text.encode())
    return at.try_consume_tokens(ids) == len(ids) and at.is_accepting()


def written(at: llguidance.LLMatcher, draw: random.Random, most: int = 200) -> str | None:
    """A text of the grammar; None if it became too long."""
    text = bytearray()
    while len(text) < most:
        if at.is_accepting() and draw.random() < 0.3:
            break
        bits = at.compute_bitmask()
        allowed = [i for i in range(128) if bits[i >> 3] >> (i & 7) & 1]
        closing = [i for i in allowed if i in b'"}]']
        if not allowed:
            break
        chosen = draw.choice(closing if closing and draw.random() < 0.5 else allowed)
        text.append(chosen)
        at.consume_token(chosen)
    return text.decode() if at.is_accepting() else None


def limited(schema: Any) -> Any:
    """The schema with what we add to it: no keys besides those that are named."""
    if isinstance(schema, list):
        return [limited(one) for one in schema]
    if not isinstance(schema, dict) or "const" in schema or "enum" in schema:
        return schema
    made = {key: limited(value) for key, value in schema.items()}
    if "properties" in made or "patternProperties" in made:
        named = {name: limited(one) for name, one in schema.get("properties", {}).items()}
        further = [name for name in made.get("required", []) if name not in named]
        if "additionalProperties" not in made and made.get("minProperties", 0) <= len(named):
            named |= dict.fromkeys(further, True)
            made["additionalProperties"] = False
        made["properties"] = named
    return made


def long_number(value: Any) -> bool:
    if isinstance(value, list | dict):
        return any(map(long_number, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and abs(value) >= 10**16


def as_multiple(value: Any) -> Any:
    """Multiples of a whole number are written without a point."""
    if isinstance(value, list):
        return [as_multiple(one) for one in value]
    if isinstance(value, dict):
        return {key: as_multiple(one) for key, one in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def check(seed: int) -> None:
    import jsonschema

    draw = random.Random(seed)
    schema = random_schemas.schema(draw)
    exact, ours = map(jsonschema.Draft202012Validator, (schema, limited(schema)))
    fine = [
        value for _ in range(8) if exact.is_valid(value := random_schemas.fitting(draw, schema))
    ]
    # Merged objects know each other's keys, and formats are enforced.
    whole = json.dumps(schema)
    if '"allOf"' in whole or '"format": "date"' in whole:
        fine = []
    fine = [value for value in fine if ours.is_valid(value) and not long_number(value)]
    try:
        made = matcher(schema)
    except ValueError as error:
        assert "cannot be used" in str(error), error
        # A documented limit; what else is refused has no instances.
        assert "multipleOf" in str(error) or not fine, (whole, fine)
        return
    for value in map(as_multiple, fine) if '"multipleOf"' in whole else fine:
        form = draw.choice([{}, {"separators": (",", ":")}, {"indent": 2}])
        text = json.dumps(value, ensure_ascii=False, **form)
        assert takes(made.deep_copy(), text), (whole, value)
    for _ in range(3):
        text = written(made.deep_copy(), draw)
        # Keys that are not named may come twice, so that their number is smaller.
        if text is not None and '"minProperties"' not in whole:
            assert exact.is_valid(json.loads(text)), (whole, text)


def test_random_schemas() -> None:
    for seed in range(25):
        check(seed)


@pytest.mark.slow
def test_more_random_schemas() -> None:
    for seed in range(1000, 2000):
        check(seed)


@pytest.mark.parametrize("number", [2**53 + 1, -(2**62) - 1, 9007199254740995, 10**30 + 1, 7])
def test_large_integers_are_exact(number: int) -> None:
    for schema in (
        {"const": number},
        {"enum": ["a", number]},
        {"type": "integer", "minimum": number, "maximum": number},
        {
            "type": ["integer", "null"],
            "exclusiveMinimum": number - 1,
            "exclusiveMaximum": number + 1,
        },
        {"type": "object", "properties": {"a": {"const": number}}, "required": ["a"]},
    ):
        form = '{{"a":{}}}' if "properties" in schema else "{}"
        made = matcher(schema)
        for i in (-2, -1, 0, 1, 2):
            assert takes(made.deep_copy(), form.format(number + i)) == (i == 0), schema


def test_bounds_are_exact() -> None:
    int64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
    assert admits(int64, str(2**63 - 1)) and not admits(int64, str(2**63))
    assert admits(int64, str(-(2**63))) and not admits(int64, str(-(2**63) - 1))
    third = '{"type": "number", "minimum": 0.1234567890123456789, "maximum": 0.2}'
    assert admits(third, "0.12345678901234567891") is False  # one digit more than the bound
    assert admits(third, "0.1234567890123456789") and not admits(third, "0.1234567890123456788")
    assert admits('{"const": 1e400}', "1E+400") and not admits('{"const": 1e400}', "1E+401")
    assert admits({"const": 0.1 + 0.2}, "0.30000000000000004")
    assert not admits({"const": 0.1 + 0.2}, "0.3")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number"},
        {"type": ["number", "string"]},
        {"type": "integer", "minimum": 5},
        {"type": "number", "exclusiveMaximum": 2},
        {"anyOf": [{"type": "null"}, {"type": "number", "minimum": -1}]},
        {"$ref": "#/$defs/n", "$defs": {"n": {"type": "number", "multipleOf": 0.5}}},
        {},
    ],
)
def test_numbers_end(schema: dict) -> None:
    for shape in (schema, {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}):
        if shape is not schema and "$ref" in schema:
            continue
        made = matcher(shape)
        for digits in ("7", "1", "0", "9"):
            at, text = made.deep_copy(), ""
            while len(text) < 60:
                bits = at.compute_bitmask()
                order = [digits, "1", "-", ".", "[", "e", "+", "5", "]"]
                chosen = next((c for c in order if bits[ord(c) >> 3] >> (ord(c) & 7) & 1), None)
                if chosen is None:
                    break
                text += chosen
                at.consume_token(ord(chosen))
            assert len(text) < 60, (shape, text)


@pytest.mark.parametrize(
    ("schema", "fine"),
    [
        ({"type": "string", "format": "semver"}, '"x"'),
        ({"type": "integer", "format": "int32"}, "1"),
        ({"type": "array", "uniqueItems": False}, "[1,1]"),
        ({"type": "array", "uniqueItems": True, "maxItems": 1}, "[1]"),
        ({"type": "array", "uniqueItems": True, "prefixItems": [{}], "items": False}, "[1]"),
        ({"type": "object", "propertyNames": {"type": "string", "minLength": 0}}, '{"":1}'),
        ({"type": "object", "unevaluatedProperties": True, "readOnly": True}, '{"a":1}'),
        ({"type": "array", "items": True, "unevaluatedItems": {}, "contains": True}, "[null]"),
        ({"properties": {"a": True, "b": {}}, "deprecated": True, "type": "object"}, '{"a":1}'),
        ({"type": "string", "not": {"type": "integer"}, "contentMediaType": "text/html"}, '"a"'),
        ({"type": "integer", "not": {"minLength": 2, "type": "string"}, "x-a": {"b": 1}}, "1"),
        ({"type": "string", "if": {"minLength": 2}, "examples": [1]}, '"a"'),
        ({"type": "object", "dependentRequired": {}, "minProperties": 0, "$comment": ""}, "{}"),
        ({"type": "array", "items": {"const": 1}, "minContains": 0, "contains": False}, "[1]"),
        (True, "[{}]"),
    ],
)
def test_what_asks_for_nothing(schema: Any, fine: str) -> None:
    assert admits(schema, fine)


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "contains": {"type": "string"}}, "contains"),
        ({"type": "string", "not": {"minLength": 2}}, "not"),
        ({"if": {"type": "string"}, "then": {"minLength": 2}}, "if"),
        ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"unevaluatedProperties": {"type": "string"}}, "unevaluatedProperties"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 3}]}, "oneOf"),
        ({"oneOf": [{"type": "string", "pattern": c} for c in "ab"]}, "oneOf"),
        ({"type": "number", "multipleOf": 0.3}, "multipleOf"),
        ({"$dynamicRef": "#x"}, "dynamicRef"),
        ({"type": "string", "pattern": r"(a)\1"}, "refers back"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no JSON fits"),
    ],
)
def test_what_cannot_be_enforced(schema: dict, keyword: str) -> None:
    with pytest.raises(ValueError, match=keyword):
        LlamaGrammar.from_json_schema(schema)


TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "kids": {"items": {"$ref": "#/$defs/node"}}},
            "required": ["v"],
        }
    },
    "allOf": [{"$ref": "#/$defs/node"}, {"properties": {"v": {"minimum": 0}}}],
}


@pytest.mark.parametrize(
    ("schema", "fine", "wrong"),
    [
        (TREE, '{"v":1,"kids":[{"v":-2}]}', '{"v":-1}'),
        (
            {"patternProperties": {"^x-": {"type": "integer"}}, "type": "object"},
            '{"x-a":1}',
            '{"y":1}',
        ),
        (
            {"additionalProperties": {"type": "null"}, "maxProperties": 2, "type": "object"},
            '{"a":null,"b":null}',
            '{"a":null,"b":null,"c":null}',
        ),
        (
            {"properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, "type": "object"},
            '{"a":1,"c":2}',
            '{"b":1}',
        ),
        (
            {
                "oneOf": [
                    {"properties": {"k": {"const": "a"}}, "required": ["k"], "type": "object"},
                    {"properties": {"k": {"const": "b"}}, "required": ["k"], "type": "object"},
                ]
            },
            '{"k":"b"}',
            '{"k":"c"}',
        ),
        ({"properties": {"a": {}}, "additionalProperties": True}, '{"a":1,"b":2}', '{"b":1,"a":2}'),
        (
            {"properties": {"x-a": {}}, "patternProperties": {"^x-": {"type": "null"}}},
            '{"x-a":null,"x-b":null}',
            '{"x-b":null,"x-a":null}',
        ),
        (
            {"patternProperties": {"^x-": {"type": "null"}}, "additionalProperties": {"const": 1}},
            '{"x-a":null,"b":1}',
            '{"x-a":1}',
        ),
        (
            {
                "properties": {"a": {}, "no": {}},
                "propertyNames": {"pattern": "^[a-c]"},
                "additionalProperties": {"const": 1},
            },
            '{"a":2,"b":1}',
            '{"b":1,"a":2}',
        ),
        (
            {
                "properties": {"a": {}},
                "propertyNames": {"enum": ["a", "b"]},
                "additionalProperties": {"const": 1},
            },
            '{"a":2,"b":1}',
            '{"a":2,"c":1}',
        ),
        ({"type": "string", "pattern": "^a*$", "minLength": 2}, '"aa"', '"a"'),
        (
            {"oneOf": [{"type": "string", "format": f} for f in ("ipv4", "date")]},
            '"1.1.1.1"',
            '"1"',
        ),
        ({"oneOf": [{"type": "string", "pattern": f"^{c}"} for c in "ab"]}, '"bc"', '"cb"'),
        ({"type": "string", "pattern": "a", "allOf": [{"pattern": "b"}]}, '"xbxa"', '"xbx"'),
    ],
)
def test_merged_schemas(schema: dict, fine: str, wrong: str) -> None:
    assert admits(schema, fine) and not admits(schema, wrong)
