"""Formats of strings: a table, beside the package jsonschema, and beside arithmetic of dates."""

from __future__ import annotations

import datetime
import json
import random
import re

import pytest
from circles import pick
from test_schemas import matcher, takes

LONG = ".".join(["x" * 63] * 3)
RIGHT = {
    "date": (
        ["2024-02-29", "2000-02-29", "0004-02-29", "1999-12-31", "2100-02-28", "0001-01-01"],
        ["2023-02-29", "1900-02-29", "2024-02-30", "2024-04-31", "2024-13-01", "2024-1-1"]
        + ["0000-01-01", "20240101", "2024-00-10", "2024-10-00", "\u0662024-01-01", "2024-01-01 "],
    ),
    "time": (
        ["00:00:00Z", "23:59:60Z", "23:59:60.25+00:00", "12:30:59.123456789-05:30", "12:00:00z"],
        ["12:00:60Z", "23:59:60+01:00", "23:58:60Z", "24:00:00Z", "12:00:00", "12:00Z"]
        + ["12:60:00Z", "12:00:00.Z", "12:00:00+24:00", "12:00:00+01:60", "12:00:00.1234567890Z"],
    ),
    "date-time": (
        ["2024-02-29T23:59:60Z", "1985-04-12t23:20:50.52z", "1990-12-31T15:59:59-08:00"],
        ["2023-02-29T10:00:00Z", "2024-02-29 10:00:00Z", "2024-02-29T10:00:60Z", "2024-02-29"],
    ),
    "duration": (
        ["P3Y6M4DT12H30M5S", "PT36H", "P1DT12H", "P2W", "PT0S", "P0D", "P1Y", "P1YT1M"],
        [
            "P",
            "PT",
            "P1",
            "1D",
            "P1S",
            "PT1D",
            "P1D2H",
            "P2D1Y",
            "P1Y2W",
            "P1YT",
            "P1Y1D",
            "PT1H1S",
        ],
    ),
    "email": (
        ["joe@example.org", "a.b+c=d@x-1.y", '"a b"@c.de', r'"\""@c', "x@[127.0.0.1]"]
        + ["x@[IPv6:2001:db8::1]", "x" * 64 + "@a"],
        ["joe", "@a.b", "a@", "a..b@c.d", ".a@b.c", "a.@b.c", "a@b..c", "a b@c.d", "a@-b.c"]
        + ["x@[127.0.0]", "x@[::1]", "x" * 65 + "@a", "\u00e9@a.b", "a@b\n"],
    ),
    "hostname": (
        ["localhost", "a-b.c1.org", "x" * 63 + ".de", "0a", f"{LONG}.{'x' * 61}"],
        ["", "-a", "a-", ".a", "a.", "a..b", "a_b", "x" * 64, f"{LONG}.{'x' * 62}", "\u00fc.de"],
    ),
    "ipv4": (
        ["0.0.0.0", "255.255.255.255", "192.168.10.1"],
        ["256.1.1.1", "1.2.3", "1.2.3.4.5", "01.2.3.4", "1.2.3.4 ", "1..3.4", "0x1.2.3.4"],
    ),
    "ipv6": (
        ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "1::8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8"]
        + ["::ffff:10.1.2.3", "::10.1.2.3", "1:2:3:4:5:6:9.8.7.6", "64:ff9b::9.8.7.6", "FE80::a"],
        ["", ":", ":::", "1::2::3", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "12345::", "g::", ":1"]
        + ["1:", "::ffff:10.1.2", "::ffff:10.1.2.256", "1:2:3:4:5:6:7:9.8.7.6", "9.8.7.6::"]
        + ["fe80::1%eth0", "::01.2.3.4"],
    ),
    "uri": (
        ["https://a.org/b?c=d#e", "mailto:joe@a.org", "urn:isbn:0451450523", "file:///etc/hosts"]
        + ["http://[::ffff:1.2.3.4]:80/", "ftp://u:p@h/%20", "a:", "x:/y//z", "h://a?b/c?d#?/"],
        ["//a.org/b", "/b", "b", "1a:b", "http://a b", "http://[::1/", "http://a/%2", "a:b#c#d"]
        + ["http://a:8x/", "a:\\b", "http://\u00fc.de", "a:b\n", ":a", 'a:"b"'],
    ),
    "uuid": (
        ["123e4567-e89b-12d3-a456-426614174000", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF"],
        ["123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400"]
        + ["g23e4567-e89b-12d3-a456-426614174000", "{123e4567-e89b-12d3-a456-426614174000}"],
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_a_format_admits(name: str) -> None:
    right, wrong = RIGHT[name]
    made = matcher({"type": "string", "format": name})
    assert [text for text in right if not takes(made.deep_copy(), json.dumps(text))] == []
    assert [text for text in wrong if takes(made.deep_copy(), json.dumps(text))] == []


def changed(draw: random.Random, text: str, signs: str) -> str:
    """With a character more, less or other; or as it is."""
    at, way = draw.randrange(len(text) + 1), draw.random()
    other = draw.choice(signs)
    if way < 0.2:
        return text
    return text[:at] + (other if way < 0.75 else "") + text[at + (way > 0.4) :]


SIGNS = {"ipv4": "0123456789.", "ipv6": "0123456789abF.:::", "date": "0123456789-"}
SIGNS |= {"uuid": "0123456789abF-", "email": "a.@-b1"}


@pytest.mark.parametrize("name", SIGNS)
def test_beside_jsonschema(name: str) -> None:
    import jsonschema

    draw = random.Random(name)
    theirs = jsonschema.Draft202012Validator.FORMAT_CHECKER
    made = matcher({"type": "string", "format": name})
    found = []
    for _ in range(pick(150, 3000)):
        text = draw.choice(RIGHT[name][0] + RIGHT[name][1])
        if name == "date" and draw.random() < 0.5:
            day = datetime.date.fromordinal(draw.randint(1, 3_600_000))
            text = f"{day.year:04}-{day.month:02}-{draw.choice([day.day, 28, 29, 30, 31]):02}"
        for _ in range(draw.randrange(3)):
            text = changed(draw, text, SIGNS[name])
        found.append(takes(made.deep_copy(), json.dumps(text)))
        fits = theirs.conforms(text, name)
        # It takes a uuid with its hyphens elsewhere, and whatever has an @ for an address.
        assert found[-1] <= fits if name in ("uuid", "email") else found[-1] == fits, text
    assert min(found.count(True), found.count(False)) > len(found) // 10


def is_time(text: str) -> bool:
    """RFC 3339's time, by arithmetic."""
    parts = re.fullmatch(
        r"(\d\d):(\d\d):(\d\d)(?:\.\d{1,9})?(?:[Zz]|([+-])(\d\d):(\d\d))", text, re.ASCII
    )
    if parts is None:
        return False
    hour, minute, second = map(int, parts.group(1, 2, 3))
    away, past = int(parts[5] or 0), int(parts[6] or 0)
    if max(hour, away) > 23 or max(minute, past) > 59 or second > 60:
        return False
    return second < 60 or (hour, minute, away, past) == (23, 59, 0, 0)


def test_times_beside_arithmetic() -> None:
    draw = random.Random(3)
    made = matcher({"type": "string", "format": "time"})
    found = []
    for _ in range(pick(150, 3000)):
        hour, minute, second = draw.choice([23, 12, 25]), draw.choice([59, 0]), draw.randint(57, 61)
        text = f"{hour}:{minute:02}:{second}" + draw.choice(["", ".5", ".000000001"])
        text += draw.choice(["Z", "+00:00", "-00:00", "+01:00", "-23:59", "+24:00", "-00:60", ""])
        text = changed(draw, text, "0123456789:+-.Z") if draw.random() < 0.3 else text
        found.append(takes(made.deep_copy(), json.dumps(text)))
        assert found[-1] == is_time(text), text
    assert min(found.count(True), found.count(False)) > len(found) // 10


ESCAPED = [
    ({"type": "string"}, r'"\ud83d\ude00\u0041"', r'"\ud83d"'),
    ({"type": "string", "maxLength": 1}, r'"\uD83D\uDE00"', r'"\ud83d\ude00x"'),
    ({"type": "string", "minLength": 2}, r'"\u00E9\n"', r'"\ud83d\ude00"'),
    ({"type": "string", "pattern": "^.$"}, r'"\uD83d\ude4F"', r'"\u000a"'),
    (
        {"type": "string", "pattern": r"^[\u{1f600}-\u{1f64f}]$"},
        r'"\ud83d\ude4F"',
        r'"\ud83d\ude50"',
    ),
    ({"const": 'a/"\U0001f600'}, r'"a\/\"\uD83D\uDE00"', r'"a/\"\ud83d\ude01"'),
    ({"enum": ["x", "\u00e9"]}, r'"\u00e9"', r'"\u00ea"'),
    ({"type": "object", "properties": {"\u00e9": {}}}, r'{"\u00E9":1}', r'{"\u00Ea":1}'),
    (
        {"properties": {"\u00e9": {}}, "additionalProperties": {}, "type": "object"},
        r'{"\u00e9":1,"\u00ea":2}',
        r'{"e":1,"\u00e9":2}',
    ),
]


@pytest.mark.parametrize(("schema", "fine", "wrong"), ESCAPED)
def test_escapes_are_characters(schema: dict, fine: str, wrong: str) -> None:
    made = matcher(schema)
    assert takes(made.deep_copy(), fine) and not takes(made.deep_copy(), wrong)
    written = json.dumps(json.loads(fine), ensure_ascii=False, separators=(",", ":"))
    assert takes(made.deep_copy(), written)


@pytest.mark.parametrize(
    ("schema", "fine", "wrong"),
    [
        ({"type": "string", "format": "date"}, '"2024', '"\\'),
        ({"type": "string", "pattern": "^[a-z/]+$"}, r'"a\/', r'"\u'),
        ({"type": "string", "pattern": "^[\n-z]+$"}, r'"\u001', r'"\u004'),
        ({"const": "a<\u00e9"}, r'"a<\u00e', r'"a\u'),
        ({"type": "object", "properties": {"a\u00e9": {}}}, r'{"a\u00e', r'{"\u'),
    ],
)
def test_ascii_has_no_codes(schema: dict, fine: str, wrong: str) -> None:
    """Weak models would write them to the end, once they began."""
    for text in (fine, wrong):
        ids = list(text.encode())
        assert (matcher(schema).try_consume_tokens(ids) == len(ids)) == (text == fine)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "string", "minLength": 1, "maxLength": 9},
        {"type": "string", "pattern": "[\U00010000-\U0010ffff]"},
        {"type": "string", "pattern": "^."},
        {"type": "object", "additionalProperties": {}},
    ],
)
def test_no_half_of_a_pair(schema: dict) -> None:
    begin = '"' if schema["type"] == "string" else '{"'
    for half in (r"\udc00", r"\ud83dx", r"\ud83d\u0041", r"\ud83d\ud83d"):
        at = matcher(schema)
        ids = list((begin + half).encode())
        assert at.try_consume_tokens(ids) < len(ids), half
