r"""The characters of Unicode's properties, as `\p{...}` of ECMA-262 names them.

They are asked of llguidance, which knows the tables: a set takes up to half a second, once.
"""

import re
from functools import lru_cache

from characters import Ranges
from llguidance import LLMatcher
from matchers import limits, single_bytes

_KEYS = ("General_Category", "gc", "Script", "sc", "Script_Extensions", "scx")


@lru_cache(64)
def characters_of(name: str) -> Ranges | None:
    """The characters of `NAME=VALUE`, a general category, or a property that is true of them; None
    for a name that there is not."""
    key, equals, _ = name.rpartition("=")
    # llguidance takes a script without its key; ECMA-262 does not.
    if equals and key not in _KEYS or not equals and _matcher(f"Script={name}") is not None:
        return None
    matcher = _matcher(name)
    return None if matcher is None else _codes(matcher)


def _matcher(name: str) -> LLMatcher | None:
    if not re.fullmatch(r"[\w=]+", name, re.ASCII):
        return None
    grammar = LLMatcher.grammar_from_lark(f"start: T\nT: /\\p{{{name}}}/\n")
    matcher = LLMatcher(single_bytes(), grammar, log_level=0, limits=limits())
    return None if matcher.is_error() else matcher


def _codes(matcher: LLMatcher) -> Ranges:
    """All single characters that it admits, by their bytes in UTF-8."""
    found: list[tuple[int, int]] = []

    def follow(code: int, left: int | None) -> None:
        """left: bytes that are missing of a character; None: it has not begun."""
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        for byte in range(256):
            if not bits >> byte & 1:
                continue
            further = (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0) if left is None else left - 1
            value = byte & (0x7F, 0x1F, 0x0F, 0x07)[further] if left is None else byte & 0x3F
            if further:
                matcher.consume_token(byte)
                follow(code << 6 | value, further)
                matcher.rollback(1)
            elif found and found[-1][1] == (code << 6 | value) - 1:
                found[-1] = (found[-1][0], code << 6 | value)
            else:
                found.append((code << 6 | value, code << 6 | value))

    follow(0, None)
    return tuple(found)
