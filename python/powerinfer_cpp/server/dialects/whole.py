"""Whole numbers with a point: for JSON, 4.0 is an integer, and some languages write 4 like this."""

from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

_MOST = 2.0**63  # beyond, no field takes an integer
# How msgspec says that a number with a point stands where an integer is asked for.
_SAID = "got `float`"

Kind = TypeVar("Kind")


def decoded(data: bytes, kind: type[Kind]) -> Kind:
    """JSON as this type. Raises what msgspec.json.decode raises."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        if _SAID not in str(error):
            raise
    return msgspec.convert(_whole(msgspec.json.decode(data), _known(kind)), kind)


def converted(value: Any, kind: type[Kind]) -> Kind:
    """A value that was JSON as this type. Raises what msgspec.convert raises."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        if _SAID not in str(error):
            raise
    return msgspec.convert(_whole(value, _known(kind)), kind)


@cache
def _known(kind: type) -> inspect.Type:
    return inspect.type_info(kind)


def _whole(value: Any, kind: inspect.Type) -> Any:
    """The value, with an integer for each whole number with a point where the type has integers and
    no such numbers. What the type leaves open stays as it is."""
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    if isinstance(value, float):
        asked = {type(each) for each in kinds}
        wanted = inspect.IntType in asked and not asked & {inspect.FloatType, inspect.AnyType}
        return int(value) if wanted and value.is_integer() and abs(value) < _MOST else value
    for each in kinds:
        if isinstance(value, list) and isinstance(each, inspect.ListType):
            return [_whole(inner, each.item_type) for inner in value]
        if isinstance(value, dict) and isinstance(each, inspect.DictType):
            return {name: _whole(inner, each.value_type) for name, inner in value.items()}
        if isinstance(value, dict) and isinstance(each, inspect.StructType):
            fields = {field.encode_name: field.type for field in each.fields}
            return {
                name: _whole(inner, fields[name]) if name in fields else inner
                for name, inner in value.items()
            }
    return value
