"""Tools that models call and thoughts that they have: definitions, formats, parsers of answers.

Nothing here knows of models or servers; both build on it.
"""

from .definitions import Tool, ToolRequest, check_tools
from .events import (
    Call,
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Event,
    Parser,
    Part,
    Thought,
    deltas,
    message,
    parts,
)
from .functionary import FunctionaryParser
from .glimmer import GlimmerParser
from .harmony import HarmonyParser
from .parser import ToolParser
from .parsers import parser_of
from .probe import thoughts_of
from .styles import HARMONY, HERMES, STYLES, Style
from .taught import style_of
from .thought_parser import ThoughtParser
from .thoughts import Thoughts

__all__ = [
    "HARMONY",
    "HERMES",
    "STYLES",
    "Call",
    "CallArguments",
    "CallBegin",
    "CallEnd",
    "Content",
    "Event",
    "FunctionaryParser",
    "GlimmerParser",
    "HarmonyParser",
    "Parser",
    "Part",
    "Style",
    "Thought",
    "ThoughtParser",
    "Thoughts",
    "Tool",
    "ToolParser",
    "ToolRequest",
    "check_tools",
    "deltas",
    "message",
    "parser_of",
    "parts",
    "style_of",
    "thoughts_of",
]
