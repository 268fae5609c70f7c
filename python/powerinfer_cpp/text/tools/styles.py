"""How models write tool calls: three families of formats, and which of them a chat template uses.

- hermes, of Hermes, Qwen and others: `{"name": ..., "arguments": {...}}` on a line between
  `<tool_call>` and `</tool_call>`
- llama-3: `{"name": ..., "parameters": {...}}`, sometimes behind `<|python_tag|>`
- mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`, and since 2025 (mistral-args)
  `[TOOL_CALLS]name[ARGS]{...}`
"""

import json
import re
import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .definitions import Tool, ToolRequest
from .history import one_by_one, with_short_ids

MAX_FORCED = 8  # calls in an answer that must call: a weak model would never stop by itself

_LETTERS = string.ascii_letters + string.digits


def _long_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _short_id() -> str:
    """Mistral's templates refuse ids of another length."""
    return "".join(secrets.choice(_LETTERS) for _ in range(9))


@dataclass(frozen=True)
class Style:
    """A way of writing calls.

    opening: stands before a call or before a list of calls. closing: may follow a call. control:
    texts that may be control tokens of the model; they must show in the text that is parsed.
    bare: a call may begin without `opening`, where the answer begins. key: name of the arguments.
    before, between, after: what a forced answer has around its calls, behind `begin`, with which
    the prompt ends then.
    """

    name: str
    opening: str
    control: tuple[str, ...]
    call: Callable[[Tool], tuple[str, str]]  # texts before and after the arguments
    closing: str = ""
    bare: bool = False
    begin: str = ""
    before: str = ""
    between: str | None = None  # None: a forced answer has one call
    after: str = ""
    # What templates want of earlier messages (see chat.check_messages).
    history: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = list
    new_id: Callable[[], str] = _long_id

    def forced(self, request: ToolRequest) -> dict[str, Any]:
        """The answer that must call a tool, for LlamaGrammar.from_tool_calls."""
        calls = []
        for tool in request.tools:
            if tool.name in request.names:
                begin, end = self.call(tool)
                calls.append({"begin": begin, "schema": tool.parameters, "end": end})
        several = request.parallel and self.between is not None
        return {
            "before": self.before,
            "calls": calls,
            "between": self.between if several else "",
            "most": MAX_FORCED if several else 1,
            "after": self.after,
        }


def _with_key(key: str, begin: str = "", end: str = "") -> Callable[[Tool], tuple[str, str]]:
    def call(tool: Tool) -> tuple[str, str]:
        return f'{begin}{{"name": {json.dumps(tool.name)}, "{key}": ', f"}}{end}"

    return call


HERMES = Style(
    name="hermes",
    opening="<tool_call>",
    closing="</tool_call>",
    control=("<tool_call>", "</tool_call>"),
    call=_with_key("arguments", "\n", "\n</tool_call>"),
    begin="<tool_call>",
    between="\n<tool_call>",
)
LLAMA_3 = Style(
    name="llama-3",
    opening="<|python_tag|>",
    control=("<|python_tag|>",),
    call=_with_key("parameters"),
    bare=True,
    history=one_by_one,
)
MISTRAL = Style(
    name="mistral",
    opening="[TOOL_CALLS]",
    control=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    call=_with_key("arguments"),
    begin="[TOOL_CALLS]",
    before="[",
    between=", ",
    after="]",
    history=with_short_ids,
    new_id=_short_id,
)
MISTRAL_ARGS = Style(
    name="mistral-args",
    opening="[TOOL_CALLS]",
    control=MISTRAL.control,
    call=lambda tool: (f"{tool.name}[ARGS]", ""),
    begin="[TOOL_CALLS]",
    between="[TOOL_CALLS]",
    history=with_short_ids,
    new_id=_short_id,
)
STYLES = {style.name: style for style in (HERMES, LLAMA_3, MISTRAL, MISTRAL_ARGS)}


def style_of(template: str) -> Style | None:
    """The style that a chat template teaches its model; None if it teaches none that is known."""
    if not re.search(r"\btools\b", template):
        return None
    if "<tool_call>" in template:
        # Others have XML inside the marker, which is not read here.
        json_inside = re.search(r'"name\\?"', template) and "<function=" not in template
        return HERMES if json_inside else None
    if "[TOOL_CALLS]" in template:
        return MISTRAL_ARGS if "[ARGS]" in template else MISTRAL
    if "<|python_tag|>" in template:
        return LLAMA_3
    return LLAMA_3 if "<|start_header_id|>" in template and '"parameters"' in template else None
