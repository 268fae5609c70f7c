#!/usr/bin/env python3
"""Write unicode_tables.inc in powerinfer_cpp/src/tokenizer/unicode: which code points are letters
of which case, marks, numbers, punctuation, symbols or white space.

  make_unicode_tables.py [--module unicodedata2]

The checked-in table is for Unicode 16.0, the version of the tokenizers package (Oniguruma).
Python's own `unicodedata` has it since 3.14; for an older Python the package unicodedata2==16.* has
the same functions.
"""

from __future__ import annotations

import argparse
import importlib
import pathlib
import sys
from types import ModuleType

FOLDER = pathlib.Path(__file__).parents[1] / "powerinfer_cpp/src/tokenizer/unicode"
OUTPUT = FOLDER / "unicode_tables.inc"


def kind(code_point: int, data: ModuleType) -> str:
    """LU, LL and LO for upper case with title case, lower case and other letters; ND, NL and NO for
    digits, numbers that are letters, and others; M or P; Y for symbols; S for white space; "" for
    anything else."""
    category = data.category(chr(code_point))
    # The property White_Space: the separators, and these controls.
    if category[0] == "Z" or code_point in (*range(0x09, 0x0E), 0x85):
        return "S"
    if category[0] == "L":
        return {"Lu": "LU", "Lt": "LU", "Ll": "LL"}.get(category, "LO")
    if category[0] == "N":
        return category.upper()
    return {"S": "Y"}.get(category[0], category[0] if category[0] in "MP" else "")


def ranges(data: ModuleType) -> list[tuple[int, int, str]]:
    """First and last code point of each longest run of one kind, in order."""
    found: list[tuple[int, int, str]] = []
    for code_point in range(sys.maxunicode + 1):
        this = kind(code_point, data)
        if found and found[-1][2] == this and found[-1][1] == code_point - 1:
            found[-1] = (found[-1][0], code_point, this)
        elif this:
            found.append((code_point, code_point, this))
    return found


def table(data: ModuleType) -> str:
    lines = [
        f"// Unicode {data.unidata_version}. Made by scripts/make_unicode_tables.py; do not edit.",
        "// clang-format off",
    ]
    line = ""
    for first, last, this in ranges(data):
        item = f"{{0x{first:X}, 0x{last:X}, {this}}},"
        if len(line) + 1 + len(item) > 100:
            lines.append(line)
            line = ""
        line += (" " if line else "") + item
    return "\n".join([*lines, line, "// clang-format on", ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--module", default="unicodedata", help="module with the data")
    OUTPUT.write_text(table(importlib.import_module(parser.parse_args().module)))


if __name__ == "__main__":
    main()
