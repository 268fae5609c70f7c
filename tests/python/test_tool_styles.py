"""Calls that are read as a whole, as models of many families write them, and bare JSON."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest
from circles import pick
from powerinfer_cpp.text.chat import TemplateFormat
from powerinfer_cpp.text.thinking import Thinking
from powerinfer_cpp.text.tool_chat import prepare
from powerinfer_cpp.text.tools import (
    STYLES,
    CallBegin,
    ToolParser,
    ToolRequest,
    check_tools,
    message,
    parser_of,
    style_of,
)

from powerinfer_cpp import LlamaGrammar

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "n": {"type": "integer"},
        "more": {"type": "object", "properties": {"deep": {"type": "boolean"}}},
    },
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
REQUEST = ToolRequest.of(TOOLS)
assert REQUEST is not None
FIRST = {"city": '12 "<a>"\nb', "n": 3, "more": {"deep": True}}
D, M = "\uff5cDSML\uff5c", "]<]minimax[>["


def deepseek(mark: str) -> str:
    return f"<\uff5ctool\u2581{mark}\uff5c>"


JSON = json.dumps(FIRST)
TEXTS = {
    "qwen-coder": '<tool_call>\n<function=look>\n<parameter=city>\n12 "<a>"\nb\n</parameter>\n'
    '<parameter=n>\n3\n</parameter>\n<parameter=more>\n{"deep": true}\n</parameter>\n'
    "</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "seed": '<seed:tool_call>\n<function=look>\n<parameter=city>12 "<a>"\nb</parameter>\n'
    "<parameter=n>3</parameter>\n<parameter=more>{'deep': True}</parameter>\n</function>\n"
    "</seed:tool_call><seed:tool_call><function=now></function></seed:tool_call>",
    "glm": '<tool_call>look\n<arg_key>city</arg_key>\n<arg_value>12 "<a>"\nb</arg_value>\n'
    "<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n<arg_key>more</arg_key>\n"
    '<arg_value>{"deep": true}</arg_value>\n</tool_call>\n<tool_call>now</tool_call>',
    "glm-4.7": '<tool_call>look<arg_key>city</arg_key><arg_value>12 "<a>"\nb</arg_value>'
    "<arg_key>n</arg_key><arg_value>3</arg_value><arg_key>more</arg_key><arg_value>"
    '{"deep": true}</arg_value></tool_call><tool_call>now</tool_call>',
    "hunyuan": "<tool_calls:opensource>\n<tool_call:opensource>look<tool_sep:opensource>\n"
    '<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>12 "<a>"\nb'
    "</arg_value:opensource>\n<arg_key:opensource>n</arg_key:opensource>\n"
    "<arg_value:opensource>3</arg_value:opensource>\n<arg_key:opensource>more"
    '</arg_key:opensource>\n<arg_value:opensource>{"deep": true}</arg_value:opensource>\n'
    "</tool_call:opensource>\n<tool_call:opensource>now<tool_sep:opensource>\n"
    "</tool_call:opensource>\n</tool_calls:opensource>",
    "minimax": '<minimax:tool_call>\n<invoke name="look">\n<parameter name="city">12 "<a>"\nb'
    '</parameter>\n<parameter name="n">3</parameter>\n<parameter name="more">{"deep": true}'
    '</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
    "atem": '<atem:function_calls>\n<atem:invoke name="look">\n<atem:parameter name="city">'
    '12 "<a>"\nb</atem:parameter>\n<atem:parameter name="n">3</atem:parameter>\n'
    '<atem:parameter name="more">{"deep": true}</atem:parameter>\n</atem:invoke>\n'
    '<atem:invoke name="now">\n</atem:invoke>\n</atem:function_calls>',
    "minicpm": '<function name="look"><param name="city"><![CDATA[12 "<a>"\nb]]></param>'
    '<param name="n">3</param><param name="more">{"deep": true}</param></function>\n'
    '<function name="now"></function>',
    "functionary": f"<function=look>{JSON}</function><function=now>{{}}</function>",
    "dsml-function_calls": f'<{D}function_calls>\n<{D}invoke name="look">\n'
    f'<{D}parameter name="city" string="true">12 "<a>"\nb</{D}parameter>\n'
    f'<{D}parameter name="n" string="false">3</{D}parameter>\n'
    f'<{D}parameter name="more" string="false">{{"deep": true}}</{D}parameter>\n'
    f'</{D}invoke>\n<{D}invoke name="now">\n</{D}invoke>\n</{D}function_calls>',
    "deepseek": f"{deepseek('calls▁begin')}{deepseek('call▁begin')}look{deepseek('sep')}{JSON}"
    f"{deepseek('call▁end')}{deepseek('call▁begin')}now{deepseek('sep')}{{}}"
    f"{deepseek('call▁end')}{deepseek('calls▁end')}",
    "deepseek-r1": f"{deepseek('calls▁begin')}{deepseek('call▁begin')}function{deepseek('sep')}look"
    f"\n```json\n{JSON}\n```{deepseek('call▁end')}\n{deepseek('call▁begin')}function"
    f"{deepseek('sep')}now\n```json\n{{}}\n```{deepseek('call▁end')}{deepseek('calls▁end')}",
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0"
    f"<|tool_call_argument_begin|>{JSON}<|tool_call_end|><|tool_call_begin|>functions.now:1"
    "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    "lfm2": '<|tool_call_start|>[look(city=\'12 "<a>"\\nb\', n=3, more={"deep": true}), now()]'
    "<|tool_call_end|>",
    "gemma-4": '<|tool_call>call:look{city:<|"|>12 "<a>"\nb<|"|>,n:3,more:{deep:true}}<tool_call|>'
    "<|tool_call>call:now{}<tool_call|>",
    "nemotron": f'<TOOLCALL>[{{"name": "look", "arguments": {JSON}}}, '
    '{"name": "now", "arguments": {}}]</TOOLCALL>',
    "apriel": f'<tool_calls>[{{"name": "look", "arguments": {JSON}, "id": "1"}}, '
    '{"name": "now", "arguments": {}}]</tool_calls>',
    "cohere": '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "look", "parameters": '
    f'{JSON}}},\n    {{"tool_call_id": "1", "tool_name": "now", "parameters": {{}}}}\n]'
    "<|END_ACTION|>",
    "apertus": f'<|tools_prefix|>[{{"look": {JSON}}}, {{"now": {{}}}}]<|tools_suffix|>',
    "gigachat": f'<|function_call|>{{"name": "look", "arguments": {JSON}}}<|function_call|>'
    '{"name": "now", "arguments": {}}',
    "minimax-3": f'{M}<tool_call>\n{M}<invoke name="look">{M}<city>12 "<a>"\nb{M}</city>{M}<n>3'
    f"{M}</n>{M}<more>{M}<deep>true{M}</deep>{M}</more>{M}</invoke>\n{M}<invoke "
    f'name="now">{M}</invoke>\n{M}</tool_call>',
    "granite-3": f'<|tool_call|>[{{"name": "look", "arguments": {JSON}}}, '
    '{"name": "now", "arguments": {}}]',
    "minimax-1": f'<tool_calls>\n{{"name": "look", "arguments": {JSON}}}\n'
    '{"name": "now", "arguments": {}}\n</tool_calls>',
    "smollm-python": '<code>\nlook(city=\'12 "<a>"\\nb\', n=3, more={"deep": True})\nnow()\n'
    "</code>",
    "solar": "<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>look<|tool_call:args|>"
    f"{JSON}<|tool_call:end|><|tool_call:begin|>a2<|tool_call:name|>now<|tool_call:args|>{{}}"
    "<|tool_call:end|><|calls|>",
}


def parse(style: str, pieces: Sequence[str]) -> dict[str, Any]:
    ids = itertools.count()
    one = parser_of(STYLES[style], REQUEST, new_id=lambda: f"c{next(ids)}")
    assert one is not None
    events = [event for piece in pieces for event in one.push(piece)]
    return message(events + one.finish())


def calls(found: dict[str, Any]) -> list[tuple[str, Any]]:
    of = [call["function"] for call in found.get("tool_calls", [])]
    return [(call["name"], json.loads(call["arguments"])) for call in of]


@pytest.mark.parametrize("style", TEXTS)
def test_calls_of_a_style(style: str) -> None:
    text = TEXTS[style]
    found = parse(style, [text])
    assert calls(found) == [("look", FIRST), ("now", {})] and found["content"] is None
    # In the quick circle other places for each style.
    for at in range(len(style) % pick(6, 1), len(text), pick(6, 1)):
        assert parse(style, [text[:at], text[at:]]) == found
    around = parse(style, [f"I look. {text}\n Well"])
    assert calls(around) == calls(found) and around["content"].split() == ["I", "look.", "Well"]


@pytest.mark.parametrize("style", TEXTS)
def test_arguments_are_passed_on_while_they_are_written(style: str) -> None:
    one = ToolParser(STYLES[style], REQUEST.names, tools=REQUEST.tools)
    long = "12 " * 200
    text = TEXTS[style].replace("12 ", long)
    events = one.push(text[: text.index(long) + len(long) + 1])
    begin, *rest = events
    assert isinstance(begin, CallBegin) and begin.name == "look"
    assert "".join(event.text for event in rest).startswith('{"city": "12 12 ')
    # A text that is short may be a command: it is passed on when it is whole.
    one = ToolParser(STYLES[style], REQUEST.names, tools=REQUEST.tools)
    assert one.push(TEXTS[style][: TEXTS[style].index("12 ") + 3]) == []


@pytest.mark.parametrize("style", STYLES)
def test_written_calls_are_read(style: str) -> None:
    made = [("look", FIRST), ("now", {})][: 1 if STYLES[style].between is None else 2]
    functions = [{"name": name, "arguments": arguments} for name, arguments in made]
    text = STYLES[style].written([{"id": "a", "function": of} for of in functions])
    found = parse(style, [text])
    assert calls(found) == made and found["content"] is None


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=look>\n<parameter=city>\nx\n</parameter>\n</function>\nWell",
        "<tool_call><function=look><parameter=city>x</parameter></function>\n<tool_call>",
        '<tool_call><function=look>{"city": "x"}</function></tool_call>',
    ],
)
def test_calls_that_are_written_badly(text: str) -> None:
    found = parse("qwen-coder", [text])
    assert calls(found) == [("look", {"city": "x"})]
    assert (found["content"] or "").strip() in ("", "Well", "<tool_call>")
    for at in range(len(text)):
        assert parse("qwen-coder", [text[:at], text[at:]]) == found


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call><function=look><parameter=n>3</parameter>",
        "<tool_call><function=look>odd</function></tool_call>",
        '<tool_call><function=look>{"city": x}</function></tool_call>',
        "<tool_call><function=look" + "x" * 300 + "></function></tool_call>",
        "<tool_call><function=></function></tool_call>",
    ],
)
def test_a_call_that_is_broken_is_text(text: str) -> None:
    assert parse("qwen-coder", [text]) == {"role": "assistant", "content": text}
    assert parse("qwen-coder", text) == {"role": "assistant", "content": text}


def test_a_head_that_may_become_another() -> None:
    """However it is cut: a name alone is a head, too, but here a longer one has it."""
    text = f"{deepseek('call▁begin')}now{deepseek('sep')}"
    for at in range(len(text)):
        assert calls(parse("deepseek-r1", [text[:at], text[at:]])) == [("now", {})]


@pytest.mark.parametrize("style", TEXTS)
def test_what_is_no_call_of_a_style(style: str) -> None:
    """Calls of other functions, and what is cut, are text, unchanged."""
    text = TEXTS[style]
    cut = text[: text.index("<a>")]
    for other in (text.replace("look", "odd").replace("now", "odder"), cut):
        assert parse(style, [other]) == {"role": "assistant", "content": other}
    opening = STYLES[style].opening
    assert parse(style, [f"{opening} {STYLES[style].closing}"])["content"].startswith(opening)


def test_line_breaks_in_texts_of_python() -> None:
    for style in ("lfm2", "smollm-python"):
        body = "look(city='a\nb')"
        text = STYLES[style].written([]).replace("[]", f"[{body}]").replace("><", f">{body}<")
        assert calls(parse(style, [text])) == [("look", {"city": "a\nb"})]


def test_ids_that_must_come_back() -> None:
    ids = [call["id"] for call in parse("kimi", [TEXTS["kimi"]])["tool_calls"]]
    assert ids == ["functions.look:0", "functions.now:1"]


def test_values_follow_the_schema() -> None:
    """A text that looks like a number stays one where the schema says so."""

    def value(kind: Any, text: str) -> Any:
        schema = {"type": "object", "properties": {"a": {"type": kind} if kind else {}}}
        (tool,) = check_tools(
            [{"type": "function", "function": {"name": "f", "parameters": schema}}]
        )
        one = ToolParser(STYLES["qwen-coder"], {"f"}, tools=[tool])
        said = f"<tool_call><function=f><parameter=a>{text}</parameter></function></tool_call>"
        ((_, found),) = calls(message(one.push(said) + one.finish()))
        return found["a"]

    assert value("string", "12") == "12" and value("integer", "12") == 12
    assert value(["string", "null"], "null") is None and value(None, "[1]") == [1]
    assert value("string", "null") == "null" and value("boolean", "True") is True
    assert value("object", "{'a': None}") == {"a": None} and value("object", "{odd") == "{odd"
    assert value("string", "\n\n a \n\n") == "\n a \n"


def test_values_of_tags_in_tags() -> None:
    item = {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": item}, "b": {"type": "array"}},
    }
    (tool,) = check_tools([{"type": "function", "function": {"name": "f", "parameters": schema}}])

    def value(text: str) -> Any:
        one = ToolParser(STYLES["minimax-3"], {"f"}, tools=[tool])
        said = f'#<tool_call>#<invoke name="f">{text}#</invoke>#</tool_call>'.replace("#", M)
        found = message(one.push(said) + one.finish())
        return [arguments for _, arguments in calls(found)]

    text = "#<a>#<item>#<s>1#</s>#<n>2#</n>#</item>#<item>#<s>x#</s>#</item>#</a>"
    assert value(text) == [{"a": [{"s": "1", "n": 2}, {"s": "x"}]}]
    assert value("#<b>#<item>1#</item>#<item>y#</item>#</b>") == [{"b": [1, "y"]}]
    assert value("#<b>[1]#</b>") == [{"b": [1]}]
    for wrong in ("#<b>#<item>1#</b>", "#<b>1#</item>#</b>", "#<b>" + "#<item>" * 9000 + "#</b>"):
        assert value(wrong) == []


@pytest.mark.xdist_group("timed")
@pytest.mark.parametrize("value", [" ", "\n", "<", "</", "a", "<![CDATA["])
def test_long_values_take_linear_time(value: str) -> None:
    text = value * (pick(15_000, 60_000) // len(value))
    start = time.process_time()
    for key in ("city", "more"):
        head = f"<tool_call>\n<function=look>\n<parameter={key}>\n"
        found = parse("qwen-coder", f"{head}{text}\n</parameter>\n</function>\n</tool_call>")
        assert found.get("tool_calls") or value != "a"
    n = pick(700, 3000)
    parse("qwen-coder", "<tool_call><function=" * n + "<tool_call>" * 2 * n)
    assert time.process_time() - start < pick(2.5, 10)  # it takes a tenth of that


CALL = '{"name": "look", "arguments": {"city": "x"}}'
LOOK = [("look", {"city": "x"})]


@pytest.mark.parametrize("style", ["hermes", "mistral", "qwen-coder", "glm"])
@pytest.mark.parametrize(
    ("text", "content"),
    [
        (CALL, None),
        (f" {CALL}\n", None),
        (f"```json\n{CALL}\n```", None),
        (f"```\n{CALL}\n```\n", None),
        (f"```json\n{CALL}", None),
        (f"{{{CALL}}}", None),
        (f"```json\n{{{CALL}\n}}\n```", None),
        (CALL[:-1], None),
        (f"{{{CALL}", None),
        (f"[{CALL}]", None),
        (f"```json\n[{CALL},]\n```", None),
        ('[look(city="x")]', None),
        ("```python\nlook(city='x')\n```", None),
    ],
)
def test_bare_and_fenced_calls(style: str, text: str, content: str | None) -> None:
    found = parse(style, [text])
    assert calls(found) == LOOK
    assert (found["content"] or "").split() == (content or "").split()
    for at in range(len(text)):
        assert parse(style, [text[:at], text[at:]]) == found
    assert parse(style, text) == found


@pytest.mark.parametrize(
    "text",
    [
        f"I call {CALL}",
        f"{CALL} now",
        CALL.replace("look", "odd"),
        CALL.replace('{"city": "x"}', '["x"]'),
        f"{CALL}}}",
        f"I look:\n```json\n{CALL}\n```\nWell.",
        f"```json\n{CALL}\n```\nThis is how.",
        f"[{CALL}] and more",
        "[look](x)",
        '{"name": "look", "age": 3}',
        '{"city": "x"}',
        '{"name": "look", "arguments": {"city": "x"}, "other": 1',
        f"```json\n{CALL}\nand\n```",
        f"```python\nprint({CALL})\n```",
        "```\n{\n```",
        "`look`",
        "``` ``` `",
        f"text ```json\n{CALL}\n``` in a line",
    ],
)
def test_json_that_is_no_call(text: str) -> None:
    for style in ("hermes", "qwen-coder"):
        found = parse(style, [text])
        assert found == {"role": "assistant", "content": text}
        assert parse(style, text) == found


def test_which_style_a_template_has() -> None:
    for name, opening in (
        ("kimi", "<|tool_calls_section_begin|>"),
        ("minimax", "<minimax:tool_call>"),
        ("deepseek", deepseek("calls▁begin")),
        ("deepseek-r1", deepseek("calls▁begin") + "```json"),
        ("dsml-tool_calls", f"<{D}tool_calls>"),
        ("gemma-4", "<|tool_call>call:"),
        ("harmony", "<|start|><|channel|><|message|>functions."),
        ("functionary", "<function=x></function>"),
        ("functionary-3", ">>>all"),
        ("kimi-3", "<|open|><|close|><|sep|>"),
        ("gigachat", "<|role_sep|><|message_sep|><|function_call|>"),
        ("gigachat-3", "<|role_sep|><|message_sep|>"),
        ("gcml-tool_calls", "<|role_sep|><|message_sep|><\uff5cGCML\uff5c"),
        ("qwen-coder", "<tool_call><function=x></function>"),
        ("hunyuan", "<tool_calls{}>"),
    ):
        found = style_of(f"{{% if tools %}}{opening}{{% endif %}}")
        assert found is not None and found.name == name


# ---- Templates ----


def test_arguments_as_a_template_takes_them() -> None:
    """As an object, or as a text where the template joins it to others."""
    said = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "a", "function": {"name": "look", "arguments": '{"n": 3}'}}],
    }
    ask = {"role": "user", "content": "x"}
    for written in ("call.arguments | tojson", "call.arguments", "'' + call.arguments"):
        source = (
            "{% for m in messages %}{% for c in m.tool_calls or [] %}{% set call = c.function %}"
            f"<{{{{ {written} }}}}>{{% endfor %}}{{% endfor %}}"
        )
        assert TemplateFormat(source, "", "")([ask, said]).text == '<{"n": 3}>'


CHATML = """{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant
{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ '\\n' if m.content else '' }}\
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}{% if tools %}{% endif %}{% if add_generation_prompt %}\
<|im_start|>assistant
{% if opens %}<think>
{% endif %}{% endif %}"""


@pytest.mark.parametrize("opens", [False, True])
@pytest.mark.parametrize("text", ["", "I look.\n"])
def test_the_next_prompt_repeats_the_answer(opens: bool, text: str) -> None:
    """So what a server computed for a call is known when its result comes."""
    thinking = Thinking().asked(chat_template_kwargs={"opens": opens})
    template, ask = TemplateFormat(CHATML, "", ""), {"role": "user", "content": "x"}
    first = prepare(template, [ask], REQUEST, lambda _: {}, thinking=thinking)
    said = "Hm.\n</think>\n\n" if opens else "<think>\nHm.\n</think>\n\n"
    call = '<tool_call>\n{"name": "look", "arguments": {"city": "x"}}\n</tool_call>'
    said += text + call
    parser = first.parser
    assert parser is not None
    answer = message(parser.push(said) + parser.finish())
    result = {"role": "tool", "content": "sunny", "tool_call_id": answer["tool_calls"][0]["id"]}
    second = prepare(template, [ask, answer, result], REQUEST, lambda _: {}, thinking=thinking)
    assert second.text.startswith(first.text + said + "<|im_end|>")


# ---- Forced calls ----


def plain_bytes(compiled: str, seed: int) -> str | None:
    """A text that a grammar admits, drawn at random; None if it is long."""
    llguidance = pytest.importorskip("llguidance")
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), compiled, log_level=0)
    draw, out = random.Random(seed), bytearray()
    for _ in range(3000):
        bits = matcher.compute_bitmask()
        allowed = [i for i in range(256) if bits[i >> 3] >> (i & 7) & 1]
        if matcher.is_accepting() and (not allowed or draw.random() < 0.5):
            return out.decode()
        closing = [byte for byte in b'\n</"}>\xef\xbd\x9c' if byte in allowed]
        text = [byte for byte in allowed if 32 <= byte < 127]
        token = draw.choice(closing if closing and draw.random() < 0.3 else text or allowed)
        assert matcher.consume_token(token)
        out.append(token)
    return None


# JSON alone and with a name before it, tags, calls of Python, unquoted texts, and channels.
FORCED = pick(("hermes", "kimi", "qwen-coder", "lfm2", "gemma-4", "harmony"), tuple(STYLES))


@pytest.mark.parametrize("style", FORCED)
def test_forced_calls_are_read(style: str) -> None:
    """What a grammar admits is a call, with arguments that follow the schema."""
    request = ToolRequest.of(TOOLS, "required")
    assert request is not None and STYLES[style].can_force(request)
    grammar = LlamaGrammar.from_tool_calls(STYLES[style].forced(request))
    drawn = (plain_bytes(grammar._compiled, seed) for seed in range(8))
    texts = list(itertools.islice(filter(None, drawn), pick(3, 8)))
    assert texts
    for text in texts:
        text = STYLES[style].begin + text
        found = parse(style, [text])
        assert found["content"] is None, text
        for name, given in calls(found):
            assert name == "now" or isinstance(given["city"], str)
            assert isinstance(given.get("n", 0), int)


def test_what_a_style_cannot_force() -> None:
    """Raw texts have no rules for their characters: then calls are JSON, in the style of Hermes."""
    for more in ({"pattern": "a+"}, {"format": "date"}, {"enum": ["<", "a"]}):
        schema = {"type": "object", "properties": {"a": {"type": "string", **more}}}
        tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
        request = ToolRequest.of(tools, "required")
        assert request is not None
        assert not STYLES["qwen-coder"].can_force(request) and STYLES["kimi"].can_force(request)
        assert STYLES["lfm2"].can_force(request)
    odd = {"type": "object", "properties": {"from": {"type": "string"}}}
    request = ToolRequest.of(
        [{"type": "function", "function": {"name": "f", "parameters": odd}}], "required"
    )
    assert request is not None and STYLES["qwen-coder"].can_force(request)
    assert not STYLES["lfm2"].can_force(request)
