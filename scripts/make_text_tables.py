#!/usr/bin/env python3
"""Write what normal forms of Unicode and WordPiece do with each code point, as the package
tokenizers has it: unicode/normal_forms.inc and wordpiece.inc in powerinfer_cpp/src/tokenizer.

  make_text_tables.py

The package's own tables are old ones (canonical decompositions and marks of Unicode 9), and what
vocabularies were trained with, so they are asked for and not those of a standard. Written with
tokenizers 0.23; combining classes come from `unicodedata`, for the marks that the package orders.
"""

from __future__ import annotations

import pathlib
import unicodedata
from collections.abc import Callable, Iterable

from tokenizers import normalizers, pre_tokenizers

FOLDER = pathlib.Path(__file__).parents[1] / "powerinfer_cpp/src/tokenizer"
POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
HANGUL = range(0xAC00, 0xD7A4)  # which normal_forms.cpp computes

decompose: Callable[[str], str] = normalizers.NFD().normalize_str
compose: Callable[[str], str] = normalizers.NFC().normalize_str


def bert(**on: bool) -> Callable[[str], str]:
    """One step of the normaliser."""
    off = dict.fromkeys(("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"), False)
    normalise: Callable[[str], str] = normalizers.BertNormalizer(**(off | on)).normalize_str
    return normalise


def pairs() -> tuple[list[list[int]], list[list[int]]]:
    """[c, first, second] of each code point that is two others, or another one (second 0), which
    may be two in turn: first those that composition makes, then the others."""
    whole = {c: decompose(chr(c)) for c in POINTS if c not in HANGUL}
    whole = {c: text for c, text in whole.items() if text != chr(c)}
    of = {text: c for c, text in sorted(whole.items(), reverse=True)}
    both: list[list[int]] = []
    one_way: list[list[int]] = []
    for c, text in whole.items():
        before = text[:-1]
        first = ord(before) if len(before) == 1 else of.get(before, 0)
        row = [c, first, ord(text[-1])] if before else [c, ord(text), 0]
        assert before == "" or first, f"U+{c:X}"
        (both if compose(text) == chr(c) else one_way).append(row)
    return both, one_way


def classes() -> list[list[int]]:
    """[first, last, class] of marks that are brought into order."""
    high, low = "\u0345", "\u0315"  # of class 240, which is the highest one, and 232
    found: list[list[int]] = []
    for c in POINTS:
        mark = chr(c)
        if decompose(high + mark) != mark + high and decompose(mark + low) != low + mark:
            continue
        number = unicodedata.combining(mark)
        assert number or decompose(mark) != mark, f"U+{c:X}"
        if not number or decompose(mark) != mark:
            continue
        if found and found[-1][1] == c - 1 and found[-1][2] == number:
            found[-1][1] = c
        else:
            found.append([c, c, number])
    return found


def runs(points: Iterable[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for c in points:
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return found


def where(holds: Callable[[str], bool]) -> list[list[int]]:
    return runs(c for c in POINTS if holds(chr(c)))


def lower_cases() -> list[list[int]]:
    """[first, last, step, distance]: of first, first + step, ... and last, what is added."""
    lower = bert(lowercase=True)
    found: list[list[int]] = []
    for c in POINTS:
        text = lower(chr(c))
        if text == chr(c):
            continue
        if len(text) > 1:
            assert (c, text) == (0x130, "i\u0307")
            continue
        distance = ord(text) - c
        last = found[-1] if found else [0, 0, 0, 0]
        step = c - last[1]
        if last[3] == distance and step <= 2 and last[2] in (0, step):
            last[1:3] = [c, step]
        else:
            found.append([c, c, 0, distance])
    return [[first, last, step or 1, distance] for first, last, step, distance in found]


def table(name: str, comment: str, rows: list[list[int]]) -> list[str]:
    columns = len(rows[0])
    lines = [f"// {comment}", f"constexpr int32_t {name}[][{columns}] = {{"]
    line = ""
    for row in rows:
        item = "{" + ", ".join(f"0x{v:X}" if v >= 10 else str(v) for v in row) + "},"
        if len(line) + 1 + len(item) > 100:
            lines.append(line)
            line = ""
        line += (" " if line else "") + item
    return [*lines, line, "};"]


def write(file: str, *tables: list[str]) -> None:
    head = ["// Made by scripts/make_text_tables.py; do not edit.", "// clang-format off"]
    lines = [*head, *(line for each in tables for line in each), "// clang-format on", ""]
    (FOLDER / file).write_text("\n".join(lines))


def main() -> None:
    both, one_way = pairs()
    write(
        "unicode/normal_forms.inc",
        table("kPairs", "A code point and its two parts, of which it is made again.", both),
        table("kOneWay", "The same, not made again; 0: there is no second part.", one_way),
        table("kClasses", "First and last mark, and their combining class.", classes()),
    )
    clean, strip = bert(clean_text=True), bert(strip_accents=True)
    words = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    write(
        "wordpiece.inc",
        table("kDropped", "Control characters and the like.", where(lambda c: not clean(c))),
        table("kSpaces", "White space.", where(lambda c: clean(c) == " ")),
        table(
            "kApart",
            "Ideographs that are words.",
            where(lambda c: bert(handle_chinese_chars=True)(c) != c),
        ),
        table("kMarks", "Accents.", where(lambda c: not strip(c))),
        table("kLower", "First, last, step, and what is added.", lower_cases()),
        table(
            "kPunctuation",
            "Words of one character.",
            where(lambda c: len(words(f"a{c}b")) == 3),
        ),
    )


if __name__ == "__main__":
    main()
