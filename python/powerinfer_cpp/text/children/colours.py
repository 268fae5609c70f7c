"""Says what the parts of a code are, by Pygments: the process of server/highlight.py runs it.

Pygments' rules are regular expressions, and a text can make some of them take any time.
"""

import functools
import re
from typing import Any

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.token import Comment, Generic, Keyword, Name, Number, Operator, String
from pygments.util import ClassNotFound

ALONE = True  # the process needs no threads and no others (serve.py)

# From Pygments' kinds to those of the page, which has a colour for each. The nearest one counts:
# what is not here is of the kind of what it is a part of, at last of "".
_KINDS = {
    Comment: "comment",
    Comment.Preproc: "meta",
    Comment.PreprocFile: "string",
    Keyword: "keyword",
    Keyword.Type: "type",
    Keyword.Constant: "number",
    Operator.Word: "keyword",
    Name.Builtin: "type",
    Name.Builtin.Pseudo: "keyword",
    Name.Class: "name",
    Name.Exception: "type",
    Name.Function: "name",
    Name.Decorator: "meta",
    Name.Entity: "number",
    Name.Tag: "keyword",
    Name.Attribute: "name",
    Name.Label: "name",
    Name.Variable: "type",
    Name.Constant: "number",
    String: "string",
    String.Doc: "comment",
    String.Escape: "number",
    String.Interpol: "number",
    String.Affix: "keyword",
    Number: "number",
    Generic.Deleted: "deleted",
    Generic.Inserted: "inserted",
    Generic.Heading: "keyword",
    Generic.Subheading: "meta",
    Generic.Prompt: "comment",
    Generic.Output: "comment",
    Generic.Error: "deleted",
}
_NAME = re.compile(r"[{.]*([\w+#-]{1,40})")  # models also write {.python} and python:main.py


@functools.lru_cache(maxsize=64)
def _lexer(language: str) -> Lexer | None:
    """The one for a name or for the ending of a file's name; None: there is none."""
    match = _NAME.match(language)
    if match is None:
        return None
    try:
        return get_lexer_by_name(match[1], stripnl=False)
    except ClassNotFound:
        pass
    try:
        return get_lexer_for_filename(f"a.{match[1].lower()}", stripnl=False)
    except ClassNotFound:
        return None


@functools.cache
def _kind(of: Any) -> str:
    while of is not None and of not in _KINDS:
        of = of.parent
    return "" if of is None else _KINDS[of]


def _units(text: str) -> int:
    """Its length in UTF-16, as JavaScript counts."""
    return len(text) + sum(c > "\uffff" for c in text)


def _parts(lexer: Lexer, code: str) -> list[tuple[Any, str]] | None:
    """What a lexer makes of a code; None: it fails, or its parts are not those of the code."""
    plain = code.replace("\r", "\n").replace("\ufeff", " ")  # it would replace or drop them
    try:
        found = list(lexer.get_tokens(plain))
    except Exception:  # of the lexer's own code
        return None
    text = "".join(part for _, part in found)
    return found if text in (plain, f"{plain}\n") else None  # lexers want a newline at the end


def answer(language: str, code: str) -> list[tuple[str, int]] | None:
    """The kinds of the parts of `code` from its beginning on, each with its length in UTF-16. None
    where the language is not known, or has no kinds."""
    lexer = _lexer(language)
    parts = None if lexer is None else _parts(lexer, code)
    if parts is None:
        return None
    spans: list[tuple[str, int]] = []
    left = _units(code)
    for of, text in parts:
        kind, n = _kind(of), min(_units(text), left)
        left -= n
        if spans and spans[-1][0] == kind:
            spans[-1] = kind, spans[-1][1] + n
        elif n:
            spans.append((kind, n))
    return spans if any(kind for kind, _ in spans) else None
