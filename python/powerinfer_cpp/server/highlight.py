"""POST /highlight: what the parts of a code are, for the colours of the page."""

from typing import Any

import msgspec

from ..text.worker import Refused, WorkerMissing, Workers
from .errors import Refusal

MAX_CODE = 64 << 10  # characters
MAX_LANGUAGE = 64
# Of processor time. Sources of MAX_CODE take 0.1 to 0.5 s; 4,000 newlines in C, or "(" in Angular's
# templates, take as long, with the square of their number. Longer, and the code stays plain.
SECONDS, WALL_SECONDS = 1.0, 5.0
NICENESS = 10  # the engine's threads go first

_workers = Workers("colours", ("pygments",), SECONDS, WALL_SECONDS, NICENESS)


class HighlightBody(msgspec.Struct, kw_only=True):
    """POST /highlight. language: a name as behind the marks of a code in Markdown."""

    language: str
    code: str


def highlighted(body: HighlightBody) -> dict[str, Any]:
    """`spans`: [kind, length in UTF-16] of the parts of the code from its beginning on; kind "" is
    nothing special. None where there are no colours: the language is not known, the text takes its
    lexer too long, or the package Pygments is not there. Raises Refusal."""
    for name, most in (("language", MAX_LANGUAGE), ("code", MAX_CODE)):
        if len(getattr(body, name)) > most:
            raise Refusal(400, f"{name} has more than {most:,} characters", name)
    try:
        return {"spans": _workers.ask(language=body.language, code=body.code)}
    except (Refused, WorkerMissing):
        return {"spans": None}
