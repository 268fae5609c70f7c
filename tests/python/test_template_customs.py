"""What chat templates refuse, drop or write as Python, and what reaches the prompt all the same."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from powerinfer_cpp.llama_chat_format import FormatHandler, Jinja2ChatFormatter
from powerinfer_cpp.text.chat import TemplateFormat, check_messages
from powerinfer_cpp.text.template import ChatTemplate, TemplateError
from powerinfer_cpp.text.tool_chat import prepare
from powerinfer_cpp.text.tools import ToolRequest
from powerinfer_cpp.text.tools.arguments import read_arguments
from test_reader_costs import UNITS, check

# Each writes messages as <role>text</role>, so that places are seen.
ANY = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
REFUSES = (
    "{% for m in messages %}{% if WHEN %}{{ raise_exception('not so') }}{% endif %}{% endfor %}"
)
NO_SYSTEM = REFUSES.replace("WHEN", "m.role == 'system'") + ANY
FIRST_ONLY = REFUSES.replace("WHEN", "m.role == 'system' and not loop.first") + ANY
SILENT = ANY.replace("%}<", "if m.role != 'system' %}<")
ALTERNATING = REFUSES.replace("WHEN", "(m.role == 'user') != (loop.index0 % 2 == 0)") + ANY
# As Mistral's: the user's do not follow results.
BESIDE_CALLS = (
    "{% set n = namespace(i=0) %}{% for m in messages %}"
    "{% if m.role == 'user' or m.role == 'assistant' and not m.tool_calls %}"
    "{% if (m.role == 'user') != (n.i % 2 == 0) %}{{ raise_exception('not so') }}{% endif %}"
    "{% set n.i = n.i + 1 %}{% endif %}{% endfor %}[TOOL_CALLS] [ARGS] {{ tools }}"
    + ANY.replace("{{ m.content }}", "{{ m.content }}{{ m.tool_calls }}")
)
RULES, LATER = {"role": "system", "content": "Rules"}, {"role": "system", "content": "Later"}
ASK, MORE = {"role": "user", "content": "Ask"}, {"role": "user", "content": "More"}
SAID = {"role": "assistant", "content": "Said"}


def prompt(source: str, *messages: dict[str, Any], tools: Any = None) -> str:
    made = TemplateFormat(source, "<s>", "</s>")
    return prepare(made, messages, ToolRequest.of(tools), lambda _texts: {}).text


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (ANY, "system:Rules user:Ask assistant:Said system:Later user:More"),
        (NO_SYSTEM, "user:Rules+Ask assistant:Said user:Later+More"),
        (SILENT, "user:Rules+Ask assistant:Said user:Later+More"),
        (FIRST_ONLY, "system:Rules user:Ask assistant:Said user:Later+More"),
        (ALTERNATING, "user:Rules+Ask assistant:Said user:Later+More"),
    ],
    ids=["takes it", "refuses it", "drops it", "takes the first", "wants turns"],
)
def test_what_the_system_says_is_in_every_prompt(source: str, expected: str) -> None:
    found = prompt(source, RULES, ASK, SAID, LATER, MORE)
    assert found == as_written(expected)
    # A last message of the system's stands behind the question; two at first are one.
    end = "user:Ask+Later" if source is ALTERNATING else "user:Ask user:Later"
    assert prompt(source, ASK, LATER) == as_written(
        "user:Ask system:Later" if source is ANY else end
    )
    if source is FIRST_ONLY:
        assert prompt(source, RULES, LATER, ASK) == as_written("system:Rules+Later user:Ask")


def as_written(short: str) -> str:
    said = [each.partition(":")[::2] for each in short.split()]
    return "".join(f"<{role}>{text}</{role}>".replace("+", "\n\n") for role, text in said)


def called(arguments: Any, text: str = "") -> dict[str, Any]:
    function = {"name": "look", "arguments": arguments}
    call = {"id": "abcdefgh1", "type": "function", "function": function}
    return {"role": "assistant", "content": text, "tool_calls": [call]}


RESULT = {"role": "tool", "tool_call_id": "abcdefgh1", "content": "Found"}
LOOK = [{"type": "function", "function": {"name": "look", "description": "Looks."}}]


def test_messages_that_may_not_follow_each_other() -> None:
    joined = prompt(ALTERNATING, ASK, MORE, SAID, SAID, ASK)
    assert joined == as_written("user:Ask+More assistant:Said+Said user:Ask")
    # Results are the user's where a template knows no tools.
    assert "</tool_response>\n\nMore</user>" in prompt(ALTERNATING, ASK, called("{}"), RESULT, MORE)
    found = prompt(BESIDE_CALLS, ASK, called("{}"), RESULT, MORE, tools=LOOK)
    assert "<tool>Found\n\nMore</tool>" in found
    found = prompt(BESIDE_CALLS, ASK, called("{}"), RESULT, SAID, MORE, tools=LOOK)
    assert "<tool>Found</tool><assistant>Said</assistant><user>More</user>" in found


def test_results_that_a_template_drops_or_refuses_are_the_user_s() -> None:
    for when, turns in (("false", ANY.replace("%}<", "if m.role != 'tool' %}<")), ("true", ANY)):
        refuses = REFUSES.replace("WHEN", f"{when} and m.role == 'tool'")
        source = f"{{# [TOOL_CALLS] #}}{{{{ tools }}}}{refuses}{turns}"
        found = prompt(source, ASK, called("{}", "Hm"), RESULT, MORE, tools=LOOK)
        assert "<user><tool_response>\nFound\n</tool_response></user><user>More</user>" in found


def test_a_question_that_there_must_be() -> None:
    """An empty message of the user's comes first where a template refuses a chat without."""
    asks = "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}"
    asks += "{{ raise_exception('no question') }}{% endif %}" + ANY
    assert prompt(asks, RULES) == as_written("system:Rules user:")
    assert prompt(asks, SAID, LATER) == as_written("user: assistant:Said system:Later")
    assert prompt(asks, SAID, MORE) == as_written("assistant:Said user:More")
    assert prompt(ALTERNATING, SAID, MORE) == as_written("user: assistant:Said user:More")
    assert prompt(ALTERNATING, RULES) == as_written("user:Rules")
    assert prompt(ANY, SAID, LATER) == as_written("assistant:Said system:Later")


def test_results_have_the_names_of_their_calls() -> None:
    """As Hermes 2 Pro wants them."""
    named = REFUSES.replace("WHEN", "m.role == 'tool' and m.name is not defined")
    source = (
        '{# <tool_call> "name" #}{{ tools }}' + named + ANY.replace("{{ m.c", "{{ m.name }}{{ m.c")
    )
    call = called("{}")
    call["tool_calls"] += called("{}")["tool_calls"]
    call["tool_calls"][1] = {"id": "other0001", "function": {"name": "find", "arguments": "{}"}}
    other = {**RESULT, "tool_call_id": "other0001"}
    kept = {**RESULT, "name": "own"}
    found = prompt(source, ASK, call, other, RESULT, kept, tools=LOOK)
    assert "<tool>findFound</tool><tool>lookFound</tool><tool>ownFound</tool>" in found


def test_many_messages_are_joined_in_linear_time() -> None:
    made = TemplateFormat(ALTERNATING, "", "")
    many = check_messages([{"role": "user", "content": "x"}] * 100_000)
    (found,) = made._customs.fitted(many)
    assert len(found["content"]) == 3 * len(many) - 2


WRITES = "{% for c in m.tool_calls or [] %}<tool_call>ARGS</tool_call>{% endfor %}</"
CALLS = ANY.replace("</", WRITES, 1) + '{# "name" #}{% if tools %}{{ tools | tojson }}{% endif %}'
AS_IT_IS = CALLS.replace("ARGS", "{{ c.function.arguments }}")
JOINED = CALLS.replace("ARGS", "{{ 'a: ' + c.function.arguments }}")
AS_JSON = CALLS.replace("ARGS", "{{ c.function.arguments | tojson }}")


@pytest.mark.parametrize("source", [AS_IT_IS, JOINED, AS_JSON], ids=["as is", "joined", "JSON"])
def test_arguments_are_json_whatever_a_result_says(source: str) -> None:
    """A template writes arguments as they are, joins them to a text, or makes JSON of them; and a
    result repeats them as Python would write them."""
    given = {"path": "a's", "all": True, "n": None}
    repeats = {**RESULT, "content": f"called with {given}"}
    for result in (RESULT, repeats):
        found = prompt(source, ASK, called(given), result, MORE, tools=LOOK)
        written = found.split("<tool_call>")[1].split("</tool_call>")[0].removeprefix("a: ")
        assert json.loads(written) == given


def test_templates_that_need_a_list_of_tools() -> None:
    loops = "{% for t in tools %}[{{ t.function.name }}]{% endfor %}" + ANY
    assert prompt(loops, ASK) == as_written("user:Ask")
    # Its own notation is not known here, so tools are described as Hermes has them.
    found = prompt(loops, ASK, tools=LOOK)
    assert '"Looks."' in found and "[look]" not in found and "<tool_call>" in found
    functions = "{{ 'All: ' + functions + ' at ' + datetime }}" + ANY
    assert prompt(functions, ASK).startswith("All:  at ") and "Ask" in prompt(functions, ASK)
    assert '"Looks."' in prompt(functions, ASK, tools=LOOK)
    # Others are still told that there are none.
    assert prompt("{{ tools is none }}" + ANY, ASK) == "True" + as_written("user:Ask")
    with pytest.raises(TemplateError, match="not so"):
        prompt(REFUSES.replace("WHEN", "true") + ANY, ASK)


def test_a_formatter_fits_as_the_template_of_a_file() -> None:
    for source in (NO_SYSTEM, AS_IT_IS, "{% for t in tools %}{% endfor %}" + ANY):
        messages = [RULES, ASK, called({"a": 1}), RESULT]
        handler = FormatHandler(Jinja2ChatFormatter(source, "</s>", "<s>"))
        made = prepare(handler.format, messages, None, lambda _texts: {}).text
        assert made == prompt(source, *messages)


def test_a_limit_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy once does not settle what a template takes."""
    made = ChatTemplate("{% for t in tools %}{% endfor %}" + ANY)
    render = made.render

    def late(*_of: Any, **_names: Any) -> str:
        raise TemplateError("takes too long", by_limit=True)

    monkeypatch.setattr(made, "render", late)
    with pytest.raises(TemplateError, match="too long"):
        _ = made.without_tools
    monkeypatch.setattr(made, "render", render)
    assert made.without_tools == {"tools": []}


# ---- Arguments of earlier calls ----


def test_arguments_that_were_cut() -> None:
    """Of every beginning of a text stays what is whole, and of texts what is there."""
    given = {"file": 'a "b"\\c\n\u00e9\U0001f600', "lines": [1, {"deep": [True, "x"]}], "n": -2.5}
    whole = json.dumps(given)
    seen = []
    for n in range(len(whole) + 1):
        found = read_arguments(whole[:n])
        assert given["file"].startswith(found.get("file", "").rstrip("?"))
        json.dumps(found, ensure_ascii=False).encode()  # without half of a pair
        assert set(found) <= set(given) and found.get("n", -2.5) == -2.5
        seen.append(found)
    assert seen[0] == {} and seen[-1] == given
    assert {"file": given["file"], "lines": [1, {"deep": [True]}]} in seen


NO_OBJECTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "two": ('{"a": 1}{"a": 2}', {"a": 1}),
    "a line break, and more": ('{"a": "b\nc"} and more', {"a": "b\nc"}),
    "a text of it": (json.dumps('{"a": 1}'), {"a": 1}),
    "half of a pair": (r'{"a": "\ud83d"}', {"a": "?"}),
    "nothing": (None, {}),
    "a number": (3, {}),
    "a list of values": ([{"a": 1}], {}),
    "an empty text": ("", {}),
    "a list": ("[1, 2]", {}),
    "words": ("not JSON", {}),
    "brackets": ("{]", {}),
    "no colon": ('{"a": 1, "b" 2}', {}),
    "deep lists": ("[" * 100_000, {}),
    "deep objects": ('{"a":' * 100_000, {}),
}


@pytest.mark.parametrize("name", NO_OBJECTS)
def test_arguments_that_are_no_object(name: str) -> None:
    text, expected = NO_OBJECTS[name]
    assert read_arguments(text) == expected
    assert "More" in prompt(AS_JSON, ASK, called(text), RESULT, MORE)


@pytest.mark.xdist_group("timed")
@pytest.mark.parametrize("before", ['{"x": "', '{"x": [', ""], ids=["text", "list", "alone"])
def test_time_of_arguments_grows_with_the_text(before: str) -> None:
    def reads(unit: str) -> Callable[[int], float]:
        def read(n: int) -> float:
            text = before + unit * (n // len(unit))
            start = time.thread_time()
            read_arguments(text)
            return time.thread_time() - start

        return read

    plain = [unit for unit in UNITS.values() if "<" not in unit]
    slow = {unit: why for unit in plain if (why := check(reads(unit), 64 << 10))}
    assert not slow and len(plain) > 20
