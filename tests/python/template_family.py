"""What a chat template of a test has, and parts that several have."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

GIVEN = {"city": 'Oslo "N"', "n": 3}  # the arguments of every call, of `look`
JSON = json.dumps(GIVEN)


@dataclass(frozen=True)
class Family:
    """A template, of texts and expressions of Jinja in turn, and what its model writes.

    style: how calls are written. user, assistant, result: around the texts of messages. text: an
    answer that thinks "Hm." and says "Yes."; called: one that thinks "Hm." and calls look. quiet:
    it does not think. repeats: a later prompt has the call as it was written.
    call: one of them, `f`. calls: around all of them. between: two of them. thoughts: around those
    of earlier messages; None: the template has no place for them. field: of thoughts. begin: of an
    answer, in a prompt; None: as `assistant`. off: the same where the model is not to think, which
    is so if `quiets` is true; None: the template knows nothing of it. on: what tests ask for.
    extra: the head of the template. content: text of an earlier answer.
    """

    style: str
    user: tuple[str, str]
    assistant: tuple[str, str]
    text: str
    called: str
    call: str = ""
    calls: tuple[str, str] = ("", "")
    between: str = "\n"
    result: tuple[str, str] = ("<result>", "</result>")
    thoughts: tuple[str, str] | None = None
    field: str = "reasoning_content"
    begin: str | None = None
    off: str | None = None
    quiets: str = "enable_thinking is defined and not enable_thinking"
    on: bool | None = None
    extra: str = ""
    content: str = "m.content"
    quiet: bool = False
    repeats: bool = True

    @property
    def source(self) -> str:
        begin = self.assistant[0] if self.begin is None else self.begin
        begins = said(begin)
        if self.off is not None:
            begins = f"{{% if {self.quiets} %}}{said(self.off)}{{% else %}}{begins}{{% endif %}}"
        thoughts = ""
        if self.thoughts is not None:
            shown = f"{said(self.thoughts[0])}{{{{ m.{self.field} }}}}{said(self.thoughts[1])}"
            thoughts = f"{{% if m.{self.field} and loop.index0 > last.i %}}{shown}{{% endif %}}"
        calls = ""
        if self.call:
            calls = (
                f"{{% if m.tool_calls %}}{said(self.calls[0])}{{% for c in m.tool_calls %}}"
                f"{{% set f = c.function %}}{self.call}"
                f"{{% if not loop.last %}}{said(self.between)}{{% endif %}}"
                f"{{% endfor %}}{said(self.calls[1])}{{% endif %}}"
            )
        return (
            f"{self.extra}{{% set last = namespace(i=-1) %}}{{% for m in messages %}}"
            "{% if m.role == 'user' %}{% set last.i = loop.index0 %}{% endif %}{% endfor %}"
            "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
            f"{{% if m.role == 'user' %}}{said(self.user[0])}{{{{ m.content }}}}"
            f"{said(self.user[1])}{{% elif m.role == 'tool' %}}{said(self.result[0])}"
            f"{{{{ m.content }}}}{said(self.result[1])}{{% else %}}{said(self.assistant[0])}"
            f"{thoughts}{{{{ {self.content} }}}}{calls}{said(self.assistant[1])}{{% endif %}}"
            f"{{% endfor %}}{{% if add_generation_prompt %}}{begins}{{% endif %}}"
        )


def said(text: str) -> str:
    """A text as an expression of Jinja, which keeps its line breaks."""
    return f"{{{{ {json.dumps(text, ensure_ascii=False)} }}}}" if text else ""


def pairs(before: str, between: str, after: str) -> str:
    """The arguments of a call, each with its name: texts as they are, the rest as JSON."""
    value = "{{ v if v is string else v | tojson }}"
    return (
        f"{{% for k, v in f.arguments.items() %}}{said(before)}{{{{ k }}}}{said(between)}{value}"
        f"{said(after)}{{% endfor %}}"
    )


def named(before: str, between: str, after: str) -> str:
    """The name of a call and its arguments as JSON."""
    return (
        f"{said(before)}{{{{ f.name }}}}{said(between)}{{{{ f.arguments | tojson }}}}{said(after)}"
    )


def d(mark: str) -> str:
    return f"<\uff5ctool\u2581{mark}\uff5c>"


DSML, GCML = "\uff5cDSML\uff5c", "\uff5cGCML\uff5c"
IM_USER, IM_END = "<|im_start|>user\n", "<|im_end|>\n"
IM: dict[str, Any] = {"user": (IM_USER, IM_END), "assistant": ("<|im_start|>assistant\n", IM_END)}
OPENED = "<|im_start|>assistant\n<think>\n"
HERMES = named('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")
HERMES_CALL = f'<tool_call>\n{{"name": "look", "arguments": {JSON}}}\n</tool_call>'
FUNCTION = (
    said("<tool_call>\n<function=")
    + "{{ f.name }}"
    + said(">\n")
    + pairs("<parameter=", ">\n", "\n</parameter>\n")
    + said("</function>\n</tool_call>")
)
FUNCTION_CALL = (
    '<tool_call>\n<function=look>\n<parameter=city>\nOslo "N"\n</parameter>\n'
    "<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>"
)
GLM: dict[str, Any] = {
    "style": "glm",
    "user": ("<|user|>\n", ""),
    "assistant": ("<|assistant|>", ""),
    "result": ("<|observation|>\n<tool_response>\n", "\n</tool_response>"),
}
DEEPSEEK: dict[str, Any] = {
    "user": ("<\uff5cUser\uff5c>", ""),
    "assistant": ("<\uff5cAssistant\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    "begin": "<\uff5cAssistant\uff5c><think>",
    "content": "(m.content or '').split('</think>')[-1]",
    "repeats": False,
}
GRANITE: dict[str, Any] = {
    "user": ("<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>\n"),
    "assistant": ("<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>\n"),
}


def invoked(prefix: str) -> str:
    """A call as DeepSeek writes it."""
    return (
        said(f'<{prefix}invoke name="')
        + "{{ f.name }}"
        + said('">\n')
        + "{% for k, v in f.arguments.items() %}"
        + said(f'<{prefix}parameter name="')
        + "{{ k }}"
        + said('" string="')
        + "{{ 'true' if v is string else 'false' }}"
        + said('">')
        + "{{ v if v is string else v | tojson }}"
        + said(f"</{prefix}parameter>\n")
        + "{% endfor %}"
        + said(f"</{prefix}invoke>\n")
    )
