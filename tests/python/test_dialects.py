"""Other dialects than OpenAI's chats: the Messages API and the Responses API, with real clients."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import serving
from serving import later, openai

anthropic = later("anthropic")

ASK = "Tell me about a dog."
HOT = {"temperature": 1.1, "top_p": 0.9}
SEED = {"seed": 7}
ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["a"],
}
TOOL = {"name": "add", "description": "Adds.", "input_schema": ADD}
FUNCTION = {"name": "add", "description": "Adds.", "parameters": ADD}
PET = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}},
    "required": ["kind"],
}
CALLS = (
    'Well.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "add", "arguments": {"a":  2}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def running(model_path: Path) -> Iterator[serving.InThread]:
    with serving.in_thread(model_path, n_ctx=1024, n_parallel=2) as found:
        yield found


def user(text: str = ASK) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def chat(client: openai.OpenAI, **options: Any) -> str:
    """The chat dialect's answer."""
    made = client.chat.completions.create(model="x", **{"messages": user(), **options})
    return made.choices[0].message.content or ""


def message(claude: anthropic.Anthropic, **options: Any) -> Any:
    """An answer, without what differs from call to call. Checks that the stream is the same."""
    # The client has no arguments for sampling.
    extra = {"extra_body": {**SEED, **HOT, **options.pop("extra_body", {})}}
    given = {"model": "x", "max_tokens": 20, "messages": user(), **extra, **options}
    whole = claude.messages.create(**given)
    with claude.messages.stream(**given) as stream:
        streamed = stream.get_final_message()
    assert whole.usage.output_tokens == streamed.usage.output_tokens
    for each in (whole, streamed):
        assert each.id.startswith("msg_") and each.role == "assistant" and each.model == "model"
        each.id = ""
        total = each.usage.input_tokens + (each.usage.cache_read_input_tokens or 0)
        each.usage.input_tokens, each.usage.cache_read_input_tokens = total, 0
        for block in each.content:
            if block.type == "tool_use":
                assert block.id
                block.id = ""
    assert whole.to_dict(exclude_none=True) == streamed.to_dict(exclude_none=True)
    return whole


def response(client: openai.OpenAI, **options: Any) -> Any:
    """The same of the Responses API."""
    extra = {"extra_body": {**SEED, **options.pop("extra_body", {})}}
    given = {"model": "x", "max_output_tokens": 20, "input": ASK, **extra, **HOT, **options}
    whole = client.responses.create(**given)
    events = list(client.responses.create(stream=True, **given))
    check_events(events)
    streamed = events[-1].response
    for each in (whole, streamed):
        assert each.id.startswith("resp_") and each.usage.total_tokens > 0
        each.id, each.created_at = "", 0
        each.usage.input_tokens_details.cached_tokens = 0
        for item in each.output:
            item.id = ""
            if item.type == "function_call":
                assert item.call_id
                item.call_id = ""
    assert whole.to_dict(exclude_none=True) == streamed.to_dict(exclude_none=True)
    return whole


def check_events(events: Sequence[Any]) -> None:
    """Events are in order, and what is told as a whole is the sum of its deltas."""
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    texts: dict[int, str] = {}
    items: list[Any] = []
    for event in events[2:-1]:
        kind = event.type.removeprefix("response.")
        if kind == "output_item.added":
            assert event.output_index == len(items) == len(texts)
            texts[event.output_index] = ""
        elif kind in ("output_text.delta", "function_call_arguments.delta"):
            texts[event.output_index] += event.delta
        elif kind == "output_text.done":
            assert event.text == texts[event.output_index]
        elif kind == "function_call_arguments.done":
            assert event.arguments == texts[event.output_index]
        elif kind == "output_item.done":
            items.append(event.item)
        else:
            assert kind in ("content_part.added", "content_part.done")
    assert items == events[-1].response.output


# ---- Text ----


def test_the_same_text_in_all_dialects(
    claude: anthropic.Anthropic, client: openai.OpenAI, running: serving.InThread
) -> None:
    expected = chat(client, max_tokens=20, extra_body=SEED, **HOT)
    assert expected
    made = message(claude)
    assert [block.text for block in made.content] == [expected]
    assert made.stop_reason == "max_tokens" and made.usage.output_tokens == 20
    again = response(client)
    assert again.output_text == expected and again.usage.output_tokens == 20
    assert again.status == "incomplete"
    assert again.incomplete_details.reason == "max_output_tokens"
    assert again.output[0].status == "incomplete"
    assert made.usage.input_tokens == again.usage.input_tokens
    other = message(claude, extra_body={"seed": 8})
    assert other.content[0].text != expected
    assert running.idle


def test_system_and_earlier_messages(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    said = [*user("Hi."), {"role": "assistant", "content": "Hello."}, *user()]
    system = [{"role": "system", "content": "Be kind. Be short."}]
    expected = chat(client, messages=[*system, *said], max_tokens=12, extra_body=SEED, **HOT)
    blocks = [{"type": "text", "text": "Be kind. "}, {"type": "text", "text": "Be short."}]
    thought = [
        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
        {"type": "text", "text": "Hello."},
    ]
    thoughtful = [said[0], {"role": "assistant", "content": thought}, said[2]]
    parts_of_user = [{"role": "user", "content": [{"type": "text", "text": ASK}]}]
    for given in (
        {"system": "Be kind. Be short.", "messages": said},
        {"system": blocks, "messages": [*thoughtful[:2], *parts_of_user]},
        {"messages": [*system, *said]},
    ):
        made = message(claude, max_tokens=12, **given)
        assert made.content[0].text == expected
    items = [
        *said[:1],
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Hello.", "annotations": []}],
        },
        {"role": "user", "content": [{"type": "input_text", "text": ASK}]},
    ]
    developer = [{"role": "developer", "content": "Be kind. Be short."}]
    for asked in (
        {"instructions": "Be kind. Be short.", "input": items},
        {"input": [*developer, *items]},
    ):
        assert response(client, max_output_tokens=12, **asked).output_text == expected
    both = chat(
        client,
        messages=[{"role": "system", "content": "Be kind.\n\nBe short."}, *said],
        max_tokens=12,
        extra_body=SEED,
        **HOT,
    )
    short = [{"role": "developer", "content": "Be short."}]
    made = response(client, max_output_tokens=12, instructions="Be kind.", input=[*short, *items])
    assert made.output_text == both


def test_stop_sequences(claude: anthropic.Anthropic, says: Callable[[str], None]) -> None:
    says("one two three")
    made = message(claude, stop_sequences=["xyz", "three", "two"])
    assert made.content[0].text == "one "
    assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", "two")
    made = message(claude, stop_sequences=["xyz"])
    assert made.content[0].text == "one two three"
    assert (made.stop_reason, made.stop_sequence) == ("end_turn", None)


def test_a_stop_of_the_chat_format_is_no_stop_sequence(
    claude: anthropic.Anthropic, says: Callable[[str], None]
) -> None:
    says("one</s>two")
    made = message(claude, stop_sequences=["two"])
    assert made.content[0].text == "one"
    assert (made.stop_reason, made.stop_sequence) == ("end_turn", None)


def test_an_empty_answer(
    claude: anthropic.Anthropic, client: openai.OpenAI, says: Callable[[str], None]
) -> None:
    says("")
    made = message(claude)
    assert made.content == [] and made.stop_reason == "end_turn"
    again = response(client)
    assert again.output == [] and again.status == "completed"


def test_a_begun_answer_goes_on(
    claude: anthropic.Anthropic, client: openai.OpenAI, running: serving.InThread
) -> None:
    """A last message of the assistant's is the beginning of the answer, which is not repeated."""
    begun = "Once upon a time there was a"
    asked = {"model": "x", "max_tokens": 24, "extra_body": {"temperature": 0}}
    messages = [*user(), {"role": "assistant", "content": begun}]
    prompt = running.post("apply-template", {"messages": user()}).json()["prompt"]
    want = client.completions.create(prompt=prompt + begun, **asked).choices[0].text
    found = claude.messages.create(messages=messages, **asked)
    assert found.content[0].text == want and want
    with claude.messages.stream(messages=messages, **asked) as stream:
        assert stream.get_final_text() == want
    parts = [*user(), {"role": "assistant", "content": [{"type": "text", "text": begun}]}]
    assert claude.messages.create(messages=parts, **asked).content[0].text == want
    counted = [
        claude.messages.count_tokens(model="x", messages=each).input_tokens
        for each in (user(), messages)
    ]
    assert (
        counted[0]
        < counted[1]
        == found.usage.input_tokens + (found.usage.cache_read_input_tokens or 0)
    )


def test_count_tokens(claude: anthropic.Anthropic) -> None:
    asked = {"model": "x", "messages": user(), "system": "Be kind.", "tools": [TOOL]}
    counted = claude.messages.count_tokens(**asked).input_tokens
    made = message(claude, system="Be kind.", tools=[TOOL])
    assert counted == made.usage.input_tokens
    many = claude.messages.count_tokens(model="x", messages=user("word " * 2000))
    assert many.input_tokens > 2000  # more than the context has


# ---- Tools ----


def test_calls_of_the_model_s_choice(
    claude: anthropic.Anthropic, client: openai.OpenAI, says: Callable[[str], None]
) -> None:
    says(CALLS)
    made = message(claude, tools=[TOOL], tool_choice={"type": "auto"}, max_tokens=500)
    text, *calls = made.content
    assert text.text == "Well." and [call.input for call in calls] == [{"a": 1}, {"a": 2}]
    assert {call.name for call in calls} == {"add"} and made.stop_reason == "tool_use"
    tools = [{"type": "function", **FUNCTION}, {"type": "web_search"}]
    again = response(client, tools=tools, max_output_tokens=500)
    text, *calls = again.output
    assert text.content[0].text == "Well." and again.status == "completed"
    assert [call.arguments for call in calls] == ['{"a": 1}', '{"a": 2}']
    assert {call.name for call in calls} == {"add"}


def test_a_call_that_is_cut(
    claude: anthropic.Anthropic, client: openai.OpenAI, says: Callable[[str], None]
) -> None:
    said = 'Well.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2'
    says(said)
    given = {"model": "x", "messages": user(), "tools": [TOOL], "max_tokens": len(said)}
    made = claude.messages.create(**given)
    assert [block.text for block in made.content] == [said] and made.stop_reason == "max_tokens"
    with claude.messages.stream(**given) as stream:
        streamed = stream.get_final_message()
    text, call = streamed.content
    assert text.type == "text" and call.type == "tool_use" and call.input == {"a": 1}
    assert streamed.stop_reason == "max_tokens"
    asked = {"model": "x", "input": ASK, "tools": [{"type": "function", **FUNCTION}]}
    events = list(client.responses.create(stream=True, max_output_tokens=len(said), **asked))
    check_events(events)
    assert events[-1].type == "response.incomplete"
    text, call = events[-1].response.output
    assert (text.status, call.status, call.arguments) == ("completed", "incomplete", '{"a": 1}')


@pytest.mark.parametrize("choice", ["any", "tool"])
def test_forced_calls(claude: anthropic.Anthropic, client: openai.OpenAI, choice: str) -> None:
    named = {"type": "any", "disable_parallel_tool_use": True}
    wanted: Any = "required"
    if choice == "tool":
        named, wanted = {"type": "tool", "name": "add"}, {"type": "function", "name": "add"}
    made = message(claude, tools=[TOOL], tool_choice=named, max_tokens=100)
    (call,) = made.content
    assert call.type == "tool_use" and call.name == "add" and 0 <= call.input["a"] <= 9
    assert made.stop_reason == "tool_use"
    again = response(
        client,
        tools=[{"type": "function", **FUNCTION}],
        tool_choice=wanted,
        parallel_tool_calls=False,
        max_output_tokens=100,
    )
    (item,) = again.output
    assert item.name == "add" and json.loads(item.arguments) == call.input
    chatted = client.chat.completions.create(
        model="x",
        messages=user(),
        tools=[{"type": "function", "function": FUNCTION}],
        tool_choice={"type": "function", "function": {"name": "add"}},
        max_tokens=100,
        extra_body=SEED,
        **HOT,
    )
    assert chatted.choices[0].message.tool_calls[0].function.arguments == item.arguments


def test_no_calls_where_none_are_wanted(
    claude: anthropic.Anthropic, client: openai.OpenAI, says: Callable[[str], None]
) -> None:
    says(CALLS)
    made = message(claude, tools=[TOOL], tool_choice={"type": "none"}, max_tokens=500)
    assert [block.text for block in made.content] == [CALLS]
    tools = [{"type": "function", **FUNCTION}]
    again = response(client, tools=tools, tool_choice="none", max_output_tokens=500)
    assert again.output_text == CALLS


def test_results_of_tools(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    """Calls and results of a conversation are the same prompt in all dialects."""
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": "add", "arguments": given}}
        for i, given in enumerate(('{"a": 1}', '{"a": 2}'))
    ]
    said = [
        *user(),
        {"role": "assistant", "content": "Well.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_0", "content": "one"},
        {"role": "tool", "tool_call_id": "call_1", "content": "Error: two"},
        *user("And?"),
    ]
    tools = [{"type": "function", "function": FUNCTION}]
    expected = chat(client, messages=said, tools=tools, max_tokens=12, extra_body=SEED, **HOT)
    used = [
        {"type": "tool_use", "id": f"call_{i}", "name": "add", "input": {"a": i + 1}}
        for i in range(2)
    ]
    two = [{"type": "text", "text": "tw"}, {"type": "text", "text": "o"}]
    results = [
        {"type": "tool_result", "tool_use_id": "call_0", "content": "one"},
        {"type": "tool_result", "tool_use_id": "call_1", "content": two, "is_error": True},
        {"type": "text", "text": "And?"},
    ]
    messages = [
        *user(),
        {"role": "assistant", "content": [{"type": "text", "text": "Well."}, *used]},
        {"role": "user", "content": results},
    ]
    made = message(claude, messages=messages, tools=[TOOL], max_tokens=12)
    assert made.content[0].text == expected
    items = [
        *user(),
        {"role": "assistant", "content": "Well."},
        *(
            {
                "type": "function_call",
                "call_id": call["id"],
                "name": "add",
                "arguments": call["function"]["arguments"],
            }
            for call in calls
        ),
        {"type": "function_call_output", "call_id": "call_0", "output": "one"},
        {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": [{"type": "input_text", "text": "Error: two"}],
        },
        *user("And?"),
    ]
    flat = [{"type": "function", **FUNCTION}]
    again = response(client, input=items, tools=flat, max_output_tokens=12)
    assert again.output_text == expected


def test_an_answer_can_be_sent_back(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    forced = {"type": "tool", "name": "add"}
    asked = {"model": "x", "max_tokens": 60, "tools": [TOOL]}
    made = claude.messages.create(messages=user(), tool_choice=forced, **asked)
    result = {"type": "tool_result", "tool_use_id": made.content[0].id, "content": "3"}
    said = [*user(), {"role": "assistant", "content": made.content}]
    claude.messages.create(messages=[*said, {"role": "user", "content": [result]}], **asked)
    tools = [{"type": "function", **FUNCTION}]
    first = client.responses.create(model="x", input=ASK, tools=tools, tool_choice="required")
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "3"}
        for item in first.output
    ]
    items = [*user(), *(item.to_dict() for item in first.output), *results]
    client.responses.create(model="x", input=items, tools=tools, max_output_tokens=5)


# ---- Formats ----


def test_json_by_a_schema(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    wanted = {"type": "json_schema", "name": "pet", "schema": PET, "strict": True}
    made = response(client, text={"format": wanted}, max_output_tokens=60)
    assert json.loads(made.output_text)["kind"] in ("cat", "dog")
    assert made.status == "completed"
    config = {"format": {"type": "json_schema", "schema": PET}}
    again = message(claude, max_tokens=60, extra_body={"output_config": config})
    assert again.content[0].text == made.output_text
    form = {"type": "json_schema", "json_schema": {"name": "pet", "schema": PET}}
    chatted = chat(client, response_format=form, max_tokens=60, extra_body=SEED, **HOT)
    assert chatted == made.output_text
    made = response(client, text={"format": {"type": "json_object"}}, max_output_tokens=60)
    assert made.output_text.startswith("{")
    assert response(client, text={"format": {"type": "text"}}).output_text
