"""What the schema of a function's parameters says of their values: which types they may have, and
so what a text between tags stands for."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .definitions import Tool
from .values import as_json

_MOST_SCHEMAS = 256  # that are looked at for one value
_UNIONS = ("anyOf", "oneOf")
_EMPTY = {"null": "null", "array": "[]", "object": "{}"}
ALL = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))


class Parameters:
    """The parameters of a function. required: the names that a call must have."""

    def __init__(self, tool: Tool):
        self._root = tool.parameters
        self._known: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        required = _listed(self._root.get("required"))
        self.required = frozenset(name for name in required if isinstance(name, str))

    def declares(self, key: str) -> bool:
        """Is there a parameter of this name?"""
        return self.schema(key) is not None

    def schema(self, key: str, of: Any = None) -> Any:
        """The schema of a parameter, or of a property of the schema `of`, or of the items of a list
        there; None if there is none."""
        for schema in self._parts(self._root if of is None else of):
            properties = schema.get("properties")
            if isinstance(properties, Mapping) and key in properties:
                return properties[key]
            if of is not None and "items" in schema:
                return schema["items"]
        return None

    def is_text(self, key: str) -> bool:
        """Is a value of this parameter a text, whatever it is?"""
        return self._types(key)[0] == {"string"}

    def may_be_text(self, key: str) -> bool:
        """May it be a text?"""
        return "string" in self._types(key)[0]

    def written(self, key: str, text: str) -> str:
        """What a text stands for as the value of a parameter, as JSON."""
        return _written(text, *self._types(key))

    def written_as(self, schema: Any, text: str) -> str:
        """What a text stands for as a value of a schema, as JSON."""
        return _written(text, self._kinds(schema), self._choices(schema))

    def _types(self, key: str) -> tuple[frozenset[str], frozenset[str]]:
        """The types and the texts that the schema of a parameter names."""
        if key not in self._known:
            schema = self.schema(key)
            found = self._kinds(schema), self._choices(schema)
            if schema is None:  # names that a model made up are not kept
                return found
            self._known[key] = found
        return self._known[key]

    def _target(self, schema: Mapping[str, Any]) -> Any:
        """What `$ref` of a schema points to."""
        found: Any = self._root
        for name in str(schema["$ref"]).removeprefix("#").split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    def _parts(self, schema: Any) -> Iterator[Mapping[str, Any]]:
        """A schema and those that it refers to or consists of."""
        left = [schema]
        for _ in range(_MOST_SCHEMAS):
            if not left:
                return
            schema = left.pop(0)
            if not isinstance(schema, Mapping):
                continue
            yield schema
            if "$ref" in schema:
                left.append(self._target(schema))
            for word in ("allOf", *_UNIONS):
                left += _listed(schema.get(word))

    def _choices(self, schema: Any) -> frozenset[str]:
        """The texts among the values that a schema names."""
        found: set[str] = set()
        for part in self._parts(schema):
            values = [*_listed(part.get("enum")), part.get("const")]
            found.update(value for value in values if isinstance(value, str))
        return frozenset(found)

    def _kinds(self, schema: Any) -> frozenset[str]:
        """The types that a schema allows."""
        n_left = _MOST_SCHEMAS

        def kinds(schema: Any) -> frozenset[str]:
            nonlocal n_left
            n_left -= 1
            if not isinstance(schema, Mapping) or n_left < 0:
                return frozenset() if schema is False else ALL
            found = ALL
            if (types := schema.get("type")) is not None:
                found = frozenset(kind for kind in ALL if kind == types or kind in _listed(types))
                if "number" in found:
                    found |= {"integer"}
            if "const" in schema:
                found &= {_kind(schema["const"])}
            if isinstance(schema.get("enum"), list):
                found &= {_kind(value) for value in schema["enum"]}
            if "$ref" in schema:
                found &= kinds(self._target(schema))
            for word in _UNIONS:
                if isinstance(schema.get(word), list):
                    found &= frozenset().union(*map(kinds, schema[word]))
            if isinstance(schema.get("allOf"), list):
                found = found.intersection(*map(kinds, schema["allOf"]))
            return found | {"null"} if schema.get("nullable") is True else found

        return kinds(schema)


def functions_of(names: Iterable[str], tools: Iterable[Tool] = ()) -> dict[str, Parameters]:
    """Functions that may be called, by their names; those without a definition take anything."""
    known = {tool.name: tool for tool in tools}
    return {name: Parameters(known.get(name, Tool(name))) for name in names}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _kind(value: Any) -> str:
    """The type of a value; a number without a fraction is an integer."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) or value.is_integer() else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _written(text: str, kinds: frozenset[str], choices: frozenset[str]) -> str:
    """A text as JSON: the value that it spells if that has one of the types, else itself."""
    as_text, bare = json.dumps(text, ensure_ascii=False), text.strip()
    if kinds == {"string"} or bare in choices and "string" in kinds:
        return as_text if bare not in choices else json.dumps(bare, ensure_ascii=False)
    if kinds == {"string", "null"}:
        return "null" if bare == "null" else as_text
    if not bare and "string" not in kinds:  # nothing, for a list without items
        return next((empty for kind, empty in _EMPTY.items() if kind in kinds), as_text)
    # Where a text is possible, only JSON is something else, and what cannot be meant as a text.
    if "string" in kinds and bare[:1] not in ("[", "{") and bare not in ("True", "False", "None"):
        try:
            value = json.loads(bare)
        except (ValueError, RecursionError):
            return as_text
        if isinstance(value, str) or value in (float("inf"), float("-inf")) or value != value:
            return as_text
    try:
        found = as_json(bare)
        value = json.loads(found)
        kind = _kind(value)
    except (ValueError, OverflowError, RecursionError):
        return as_text
    if kind not in kinds and "string" in kinds:
        return as_text
    whole = kind == "integer" and "number" not in kinds and isinstance(value, float)
    return str(int(value)) if whole else found
