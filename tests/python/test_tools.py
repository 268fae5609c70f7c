"""Chats with tools: prompts, answers, streams and forced calls."""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny
from circles import pick
from gguf_files import changed
from powerinfer_cpp.text import grammar
from powerinfer_cpp.text.chat import ChatFormat, TemplateFormat, check_messages, named_format
from powerinfer_cpp.text.grammar import Vocabulary
from powerinfer_cpp.text.tool_chat import Turn, prepare
from powerinfer_cpp.text.tools import STYLES, ToolParser, ToolRequest, message
from powerinfer_cpp.text.tools.history import one_by_one, with_short_ids, without_tools
from tiny import text

from powerinfer_cpp import Llama, LlamaGrammar

ADD = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 0, "maximum": 99},
        "unit": {"enum": ["cm", "m"]},
    },
    "required": ["a", "unit"],
}
TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": ADD}},
    {"type": "function", "function": {"name": "now"}},
]
ASK = [{"role": "user", "content": "Go"}]
CALLS = [
    {
        "id": "call00001",
        "type": "function",
        "function": {"name": "add", "arguments": '{"a": 7, "unit": "\u20ac<"}'},
    },
    {"id": "call00002", "type": "function", "function": {"name": "now", "arguments": "{}"}},
]
USED = [
    *ASK,
    {"role": "assistant", "content": None, "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "call00001", "name": "add", "content": "seven"},
    {"role": "tool", "tool_call_id": "call00002", "name": "now", "content": "noon"},
    {"role": "user", "content": "And now?"},
]

# Each ends an assistant's turn with ~, so that the tests find it.
HERMES = """{% if tools %}system: These are the tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}{% for m in messages %}{% if m.role == 'tool' %}result: {{ m.content }}
{% else %}{{ m.role }}: {{ m.content }}{% if m.tool_calls %}{% for call in m.tool_calls %}

<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}{% endif %}~
{% endif %}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""
LLAMA_3 = """{% if tools is not none %}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>
{% if 'tool_calls' in m %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one') }}\
{% endif %}{% set call = m.tool_calls[0].function %}{"name": "{{ call.name }}", "parameters": \
{{ call.arguments | tojson }}}{% else %}{{ m.content }}{% endif %}~
{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>
{% endif %}"""
MISTRAL = """{% if tools is not none %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]\
{% endif %}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]\
{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('bad id') }}\
{% endif %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]{% elif m.tool_calls is defined %}\
assistant:[TOOL_CALLS][{% for call in m.tool_calls %}{{ {'name': call.function.name, \
'arguments': call.function.arguments, 'id': call.id} | tojson }}{{ '' if loop.last else ', ' }}\
{% endfor %}]~{% else %}{{ m.content }}~{% endif %}{% endfor %}"""
MISTRAL_ARGS = """{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}\
{% if m.tool_calls %}assistant:{% for call in m.tool_calls %}[TOOL_CALLS]{{ call.function.name }}\
[ARGS]{{ call.function.arguments | tojson }}{% endfor %}~{% else %}{{ m.content }}~{% endif %}\
{% endfor %}"""
TEMPLATES = {
    "hermes": HERMES,
    "llama-3": LLAMA_3,
    "mistral": MISTRAL,
    "mistral-args": MISTRAL_ARGS,
}
CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
CONTROL = ["[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<tool_call>", "</tool_call>"]
CONTROL += ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
GLM = """{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}
{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{% for k, v in \
c.function.arguments.items() %}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>{% endfor %}\
</tool_call>{% endfor %}{% endfor %}"""


def turn(
    chat_format: ChatFormat, messages: list[dict], tools: object = None, choice: object = None
) -> Turn:
    return prepare(chat_format, messages, ToolRequest.of(tools, choice), lambda _style: {})


def template(source: str) -> TemplateFormat:
    return TemplateFormat(source, "<s>", "</s>")


# ---- Prompts ----


@pytest.mark.parametrize("style", TEMPLATES)
def test_templates_and_parsers_agree(style: str) -> None:
    """What a template writes for the calls of an earlier answer is read as these calls."""
    made = turn(template(TEMPLATES[style]), USED, TOOLS)
    assert '"description": "Adds."' in made.text and made.parser is not None
    begin = {"llama-3": "assistant<|end_header_id|>\n", "hermes": "assistant: "}
    begin = begin.get(style, "assistant:")
    written = made.text.split(begin)[1].split("~")[0]
    if style == "llama-3":
        written += "; " + made.text.split(begin)[2].split("~")[0]
    parser = ToolParser(STYLES[style], {"add", "now"})
    found = message(parser.push(written) + parser.finish())
    assert found["content"] is None
    for call, want in zip(found["tool_calls"], CALLS, strict=True):
        assert call["function"]["name"] == want["function"]["name"]
        arguments = json.loads(call["function"]["arguments"])
        assert arguments == json.loads(want["function"]["arguments"])
    # The answer of such a parser can be sent back.
    again = [*ASK, {**found, "content": ""}]
    assert "now" in turn(template(TEMPLATES[style]), again, TOOLS).text
    assert "Adds." not in turn(template(TEMPLATES[style]), USED).text


@pytest.mark.parametrize(
    "chat_format",
    [named_format("chatml"), named_format("llama-2"), template(CHATML), template(NO_SYSTEM)],
)
def test_formats_without_tools(chat_format: ChatFormat) -> None:
    for messages in (USED, [{"role": "system", "content": "Be kind."}, *USED]):
        if len(messages) > len(USED) and chat_format is not named_format("chatml"):
            continue
        made = turn(chat_format, messages, TOOLS).text
        at = [made.index(word) for word in ("Adds.", "Go", "\u20ac", "seven", "noon", "And now?")]
        assert at == sorted(at)
        assert made.count("<tool_response>\n") == 2  # the introduction names it, too
        written = made[made.rindex("<tool_call>", 0, made.index("seven")) :]
        assert written.startswith('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
    plain = turn(chat_format, USED).text
    assert "Adds." not in plain and "seven" in plain
    assert turn(chat_format, ASK).text == chat_format(ASK).text


def test_the_introduction_joins_the_system_message() -> None:
    system = [{"role": "system", "content": "Be kind."}, *ASK]
    made = turn(template(CHATML), system, TOOLS).text
    assert made.startswith("<system>Be kind.\n\nYou can call functions.")
    assert turn(template(NO_SYSTEM), ASK, TOOLS).text.startswith("<user>You can call functions.")
    made = turn(template(NO_SYSTEM), system, TOOLS).text
    assert made.startswith("<user>Be kind.\n\nYou can call functions.") and made.endswith("\n\nGo")


def test_one_call_in_each_message() -> None:
    """Results follow their calls, whatever their order was; others keep their places."""
    ids = ["a", "b", "c"]
    calls = [{"id": i, "function": {"name": i}} for i in ids]
    late = {"role": "tool", "content": "", "tool_call_id": "a"}
    messages = [
        {"role": "assistant", "content": "x", "tool_calls": calls},
        *({"role": "tool", "content": "", "tool_call_id": i} for i in ("c", "z", "a")),
        {"role": "user", "content": "y"},
        late,
    ]
    found = one_by_one(messages)
    shown = [m.get("tool_call_id") or m.get("tool_calls", [m["role"]])[0] for m in found]
    assert shown == [calls[0], "a", calls[1], calls[2], "c", "z", "user", "a"]
    assert [m["content"] for m in found if "tool_calls" in m] == ["x", "", ""]


def test_ids_of_other_servers() -> None:
    """Mistral's templates want ids of 9 characters; a call and its result get the same."""
    calls = [{"id": "call_0123456789", **{k: CALLS[0][k] for k in ("type", "function")}}, CALLS[1]]
    result = {"role": "tool", "content": "seven"}
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {**result, "tool_call_id": "call_0123456789"},
        {**result, "tool_call_id": "call00002"},
    ]
    found = with_short_ids(check_messages(messages))
    ids = [call["id"] for call in found[1]["tool_calls"]]
    assert ids == [m["tool_call_id"] for m in found[2:]] and ids[1] == "call00002"
    assert len(ids[0]) == 9 and "seven" in turn(template(MISTRAL), messages, TOOLS).text
    assert turn(template(MISTRAL), [*messages[:2], result]).text  # without an id


def test_a_template_sees_what_transformers_shows_it() -> None:
    """Arguments are dicts; keys without calls are not there; without tools there is None."""
    source = (
        "{{ tools is none }} {% for m in messages %}{{ 'tool_calls' in m }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments.items() | list }}{% endfor %}"
        " {% endfor %}"
    )
    messages = [USED[1], {"role": "assistant", "content": "x", "tool_calls": None}]
    assert template(source)(messages).text == ("True True[('a', 7), ('unit', '\u20ac<')][] False ")


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        (3, r"messages\[1\].tool_calls must be a list"),
        ([3], r"tool_calls\[0\] must be an object with function.name"),
        ([{"function": {}}], "function.name"),
        ([{"id": [], "function": {"name": "add"}}], r"tool_calls\[0\].id must be"),
        ([{"function": {"name": "add", "arguments": b"{}"}}], "must hold only what JSON can"),
        ([{"function": {"name": "add", "arguments": {"a": b""}}}], r"\[0\].function.arguments"),
    ],
)
def test_earlier_calls_that_cannot_be(calls: object, words: str) -> None:
    messages = [*ASK, {"role": "assistant", "content": None, "tool_calls": calls}]
    with pytest.raises(ValueError, match=words):
        turn(template(HERMES), messages)


@pytest.mark.xdist_group("timed")
def test_long_histories_take_linear_time() -> None:
    calls = [{"id": str(i), "function": {"name": "add"}} for i in range(20_000)]
    results = [{"role": "tool", "tool_call_id": c["id"], "content": "x" * 9} for c in calls[::-1]]
    messages = check_messages([{"role": "assistant", "tool_calls": calls}, *results])
    start = time.process_time()
    for change in (one_by_one, with_short_ids, lambda given: without_tools(given, None)):
        assert len(change(messages)) in (40_000, 20_001, 2)
    assert time.process_time() - start < 5  # it takes a tenth of a second


# ---- Answers ----


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with the control tokens of tool calls, and a template without tools."""
    folder = tmp_path_factory.mktemp("tools")
    source = tiny.make(folder / "plain", CHATML)
    fields = gguf.GGUFReader(source).fields
    tokens, kinds = (fields[f"tokenizer.ggml.{k}"].contents() for k in ("tokens", "token_type"))
    tokens[-len(CONTROL) :] = CONTROL
    kinds[-len(CONTROL) :] = [int(gguf.TokenType.CONTROL)] * len(CONTROL)
    keys = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    return changed(source, folder / "control.gguf", keys)


@pytest.fixture(scope="module")
def models(path: Path, tmp_path_factory: pytest.TempPathFactory):
    """models(style, control): a model with the style's template; control: with control tokens."""
    opened: dict[tuple[str, bool], Llama] = {}
    folder = tmp_path_factory.mktemp("styles")

    def make(style: str, control: bool = False) -> Llama:
        if (style, control) not in opened:
            source = path if control else path.parent / "plain" / "tiny.gguf"
            file = folder / f"{style}-{control}.gguf"
            changed(source, file, {"tokenizer.chat_template": TEMPLATES[style]})
            opened[style, control] = Llama(file, n_ctx=2048, verbose=False)
        return opened[style, control]

    yield make
    for llm in opened.values():
        llm.close()


WRITTEN = {
    "hermes": '<tool_call>\n{"name": "add", "arguments": {"a": 1, "unit": "m"}}\n</tool_call>',
    "llama-3": '{"name": "add", "parameters": {"a": 1, "unit": "m"}}',
    "mistral": '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1, "unit": "m"}}]',
    "mistral-args": '[TOOL_CALLS]add[ARGS]{"a": 1, "unit": "m"}',
}


def joined(chunks: list[dict]) -> tuple[str, list[dict], str]:
    """Content, calls and reason of a stream, put together as OpenAI's clients do."""
    content, calls, reason = "", [], None
    for chunk in chunks:
        (choice,) = chunk["choices"]
        delta, reason = choice["delta"], choice["finish_reason"]
        content += delta.get("content", "")
        for part in delta.get("tool_calls", []):
            if part["index"] == len(calls):
                assert part["type"] == "function" and part["function"]["arguments"] == ""
                calls.append({"id": part["id"], **part["function"]})
            else:
                calls[part["index"]]["arguments"] += part["function"]["arguments"]
    return content, calls, reason


@pytest.mark.parametrize("style", TEMPLATES)
def test_answers(style: str, models) -> None:
    llm, said = models(style), WRITTEN[style]
    said = said if style == "llama-3" else f"Hm \n{said}"
    done = llm.create_chat_completion(ASK, tools=TOOLS, logits_processor=tiny.Say(llm._model, said))
    (choice,) = done["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == (None if style == "llama-3" else "Hm")
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function" and len(call["id"]) in (9, 29)
    assert call["function"] == {"name": "add", "arguments": '{"a": 1, "unit": "m"}'}
    stream = list(
        llm.create_chat_completion(
            ASK,
            tools=TOOLS,
            stream=True,
            logits_processor=tiny.Say(llm._model, said),
            logprobs=True,
        )
    )
    content, calls, reason = joined(stream)
    assert (content or None, reason) == (choice["message"]["content"], "tool_calls")
    assert {key: calls[0][key] for key in ("name", "arguments")} == call["function"]
    arguments = [c for c in stream if "tool_calls" in c["choices"][0]["delta"]]
    assert len(arguments) >= 3, "a call begins with its first argument, and the others follow"
    logprobs = [c["choices"][0]["logprobs"] for c in stream]
    tokens = [token["token"] for found in logprobs if found for token in found["content"]]
    assert "".join(tokens) == said


def test_text_beside_tools(models) -> None:
    """Without a call, an answer is what it is without tools."""
    llm = models("hermes")
    for plain in ("Just \n<b> text \n", WRITTEN["hermes"].replace("add", "odd")):
        done = llm.create_chat_completion(
            ASK, tools=TOOLS, logits_processor=tiny.Say(llm._model, plain)
        )
        (choice,) = done["choices"]
        assert choice["message"] == {"role": "assistant", "content": plain}
        assert choice["finish_reason"] == "stop"
        for options in ({"tools": TOOLS, "tool_choice": "none"}, {}):
            said = tiny.Say(llm._model, WRITTEN["hermes"])
            done = llm.create_chat_completion(ASK, logits_processor=said, **options)
            assert done["choices"][0]["message"]["content"] == WRITTEN["hermes"]
    said = tiny.Say(llm._model, WRITTEN["hermes"])
    done = llm.create_chat_completion(ASK, tools=TOOLS, max_tokens=50, logits_processor=said)
    assert done["choices"][0]["message"]["content"] == WRITTEN["hermes"][:50]
    assert done["choices"][0]["finish_reason"] == "length"


def test_control_tokens_are_read(models) -> None:
    """Markers that are control tokens have no text of their own, but begin a call."""
    llm = models("mistral-args", True)
    said = tiny.Say(llm._model, "add{}")
    marks = [llm.tokenize(mark, special=True)[-1] for mark in (b"[TOOL_CALLS]", b"[ARGS]")]
    assert all(not llm.detokenize([mark]) for mark in marks)
    said._ids[0:0] = marks[:1]
    said._ids[4:4] = marks[1:]
    done = llm.create_chat_completion(ASK, tools=TOOLS, logits_processor=said)
    (call,) = done["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": "{}"}


def test_a_template_for_tools(path: Path, tmp_path: Path) -> None:
    """Some files have two templates; the second is for requests with tools."""
    file = changed(path, tmp_path / "two.gguf", {"tokenizer.chat_template.tool_use": HERMES})
    with Llama(file, n_ctx=1024, verbose=False) as llm:
        request = ToolRequest.of(TOOLS)
        assert llm._prompts.format(request).style is STYLES["hermes"]
        assert llm._prompts.format(None).style is None
    with Llama(file, n_ctx=1024, chat_format="chatml", verbose=False) as llm:
        assert llm._prompts.format(request) is named_format("chatml")


def test_chatml_function_calling(path: Path) -> None:
    """llama-cpp-python's name of chatml with tools."""
    with Llama(path, n_ctx=1024, chat_format="chatml-function-calling", verbose=False) as llm:
        plain = prepare(llm._prompts.format(None), ASK, None, llm._prompts.control_tokens)
        assert plain.text == named_format("chatml")(ASK).text
        request = ToolRequest.of(TOOLS)
        made = prepare(llm._prompts.format(request), ASK, request, llm._prompts.control_tokens)
        assert made.text.startswith("<|im_start|>system\n") and "Adds." in made.text
        call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
        for choice, n_calls in ((None, 1), ("auto", 1), ("none", 0)):
            said = tiny.Say(llm._model, call)
            (found,) = llm.create_chat_completion(
                ASK, tools=TOOLS, tool_choice=choice, logits_processor=said
            )["choices"]
            assert len(found["message"].get("tool_calls") or []) == n_calls
            assert (found["finish_reason"] == "tool_calls") == bool(n_calls)
        chosen = {"type": "function", "function": {"name": "now"}}
        (found,) = llm.create_chat_completion(ASK, tools=TOOLS, tool_choice=chosen)["choices"]
        (made_call,) = found["message"]["tool_calls"]
        assert made_call["function"]["name"] == "now"
        assert json.loads(made_call["function"]["arguments"]) == {}


# ---- Forced calls ----


def fits(call: dict) -> bool:
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "now":
        return arguments == {}
    return set(arguments) == {"a", "unit"} and 0 <= arguments["a"] <= 99


def test_forced_calls_have_the_models_control_tokens(models) -> None:
    """Not their texts, which the model never saw."""
    llm, request = models("mistral-args", True), ToolRequest.of(TOOLS, "required")
    made = prepare(llm._prompts.format(request), ASK, request, llm._prompts.control_tokens)
    begin, args = made.shown["[TOOL_CALLS]"], made.shown["[ARGS]"]
    assert llm._prompts.ids(made.text)[-1] == begin
    vocabulary, ids = Vocabulary(llm._model), []
    processor = made.grammar.processor(vocabulary)
    scores = np.zeros(llm.n_vocab(), dtype=np.float32)

    def allowed() -> list[int]:
        return np.flatnonzero(processor(np.array(ids, dtype=np.intc), scores) == 0).tolist()

    for byte in (b"n", b"o", b"w"):
        ids.append([token for token in allowed() if llm._model.text(token) == byte][-1])
    assert allowed() == [args]


MARKED = {"hermes": True, "llama-3": False, "mistral": False, "mistral-args": True}
FORCED = pick(list(MARKED.items()), list(itertools.product(TEMPLATES, (False, True))))


@pytest.mark.parametrize(("style", "control"), FORCED)
def test_forced_calls(style: str, control: bool, models) -> None:
    """Random weights call a tool, with arguments that follow its schema."""
    llm, called, counts = models(style, control), set(), set()
    for seed in range(pick(2, 6)):
        options = {"tools": TOOLS, "seed": seed, "temperature": 2.0}
        done = llm.create_chat_completion(ASK, tool_choice="required", **options)
        (choice,) = done["choices"]
        assert choice["finish_reason"] == "tool_calls", choice
        assert choice["message"]["content"] is None
        calls = choice["message"]["tool_calls"]
        assert all(map(fits, calls)), calls
        called |= {call["function"]["name"] for call in calls}
        counts.add(len(calls))
        stream = llm.create_chat_completion(ASK, tool_choice="required", stream=True, **options)
        content, streamed, reason = joined(list(stream))
        assert (content, reason) == ("", "tool_calls")
        assert [c["arguments"] for c in streamed] == [c["function"]["arguments"] for c in calls]
    assert called <= {"add", "now"} and max(counts) <= 8
    assert style == "llama-3" or control or max(counts) > 1
    named = {"type": "function", "function": {"name": "add"}}
    done = llm.create_chat_completion(ASK, tools=TOOLS, tool_choice=named, seed=1, temperature=2.0)
    (call,) = done["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "add" and fits(call)


@pytest.mark.parametrize("control", [False, True])
def test_forced_texts_end_with_their_tags(control: bool, path: Path, tmp_path: Path) -> None:
    """A string is written raw, up to a tag that is text or a control token."""
    source = path if control else path.parent / "plain" / "tiny.gguf"
    file = changed(source, tmp_path / "glm.gguf", {"tokenizer.chat_template": GLM})
    schema = {"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"]}
    tools = [{"type": "function", "function": {"name": "say", "parameters": schema}}]
    named = {"type": "function", "function": {"name": "say"}}
    with Llama(file, n_ctx=2048, verbose=False) as llm:
        request = ToolRequest.of(tools, named)
        made = prepare(llm._prompts.format(request), ASK, request, llm._prompts.control_tokens)
        assert ("</arg_value>" in made.shown) == control
        tag = b"" if control else b"</arg_value>"
        end = made.shown.get("</arg_value>")

        class Closing:
            """Draws a text, and closes it after sixty tokens with what begins the call."""

            n = 0

            def __call__(self, _ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
                self.n += 1
                scores = np.array(scores)
                if end is not None:
                    scores[end] = 1000 if self.n > 60 else -1000
                elif 60 < self.n <= 60 + len(tag):
                    scores[tiny.BYTE + tag[self.n - 61]] = 1000
                return scores

        done = llm.create_chat_completion(
            ASK,
            tools=tools,
            tool_choice=named,
            max_tokens=400,
            temperature=1.5,
            seed=3,
            logits_processor=Closing(),
        )
    (choice,) = done["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert len(json.loads(call["function"]["arguments"])["s"]) > 5
    assert choice["finish_reason"] == "tool_calls"


def test_a_trained_model_is_forced(model_path: Path) -> None:
    """It has no template: the tools are described in a system message."""
    with Llama(model_path, n_ctx=1024, verbose=False) as llm:
        done = llm.create_chat_completion(ASK, tools=TOOLS, tool_choice="required", seed=1)
        (choice,) = done["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert all(map(fits, choice["message"]["tool_calls"]))


def test_what_cannot_be_forced(models, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = models("hermes")

    def forced(parameters: dict | None = None, **options) -> None:
        function = {"name": "f", **({"parameters": parameters} if parameters else {})}
        tools = [{"type": "function", "function": function}]
        llm.create_chat_completion(
            ASK, tools=tools, tool_choice="required", max_tokens=1, **options
        )

    for parameters in (
        {"not": {"required": ["a"]}},
        {"properties": {"a": {"type": "klingon"}}},
        {"properties": {"a": {"$ref": "#/nowhere"}}},
        {"x-guidance": {"lenient": True}, "not": {"minimum": 3}},
    ):
        with pytest.raises(ValueError, match="cannot be used"):
            forced(parameters)
    for options in (
        {"response_format": {"type": "json_object"}},
        {"grammar": LlamaGrammar.from_string('root ::= "a"')},
    ):
        with pytest.raises(ValueError, match="tool_choice forces"):
            forced(**options)
    with pytest.raises(ValueError, match="tool_choice"):
        llm.create_chat_completion(ASK, tools=TOOLS, tool_choice="always")
    with pytest.raises(ValueError, match=r"tools\[0\].type"):
        llm.create_chat_completion(ASK, tools=[{}])
    grammar._workers.close()
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ValueError, match="the package llguidance is not installed"):
        forced()
    assert llm.create_chat_completion(ASK, tools=TOOLS, max_tokens=1)  # auto needs no grammar


def test_many_tools_can_be_forced(models) -> None:
    """As many as agents with several servers offer."""
    functions = [{"name": f"f{i}", "parameters": ADD} for i in range(300)]
    request = ToolRequest.of([{"type": "function", "function": f} for f in functions], "required")
    grammar = LlamaGrammar.from_tool_calls(STYLES["llama-3"].forced(request))
    said = text(models("hermes")("x", grammar=grammar, max_tokens=200, temperature=2.0, seed=1))
    assert re.fullmatch(r'\{"name": "f\d+", "parameters": \{.*\}\}', said, re.DOTALL)
