"""Makes grammars in llguidance's notation, and tries them, in a process of its own.

llguidance recurses once per nested rule, so a text of a few kilobytes can overflow the stack, which
ends a process. A grammar passes if it can be compiled with STACK bytes.
"""

import json
import random
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

from gbnf import GbnfError, last_token, parse, simplified
from json_rules import JsonRules, quoted
from lexemes import as_lark
from llguidance import LLMatcher
from matchers import limits, single_bytes
from schema_text import parsed
from serve import Refused
from trials import one_line, reason

STACK = 1 << 20  # bytes; schemas that are 100 objects deep pass. Threads have 8 MiB on Linux
OWN_STACK = 48 << 20  # of the translation, in Python; two of them are smaller than serve.GROWTH
RECURSION = 20_000
STEPS = 16  # bytes to try: what explodes at the second or third byte is refused at once
HEAD = '%llguidance {"no_forcing": true}\n'


# A grammar, and the highest number of the tokens that it names; -1 without tokens.
_Made = tuple[str, int]


def _gbnf(text: str) -> _Made:
    try:
        rules = simplified(parse(text))
    except GbnfError as error:
        raise Refused(str(error)) from None
    return LLMatcher.grammar_from_lark(HEAD + as_lark(rules)), last_token(rules)


def _json_schema(text: str) -> _Made:
    rules = JsonRules()
    name = rules.add(parsed(text))
    return LLMatcher.grammar_from_lark(f"{HEAD}start: {name}\n{rules.text()}"), -1


def _json_object(_text: str) -> _Made:
    return _json_schema('{"type": "object"}')


def _tool_calls(text: str) -> _Made:
    """Calls of tools, as LlamaGrammar.from_tool_calls describes them."""
    asked = json.loads(text)
    tokens = asked["control"]

    def literal(words: str) -> str:
        parts = re.split(f"({'|'.join(map(re.escape, tokens))})", words) if tokens else [words]
        return " ".join(f"<[{tokens[p]}]>" if p in tokens else quoted(p) for p in parts)

    rules = JsonRules()
    texts: dict[str, str] = {}  # names of rules for raw texts, by their bodies
    calls = []
    for call in asked["calls"]:
        if not isinstance(call["schema"], dict):
            raise Refused("a tool's parameters are no JSON schema")
        if call.get("arguments"):
            body = _parameters(call, rules, literal, texts)
        else:
            body = rules.add(parsed(json.dumps(call["schema"]))) if "arguments" not in call else ""
        calls.append(f"{literal(call['begin'])} {body} {literal(call['end'])}")
    between = f"{literal(asked['between'])} call"
    more = f"({between}){{0,{asked['most'] - 1}}}" if asked["most"] > 1 else ""
    start = f"start: {literal(asked['before'])} call {more} {literal(asked['after'])}"
    # A text before a control token takes all that the token does not end.
    raw = [f"{name}{'' if body == _ANY else '[lazy]'}: {body}" for body, name in texts.items()]
    lines = [start, f"call: {' | '.join(calls)}", *raw, rules.text()]
    compiled = LLMatcher.grammar_from_lark(HEAD + "\n".join(lines))
    return compiled, max(tokens.values(), default=-1)


_ANY = "/(?s:.*)/"


def _parameters(
    call: dict[str, Any],
    rules: JsonRules,
    literal: Callable[[str], str],
    texts: dict[str, str],
) -> str:
    """The parameters of a call one after another: strings as they are, the rest as JSON."""
    schema = call["schema"]
    written: list[tuple[str, bool]] = []  # a parameter, and whether it must be there
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    for name, (as_json, as_text) in call["arguments"].items():
        value = schema["properties"][name]
        if as_text is None or value.get("type") != "string":
            before, after = map(literal, as_json)
            body = f"{rules.add(parsed(json.dumps({**shared, **value})))} {after}"
        elif "enum" in value or "const" in value:
            before, after = map(literal, as_text)
            allowed = value["enum"] if "enum" in value else [value["const"]]
            body = f"({' | '.join(quoted(text) for text in allowed)}) {after}"
        else:
            before, after = literal(as_text[0]), literal(as_text[1])
            # The text ends where what follows it begins: a text, or a control token.
            mark, token, rest = after.partition("<[")
            ends = json.loads(mark) if mark else ""
            escaped = re.escape(ends).replace("\\\n", "\\n").replace("/", "\\/")
            regex = f"{_ANY[:-1]}{escaped}/"
            name_of = texts.setdefault(regex, f"raw{len(texts)}")
            body = f"{name_of} {token}{rest}"
        written.append((f"{before} {body}", name in schema.get("required", ())))
    if not call["separator"]:
        return " ".join(body if required else f"({body})?" for body, required in written)
    separator = literal(call["separator"])
    first = behind = ""  # what may stand where nothing was written, and where something was
    for body, required in reversed(written):
        begun = f"{body} {behind}"
        if required:
            first, behind = begun, f"{separator} {begun}"
        else:
            first = f"({begun} | {first})" if first else f"({begun})?"
            behind = f"({separator} {body})? {behind}"
    return first


def _try(compiled: str) -> str | None:
    """An error message for a grammar; None if it is usable."""
    matcher = LLMatcher(single_bytes(), compiled, log_level=0, limits=limits())
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


def answer(kind: str, text: str) -> _Made:
    """The grammar in llguidance's notation, and the highest number of the tokens that it names; -1
    without tokens. kind: a key of _KINDS."""
    sys.setrecursionlimit(RECURSION)
    compiled, token = _in_thread(OWN_STACK, lambda: _KINDS[kind](text))
    if token < 0:  # the tokenizer of the trial has none
        wrong = _in_thread(STACK, lambda: _try(compiled))
        if wrong is not None:
            raise Refused(f"the grammar cannot be used: {reason(wrong)}")
    return compiled, token


def _in_thread(stack: int, work: Callable[[], Any]) -> Any:
    """What work gives, with a stack of so many bytes."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append((True, work()))
        except BaseException as error:  # llguidance's panics are not an Exception
            found.append((False, error))

    threading.stack_size(stack)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if not found:
        raise MemoryError
    done, value = found[0]
    if done:
        return value
    if isinstance(value, Refused | MemoryError | RecursionError):
        raise value
    raise Refused(f"the grammar cannot be used: {one_line(value)}")
