"""Tools that a request of any dialect offers, and which of them an answer may call.

Functions are offered as they are. A custom tool of OpenAI's, whose input is a free text, is a
function with one text, and those of a namespace are functions with its name before theirs. Tools
that a hosted service runs are left out: clients offer them to every server.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...core.errors import about_request
from ...text.tools import CallArguments, CallBegin, CallEnd, Event, Parser, Tool
from ...text.tools.arguments import read_arguments
from ...text.tools.definitions import check_tool
from ..errors import Refusal, left_out

_INPUT = "input"  # the only parameter of a custom tool


@dataclass
class Offered:
    """Functions that are offered.

    custom: names of those that are custom tools. spaces: the namespace and the name within it, by
    the name under which a function is offered.
    """

    tools: list[Tool] = field(default_factory=list)
    custom: set[str] = field(default_factory=set)
    spaces: dict[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, tools: Sequence[object] | None, added: Iterable[object] = (), anthropic: bool = False
    ) -> "Offered":
        """What a request offers: its list, and tools that its history adds, of which the last with
        a name counts. anthropic: they have the shape of Anthropic's. Raises Refusal, and
        RequestError for a function that cannot be offered."""
        found = cls()
        with about_request():
            for i, given in enumerate(tools or ()):
                found._add(f"tools[{i}]", given, anthropic)
            n_own = len(found.tools)
            for given in added:
                found._add("an added tool", given, anthropic)
        if len(found.tools) > n_own:
            found.tools = list({tool.name: tool for tool in found.tools}.values())
        return found

    def parser(self, parser: Parser | None) -> Parser | None:
        """A parser whose calls of custom tools have their input in the place of arguments."""
        return FreeText(parser, self.custom) if parser is not None and self.custom else parser

    def _add(self, where: str, given: object, anthropic: bool, space: str | None = None) -> None:
        if not isinstance(given, Mapping):
            raise Refusal(400, f"{where} must be an object", where)
        kind = given.get("type")
        if kind == "namespace" and not anthropic and isinstance(given.get("tools"), list):
            for i, tool in enumerate(given["tools"]):
                self._add(f"{where}.tools[{i}]", tool, anthropic, str(given.get("name")))
            return
        function = _function(given, anthropic)
        if function is None:
            left_out(f"tools of type {kind!r}")
            return
        if isinstance(function, Mapping) and space is not None:
            function = {**function, "name": spaced(space, function.get("name"))}
        tool = check_tool(where, {"type": "function", "function": function})
        self.tools.append(tool)
        if kind == "custom" and not anthropic:
            self.custom.add(tool.name)
        if space is not None:
            self.spaces[tool.name] = space, tool.name[len(spaced(space, "") or "") :]


def _function(given: Mapping[str, Any], anthropic: bool) -> Any:
    """The function of a tool, in the shape of OpenAI's chats; None: it is no tool of the client's.
    What is wrong with it is found later."""
    kind = given.get("type")
    if anthropic:
        own = kind in (None, "custom")
        return {**_named(given), "parameters": given.get("input_schema")} if own else None
    if kind == "custom":
        of = given.get("custom", given)
        return _free(of) if isinstance(of, Mapping) else of
    if kind == "function" and "function" not in given:
        return {**_named(given), "parameters": given.get("parameters")}
    return given.get("function", "") if kind in (None, "function") else None


def _named(of: Mapping[str, Any]) -> dict[str, Any]:
    return {name: of.get(name) for name in ("name", "description", "strict")}


def _free(of: Mapping[str, Any]) -> dict[str, Any]:
    """A custom tool as a function: what it says of its input stands beside its description."""
    form = of.get("format")
    form = form if isinstance(form, Mapping) else {}
    grammar = form.get("grammar", form)  # OpenAI's chats have it one deeper
    definition = grammar.get("definition") if isinstance(grammar, Mapping) else None
    about = "The whole input, as it is."
    if isinstance(definition, str):
        about += f" It follows this grammar ({grammar.get('syntax')}):\n{definition}"
    one = {_INPUT: {"type": "string", "description": about}}
    parameters = {"type": "object", "properties": one, "required": [_INPUT]}
    return {**_named(of), "parameters": parameters}


def spaced(space: object, name: object) -> Any:
    """The name under which a function of a namespace is offered."""
    if not isinstance(space, str) or not isinstance(name, str) or not space:
        return name
    return f"{space.rstrip('_')}__{name}"


def choice_of(given: object) -> Any:
    """tool_choice of OpenAI's dialects in the shape of its chats. What names no function is left as
    it is, and is refused later."""
    if not isinstance(given, Mapping):
        return given
    kind = given.get("type")
    if kind == "allowed_tools":
        of = given.get(kind, given)
        tools = of.get("tools") if isinstance(of, Mapping) else None
        if not isinstance(tools, list):
            return given
        functions = [choice_of(tool) for tool in tools]
        allowed = [
            each
            for each in functions
            if not isinstance(each, Mapping) or each.get("type") == "function"
        ]
        return {"type": kind, kind: {"mode": of.get("mode"), "tools": allowed}}
    of = given.get(str(kind), given)
    if kind not in ("function", "custom") or not isinstance(of, Mapping):
        return given
    name = spaced(given.get("namespace"), of.get("name"))
    return {"type": "function", "function": {"name": name}}


class FreeText:
    """A parser whose calls of custom tools have their input, a text, in the place of arguments.

    It is there as soon as the call ends. custom: their names.
    """

    def __init__(self, parser: Parser, custom: Iterable[str]):
        self._parser, self._custom = parser, frozenset(custom)
        self._held: list[str] | None = None  # arguments of a custom tool's call

    def push(self, text: str) -> list[Event]:
        """What is certain after this text."""
        return self._changed(self._parser.push(text))

    def finish(self) -> list[Event]:
        """The rest, at the end of the answer."""
        return self._changed(self._parser.finish())

    def reason(self, reason: str) -> str:
        """As of the parser."""
        return self._parser.reason(reason)

    def _changed(self, events: Iterable[Event]) -> list[Event]:
        found: list[Event] = []
        for event in events:
            if isinstance(event, CallBegin) and event.name in self._custom:
                self._held = []
                event = replace(event, custom=True)
            elif isinstance(event, CallArguments) and self._held is not None:
                self._held.append(event.text)
                continue
            elif isinstance(event, CallEnd) and self._held is not None:
                given = _input_of("".join(self._held))
                self._held = None
                found += [CallArguments(event.index, given, custom=True)] if given else []
            found.append(event)
        return found


def _input_of(arguments: str) -> str:
    """The input in the arguments of a custom tool's call, also where a model has named it anew."""
    given = read_arguments(arguments)
    texts = [value for value in given.values() if isinstance(value, str)]
    if isinstance(given.get(_INPUT), str):
        texts = [given[_INPUT]]
    return texts[0] if len(texts) == 1 else arguments
