"""Sets of characters as ranges of code points: those of ECMA-262, and how JSON writes them."""

from collections.abc import Iterable
from functools import lru_cache

LAST = 0x10FFFF

Ranges = tuple[tuple[int, int], ...]


def merged(ranges: Iterable[tuple[int, int]], negated: bool = False) -> Ranges:
    """The set in its one form: sorted ranges that do not touch; without surrogates, which are no
    characters."""
    found = list(_joined(ranges))
    if negated:
        edges = [-1, *(edge for pair in found for edge in pair), LAST + 1]
        found = [(a + 1, b - 1) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    pieces = []
    for low, high in found:
        pieces += [(low, min(high, 0xD7FF)), (max(low, 0xE000), high)]
    return tuple((low, high) for low, high in pieces if low <= high)


def _joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same numbers as sorted ranges that do not touch; those that end before they begin are
    none."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if low > high:
            continue
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def others(ranges: Ranges) -> Ranges:
    """All characters but these."""
    return merged(ranges, negated=True)


def common(some: Ranges, more: Ranges) -> Ranges:
    """The characters of both sets."""
    return others(merged(others(some) + others(more)))


ALL = others(())

# ECMA-262's classes, with the flag u and without i.
DIGIT: Ranges = ((0x30, 0x39),)
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_SINGLE = (0x20, 0xA0, 0x1680, 0x202F, 0x205F, 0x3000, 0xFEFF)
SPACE = merged([(0x09, 0x0D), (0x2000, 0x200A), (0x2028, 0x2029), *((c, c) for c in _SINGLE)])

# ---- In JSON -----------------------------------------------------------------------------------

# All but printable ASCII, which has no need of codes.
UNPRINTABLE = merged([(0, 0x1F), (0x80, LAST)])
_ESCAPED: Ranges = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))  # never as they are
_SHORT = {0x22: '"', 0x5C: "\\\\", 0x2F: "\\/", 8: "b", 12: "f", 10: "n", 13: "r", 9: "t"}


@lru_cache(500)
def spelled(ranges: Ranges, by_code: Ranges = ALL) -> str:
    r"""A regular expression for one character of a set that is not empty, as JSON may write it
    within a text: as it is, with a short escape, as \u and its code, or as a pair of surrogates.
    by_code: those that may be written by their codes."""
    ways = []
    if plain := common(ranges, others(_ESCAPED)):
        ways.append(character_class(plain))
    short = [text for code, text in _SHORT.items() if any(a <= code <= b for a, b in ranges)]
    coded = common(ranges, by_code)
    codes = _pairs(coded)
    if low := common(coded, ((0, 0xFFFF),)):
        codes.insert(0, _hexadecimal(low, 4))
    escapes = [f"[{''.join(short)}]"] if short else []
    escapes += [f"u(?:{'|'.join(codes)})"] if codes else []
    if escapes:
        ways.append(rf"\\(?:{'|'.join(escapes)})")
    return "|".join(ways)


def character_class(ranges: Ranges) -> str:
    """The set as a regular expression of the engine."""

    def one(code: int) -> str:
        c = chr(code)
        return c if c.isascii() and c.isalnum() else f"\\x{{{code:x}}}"

    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return one(ranges[0][0])
    return "[" + "".join(one(a) + (f"-{one(b)}" if b > a else "") for a, b in ranges) + "]"


def _pairs(ranges: Ranges) -> list[str]:
    """Pairs of surrogates, without the first's backslash and u."""
    by_first: dict[int, list[tuple[int, int]]] = {}  # second ones, where not all may follow
    whole: list[tuple[int, int]] = []  # first ones, where all may
    for low, high in common(ranges, ((0x10000, LAST),)):
        first, last = 0xD7C0 + (low >> 10), 0xD7C0 + (high >> 10)
        begin, end = 0xDC00 + (low & 0x3FF), 0xDC00 + (high & 0x3FF)
        if first == last:
            by_first.setdefault(first, []).append((begin, end))
            continue
        by_first.setdefault(first, []).append((begin, 0xDFFF))
        by_first.setdefault(last, []).append((0xDC00, end))
        whole.append((first + 1, last - 1))
    by_seconds: dict[Ranges, list[tuple[int, int]]] = {((0xDC00, 0xDFFF),): whole}
    for first, seconds in by_first.items():
        by_seconds.setdefault(_joined(seconds), []).append((first, first))
    return [
        rf"{_hexadecimal(_joined(firsts), 4)}\\u{_hexadecimal(seconds, 4)}"
        for seconds, firsts in by_seconds.items()
        if _joined(firsts)
    ]


def _hexadecimal(ranges: Ranges, n: int) -> str:
    """Numbers of these ranges in n hexadecimal digits."""
    size = 16 ** (n - 1) if n else 0
    if ranges == ((0, 16**n - 1),):
        return {0: "", 1: "[0-9a-fA-F]"}.get(n, f"[0-9a-fA-F]{{{n}}}")
    by_rest: dict[str, list[int]] = {}  # first digits, by the expression for the others
    for digit in range(16):
        low, high = digit * size, (digit + 1) * size - 1
        inside = tuple(
            (max(a, low) - low, min(b, high) - low) for a, b in ranges if a <= high and b >= low
        )
        if inside:
            by_rest.setdefault(_hexadecimal(inside, n - 1), []).append(digit)
    ways = [_digits(digits) + rest for rest, digits in by_rest.items()]
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"


def _digits(digits: list[int]) -> str:
    both = sorted({c for digit in digits for c in (f"{digit:x}", f"{digit:X}")})
    return both[0] if len(both) == 1 else f"[{''.join(both)}]"
