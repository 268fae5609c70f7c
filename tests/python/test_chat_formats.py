"""Chat formats and handlers of programs: llama_chat_format.py."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
from powerinfer_cpp.core.sampling import Sampling
from powerinfer_cpp.llama_chat_format import (
    ChatFormatterResponse,
    Jinja2ChatFormatter,
    LlamaChatCompletionHandlerNotFoundException,
    LlamaChatCompletionHandlerRegistry,
    chat_formatter_to_chat_completion_handler,
    format_chatml,
    format_llama2,
    get_chat_completion_handler,
    hf_tokenizer_config_to_chat_completion_handler,
    hf_tokenizer_config_to_chat_formatter,
    register_chat_completion_handler,
    register_chat_format,
)
from powerinfer_cpp.run.requests import Update
from powerinfer_cpp.server.dialects.chats import chat_request
from powerinfer_cpp.server.served import ServedModel
from powerinfer_cpp.text import chat
from powerinfer_cpp.text.completion import Piece
from powerinfer_cpp.text.template import TemplateError
from powerinfer_cpp.text.tools import HERMES

from powerinfer_cpp import Llama, StoppingCriteriaList

TEMPLATE = """{{ bos_token }}{% for m in messages %}
<{{ m['role'] }}> {{ m['content'] }}{{ eos_token }}
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}{{ more }}"""
MESSAGES = [{"role": "system", "content": "be"}, {"role": "user", "content": "the cat"}]
CALL = {"messages": MESSAGES, "max_tokens": 5, "seed": 3}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("formats"))


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    before = dict(chat.registered)
    yield
    chat.registered.clear()
    chat.registered.update(before)


def plain(messages: Any, **kwargs: Any) -> ChatFormatterResponse:
    text = "".join(f"{m['role']}: {m['content']}\n" for m in messages)
    return ChatFormatterResponse(text + "assistant:", stop=["\n"])


PLAIN = "system: be\nuser: the cat\nassistant:"


def answer(llm: Llama, **more: Any) -> tuple[str, str]:
    choice = llm.create_chat_completion(**{**CALL, **more})["choices"][0]
    return choice["message"]["content"], choice["finish_reason"]


def test_a_registered_format(path: Path) -> None:
    register_chat_format("plain")(plain)
    with Llama(path, n_ctx=128, verbose=False) as llm:
        want = llm(PLAIN, max_tokens=5, seed=3, temperature=0.2, stop="\n")["choices"][0]
        with pytest.raises(ValueError, match="registered already"):
            register_chat_format("plain")(plain)
    with Llama(path, n_ctx=128, verbose=False, chat_format="plain") as llm:
        assert llm.chat_format == "plain"
        assert answer(llm) == (want["text"], want["finish_reason"])
        parts = [
            part["choices"][0]["delta"] for part in llm.create_chat_completion(**CALL, stream=True)
        ]
        assert parts[0] == {"role": "assistant"}
        assert "".join(part.get("content", "") for part in parts) == want["text"]
        probs = llm.create_chat_completion(**CALL, logprobs=True)["choices"][0]["logprobs"]
        assert len(probs["content"]) == 5
        # The rest of the arguments counts as well: samplers of any kind, and stop strings.
        cold = llm(PLAIN, max_tokens=5, top_n_sigma=0.01, min_p=0, stop="\n", temperature=1)
        assert answer(llm, top_n_sigma=0.01, temperature=1)[0] == cold["choices"][0]["text"]
        with pytest.raises(TypeError, match="'wrong'"):
            llm.create_chat_completion(MESSAGES, wrong=1)
    LlamaChatCompletionHandlerRegistry().unregister_chat_handler("plain")
    with pytest.raises(ValueError, match="'plain' is unknown"):
        Llama(path, chat_format="plain", verbose=False)
    with pytest.raises(ValueError, match="no chat_format 'plain'"):
        LlamaChatCompletionHandlerRegistry().unregister_chat_handler("plain")


def test_tools_in_a_format_that_knows_none(path: Path) -> None:
    """They are described in a message of the system, as for named formats."""
    seen: list[Any] = []

    def remember(messages: Any, **kwargs: Any) -> ChatFormatterResponse:
        seen.append((messages, kwargs["tools"]))
        return plain(messages)

    handler = chat_formatter_to_chat_completion_handler(remember)
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    with Llama(path, n_ctx=1024, verbose=False, chat_handler=handler) as llm:
        llm.create_chat_completion(MESSAGES, tools=[tool], max_tokens=1)
    assert seen[0][1] is None and '"add"' in seen[0][0][0]["content"]


def test_a_handler_answers_by_itself(path: Path) -> None:
    @register_chat_completion_handler("echo")
    def echo(*, llama: Llama, messages: Any, max_tokens: int | None, **kwargs: Any) -> Any:
        return {"said": messages[-1]["content"], "n": max_tokens, "more": kwargs["top_n_sigma"]}

    with Llama(path, n_ctx=128, verbose=False, chat_format="echo") as llm:
        done = llm.create_chat_completion(**CALL, top_n_sigma=2.0)
        assert done == {"said": "the cat", "n": 5, "more": 2.0}
        llm.chat_handler = get_chat_completion_handler("chatml")
        want = llm(format_chatml(MESSAGES).prompt, max_tokens=5, seed=3, temperature=0.2)
        assert answer(llm)[0] == want["choices"][0]["text"]
    assert get_chat_completion_handler("echo") is echo
    with pytest.raises(LlamaChatCompletionHandlerNotFoundException, match="'no' is unknown.*echo"):
        get_chat_completion_handler("no")
    with pytest.raises(ValueError, match="chat_handler: a server"):
        ServedModel(path, print, chat_format="echo", verbose=False)


def test_a_server_uses_a_format(path: Path) -> None:
    handler = chat_formatter_to_chat_completion_handler(plain)
    with ServedModel(path, print, n_ctx=64, chat_handler=handler, verbose=False) as model:
        turn = model.turn(MESSAGES)
        assert (turn.text, turn.stop) == (PLAIN, ["\n"])


def test_a_formatter_of_a_template(path: Path) -> None:
    import jinja2

    formatter = Jinja2ChatFormatter(TEMPLATE, eos_token="</s>", bos_token="<s>")
    found = formatter(messages=MESSAGES, more="!")
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    names = {"messages": MESSAGES, "more": "!", "bos_token": "<s>", "eos_token": "</s>"}
    want = environment.from_string(TEMPLATE).render(add_generation_prompt=True, **names)
    assert (found.prompt, found.stop, found.stopping_criteria) == (want, ["</s>"], None)
    short = Jinja2ChatFormatter(TEMPLATE, "</s>", "<s>", add_generation_prompt=False)
    assert found.prompt.startswith(short(messages=MESSAGES).prompt)
    with pytest.raises(TemplateError, match="Expected an expression"):
        Jinja2ChatFormatter("{% for %}", "", "")


def test_tokens_that_end_an_answer(path: Path) -> None:
    with Llama(path, n_ctx=128, verbose=False) as llm:
        prompt = llm.tokenize(b"<s>", add_bos=False, special=True)
        assert prompt == [1]
        llm.chat_handler = Jinja2ChatFormatter("x", "", "").to_chat_handler()
        whole = answer(llm, temperature=0)
        ids = tiny.take(llm.generate(llm.tokenize(b"x"), temp=0), 5)
        end = Jinja2ChatFormatter("x", "", "", stop_token_ids=[ids[2]])
        assert isinstance(end(messages=[]).stopping_criteria, StoppingCriteriaList)
        llm.chat_handler = end.to_chat_handler()
        cut = answer(llm, temperature=0)
    assert whole[1] == "length" and cut[1] == "stop" and len(cut[0]) < len(whole[0])
    assert whole[0].startswith(cut[0])


def test_a_server_ends_answers_where_a_format_says_so(path: Path) -> None:
    ended = threading.Event()

    def deliver(updates: Sequence[Update]) -> None:
        texts.extend(update.piece for update in updates if update.piece)
        if texts and texts[-1].reason:
            ended.set()

    def short(messages: Any, **_: Any) -> ChatFormatterResponse:
        criteria = StoppingCriteriaList([lambda ids, logits: len(ids) >= n_prompt + 3])
        return ChatFormatterResponse("the cat", stopping_criteria=criteria)

    handler = chat_formatter_to_chat_completion_handler(short)
    with Llama(path, n_ctx=64, chat_handler=handler, verbose=False) as llm:
        n_prompt = len(llm.tokenize(b"the cat"))
        want = answer(llm, temperature=0, max_tokens=20)
    texts: list[Piece] = []
    with ServedModel(path, deliver, n_ctx=64, chat_handler=handler, verbose=False) as model:
        params = Sampling(temperature=0)
        request = chat_request(model, model.turn(MESSAGES), [], max_tokens=20, params=params)
        model.engine.submit(request)
        assert ended.wait(60)
    assert ("".join(piece.text for piece in texts), texts[-1].reason) == want
    assert texts[-1].n_tokens == 3 and want[1] == "stop"


def test_formatters_get_what_llama_cpp_python_gives(path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def formatter(
        messages: Any, functions: Any, function_call: Any, tools: Any, tool_choice: Any
    ) -> ChatFormatterResponse:
        """As some of llama-cpp-python's users write them: without defaults."""
        seen.append({"functions": functions, "call": function_call, "choice": tool_choice})
        seen[-1]["tools"] = tools and [tool["function"]["name"] for tool in tools]
        return ChatFormatterResponse("x")

    formatter.style = HERMES  # type: ignore[attr-defined]
    handler = chat_formatter_to_chat_completion_handler(formatter)
    tools = [{"type": "function", "function": {"name": "f"}}]
    with Llama(path, n_ctx=64, chat_handler=handler, verbose=False) as llm:
        llm.create_chat_completion(MESSAGES, max_tokens=1)
        llm.create_chat_completion(MESSAGES, max_tokens=1, tools=tools, tool_choice="auto")
    nothing = {"functions": None, "call": None}
    assert seen[0] == {**nothing, "choice": None, "tools": None}
    assert seen[1] == {**nothing, "choice": "auto", "tools": ["f"]}


def test_the_format_of_a_tokenizer_config() -> None:
    config = {"chat_template": TEMPLATE, "bos_token": None, "eos_token": {"content": "<end>"}}
    made = hf_tokenizer_config_to_chat_formatter(config)
    assert (made.bos_token, made.eos_token) == ("", "<end>")
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    handler = hf_tokenizer_config_to_chat_completion_handler({**config, "chat_template": named})
    assert handler.format(MESSAGES) == chat.Prompt("yes", ["<end>"])
    with pytest.raises(ValueError, match="no chat_template"):
        hf_tokenizer_config_to_chat_formatter({"chat_template": None})


def test_formats_by_their_functions() -> None:
    assert format_chatml(messages=MESSAGES).prompt == chat.FORMATS["chatml"](MESSAGES).text
    assert format_llama2(MESSAGES).stop == ["</s>"]


def test_a_pickled_llama_keeps_its_handler(path: Path) -> None:
    handler = chat_formatter_to_chat_completion_handler(plain)
    llm = Llama(path, n_ctx=128, verbose=False, chat_handler=handler)
    with llm, pickle.loads(pickle.dumps(llm)) as other:
        assert answer(other) == answer(llm)


@pytest.mark.peer("llama_cpp")
def test_prompts_of_a_template_are_those_of_llama_cpp() -> None:
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter as Theirs

    for template in (TEMPLATE, "{% for m in messages %}\n  {{ m.content | tojson }}\n{% endfor %}"):
        ours, theirs = (kind(template, "</s>", "<s>") for kind in (Jinja2ChatFormatter, Theirs))
        assert ours(messages=MESSAGES).prompt == theirs(messages=MESSAGES).prompt
        assert ours(messages=MESSAGES).stop == theirs(messages=MESSAGES).stop
