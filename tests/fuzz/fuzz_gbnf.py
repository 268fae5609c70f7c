"""GBNF: any text ends in a grammar or in a ValueError that says what is wrong; and a grammar admits
exactly the texts of an independent recogniser.

The first byte says which: below 0x80 the others draw a random grammar and texts for it, else they
are the grammar.
"""

from __future__ import annotations

import random

import driver
import hostile
import llguidance
import random_grammars
from powerinfer_cpp.text.grammar import LlamaGrammar

_SECONDS = 5.0
_BYTES = llguidance.LLTokenizer("byte")


def _admits(grammar: LlamaGrammar, text: str) -> bool:
    matcher = llguidance.LLMatcher(_BYTES, grammar._compiled, log_level=0)
    ids = list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def _random(draw: random.Random) -> None:
    rules = random_grammars.grammar(draw)
    text = random_grammars.written(rules, draw)
    made = LlamaGrammar.from_string(text)
    for _ in range(4):
        try:
            fine = random_grammars.derived(rules, draw)
        except random_grammars.Endless:
            continue
        assert _admits(made, fine), (text, fine)
        other = random_grammars.changed(fine, draw)
        assert _admits(made, other) == random_grammars.admits(rules, other), (text, other)


def run(data: bytes) -> None:
    if data[:1] < b"\x80":
        _random(random.Random(data))
        return
    text, clock = data[1:].decode("utf-8", "replace"), hostile.Clock()
    try:
        LlamaGrammar.from_string(text)
    except ValueError as error:
        assert str(error), text
    assert clock.seconds() < _SECONDS, text


if __name__ == "__main__":
    driver.main(run, "gbnf", draw=True)
