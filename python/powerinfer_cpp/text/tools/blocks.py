"""Calls that are read when all of their text is there: everything but JSON that streams.

Each reader takes the text between a style's markers and gives its calls, or None for what is none.
"""

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .definitions import Tool
from .reader import is_object


@dataclass(frozen=True)
class Read:
    """A call that was read. arguments: the text of a JSON object. id: the model's own, if its
    template wants it back."""

    name: str
    arguments: str
    id: str | None = None


Tools = Mapping[str, Tool]  # by name
Reader = Callable[[str, Tools], list[Read] | None]

# <function=NAME>, <function name="NAME">, <invoke name="NAME">, with any prefix before the word.
_CALL = re.compile(
    r'\s*<([^\s<>="/]*?)(function|invoke)(?:=| name=)"?([^">]+?)"?\s*>(.*?)</\1\2>\s*', re.DOTALL
)
_ARGUMENT = re.compile(
    r'\s*<([^\s<>="/]*?)(parameter|param)(?:=| name=)"?([^">\s]+)"?(?: string="(true|false)")?\s*>'
    r"(.*?)</\1\2>\s*",
    re.DOTALL,
)
_PAIR = re.compile(
    r"\s*<arg_key([^<>\s]*)>([^<>]*)</arg_key\1>\s*<arg_value\1>(.*?)</arg_value\1>\s*", re.DOTALL
)
_PAIRED_NAME = re.compile(r"\s*([^\s<{]+)\s*(?:<tool_sep[^<>\s]*>)?\s*")
_PAIRED_CALL = re.compile(r"\s*<tool_call([^<>\s]*)>(.*?)</tool_call\1>\s*", re.DOTALL)
_CDATA = re.compile(r"\s*<!\[CDATA\[(.*)\]\]>\s*", re.DOTALL)
_WORDS = {"True": True, "False": False, "None": None}


def tagged(text: str, tools: Tools) -> list[Read] | None:
    """Functions and their parameters as XML; the text of a parameter is a string if its schema says
    so, else JSON."""
    found = []
    at = 0
    while at < len(text):
        match = _CALL.match(text, at)
        if match is None or match[3] not in tools:
            return None
        body = match[4].strip()
        if body.startswith("{") and is_object(body):  # some write JSON here
            arguments: str | None = body
        else:
            arguments = _arguments(match[4], tools[match[3]])
        if arguments is None:
            return None
        found.append(Read(match[3], arguments))
        at = match.end()
    return found or None


def _arguments(text: str, tool: Tool) -> str | None:
    found: dict[str, Any] = {}
    at = len(text) - len(text.lstrip())
    while at < len(text):
        match = _ARGUMENT.match(text, at)
        if match is None:
            return None
        is_text = None if match[4] is None else match[4] == "true"
        data = _CDATA.fullmatch(match[5])
        value, is_text = (data[1], True) if data else (_unpadded(match[5]), is_text)
        found[match[3]] = _value(tool, match[3], value, is_text)
        at = match.end()
    return _json(found)


def paired(text: str, tools: Tools) -> list[Read] | None:
    """A name, and pairs of keys and values in tags; or several, each in tags of its own."""
    if not text.lstrip().startswith("<tool_call"):
        return _pairs(text, tools)
    found, at = [], 0
    while at < len(text):
        match = _PAIRED_CALL.match(text, at)
        calls = _pairs(match[2], tools) if match else None
        if calls is None:
            return None
        found += calls
        at = match.end()
    return found


def _pairs(text: str, tools: Tools) -> list[Read] | None:
    name = _PAIRED_NAME.match(text)
    if name is None or name[1] not in tools:
        return None
    found: dict[str, Any] = {}
    at = name.end()
    while at < len(text):
        match = _PAIR.match(text, at)
        if match is None:
            return None
        found[match[2].strip()] = _value(tools[name[1]], match[2].strip(), match[3], None)
        at = match.end()
    arguments = _json(found)
    return None if arguments is None else [Read(name[1], arguments)]


def _unpadded(text: str) -> str:
    """Without the line breaks next to the tags."""
    return text.removeprefix("\n").removesuffix("\n")


def _value(tool: Tool, key: str, text: str, is_text: bool | None) -> Any:
    """The value that a text stands for. is_text: what the model says of it, if it does."""
    properties = tool.parameters.get("properties")
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    kinds = schema.get("type") if isinstance(schema, Mapping) else None
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if is_text or (is_text is None and kinds == ["string"]):
        return text
    stripped = text.strip()
    if stripped in _WORDS:
        return _WORDS[stripped]
    try:
        return json.loads(stripped)
    except (ValueError, RecursionError):
        return _python_value(stripped) if stripped[:1] in ("{", "[") else text


def _python_value(text: str) -> Any:
    """Templates that know no JSON write Python, and models do as they do."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return text


def _json(arguments: Any) -> str | None:
    """Arguments as text; None if they are no object, or nested too deeply."""
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return text if is_object(text) else None


def separated(call: str) -> Reader:
    """Calls that a pattern finds, with groups `name` and `arguments`, a JSON object, and maybe
    `id`."""
    pattern = re.compile(rf"\s*{call}\s*", re.DOTALL)

    def read(text: str, tools: Tools) -> list[Read] | None:
        found, at = [], 0
        while at < len(text):
            match = pattern.match(text, at)
            if match is None or match["name"] not in tools or not is_object(match["arguments"]):
                return None
            made_id = match["id"] if "id" in pattern.groupindex else None
            found.append(Read(match["name"], match["arguments"].strip(), made_id))
            at = match.end()
        return found or None

    return read


def listed(text: str, tools: Tools) -> list[Read] | None:
    """JSON: a list of calls, or one of them; a call is an object with a name and arguments, or one
    whose only key is the name."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return None
    found = []
    for call in given if isinstance(given, list) else [given]:
        if not isinstance(call, dict):
            return None
        name = call.get("name", call.get("tool_name"))
        arguments = call.get("arguments", call.get("parameters", {}))
        if name is None and len(call) == 1:
            ((name, arguments),) = call.items()
        written = _json(arguments)
        if not isinstance(name, str) or name not in tools or written is None:
            return None
        found.append(Read(name, written))
    return found or None


def python(text: str, tools: Tools) -> list[Read] | None:
    """Python's syntax: [name(a="x", n=3), ...]."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        calls: Sequence[ast.expr] = tree.elts if isinstance(tree, ast.List) else [tree]
        found = []
        for call in calls:
            if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Name):
                return None
            given = {word.arg: _literal(word.value) for word in call.keywords}
            arguments = None if None in given else _json(given)
            if call.func.id not in tools or arguments is None:
                return None
            found.append(Read(call.func.id, arguments))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return found or None


class _JsonWords(ast.NodeTransformer):
    """JSON's words, which some models write, as Python's."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        words = {"true": True, "false": False, "null": None}
        return ast.Constant(words[node.id]) if node.id in words else node


def _literal(node: ast.expr) -> Any:
    return ast.literal_eval(_JsonWords().visit(node))


_QUOTE = '<|"|>'
_BARE_KEY = re.compile(r"([{,]\s*)([^\s{}\[\],:\"]+)\s*:")


def unquoted(text: str, tools: Tools) -> list[Read] | None:
    """call:NAME{key:<|"|>text<|"|>,n:3}: JSON with bare keys and another quote."""
    match = re.fullmatch(r"\s*call:([\w-]+)\s*(\{.*\})\s*", text, re.DOTALL)
    if match is None or match[1] not in tools:
        return None
    pieces = match[2].split(_QUOTE)
    written = "".join(
        json.dumps(piece, ensure_ascii=False) if i % 2 else _BARE_KEY.sub(r'\1"\2":', piece)
        for i, piece in enumerate(pieces)
    )
    return [Read(match[1], written)] if is_object(written) else None
