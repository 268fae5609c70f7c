"""Chat templates of the families of late 2025 and of 2026."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from template_family import (
    DSML,
    FUNCTION,
    FUNCTION_CALL,
    IM,
    JSON,
    OPENED,
    Family,
    invoked,
    named,
    pairs,
    said,
)

IN_LINE = (  # pairs without line breaks
    said("<tool_call>")
    + "{{ f.name }}"
    + pairs("<arg_key>", "</arg_key><arg_value>", "</arg_value>")
    + said("</tool_call>")
)
IN_LINE_CALL = (
    '<tool_call>look<arg_key>city</arg_key><arg_value>Oslo "N"</arg_value><arg_key>n</arg_key>'
    "<arg_value>3</arg_value></tool_call>"
)
LAGUNA = Family(
    "glm-4.7",
    ("<user>", "</user>\n"),
    ("<assistant>", "</assistant>\n"),
    begin="<assistant><think>",
    off="<assistant></think>",
    quiets="not enable_thinking | default(false)",
    on=True,
    result=("<tool_response>", "</tool_response>"),
    thoughts=("<think>", "</think>"),
    call=IN_LINE,
    between="",
    text="Hm.</think>Yes.",
    called=f"Hm.</think>{IN_LINE_CALL}",
)


def hy(name: str) -> str:
    return f"<\uff5c{name}:opensource\uff5c>"


def open_source(name: str) -> tuple[str, str]:
    return f"<{name}:opensource>", f"</{name}:opensource>"


THINK, KEY, VALUE = (open_source(name) for name in ("think", "arg_key", "arg_value"))
CALLS, CALL, (SEP, _) = (open_source(name) for name in ("tool_calls", "tool_call", "tool_sep"))
# The system's text stands before all turns, and behind it how much the model is to think.
EFFORT = (
    "{% set effort = reasoning_effort if reasoning_effort is defined else 'no_think' %}"
    "{% if effort not in ['no_think', 'low', 'high'] %}{{ raise_exception('unknown effort') }}"
    f"{{% endif %}}{said(hy('reasoning_mode'))}reasoning_effort:{{{{ effort }}}}"
)
LING: dict[str, Any] = {
    "user": ("<role>HUMAN</role>", "<|role_end|>"),
    "assistant": ("<role>ASSISTANT</role>", "<|role_end|>"),
    "result": (
        "<role>OBSERVATION</role>\n<tool_response>\n",
        "\n</tool_response>\n<|role_end|>",
    ),
}
PLUS = "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"
LATE = {
    "laguna-s-2.1": LAGUNA,
    "laguna-xs-2.1": replace(
        LAGUNA,
        user=("<user>\n", "\n</user>\n"),
        assistant=("<assistant>\n", "\n</assistant>\n"),
        begin="<assistant>\n<think>",
        off="<assistant>\n</think>",
        thoughts=("<think>\n", "\n</think>\n"),
        between="\n",
        text="\nHm.\n</think>\nYes.",
        called=f"\nHm.\n</think>\n{IN_LINE_CALL}",
    ),
    "hy3": Family(
        "hunyuan",
        (hy("hy_User"), ""),
        (hy("hy_Assistant"), hy("hy_eos")),
        begin=hy("hy_Assistant") + THINK[0],
        off=hy("hy_Assistant") + "".join(THINK),
        quiets="effort == 'no_think'",
        on=True,
        thoughts=THINK,
        call=said(CALL[0])
        + "{{ f.name }}"
        + said(f"{SEP}\n")
        + pairs(KEY[0], f"{KEY[1]}\n{VALUE[0]}", f"{VALUE[1]}\n")
        + said(f"{CALL[1]}\n"),
        calls=(f"{CALLS[0]}\n", CALLS[1]),
        between="",
        text=f"Hm.{THINK[1]}Yes.",
        called=f"Hm.{THINK[1]}{CALLS[0]}\n{CALL[0]}look{SEP}\n{KEY[0]}city{KEY[1]}\n{VALUE[0]}"
        f'Oslo "N"{VALUE[1]}\n{KEY[0]}n{KEY[1]}\n{VALUE[0]}3{VALUE[1]}\n{CALL[1]}\n{CALLS[1]}',
        extra=EFFORT,
    ),
    "ling-2": Family(
        "hermes",
        **LING,
        call=named('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>"),
        text="Yes.",
        called=f'<tool_call>\n{{"name": "look", "arguments": {JSON}}}\n</tool_call>',
        quiet=True,
    ),
    "ling-3": Family(
        "glm",
        **LING,
        begin="<role>ASSISTANT</role>\n<think>",
        off="<role>ASSISTANT</role>\n<think></think>",
        thoughts=("\n<think>", "</think>"),
        call=said("<tool_call>")
        + "{{ f.name }}"
        + said("\n")
        + pairs("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n")
        + said("</tool_call>"),
        text="Hm.</think>Yes.",
        called="Hm.</think><tool_call>look\n<arg_key>city</arg_key>\n<arg_value>Oslo "
        '"N"</arg_value>\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n</tool_call>',
    ),
    "command-a-plus": Family(
        "cohere",
        (f"{PLUS[0]}<|USER_TOKEN|><|START_TEXT|>", f"<|END_TEXT|>{PLUS[1]}"),
        (f"{PLUS[0]}<|CHATBOT_TOKEN|>", PLUS[1]),
        begin=f"{PLUS[0]}<|CHATBOT_TOKEN|><|START_THINKING|>",
        off=f"{PLUS[0]}<|CHATBOT_TOKEN|><|START_THINKING|><|END_THINKING|>",
        result=(
            f'{PLUS[0]}<|SYSTEM_TOKEN|><|START_TOOL_RESULT|>[\n    {{"tool_call_id": "0", '
            '"results": {"0": "',
            f'"}}, "is_error": null}}\n]<|END_TOOL_RESULT|>{PLUS[1]}',
        ),
        thoughts=("<|START_THINKING|>", "<|END_THINKING|>"),
        content="'<|START_TEXT|>' ~ m.content ~ '<|END_TEXT|>' if m.content else ''",
        call=said('\n    {"tool_call_id": "')
        + "{{ loop.index0 }}"
        + said('", "tool_name": "')
        + "{{ f.name }}"
        + said('", "parameters": ')
        + "{{ f.arguments | tojson }}}",
        calls=("<|START_ACTION|>[", "\n]<|END_ACTION|>"),
        between=",",
        text="Hm.<|END_THINKING|><|START_TEXT|>Yes.<|END_TEXT|>",
        called='Hm.<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": '
        f'"look", "parameters": {JSON}}}\n]<|END_ACTION|>',
    ),
    "step-3.5": Family(
        "qwen-coder",
        **IM,
        begin=OPENED,
        result=(
            "<|im_start|>tool_response\n<tool_response>",
            "</tool_response><|im_end|>\n",
        ),
        thoughts=("<think>\n", "\n</think>\n"),
        call=FUNCTION,
        between="",
        text="Hm.\n</think>\nYes.",
        called=f"Hm.\n</think>\n{FUNCTION_CALL}",
    ),
    "mimo-v2": Family(
        "qwen-coder",
        **IM,
        begin="<|im_start|>assistant\n<think>",
        off="<|im_start|>assistant\n<think></think>",
        thoughts=("<think>", "</think>"),
        call=said("<tool_call>\n<function=")
        + "{{ f.name }}"
        + said(">\n")
        + pairs("<parameter=", ">", "</parameter>\n")
        + said("</function>\n</tool_call>"),
        text="Hm.</think>Yes.",
        called='Hm.</think><tool_call>\n<function=look>\n<parameter=city>Oslo "N"</parameter>\n'
        "<parameter=n>3</parameter>\n</function>\n</tool_call>",
    ),
    "k-exaone": Family(
        "hermes",
        ("<|user|>\n", "<|endofturn|>\n"),
        ("<|assistant|>\n", "<|endofturn|>\n"),
        begin="<|assistant|>\n<think>\n",
        off="<|assistant|>\n<think>\n\n</think>\n\n",
        result=("<|tool|>\n<tool_result>", "</tool_result><|endofturn|>\n"),
        thoughts=("<think>\n", "\n</think>\n\n"),
        call=named('<tool_call>{"name": "', '", "arguments": ', "}</tool_call>"),
        text="Hm.\n</think>\n\nYes.",
        called=f'Hm.\n</think>\n\n<tool_call>{{"name": "look", "arguments": {JSON}}}</tool_call>',
    ),
    "deepseek-v4": Family(
        "dsml-tool_calls",
        ("<\uff5cUser\uff5c>", ""),
        ("<\uff5cAssistant\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
        begin="<\uff5cAssistant\uff5c><think>",
        off="<\uff5cAssistant\uff5c></think>",
        result=("<\uff5cUser\uff5c><tool_result>", "</tool_result>"),
        thoughts=("<think>", "</think>"),
        call=invoked(DSML),
        calls=(f"\n\n<{DSML}tool_calls>\n", f"</{DSML}tool_calls>"),
        between="",
        text="Hm.</think>Yes.",
        called=f'Hm.</think>\n\n<{DSML}tool_calls>\n<{DSML}invoke name="look">\n'
        f'<{DSML}parameter name="city" string="true">Oslo "N"</{DSML}parameter>\n'
        f'<{DSML}parameter name="n" string="false">3</{DSML}parameter>\n</{DSML}invoke>\n'
        f"</{DSML}tool_calls>",
    ),
}
