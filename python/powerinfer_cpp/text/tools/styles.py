"""How models write tool calls: families of formats (taught.py says which a chat template uses).

- hermes, of Hermes, Qwen and others: `{"name": ..., "arguments": {...}}` on a line between
  `<tool_call>` and `</tool_call>`
- llama-3: `{"name": ..., "parameters": {...}}`, sometimes behind `<|python_tag|>`
- mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`, and since 2025 (mistral-args)
  `[TOOL_CALLS]name[ARGS]{...}`
- lists of such objects between markers: Nemotron, Cohere, Apriel, Granite 3, MiniMax M1; one
  behind a marker: GigaChat
- in tags (tags.py): XML of Qwen3-Coder, MiniMax, Seed and DeepSeek V3.2, pairs of GLM, elements of
  Kimi K3, JSON behind a name of DeepSeek and Kimi K2
- a name and its arguments: Python of LFM2 and SmolLM3, Gemma 4's own
- in messages, of gpt-oss (harmony), Muse Glimmer (atem) and Functionary 3.2, whose whole answers
  have parsers of their own (messages.py)
"""

import json
import keyword
import re
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .definitions import ToolRequest
from .history import in_channels, one_by_one, with_short_ids, without_empty_texts
from .reader import Functions
from .tags import TagCall, Tags
from .thoughts import Thoughts

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

    opening: stands before a call or before a list of calls. closing: may follow. call: texts before
    and after the arguments of a call, with {name}, and {id} of the form `id`. control: texts that
    may be control tokens of the model; they must show in the text that is parsed.
    between: the text between two calls; None: the style has no second call, so a constrained answer
    makes only one. before: the text between `opening` and the first call.
    also, heads, ends: other spellings of `opening` and `closing`, in pairs, of call[0] and of
    call[1]. tags: a call is read as `call` says, else it is a JSON object, or a name and arguments.
    listed: calls are items of a JSON list. bare: a call may begin without `opening`, where the
    answer begins.
    argument: texts before and after the value of a parameter, with {key}, and {text}, which says
    whether it is a raw text, or if it is `typed`, its type; None: the arguments are JSON. mark:
    before all tags, which may stand in values as well. quotes: around a raw text; None: texts are
    JSON as well. separator: between parameters. padded: line breaks next to the tags of a value are
    part of it. wraps: may stand before and behind arguments as JSON.
    """

    name: str
    opening: str
    closing: str
    call: tuple[str, str]
    control: tuple[str, ...]
    between: str | None = None
    before: str = ""
    tags: bool = False
    listed: bool = False
    bare: bool = False
    argument: tuple[str, str] | None = None
    quotes: tuple[str, str] | None = ("", "")
    separator: str = ""
    padded: bool = False
    mark: str = ""
    id: str = ""
    also: tuple[tuple[str, str], ...] = ()
    heads: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    typed: bool = False
    wraps: tuple[str, ...] = ()
    ends_text: str = ""  # stands before `opening`, where an answer has begun
    # Of answers that consist of messages: what begins one to the user.
    answer: str = ""
    thoughts: Thoughts | None = None  # if all templates of the style write them alike
    # What templates want of earlier messages (see chat.check_messages).
    history: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = list
    new_id: Callable[[], str] = _long_id

    @property
    def begin(self) -> str:
        """What a prompt ends with if its answer must call."""
        return "" if self.bare else self.ends_text + self.opening

    @property
    def lead(self) -> str:
        """The tag that a call begins with, also without a marker; "": none does."""
        if not self.tags:  # as in Qwen's and Llama's other notation
            return "<function"
        found = re.match(rf"{re.escape(self.mark)}<(?:\|>|[^>=\s{{])+>?", self.call[0])
        return found[0] if found else ""

    @property
    def openings(self) -> tuple[str, ...]:
        """What may stand before calls."""
        found = (self.opening, self.lead, *(opening for opening, _ in self.also))
        return tuple(filter(None, found))

    @property
    def closings(self) -> tuple[str, ...]:
        """What may stand behind calls."""
        end = self.call[1].strip() if self.tags and not self.closing else ""
        return tuple(filter(None, (self.closing, end, *(closing for _, closing in self.also))))

    def tag_reader(self, functions: Functions, fenced: bool) -> TagCall:
        """What reads the next call, in tags of the style or, if it has none, of Qwen's."""
        of, around = self if self.tags else QWEN_CODER, (*self.closings, *self.openings)
        before, after = of.argument or QWEN_CODER.argument
        argument = before.replace("><", "> <"), after  # read with white space between tags, too
        heads = of.call[0], *of.heads
        tags = Tags(heads, (of.call[1], *of.ends), argument, around, of.padded, of.mark, of.wraps)
        return TagCall(tags, functions, fenced)

    def can_force(self, request: ToolRequest) -> bool:
        """Can a grammar hold calls to this style? Raw texts have no rules for their characters."""
        if self.argument is None:
            return True
        return all(_is_plain(tool.parameters, self.quotes) for tool in request.tools)

    def forced(self, request: ToolRequest) -> dict[str, Any]:
        """The answer that must call a tool, for LlamaGrammar.from_tool_calls."""
        calls = []
        for tool in request.tools:
            if tool.name in request.names:
                begin, end = self._around(tool.name, 0)
                call = {"begin": begin, "schema": tool.parameters, "end": end}
                if self.argument is not None:
                    properties = tool.parameters.get("properties") or {}
                    call["arguments"] = {
                        name: self._values(name, _type_of(schema))
                        for name, schema in properties.items()
                    }
                    call["separator"] = self.separator
                calls.append(call)
        several = request.parallel and self.between is not None
        return {
            "before": self.before + ("[" if self.listed else ""),
            "calls": calls,
            "between": self.between if several else "",
            "most": MAX_FORCED if several else 1,
            "after": ("]" if self.listed else "") + self.closing,
        }

    def written(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """(Checked) calls as the model writes them."""
        texts = []
        for i, call in enumerate(calls):
            begin, end = self._around(call["function"]["name"], i, call.get("id"))
            texts.append(f"{begin}{self._arguments(call['function']['arguments'])}{end}")
        asked = self.before + ("[" if self.listed else "") + (self.between or "").join(texts)
        return self.begin + asked + ("]" if self.listed else "") + self.closing

    def _around(self, name: str, i: int, known: str | None = None) -> tuple[str, str]:
        made = self.id.replace("{name}", name).replace("{n}", str(i)) or known or _long_id()
        begin, end = self.call
        begin = begin.replace("{name}", name).replace("{id}", made)
        return begin.replace("{text}", str(i + 1)), end

    def _values(self, key: str, kind: str) -> list[tuple[str, str] | None]:
        """What stands around the value of a parameter: around JSON of a type, and around a raw
        text."""
        assert self.argument is not None
        begin, end = (text.replace("{key}", key) for text in self.argument)
        raw = None
        if self.quotes is not None:
            said = begin.replace("{text}", "string" if self.typed else "true")
            raw = said + self.quotes[0], self.quotes[1] + end
        return [(begin.replace("{text}", kind if self.typed else "false"), end), raw]

    def _arguments(self, arguments: Mapping[str, Any]) -> str:
        if self.argument is None:
            return json.dumps(arguments, ensure_ascii=False)
        found = []
        for key, value in arguments.items():
            as_json, as_text = self._values(key, _type_of({"const": value}))
            raw = as_text is not None and isinstance(value, str)
            text = value if raw else json.dumps(value, ensure_ascii=False)
            begin, end = as_text if raw else as_json
            found.append(f"{begin}{text}{end}")
        return self.separator.join(found)


_TYPES = {bool: "boolean", type(None): "null", str: "string", list: "array", dict: "object"}


def _type_of(schema: Mapping[str, Any]) -> str:
    """The JSON type of a schema's values; "object" where it says none."""
    kind = schema.get("type", "object")
    if "const" in schema:
        kind = _TYPES.get(type(schema["const"]), "number")
    return "number" if kind == "integer" else kind if isinstance(kind, str) else "object"


def _is_plain(schema: Mapping[str, Any], quotes: tuple[str, str] | None) -> bool:
    """Is a schema of parameters a list of properties, with strings of any characters or a choice of
    them? quotes: as in Style."""
    properties = schema.get("properties") or {}
    if not set(schema) <= _KEYS_OF_OBJECTS or not isinstance(properties, Mapping):
        return False
    for key, value in properties.items():
        if not isinstance(value, Mapping) or not re.fullmatch(r"[\w.-]+", key):
            return False
        if quotes is None:  # Python's names
            if not key.isidentifier() or keyword.iskeyword(key):
                return False
            continue
        if value.get("type") == "string" and not set(value) <= _KEYS_OF_STRINGS:
            return False
        choices = value.get("enum", [value.get("const", "")])
        plain = isinstance(choices, list) and all(
            isinstance(choice, str) and "<" not in choice for choice in choices
        )
        if value.get("type") == "string" and not plain:
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


def _object(key: str = "arguments", name: str = "name") -> tuple[str, str]:
    """A call as a JSON object."""
    return f'{{"{name}": "{{name}}", "{key}": ', "}"


def _listed(name: str, opening: str, closing: str, call: tuple[str, str] = _object()) -> Style:
    """A JSON list between markers."""
    return Style(name, opening, closing, call, (opening, closing), between=", ", listed=True)


def _wrapped(opening: str, closing: str) -> dict[str, Any]:
    """What a style has whose calls stand each between markers, on lines of their own."""
    return {
        "opening": opening,
        "closing": closing,
        "control": (opening, closing),
        "before": "\n",
        "between": f"{closing}\n{opening}\n",
    }


def _section(opening: str, closing: str, *control: str) -> dict[str, Any]:
    """What a style has whose calls stand together between markers."""
    return {
        "opening": opening,
        "closing": closing,
        "control": (opening, closing, *control),
        "between": "",
        "tags": True,
    }


HERMES = Style(
    "hermes",
    **_wrapped("<tool_call>", "</tool_call>"),
    call=(_object()[0], "}\n"),
    also=(("<tools>", "</tools>"),),  # as around the definitions in the prompt
)
LLAMA_3 = Style(
    name="llama-3",
    opening="<|python_tag|>",
    closing="",
    call=_object("parameters"),
    control=("<|python_tag|>",),
    bare=True,
    history=one_by_one,
)
_MISTRAL: dict[str, Any] = {
    "opening": "[TOOL_CALLS]",
    "closing": "",
    "control": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    "history": with_short_ids,
    "new_id": _short_id,
}
MISTRAL = Style("mistral", **_MISTRAL, call=_object(), between=", ", listed=True)
MISTRAL_ARGS = Style("mistral-args", **_MISTRAL, call=("{name}[ARGS]", ""), between="[TOOL_CALLS]")
NEMOTRON = _listed("nemotron", "<TOOLCALL>", "</TOOLCALL>")
COHERE = _listed(
    "cohere",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    ('{"tool_call_id": "{id}", "tool_name": "{name}", "parameters": ', "}"),
)
APRIEL = _listed("apriel", "<tool_calls>", "</tool_calls>")
GRANITE_3 = _listed("granite-3", "<|tool_call|>", "")
GIGACHAT = Style(
    "gigachat", "<|function_call|>", "", _object(), ("<|function_call|>",), history=one_by_one
)
_SEPS = ("<|message_sep|>\n", "<|message_sep|>", "")  # of which line breaks are missing, or all
GIGACHAT_3 = Style(
    "gigachat-3",
    "<|message_sep|>\n\nfunction call<|role_sep|>",
    "<|message_sep|>",
    _object(),
    ("<|message_sep|>", "<|role_sep|>"),
    before="\n",
    also=tuple((f"{before}function call<|role_sep|>", "") for before in _SEPS),
    history=one_by_one,
)
MINIMAX_1 = Style(
    "minimax-1",
    "<tool_calls>",
    "</tool_calls>",
    (_object()[0], "}\n"),
    ("<tool_calls>", "</tool_calls>"),
    before="\n",
    between="",
)

_FUNCTION = "<function={name}>\n", "</function>\n"
QWEN_CODER = Style(
    "qwen-coder",
    **_wrapped("<tool_call>", "</tool_call>"),
    call=_FUNCTION,
    argument=("<parameter={key}>\n", "\n</parameter>\n"),
    tags=True,
)
SEED = Style(
    "seed",
    **_wrapped("<seed:tool_call>", "</seed:tool_call>"),
    call=_FUNCTION,
    argument=("<parameter={key}>", "</parameter>\n"),
    tags=True,
)
GLM = Style(
    name="glm",
    opening="<tool_call>",
    closing="",
    call=("{name}\n", "</tool_call>"),
    control=(*HERMES.control, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    argument=("<arg_key>{key}</arg_key>\n<arg_value>", "</arg_value>\n"),
    between="\n<tool_call>",
    tags=True,
    padded=True,
)
GLM_4_7 = replace(  # of Laguna, too: without line breaks
    GLM,
    name="glm-4.7",
    call=("{name}", "</tool_call>"),
    argument=("<arg_key>{key}</arg_key><arg_value>", "</arg_value>"),
    between="<tool_call>",
)
HUNYUAN = Style(
    "hunyuan",
    **_section(
        *("<tool_calls:opensource>", "</tool_calls:opensource>"),
        *("<tool_call:opensource>", "</tool_call:opensource>", "<tool_sep:opensource>"),
        *("<arg_key:opensource>", "</arg_key:opensource>"),
        *("<arg_value:opensource>", "</arg_value:opensource>"),
    ),
    call=("<tool_call:opensource>{name}<tool_sep:opensource>\n", "</tool_call:opensource>\n"),
    argument=(
        "<arg_key:opensource>{key}</arg_key:opensource>\n<arg_value:opensource>",
        "</arg_value:opensource>\n",
    ),
    before="\n",
    padded=True,
)


def _invoked(name: str, prefix: str, opening: str, closing: str, told: str = "") -> Style:
    """Functions that are invoked, with named parameters, in tags with a prefix."""
    return Style(
        name,
        **_section(opening, closing),
        call=(f'<{prefix}invoke name="{{name}}">\n', f"</{prefix}invoke>\n"),
        argument=(f'<{prefix}parameter name="{{key}}"{told}>', f"</{prefix}parameter>\n"),
        before="\n",
    )


MINIMAX = _invoked("minimax", "", "<minimax:tool_call>", "</minimax:tool_call>")
ATEM = replace(  # of Muse Glimmer
    _invoked("atem", "atem:", "<atem:function_calls>", "</atem:function_calls>"),
    control=(
        *("<atem:function_calls>", "</atem:function_calls>"),
        *("<|start|>", "<|message|>", "<|eom|>"),
    ),
    answer=" to=user<|message|>",
    thoughts=Thoughts(
        opening="to=self<|message|>",
        closing="<|eom|>",
        begin=" to=self<|message|>",
        end="<|eom|><|start|>assistant to=user<|message|>",
        field="reasoning_content",
    ),
)
_MARK = "]<]minimax[>["
MINIMAX_3 = Style(
    "minimax-3",
    **_section(f"{_MARK}<tool_call>", f"{_MARK}</tool_call>", _MARK),
    call=(f'{_MARK}<invoke name="{{name}}">', f"{_MARK}</invoke>\n"),
    argument=(f"{_MARK}<{{key}}>", f"{_MARK}</{{key}}>"),
    before="\n",
    padded=True,
    mark=_MARK,
)
_DSML = "\uff5cDSML\uff5c"


def _dsml(section: str, mark: str = _DSML) -> Style:
    opening, closing = f"<{mark}{section}>", f"</{mark}{section}>"
    name = f"{mark.strip(_DSML[0]).lower()}-{section}"
    style = _invoked(name, mark, opening, closing, ' string="{text}"')
    return replace(style, control=(mark,), padded=True)  # a raw text is all between the tags


DSML = _dsml("function_calls")  # of DeepSeek V3.2
DSML_4 = _dsml("tool_calls")  # of V4
GCML = _dsml("tool_calls", "\uff5cGCML\uff5c")  # of GigaChat 3.5


def _deepseek(mark: str) -> str:
    return f"<\uff5ctool\u2581{mark}\uff5c>"


_CALLS, _CALLS_END = _deepseek("calls\u2581begin"), _deepseek("calls\u2581end")
_CALL, _CALL_END = _deepseek("call\u2581begin"), _deepseek("call\u2581end")
_SEP = _deepseek("sep")


def _spelled(*texts: str) -> tuple[str, ...]:
    """Texts as models write them to which their marks are no tokens."""
    plain = tuple(text.replace("\u2581", sign) for text in texts for sign in ("_", " ", r"\_"))
    return plain + tuple(text.replace("\u2581", "_").replace("\uff5c", "|") for text in texts)


_DEEPSEEK: dict[str, Any] = {
    "also": tuple(zip(_spelled(_CALLS), _spelled(_CALLS_END), strict=True)),
    "ends": _spelled(f"\n```{_CALL_END}"),
}
_TYPED, _UNTYPED = f"{_CALL}function{_SEP}{{name}}\n", f"{_CALL}{{name}}{_SEP}"
DEEPSEEK = Style(
    "deepseek",
    **_section(_CALLS, _CALLS_END, _CALL, _CALL_END, _SEP),
    **_DEEPSEEK,
    call=(_UNTYPED, _CALL_END),
    heads=(_TYPED, *_spelled(_TYPED, _UNTYPED)),
)
DEEPSEEK_R1 = Style(
    "deepseek-r1",
    **{**_section(*DEEPSEEK.control), "between": "\n"},
    **_DEEPSEEK,
    call=(f"{_TYPED}```json\n", f"\n```{_CALL_END}"),
    heads=(_UNTYPED, f"{_CALL}{{name}}\n", *_spelled(f"{_TYPED}```json\n", _UNTYPED)),
    history=without_empty_texts,
)
KIMI = Style(
    "kimi",
    **_section(
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
    call=("<|tool_call_begin|>{id}<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    id="functions.{name}:{n}",
    also=(("<|tool_call_section_begin|>", "<|tool_call_section_end|>"),),
)
KIMI_3 = Style(
    "kimi-3",
    **{
        **_section("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
        "control": ("<|open|>", "<|close|>", "<|sep|>"),
    },
    call=('<|open|>call tool="{name}" index="{text}"<|sep|>', "<|close|>call<|sep|>"),
    argument=('<|open|>argument key="{key}" type="{text}"<|sep|>', "<|close|>argument<|sep|>"),
    padded=True,
    typed=True,
    wraps=('<|open|>json type="{text}"<|sep|>', "<|close|>json<|sep|>"),
    ends_text="<|close|>response<|sep|>",
    thoughts=Thoughts(
        opening="<|open|>think<|sep|>",
        closing="<|close|>think<|sep|>",
        begin="<|open|>think<|sep|>",
        end="<|close|>think<|sep|><|open|>response<|sep|>",
        field="reasoning_content",
        lead="<|open|>response<|sep|>",
        last="<|close|>response<|sep|>",
        around=("<|close|>message<|sep|>",),
    ),
)
SOLAR = Style(
    "solar",
    **_section(
        *("<|tool_calls|>", "<|calls|>", "<|tool_call:begin|>", "<|tool_call:name|>"),
        *("<|tool_call:args|>", "<|tool_call:end|>"),
    ),
    call=(
        "<|tool_call:begin|>{id}<|tool_call:name|>{name}<|tool_call:args|>",
        "<|tool_call:end|>",
    ),
)
APERTUS = _listed("apertus", "<|tools_prefix|>", "<|tools_suffix|>", ('{"{name}": ', "}"))
FUNCTIONARY = Style(
    "functionary",
    "<function=",
    "",
    ("{name}>", "</function>"),
    (),
    between="<function=",
    tags=True,
    also=(("<function name=", ""),),
)
FUNCTIONARY_3 = Style(
    "functionary-3", ">>>", "", ("{name}\n", ""), (), between=">>>", tags=True, answer="all\n"
)
MINICPM = replace(
    FUNCTIONARY,
    name="minicpm",
    opening='<function name="',
    call=('{name}">', "</function>"),
    between='<function name="',
    also=(("<function=", ""),),
    argument=('<param name="{key}">', "</param>"),
)

LFM2 = Style(
    "lfm2",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    ("{name}(", ")"),
    ("<|tool_call_start|>", "<|tool_call_end|>"),
    listed=True,
    between=", ",
    argument=("{key}=", ""),
    quotes=None,
    separator=", ",
)
SMOLLM = replace(
    LFM2,
    name="smollm-python",
    opening="<code>",
    closing="</code>",
    control=("<code>", "</code>"),
    listed=False,
    between="\n",
)
GEMMA_4 = Style(
    "gemma-4",
    "<|tool_call>",
    "<tool_call|>",
    ("call:{name}{", "}"),
    ("<|tool_call>", "<tool_call|>", '<|"|>'),
    between="<tool_call|><|tool_call>",
    argument=("{key}:", ""),
    quotes=('<|"|>', '<|"|>'),
    also=(("call:", ""),),
    separator=",",
)
HARMONY = Style(
    name="harmony",
    opening="<|channel|>commentary to=functions.",
    closing="",
    call=("{name} <|constrain|>json<|message|>", ""),
    control=("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"),
    history=in_channels,
    answer="<|channel|>final<|message|>",
    thoughts=Thoughts(
        opening="<|channel|>analysis<|message|>",
        closing="<|end|>",
        begin="<|channel|>analysis<|message|>",
        end="<|end|><|start|>assistant<|channel|>final<|message|>",
        field="thinking",
    ),
)
STYLES = {
    style.name: style
    for style in (
        *(HERMES, LLAMA_3, MISTRAL, MISTRAL_ARGS),
        *(NEMOTRON, COHERE, APRIEL, GRANITE_3, MINIMAX_1, GIGACHAT, GIGACHAT_3),
        *(QWEN_CODER, SEED, GLM, GLM_4_7, HUNYUAN, MINIMAX, MINIMAX_3, ATEM, DSML, DSML_4, GCML),
        *(DEEPSEEK, DEEPSEEK_R1, KIMI, KIMI_3, SOLAR, APERTUS, FUNCTIONARY, FUNCTIONARY_3, MINICPM),
        *(LFM2, SMOLLM, GEMMA_4, HARMONY),
    )
}
