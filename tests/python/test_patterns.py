"""`pattern` of JSON schemas is ECMA-262's language: a table, and beside a JavaScript engine."""

from __future__ import annotations

import collections
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import random_patterns
from hypothesis import given, settings
from hypothesis import strategies as st
from powerinfer_cpp.text import grammar
from powerinfer_cpp.text.worker import package_folder
from test_schemas import matcher, takes, written

# What JavaScript takes and we refuse, by the words of the error.
DOCUMENTED = "refers back|lookbehind of more|repetition without end|more than 60 deep|more than 400"


def admitted(pattern: str, texts: list[str]) -> list[bool]:
    """Is each text admitted? As it is and with escapes alike."""
    made = matcher({"type": "string", "pattern": pattern})
    found = []
    for text in texts:
        ways = {
            takes(made.deep_copy(), json.dumps(text, ensure_ascii=ascii)) for ascii in (True, False)
        }
        assert len(ways) == 1, (pattern, text)
        found += ways
    return found


# (pattern, texts in which it is found, texts in which it is not)
FOUND = [
    # Nothing is anchored that does not say so.
    ("cat|^dog", ["concat", "dog", "cats"], ["hotdog", "ca"]),
    ("", ["", "\n"], []),
    (".*", ["", "a\nb"], []),
    ("^.*$", ["", "a\u0085b", "\u000b"], ["a\nb", "\r", "\u2028", "x\u2029"]),
    ("^a$|^$", ["a", ""], ["a\n", "\n"]),
    # Operators of other languages are characters here.
    ("^[x&&y]$", ["x", "y", "&"], ["z", ""]),
    ("^[^x&&y]$", ["z", "-"], ["x", "y", "&"]),
    ("^[a-c~~q]+$", ["a~q", "b"], ["p"]),
    ("^[+--]$", ["+", ",", "-"], ["*", "."]),
    ("^[[a]$", ["[", "a"], ["]", "b"]),
    ("^[&&&]$", ["&"], ["a"]),
    ("a #b", ["a #b"], ["a", "ab"]),
    # Classes and their edges.
    ("^[]$", [], ["", "a", "]"]),
    ("^[^]$", ["a", "\n", "\U0001f680"], ["", "ab"]),
    (r"^[\]\-a]$", ["]", "-", "a"], ["\\", "b"]),
    (r"^[\w-]+$", ["a-z_0"], ["\u00e9", "a b"]),
    (r"^[\b]$", ["\b"], ["b", ""]),
    (
        r"^\s$",
        list("\t\v\f \u00a0\u1680\u2003\u2028\u202f\u3000\ufeff"),
        list("\u0085\u180e\u200b"),
    ),
    (r"^\S$", list("\u0085\u200b_"), list("\ufeff \n")),
    (r"^\d\w\D\W$", ["7_x-", "0Z\u0663\u00df"], ["\u0663axb", "1\u00dfx-", "7_8-"]),
    (r"^[^\W\d]+$", ["ab_"], ["a1", "\u00e9"]),
    # Escapes.
    (r"^\cJ\x41\u00e9\0$", ["\nA\u00e9\0"], ["JA\u00e90"]),
    (r"^\u{1F680}\ud83d\ude80$", ["\U0001f680\U0001f680"], ["\U0001f680"]),
    ("^\U0001f680{2}$", ["\U0001f680\U0001f680"], ["\U0001f680"]),
    (r"^[\u{1F600}-\u{1F64F}]$", ["\U0001f600", "\U0001f64f"], ["\U0001f650", "a"]),
    (r"^\ud83d", [], ["\U0001f680", "d"]),
    (r"^\/\^\$\.\{\}$", ["/^$.{}"], ["/^$x{}"]),
    (r"^\@\-\"$", ['@-"'], ["@-"]),
    (r"^\p{Lu}\p{L}\P{L}\p{gc=Nd}$", ["\u00c9\u4e2d-\u0663"], ["\u00e9a-1", "Aab1"]),
    (r"^[\p{Script=Greek}\p{Script_Extensions=Deva}]+$", ["\u03b1\u0905\u0964"], ["a", "\u0430"]),
    # Repetitions.
    ("^(?:ab){2,3}?$", ["abab", "ababab"], ["ab", "abababab"]),
    ("^(?<ann\u00e9e>a)*b+?c??$", ["b", "aabbc"], ["a", "bcc"]),
    ("^x{0}y{2}z{1,}$", ["yyz", "yyzz"], ["xyyz", "yy"]),
    ("^(a?)*(b*)+$", ["", "aab"], ["ba"]),
    # Assertions.
    (r"\bcat\b", ["cat", "a cat.", "\u00e9cat\u00e9"], ["cats", "_cat"]),
    (r"\Bat", ["cat", "_at"], ["at", "-at"]),
    (r"^\b|\B$", ["a", "", "a-"], []),
    (r"x\b$", ["x", "-x"], ["x-", "xa"]),
    (r"^(?=.*[0-9])(?=.*[a-z])[0-9a-z]{3,}$", ["a1b", "12c"], ["abc", "a1", "123"]),
    (r"^(?!.*\.\.)[a-z.]+$", ["a.b.c"], ["a..b", ""]),
    (r"^(?!con$|nul$)[a-z]+$", ["cons", "null"], ["con", "nul"]),
    (r"q(?!u)", ["q", "qat", "quq"], ["quit"]),
    (r"(?<=[0-9])px|^px", ["1px", "px"], ["apx", " px"]),
    (r"^[a-z-]+(?<!-)$", ["a-b"], ["a-", "-"]),
    (r"^(?:(?!--).)*$", ["a-b-c", ""], ["a--b", "a\nb"]),
    (r"^(?:a(?=b|$)|b){1,3}$", ["a", "ab", "bba"], ["aab", "abab"]),
    (r"^(?!(?=a).b)..$", ["ac", "bb"], ["ab"]),
    # Assertions in repetitions without end, each time decided within itself.
    (r"^((?!-)[a-z-]{1,5}(?<!-)\.)+[a-z]+$", ["a-b.c", "a.b.c"], ["-a.b", "a.b-.c", "a-.b", "c"]),
    (r"^(?:x?y\b-)*z", ["xy-y-z", "z"], ["xyy-z", "xyz"]),
    ("^(?:(?:^|,)[0-9]+){2,}$", ["1,22", ",1,2,3"], ["12", "1,", "1", "1,,2"]),
    ("^(?:(?:^|,)[0-9]+)*$", ["", "12,3", ",1"], ["1,", "1 2"]),
    (r"a(?:\b.)+", ["a-", "b a !"], ["a", "ab", "ba"]),
    (r"(?:\bb|^)*", ["", "a b", "x"], []),
    (r"a$b|^b(?=^)|(?=b$)^b", ["b"], ["ab", "bb"]),
]

REFUSED = [
    ("(?i)cat", "begins no group"),
    ("(?i:cat)", "begins no group"),
    ("(?>a)b", "begins no group"),
    ("(?P<n>a)", "begins no group"),
    ("(?<n>a)(?<n>b)", "two groups are named n"),
    (r"^a\z", r"\\z is no escape"),
    (r"\Aa", r"\\A is no escape"),
    (r"\Qa.b\E", r"\\Q is no escape"),
    (r"\x{41}", r"\\x is no escape"),
    (r"\u{110000}", "beyond the last character"),
    (r"\01", r"\\0 is no escape"),
    (r"\c1", r"\\c is no escape"),
    (r"[\B]", r"\\B is no escape"),
    ("a\\", "a backslash ends"),
    (r"\p{greek}", r"\\p{greek} is no property"),
    (r"\p{Greek}", r"\\p{Greek} is no property"),
    (r"\p{Script=Klingonish}", "is no property"),
    (r"\pL", r"\\p is no property"),
    (r"(a)\1", "refers back to a group"),
    (r"(?<n>a)\k<n>", "refers back to a group"),
    ("[[:alpha:]]", r"\] must be escaped"),
    ("a{,2}", r"\{ must be escaped"),
    ("a}", r"\} must be escaped"),
    ("a++", "repetition cannot be repeated"),
    ("+a", "nothing to repeat"),
    ("^*a", "an assertion cannot be repeated"),
    ("(?=a){2}", "an assertion cannot be repeated"),
    ("a{3,2}", "out of order"),
    ("[b-a]", "ends before it begins"),
    (r"[\w-.]", "no end of a range"),
    ("[a", "is not closed"),
    ("(a", "is not closed"),
    ("a)", "closes no group"),
    ("(?<=ab)c", "lookbehind of more than one character"),
    (r"(?:\b.?)+$", "assertion within a repetition without end"),
    (r"(?:(?!ab)[a-c])+d", "assertion within a repetition without end"),
    ("(" * 61 + ")" * 61, "more than 60 deep"),
    (r"(?:(?:\b.){30}){30}", "more than 400 assertions"),
]


@pytest.mark.parametrize(("pattern", "found", "not_found"), FOUND)
def test_what_a_pattern_finds(pattern: str, found: list[str], not_found: list[str]) -> None:
    if not found:
        with pytest.raises(ValueError, match="no JSON fits"):
            admitted(pattern, [])
        return
    wanted = [True] * len(found) + [False] * len(not_found)
    assert admitted(pattern, found + not_found) == wanted


@pytest.mark.parametrize(("pattern", "words"), REFUSED)
def test_what_is_no_pattern(pattern: str, words: str) -> None:
    """The error names the field, the pattern and the reason, once."""
    at = {"type": "string", "pattern": pattern}
    by_name = {"type": "object", "patternProperties": {pattern: {}}}
    for field, schema in (("pattern", at), ("patternProperties", by_name)):
        with pytest.raises(ValueError, match=words) as raised:
            matcher(schema)
        told = str(raised.value)
        assert told.startswith(
            f"the JSON schema cannot be used: {field} {json.dumps(pattern)[:50]}"
        )
        assert told.count("cannot be used") == 1


# Units that are repeated, with what stands around them, and whether they are assertions, of which a
# pattern has less.
COSTS = [
    ("", "a", "", False),
    ("[", "a-c\\n", "]", False),
    ("", r"\u{1F600}[^x]", "", False),
    ("", "ab|", "c", False),
    ("^", "(a?|b)*", "$", False),
    ("^", ".{2,9}", "$", False),
    ("", "(", "", False),
    ("^", r"\bx", "$", True),
    ("^", "(?!a)x?", "$", True),
    ("^(?:", "(?=a).|", "b){1,2}$", True),
    ("^", "(?<=[^a])b*", "$", True),
]
_READ = """
import sys, time
sys.path[:0] = sys.argv[1:]
from serve import Refused
from strings import Strings
for line in sys.stdin:
    pattern, known, begin = line.rstrip("\\n"), {}, time.process_time()
    try:
        Strings(lambda body: known.setdefault(body, f"J{len(known)}")).pattern(pattern, "")
    except Refused:
        pass
    print(time.process_time() - begin)
"""


@pytest.mark.xdist_group("timed")
def test_what_reading_a_pattern_costs() -> None:
    """Time in proportion to its length."""
    sizes = [(40, 160) if few else (800, 3200) for *_, few in COSTS]
    lines = [
        before + unit * n + after
        for (before, unit, after, _), pair in zip(COSTS, sizes, strict=True)
        for n in pair
    ]
    folders = [Path(grammar.__file__).parent / "children", package_folder("llguidance")]
    done = subprocess.run(
        [sys.executable, "-c", _READ, *map(str, folders)],
        input="\n".join([lines[0], *lines]),  # the first one also counts what is done once
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = [*map(float, done.stdout.split())][1:]
    for i, (small, large) in enumerate(zip(seconds[::2], seconds[1::2], strict=True)):
        assert large < 4 * 2.5 * small + 0.02, (COSTS[i], small, large)


def beside(
    js: random_patterns.JavaScript,
    pattern: str,
    texts: list[str],
    count: collections.Counter[str],
) -> None:
    """Both find a pattern in the same texts, or refuse it."""
    draw = random.Random(pattern)
    try:
        made = matcher({"type": "string", "pattern": pattern})
    except ValueError as error:
        answers = js.finds(pattern, texts)
        if "no JSON fits" in str(error):
            count["found in no text"] += 1
            assert not any(answers or ()), pattern
        elif answers is not None:
            count["refused here alone"] += 1
            assert re.search(DOCUMENTED, str(error)), (pattern, str(error))
        else:
            count["refused by both"] += 1
        return
    ours = [text for _ in range(3) if (text := written(made.deep_copy(), draw, 60)) is not None]
    texts = [*texts, *map(json.loads, ours)]
    answers = js.finds(pattern, texts)
    if answers is None:  # but for signs that mean themselves
        assert random_patterns.SIGNS.search(pattern), pattern
        count["an escaped sign"] += 1
        return
    found = admitted(pattern, texts)
    assert found == answers, (pattern, [*zip(texts, found, answers, strict=True)])
    count["taken"] += 1
    count["texts admitted"] += sum(found)
    count["texts not admitted"] += len(found) - sum(found)


@pytest.mark.slow
def test_beside_javascript() -> None:
    count: collections.Counter[str] = collections.Counter()
    with random_patterns.javascript() as js:
        for pattern, found, not_found in FOUND:
            beside(js, pattern, found + not_found, count)
        for pattern, _ in REFUSED:
            beside(js, pattern, [], count)

        @settings(max_examples=400, deadline=None, derandomize=True, database=None)
        @given(random_patterns.patterns, st.lists(random_patterns.texts, min_size=3, max_size=6))
        def check(pattern: str, texts: list[str]) -> None:
            beside(js, pattern, texts, count)

        check()
    assert count["taken"] > 200 and count["refused by both"] > 50, count
    assert min(count["texts admitted"], count["texts not admitted"]) > 300, count
