"""What a type checker sees of `Llama`, and that it is so."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from powerinfer_cpp.text import answers
from tiny import PROMPT

from powerinfer_cpp import Llama

GOOD = """
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from powerinfer_cpp import GGML_TYPE_Q8_0, LLAMA_DEFAULT_SEED
from powerinfer_cpp import Llama, LlamaGrammar, LlamaRAMCache, LogitsProcessorList
from powerinfer_cpp.llama_grammar import JSON_GBNF
from powerinfer_cpp.llama_types import (
    ChatCompletionRequestMessage,
    CreateChatCompletionResponse,
    CreateCompletionResponse,
)
from powerinfer_cpp.text.answers import ChatChunk, ChatCompletion, Completion, CompletionChunk


def ban(ids: npt.NDArray[np.intc], scores: npt.NDArray[np.single]) -> npt.NDArray[np.single]:
    scores[3] = -np.inf
    return scores


def enough(ids: npt.NDArray[np.intc], scores: npt.NDArray[np.single]) -> bool:
    return len(ids) > 9


def complete(llm: Llama, stream: bool) -> str:
    whole = llm.create_completion("Once", max_tokens=4, logprobs=1, stop=["."], seed=3)
    text = whole["choices"][0]["text"]
    if logprobs := whole["choices"][0]["logprobs"]:
        text += "".join(logprobs["tokens"])
    for chunk in llm.create_completion("Once", stream=True, logit_bias={3: 1.0}):
        text += chunk["choices"][0]["text"]
    either: Completion | Iterator[CompletionChunk] = llm("Once", stream=stream)
    grammar = LlamaGrammar.from_string('root ::= "a"')
    llm("Once", grammar=grammar, logits_processor=ban, stopping_criteria=[enough])
    llm("Once", logits_processor=LogitsProcessorList([ban]), temperature=0)
    return text + str(whole["usage"]["total_tokens"]) + str(either)


def chat(llm: Llama, stream: bool) -> str:
    messages = [{"role": "user", "content": "x"}]
    form = {"type": "json_object", "schema": {"type": "object"}}
    whole = llm.create_chat_completion(messages, response_format=form, logprobs=True)
    text = whole["choices"][0]["message"]["content"] or ""
    for call in whole["choices"][0]["message"].get("tool_calls", []):
        text += call["function"]["name"] + call["function"]["arguments"]
    function = {"name": "add", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    for chunk in llm.create_chat_completion(
        messages, tools=tools, tool_choice="required", stream=True
    ):
        for part in chunk["choices"][0]["delta"].get("tool_calls", []):
            text += part.get("id", "") + part["function"].get("arguments", "")
    for chunk in llm.create_chat_completion(messages, stream=True):
        text += chunk["choices"][0]["delta"].get("content", "")
        if chunk["choices"][0]["finish_reason"] == "length":
            text += "..."
    either: ChatCompletion | Iterator[ChatChunk] = llm.create_chat_completion(
        messages, stream=stream
    )
    return text + str(either)


def names_of_llama_cpp(llm: Llama) -> str:
    messages: list[ChatCompletionRequestMessage] = [
        {"role": "system", "content": "x"},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": "x"},
    ]
    answer: CreateChatCompletionResponse = llm.create_chat_completion(messages)
    done: CreateCompletionResponse = llm("x", suffix="y", seed=LLAMA_DEFAULT_SEED)
    sizes = [llm.n_batch, llm.n_threads, llm.eval_tokens[0], GGML_TYPE_Q8_0, llm.eval_logits[0][0]]
    sizes.append(llm.logits_to_logprobs(llm._scores).nbytes)
    grammar = LlamaGrammar.from_string(JSON_GBNF)
    llm("x", grammar=grammar)
    return str(sizes) + answer["model"] + done["choices"][0]["text"]


def token_by_token(llm: Llama) -> list[int]:
    ids = llm.tokenize(b"Once") + llm.tokenizer().encode("upon")
    llm.reset()
    llm.eval(ids)
    found = [llm.sample(temp=0.0, logits_processor=ban), int(np.argmax(llm.scores))]
    for token in llm.generate(ids, top_k=3):
        found.append(token)
        if token == llm.token_eos() or llm.n_tokens == llm.n_ctx():
            break
    state = llm.save_state()
    llm.load_state(state)
    text: bytes = llm.detokenize(found) + state.llama_state
    return [len(text), len(llm.input_ids)]


def embed(llm: Llama) -> int:
    one, n = llm.embed("x", return_count=True)
    several = llm.embed(["x", "y"], normalize=True)
    vectors = [data["embedding"] for data in llm.create_embedding(["x"])["data"]]
    return n + len(one) + len(several) + len(vectors) + len(llm.embed("x"))


def figures(llm: Llama) -> float:
    size = llm.plan()["ram"]["ffn"] + llm.n_vocab() + llm.n_embd() + len(llm.metadata)
    fired = llm.activations().size + llm.ffn_inputs().nbytes
    stats = llm.stats()
    return size + stats["gen_ts"] + stats["token_ms"]["p50"] + sum(stats["share_fired"]) + fired


with Llama("model.gguf", n_ctx=64, seed=1, verbose=False, progress_callback=print) as llm:
    llm.set_cache(LlamaRAMCache())
    print(complete(llm, True), chat(llm, False), token_by_token(llm), embed(llm), figures(llm))
    print(names_of_llama_cpp(llm))
    print(Llama.from_pretrained("somebody/model", "*.gguf", n_ctx=64).model_path)
"""
WRONG = """
from powerinfer_cpp import Llama

llm = Llama("model.gguf", n_ctx="64")
llm("x", max_token=3)
llm("x", stream=True)["choices"]
llm("x")["choices"][0]["message"]
llm.tokenize("x")
llm.create_chat_completion("x")
llm.embed("x") + 1
llm.stats()["speed"]
"""


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory):
    with Llama(tiny.make(tmp_path_factory.mktemp("types")), n_ctx=128, verbose=False) as opened:
        yield opened


def mypy(program: str, folder: Path) -> list[str]:
    """What mypy says of a program, without the summary; every expression with Any is an error."""
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--disallow-any-expr", "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode in (0, 1) and not done.stderr, done.stderr
    return done.stdout.splitlines()[:-1]


def test_a_program_has_types(tmp_path: Path) -> None:
    assert mypy(GOOD, tmp_path) == []
    found = {int(line.split(":")[1]) for line in mypy(WRONG, tmp_path)}
    assert found == set(range(4, 12)), "each line but the import has a mistake"


@pytest.mark.slow
def test_examples_have_types() -> None:
    """All that they need is in the extra `test`."""
    files = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))
    command = [sys.executable, "-m", "mypy", "--strict", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert len(files) > 5 and done.returncode == 0, done.stdout + done.stderr


def test_types_are_those_of_the_calls() -> None:
    """py.typed says that annotations are for type checkers; these name every argument."""
    package = Path(inspect.getfile(Llama)).parent
    assert (package / "py.typed").exists()
    named = {"self", "prompt", "suffix", "max_tokens", "temperature", "top_p", "stream"}
    for method, options, written in (
        (Llama.create_completion, answers.CompletionOptions, named),
        (Llama.create_chat_completion, answers.ChatOptions, {"self", "messages", "stream"}),
    ):
        given = {*written, *options.__annotations__} - set(answers.Samplers.__annotations__)
        assert given | {"sampling"} == set(inspect.signature(method).parameters)
    with_dicts = (
        answers.Completion,
        answers.CompletionChunk,
        answers.ChatCompletion,
        answers.ChatChunk,
    )
    assert all("choices" in kind.__annotations__ for kind in with_dicts)


def test_dicts_are_those_of_the_types(llm: Llama) -> None:
    def keys(kind: type) -> set[str]:
        return set(kind.__annotations__)

    assert set(llm.plan()) == keys(answers.Plan)
    stats = llm.stats()
    assert set(stats) == keys(answers.Stats)
    assert set(stats["token_ms"]) == keys(answers.Percentiles)
    assert set(stats["audit"]) == keys(answers.Audit)
    assert all(set(tier) == keys(answers.Tier) for tier in stats["tiers"].values())

    whole = llm(PROMPT, max_tokens=3, logprobs=1)
    assert set(whole) == keys(answers.Completion) and set(whole["usage"]) == keys(answers.Usage)
    assert set(whole["choices"][0]) == keys(answers.CompletionChoice)
    assert set(whole["choices"][0]["logprobs"]) == keys(answers.CompletionLogprobs)
    assert set(next(llm(PROMPT, stream=True))) == keys(answers.CompletionChunk)
    messages = [{"role": "user", "content": "x"}]
    whole = llm.create_chat_completion(messages, max_tokens=3, logprobs=True)
    assert set(whole) == keys(answers.ChatCompletion)
    assert set(whole["choices"][0]) == keys(answers.ChatChoice)
    assert set(whole["choices"][0]["message"]) == keys(answers.ChatMessage) - {
        "tool_calls",
        "reasoning_content",
    }
    logprobs = whole["choices"][0]["logprobs"]
    assert set(logprobs) == keys(answers.ChatLogprobs)
    assert set(logprobs["content"][0]) == keys(answers.ChosenLogprob)
    for chunk in llm.create_chat_completion(messages, max_tokens=3, stream=True):
        assert set(chunk) == keys(answers.ChatChunk)
        assert set(chunk["choices"][0]) == keys(answers.ChatChunkChoice)
        assert set(chunk["choices"][0]["delta"]) <= keys(answers.ChatDelta)
