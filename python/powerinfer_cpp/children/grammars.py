"""Checks in a separate process whether a grammar can be used.

llguidance recurses once per nested rule, so a text of a few kilobytes can overflow the stack, which
ends a process. A grammar that passes here, with STACK bytes and a number of steps, is then used by
the caller, whose stack is several times larger.
"""

import json
import random
import re
import threading

from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark
from schemas import as_llama_cpp
from serve import Refused

STACK = 1 << 20  # bytes; schemas that are 100 objects deep pass. Threads have 8 MiB on Linux
STEPS = 16  # bytes to try: some grammars explode only at the second or third byte

# White space in JSON, as in llama.cpp: with more, weak models write nothing else.
WHITESPACE = r" |\n[ \t]{0,20}"
# Any JSON object; numbers have a limited length, as in llama.cpp.
JSON_OBJECT = r"""
start: object
object: "{" WS? (pair ("," WS? pair)*)? "}"
pair: STRING WS? ":" WS? value WS?
array: "[" WS? (value WS? ("," WS? value WS?)*)? "]"
value: object | array | STRING | NUMBER | "true" | "false" | "null"
STRING: "\"" (/[^"\\\x00-\x1f\x7f]/ | "\\" (/["\\\/bfnrt]/ | "u" CODE))* "\""
CODE: /[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}/
NUMBER: /-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?([eE][-+]?[0-9]{1,3})?/
WS: / |\n[ \t]{0,20}/
"""

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)


def _plain_escape(match: re.Match[str]) -> str:
    """A \\u escape as its character, if that has no special meaning in GBNF."""
    digits = match[1] or match[2]
    if digits is None:
        return match[0]
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise ValueError(f"\\{digits} is no character")
    return chr(code) if code >= 0x80 else f"\\x{code:02x}"


def _gbnf(text: str) -> str:
    try:
        return LLMatcher.grammar_from_lark(gbnf_to_lark(_ESCAPE.sub(_plain_escape, text)))
    except RecursionError:
        raise Refused("the grammar is nested too deeply") from None
    except MemoryError:
        raise
    except Exception as error:  # the converter has no common class for its errors
        raise Refused(f"the grammar does not parse: {_one_line(error)}") from None


def _json_schema(text: str) -> str:
    try:
        schema = json.loads(text)
        text = json.dumps(as_llama_cpp(schema))
    except RecursionError:
        raise Refused("the JSON schema is nested too deeply") from None
    except ValueError as error:
        raise Refused(f"the JSON schema is no JSON: {_one_line(error)}") from None
    try:
        return LLMatcher.grammar_from_json_schema(
            text, overrides={"whitespace_pattern": WHITESPACE, "lenient": False}
        )
    except ValueError as error:
        raise Refused(f"the JSON schema cannot be used: {_one_line(error)}") from None


def _json_object(_text: str) -> str:
    return LLMatcher.grammar_from_lark(JSON_OBJECT)


def _tool_calls(text: str, control: bool = False) -> str:
    """Calls of tools, as LlamaGrammar.from_tool_calls describes them.

    control: with the model's control tokens, which the tokenizer of the trial does not have; else
    with their texts.
    """
    asked = json.loads(text)
    tokens = asked["control"] if control else {}

    def quoted(literal: str) -> str:
        parts = re.split(f"({'|'.join(map(re.escape, tokens))})", literal) if tokens else [literal]
        return " ".join(f"<[{tokens[p]}]>" if p in tokens else json.dumps(p) for p in parts)

    names = [f"call{i}" for i in range(len(asked["calls"]))]
    rules = [f"call: {' | '.join(names)}"]
    for name, call in zip(names, asked["calls"], strict=True):
        schema = as_llama_cpp(call["schema"])
        if not isinstance(schema, dict):
            raise Refused("a tool's parameters are no JSON schema")
        # Last, so that a schema cannot ask for something else.
        schema["x-guidance"] = {"whitespace_pattern": WHITESPACE, "lenient": False}
        rules.append(f"{name}: {quoted(call['begin'])} {name}_json {quoted(call['end'])}")
        rules.append(f"{name}_json: %json {json.dumps(schema)}")
    between = f"{quoted(asked['between'])} call"
    more = f"({between}){{0,{asked['most'] - 1}}}" if asked["most"] > 1 else ""
    start = f"start: {quoted(asked['before'])} call {more} {quoted(asked['after'])}"
    return LLMatcher.grammar_from_lark("\n".join([start, *rules]) + "\n")


def _try(compiled: str) -> str | None:
    """An error message for a grammar; None if it is usable."""
    wrong, problems = LLMatcher.validate_grammar_with_warnings(compiled)
    if wrong:
        return "; ".join(problems)
    matcher = LLMatcher(LLTokenizer("byte"), compiled, log_level=0)
    draw = random.Random(0)
    for _ in range(STEPS):
        bits = matcher.compute_bitmask()
        allowed = [i for i in range(256) if bits[i >> 3] >> (i & 7) & 1]
        if matcher.is_error() or not allowed or not matcher.consume_token(draw.choice(allowed)):
            break
    return matcher.get_error() if matcher.is_error() else None


_KINDS = {
    "gbnf": _gbnf,
    "json_schema": _json_schema,
    "json_object": _json_object,
    "tool_calls": _tool_calls,
}


def answer(kind: str, text: str) -> str:
    """The grammar in llguidance's notation; kind: a key of _KINDS."""
    compiled = _KINDS[kind](text)
    found: list[str | None] = []

    def work() -> None:
        try:
            found.append(_try(compiled))
        except MemoryError:
            raise
        except BaseException as error:  # llguidance's panics are not an Exception
            found.append(str(error))

    threading.stack_size(STACK)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if not found:
        raise MemoryError
    if found[0] is not None:
        raise Refused(f"the grammar cannot be used: {_one_line(found[0])}")
    return _tool_calls(text, control=True) if kind == "tool_calls" else compiled


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:300]
