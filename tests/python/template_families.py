"""Chat templates of many families, written for tests in the forms that the families use, and what
their models write."""

from __future__ import annotations

from late_templates import LATE
from template_family import (
    DEEPSEEK,
    DSML,
    FUNCTION,
    FUNCTION_CALL,
    GCML,
    GLM,
    GRANITE,
    HERMES,
    HERMES_CALL,
    IM,
    JSON,
    OPENED,
    Family,
    d,
    invoked,
    named,
    pairs,
    said,
)

FAMILIES = {
    "qwen-3": Family(
        "hermes",
        **IM,
        thoughts=("<think>\n", "\n</think>\n\n"),
        call=HERMES,
        text="<think>\nHm.\n</think>\n\nYes.",
        called=f"<think>\nHm.\n</think>\n\n{HERMES_CALL}",
    ),
    "qwen-3-coder": Family(
        "qwen-coder", **IM, call=FUNCTION, text="Yes.", called=FUNCTION_CALL, quiet=True
    ),
    "qwen-3.5": Family(
        "qwen-coder",
        **IM,
        begin=OPENED,
        thoughts=("<think>\n", "\n</think>\n\n"),
        call=FUNCTION,
        text="Hm.\n</think>\n\nYes.",
        called=f"Hm.\n</think>\n\n{FUNCTION_CALL}",
    ),
    "nemotron-3": Family(
        "qwen-coder",
        **IM,
        begin=OPENED,
        thoughts=("<think>\n", "\n</think>\n"),
        call=FUNCTION,
        calls=("", "\n"),
        text="Hm.\n</think>\nYes.",
        called=f"Hm.\n</think>\n{FUNCTION_CALL}\n",
    ),
    "nemotron-nano-2": Family(
        "nemotron",
        ("<SPECIAL_11>User\n", "\n"),
        ("<SPECIAL_11>Assistant\n", "\n<SPECIAL_12>\n"),
        begin="<SPECIAL_11>Assistant\n<think>\n",
        call=named('{"name": "', '", "arguments": ', "}"),
        calls=("<TOOLCALL>[", "]</TOOLCALL>"),
        between=", ",
        text="Hm.\n</think>\n\nYes.",
        called=f'Hm.\n</think>\n\n<TOOLCALL>[{{"name": "look", "arguments": {JSON}}}]</TOOLCALL>',
        content="m.content.split('</think>')[-1].strip()",
        repeats=False,  # the template has no place for thoughts
    ),
    "glm-4.5": Family(
        **GLM,
        thoughts=("\n<think>", "</think>\n"),
        call=said("<tool_call>")
        + "{{ f.name }}"
        + said("\n")
        + pairs("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n")
        + said("</tool_call>"),
        text="\n<think>Hm.</think>\nYes.",
        called="\n<think>Hm.</think>\n<tool_call>look\n<arg_key>city</arg_key>\n<arg_value>Oslo "
        '"N"</arg_value>\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n</tool_call>',
    ),
    "glm-4.7": Family(
        **{**GLM, "style": "glm-4.7"},
        begin="<|assistant|><think>",
        thoughts=("<think>", "</think>"),
        call=said("<tool_call>")
        + "{{ f.name }}"
        + pairs("<arg_key>", "</arg_key><arg_value>", "</arg_value>")
        + said("</tool_call>"),
        text="Hm.</think>Yes.",
        called="Hm.</think><tool_call>look<arg_key>city</arg_key><arg_value>Oslo "
        '"N"</arg_value><arg_key>n</arg_key><arg_value>3</arg_value></tool_call>',
    ),
    "gpt-oss": Family(
        "harmony",
        ("<|start|>user<|message|>", "<|end|>"),
        ("<|start|>assistant", ""),
        thoughts=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        field="thinking",
        call=said("<|channel|>commentary to=functions.")
        + "{{ f.name }}"
        + said(" <|constrain|>json<|message|>")
        + "{{ f.arguments | tojson }}",
        text="<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"
        "Yes.",
        called="<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
        f"to=functions.look <|constrain|>json<|message|>{JSON}",
    ),
    "deepseek-v3.1": Family(
        "deepseek",
        **DEEPSEEK,
        call=named(d("call\u2581begin"), d("sep"), d("call\u2581end")),
        calls=(d("calls\u2581begin"), d("calls\u2581end")),
        between="",
        text="Hm.</think>Yes.",
        called=f"Hm.</think>{d('calls▁begin')}{d('call▁begin')}look{d('sep')}{JSON}"
        f"{d('call▁end')}{d('calls▁end')}",
    ),
    "deepseek-r1": Family(
        "deepseek-r1",
        **DEEPSEEK,
        call=named(f"{d('call▁begin')}function{d('sep')}", "\n```json\n", f"\n```{d('call▁end')}"),
        calls=(d("calls\u2581begin"), d("calls\u2581end")),
        text="Hm.\n</think>\n\nYes.",
        called=f"Hm.\n</think>\n\n{d('calls▁begin')}{d('call▁begin')}function{d('sep')}look\n"
        f"```json\n{JSON}\n```{d('call▁end')}{d('calls▁end')}",
    ),
    "deepseek-v3.2": Family(
        "dsml-function_calls",
        **{**DEEPSEEK, "content": "m.content", "repeats": True},
        thoughts=("<think>", "</think>"),
        call=invoked(DSML),
        calls=(f"\n\n<{DSML}function_calls>\n", f"</{DSML}function_calls>"),
        between="",
        text="Hm.</think>Yes.",
        called=f'Hm.</think>\n\n<{DSML}function_calls>\n<{DSML}invoke name="look">\n'
        f'<{DSML}parameter name="city" string="true">Oslo "N"</{DSML}parameter>\n'
        f'<{DSML}parameter name="n" string="false">3</{DSML}parameter>\n</{DSML}invoke>\n'
        f"</{DSML}function_calls>",
    ),
    "kimi-k2": Family(
        "kimi",
        ("<|im_user|>user<|im_middle|>", "<|im_end|>"),
        ("<|im_assistant|>assistant<|im_middle|>", "<|im_end|>"),
        thoughts=("<think>", "</think>"),
        call=said("<|tool_call_begin|>")
        + "{{ c.id }}"
        + said("<|tool_call_argument_begin|>")
        + "{{ f.arguments | tojson }}{% set _ = queue.ids.append(c.id) %}"
        + said("<|tool_call_end|>"),
        calls=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        between="",
        text="<think>Hm.</think>Yes.",
        called="<think>Hm.</think><|tool_calls_section_begin|><|tool_call_begin|>functions.look:0"
        f"<|tool_call_argument_begin|>{JSON}<|tool_call_end|><|tool_calls_section_end|>",
        extra="{% set queue = namespace(ids=[]) %}",
    ),
    "minimax-m2": Family(
        "minimax",
        ("]~b]user\n", "[e~[\n"),
        ("]~b]ai\n", "[e~[\n"),
        begin="]~b]ai\n<think>\n",
        thoughts=("<think>\n", "\n</think>\n\n"),
        call=said('<invoke name="')
        + "{{ f.name }}"
        + said('">\n')
        + pairs('<parameter name="', '">', "</parameter>\n")
        + said("</invoke>\n"),
        calls=("\n<minimax:tool_call>\n", "</minimax:tool_call>"),
        between="",
        text="Hm.\n</think>\n\nYes.",
        called='Hm.\n</think>\n\n\n<minimax:tool_call>\n<invoke name="look">\n<parameter '
        'name="city">Oslo "N"</parameter>\n<parameter name="n">3</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
    ),
    "minimax-m1": Family(
        "minimax-1",
        ("<beginning_of_sentence>user\n", "<end_of_sentence>\n"),
        ("<beginning_of_sentence>ai\n", "<end_of_sentence>\n"),
        call=named('{"name": "', '", "arguments": ', "}\n"),
        calls=("<tool_calls>\n", "</tool_calls>"),
        between="",
        text="Yes.",
        called=f'<tool_calls>\n{{"name": "look", "arguments": {JSON}}}\n</tool_calls>',
        quiet=True,
    ),
    "gemma-4": Family(
        "gemma-4",
        ("<|turn>user\n", "<turn|>\n"),
        ("<|turn>model\n", "<turn|>\n"),
        thoughts=("<|channel>thought\n", "\n<channel|>"),
        call=said("<|tool_call>call:")
        + "{{ f.name }}{% raw %}{{% endraw %}{% for k, v in f.arguments.items() %}"
        + "{{ ',' if not loop.first }}{{ k }}:{{ '<|\"|>' ~ v ~ '<|\"|>' if v is string else v }}"
        + "{% endfor %}{% raw %}}{% endraw %}"
        + said("<tool_call|>"),
        between="",
        text="<|channel>thought\nHm.\n<channel|>Yes.",
        called='<|channel>thought\nHm.\n<channel|><|tool_call>call:look{city:<|"|>Oslo "N"<|"|>,'
        "n:3}<tool_call|>",
    ),
    "lfm2": Family(
        "lfm2",
        **IM,
        text="<think>Hm.</think>Yes.",
        called="<think>Hm.</think><|tool_call_start|>[look(city='Oslo \"N\"', n=3)]"
        "<|tool_call_end|>",
        extra="{% if tools %}List of tools: [{{ tools[0] }}]{% endif %}{# <think> #}",
        repeats=False,  # the text is the same, but strings are written as JSON
    ),
    "granite-3.3": Family(
        "granite-3",
        **GRANITE,
        text="<think>Hm.</think>\n<response>Yes.</response>",
        called=f'<think>Hm.</think><|tool_call|>[{{"name": "look", "arguments": {JSON}}}]',
        extra="{# <think> </think> <response> </response> <|tool_call|> #}",
        repeats=False,
    ),
    "granite-4": Family(
        "hermes", **GRANITE, call=HERMES, text="Yes.", called=HERMES_CALL, quiet=True
    ),
    "smollm-3": Family(
        "hermes",
        **IM,
        call=HERMES,
        text="<think>\nHm.\n</think>\n\nYes.",
        called=f"<think>\nHm.\n</think>\n\n{HERMES_CALL}",
        extra="{# <think> #}",
    ),
    "smollm-3-python": Family(
        "smollm-python",
        **IM,
        text="<think>\nHm.\n</think>\n\nYes.",
        called="<think>\nHm.\n</think>\n\n<code>\nlook(city='Oslo \"N\"', n=3)\n</code>",
        extra="{# <think> <code> #}",
        repeats=False,
    ),
    "ministral-3": Family(
        "mistral-args",
        ("[INST]", "[/INST]"),
        ("", "</s>"),
        thoughts=("[THINK]", "[/THINK]"),
        call=named("[TOOL_CALLS]", "[ARGS]", ""),
        between="",
        text="[THINK]Hm.[/THINK]Yes.",
        called=f"[THINK]Hm.[/THINK][TOOL_CALLS]look[ARGS]{JSON}",
    ),
    "mistral-nemo": Family(
        "mistral",
        ("[INST]", "[/INST]"),
        ("", "</s>"),
        call=named('{"name": "', '", "arguments": ', "}"),
        calls=("[TOOL_CALLS][", "]"),
        between=", ",
        text="Yes.",
        called=f'[TOOL_CALLS][{{"name": "look", "arguments": {JSON}}}]',
        quiet=True,
    ),
    "hunyuan": Family(
        "hunyuan",
        ("<user>", ""),
        ("<assistant>", "<eos>"),
        thoughts=("<think>", "</think>"),
        call=said("<tool_call:opensource>")
        + "{{ f.name }}"
        + said("<tool_sep:opensource>\n")
        + pairs(
            "<arg_key:opensource>",
            "</arg_key:opensource>\n<arg_value:opensource>",
            "</arg_value:opensource>\n",
        )
        + said("</tool_call:opensource>\n"),
        calls=("<tool_calls:opensource>\n", "</tool_calls:opensource>"),
        between="",
        text="<think>Hm.</think>Yes.",
        called="<think>Hm.</think><tool_calls:opensource>\n<tool_call:opensource>look"
        "<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n"
        '<arg_value:opensource>Oslo "N"</arg_value:opensource>\n<arg_key:opensource>n'
        "</arg_key:opensource>\n<arg_value:opensource>3</arg_value:opensource>\n"
        "</tool_call:opensource>\n</tool_calls:opensource>",
    ),
    "ernie-4.5": Family(
        "hermes",
        **IM,
        begin=OPENED,
        thoughts=("<think>\n", "\n</think>\n\n"),
        call=HERMES,
        text="Hm.\n</think>\n\n<response>\nYes.\n</response>\n",
        called=f"Hm.\n</think>\n\n{HERMES_CALL}",
        extra="{# <response> </response> #}",
    ),
    "seed-oss": Family(
        "seed",
        ("<seed:bos>user\n", "<seed:eos>"),
        ("<seed:bos>assistant\n", "<seed:eos>"),
        thoughts=("<seed:think>", "</seed:think>\n"),
        call=said("<seed:tool_call>\n<function=")
        + "{{ f.name }}"
        + said(">\n")
        + pairs("<parameter=", ">", "</parameter>\n")
        + said("</function>\n</seed:tool_call>"),
        text="<seed:think>Hm.</seed:think>\nYes.",
        called="<seed:think>Hm.</seed:think>\n<seed:tool_call>\n<function=look>\n<parameter=city>Oslo"
        ' "N"</parameter>\n<parameter=n>3</parameter>\n</function>\n</seed:tool_call>',
    ),
    "apertus": Family(
        "apertus",
        ("<|user_start|>", "<|user_end|>"),
        ("<|assistant_start|>", "<|assistant_end|>"),
        call=named('{"', '": ', "}"),
        calls=("<|tools_prefix|>[", "]<|tools_suffix|>"),
        between=", ",
        text="<|inner_prefix|>Hm.<|inner_suffix|>Yes.",
        called=f'<|inner_prefix|>Hm.<|inner_suffix|><|tools_prefix|>[{{"look": {JSON}}}]'
        "<|tools_suffix|>",
        extra="{# <|inner_prefix|> #}",
        repeats=False,
    ),
    "command-r7b": Family(
        "cohere",
        ("<|START_OF_TURN_TOKEN|><|USER_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
        ("<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
        thoughts=("<|START_THINKING|>", "<|END_THINKING|>"),
        call=said('\n    {"tool_call_id": "')
        + "{{ loop.index0 }}"
        + said('", "tool_name": "')
        + "{{ f.name }}"
        + said('", "parameters": ')
        + "{{ f.arguments | tojson }}}",
        calls=("<|START_ACTION|>[", "\n]<|END_ACTION|>"),
        between=",",
        text="<|START_THINKING|>Hm.<|END_THINKING|>Yes.",
        called='<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", '
        f'"tool_name": "look", "parameters": {JSON}}}\n]<|END_ACTION|>',
    ),
    "solar": Family(
        "solar",
        ("<|begin|>user<|content|>", "<|end|>"),
        ("<|begin|>assistant", "<|end|>"),
        thoughts=("<|think|>", "<|end|><|begin|>assistant<|content|>"),
        field="reasoning",
        call=said("<|tool_call:begin|>")
        + "{{ c.id }}"
        + said("<|tool_call:name|>")
        + "{{ f.name }}"
        + said("<|tool_call:args|>")
        + "{{ f.arguments | tojson }}"
        + said("<|tool_call:end|>"),
        calls=("<|tool_calls|>", "<|calls|>"),
        between="",
        text="<|think|>Hm.<|end|><|begin|>assistant<|content|>Yes.<|end|>",
        called="<|think|>Hm.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1"
        f"<|tool_call:name|>look<|tool_call:args|>{JSON}<|tool_call:end|><|calls|>",
        repeats=False,  # the mark before a text stands before these calls, too
    ),
    "functionary-3.2": Family(
        "functionary-3",
        ("<user>", "<end>"),
        ("<assistant>", "<end>"),
        begin="<assistant>>>>",
        content="'>>>all\\n' ~ m.content if m.content else ''",
        call=named(">>>", "\n", ""),
        between="",
        text="all\nYes.",
        called=f"look\n{JSON}",
        quiet=True,
    ),
    "gigachat-3": Family(
        "gigachat-3",
        ("user<|role_sep|>\n", "<|message_sep|>\n\n"),
        ("assistant<|role_sep|>\n", "<|message_sep|>\n\n"),
        call=named(
            '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "', '", "arguments": ', "}"
        ),
        text="Yes.",
        called='<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "look", "arguments": '
        f"{JSON}}}",
        quiet=True,
    ),
    "gigachat-3.5": Family(
        "gcml-tool_calls",
        ("user<|role_sep|>\n", "<|message_sep|>\n\n"),
        ("assistant<|role_sep|>\n", "<|message_sep|>\n\n"),
        begin="assistant<|role_sep|>\n<think>",
        thoughts=("<think>", "</think>\n\n"),
        call=invoked(GCML),
        calls=(f"<{GCML}tool_calls>\n", f"</{GCML}tool_calls>"),
        between="",
        text="Hm.</think>\n\nYes.",
        called=f'Hm.</think>\n\n<{GCML}tool_calls>\n<{GCML}invoke name="look">\n<{GCML}parameter '
        f'name="city" string="true">Oslo "N"</{GCML}parameter>\n<{GCML}parameter name="n" '
        f'string="false">3</{GCML}parameter>\n</{GCML}invoke>\n</{GCML}tool_calls>',
    ),
    "muse-glimmer": Family(
        "atem",
        ("<|start|>user<|message|>", "<|eot|>"),
        ("<|start|>assistant", "<|eot|>"),
        thoughts=(" to=self<|message|>", "<|eom|><|start|>assistant"),
        content="' to=user<|message|>' ~ m.content if m.content else ''",
        extra="Reasoning strength: {{ reasoning_strength | default('high') }}.",
        call=said(" to=")
        + "{{ f.name }}"
        + said('<|message|><atem:function_calls>\n<atem:invoke name="')
        + "{{ f.name }}"
        + said('">\n')
        + pairs('<atem:parameter name="', '">', "</atem:parameter>\n")
        + said("</atem:invoke>\n</atem:function_calls>"),
        between="<|eom|><|start|>assistant",
        text=" to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Yes.<|eot|>",
        called=" to=self<|message|>Hm.<|eom|><|start|>assistant to=look<|message|>"
        '<atem:function_calls>\n<atem:invoke name="look">\n<atem:parameter name="city">Oslo "N"'
        '</atem:parameter>\n<atem:parameter name="n">3</atem:parameter>\n</atem:invoke>\n'
        "</atem:function_calls>",
    ),
    "kimi-k3": Family(
        "kimi-3",
        ('<|open|>message role="user"<|sep|>', "<|close|>message<|sep|><|end_of_msg|>"),
        ('<|open|>message role="assistant"<|sep|>', "<|close|>message<|sep|><|end_of_msg|>"),
        begin='<|open|>message role="assistant"<|sep|><|open|>think<|sep|>',
        thoughts=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        content="'<|open|>response<|sep|>' ~ m.content ~ '<|close|>response<|sep|>'",
        call=said('<|open|>call tool="')
        + "{{ f.name }}"
        + said('" index="')
        + "{{ loop.index }}"
        + said('"<|sep|>')
        + "{% for k, v in f.arguments.items() %}"
        + said('<|open|>argument key="')
        + "{{ k }}"
        + said('" type="')
        + "{{ 'string' if v is string else 'number' }}"
        + said('"<|sep|>')
        + "{{ v if v is string else v | tojson }}"
        + said("<|close|>argument<|sep|>")
        + "{% endfor %}"
        + said("<|close|>call<|sep|>"),
        calls=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
        between="",
        text="Hm.<|close|>think<|sep|><|open|>response<|sep|>Yes.<|close|>response<|sep|>"
        "<|close|>message<|sep|>",
        called="Hm.<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|>"
        '<|open|>tools<|sep|><|open|>call tool="look" index="1"<|sep|><|open|>argument key="city" '
        'type="string"<|sep|>Oslo "N"<|close|>argument<|sep|><|open|>argument key="n" '
        'type="number"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
        "<|close|>message<|sep|>",
    ),
    "apriel-1.6": Family(
        "apriel",
        ("\n<|begin_user|>\n", "\n<|end|>\n"),
        ("\n<|begin_assistant|>\n", "\n<|end|>\n"),
        begin="\n<|begin_assistant|>\nHere are my reasoning steps:\n",
        thoughts=("", "\n[BEGIN FINAL RESPONSE]\n"),
        call=named('{"name": "', '", "arguments": ', "}"),
        calls=("\n<tool_calls>[", "]</tool_calls>"),
        between=", ",
        text="Hm.\n[BEGIN FINAL RESPONSE]\nYes.",
        called='Hm.\n[BEGIN FINAL RESPONSE]\n\n<tool_calls>[{"name": "look", "arguments": '
        f"{JSON}}}]</tool_calls>",
        extra="{# <tool_calls>[ #}",
        repeats=False,  # earlier answers lack what the prompt begins with
    ),
    **LATE,
}
