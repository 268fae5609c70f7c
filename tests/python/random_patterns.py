"""Patterns as JSON schemas have them, and texts for them, by hypothesis; what JavaScript says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import strategies as st

NODE = shutil.which("node")
# Escapes that the flag u refuses, and that mean the sign itself without it.
SIGNS = re.compile(r"\\[ !\"#%&',\-:;=@_~]")

_READ = """
const lines = require("readline").createInterface({input: process.stdin});
lines.on("line", line => {
    const [pattern, texts] = JSON.parse(line);
    let found = null;
    try {
        const regexp = new RegExp(pattern, "u");
        found = texts.map(text => regexp.test(text));
    } catch {}
    console.log(JSON.stringify(found));
});
"""

_CHARACTERS = "ab1_- .,\u00e9\n\r\u2028\u0085\ufeff\u00a0\u4e2d\U0001f600\"'/&~:"
_ESCAPES = [r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\.", r"\/", r"\\", r"\^", r"\$", r"\]"]
_ESCAPES += [r"\n", r"\t", r"\v", r"\cJ", r"\x61", r"\u0061", r"\u{1F600}", r"\ud83d\ude00", r"\0"]
_ESCAPES += [r"\p{L}", r"\P{Lu}", r"\p{Script=Han}", r"\p{Emoji}", r"\p{gc=Nd}", r"\}"]
_OF_CLASSES = [*_ESCAPES, r"\-", r"\b", "&&", "--", "~~", "[", "^", "."]
_QUANTIFIERS = ["*", "+", "?", "{2}", "{1,}", "{0,2}", "*?", "+?", "??", "{1,3}?", "{0}"]
_LOOKS = ["(?=", "(?!", "(?<=", "(?<!"]
_FOREIGN = ["(?i)", r"\z", r"\A", "(?>a)", "(?P<n>a)", "a++", "[[:alpha:]]", "{,2}", r"\Z", r"\h"]
_FOREIGN += ["(?#x)", "]", "{", "^*", r"\1", r"(?<n>a)\k<n>", "[b-a]", r"[\w-a]", r"\u{110000}"]

texts = st.text(st.sampled_from(_CHARACTERS), max_size=8)


def _classes() -> st.SearchStrategy[str]:
    one = st.sampled_from([c for c in _CHARACTERS if c != "-"] + _OF_CLASSES)
    pairs = st.sampled_from(["a-z", "0-9", "!-/", r"\x00-\x1f", "\u4e00-\u9fff", "a-a", "-"])
    inside = st.lists(one | pairs, max_size=4).map("".join)
    return st.builds("[{}{}]".format, st.sampled_from(["", "^"]), inside)


def _larger(part: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    groups = st.builds("{}{})".format, st.sampled_from(["(", "(?:", "(?<n>", *_LOOKS]), part)
    repeated = st.builds("{}{}".format, groups | part, st.sampled_from(_QUANTIFIERS))
    either = st.lists(part, min_size=2, max_size=3).map("|".join)
    return groups | repeated | either | st.lists(part, min_size=2, max_size=4).map("".join)


def _patterns() -> st.SearchStrategy[str]:
    plain = st.sampled_from([c for c in _CHARACTERS if c not in "."] + _ESCAPES + ["."])
    edges = st.sampled_from(["^", "$", r"\b", r"\B"])
    small = plain | plain | _classes() | edges
    whole = st.recursive(small, _larger, max_leaves=10)
    return whole | st.builds("^{}$".format, whole) | st.builds("^{}".format, whole)


def _spoilt(pattern: str, at: int, more: str) -> str:
    at %= len(pattern) + 1
    return pattern[:at] + more + pattern[at:]


patterns = _patterns() | st.builds(
    _spoilt, _patterns(), st.integers(0, 40), st.sampled_from([*_FOREIGN, *"()[]{}|*+?^$-", r"\@"])
)


class JavaScript:
    """RegExp with the flag u, in a process of node's."""

    def __init__(self, process: subprocess.Popen[str]):
        self._process = process

    def finds(self, pattern: str, texts: list[str]) -> list[bool] | None:
        """Is the pattern found in each text? None if it is no pattern."""
        ask, answer = self._process.stdin, self._process.stdout
        assert ask is not None and answer is not None
        ask.write(json.dumps([pattern, texts]) + "\n")
        ask.flush()
        return json.loads(answer.readline())


@contextmanager
def javascript() -> Iterator[JavaScript]:
    if NODE is None:
        pytest.skip("no Node.js: patterns are compared where Debian's package nodejs is installed")
    pipe = subprocess.PIPE
    with subprocess.Popen([NODE, "-e", _READ], stdin=pipe, stdout=pipe, text=True) as process:
        yield JavaScript(process)
        assert process.stdin is not None
        process.stdin.close()
