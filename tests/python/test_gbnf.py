"""GBNF against texts from an independent generator: all are admitted, near misses are not."""

from __future__ import annotations

import random
import resource
import time

import llguidance
import numpy as np
import pytest
import random_grammars
import tiny
from circles import third
from powerinfer_cpp.llama_grammar import ARITHMETIC_GBNF, JSON_GBNF, LIST_GBNF
from powerinfer_cpp.text import masks

from powerinfer_cpp import Llama, LlamaGrammar

BYTES = llguidance.LLTokenizer("byte")


def admits(grammar: LlamaGrammar, text: str) -> bool:
    matcher = llguidance.LLMatcher(BYTES, grammar._compiled, log_level=0)
    ids = list(text.encode())
    assert not matcher.is_error(), matcher.get_error()
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def check(seed: int) -> None:
    draw = random.Random(seed)
    rules = random_grammars.grammar(draw)
    text = random_grammars.written(rules, draw)
    made = LlamaGrammar.from_string(text)
    for _ in range(4):
        try:
            fine = random_grammars.derived(rules, draw)
        except random_grammars.Endless:
            continue
        assert admits(made, fine), (text, fine)
        for _ in range(3):
            other = random_grammars.changed(fine, draw)
            assert admits(made, other) == random_grammars.admits(rules, other), (text, other)


def test_random_grammars() -> None:
    for seed in range(40):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", third(range(1000, 4000, 500)))
def test_more_random_grammars(first: int) -> None:
    for seed in range(first, first + 500):
        check(seed)


C = r"""
root        ::= function*   # as in a small C
function    ::= type name "(" (type name)? ")" "{" statement* "}"
type        ::= ("int" | "char") gap
name        ::= [a-zA-Z_] [a-zA-Z_0-9]*
statement   ::= ( type? name gap "=" gap sum ";" ) | ( "return" gap sum ";" ) |
  ( "while" "(" sum ")" "{" statement* "}" ) | "//" [^\n]* "\n"
sum         ::= value (("+" | "-") value)*
value       ::= name | [0-9]+ | "(" sum ")"
gap         ::= [ \n]+
"""


@pytest.mark.parametrize(
    ("grammar", "fine", "wrong"),
    [
        (C, "int f(char c){x = 1;returned = (x+2);return y;}", "int f(){return;}"),
        (C, "int f(){//while\nwhile(1){}}", "intf(){}"),
        (ARITHMETIC_GBNF, "a= 12+ 3*(b- 2)\n", "a= 12+\n"),
        (LIST_GBNF, "- a thing\n- \u20ac\n", "- \n"),
        (JSON_GBNF, '{"a": [1, {"b": "\\u00e4"}], "c":-0.5e3}', '{"a" 1}'),
        ('root ::= word end\nword ::= [a-z]+ \nend ::= "y"', "xyzy", "xyz"),
        ('root ::= ("a"{2} | [^a-c\\]]{,2}){2}', "aadd", "ab"),
        ('root ::= a\n  | b # two\n\na ::= "1"\nb::="2"', "2", "12"),
        ('root ::= "\\x41\\u00e9\\U0001F600" [\\[-\\]]', "A\u00e9\U0001f600]", "Ae\U0001f600]"),
        ("root ::= . .", "\n\U0001f600", "a"),
        ('root ::= "a" (("b"?)* | "")+ "c"', "abbc", "ab"),
    ],
)
def test_grammars(grammar: str, fine: str, wrong: str) -> None:
    made = LlamaGrammar.from_string(grammar)
    assert admits(made, fine) and not admits(made, wrong)


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ('root ::= "a"\nroot2 := "b"', "line 2 of the grammar: expected ::="),
        ('root ::= "a" x\n# no x', "line 1 of the grammar: there is no rule x"),
        ('root ::= ("a"\n | "b"\n', r"line 3 of the grammar: expected \)"),
        ('root ::= "a"{2,x}', "expected a number, found 'x}'"),
        ("root ::= [a", r"expected \], found the end"),
        ('root ::= a? b\nb ::= "b" | root\na ::= "a"', "left recursion"),
        ('root ::= "a"{2001}', "more than 2000"),
        ("root ::= <think>", r"given by its number, as <\[123\]>"),
        ('start ::= "a"', "no rule root"),
        ('root ::= * "a"', "something to repeat"),
    ],
)
def test_what_errors_say(grammar: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LlamaGrammar.from_string(grammar)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory):
    path = tiny.make(tmp_path_factory.mktemp("gbnf"))
    with Llama(path, n_ctx=256, verbose=False) as opened:
        yield opened


def test_tokens_by_number(llm: Llama) -> None:
    control = llm.token_bos()
    grammar = LlamaGrammar.from_string(f'root ::= "a" <[{control}]> "b"')
    processor, ids = grammar.processor(llm._prompts.vocabulary), []
    scores = np.zeros(llm.n_vocab(), dtype=np.float32)
    for _ in range(3):
        allowed = np.flatnonzero(processor(np.array(ids, dtype=np.intc), scores) == 0)
        ids.append(int(allowed[-1]))
    assert [ids[1], llm.detokenize([ids[0], ids[2]])] == [control, b"ab"]


@pytest.mark.parametrize("token", ["<[{}]>", "!<[{}]>", '("b" | <[{}]>)?'])
def test_tokens_that_there_are_not(llm: Llama, token: str) -> None:
    """They are refused before a text begins, whatever else the grammar names."""
    begins = f'root ::= "a" rest\nrest ::= <[{llm.token_bos()}]> {token}'
    fine = LlamaGrammar.from_string(begins.format(llm.n_vocab() - 1))
    fine.check(llm._prompts.vocabulary)
    wrong = LlamaGrammar.from_string(begins.format(llm.n_vocab()))
    words = rf"the token <\[{llm.n_vocab()}\]>: the model's are 0 to {llm.n_vocab() - 1}"
    for use in (wrong.check, wrong.processor):
        with pytest.raises(ValueError, match=words):
            use(llm._prompts.vocabulary)
    with pytest.raises(ValueError, match=words):
        llm("x", grammar=wrong, max_tokens=1)


def leaning(llm: Llama, text: str):
    """A logits processor that writes this text over and over."""
    bias = np.zeros(llm.n_vocab(), dtype=np.float32)
    for byte in set(text.encode()):
        bias[tiny.BYTE + byte] = 50.0
    return lambda _ids, scores: scores + bias


@pytest.mark.xdist_group("timed")
def test_a_mask_has_limits(llm: Llama) -> None:
    """Each ends in a text or an error, in bounded time and memory, and the next one works."""
    many = " | ".join(f'[a-z]{{{i}}} "{i}"' for i in range(1, 150))
    for grammar, text in (
        ('root ::= line rest\nline ::= "="*\nrest ::= "=" "x"', "="),
        (f"root ::= (item | root2)*\nroot2 ::= item item\nitem ::= {many}", "abc"),
        ('root ::= a*\na ::= "(" a* ")" | b b\nb ::= [x]{1,300} c?\nc ::= [x]{0,300} a?', "x"),
    ):
        start = time.monotonic()
        try:
            bound = LlamaGrammar.from_string(grammar)
            options = {"max_tokens": 40, "logits_processor": leaning(llm, text)}
            llm("x", grammar=bound, temperature=0, **options)
        except ValueError as error:
            assert "grammar" in str(error)
        assert time.monotonic() - start < 60
        fine = llm("x", grammar=LlamaGrammar.from_string('root ::= "ok"'))
        assert fine["choices"][0]["text"] == "ok"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 << 20  # KiB


def test_a_mask_that_takes_too_long(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error of that text alone."""
    grammar = LlamaGrammar.from_string("root ::= [a-z]*")
    scores = np.zeros(llm.n_vocab(), dtype=np.float32)
    first, second = [1], [1, tiny.BYTE + ord("a")]
    other = grammar.processor(llm._prompts.vocabulary)
    other(np.array(first, dtype=np.intc), scores)
    monkeypatch.setattr(masks, "WAIT_SECONDS", 0.0)
    # Even a fast process has not answered yet.
    monkeypatch.setattr(masks, "_wait", lambda channel, seconds: channel.fileno() < 0)
    slow = grammar.processor(llm._prompts.vocabulary)
    for _ in range(2):  # also when it is asked again
        with pytest.raises(ValueError, match="the grammar takes more than"):
            slow(np.array(first, dtype=np.intc), scores)
    monkeypatch.undo()
    assert np.isfinite(other(np.array(second, dtype=np.intc), scores)[second[-1]])
