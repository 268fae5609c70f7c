"""Models that think: thoughts apart from answers, their limits, and what templates are told."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from powerinfer_cpp.cli.terminal.talk import Talk
from powerinfer_cpp.llama_chat_format import Jinja2ChatFormatter
from powerinfer_cpp.text.chat import TemplateFormat, named_format
from powerinfer_cpp.text.thinking import Thinking
from powerinfer_cpp.text.thought_limit import ThoughtLimit, ThoughtProcessor
from powerinfer_cpp.text.tool_chat import prepare
from powerinfer_cpp.text.tools import (
    STYLES,
    CallArguments,
    Content,
    Event,
    HarmonyParser,
    Parser,
    Thought,
    ThoughtParser,
    Thoughts,
    ToolParser,
    ToolRequest,
    message,
)

from powerinfer_cpp import Llama, LlamaGrammar

# As templates of models that think are written: thoughts stay behind the last question only.
QWEN = """{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant
{% if m.reasoning_content and loop.last %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}<|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""
OPENS = QWEN.replace("{% endif %}{% endif %}{% endif %}", "").replace(
    "</think>\n\n{% endif %}{% endif %}", "</think>\n\n{% else %}<think>\n{% endif %}{% endif %}"
)
GEMMA = """{% for m in messages %}<|turn>{{ m.role }}
{% if m.reasoning_content %}<|channel>thought
{{ m.reasoning_content }}<channel|>{% endif %}{{ m.content }}<turn|>
{% endfor %}{% if add_generation_prompt %}<|turn>model
{% endif %}"""
BRACKETS = """{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}\
{% if m.thinking is defined %}[THINK]{{ m.thinking }}[/THINK]{% endif %}{% endif %}\
{{ m.content }}{% endfor %}"""
INSIDE = """{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}{% endfor %}\
{% if add_generation_prompt %}<assistant><think>
{% endif %}"""
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
ASK = [{"role": "user", "content": "Why?"}]
THINK = Thoughts("<think>", "</think>")
AROUND = Thoughts("<think>", "</think>", lead="<a>b<c>", last="<d>")
ADD = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": ADD}}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def template(source: str) -> TemplateFormat:
    return TemplateFormat(source, "<s>", "</s>")


def merged(events: Sequence[Event]) -> list[Event]:
    """Events with adjacent texts of one kind joined."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, Content | Thought) and type(last) is type(event):
            found[-1] = type(event)(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            found[-1] = CallArguments(event.index, last.text + event.text)
        else:
            found.append(event)
    return found


def read(parser: Parser, pieces: Sequence[str]) -> list[Event]:
    events = [event for piece in pieces for event in parser.push(piece)]
    return merged(events + parser.finish())


def tool_parser(style: str = "hermes") -> ToolParser:
    return ToolParser(STYLES[style], {"add"}, new_id=itertools.count().__next__)  # type: ignore


# ---- Thoughts in texts ----


@pytest.mark.parametrize(
    ("text", "opened", "thoughts", "content"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", False, "Hm.", "Yes."),
        ("\n<think>Hm.</think>Yes.\n", False, "Hm.", "Yes.\n"),
        ("Hm.\n</think>\n\nYes.", True, "Hm.", "Yes."),
        ("</think>\n\nYes.", True, None, "Yes."),
        ("\n\n</think>\n\nYes.", True, None, "Yes."),
        ("<think>\n\n</think>\n\nYes.", False, None, "Yes."),
        ("</think>\n\nYes.", False, None, "Yes."),  # of a model that turned them off by itself
        ("<think>\nHm </thin", False, "Hm </thin", ""),
        ("Hm. And", True, "Hm. And", ""),
        ("<think>", False, None, ""),
        ("Yes <think>a</think>", False, None, "Yes <think>a</think>"),
        ("a</think>b", False, None, "a</think>b"),
        ("Hm</think>a<think>b</think>", True, "Hm", "a<think>b</think>"),
        ("a <b> < </thin> c</think>d", True, "a <b> < </thin> c", "d"),
        (" \n", False, None, " \n"),
        ("<thin", False, None, "<thin"),
        ("", True, None, ""),
    ],
)
def test_thoughts(text: str, opened: bool, thoughts: str | None, content: str) -> None:
    want = {"role": "assistant", "content": content}
    want |= {} if thoughts is None else {"reasoning_content": thoughts}
    for calls in (None, tool_parser()):
        events = read(ThoughtParser(THINK, opened, calls), [text])
        assert message(events) == want
        assert read(ThoughtParser(THINK, opened, calls and tool_parser()), text) == events
        for at in range(len(text)):
            pieces = [text[:at], text[at:]]
            again = ThoughtParser(THINK, opened, calls and tool_parser())
            assert read(again, pieces) == events


@pytest.mark.parametrize(
    ("text", "thoughts", "content", "n_calls"),
    [
        (f"Hm.</think>\n{CALL}", "Hm.", None, 1),
        (f"Hm. \n{CALL}", "Hm.", None, 1),  # a call ends them
        (f"I use <tool_call>, so {CALL}", "I use <tool_call>, so", None, 1),
        ("I use <tool_call> now.</think>Yes", "I use <tool_call> now.", "Yes", 0),
        ("I use <tool_call></think>Yes", "I use <tool_call>", "Yes", 0),
        ('a <tool_call>{"name": "odd"} b</think>c', 'a <tool_call>{"name": "odd"} b', "c", 0),
        ("a <tool_call></thi", "a <tool_call></thi", "", 0),
    ],
)
def test_calls_among_thoughts(text: str, thoughts: str, content: str | None, n_calls: int) -> None:
    def parsed(pieces: Sequence[str]) -> dict[str, Any]:
        return message(read(ThoughtParser(THINK, True, tool_parser()), pieces))

    found = parsed([text])
    assert found["reasoning_content"] == thoughts and found["content"] == content
    assert len(found.get("tool_calls", ())) == n_calls
    for at in range(len(text)):
        assert parsed([text[:at], text[at:]]) == found
    assert parsed(text) == found


FRAGMENTS = [
    "<think>",
    "</think>",
    CALL,
    "<tool_call>",
    "</tool_call>",
    "{",
    "\n",
    " ",
    "a",
    "<",
    "`",
    *("<a>", "b", "<c>", "<d>"),
]


@settings(max_examples=200, deadline=None)
@given(st.data(), st.booleans(), st.sampled_from(["hermes", "llama-3", "qwen-coder"]))
def test_any_cut_gives_the_same(data: st.DataObject, opened: bool, style: str) -> None:
    tags = data.draw(st.sampled_from([THINK, AROUND]))
    text = "".join(data.draw(st.lists(st.sampled_from(FRAGMENTS), max_size=9)))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=9).map(sorted))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    found = [
        read(ThoughtParser(tags, opened, tool_parser(style)), each)
        for each in ([text], pieces, text)
    ]
    assert found[0] == found[1] == found[2]


@pytest.mark.xdist_group("timed")
@pytest.mark.parametrize(
    "text",
    [
        " " * 60_000,
        "<think>" + " " * 60_000,
        "<think>" * 9_000,
        "<" * 60_000,
        "<tool_call>" * 5_000,
    ],
    ids=["space", "space in thoughts", "openings", "signs", "calls"],
)
def test_long_texts_take_linear_time(text: str) -> None:
    start = time.process_time()
    for opened in (False, True):
        read(ThoughtParser(THINK, opened, tool_parser()), text)
    read(HarmonyParser(), text)
    assert time.process_time() - start < 10  # it takes a second


HARMONY = [
    (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        {"content": "Yes.", "reasoning_content": "Hm."},
        [],
    ),
    (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>',
        {"content": None, "reasoning_content": "Hm."},
        ['{"a": 1}'],
    ),
    (
        "<|channel|>commentary<|message|>I add.<|end|><|start|>assistant to=functions.add"
        '<|channel|>commentary<|message|>{"a": 2}',
        {"content": "I add."},
        ['{"a": 2}'],
    ),
    ("<|channel|>analysis<|message|>Hm", {"content": "", "reasoning_content": "Hm"}, []),
    ("Just text: a < b", {"content": "Just text: a < b"}, []),
    (
        '<|channel|>commentary to=functions.odd<|message|>{"a": 2}',
        {"content": '{"a": 2}'},
        [],
    ),
]


@pytest.mark.parametrize(("text", "want", "arguments"), HARMONY)
def test_harmony(text: str, want: dict[str, Any], arguments: list[str]) -> None:
    def parsed(pieces: Sequence[str]) -> dict[str, Any]:
        ids = itertools.count()
        return message(read(HarmonyParser({"add"}, lambda: f"c{next(ids)}"), pieces))

    found = parsed([text])
    assert {key: found[key] for key in want} == want
    calls = found.get("tool_calls", [])
    assert [call["function"]["arguments"] for call in calls] == arguments
    assert ("reasoning_content" in found) == ("reasoning_content" in want)
    for at in range(len(text)):
        assert parsed([text[:at], text[at:]]) == found
    assert parsed(text) == found


# ---- Templates ----


@pytest.mark.parametrize(
    ("source", "tags"),
    [
        (QWEN, ("<think>", "</think>", "reasoning_content")),
        (GEMMA, ("<|channel>thought", "<channel|>", "reasoning_content")),
        (BRACKETS, ("[THINK]", "[/THINK]", "thinking")),
        (INSIDE, ("<think>", "</think>", None)),
        (PLAIN, None),
        ("{% for m in messages %}{{ m.reasoning }}{% endfor %}", None),
        ("{{ raise_exception('no') }}{{ reasoning_content }}", None),
    ],
)
def test_what_a_template_says_of_thoughts(source: str, tags: tuple | None) -> None:
    found = template(source).thoughts
    assert tags == (found and (found.opening, found.closing, found.field))


def test_earlier_thoughts_come_back() -> None:
    said = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    for name in ("reasoning_content", "reasoning", "thinking"):
        given = [*ASK, {"role": "assistant", "content": "Yes.", name: "Hm."}]
        text = template(QWEN)(given, add_generation_prompt=False).text
        assert text.endswith("assistant\n<think>\nHm.\n</think>\n\nYes.<|im_end|>\n")
        assert "[THINK]Hm.[/THINK]Yes." in template(BRACKETS)(given).text
        assert "Hm." not in template(PLAIN)(given).text
    within = PLAIN.replace("<assistant>", "{# <think> #}<assistant>")
    assert "<assistant><think>\nHm.\n</think>\n\nYes." in template(within)([*ASK, said]).text
    with pytest.raises(ValueError, match=r"messages\[0\].reasoning must be text"):
        template(QWEN)([{"role": "assistant", "content": "", "reasoning": 3}])


def turn(source: str, messages: Sequence[dict[str, Any]], **asked: Any) -> Any:
    tools = asked.pop("tools", None)
    request = ToolRequest.of(tools, asked.pop("tool_choice", None))
    thinking = Thinking().asked(**asked)
    return prepare(template(source), messages, request, lambda _texts: {}, thinking=thinking)


def test_what_templates_are_told() -> None:
    shows = "{{ enable_thinking }}|{{ thinking }}|{{ reasoning_effort }}|{{ mine }}"
    for asked, want in (
        ({}, "|||"),
        ({"chat_template_kwargs": {"mine": 3}}, "|||3"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "False|False||"),
        ({"chat_template_kwargs": {"reasoning_effort": "odd"}}, "||odd|"),
        ({"reasoning_effort": "high"}, "True|True|high|"),
        ({"reasoning_effort": "none"}, "False|False||"),
        ({"reasoning_budget": 0}, "False|False||"),
        ({"reasoning_budget": 9}, "|||"),
        (
            {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
            "True|True||",
        ),
    ):
        assert turn(shows, ASK, **asked).text == want, asked
    for asked, words in (
        ({"chat_template_kwargs": 3}, "chat_template_kwargs must be an object"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages cannot"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, "kwargs.enable_thinking must be"),
        ({"chat_template_kwargs": {"reasoning_effort": 1}}, "kwargs.reasoning_effort must be"),
        ({"reasoning_effort": "much"}, "reasoning_effort must be one of none, minimal"),
        ({"reasoning_budget": -2}, "reasoning_budget must be"),
        ({"reasoning_budget": True}, "reasoning_budget must be"),
        ({"reasoning_format": "xml"}, "reasoning_format must be one of auto"),
        ({"continue_final_message": "yes"}, "continue_final_message must be"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "exclude each other"),
    ):
        with pytest.raises(ValueError, match=words):
            Thinking().asked(**asked)
    off = Thinking().asked(reasoning_budget=0)
    assert off.asked(enable_thinking=True) == Thinking(on=True)
    assert off.asked(reasoning_effort="low").budget is None
    assert off.asked(reasoning_budget=7) == Thinking(budget=7)
    assert Thinking().asked(reasoning_budget=7).asked().budget == 7
    assert Thinking().asked(reasoning_budget=7).asked(reasoning_budget=-1).budget is None


def test_thoughts_are_turned_off() -> None:
    assert turn(INSIDE, ASK).text.endswith("<assistant><think>\n")
    # This template knows no way, so they are closed.
    closed = turn(INSIDE, ASK, enable_thinking=False).text
    assert closed.endswith("<assistant><think>\n\n</think>\n\n")
    assert turn(QWEN, ASK, reasoning_budget=0).text.endswith("<think>\n\n</think>\n\n")


BEGUN = [*ASK, {"role": "assistant", "content": "Because"}]


@pytest.mark.parametrize(
    ("source", "last", "end"),
    [
        (QWEN, {"content": "Because"}, "assistant\nBecause"),
        (QWEN, {"content": "B", "reasoning_content": "Hm"}, "<think>\nHm\n</think>\n\nB"),
        (QWEN, {"content": "", "reasoning_content": "Hm"}, "assistant\n<think>\nHm"),
        (INSIDE, {"content": "Because"}, "<think>\n\n</think>\n\nBecause"),
        (INSIDE, {"content": "B", "reasoning_content": "Hm"}, "<think>\nHm\n</think>\n\nB"),
        (INSIDE, {"content": "", "reasoning_content": "Hm"}, "<assistant><think>\nHm"),
        (PLAIN, {"content": "Because"}, "<assistant>Because"),
    ],
)
def test_a_begun_answer(source: str, last: dict[str, Any], end: str) -> None:
    messages = [*ASK, {"role": "assistant", **last}]
    made = turn(source, messages)
    assert made.text.endswith(end)
    assert made.text == turn(source, messages, continue_final_message=True).text
    if made.parser is not None and not last["content"]:
        opened = made.text.rstrip().endswith("Hm")
        said = message(made.parser.push("m</think>Yes") + made.parser.finish())
        assert opened and said == {"role": "assistant", "content": "Yes", "reasoning_content": "m"}


def test_an_answer_that_is_not_continued() -> None:
    again = turn(QWEN, BEGUN, continue_final_message=False).text
    assert again.endswith("Because<|im_end|>\n<|im_start|>assistant\n")
    assert turn(QWEN, BEGUN, add_generation_prompt=False).text.endswith("Because<|im_end|>\n")
    grammar = LlamaGrammar("")
    made = prepare(template(QWEN), BEGUN, None, lambda _: {}, grammar)
    assert made.text == again
    for messages, words in (
        (ASK, "must be one of the assistant's"),
        ([*ASK, {**BEGUN[1], "tool_calls": [{"function": {"name": "add"}}]}], "results must"),
    ):
        with pytest.raises(ValueError, match=words):
            turn(QWEN, messages, continue_final_message=True)
    with pytest.raises(ValueError, match="another beginning"):
        turn(QWEN, BEGUN, continue_final_message=True, tools=TOOLS, tool_choice="required")


# ---- Limits ----


def test_a_budget_forces_the_end() -> None:
    """Tokens are characters here."""

    def run(opened: bool, budget: int | None, wants: str) -> str:
        limit = ThoughtLimit(THINK, opened, budget)
        processor = ThoughtProcessor(
            limit, None, lambda t: bytes([t]), lambda text: list(text.encode())
        )
        ids, left = [1, 2], iter(wants)
        for _ in range(40):
            out = processor(np.array(ids, dtype=np.intc), np.zeros(128, dtype=np.float32))
            forced = np.flatnonzero(out == 0)
            token = int(forced[0]) if len(forced) == 1 else ord(next(left, "\0"))
            if not token:
                break
            ids.append(token)
        return bytes(ids[2:]).decode()

    assert run(True, 3, "abcYes") == "abc\n</think>\n\nYes"
    assert run(True, 0, "Yes") == "\n</think>\n\nYes"
    assert run(True, None, "ab</think>Yes") == "ab</think>Yes"
    assert run(True, 20, "ab</think>Yes") == "ab</think>Yes"
    assert run(False, 2, "\n<think>abYes") == "\n<think>ab\n</think>\n\nYes"
    assert run(False, 2, "No <think>abc") == "No <think>abc"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """models(template): a model with this template."""
    opened: dict[str, Llama] = {}
    folder = tmp_path_factory.mktemp("thinking")

    def make(source: str) -> Llama:
        if source not in opened:
            path: Path = tiny.make(folder / str(len(opened)), source)
            opened[source] = Llama(path, n_ctx=1024, verbose=False)
        return opened[source]

    yield make
    for llm in opened.values():
        llm.close()


def answer(llm: Llama, said: str, **options: Any) -> dict[str, Any]:
    """A choice; the stream must give the same."""
    options = {"messages": ASK, **options}
    done = llm.create_chat_completion(logits_processor=tiny.Say(llm._model, said), **options)
    choice = done["choices"][0]
    chunks = llm.create_chat_completion(
        stream=True, logits_processor=tiny.Say(llm._model, said), **options
    )
    streamed: dict[str, str] = {}
    for chunk in chunks:
        delta = chunk["choices"][0]["delta"]
        assert len(delta) <= 1
        for key, text in delta.items():
            if key != "tool_calls":
                streamed[key] = streamed.get(key, "") + text
    for key in ("content", "reasoning_content"):
        assert (streamed.get(key) or None) == (choice["message"].get(key) or None)
    return choice


def test_answers_of_a_model_that_thinks(models: Any) -> None:
    llm = models(QWEN)
    found = answer(llm, "<think>\nHm.\n</think>\n\nYes.")
    assert found["message"] == {
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "Hm.",
    }
    assert found["finish_reason"] == "stop"
    cut = answer(llm, "<think>\nHm.\n</think>\n\nYes.", max_tokens=10)
    assert cut["message"] == {"role": "assistant", "content": "", "reasoning_content": "Hm"}
    assert cut["finish_reason"] == "length"
    raw = answer(llm, "<think>\nHm.\n</think>\n\nYes.", reasoning_format="none")
    assert raw["message"]["content"] == "<think>\nHm.\n</think>\n\nYes."
    assert "reasoning_content" not in raw["message"]
    opened = answer(models(INSIDE), "Hm.\n</think>\n\nYes.")
    assert opened["message"] == found["message"]
    called = answer(llm, f"<think>Hm.</think>\n{CALL}", tools=TOOLS)
    assert called["message"]["reasoning_content"] == "Hm." and called["message"]["tool_calls"]
    assert called["finish_reason"] == "tool_calls"


def test_a_model_that_does_not_think_is_as_before(models: Any) -> None:
    text = "<think>\nHm.\n</think>\n\nYes."
    assert answer(models(PLAIN), text)["message"] == {"role": "assistant", "content": text}
    assert answer(models(QWEN), f"See {text}")["message"]["content"] == f"See {text}"


@pytest.mark.parametrize("name", ["qwen", "chatml"])
def test_a_named_format_of_models_that_think(name: str) -> None:
    made = prepare(named_format(name), ASK, None, lambda _: {}, thinking=Thinking(budget=7))
    assert made.parser is not None and made.limit == ThoughtLimit(THINK, False, 7)
    found = message(read(made.parser, ["<think>\nHm.\n</think>\n\nYes."]))
    assert found == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    assert prepare(named_format("llama-3"), ASK, None, lambda _: {}).parser is None


def test_a_budget(models: Any) -> None:
    llm = models(INSIDE)
    found = answer(llm, "a" * 200, reasoning_budget=5, max_tokens=30)
    thoughts = found["message"]["reasoning_content"]
    assert thoughts == "aaaaa" and set(found["message"]["content"]) == {"a"}
    without = answer(llm, "a" * 200, reasoning_budget=-1, max_tokens=30)
    assert without["message"] == {"role": "assistant", "content": "", "reasoning_content": "a" * 30}


def test_a_grammar_waits_for_the_answer(models: Any) -> None:
    """Thoughts are free; the answer, or the call, follows."""
    llm = models(INSIDE)
    options = {"messages": ASK, "temperature": 2.0, "seed": 3, "reasoning_budget": 12}
    done = llm.create_chat_completion(
        response_format={"type": "json_object", "schema": ADD}, max_tokens=200, **options
    )
    found = done["choices"][0]["message"]
    assert found["reasoning_content"] and isinstance(json.loads(found["content"])["a"], int)
    done = llm.create_chat_completion(
        tools=TOOLS, tool_choice="required", max_tokens=300, **options
    )
    found = done["choices"][0]["message"]
    assert found["reasoning_content"] and found["content"] is None
    (call, *_) = found["tool_calls"]
    assert isinstance(json.loads(call["function"]["arguments"])["a"], int)


def test_a_formatter_of_a_template(models: Any) -> None:
    """A handler that llama_chat_format makes thinks as the file's template does."""
    llm = models(PLAIN)
    llm.chat_handler = Jinja2ChatFormatter(INSIDE, "</s>", "<s>").to_chat_handler()
    try:
        found = answer(llm, "Hm.</think>Yes.")
        assert (found["message"]["reasoning_content"], found["message"]["content"]) == (
            "Hm.",
            "Yes.",
        )
        names = {"enable_thinking": False, "functions": 1, "request": 2, "tool_choice": 3}
        off = answer(llm, "Hm.</think>Yes.", chat_template_kwargs=names)
        assert off["message"]["content"] == "Hm.</think>Yes."
    finally:
        llm.chat_handler = None


def test_talks_of_the_command(models: Any) -> None:
    """Thoughts are shown before the answer, and kept for the template."""
    llm = models(QWEN)
    said = tiny.Say(llm._model, "<think>\nHm.\n</think>\n\nYes.")
    keywords = {"stream": True, "max_tokens": 99, "logits_processor": said}
    talk, shown = Talk(llm, "", keywords, plain=False), []
    talk.say("Why?")
    text = "".join(talk.answer(lambda: None, shown.append))
    assert text == "Yes." and "".join(shown) == "<think>\nHm.\n</think>\n\n"
    talk.heard(text)
    assert talk.messages[-1] == {
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "Hm.",
    }


GPT = """{% for m in messages %}{% if m.role == 'assistant' %}<|start|>assistant\
{% if m.tool_calls %}{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}\
<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant to=functions.\
{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>\
{{ m.tool_calls[0].function.arguments | tojson }}<|call|>{% else %}\
<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}\
{% elif m.role == 'tool' %}<|start|>functions.x to=assistant<|channel|>commentary<|message|>\
{{ m.content }}<|end|>{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>\
{% endif %}{% endfor %}{% if tools %}namespace functions{% endif %}\
{% if add_generation_prompt %}<|start|>assistant{% endif %}"""


def test_harmony_of_a_template() -> None:
    made = turn(GPT, ASK)
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>A"
    found = message(made.parser.push(text) + made.parser.finish())
    assert found == {"role": "assistant", "content": "A", "reasoning_content": "Hm."}
    raw = turn(GPT, ASK, reasoning_format="none").parser
    thought = "<|channel|>analysis<|message|>Hm.<|end|>"
    assert message(raw.push(text) + raw.finish())["content"] == f"{thought}A"
    effort = "{{ reasoning_effort }}" + GPT
    for asked, want in (("max", "high"), ("minimal", "low"), ("medium", "medium"), ("none", "low")):
        assert turn(effort, ASK, reasoning_effort=asked).text.startswith(f"{want}<|start|>user")
    begun = turn(GPT, BEGUN)
    assert begun.text.endswith("<|start|>assistant<|channel|>final<|message|>Because")
    found = message(begun.parser.push(" so.") + begun.parser.finish())
    assert found == {"role": "assistant", "content": " so."}
    thinks = turn(GPT, [*ASK, {"role": "assistant", "content": "", "reasoning_content": "Hm"}])
    assert thinks.text.endswith("<|channel|>analysis<|message|>Hm")
    text = "m.<|end|><|start|>assistant<|channel|>final<|message|>A"
    found = message(thinks.parser.push(text) + thinks.parser.finish())
    assert found == {"role": "assistant", "content": "A", "reasoning_content": "m."}
    grammar = LlamaGrammar("")
    held = prepare(template(GPT), ASK, None, lambda _: {}, grammar)
    assert held.text.endswith("<|start|>assistant<|channel|>final<|message|>")
    assert message(held.parser.push("{}") + held.parser.finish())["content"] == "{}"
    forced = turn(GPT, ASK, tools=TOOLS, tool_choice="required")
    assert forced.text.endswith("<|start|>assistant<|channel|>commentary to=functions.")
    text = 'add <|constrain|>json<|message|>{"a": 1}'
    (call,) = message(forced.parser.push(text) + forced.parser.finish())["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
    call = {"id": "a", "function": {"name": "add", "arguments": '{"a": 1}'}}
    said = {"role": "assistant", "content": "I add.", "thinking": "Hm.", "tool_calls": [call]}
    again = turn(GPT, [*ASK, said, {"role": "tool", "tool_call_id": "a", "content": "1"}])
    assert "<|message|>Hm.\n\nI add.<|end|><|start|>assistant to=functions.add" in again.text
