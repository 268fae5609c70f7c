"""Requests of editors and agents that PyPI does not have, made anew from their sources, and what
they read of the answers. Whole sessions of agents: test_agents.py; what clients ask before they use
a server: test_discovery.py; clients that PyPI has: scripts/clients.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import serving
import tiny
from serving import httpx
from test_infill import CODE_LLAMA, with_tokens
from test_thinking import QWEN

SYSTEM = {"role": "system", "content": "You help with code."}
ASK = {"role": "user", "content": "the dog and the cat"}
PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = {"name": "read_file", "description": "Reads a file.", "parameters": PATH}
TOOLS = [{"type": "function", "function": READ}]
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[serving.InThread]:
    plain = tiny.make(tmp_path_factory.mktemp("clients"), QWEN)
    path = with_tokens(plain, plain.with_name("model.gguf"), CODE_LLAMA)
    with serving.in_thread(path, n_ctx=2048, n_parallel=2) as found:
        yield found


def events(answer: httpx.Response) -> list[Any]:
    """The objects of a stream, without OpenAI's last line."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    data = [line[6:] for line in answer.text.split("\n") if line.startswith("data: ")]
    return [json.loads(each) for each in data if each != "[DONE]"]


# ---- llama.vim -------------------------------------------------------------------------------

CHUNK = {"text": "the dog\n", "time": [3, 141], "filename": "a.py"}
SHOWN = ["content", "truncated", "tokens_cached"] + [
    f"timings/{of}_{what}"
    for of in ("prompt", "predicted")
    for what in ("n", "ms", "per_token_ms", "per_second")
]


def test_llama_vim_completes(running: serving.InThread) -> None:
    body = {"id_slot": 0, "input_prefix": "the dog\n", "prompt": "  the", "input_suffix": "\ncat\n"}
    body |= {"input_extra": [CHUNK], "n_predict": 8, "n_indent": 2, "stop": []}
    body |= {"top_k": 40, "top_p": 0.9, "samplers": ["top_k", "top_p", "infill"]}
    body |= {"stream": False, "cache_prompt": True, "t_max_prompt_ms": 500}
    body |= {"t_max_predict_ms": 1000, "response_fields": SHOWN, "model": ""}
    answer = running.post("infill", body)
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == set(SHOWN)


def test_llama_vim_sends_prompts_ahead(running: serving.InThread) -> None:
    """It wants no text and no field, only that the prompt is known when it is needed."""
    body = {"id_slot": 0, "input_prefix": "", "input_suffix": "", "prompt": "", "n_predict": 0}
    body |= {"input_extra": [CHUNK], "temperature": 0.0, "samplers": [], "stream": False}
    body |= {"cache_prompt": True, "t_max_prompt_ms": 1, "t_max_predict_ms": 1}
    answer = running.post("infill", {**body, "response_fields": [""]})
    assert (answer.status_code, answer.json()) == (200, {})
    said = {"id_slot": 1, "messages": [SYSTEM, ASK], "samplers": [], "cache_prompt": True}
    told = running.post(
        "v1/chat/completions",
        {**said, "n_predict": 0, "stream": False, "response_fields": [""]},
    )
    assert told.status_code == 200, told.text
    assert told.json()["usage"]["completion_tokens"] == 0
    # The question that follows finds the prompt.
    body = {**said, "min_p": 0.1, "temperature": 0.1, "samplers": ["min_p", "temperature"]}
    found = events(running.post("v1/chat/completions", {**body, "stream": True, "max_tokens": 4}))
    assert found[-1]["timings"]["cache_n"] > 0


# ---- Chats of editors and agents -------------------------------------------------------------

RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "the cat"}
CALL = {"id": "call_1", "type": "function"}
CALL |= {"function": {"name": "read_file", "arguments": '{"path": "a"}'}}
CHATS: dict[str, dict[str, Any]] = {
    "zed": {
        "messages": [
            SYSTEM,
            ASK,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            RESULT,
            {
                "role": "user",
                "content": [{"type": "text", "text": "And"}, {"type": "text", "text": "a cat?"}],
            },
        ],
        "stream": True,
        "stop": [],
        "temperature": 1.0,
        "tools": TOOLS,
        "tool_choice": "auto",
        "stream_options": {"include_usage": True},
    },
    "cline": {
        "messages": [SYSTEM, {"role": "user", "content": [{"type": "text", "text": "the dog"}]}],
        "temperature": 0,
        "tools": TOOLS,
        **USAGE,
    },
    "continue": {"messages": [SYSTEM, ASK], "max_tokens": 4096, "stream": True, "tools": TOOLS},
    "opencode": {
        "messages": [SYSTEM, {"role": "user", "content": [{"type": "text", "text": "the dog"}]}],
        "max_tokens": 32000,
        "top_p": 1,
        "tools": TOOLS,
        "tool_choice": "auto",
        **USAGE,
    },
    "pi": {
        "messages": [
            {"role": "developer", "content": "You help."},
            ASK,
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "Look."}],
                "reasoning_content": "Which?",
                "tool_calls": [CALL],
            },
            RESULT,
        ],
        "store": False,
        "max_completion_tokens": 16384,
        "tools": TOOLS,
        "reasoning_effort": "medium",
        **USAGE,
    },
    "open webui": {
        "messages": [SYSTEM, ASK],
        "stream": True,
        "params": {},
        "features": {"web_search": False},
        "session_id": "s",
        "chat_id": "c",
    },
    "open webui's button Continue": {
        "messages": [
            SYSTEM,
            ASK,
            {"role": "assistant", "content": "the cat", "reasoning_content": "Which?"},
        ],
        "stream": True,
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
}


@pytest.mark.parametrize("client", CHATS)
def test_a_chat(running: serving.InThread, client: str) -> None:
    # A text that does not end by itself would fill the context.
    body = {"model": "model", **CHATS[client]}
    limits = {"max_tokens", "max_completion_tokens"} & set(body) or {"max_tokens"}
    body |= dict.fromkeys(limits, 6) | {"seed": 1}
    found = events(running.post("v1/chat/completions", body))
    assert all(event["model"] == "model" and event["object"] for event in found)
    choices = [choice for event in found for choice in event["choices"]]
    assert choices[-1]["finish_reason"] in ("stop", "length", "tool_calls")
    assert all("content" in choice["delta"] or choice["delta"] for choice in choices[:-1])
    if "stream_options" in body:
        usage = found[-1]["usage"]
        assert usage["prompt_tokens"] > 8 and usage["completion_tokens"] > 0
        assert usage["prompt_tokens_details"]["cached_tokens"] >= 0


def test_continue_completes_by_llama_cpp(running: serving.InThread) -> None:
    body = {"prompt": "the dog", "stream": True, "n_predict": 6, "stop": ["\n\n"], "top_k": 40}
    headers = {"Authorization": "Bearer undefined"}
    found = events(running.post("completion", {**body, "temperature": 0.01}, headers=headers))
    assert found[-1]["stop"] is True and any(event["content"] for event in found)


# ---- Codex and Claude Code -------------------------------------------------------------------


def test_codex(running: serving.InThread) -> None:
    said = {"type": "message", "role": "user"}
    said |= {"content": [{"type": "input_text", "text": "the dog and the cat"}]}
    patch = {"type": "custom", "name": "apply_patch", "description": "Changes files."}
    patch |= {"format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}}
    shell = {"type": "function", "strict": False, **READ, "name": "exec_command"}
    plan = {"type": "namespace", "name": "mcp__files", "description": "", "tools": [shell]}
    body = {"model": "model", "instructions": "You help.", "input": [said]}
    body |= {"tools": [shell, patch, plan, {"type": "web_search", "external_web_access": False}]}
    body |= {"tool_choice": "auto", "parallel_tool_calls": True, "store": False, "stream": True}
    body |= {"reasoning": {"effort": "low", "summary": "auto"}, "text": {"verbosity": "low"}}
    body |= {"include": ["reasoning.encrypted_content"], "prompt_cache_key": "k"}
    body |= {"client_metadata": {"installation": "i"}, "max_output_tokens": 6, "seed": 1}
    found = events(running.post("v1/responses", body))
    kinds = [event["type"] for event in found]
    assert kinds[0] == "response.created" and "response.output_item.done" in kinds
    last = found[-1]["response"]
    assert kinds[-1] == f"response.{last['status']}" and last["id"]
    assert last["usage"]["total_tokens"] > 0


def test_claude_code(running: serving.InThread) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "context-management-2025-06-27"}
    headers |= {"authorization": "Bearer none", "x-app": "cli"}
    kept = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    tool = {"name": "Read", "description": "Reads.", "input_schema": PATH}
    edits = [{"type": "clear_thinking_20251015", "keep": "all"}]
    body = {
        "model": "claude-sonnet-4-5",
        "system": [{"type": "text", "text": "You help.", **kept}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "the dog and the cat", **kept}]}
        ],
        "tools": [{**tool, "eager_input_streaming": True}],
        "metadata": {"user_id": '{"device_id": "d"}'},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "medium"},
        "context_management": {"edits": edits},
        "max_tokens": 6,
        "stream": True,
    }
    found = events(running.post("v1/messages?beta=true", body, headers=headers))
    kinds = [event["type"] for event in found]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert found[0]["message"]["usage"]["input_tokens"] > 0 and found[-2]["delta"]["stop_reason"]
    counted = {name: body[name] for name in ("model", "system", "messages", "tools", "thinking")}
    answer = running.post("v1/messages/count_tokens?beta=true", counted, headers=headers)
    assert answer.json()["input_tokens"] > 8
    # It asks whether the server is there at all, and goes on whatever it says.
    assert httpx.head(running.url, timeout=60).status_code == 200
