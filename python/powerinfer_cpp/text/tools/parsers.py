"""What reads an answer: it depends on how a template writes calls, and thoughts."""

from collections.abc import Callable

from .definitions import ToolRequest
from .events import Parser
from .functionary import FunctionaryParser
from .glimmer import GlimmerParser
from .harmony import HarmonyParser
from .parser import ToolParser
from .styles import ATEM, FUNCTIONARY_3, HARMONY, Style
from .thought_parser import ThoughtParser
from .thoughts import Thoughts


def parser_of(
    style: Style,
    request: ToolRequest | None,
    tags: Thoughts | None = None,
    *,
    opened: bool = False,
    begun: bool = False,
    waits: bool = False,
    raw: bool = False,
    new_id: Callable[[], str] | None = None,
) -> Parser | None:
    """What reads an answer; None: all of it is content.

    style: of its calls, which `request` allows. tags: of its thoughts. opened, begun, raw: as in
    ThoughtParser. waits: a grammar waits for the end of thoughts, which then have no calls.
    """
    names, tools = (request.names, request.tools) if request is not None else (frozenset(), ())
    if style is HARMONY:
        return HarmonyParser(names, new_id, raw, tools)
    if style is FUNCTIONARY_3:
        return FunctionaryParser(names, new_id, tools)
    calls = ToolParser(style, names, new_id, tools) if request is not None else None
    if style is ATEM:
        return GlimmerParser(calls, raw)
    tags = tags or style.thoughts
    if tags is None:
        return calls
    return ThoughtParser(tags, opened, calls, quotes=waits, raw=raw, begun=begun)
