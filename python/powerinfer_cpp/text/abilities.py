"""What a format of chats can do, as clients ask before they send it tools or thoughts."""

import re
from typing import Any

from .chat import TemplateFormat


def abilities(chat_format: Any) -> dict[str, bool]:
    """llama.cpp's capabilities of a template, of any format. Tools are described to templates that
    know none, calls and their results become texts for them, and messages of any shape are brought
    into theirs: so what llama.cpp asks a template is nearly always true here.
    """
    found = {
        "supports_tools": True,
        "supports_tool_calls": True,
        "supports_system_role": True,
        "supports_string_content": True,
        "supports_typed_content": True,
        "supports_object_arguments": True,
        "supports_parallel_tool_calls": True,
        "supports_preserve_reasoning": False,
        "supports_reasoning_effort": False,
    }
    if isinstance(chat_format, TemplateFormat):
        style, thoughts = chat_format.style, chat_format.thoughts
        found["supports_parallel_tool_calls"] = style is None or style.between is not None
        found["supports_preserve_reasoning"] = thoughts is not None and thoughts.field is not None
        effort = re.search(r"\b(reasoning|thinking)_effort\b", chat_format.source)
        found["supports_reasoning_effort"] = effort is not None
    return found
