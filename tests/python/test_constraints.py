"""A constraint holds whatever a model thinks: under every budget, dialect and kind of template."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import serving
import tiny
from circles import pairwise, pick, third
from powerinfer_cpp.core.logits import LogitsProcessorList
from powerinfer_cpp.server.served import ServedModel
from powerinfer_cpp.text.masks import going_past
from powerinfer_cpp.text.thinking import Thinking
from powerinfer_cpp.text.thought_limit import ThoughtLimit, ThoughtProcessor, Waiting
from powerinfer_cpp.text.tools import ThoughtParser, Thoughts, message
from test_thinking import ASK, BRACKETS, GPT, INSIDE, OPENS, PLAIN, QWEN

# ---- One text, of a model that says anything ----

# Parts of tags, tags with what does not belong to them, and characters in pieces.
PIECES = [
    *(b"a", b" ", b"\n", b"\n\n", b"<", b"</", b"/", b"think", b"thi", b"nk", b">", b">\n", b">1"),
    *(b"ink>2", b"</think>", b"</think>\n\n", b"</think>3", b">>", b"\xe2", b"\x82\xac", b"4"),
    *(b"567", b"<|im_end|>", b"", b"", b""),
]
CONTROL, END, OTHER_END = len(PIECES) - 3, len(PIECES) - 2, len(PIECES) - 1
DIGITS = [token for token, data in enumerate(PIECES) if data.isdigit()]
KNOWN = SimpleNamespace(
    ends=np.array([END, OTHER_END]),
    going_past=lambda mark, left: going_past(PIECES, mark, left),
)


class Digits:
    """Stands for the processor of a grammar: some digits."""

    def __init__(self) -> None:
        self.from_: int | None = None

    def begin(self, n: int) -> None:
        assert self.from_ is None
        self.from_ = n

    def begin_mask(self, ids: np.ndarray) -> None:
        assert self.from_ is not None

    def __call__(self, ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        said = ids[self.from_ :].tolist()
        assert set(said) <= set(DIGITS)
        allowed = DIGITS + [END, OTHER_END] * bool(said)
        out = np.full_like(scores, -np.inf)
        out[allowed] = scores[allowed]
        return out


def encode(text: str) -> list[int]:
    """The longest pieces first, but for those that have all of the closing tag."""
    ids, data = [], text.encode()
    known = [token for token in range(CONTROL) if b"</think>" not in PIECES[token]]
    while data:
        token = max(known, key=lambda i: len(PIECES[i]) * data.startswith(PIECES[i]))
        ids.append(token)
        data = data[len(PIECES[token]) :]
    return ids


def closer(ids: Sequence[int]) -> np.ndarray:
    """1 for each token with which a text goes on towards the closing tag."""
    said = b"".join(PIECES[token] for token in ids[-9:])
    begins = [n for n in range(8) if said.endswith(b"</think>"[:n])]
    left = b"</think>"[max(begins) :]
    on = [left.startswith(data) or data.startswith(left) for data in PIECES]
    return np.array([bool(data) and good for data, good in zip(PIECES, on, strict=True)])


def made(opened: bool, budget: int | None, tags: Thoughts, control: bool) -> Any:
    shown = {tags.closing: CONTROL} if control else {}

    def encoded(text: str) -> list[int]:
        before, found, after = text.partition(tags.closing)
        if control and found:
            return [*encode(before), CONTROL, *encode(after)]
        return encode(text)

    waiting = Waiting(Digits(), KNOWN)  # type: ignore[arg-type]
    limit = ThoughtLimit(tags, opened, budget, shown)
    return ThoughtProcessor(limit, waiting, PIECES.__getitem__, encoded), waiting.grammar


def read(tags: Thoughts, opened: bool, ids: Sequence[int], control: bool) -> dict[str, Any]:
    shown = {CONTROL: tags.closing.encode()} if control else {}
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    parser = ThoughtParser(tags, opened, quotes=opened)
    events = [e for t in ids for e in parser.push(decoder.decode(shown.get(t, PIECES[t])))]
    return message(events + parser.finish())


@pytest.mark.parametrize("control", [False, True], ids=["text", "token"])
@pytest.mark.parametrize("opened", [False, True], ids=["closed", "opened"])
def test_any_tokens(opened: bool, control: bool) -> None:
    """Random ones, with ends among them: what follows the thoughts is the grammar's."""
    n_ended = 0
    for seed in range(pick(150, 3000)):
        rng = np.random.default_rng(seed)
        tags = Thoughts("<think>", "</think>", end=("", "\n</think>", " </think>\n")[seed % 3])
        budget = (None, 0, 5)[seed // 3 % 3]
        processor, grammar = made(opened, budget, tags, control)
        late, late_grammar = made(opened, budget, tags, control)  # sees several ids at once
        ids, every = [7, 7], int(rng.integers(1, 5))
        late.begin_mask(np.array(ids))
        for n in range(80):
            now = np.array(ids)
            processor.begin_mask(now)
            wanted = rng.normal(0, 3, len(PIECES)) + 4 * closer(ids[2:])
            scores = processor(now, wanted.astype(np.float32))
            token = int(np.argmax(scores + rng.gumbel(size=len(PIECES))))
            if n % every == 0 and not processor._ends_here:
                late.begin_mask(now)
            if token in (END, OTHER_END):
                break
            ids.append(token)
        found = read(tags, opened, ids[2:], control)
        said, ended = found["content"], token in (END, OTHER_END)
        n_ended += ended
        assert re.fullmatch(r"\s*\d+" if ended else r"\s*\d*", said), (seed, said)
        if not opened:
            assert "reasoning_content" not in found
        if late_grammar.from_ is not None:
            assert late_grammar.from_ == grammar.from_
    assert n_ended > 20


@pytest.mark.parametrize("budget", [None, 9])
@pytest.mark.parametrize("control", [False, True], ids=["text", "token"])
def test_an_end_closes_thoughts(control: bool, budget: int | None) -> None:
    """Each of a model's, and one that is forbidden none."""
    tags = Thoughts("<think>", "</think>")
    for end, forbidden in ((END, False), (OTHER_END, False), (END, True)):
        processor, grammar = made(True, budget, tags, control)
        ids = [7, 0]
        for _ in range(8):
            scores = np.zeros(len(PIECES), dtype=np.float32)
            scores[0] = 20
            scores[end] = -np.inf if forbidden else 50
            ids.append(int(np.argmax(processor(np.array(ids), scores))))
            if grammar.from_ is not None and len(ids) > grammar.from_:
                break
        tail = [CONTROL, *encode("\n\n")] if control else encode("</think>\n\n")
        if forbidden:
            assert ids[2:] == [0] * 8
        else:
            assert ids[2 : 2 + len(tail)] == tail and grammar.from_ == 2 + len(tail)


def test_tokens_that_go_past_a_tag() -> None:
    found = going_past([b">{", b"</a>x", b">\n", b">", b"a>>", b">\n{"], "</a>", "\n\n")
    assert {before: ids.tolist() for before, ids in found.items()} == {
        "": [1],
        "</": [4],
        "</a": [0, 5],
    }


# ---- Every way to ask for a budget, and for a constraint, of templates of each kind ----

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 22]}},
    "required": ["a"],
    "additionalProperties": False,
}
ADD = {"name": "add", "description": "Adds.", "parameters": SCHEMA}
CHAT, RESPONSES, MESSAGES = "v1/chat/completions", "v1/responses", "v1/messages"
PATHS = {
    CHAT: {"messages": ASK, "max_tokens": 200},
    RESPONSES: {"input": ASK, "max_output_tokens": 200},
    MESSAGES: {"messages": ASK, "max_tokens": 200},
}
_FORMAT = {"type": "json_schema", "name": "x", "schema": SCHEMA}
_ANTHROPICS = {"name": "add", "input_schema": SCHEMA}
_CHATS = {"tools": [{"type": "function", "function": ADD}], "parallel_tool_calls": False}
_RESPONSES = {"tools": [{"type": "function", **ADD}], "parallel_tool_calls": False}
# By name: the route, the fields, and what an answer then is.
CONSTRAINTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "schema": (
        CHAT,
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        "json",
    ),
    "object": (CHAT, {"response_format": {"type": "json_object", "schema": SCHEMA}}, "json"),
    "field": (CHAT, {"json_schema": SCHEMA}, "json"),
    "grammar": (CHAT, {"grammar": 'root ::= "yes" | "no"'}, "word"),
    "required": (CHAT, {**_CHATS, "tool_choice": "required"}, "call"),
    "named": (
        CHAT,
        {**_CHATS, "tool_choice": {"type": "function", "function": {"name": "add"}}},
        "call",
    ),
    "text": (RESPONSES, {"text": {"format": _FORMAT}}, "json"),
    "grammar there": (RESPONSES, {"grammar": 'root ::= "yes" | "no"'}, "word"),
    "required there": (RESPONSES, {**_RESPONSES, "tool_choice": "required"}, "call"),
    "config": (MESSAGES, {"output_config": {"format": _FORMAT}}, "json"),
    "format": (MESSAGES, {"output_format": _FORMAT}, "json"),
    "any": (
        MESSAGES,
        {
            "tools": [_ANTHROPICS],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        },
        "call",
    ),
}
# Fields of a request; `served` is the setting of the server.
_FEW: tuple[dict[str, Any], ...] = (
    {},
    {"served": Thinking().asked(reasoning_budget=0)},
    {"served": Thinking().asked(reasoning_budget=7)},
    {"reasoning_budget": 0},
    {"reasoning_effort": "high", "reasoning_budget": 7},
    {"thinking_budget_tokens": 7, "enable_thinking": False},
    {"thinking_token_budget": 7, "reasoning_format": "none"},
    {"thinking": {"type": "enabled", "budget_tokens": 7}},
)
BUDGETS = pick(
    _FEW,
    (
        *_FEW,
        {"served": Thinking().asked(enable_thinking=False)},
        {"reasoning_budget": 7},
        {"reasoning_budget": -1},
        {"reasoning_effort": "none"},
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": False}, "thinking_budget": 7},
        {"thinking": {"type": "disabled"}},
        {"reasoning": {"effort": "low", "max_tokens": 7}},
        {"reasoning": {"enabled": False}},
    ),
)
TEMPLATES = {
    "closes": QWEN,
    "opens": OPENS,
    "always opens": INSIDE,
    "brackets": BRACKETS,
    "channels": GPT,
    "never": PLAIN,
}
# What a model would say by itself. A call among thoughts is none: nothing has held it.
CALL = '<tool_call>{"name": "add", "arguments": {"a": 333}}</tool_call>'
SAYS = ("", "Napoleon was", "Hm.</think>\n\nNapoleon", f"I say {CALL}. Hm", "Hm " * 80)


class Wants:
    """A logits processor that prefers a text, byte by byte, and then an end."""

    def __init__(self, served: ServedModel, said: str):
        zero = next(token for token in range(16) if served.model.text(token) == b"\0")
        self._ids = [zero + byte for byte in said.encode()]
        self._eos, self._n = served.model.eos, 0

    def __call__(self, _ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        token = self._ids[self._n] if self._n < len(self._ids) else self._eos
        scores[token] += 60
        self._n += 1
        return scores


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, serving.InThread]]:
    folder = tmp_path_factory.mktemp("constraints")
    paths = {name: tiny.make(folder / name, source) for name, source in TEMPLATES.items()}
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(serving.in_thread(path, n_ctx=1024, n_parallel=1))
            for name, path in paths.items()
        }


def said(path: str, found: dict[str, Any]) -> tuple[str, list[str], bool]:
    """The text of an answer, the arguments of its calls, and whether it was cut."""
    if path == CHAT:
        (choice,) = found["choices"]
        calls = choice["message"].get("tool_calls", [])
        arguments = [call["function"]["arguments"] for call in calls]
        return choice["message"]["content"] or "", arguments, choice["finish_reason"] == "length"
    blocks = found["output"] if path == RESPONSES else found["content"]
    texts = [block for block in blocks if block["type"] in ("message", "text")]
    parts = [part for block in texts for part in block.get("content", [block])]
    arguments = [
        block["arguments"] if path == RESPONSES else json.dumps(block["input"])
        for block in blocks
        if block["type"] in ("function_call", "tool_use")
    ]
    cut = found.get("status") == "incomplete" or found.get("stop_reason") == "max_tokens"
    return "".join(part["text"] for part in parts), arguments, cut


CASES = pairwise(
    template=list(TEMPLATES),
    budget=range(len(BUDGETS)),
    constraint=list(CONSTRAINTS),
    says=range(len(SAYS)),
)


@pytest.mark.parametrize(("template", "budget", "constraint", "says"), third(CASES))
def test_never_a_text_without_it(
    servers: dict[str, serving.InThread],
    monkeypatch: pytest.MonkeyPatch,
    template: str,
    budget: int,
    constraint: str,
    says: int,
) -> None:
    server = servers[template]
    fields = dict(BUDGETS[budget])
    monkeypatch.setattr(server.model, "thinking", fields.pop("served", Thinking()))
    original = ServedModel.request

    def request(self: ServedModel, prompt: object, **options: object) -> object:
        made = original(self, prompt, **options)
        held = made.processors
        assert held is not None
        return replace(
            made, processors=lambda: LogitsProcessorList([Wants(self, SAYS[says]), held()])
        )

    monkeypatch.setattr(ServedModel, "request", request)
    path, asked, kind = CONSTRAINTS[constraint]
    answer = server.post(path, {**PATHS[path], **asked, **fields, "seed": 3})
    assert answer.status_code == 200, answer.text
    text, calls, cut = said(path, answer.json())
    if fields.get("reasoning_format") == "none":  # thoughts that the prompt has opened
        text = (
            text.rpartition("</think>")[2].lstrip() if "</think>" in text else "" if cut else text
        )
    if cut:  # within its thoughts
        assert text == "" and calls == [] and SAYS[says].startswith("Hm Hm")
    elif kind == "word":
        assert text in ("yes", "no")
    elif kind == "json":
        assert json.loads(text)["a"] in (1, 22)
    else:
        (arguments,) = calls
        assert text.strip() == "" and json.loads(arguments)["a"] in (1, 22)
