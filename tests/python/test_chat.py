"""Chat completions, chat formats, and hostile templates."""

from __future__ import annotations

import sys
import time
import types
from pathlib import Path

import pytest
import tiny
from powerinfer_cpp.cli import main
from powerinfer_cpp.text.chat import FORMATS, TemplateFormat, named_format
from powerinfer_cpp.text.template import ChatTemplate, TemplateError

from powerinfer_cpp import ContextOverflowError, Llama

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HELLO = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("chat"), CHATML)


@pytest.fixture(scope="module")
def llm(path: Path):
    with Llama(path, n_ctx=256, verbose=False) as opened:
        yield opened


# ---- Answers ----


def test_answer(llm: Llama, path: Path) -> None:
    done = llm.create_chat_completion(HELLO, logits_processor=tiny.Say(llm._model, "Hi \u20ac!"))
    assert done["id"].startswith("chatcmpl-") and done["object"] == "chat.completion"
    assert done["model"] == str(path) and abs(done["created"] - time.time()) < 60
    (choice,) = done["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hi \u20ac!"}
    assert (choice["finish_reason"], choice["index"], choice["logprobs"]) == ("stop", 0, None)
    prompt = TemplateFormat(CHATML, "<s>", "</s>")(HELLO).text
    n = len(llm.tokenize(prompt.encode(), special=True))
    assert done["usage"] == {"prompt_tokens": n, "completion_tokens": 7, "total_tokens": n + 7}


def test_the_prompt_is_the_template(llm: Llama) -> None:
    prompt = TemplateFormat(CHATML, "<s>", "</s>")(HELLO).text
    want = llm(prompt, max_tokens=12, temperature=0, stop="</s>")["choices"][0]
    got = llm.create_chat_completion(HELLO, max_tokens=12, temperature=0)["choices"][0]
    assert got["message"]["content"] == want["text"]
    assert got["finish_reason"] == want["finish_reason"]


def test_stream(llm: Llama) -> None:
    said = "one two STOP three"
    chunks = list(
        llm.create_chat_completion(
            HELLO, stream=True, stop=["STOP"], logits_processor=tiny.Say(llm._model, said)
        )
    )
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert deltas[0] == {"role": "assistant"} and deltas[-1] == {}
    assert "".join(d.get("content", "") for d in deltas) == "one two "
    reasons = [c["choices"][0]["finish_reason"] for c in chunks]
    assert reasons[-1] == "stop" and set(reasons[:-1]) == {None}
    assert len({c["id"] for c in chunks}) == 1
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}


def test_options(llm: Llama) -> None:
    def answer(**options) -> dict:
        return llm.create_chat_completion(HELLO, **options)

    same = [answer(seed=4, max_tokens=8, temperature=2.0) for _ in range(2)]
    assert same[0]["choices"] == same[1]["choices"]
    short = answer(max_tokens=2, logit_bias={llm.token_eos(): -1000})
    assert short["choices"][0]["finish_reason"] == "length"
    assert short["usage"]["completion_tokens"] == 2
    with pytest.raises(ValueError, match="functions is not supported"):
        answer(functions=[{}])
    assert answer(max_tokens=1, tools=None, tool_choice="auto", tfs_z=1.0)
    with pytest.raises(ContextOverflowError):
        llm.create_chat_completion([{"role": "user", "content": "x" * 1000}], stream=True)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "Hello",
        {"role": "user", "content": "x"},
        [{"content": "x"}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
        ["x"],
    ],
)
def test_messages_that_cannot_be(llm: Llama, messages: object) -> None:
    with pytest.raises(ValueError, match="message"):
        llm.create_chat_completion(messages)


def test_content_in_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    whole = named_format("chatml")([{"role": "user", "content": "ab"}])
    assert named_format("chatml")([{"role": "user", "content": parts}]) == whole


def test_openai_classes(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai.types.chat", None)
    with pytest.raises(ImportError, match="openai"):
        llm.create_chat_completion_openai_v1(HELLO, max_tokens=1)
    stand_in = types.ModuleType("openai.types.chat")
    stand_in.ChatCompletion = stand_in.ChatCompletionChunk = lambda **fields: fields["object"]
    monkeypatch.setitem(sys.modules, "openai", types.ModuleType("openai"))
    monkeypatch.setitem(sys.modules, "openai.types", types.ModuleType("openai.types"))
    monkeypatch.setitem(sys.modules, "openai.types.chat", stand_in)
    answer = llm.create_chat_completion_openai_v1
    assert answer(HELLO, max_tokens=1) == "chat.completion"
    assert set(answer(HELLO, max_tokens=1, stream=True)) == {"chat.completion.chunk"}


# ---- Formats ----

TALK = [*HELLO, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Bye"}]


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        (
            "llama-2",
            "<s>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHello [/INST] Hi </s><s>[INST] Bye [/INST]",
        ),
        (
            "llama-3",
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            "chatml",
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
            "<|im_start|>assistant\nHi<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        ("mistral-instruct", "<s>[INST] Be kind.\n\nHello [/INST] Hi</s>[INST] Bye [/INST]"),
        (
            "gemma",
            "<bos><start_of_turn>user\nBe kind.\n\nHello<end_of_turn>\n<start_of_turn>model\nHi"
            "<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
        ),
        (
            "zephyr",
            "<|system|>\nBe kind.</s>\n<|user|>\nHello</s>\n<|assistant|>\nHi</s>\n"
            "<|user|>\nBye</s>\n<|assistant|>\n",
        ),
        ("vicuna", "Be kind. USER: Hello ASSISTANT: Hi</s>USER: Bye ASSISTANT:"),
        (
            "alpaca",
            "Be kind.\n\n### Instruction:\nHello\n\n### Response:\nHi\n\n"
            "### Instruction:\nBye\n\n### Response:\n",
        ),
    ],
)
def test_prompts_of_formats(name: str, prompt: str) -> None:
    assert named_format(name)(TALK).text == prompt


@pytest.mark.parametrize("name", list(FORMATS))
def test_every_format(name: str, path: Path) -> None:
    made = named_format(name)(TALK)
    at = [made.text.index(word) for word in ("Be kind.", "Hello", "Hi", "Bye")]
    assert at == sorted(at) and made.stop
    assert named_format(name)([HELLO[1]]).text.count("Hello") == 1
    with pytest.raises(ValueError, match="role 'tool'"):
        named_format(name)([{"role": "tool", "content": "x"}])


def test_which_format_is_used(path: Path, tmp_path: Path) -> None:
    with Llama(path, chat_format="alpaca", verbose=False, n_ctx=256) as llm:
        assert llm.chat_format == "alpaca"
        done = llm.create_chat_completion([HELLO[1]], max_tokens=1)
        want = len(llm._prompts.ids(named_format("alpaca")([HELLO[1]]).text))
        assert done["usage"]["prompt_tokens"] == want
    plain = tiny.make(tmp_path / "plain")
    with Llama(plain, verbose=False) as llm:
        llm.create_chat_completion([HELLO[1]], max_tokens=1)
        assert llm.chat_format == "llama-2"  # as llama-cpp-python, where a file has no template


# ---- Templates ----


def render(source: str) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(HELLO)


def test_names_in_a_template() -> None:
    source = (
        "{{ bos_token }}{{ messages[1].content|tojson }}{{ eos_token }}{{ add_generation_prompt }}"
        "{{ strftime_now('%Y') | length }}{% generation %}!{% endgeneration %}"
        "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i ~ '' ~ i }}{% endfor %}"
    )
    assert render(source) == '<s>"Hello"</s>True4!0011'
    assert render("{{ {'a': '<\u20ac>'}|tojson(indent=1) }}") == '{\n "a": "<\u20ac>"\n}'
    assert render("{% set l = [1] %}{{ l.append(2) }}{{ l|map('abs')|tojson }}") == "None[1, 2]"
    with pytest.raises(TemplateError, match="^roles must alternate$"):
        render("{{ raise_exception('roles must alternate') }}")


DOUBLING = "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = OP %}{% endfor %}"


@pytest.mark.xdist_group("timed")
@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.clear() }}",
        "{% set l = [] %}{% for i in range(60000) %}{{ l.append(1) }}{{ l.append(1) }}{% endfor %}",
        "{% set l = [] %}{{ l.append(l) }}{{ l|tojson }}",
        "{% set l = [] %}{{ l.append(l) }}{% set m = [] %}{{ m.append(m) }}{{ l == m }}",
        "{{ messages|map(attribute='x')|tojson }}",
        "{{ raise_exception.__globals__.sys }}",
        "{{ self._TemplateReference__context.environment }}",
        "{{ ('%s' % messages)['__class__'].__base__ }}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
        "{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        DOUBLING.replace("OP", "n.x ~ n.x"),
        DOUBLING.replace("OP", "n.x + n.x"),
        DOUBLING.replace("OP", "(n.x ~ 'b').replace('a', n.x)"),
        "{{ 'a' * 1000000000 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ 'a'|center(1000000000) }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{% for x in 'ab'|batch(1000000000, 'x') %}{% endfor %}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% if 1 %}" * 5000 + "{% endif %}" * 5000,
        "{% for %}",
        "{{ nothing.at.all }}",
        "x" * 300_000,
    ],
)
def test_templates_that_mean_harm(source: str) -> None:
    start = time.monotonic()
    with pytest.raises(TemplateError) as error:
        render(source)
    assert time.monotonic() - start < 10  # the limit is 2 s; the machine may be busy
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_a_harmful_template_in_a_file(tmp_path: Path) -> None:
    path = tiny.make(tmp_path / "model", "{{ ''.__class__.__mro__ }}")
    with Llama(path, verbose=False) as llm, pytest.raises(ValueError, match="template"):
        llm.create_chat_completion(HELLO)


# ---- The command ----


def chat(arguments: list[str], lines: str, monkeypatch: pytest.MonkeyPatch) -> int:
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    return main(["chat", *arguments])


def test_chat_in_a_pipe(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    line = [str(path), "-n", "6", "--temp", "0", "-c", "256", "-sys", "Be kind."]
    assert chat(line, "Hello\n\nBye\n/exit\nnever\n", monkeypatch) == 0
    out, err = capsys.readouterr()
    with Llama(path, n_ctx=256, verbose=False) as llm:
        talk, answers = list(HELLO), []
        for question in (None, "Bye"):
            if question:
                talk.append({"role": "user", "content": question})
            done = llm.create_chat_completion(talk, max_tokens=6, temperature=0)
            talk.append(done["choices"][0]["message"])
            answers.append(talk[-1]["content"])
    assert out == "".join(f"{answer}\n" for answer in answers) and err == ""


def test_chat_forgets_what_no_longer_fits(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    lines = "".join(f"question {i} {'x' * 20}\n" for i in range(6))
    assert chat([str(path), "-n", "4", "-c", "200"], lines, monkeypatch) == 0
    assert "oldest" in capsys.readouterr().err
    assert chat([str(path), "-c", "64"], "x" * 200 + "\n", monkeypatch) == 1
    assert "context" in capsys.readouterr().err


def test_chat_refusals(path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    assert chat([str(path), "--chat-format", "klingon"], "", monkeypatch) == 1
    assert "known are" in capsys.readouterr().err
    assert chat(["no-such-file"], "", monkeypatch) == 1
    assert "no-such-file" in capsys.readouterr().err
    assert chat([str(path)], "", monkeypatch) == 0


def test_chat_takes_the_models_context(path: Path) -> None:
    from powerinfer_cpp.cli.common import positions

    assert positions(str(path)) == tiny.CONFIG["max_position_embeddings"]
