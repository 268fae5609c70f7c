"""Names that programs import from llama-cpp-python: here, or in the documented list of absences."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import gguf
import numpy as np
import pytest
import tiny
from llama_cpp_names import NAMES
from powerinfer_cpp._native import lib

import powerinfer_cpp
from powerinfer_cpp import Llama, constants

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "llama-cpp-python.md").read_text()
TYPES = {"GGML_TYPE_": gguf.GGMLQuantizationType, "LLAMA_FTYPE_": gguf.LlamaFileType}
TYPES["LLAMA_POOLING_TYPE_"] = gguf.PoolingType


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory):
    path = tiny.make(tmp_path_factory.mktemp("names"))
    with Llama(path, n_ctx=64, verbose=False) as opened:
        yield opened


def absent(module: str) -> set[str]:
    """The names that the document says are absent; they may end in a star."""
    section = DOCUMENT.split("### Names that are absent")[1]
    rows = re.findall(rf"^\| `{module}` \| ([^|]*) \| \S", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def is_listed(name: str, names: set[str]) -> bool:
    return any(name == each or each[-1] == "*" and name.startswith(each[:-1]) for each in names)


@pytest.mark.parametrize("module", NAMES)
def test_every_name_is_there_or_said_to_be_absent(module: str, llm: Llama) -> None:
    ours = llm if module == "Llama" else importlib.import_module(f"powerinfer_cpp.{module}")
    names, listed = NAMES[module].split(), absent(module)
    missing = {name for name in names if not hasattr(ours, name)}
    assert {name for name in missing if not is_listed(name, listed)} == set()
    here = {name for name in listed if name[-1] != "*" and hasattr(ours, name)}
    assert not here, f"docs/llama-cpp-python.md says that {module} has no {here}"


@pytest.mark.peer("llama_cpp")
@pytest.mark.parametrize("module", [m for m in NAMES if m != "Llama"])
def test_the_list_is_that_of_the_package(module: str) -> None:
    theirs = importlib.import_module(f"llama_cpp.{module}")
    assert [name for name in NAMES[module].split() if not hasattr(theirs, name)] == []


def test_constants_are_those_of_gguf() -> None:
    found = {name: value for name, value in vars(constants).items() if name.isupper()}
    assert all(getattr(powerinfer_cpp, name) == value for name, value in found.items())
    assert set(found) <= set(powerinfer_cpp.__all__)
    for prefix, kind in TYPES.items():
        ours = {
            name.removeprefix(prefix): v
            for name, v in found.items()
            if name[: len(prefix)] == prefix
        }
        theirs = {each.name: int(each) for each in kind} | {"UNSPECIFIED": -1}
        assert len(ours) > 4 and ours.items() <= theirs.items()


@pytest.mark.peer("llama_cpp")
def test_constants_are_those_of_llama_cpp() -> None:
    import llama_cpp

    found = {name: value for name, value in vars(constants).items() if name.isupper()}
    del found["GGML_TYPE_BF16"]  # which it forgets
    assert {name: getattr(llama_cpp, name) for name in found} == found


# ---- Attributes of Llama ----


def test_tokens_and_logits_so_far(llm: Llama) -> None:
    llm.reset()
    assert not llm.eval_tokens and not llm.eval_logits and len(llm._input_ids) == 0
    llm.eval([1, 5, 6])
    assert list(llm.eval_tokens) == llm._input_ids.tolist() == [1, 5, 6]
    assert llm.eval_tokens.maxlen == llm.n_ctx() and llm._scores.shape == (3, llm.n_vocab())
    (last,) = llm.eval_logits
    assert last == llm._scores[-1].tolist() == llm.scores[2].tolist()
    with Llama(llm.model_path, n_ctx=8, logits_all=True, verbose=False) as every:
        every.eval([1, 5, 6])
        assert np.array_equal(np.array(every.eval_logits, np.float32), every.scores[:3])
        assert every.eval_logits.maxlen == 8
        assert every.n_batch == 8 and llm.n_batch == 64


def test_log_probabilities_and_prefixes(llm: Llama) -> None:
    logits = np.random.default_rng(1).normal(size=(3, 7)).astype(np.float32)
    logits[0, 2] = -np.inf
    found = Llama.logits_to_logprobs(logits)
    want = logits - np.log(np.exp(logits.astype(np.float64)).sum(axis=-1, keepdims=True))
    assert found.dtype == np.float32 and np.allclose(found, want, atol=1e-6)
    assert np.allclose(Llama.logits_to_logprobs(logits.T, axis=0), found.T)
    assert Llama.longest_token_prefix([1, 2, 3], (1, 2, 4, 5)) == 2
    assert Llama.longest_token_prefix([], [1]) == 0


def test_attributes(llm: Llama) -> None:
    assert (llm.cache, llm.draft_model, llm.chat_handler, llm.spm_infill) == (
        None,
        None,
        None,
        False,
    )
    assert llm.n_threads >= 1 and llm.n_threads_batch == llm.n_threads
    with Llama(llm.model_path, n_ctx=8, n_threads=3, n_threads_batch=2, verbose=False) as other:
        most = lib.pi_threads_used(512)
        assert (other.n_threads, other.n_threads_batch) == (min(3, most), min(2, most))
        assert other.context_params.n_threads == other.n_threads
        other.cache = powerinfer_cpp.LlamaRAMCache()
        other("a", max_tokens=1)
        assert other.cache.cache_size > 0
    assert llm.model_params.use_mmap is True and llm.context_params.n_ctx == 64
    assert llm.tokenizer_.encode("a") == llm.tokenizer().encode("a")


def test_a_tokenizer_of_a_file(llm: Llama) -> None:
    from powerinfer_cpp.llama_tokenizer import BaseLlamaTokenizer, LlamaTokenizer

    made = LlamaTokenizer.from_ggml_file(llm.model_path)
    assert isinstance(made, BaseLlamaTokenizer) and made.encode("a b") == llm.tokenize(b"a b")


# ---- Modules ----


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("JSON_GBNF", '{"a": [1, -2.5e3, "\\u00e9\\n"], "b": {"c": null}, "d": {}}', "[1]"),
        ("JSON_ARR_GBNF", '[{"a": true}, [], "x", 0]', "{}"),
        ("LIST_GBNF", "- eggs\n- milk\n", "eggs\n"),
        ("ARITHMETIC_GBNF", "(a + 12)*b_1 = 3 - 4\n", "1 + = 2\n"),
    ],
)
def test_grammars_that_come_along(name: str, good: str, bad: str, llm: Llama) -> None:
    from powerinfer_cpp import llama_grammar

    grammar = llama_grammar.LlamaGrammar.from_string(getattr(llama_grammar, name))

    def accepts(text: str) -> bool:
        """Whether a model that wants this text can write it, and end there."""
        ids = [tiny.BYTE + byte for byte in text.encode()] + [llm.token_eos()]

        def want(so_far: np.ndarray, scores: np.ndarray) -> np.ndarray:
            scores[:] = 0
            scores[ids[min(len(so_far), len(ids)) - 1]] = 100
            return scores

        done = llm([1], grammar=grammar, logits_processor=want, max_tokens=62, temperature=0)
        return done["choices"][0]["text"] == text and done["choices"][0]["finish_reason"] == "stop"

    assert accepts(good) and not accepts(bad)


def test_types_are_those_of_the_answers() -> None:
    from powerinfer_cpp.text import answers

    from powerinfer_cpp import llama_types

    assert llama_types.CreateCompletionResponse is answers.Completion
    assert llama_types.CreateChatCompletionStreamResponse is answers.ChatChunk
    assert llama_types.Embedding is answers.EmbeddingData
    message = llama_types.ChatCompletionRequestToolMessage(
        role="tool", content="3", tool_call_id="1"
    )
    assert message == {"role": "tool", "content": "3", "tool_call_id": "1"}


REPLACED = """
import sys
import powerinfer_cpp
powerinfer_cpp.replace_llama_cpp()
powerinfer_cpp.replace_llama_cpp()  # again does no harm
import llama_cpp
from llama_cpp import Llama, LlamaGrammar, LLAMA_DEFAULT_SEED
from llama_cpp.llama import Llama as Again, LogitsProcessorList, StoppingCriteria
from llama_cpp.llama_cache import LlamaRAMCache
from llama_cpp.llama_chat_format import Jinja2ChatFormatter, get_chat_completion_handler
from llama_cpp.llama_grammar import JSON_GBNF, LlamaGrammar as Grammar
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding as Lookup
from llama_cpp.llama_types import ChatCompletionRequestMessage, CreateCompletionResponse
assert llama_cpp is powerinfer_cpp and Again is Llama is powerinfer_cpp.Llama
assert Grammar is LlamaGrammar is powerinfer_cpp.LlamaGrammar
with Llama(sys.argv[1], n_ctx=32, verbose=False, draft_model=Lookup()) as llm:
    llm.set_cache(LlamaRAMCache())
    print(llm("a", max_tokens=2, grammar=Grammar.from_string('root ::= "b"'))["choices"][0]["text"])
"""


def test_packages_that_import_llama_cpp_get_this_one(llm: Llama) -> None:
    line = [sys.executable, "-c", REPLACED, llm.model_path]
    done = subprocess.run(line, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("b\n", "")


def test_it_is_too_late_to_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", ModuleType("llama_cpp"))
    with pytest.raises(RuntimeError, match="imported already"):
        powerinfer_cpp.replace_llama_cpp()


def test_completions_take_the_same_arguments() -> None:
    """Those of llama-cpp-python, in its order."""
    names = list(inspect.signature(Llama.create_completion).parameters)
    assert names[1:6] == ["prompt", "suffix", "max_tokens", "temperature", "top_p"]
