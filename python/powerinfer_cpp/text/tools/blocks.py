"""Calls that are read when all of their text is there: Python, and what Gemma 4 writes.

Each reader takes the text between a style's markers and gives its calls, or None for what is none.
"""

import ast
import contextlib
import json
import re
from collections.abc import Callable, Mapping
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


def _json(arguments: Any) -> str | None:
    """Arguments as text; None if they are no object, or nested too deeply."""
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return text if is_object(text) else None


def python(text: str, tools: Tools) -> list[Read] | None:
    """Python's syntax: [name(a="x", n=3), ...], or calls on lines of their own. Line breaks may
    stand in texts as they are: some templates write them so."""
    source = text.strip()
    try:
        return _python(source, tools)
    except SyntaxError:
        source = source.replace("\n", "\\n")
    try:
        return _python(source, tools)
    except SyntaxError:
        return None


def _python(source: str, tools: Tools) -> list[Read] | None:
    """The calls of a source. Raises SyntaxError."""
    found = []
    try:
        for line in ast.parse(source).body:
            if not isinstance(line, ast.Expr):
                return None
            calls = line.value.elts if isinstance(line.value, ast.List) else [line.value]
            for call in calls:
                if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                    return None
                given = {word.arg: _literal(word.value, source) for word in call.keywords}
                arguments = None if call.args or None in given else _json(given)
                if call.func.id not in tools or arguments is None:
                    return None
                found.append(Read(call.func.id, arguments))
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None
    return found or None


class _Json(ast.NodeTransformer):
    """JSON's words and strings, which some models write, as Python's."""

    def __init__(self, source: str):
        self._source = source

    def visit_Name(self, node: ast.Name) -> ast.expr:
        words = {"true": True, "false": False, "null": None}
        return ast.Constant(words[node.id]) if node.id in words else node

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        written = ast.get_source_segment(self._source, node) or ""
        if "\\" in written:
            with contextlib.suppress(ValueError):
                return ast.Constant(json.loads(written))
        return node


def _literal(node: ast.expr, source: str) -> Any:
    return ast.literal_eval(_Json(source).visit(node))


_PIECES = re.compile(
    r'<\|"\|>(.*?)<\|"\|>|("(?:[^"\\]|\\.)*")|([{,]\s*)([^\s{}\[\],:"<]+)(\s*:)', re.DOTALL
)


def unquoted(text: str, tools: Tools) -> list[Read] | None:
    """call:NAME{key:<|"|>text<|"|>,n:3}: JSON with bare keys and another quote."""
    match = re.fullmatch(r"\s*call:([\w-]+)\s*(\{.*\})\s*", text, re.DOTALL)
    if match is None or match[1] not in tools:
        return None
    written = _PIECES.sub(_as_json, match[2])
    return [Read(match[1], written)] if is_object(written) else None


def _as_json(piece: re.Match[str]) -> str:
    text, quoted, before, key, colon = piece.groups()
    if text is not None:
        return json.dumps(text, ensure_ascii=False)
    return quoted or f'{before}"{key}"{colon}'
