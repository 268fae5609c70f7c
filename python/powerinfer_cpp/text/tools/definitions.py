"""Tools of a chat as OpenAI describes them, checked once, before anything else sees them.

They come from clients of a server, so their number, size and depth have limits.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_TOOLS = 128  # as OpenAI
MAX_CHARS = 256 << 10  # of all tools together as JSON: no more fits into a grammar
MAX_DEPTH = 64  # of objects and lists in the parameters of a tool

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Tool:
    """A function that a model may call. parameters: a JSON schema of type object."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})

    def as_dict(self) -> dict[str, Any]:
        """The tool in OpenAI's shape, as chat templates expect it."""
        function = {"name": self.name, "description": self.description}
        return {"type": "function", "function": {**function, "parameters": self.parameters}}


@dataclass(frozen=True)
class ToolRequest:
    """The tools of one request, and which of them are called.

    names: those that an answer may call. forced: it must call one. parallel: it may make several
    calls. choice: as it was given.
    """

    tools: tuple[Tool, ...]
    names: frozenset[str]
    forced: bool = False
    parallel: bool = True
    choice: str | Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls, tools: object, tool_choice: object = None, parallel_tool_calls: object = None
    ) -> "ToolRequest | None":
        """What a request's fields ask for; None if its answer can call nothing.

        tool_choice: "none", "auto", "required", or {"type": "function", "function": {"name": ...}};
        None means "auto". Raises ValueError, which names the field.
        """
        found = check_tools(tools)
        if parallel_tool_calls not in (None, True, False):
            raise ValueError("parallel_tool_calls must be true or false")
        names = frozenset(tool.name for tool in found)
        if isinstance(tool_choice, Mapping):
            name = _named(tool_choice)
            if name not in names:
                raise ValueError(f"tool_choice names {name!r}, which is not among the tools")
            return cls(found, frozenset([name]), True, False, tool_choice)
        if tool_choice not in (None, "none", "auto", "required"):
            raise ValueError(
                'tool_choice must be "none", "auto", "required", or '
                '{"type": "function", "function": {"name": ...}}'
            )
        if tool_choice == "required" and not found:
            raise ValueError('tool_choice is "required", but there are no tools')
        if tool_choice == "none" or not found:
            return None
        parallel = parallel_tool_calls is not False
        return cls(found, names, tool_choice == "required", parallel, tool_choice)


def _named(choice: Mapping[str, Any]) -> str:
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise ValueError('tool_choice must be {"type": "function", "function": {"name": ...}}')
    return name


def check_tools(tools: object) -> tuple[Tool, ...]:
    """The tools of a list in OpenAI's shape; None is an empty list.

    Raises ValueError for another shape, a name twice, or more than the limits allow.
    """
    if tools is None:
        return ()
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence):
        raise ValueError("tools must be a list")
    if len(tools) > MAX_TOOLS:
        raise ValueError(f"tools has {len(tools)} entries; at most {MAX_TOOLS} are possible")
    found: dict[str, Tool] = {}
    n_chars = 0
    for i, given in enumerate(tools):
        tool = _tool(f"tools[{i}]", given)
        if tool.name in found:
            raise ValueError(f"tools[{i}].function.name is {tool.name!r} a second time")
        found[tool.name] = tool
        try:
            n_chars += len(json.dumps(tool.as_dict(), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ValueError(f"tools[{i}] must hold only what JSON can: {error}") from None
        if n_chars > MAX_CHARS:
            raise ValueError(f"tools has more than {MAX_CHARS} characters as JSON")
    return tuple(found.values())


def _tool(where: str, given: object) -> Tool:
    if not isinstance(given, Mapping):
        raise ValueError(f"{where} must be an object")
    if given.get("type") != "function":
        raise ValueError(f'{where}.type must be "function"')
    function = given.get("function")
    where += ".function"
    if not isinstance(function, Mapping):
        raise ValueError(f"{where} must be an object")
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"{where}.name must be 1 to 64 of the characters a-z A-Z 0-9 _ -")
    if description is not None and not isinstance(description, str):
        raise ValueError(f"{where}.description must be a string")
    if function.get("strict") not in (None, True, False):
        raise ValueError(f"{where}.strict must be true or false")
    parameters = function.get("parameters")
    if parameters is None:
        return Tool(name, description or "")
    if not isinstance(parameters, Mapping):
        raise ValueError(f"{where}.parameters must be a JSON schema, which is an object")
    if parameters.get("type", "object") != "object":
        raise ValueError(f'{where}.parameters.type must be "object"')
    return Tool(name, description or "", {"type": "object", **_plain(where, parameters)})


def _plain(where: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the parameters of dicts and lists, which nobody can change later."""

    def copied(value: Any, depth: int) -> Any:
        if isinstance(value, Mapping | list | tuple) and depth == 0:
            raise ValueError(f"{where}.parameters is nested more than {MAX_DEPTH} deep")
        if isinstance(value, Mapping):
            if not all(isinstance(key, str) for key in value):
                raise ValueError(f"{where}.parameters has a key that is not a string")
            return {key: copied(inner, depth - 1) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [copied(inner, depth - 1) for inner in value]
        return value

    return copied(parameters, MAX_DEPTH)
