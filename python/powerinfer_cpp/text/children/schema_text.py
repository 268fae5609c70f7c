"""The text of a JSON schema: exact numbers, the keywords that there are, and what is refused."""

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from serve import Refused

MOST_DIGITS = 400  # of a number in a schema

_BY_TYPE = {
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems")
    + ("contains", "minContains", "maxContains", "unevaluatedItems"),
    "object": ("properties", "required", "additionalProperties", "patternProperties")
    + ("minProperties", "maxProperties", "propertyNames", "unevaluatedProperties")
    + ("dependentRequired", "dependentSchemas", "dependencies"),
}
TYPED = {key for keys in _BY_TYPE.values() for key in keys}
IN_PLACE = ("$ref", "allOf", "anyOf", "oneOf", "enum", "const", "not", "if")
REFUSED = ("$dynamicRef", "$recursiveRef", "extends", "disallow", "divisibleBy")


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


def count(schema: dict[str, Any], key: str, missing: int = 0) -> int:
    value = decimal(schema.get(key, missing))
    if value is None or value < 0 or value != int(value):
        raise Refused(f"{key} must be a whole number, is {short(schema[key])}")
    return int(value)


def asks_nothing(schema: Any) -> bool:
    """Is this certainly a schema that all values fit?"""
    if isinstance(schema, bool):
        return schema
    asks = (*TYPED, *IN_PLACE, *REFUSED, "type")
    return isinstance(schema, dict) and not any(key in asks for key in schema)


def refers(schema: Any) -> bool:
    return any("$ref" in one for one in every(schema))


def every(root: Any) -> Iterator[dict[str, Any]]:
    """All objects in a schema's text."""
    todo = [root]
    while todo:
        at = todo.pop()
        if isinstance(at, dict):
            yield at
            todo += at.values()
        elif isinstance(at, list):
            todo += at


def unsupported(key: str) -> Refused:
    return Refused(f"{key} cannot be enforced as it is used here")


def short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
