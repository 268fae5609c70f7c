"""Grammars and JSON schemas: the output of a random model, and errors instead of free text."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tiny
from powerinfer_cpp.text import grammar as grammars

from powerinfer_cpp import Llama, LlamaGrammar

DATES = r"""
# A date, or a list of dates
root ::= date ("," " "? date){0,2}
date ::= year "-" two-digits "-" two-digits | "today"
year ::= [0-9]{4}
two-digits ::= [0-9] [0-9]
"""
ONE_DATE = r"(\d{4}-\d\d-\d\d|today)"


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory):
    path = tiny.make(tmp_path_factory.mktemp("grammar"))
    with Llama(path, n_ctx=512, verbose=False) as opened:
        yield opened


def text(done: dict) -> str:
    return done["choices"][0]["text"]


def test_what_is_said_follows_the_grammar(llm: Llama) -> None:
    grammar = LlamaGrammar.from_string(DATES)
    whole = re.compile(f"{ONE_DATE}(, ?{ONE_DATE}){{0,2}}")
    for seed in range(20):
        done = llm("when? ", grammar=grammar, max_tokens=100, temperature=2.0, seed=seed)
        assert whole.fullmatch(text(done)), text(done)
        assert done["choices"][0]["finish_reason"] == "stop"
    stream = llm("when? ", grammar=grammar, max_tokens=100, seed=0, temperature=2.0, stream=True)
    first = llm("when? ", grammar=grammar, max_tokens=100, temperature=2.0, seed=0)
    assert "".join(map(text, stream)) == text(first)


def test_a_grammar_may_be_cut_by_max_tokens(llm: Llama) -> None:
    grammar = LlamaGrammar.from_string('root ::= "yes" [a-z]+')
    done = llm("x", grammar=grammar, max_tokens=5, seed=1, logit_bias={llm.token_eos(): -1000})
    assert re.fullmatch("yes[a-z]*|y|ye", text(done))
    assert done["choices"][0]["finish_reason"] == "length"


def test_token_by_token(llm: Llama) -> None:
    grammar, found = LlamaGrammar.from_string(DATES), b""
    for token in llm.generate(llm.tokenize(b"when? "), temp=2.0, grammar=grammar):
        if token == llm.token_eos():
            break
        found += llm.detokenize([token])
    assert re.fullmatch(f"{ONE_DATE}(, ?{ONE_DATE}){{0,2}}", found.decode())
    llm.reset()
    llm.eval(llm.tokenize(b"when? "))
    first = {llm.detokenize([llm.sample(temp=2.0, grammar=grammar)]) for _ in range(50)}
    assert first <= {b"t", b"to", *(b"%d" % i for i in range(10))}
    for call in (lambda: llm.sample(grammar="root"), lambda: next(llm.generate([1], grammar=1))):
        with pytest.raises(ValueError, match="must be a LlamaGrammar"):
            call()


def test_characters_of_many_bytes(llm: Llama) -> None:
    grammar = LlamaGrammar.from_string(r'root ::= [\u20ac-\u20bf\u00e9]{3} "\U0001F600" "\x41"')
    assert text(llm("x", grammar=grammar, max_tokens=40)).endswith("\U0001f600A")


def test_biases_and_processors_cannot_break_it(llm: Llama) -> None:
    grammar = LlamaGrammar.from_string('root ::= "a" | "b"')
    shout = tiny.BYTE + ord("!")

    def forbid(_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        scores[tiny.BYTE + ord("a")] = -np.inf
        return scores

    done = llm(
        "x", grammar=grammar, logit_bias={shout: 1000}, logits_processor=forbid, temperature=0
    )
    assert text(done) in "ab"

    def silence(_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        return np.full_like(scores, -np.inf)

    with pytest.raises(ValueError, match="no token"):
        llm("x", grammar=grammar, logits_processor=silence)


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA)])
def test_json_schema(llm: Llama, schema: object) -> None:
    grammar = LlamaGrammar.from_json_schema(schema)
    for seed in range(6):
        done = llm("x", grammar=grammar, max_tokens=300, temperature=1.5, seed=seed)
        value = json.loads(text(done))
        assert set(value) == {"name", "age", "kind"} and value["kind"] in ("cat", "dog")
        assert isinstance(value["age"], int) and 0 <= value["age"] <= 99
        assert len(value["name"]) <= 8


def test_response_format(llm: Llama) -> None:
    messages = [{"role": "user", "content": "hello"}]

    def answer(form: object, **options) -> str:
        done = llm.create_chat_completion(messages, response_format=form, **options)
        return done["choices"][0]["message"]["content"]

    small = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    small["additionalProperties"] = False
    for form in (
        {"type": "json_object", "schema": small},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": small}},
    ):
        assert json.loads(answer(form, max_tokens=100)) == {"a": 1}
    started = answer({"type": "json_object"}, max_tokens=4, temperature=1.0)
    assert started.startswith("{")
    assert answer({"type": "text"}, max_tokens=3, seed=1) == answer(None, max_tokens=3, seed=1)
    for wrong in ({"type": "xml"}, {}, "json", {"type": "json_schema"}):
        with pytest.raises(ValueError, match="response_format"):
            answer(wrong)


@pytest.mark.xdist_group("timed")
@pytest.mark.parametrize(
    "grammar",
    [
        "",
        "   ",
        "root",
        'root ::= "a',
        "root ::= other",
        'other ::= "a"',
        "root ::= [a-",
        "root ::= (",
        'root ::= "a" )',
        'root ::= "a"{2',
        'root ::= "a"{3,2}',
        r'root ::= "\q"',
        r'root ::= "\ud800"',
        "root ::= root",
        'root ::= "a" ; drop',
        "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000,
        'root ::= "' + "a" * 300_000 + '"',
        3,
        None,
    ],
)
def test_what_is_no_grammar(grammar: object, llm: Llama) -> None:
    start = time.monotonic()
    with pytest.raises(ValueError):  # noqa: PT011
        made = LlamaGrammar.from_string(grammar)
        llm("x", grammar=made, max_tokens=4)  # the error comes here at the latest, before any text
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    "schema",
    ["", "{", "[]", "3", {"type": "klingon"}, {"$ref": "#/nowhere"}, {"not": {"minLength": 3}}],
)
def test_what_is_no_schema(schema: object, llm: Llama) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        llm("x", grammar=LlamaGrammar.from_json_schema(schema), max_tokens=4)


def test_a_schema_cannot_ask_for_less(llm: Llama) -> None:
    with pytest.raises(ValueError, match="cannot be used"):
        LlamaGrammar.from_json_schema(
            {"x-guidance": {"lenient": True}, "not": {"required": ["a"]}, "type": "object"}
        )


def test_other_things_as_grammar(llm: Llama) -> None:
    for grammar in ('root ::= "a"', 3, object()):
        with pytest.raises(ValueError, match="LlamaGrammar"):
            llm("x", grammar=grammar)


def test_from_file(tmp_path: Path, llm: Llama) -> None:
    (tmp_path / "g.gbnf").write_text('root ::= "ok"')
    grammar = LlamaGrammar.from_file(str(tmp_path / "g.gbnf"))
    assert text(llm("x", grammar=grammar)) == "ok"
    with pytest.raises(FileNotFoundError):
        LlamaGrammar.from_file(tmp_path / "none")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars._workers.close()
    monkeypatch.setitem(sys.modules, "llguidance", None)
    for use in (
        lambda: LlamaGrammar.from_string('root ::= "a"'),
        lambda: LlamaGrammar.from_json_schema({}),
    ):
        with pytest.raises(ValueError, match="the package llguidance is not installed"):
            use()


@pytest.mark.xdist_group("timed")
def test_speed_of_the_mask(llm: Llama) -> None:
    """A mask takes well under a millisecond; the limit allows for a busy machine."""
    processor = LlamaGrammar.from_json_schema(SCHEMA).processor(llm._prompts.vocabulary)
    scores, ids = np.zeros(llm.n_vocab(), dtype=np.float32), [1]
    start = time.perf_counter()
    for _ in range(20):
        out = processor(np.array(ids, dtype=np.intc), scores)
        ids.append(int(np.argmax(out)))
    assert (time.perf_counter() - start) / 20 < 0.1
    assert llm.detokenize(ids[1:]).startswith(b"{")
