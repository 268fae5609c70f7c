"""Tools of a chat as OpenAI describes them, checked once, before anything else sees them.

They come from clients of a server, so their size and depth have limits.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_CHARS = 256 << 10  # of all tools together as JSON: no more fits into a grammar
MAX_DEPTH = 64  # of objects and lists in the parameters of a tool

# What OpenAI, Anthropic, Google and MCP allow between them.
NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


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

        tool_choice: "none", "auto", "required", {"type": "function", "function": {"name": ...}}, or
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": [...]}},
        whose tools are named in the same way; None means "auto". Raises ValueError, which names the
        field.
        """
        found = check_tools(tools)
        if parallel_tool_calls not in (None, True, False):
            raise ValueError("parallel_tool_calls must be true or false")
        names = frozenset(tool.name for tool in found)
        parallel, mode = parallel_tool_calls is not False, tool_choice
        if isinstance(tool_choice, Mapping):
            allowed, mode = _allowed(tool_choice)
            if others := allowed - names:
                other = min(others)
                raise ValueError(f"tool_choice names {other!r}, which is not among the tools")
            names, parallel = allowed, parallel and tool_choice["type"] == "allowed_tools"
        elif tool_choice not in (None, "none", "auto", "required"):
            raise ValueError(f'tool_choice must be "none", "auto", "required", {_CHOICES}')
        if mode == "required" and not names:
            raise ValueError('tool_choice is "required", but there are no tools')
        if mode == "none" or not found:
            return None
        return cls(found, names, mode == "required", parallel, tool_choice)


_CHOICES = (
    'or {"type": "function", "function": {"name": ...}}, or {"type": "allowed_tools", '
    '"allowed_tools": {"mode": "auto" or "required", "tools": [...]}}'
)


def _allowed(choice: Mapping[str, Any]) -> tuple[frozenset[str], str]:
    """The names that a choice allows, and its mode. Raises ValueError for another shape."""
    named: Any = [choice]
    mode: Any = "required"
    of = choice.get("allowed_tools")
    if choice.get("type") == "allowed_tools" and isinstance(of, Mapping):
        named, mode = of.get("tools"), of.get("mode")
    if isinstance(named, list) and mode in ("auto", "required"):
        names = [_function_name(each) for each in named]
        found = frozenset(name for name in names if isinstance(name, str))
        if all(isinstance(name, str) for name in names):
            return found, mode
    raise ValueError(f"tool_choice must be a word, {_CHOICES}")


def _function_name(choice: object) -> object:
    if not isinstance(choice, Mapping) or choice.get("type") != "function":
        return None
    function = choice.get("function")
    return function.get("name") if isinstance(function, Mapping) else None


def check_tools(tools: object) -> tuple[Tool, ...]:
    """The tools of a list in OpenAI's shape, or checked one by one; None is an empty list.

    Raises ValueError for another shape, a name twice, or more than the limits allow.
    """
    if tools is None:
        return ()
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence):
        raise ValueError("tools must be a list")
    found: dict[str, Tool] = {}
    n_chars = 0
    for i, given in enumerate(tools):
        tool = given if isinstance(given, Tool) else check_tool(f"tools[{i}]", given)
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


def check_tool(where: str, given: object) -> Tool:
    """A tool in OpenAI's shape. where: names it in errors. Raises ValueError for another shape."""
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
        raise ValueError(f"{where}.name must be 1 to 128 of the characters a-z A-Z 0-9 _ - . : /")
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
