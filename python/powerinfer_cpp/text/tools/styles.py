"""How models write tool calls: families of formats, and which of them a chat template uses.

- hermes, of Hermes, Qwen and others: `{"name": ..., "arguments": {...}}` on a line between
  `<tool_call>` and `</tool_call>`
- llama-3: `{"name": ..., "parameters": {...}}`, sometimes behind `<|python_tag|>`
- mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`, and since 2025 (mistral-args)
  `[TOOL_CALLS]name[ARGS]{...}`
- those that are read as a whole (blocks.py): XML of Qwen3-Coder, MiniMax, Seed and DeepSeek V3.2,
  pairs of GLM, JSON behind a name of DeepSeek and Kimi, lists of Nemotron, Cohere and Apertus,
  Python of LFM2, Gemma 4's own
- harmony, of gpt-oss, whose whole answer has a parser of its own (harmony.py)
"""

import json
import re
import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from . import blocks
from .definitions import Tool, ToolRequest
from .history import in_channels, one_by_one, with_short_ids, without_empty_texts

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
    bare: a call may begin without `opening`, where the answer begins. read: reads the calls between
    `opening` and `closing`, when all of their text is there; None: a call streams. unclosed: the
    answer may end without `closing`. key: name of the arguments.
    before, between, after: what a forced answer has around its calls, behind `begin`, with which
    the prompt ends then. argument: how a forced call writes a parameter, by its name and whether it
    is a raw text: texts before and after the value; None: the arguments are JSON.
    """

    name: str
    opening: str
    control: tuple[str, ...]
    # Texts before and after the arguments; None: a forced call is written in the style of Hermes.
    call: Callable[[Tool], tuple[str, str]] | None = None
    closing: str = ""
    read: blocks.Reader | None = None
    unclosed: bool = False
    argument: Callable[[str, bool], tuple[str, str]] | None = None
    bare: bool = False
    begin: str = ""
    before: str = ""
    between: str | None = None  # None: a forced answer has one call
    after: str = ""
    # What templates want of earlier messages (see chat.check_messages).
    history: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = list
    new_id: Callable[[], str] = _long_id

    def can_force(self, request: ToolRequest) -> bool:
        """Can a grammar hold calls to this style? Raw texts have no rules for their characters."""
        if self.call is None or self.argument is None:
            return self.call is not None
        return all(_is_plain(tool.parameters) for tool in request.tools)

    def forced(self, request: ToolRequest) -> dict[str, Any]:
        """The answer that must call a tool, for LlamaGrammar.from_tool_calls."""
        assert self.call is not None
        calls = []
        for tool in request.tools:
            if tool.name in request.names:
                begin, end = self.call(tool)
                call = {"begin": begin, "schema": tool.parameters, "end": end}
                if self.argument is not None:
                    properties = tool.parameters.get("properties") or {}
                    call["arguments"] = {
                        name: [self.argument(name, raw) for raw in (False, True)]
                        for name in properties
                    }
                calls.append(call)
        several = request.parallel and self.between is not None
        return {
            "before": self.before,
            "calls": calls,
            "between": self.between if several else "",
            "most": MAX_FORCED if several else 1,
            "after": self.after,
        }


def _is_plain(schema: Mapping[str, Any]) -> bool:
    """Is a schema of parameters a list of properties, with strings of any characters or a choice of
    them?"""
    if not set(schema) <= _KEYS_OF_OBJECTS:
        return False
    for value in (schema.get("properties") or {}).values():
        if not isinstance(value, Mapping):
            return False
        if value.get("type") == "string" and not set(value) <= _KEYS_OF_STRINGS:
            return False
        choices = value.get("enum", [value.get("const", "")])
        if value.get("type") == "string" and not all(
            isinstance(c, str) and "<" not in c for c in choices
        ):
            return False
    return True


_NOTES = {"type", "title", "description", "default", "examples", "$schema", "$comment"}
_KEYS_OF_OBJECTS = _NOTES | {
    "properties",
    "required",
    "additionalProperties",
    "$defs",
    "definitions",
}
_KEYS_OF_STRINGS = _NOTES | {"enum", "const"}


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


def _around(before: str, between: str, after: str) -> Callable[[str, bool], tuple[str, str]]:
    """Parameters whose names stand before `between`, and values before `after`."""
    return lambda name, _raw: (f"{before}{name}{between}", after)


QWEN_CODER = Style(
    name="qwen-coder",
    opening="<tool_call>",
    closing="</tool_call>",
    control=HERMES.control,
    read=blocks.tagged,
    unclosed=True,
    call=lambda tool: (f"\n<function={tool.name}>\n", "</function>\n</tool_call>"),
    argument=_around("<parameter=", ">\n", "\n</parameter>\n"),
    begin="<tool_call>",
    between="\n<tool_call>",
)
SEED = Style(
    name="seed",
    opening="<seed:tool_call>",
    closing="</seed:tool_call>",
    control=("<seed:tool_call>", "</seed:tool_call>"),
    read=blocks.tagged,
    unclosed=True,
    call=lambda tool: (f"\n<function={tool.name}>\n", "</function>\n</seed:tool_call>"),
    argument=_around("<parameter=", ">", "</parameter>\n"),
    begin="<seed:tool_call>",
    between="\n<seed:tool_call>",
)
GLM = Style(
    name="glm",
    opening="<tool_call>",
    closing="</tool_call>",
    control=(*HERMES.control, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    read=blocks.paired,
    call=lambda tool: (f"{tool.name}\n", "</tool_call>"),
    argument=_around("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
    begin="<tool_call>",
    between="\n<tool_call>",
)
MINIMAX = Style(
    name="minimax",
    opening="<minimax:tool_call>",
    closing="</minimax:tool_call>",
    control=("<minimax:tool_call>", "</minimax:tool_call>"),
    read=blocks.tagged,
    unclosed=True,
    call=lambda tool: (f'<invoke name="{tool.name}">\n', "</invoke>\n"),
    argument=lambda name, _raw: (f'<parameter name="{name}">', "</parameter>\n"),
    begin="<minimax:tool_call>",
    before="\n",
    between="",
    after="</minimax:tool_call>",
)
_DSML = "\uff5cDSML\uff5c"


def _dsml(section: str) -> Style:
    return Style(
        name=f"dsml-{section}",
        opening=f"<{_DSML}{section}>",
        closing=f"</{_DSML}{section}>",
        control=(_DSML,),
        read=blocks.tagged,
        unclosed=True,
        call=lambda tool: (f'<{_DSML}invoke name="{tool.name}">\n', f"</{_DSML}invoke>\n"),
        argument=lambda name, raw: (
            f'<{_DSML}parameter name="{name}" string="{str(raw).lower()}">',
            f"</{_DSML}parameter>\n",
        ),
        begin=f"<{_DSML}{section}>",
        before="\n",
        between="",
        after=f"</{_DSML}{section}>",
    )


DSML = _dsml("function_calls")  # of DeepSeek V3.2
DSML_4 = _dsml("tool_calls")  # of V4


def _deepseek(mark: str) -> str:
    return f"<\uff5ctool\u2581{mark}\uff5c>"


_CALLS, _CALLS_END = _deepseek("calls\u2581begin"), _deepseek("calls\u2581end")
_CALL, _CALL_END = _deepseek("call\u2581begin"), _deepseek("call\u2581end")
_SEP = _deepseek("sep")
DEEPSEEK = Style(
    name="deepseek",
    opening=_CALLS,
    closing=_CALLS_END,
    control=(_CALLS, _CALLS_END, _CALL, _CALL_END, _SEP),
    read=blocks.separated(rf"{_CALL}(?P<name>[^\s<]+){_SEP}(?P<arguments>\{{.*?\}})\s*{_CALL_END}"),
    unclosed=True,
    call=lambda tool: (f"{_CALL}{tool.name}{_SEP}", _CALL_END),
    begin=_CALLS,
    between="",
    after=_CALLS_END,
)
DEEPSEEK_R1 = Style(
    name="deepseek-r1",
    opening=_CALLS,
    closing=_CALLS_END,
    control=DEEPSEEK.control,
    read=blocks.separated(
        rf"{_CALL}function{_SEP}(?P<name>[^\s<]+)\s*```json\s*(?P<arguments>\{{.*?\}})\s*```\s*"
        f"{_CALL_END}"
    ),
    unclosed=True,
    call=lambda tool: (
        f"{_CALL}function{_SEP}{tool.name}\n```json\n",
        f"\n```{_CALL_END}",
    ),
    begin=_CALLS,
    between="\n",
    after=_CALLS_END,
    history=without_empty_texts,
)
KIMI = Style(
    name="kimi",
    opening="<|tool_calls_section_begin|>",
    closing="<|tool_calls_section_end|>",
    control=(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    ),
    read=blocks.separated(
        r"<\|tool_call_begin\|>\s*(?P<id>(?:functions\.)?(?P<name>[\w-]+):\d+)\s*"
        r"<\|tool_call_argument_begin\|>\s*(?P<arguments>\{.*?\})\s*<\|tool_call_end\|>"
    ),
    unclosed=True,
    call=lambda tool: (
        f"<|tool_call_begin|>functions.{tool.name}:0<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    ),
    begin="<|tool_calls_section_begin|>",
    after="<|tool_calls_section_end|>",
)
LFM2 = Style(
    name="lfm2",
    opening="<|tool_call_start|>",
    closing="<|tool_call_end|>",
    control=("<|tool_call_start|>", "<|tool_call_end|>"),
    read=blocks.python,
)
GEMMA_4 = Style(
    name="gemma-4",
    opening="<|tool_call>",
    closing="<tool_call|>",
    control=("<|tool_call>", "<tool_call|>", '<|"|>'),
    read=blocks.unquoted,
)


def _list(name: str, opening: str, closing: str, unclosed: bool = True) -> Style:
    """A JSON list between markers."""
    return Style(
        name=name,
        opening=opening,
        closing=closing,
        control=(opening, closing),
        read=blocks.listed,
        unclosed=unclosed,
        call=_with_key("arguments"),
        begin=opening,
        before="[",
        between=", ",
        after=f"]{closing}",
    )


NEMOTRON = _list("nemotron", "<TOOLCALL>", "</TOOLCALL>")
COHERE = replace(
    _list("cohere", "<|START_ACTION|>", "<|END_ACTION|>"),
    call=lambda tool: (
        f'{{"tool_call_id": "0", "tool_name": {json.dumps(tool.name)}, "parameters": ',
        "}",
    ),
    between=None,
)
APERTUS = replace(
    _list("apertus", "<|tools_prefix|>", "<|tools_suffix|>"),
    call=lambda tool: (f"{{{json.dumps(tool.name)}: ", "}"),
)
APRIEL = _list("apriel", "<tool_calls>", "</tool_calls>")
HUNYUAN = Style(
    name="hunyuan",
    opening="<tool_calls:opensource>",
    closing="</tool_calls:opensource>",
    control=(
        *("<tool_calls:opensource>", "</tool_calls:opensource>"),
        *("<tool_call:opensource>", "</tool_call:opensource>", "<tool_sep:opensource>"),
        *("<arg_key:opensource>", "</arg_key:opensource>"),
        *("<arg_value:opensource>", "</arg_value:opensource>"),
    ),
    read=blocks.paired,
    call=lambda tool: (
        f"<tool_call:opensource>{tool.name}<tool_sep:opensource>\n",
        "</tool_call:opensource>\n",
    ),
    argument=_around(
        "<arg_key:opensource>",
        "</arg_key:opensource>\n<arg_value:opensource>",
        "</arg_value:opensource>\n",
    ),
    begin="<tool_calls:opensource>",
    before="\n",
    between="",
    after="</tool_calls:opensource>",
)
SOLAR = Style(
    name="solar",
    opening="<|tool_calls|>",
    control=(
        "<|tool_calls|>",
        "<|tool_call:begin|>",
        "<|tool_call:name|>",
        "<|tool_call:args|>",
        "<|tool_call:end|>",
    ),
    closing="<|calls|>",
    read=blocks.separated(
        r"<\|tool_call:begin\|>(?P<id>[^<]*)<\|tool_call:name\|>(?P<name>[\w-]+)"
        r"<\|tool_call:args\|>\s*(?P<arguments>\{.*?\})\s*<\|tool_call:end\|>"
    ),
    unclosed=True,
    call=lambda tool: (
        f"<|tool_call:begin|>{_long_id()}<|tool_call:name|>{tool.name}<|tool_call:args|>",
        "<|tool_call:end|>",
    ),
    begin="<|tool_calls|>",
    between="",
)


def _alone(name: str, opening: str, between: tuple[str, str]) -> Style:
    """XML without anything around it."""
    closing = "</function>"
    return Style(
        name=name,
        opening=opening,
        closing=closing,
        control=(),
        read=lambda text, tools: blocks.tagged(opening + text + closing, tools),
        call=lambda tool: (f"{tool.name}{between[0]}", closing),
        begin=opening,
        between=opening,
    )


FUNCTIONARY = _alone("functionary", "<function=", (">", ""))
MINICPM = replace(
    _alone("minicpm", '<function name="', ('">', "")),
    argument=lambda name, _raw: (f'<param name="{name}">', "</param>"),
)
ATEM = Style(
    name="atem",
    opening="<atem:function_calls>",
    closing="</atem:function_calls>",
    control=("<atem:function_calls>", "</atem:function_calls>"),
    read=blocks.tagged,
    unclosed=True,
    call=lambda tool: (f'<atem:invoke name="{tool.name}">\n', "</atem:invoke>\n"),
    argument=lambda name, _raw: (f'<atem:parameter name="{name}">', "</atem:parameter>\n"),
    begin="<atem:function_calls>",
    before="\n",
    between="",
    after="</atem:function_calls>",
)
HARMONY = Style(
    name="harmony",
    opening="<|channel|>commentary to=functions.",
    control=("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"),
    call=lambda tool: (f"{tool.name} <|constrain|>json<|message|>", ""),
    begin="<|channel|>commentary to=functions.",
    history=in_channels,
)
STYLES = {
    style.name: style
    for style in (
        HERMES,
        LLAMA_3,
        MISTRAL,
        MISTRAL_ARGS,
        QWEN_CODER,
        SEED,
        GLM,
        MINIMAX,
        DSML,
        DSML_4,
        DEEPSEEK,
        DEEPSEEK_R1,
        KIMI,
        LFM2,
        GEMMA_4,
        NEMOTRON,
        COHERE,
        APERTUS,
        APRIEL,
        HUNYUAN,
        SOLAR,
        FUNCTIONARY,
        MINICPM,
        ATEM,
        HARMONY,
    )
}

# What a template of a style says, the first that fits; all of the texts must be in it.
_MARKS: tuple[tuple[Style, tuple[str, ...]], ...] = (
    (HARMONY, ("<|channel|>", "<|message|>", "functions.")),
    (DSML, (_DSML, "function_calls>")),
    (DSML_4, (_DSML, "tool_calls>")),
    (MINIMAX, ("<minimax:tool_call>",)),
    (SEED, ("<seed:tool_call>",)),
    (DEEPSEEK_R1, (_CALLS, "```json")),
    (DEEPSEEK, (_CALLS,)),
    (KIMI, (KIMI.opening,)),
    (LFM2, (LFM2.opening,)),
    (GEMMA_4, (GEMMA_4.opening, "call:")),
    (NEMOTRON, (NEMOTRON.opening,)),
    (COHERE, (COHERE.opening,)),
    (APERTUS, (APERTUS.opening,)),
    (APRIEL, ("<tool_calls>[",)),
    (HUNYUAN, ("<tool_calls{}>",)),
    (HUNYUAN, (HUNYUAN.opening,)),
    (SOLAR, (SOLAR.opening, "<|tool_call:begin|>")),
    (ATEM, (ATEM.opening,)),
    (MINICPM, (MINICPM.opening,)),
    (QWEN_CODER, ("<tool_call>", "<function=")),
    (FUNCTIONARY, ("<function=", "</function>")),
    (GLM, ("<tool_call>", "<arg_key>")),
)


def style_of(template: str) -> Style | None:
    """The style that a chat template teaches its model; None if it teaches none that is known."""
    if not re.search(r"\btools\b|\btool_calls\b", template):
        return None
    for style, marks in _MARKS:
        if all(mark in template for mark in marks):
            return style
    if not re.search(r"\btools\b", template):
        return None
    if "<tool_call>" in template:
        # Others have something else inside the marker, which is not read here.
        return HERMES if re.search(r'"name\\?"', template) else None
    if "[TOOL_CALLS]" in template:
        return MISTRAL_ARGS if "[ARGS]" in template else MISTRAL
    if "<|python_tag|>" in template:
        return LLAMA_3
    return LLAMA_3 if "<|start_header_id|>" in template and '"parameters"' in template else None
