"""Any grammar or JSON schema: it must end in text that keeps to it or in a ValueError, within the
limits, and the next grammar must not notice.

Through the process in which grammars are tried, and then over a vocabulary of bytes as a model
would use them. The first byte says which kind it is, the last ones which tokens are drawn.
"""

from __future__ import annotations

import json
import random

import driver
import hostile
import numpy as np
from powerinfer_cpp.text.grammar import LlamaGrammar, Vocabulary

_SECONDS = 5.0  # of processor time; trying it takes no more than 1.5
_TOKENS = 32

GBNF = {
    "rules": [
        "root ::= <choice>\na ::= <choice>\nb ::= <choice>\na-1 ::= <choice>\n",
        "b ::= <item>\na ::= <series>\na-1 ::= <choice> # b\nroot ::= <choice>\n",
        "root ::= <choice>\n",
    ],
    "choice": ["<series>", "<series> | <choice>", "<series> |\n  <series>"],
    "series": ["<item>", "<item> <series>", "<item> <item> <item>", '""'],
    "item": [
        '"a"',
        '"<letters>"',
        '"<letters>"',
        "[<set>]",
        "[^<set>]",
        "<name>",
        "<name>",
        "(<choice>)",
        "(<choice>)<times>",
        "<item><times>",
        ".",
    ],
    "times": ["?", "*", "+", "{2}", "{0,3}", "{2,}", "{,2}", "{0}", "{3,1}", "{999999}"],
    "name": ["a", "b", "root", "a-1", "a", "b", "a-1", "none"],
    "letters": ["ab", "", " ", "\\n", '\\"', "\\\\", "\\x41", "\\u00e9", "\\U0001F600", "\\ud800"]
    + ["\u00e9", "{", "true", "\\x00", "\\xff", "\\q"],
    "set": [
        "a-z",
        "0-9",
        "\\]",
        "^",
        "-",
        "a-",
        "z-a",
        "\\x00-\\x1f",
        "\u00e0-\u00ff",
        "<set><set>",
    ]
    + ["", "\\u4e00-\\u9fff", " \\t\\n"],
}

SCHEMA = {
    "whole": ["{<keys>}", '{"$defs": {"a": <schema>, "b": <schema>}, <keys>}', "<schema>"],
    "schema": [
        "{}",
        "true",
        "false",
        "{<keys>}",
        "{<keys>}",
        "{<keys>}",
        '{"type": "object", "properties": {<properties>}, "required": [<names>]}',
        '{"type": "object", "properties": {<properties>}, <keys>}',
        '{"type": "array", "items": <schema>, <keys>}',
        '{"type": "string", <keys>}',
        '{"type": "integer", <keys>}',
        '{"anyOf": [<schema>, <schema>]}',
        '{"allOf": [<schema>, <schema>]}',
        '{"$defs": {"a": <schema>, "b": <schema>}, <keys>}',
    ],
    "keys": ['"type": <type>', "<key>", "<key>", "<key>, <keys>", "<key>, <keys>"],
    "key": [
        '"type": <type>',
        '"properties": {<properties>}',
        '"required": [<names>]',
        '"additionalProperties": <schema>',
        '"patternProperties": {"<pattern>": <schema>}',
        '"unevaluatedProperties": <schema>',
        '"propertyNames": <schema>',
        '"minProperties": <number>',
        '"maxProperties": <number>',
        '"items": <schema>',
        '"prefixItems": [<schema>, <schema>]',
        '"additionalItems": <schema>',
        '"contains": <schema>',
        '"uniqueItems": true',
        '"minItems": <number>',
        '"maxItems": <number>',
        '"minLength": <number>',
        '"maxLength": <number>',
        '"pattern": "<pattern>"',
        '"format": "<format>"',
        '"minimum": <number>',
        '"maximum": <number>',
        '"exclusiveMinimum": <number>',
        '"exclusiveMaximum": <number>',
        '"multipleOf": <number>',
        '"enum": [<value>, <value>]',
        '"const": <value>',
        '"anyOf": [<schema>, <schema>]',
        '"oneOf": [<schema>, <schema>]',
        '"allOf": [<schema>, <schema>]',
        '"not": <schema>',
        '"if": <schema>, "then": <schema>, "else": <schema>',
        '"$ref": "<reference>"',
        '"$defs": {"a": <schema>, "b": <schema>}',
        '"definitions": {"a": <schema>}',
        '"dependentSchemas": {"a": <schema>}',
        '"title": "a"',
        '"x-unknown": <value>',
        '"type": <value>',
        '"items": [<schema>]',
        '"$ref": <value>',
        '"required": <value>',
    ],
    "type": """
        "string" "integer" "number" "boolean" "null" "array" "object" ["string","null"] [] "none"
    """,
    "properties": ["", '"a": <schema>', '"a": <schema>, "b": <schema>', '"": <schema>'],
    "names": ["", '"a"', '"a", "b"', '"c"', "1"],
    "number": '0 1 2 3 -1 10 0.5 1.5 1e9 -1e300 1e999 9007199254740993 1e-9 "1"',
    "pattern": [
        "^a$",
        "^<way>$",
        "<way>",
        "<way>|<way>",
        "^(a|b)*a(a|b){9}$",
        "[",
        "\\\\",
        "\u00e9",
    ],
    "way": ["<atom>", "<atom><repeat>", "<atom><way>", "<atom><repeat><way>", "<edge><way>"],
    "atom": ["a", "b", ".", "-", "\U0001f600", "[<class>]", "[^<class>]", "\\\\<escape>"]
    + ["(<way>)", "(?:<way>|<way>)", "(?<<name>><way>)", "(?i)", "]"],
    "repeat": ["*", "+", "?", "{2}", "{0,3}", "{2,}?", "{3,1}", "{99999}", "**"],
    "edge": ["^", "$", "\\\\b", "\\\\B", "(?=<way>)", "(?!<way>)", "(?<=<way>)", "(?<!<atom>)"],
    "class": ["", "a", "a-z", "&&", "--", "z-a", "\\\\<escape>", "<class><class>", "["],
    "escape": ["d", "W", "s", "x41", "u0061", "u{1f600}", "ud83d", "cA", "0", "1", "z", "@", "-"]
    + ["p{L}", "P{Lu}", "p{Script=Greek}", "p{None}", "k<<name>>"],
    "name": ["a", "b"],
    "format": "date date-time time email uri uuid ipv4 ipv6 hostname duration none",
    "value": ["1", "null", "true", '"a"', "1.5", '""', '"\\u00e9\\n"', "[<value>]"]
    + ['{"a": <value>}', "[]", "{}", "-0", "1e400", '"\\ud800"'],
    "reference": """
        # #/$defs/a #/$defs/b #/definitions/a #/properties/a #/none #a http://a/b #/%24defs/a
        #/allOf/0
    """,
}


class _Bytes:
    """A model whose tokens are the bytes, and an end."""

    n_vocab, bos, eos = 257, -1, 256

    def text(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def ends(self, token: int) -> bool:
        return token == self.eos

    def tokenize(self, text: bytes) -> list[int]:
        return list(text)

    tokenize_behind = tokenize


_vocabulary = Vocabulary(_Bytes())
_scores = np.zeros(_Bytes.n_vocab, dtype=np.float32)


def _written(grammar: LlamaGrammar, draw: random.Random, most: int) -> tuple[bytes, bool]:
    """Text that the grammar allows, and whether it may end there."""
    processor, tokens = grammar.processor(_vocabulary), []
    for _ in range(most):
        masked = processor(np.array(tokens, dtype=np.int64), _scores)
        allowed = np.flatnonzero(np.isfinite(masked)).tolist()
        # Where it may end, it does half of the time: else every text would be cut off.
        ends = _Bytes.eos in allowed and (len(allowed) == 1 or draw.random() < 0.5)
        if ends:
            return bytes(tokens), True
        tokens.append(draw.choice([token for token in allowed if token != _Bytes.eos]))
    return bytes(tokens), False


def run(data: bytes) -> None:
    schema = bool(data[:1] < b"\x80")
    rules, start = (SCHEMA, "<whole>") if schema else (GBNF, "<rules>")
    text = driver.grown(data[1:], rules, start)
    make = LlamaGrammar.from_json_schema if schema else LlamaGrammar.from_string
    clock = hostile.Clock()
    try:
        written, ended = _written(make(text), random.Random(data), _TOKENS)
        if schema and ended:
            json.loads(written)  # ValueError would pass below for a refusal
    except json.JSONDecodeError as error:
        raise AssertionError(f"{text}: not JSON: {written!r}") from error
    except ValueError:
        pass
    assert clock.seconds() < _SECONDS, text
    good = LlamaGrammar.from_string('root ::= "ok"')
    assert _written(good, random.Random(1), 3) == (b"ok", True), text


if __name__ == "__main__":
    driver.main(run, "grammar", draw=True)
