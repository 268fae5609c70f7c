"""JSON schemas as llama.cpp reads them: keys and number lengths that a schema does not mention are
forbidden, although JSON Schema allows them. Otherwise weak models may never finish.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = ("items", "additionalProperties", "additionalItems", "contains", "propertyNames", "not")
_SINGLE += ("if", "then", "else", "unevaluatedProperties", "unevaluatedItems")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum")
_BOUNDS += ("const", "allOf", "anyOf", "oneOf", "$ref")
_MOST = 10**16 - 1  # largest integer without bounds: 16 digits


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _inner(schema: dict[str, Any]) -> Iterator[Any]:
    """The schemas directly inside a schema."""
    for key in _MAPS:
        if isinstance(schema.get(key), dict):
            yield from schema[key].values()
    for key in _LISTS:
        yield from _list(schema.get(key))
    for key in _SINGLE:
        yield schema.get(key)


def _target(root: Any, ref: Any) -> Any:
    """The target of a reference within the text; None if there is none."""
    if not isinstance(ref, str) or not ref.startswith("#"):
        return None
    at = root
    for name in unquote(ref[1:]).split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(at, list) and name.isdecimal() and int(name) < len(at):
            at = at[int(name)]
        elif isinstance(at, dict) and name in at:
            at = at[name]
        else:
            return None
    return at


def _in_place(root: Any, schema: dict[str, Any]) -> tuple[int, list[Any]]:
    """How many parts define the keys of an object, and those of them that are schemas."""
    parts = _list(schema.get("allOf"))
    n = len(parts) + ("properties" in schema)
    for key in ("anyOf", "oneOf"):
        parts = parts + _list(schema.get(key))
        n += key in schema
    for key in ("if", "then", "else"):
        parts = [*parts, schema.get(key)]
        n += key in schema
    if "$ref" in schema:
        parts = [*parts, _target(root, schema["$ref"])]
        n += 1
    return n, [part for part in parts if isinstance(part, dict)]


def as_llama_cpp(root: Any) -> Any:
    """The changed schema: keys outside `properties` only if additionalProperties allows them, and
    integers of at most 16 digits unless they have bounds."""
    found: dict[int, dict[str, Any]] = {}
    todo = [root]
    while todo:
        schema = todo.pop()
        if isinstance(schema, dict) and id(schema) not in found:
            found[id(schema)] = schema
            todo += _inner(schema)
            todo.append(_target(root, schema.get("$ref")))
    # If several parts describe one object, none of them knows the keys of the others.
    open_ones: set[int] = set()
    for schema in found.values():
        n, parts = _in_place(root, schema)
        todo = [schema, *parts] if n > 1 else []
        while todo:
            part = todo.pop()
            if id(part) not in open_ones:
                open_ones.add(id(part))
                todo += _in_place(root, part)[1]
    for schema in found.values():
        if id(schema) not in open_ones:
            _close(schema)
        if schema.get("type") == "integer" and not any(key in schema for key in _BOUNDS):
            schema |= {"minimum": -_MOST, "maximum": _MOST}
    return root


def _close(schema: dict[str, Any]) -> None:
    names = schema.get("properties")
    if not isinstance(names, dict) or "patternProperties" in schema:
        return
    needed = schema.get("minProperties", 0)
    if any(name not in names for name in _list(schema.get("required")) if isinstance(name, str)):
        return  # that asks for other keys
    if isinstance(needed, int) and needed > len(names):
        return
    if "unevaluatedProperties" not in schema:
        schema.setdefault("additionalProperties", False)
