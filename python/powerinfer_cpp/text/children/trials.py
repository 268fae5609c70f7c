"""Texts and strings' keywords that are tried with single bytes."""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations

from llguidance import LLMatcher
from matchers import limits, single_bytes
from schema_text import short
from serve import Refused
from strings import NOTHING, Strings, Wanted


def admits(wanted: Wanted, text: str) -> bool:
    """Does a text fit these keywords of strings? Raises Refused."""
    matcher = _matcher(json.dumps(wanted))
    if matcher is None:
        return False
    ids = list(json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    trial = matcher.deep_copy()
    return trial.try_consume_tokens(ids) == len(ids) and trial.is_accepting()


def possible(wanted: Wanted) -> bool:
    """Is there a text that fits? Raises Refused for keywords that cannot be used."""
    return _matcher(json.dumps(wanted)) is not None


def matches(pattern: str, name: str) -> bool:
    """Does a key match a pattern of patternProperties? Raises Refused."""
    return admits(({"patternProperties": [pattern]},), name)


def disjoint(patterns: Sequence[str]) -> bool:
    """Is there no key that matches two of these patterns? Raises Refused."""
    pairs = combinations(patterns, 2)
    return not any(possible(({"patternProperties": pair},)) for pair in pairs)


@lru_cache(100)
def _matcher(wanted: str) -> LLMatcher | None:
    """Of these keywords, as JSON; None if no text fits. Raises Refused."""
    lines: dict[str, str] = {}  # names of terminals, by their bodies

    def terminal(body: str) -> str:
        return lines.setdefault(body, f"J{len(lines)}")

    strings = Strings(terminal)
    found = strings.of(tuple(json.loads(wanted)))
    if found is NOTHING:
        return None
    terminals = "".join(f"{name}: {body}\n" for body, name in lines.items())
    lark = f"start: TEXT\nTEXT: {strings.inside(found)}\n{terminals}"
    grammar = LLMatcher.grammar_from_lark(lark)
    matcher = LLMatcher(single_bytes(), grammar, log_level=0, limits=limits())
    first = matcher.deep_copy()
    first.compute_bitmask()
    if first.is_error() and "NoExtension" in first.get_error():  # not even the first quote
        return None
    if first.is_error():
        raise Refused(f"{short(json.loads(wanted))}: {reason(first.get_error())}")
    return matcher


def reason(error: str) -> str:
    """llguidance's reason, without the text of the grammar, which it adds."""
    first = error.strip().split("\n")[0]
    return one_line(re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", first))


def one_line(error: object) -> str:
    return " ".join(str(error).split())[:300]
