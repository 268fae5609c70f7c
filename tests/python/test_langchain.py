"""Uses of llama-cpp-python in other packages and README examples, with the import line changed.

LangChain is not needed: `Client` uses the module llama_cpp as LangChain's LlamaCpp does. If
langchain_community is installed, the real class runs as well.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny

import powerinfer_cpp
from powerinfer_cpp import Llama, LlamaGrammar


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("langchain"))


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Llama: keyword")
        yield


class Client:
    """The part of langchain_community's LlamaCpp that uses llama_cpp."""

    def __init__(self, model_path: str, grammar: str | None = None, **options: Any):
        self.client = powerinfer_cpp.Llama(
            model_path,
            rope_freq_scale=1.0,
            rope_freq_base=10000.0,
            lora_path=None,
            lora_base=None,
            n_ctx=512,
            n_parts=-1,
            seed=-1,
            f16_kv=True,
            logits_all=False,
            vocab_only=False,
            use_mlock=False,
            n_threads=None,
            n_batch=8,
            use_mmap=True,
            last_n_tokens_size=64,
            verbose=False,
            **options,
        )
        self.grammar = powerinfer_cpp.LlamaGrammar.from_string(grammar) if grammar else None

    def parameters(self, stop: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "suffix": None,
            "max_tokens": 20,
            "temperature": 0.8,
            "top_p": 0.95,
            "logprobs": None,
            "echo": False,
            "stop_sequences": None,
            "repeat_penalty": 1.1,
            "top_k": 40,
        }
        found.pop("stop_sequences")
        found["stop"] = stop
        if self.grammar:
            found["grammar"] = self.grammar
        return found

    def invoke(self, prompt: str, stop: list[str]) -> str:
        return self.client(prompt=prompt, **self.parameters(stop))["choices"][0]["text"]

    def stream(self, prompt: str, stop: list[str]) -> Iterator[str]:
        for part in self.client(prompt=prompt, stream=True, **self.parameters(stop)):
            assert part["choices"][0].get("logprobs", None) is None
            yield part["choices"][0]["text"]

    def get_num_tokens(self, text: str) -> int:
        return len(self.client.tokenize(text.encode("utf-8")))


def test_what_langchain_does(path: Path) -> None:
    model = Client(str(path))
    assert isinstance(model.invoke("Say hello", ["\n"]), str)
    assert isinstance("".join(model.stream("Say hello", ["\n"])), str)
    assert model.get_num_tokens("the fox") == len(model.client.tokenize(b"the fox"))
    held = Client(str(path), 'root ::= "yes" | "no"', n_gpu_layers=0)
    assert held.invoke("Well?", []) in ("yes", "no")
    assert "".join(held.stream("Well?", [])) in ("yes", "no")


def test_what_llama_index_does(path: Path) -> None:
    model = Llama(model_path=str(path), n_ctx=128, verbose=False)
    assert model.context_params.n_ctx == 128
    done = model(prompt="hello", stream=False, temperature=0.1, max_tokens=4)
    assert isinstance(done["choices"][0]["text"], str)
    assert list(model(prompt="hello", stream=True, max_tokens=4))


def test_what_langchain_s_embeddings_do(path: Path) -> None:
    """It takes a list of vectors for those of several texts, and of a query's the first."""
    llm = Llama(str(path), embedding=True, n_parts=-1, f16_kv=False, device=None, verbose=False)
    texts = ["the quick fox", "a dog"]
    documents: list[list[float]] = []
    for entry in llm.create_embedding(texts)["data"]:
        vector = entry["embedding"]
        documents += vector if isinstance(vector[0], list) else [vector]
    assert len(documents) == len(texts)
    for text, vector in zip(texts, documents, strict=True):
        assert len(vector) == tiny.CONFIG["hidden_size"] and llm.embed(text) == vector


@pytest.mark.peer("langchain_community")
def test_the_real_langchain(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", powerinfer_cpp)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from langchain_community.embeddings import LlamaCppEmbeddings
        from langchain_community.llms import LlamaCpp
    model = LlamaCpp(model_path=str(path), max_tokens=6, temperature=0.0, verbose=False)
    want = Llama(path, verbose=False)(
        "Hello", max_tokens=6, temperature=0, top_p=0.95, repeat_penalty=1.1
    )
    assert model.invoke("Hello") == want["choices"][0]["text"]
    assert "".join(model.stream("Hello")) == want["choices"][0]["text"]
    assert model.get_num_tokens("the fox") > 1
    (tmp_path / "g.gbnf").write_text('root ::= "yes" | "no"')
    held = LlamaCpp(model_path=str(path), grammar_path=str(tmp_path / "g.gbnf"), verbose=False)
    assert held.invoke("Well?") in ("yes", "no")
    found = LlamaCppEmbeddings(model_path=str(path), verbose=False)
    assert len(found.embed_query("hello")) == tiny.CONFIG["hidden_size"]
    assert found.embed_documents(["hello", "a dog"])[0] == found.embed_query("hello")
    assert len(found.embed_documents(["hello", "a dog"])) == 2


# ---- llama-cpp-python's README ----


def test_readme_completion(path: Path) -> None:
    llm = Llama(model_path=str(path), n_gpu_layers=0, seed=1337, n_ctx=2048, verbose=False)
    prompt = "Q: Name the planets in the solar system? A: "
    output = llm(prompt, max_tokens=32, stop=["Q:", "\n"], echo=True)
    assert output["choices"][0]["text"].startswith(prompt)
    assert output["object"] == "text_completion" and output["model"] == str(path)
    again = llm.create_completion(prompt, max_tokens=32, stop=["Q:", "\n"], echo=True)
    assert set(again) == set(output)


def test_readme_chat(path: Path) -> None:
    llm = Llama(model_path=str(path), chat_format="llama-2", n_ctx=512, verbose=False)
    answer = llm.create_chat_completion(
        messages=[
            {"role": "system", "content": "You are an assistant who describes images."},
            {"role": "user", "content": "Describe this image in detail please."},
        ],
        max_tokens=8,
    )
    assert isinstance(answer["choices"][0]["message"]["content"], str)


@pytest.mark.parametrize("with_schema", [False, True])
def test_readme_json(path: Path, with_schema: bool) -> None:
    llm = Llama(model_path=str(path), chat_format="chatml", n_ctx=1024, verbose=False)
    form: dict[str, Any] = {"type": "json_object"}
    if with_schema:
        form["schema"] = {
            "type": "object",
            "properties": {"team_name": {"type": "string", "maxLength": 5}},
            "required": ["team_name"],
            "additionalProperties": False,
        }
    answer = llm.create_chat_completion(
        messages=[
            {"role": "system", "content": "You are a helpful assistant that outputs in JSON."},
            {"role": "user", "content": "Who won the world series in 2020"},
        ],
        response_format=form,
        temperature=0.7,
        seed=2,
        max_tokens=200,
    )
    said = answer["choices"][0]
    assert said["message"]["content"].startswith("{")
    if with_schema:
        assert set(json.loads(said["message"]["content"])) == {"team_name"}


def test_readme_embeddings(path: Path) -> None:
    llm = powerinfer_cpp.Llama(model_path=str(path), embedding=True, verbose=False)
    assert llm.create_embedding("Hello, world!")["data"][0]["embedding"]
    assert len(llm.create_embedding(["Hello, world!", "Goodbye, world!"])["data"]) == 2


def test_readme_counting_and_grammar(path: Path) -> None:
    llm = Llama(model_path=str(path), verbose=False)
    assert len(llm.tokenize(b"Hello")) == len(llm.tokenizer().encode("Hello", special=False))
    assert llm.tokenizer().decode(llm.tokenize(b"Hello")) == "Hello"
    grammar = LlamaGrammar.from_string('root ::= "a" "b"', verbose=False)
    assert llm("x", grammar=grammar)["choices"][0]["text"] == "ab"
