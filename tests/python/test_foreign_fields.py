"""Fields that ask for a constraint or a limit: each route obeys them, or refuses them by name."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import serving
import tiny
from powerinfer_cpp.server.dialects.bodies import ChatBody, CompletionBody, decode
from powerinfer_cpp.server.dialects.foreign import FIELDS
from powerinfer_cpp.server.dialects.infill import InfillBody
from powerinfer_cpp.server.dialects.messages import CountBody, MessagesBody
from powerinfer_cpp.server.dialects.native import NativeCompletionBody
from powerinfer_cpp.server.dialects.responses import ResponsesBody
from powerinfer_cpp.server.errors import Refusal
from powerinfer_cpp.text.thinking import Thinking
from test_thinking import QWEN

ASK = [{"role": "user", "content": "Why?"}]
BODIES: dict[type[msgspec.Struct], dict[str, Any]] = {
    ChatBody: {"messages": ASK},
    CompletionBody: {"prompt": "x"},
    NativeCompletionBody: {"prompt": "x"},
    InfillBody: {},
    ResponsesBody: {"input": "x"},
    MessagesBody: {"messages": ASK, "max_tokens": 4},
    CountBody: {"messages": ASK},
}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "add"}}
# What asks for something, and what asks for nothing beside null; by the shape of a field.
_TEXT, _LIST, _OBJECT = (["x"], [""]), ([["x"], [3]], [[]]), ([{"a": 1}], [{}])
_COUNT, _FLAG, _ONE = ([3, 1], [0]), ([True], [False]), ([2, 5], [0, 1])
_BUDGET = [0, 9], [-1]
VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "guided_json": ([SCHEMA, {}, "{}"], []),
    "structured_outputs": ([{"choice": ["a"]}], [{}]),
    "format": (["json", SCHEMA], [""]),
    "text": ([{"format": {"type": "json_object"}}], [{"format": {"type": "text"}}, {}, "x"]),
    "output_config": ([{"format": SCHEMA}, {"effort": "low"}], [{}, {"format": None}]),
    "output_format": ([{"type": "json_schema", "schema": SCHEMA}], [{}]),
    "tools": ([[TOOL]], [[]]),
    "functions": ([[TOOL["function"]]], [[]]),
    "tool_choice": (["required", TOOL], ["auto", "none"]),
    "function_call": ([{"name": "add"}], ["auto", "none"]),
    "num_predict": ([3], [-1, 0]),
    "t_max_prompt_ms": ([5, 0.5], [-1, 0]),
    "truncate_prompt_tokens": ([9], [-1]),
    "max_time": ([0.5, 2], [0]),
    "stop": (["x", ["x"]], ["", []]),
    "enable_thinking": ([False], [True]),
    "reasoning_effort": (["low", "none"], []),
    "reasoning": (
        [{"effort": "low"}, {"max_tokens": 0}, {"enabled": False}],
        [{}, {"enabled": True}, {"summary": "auto"}],
    ),
    "thinking": (
        [False, {"type": "disabled"}, {"type": "enabled", "budget_tokens": 9}],
        [True, {"type": "enabled"}, {"type": "adaptive"}],
    ),
    **dict.fromkeys(("guided_regex", "guided_grammar", "guided_whitespace_pattern"), _TEXT),
    **dict.fromkeys(("regex", "ebnf", "stop_regex", "sampler_seq", "sampling_seq"), _TEXT),
    **dict.fromkeys(("guided_choice", "bad_words", "bad_words_ids", "allowed_token_ids"), _LIST),
    **dict.fromkeys(("grammar_triggers", "logits_processors", "stop_sequences"), _LIST),
    "stop_token_ids": _LIST,
    "response_fields": ([["content"], ["", "content"]], [[], [""]]),
    **dict.fromkeys(("structural_tag", "chat_template_kwargs"), _OBJECT),
    **dict.fromkeys(("grammar_lazy", "use_beam_search", "post_sampling_probs", "echo"), _FLAG),
    **dict.fromkeys(("min_tokens", "min_new_tokens", "min_length", "n_indent"), _COUNT),
    **dict.fromkeys(("no_repeat_ngram_size", "max_tool_calls", "max_new_tokens"), _COUNT),
    **dict.fromkeys(("max_length", "logprobs", "top_logprobs", "n_probs"), _COUNT),
    **dict.fromkeys(("prompt_logprobs",), _COUNT),
    **dict.fromkeys(("n", "n_cmpl", "num_return_sequences", "best_of", "num_beams"), _ONE),
    **dict.fromkeys(("min_keep",), _ONE),
    **dict.fromkeys(("reasoning_budget", "reasoning_budget_tokens", "thinking_budget"), _BUDGET),
    **dict.fromkeys(("thinking_budget_tokens", "thinking_token_budget"), _BUDGET),
}


def read(kind: type[msgspec.Struct], **fields: Any) -> Any:
    return decode(json.dumps({**BODIES[kind], **fields}).encode(), kind)


def foreign(kind: type[Any]) -> list[str]:
    known = {*kind.__struct_encode_fields__} - kind.UNUSED
    return [name for name in FIELDS if name not in known]


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_what_a_route_does_not_know(kind: type[msgspec.Struct]) -> None:
    assert set(VALUES) == set(FIELDS)
    names = foreign(kind)
    assert {"guided_json", "structured_outputs", "min_tokens", "grammar_lazy"} <= set(names)
    for name in names:
        asking, harmless = VALUES[name]
        for value in asking:
            with pytest.raises(Refusal, match=f"{name}\\b") as error:
                read(kind, **{name: value})
            assert (error.value.status, error.value.param) == (400, name)
        for value in [*harmless, None]:
            read(kind, **{name: value})


def test_no_field_is_forgotten() -> None:
    """What one route takes, and would constrain or limit there, another one takes or refuses."""
    words = ("schema", "grammar", "format", "choice", "tools", "max_", "n_pr", "budget", "stop")
    fields = {name for kind in BODIES for name in kind.__struct_encode_fields__}
    asking = {name for name in fields if any(word in name for word in words)}
    asking -= {"reasoning_format", "add_generation_prompt"}  # about the form of chats
    asking -= {"return_progress"}  # of streams
    for kind in BODIES:
        known = {*kind.__struct_encode_fields__} - kind.UNUSED  # type: ignore[attr-defined]
        assert asking <= known | set(FIELDS), kind


def test_the_docs_name_them() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "serve.md").read_text()
    assert [name for name in FIELDS if f"`{name}`" not in text] == []


# ---- What is obeyed ----

PATHS: dict[str, tuple[dict[str, Any], str]] = {
    "v1/chat/completions": ({"messages": ASK}, "max_tokens"),
    "v1/completions": ({"prompt": "x"}, "max_tokens"),
    "completion": ({"prompt": "x"}, "n_predict"),
    "v1/responses": ({"input": "x"}, "max_output_tokens"),
    "v1/messages": ({"messages": ASK, "max_tokens": 99}, "max_tokens"),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[serving.InThread]:
    path = tiny.make(tmp_path_factory.mktemp("foreign"), QWEN)
    with serving.in_thread(path, n_ctx=512, n_parallel=2) as found:
        yield found


def answered(running: serving.InThread, path: str, **fields: Any) -> tuple[str, int, bool]:
    """The text, its tokens, and whether it was cut."""
    body = {**PATHS[path][0], "temperature": 1.5, "seed": 3, **fields}
    answer = running.post(path, body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    if path == "completion":
        return found["content"], found["tokens_predicted"], found["stop_type"] == "limit"
    if "completions" in path:
        (choice,) = found["choices"]
        text = choice["text"] if path == "v1/completions" else choice["message"]["content"]
        return text, found["usage"]["completion_tokens"], choice["finish_reason"] == "length"
    n = found["usage"]["output_tokens"]
    if path == "v1/messages":
        text = "".join(block["text"] for block in found["content"])
        return text, n, found["stop_reason"] == "max_tokens"
    parts = [part for item in found["output"] for part in item["content"]]
    return "".join(part["text"] for part in parts), n, found["status"] == "incomplete"


def endless(running: serving.InThread) -> dict[str, Any]:
    """Fields with which a text does not end, and with which it ends at once."""
    return {str(running.model.model.eos): 100}


@pytest.mark.parametrize("path", PATHS)
def test_constraints(running: serving.InThread, path: str) -> None:
    most = {PATHS[path][1]: 40}
    formats = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    for fields in ({"json_schema": SCHEMA}, {"response_format": formats}):
        assert json.loads(answered(running, path, **fields, **most)[0]) == {"a": 7}
    assert answered(running, path, grammar='root ::= "yes"', **most)[0] == "yes"
    assert answered(running, path, grammar="", **most)[1] > 0
    ways = {"grammar": 'root ::= "a"', "json_schema": SCHEMA, "response_format": formats}
    for pair in itertools.combinations(ways, 2):
        both = {name: ways[name] for name in pair}
        error = serving.refused(running.post(path, {**PATHS[path][0], **both}))
        assert "exclude each other" in error["message"] and all(n in error["message"] for n in pair)


@pytest.mark.parametrize("path", PATHS)
def test_limits(running: serving.InThread, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    end = endless(running)
    on = {"ignore_eos": True, "logit_bias": end}
    assert answered(running, path, logit_bias=end, **{PATHS[path][1]: 9})[:2] == ("", 0)
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"):
        _, n, cut = answered(running, path, **on, **{PATHS[path][1]: 30, name: 3})
        assert (n, cut) == (3, True), name
        bad = {**PATHS[path][0], name: -5}
        assert name in serving.refused(running.post(path, bad))["message"]
    assert answered(running, path, **on, **{PATHS[path][1]: 30}, max_completion_tokens=-1)[1] == 30
    # Time: a clock on which each token takes a second.
    now = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: float(next(now)))
    monkeypatch.setattr("powerinfer_cpp.server.dialects.asked.time", clock)
    line = {"grammar": 'root ::= "\\n" "a"{60}', "t_max_predict_ms": 9000}
    text, n, cut = answered(running, path, **line, **{PATHS[path][1]: 50})
    assert text.strip() == "a" * (n - 1) and n < 50 and cut
    assert answered(running, path, t_max_predict_ms=0, **{PATHS[path][1]: 2})


@pytest.mark.parametrize("path", PATHS)
def test_samplers(running: serving.InThread, path: str) -> None:
    most = {PATHS[path][1]: 20, "ignore_eos": True}
    for letters, names in (("kt", ["top_k", "temperature"]), ("", []), ("tdym", None)):
        asked = names or ["temperature", "dry", "typ_p", "min_p"] if names is None else names
        fields = {"top_k": 2, "typical_p": 0.5, **most}
        found = answered(running, path, samplers=letters, **fields)
        assert found == answered(running, path, samplers=asked, **fields)
    error = serving.refused(running.post(path, {**PATHS[path][0], "samplers": "kq"}))
    assert "samplers: 'q'" in error["message"]
    penalty = {"repeat_penalty": 5.0, "temperature": 0, **most}
    near, far = (answered(running, path, repeat_last_n=n, **penalty)[0] for n in (0, -1))
    assert near != far


def test_probabilities(running: serving.InThread) -> None:
    body = {**PATHS["v1/completions"][0], "max_tokens": 3, "seed": 3}
    own = running.post("v1/completions", {**body, "logprobs": 2}).json()["choices"]
    assert running.post("v1/completions", {**body, "n_probs": 2}).json()["choices"] == own
    body = {**PATHS["v1/chat/completions"][0], "max_tokens": 3, "seed": 3}
    asked = {**body, "logprobs": True, "top_logprobs": 2}
    own = running.post("v1/chat/completions", asked).json()["choices"]
    assert running.post("v1/chat/completions", {**body, "n_probs": 2}).json()["choices"] == own
    error = serving.refused(running.post("v1/chat/completions", {**body, "top_logprobs": 2}))
    assert error["param"] == "top_logprobs"
    quiet = running.post("v1/chat/completions", {**body, "n_probs": 0, "top_logprobs": 0})
    assert quiet.json()["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("kind", [ChatBody, ResponsesBody, MessagesBody])
def test_thoughts(kind: type[msgspec.Struct]) -> None:
    off, seven = Thinking(on=False), Thinking(budget=7)
    for fields, want in (
        ({"thinking": {"type": "disabled"}}, off),
        ({"thinking": False}, off),
        ({"thinking": {"type": "enabled", "budget_tokens": 7}}, Thinking(on=True, budget=7)),
        ({"thinking": {"type": "enabled"}}, Thinking(on=True)),
        ({"thinking": True, "thinking_budget": 7}, Thinking(on=True, budget=7)),
        ({"reasoning": {"enabled": False}}, off),
        ({"reasoning": {"effort": "none"}}, off),
        ({"reasoning": {"max_tokens": 7}}, seven),
        ({"reasoning": {"max_tokens": 0}}, Thinking(on=False, budget=0)),
        ({"reasoning": {"effort": "high"}}, Thinking(on=True, effort="high")),
        ({"reasoning": {}}, Thinking()),
        ({"thinking_token_budget": 7}, seven),
        ({"reasoning_budget_tokens": 7, "thinking_budget": -1}, seven),
    ):
        assert read(kind, **fields).thinking(Thinking()) == want, fields
        if fields != {"reasoning": {"max_tokens": 0}}:
            assert read(kind, **fields).thinking(Thinking(budget=3)).budget == (want.budget or 3)
    for fields, name in (
        ({"thinking": {"type": "odd"}}, "thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"reasoning": {"max_tokens": -3}}, "reasoning"),
        ({"reasoning": {"enabled": "no"}}, "reasoning"),
        ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "thinking"),
    ):
        with pytest.raises(Refusal) as error:
            read(kind, **fields).thinking(Thinking())
        assert error.value.param == name
