"""Tools that models call: definitions, formats, and a parser of answers.

Nothing here knows of models or servers; both build on it.
"""

from .definitions import Tool, ToolRequest, check_tools
from .parser import (
    Call,
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Event,
    ToolParser,
    deltas,
    message,
    parts,
)
from .styles import HERMES, STYLES, Style, style_of

__all__ = [
    "HERMES",
    "STYLES",
    "Call",
    "CallArguments",
    "CallBegin",
    "CallEnd",
    "Content",
    "Event",
    "Style",
    "Tool",
    "ToolParser",
    "ToolRequest",
    "check_tools",
    "deltas",
    "message",
    "parts",
    "style_of",
]
