"""Regular expressions for decimal numbers between bounds, exact at any size."""

import decimal
from decimal import Decimal

# Nothing is rounded, in this thread and those that begin later; schema_text.py limits the digits.
decimal.DefaultContext.prec = decimal.getcontext().prec = 2000

MOST_DIGITS = 16  # of whole numbers, and of decimals, unless a schema asks for more
MOST = 10**MOST_DIGITS - 1
# Any number, with limited lengths as in llama.cpp; exponents behind one digit, as programs write
# them.
NUMBER = r"-?((0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?|[0-9](\.[0-9]{1,16})?[eE][-+]?[0-9]{1,3})"


def integers(low: int | None, high: int | None) -> str | None:
    """Whole numbers from low to high; None if there are none. A bound that is missing is one of
    MOST_DIGITS digits, or a digit more than the other bound."""
    low, high = closed(low, high)
    if low > high:
        return None
    parts = []
    if low < 0:
        parts.append(f"-({_naturals(max(1, -high), -low)})")
    if high >= 0:
        parts.append(_naturals(max(0, low), high))
    return "|".join(parts)


def closed(low: int | None, high: int | None) -> tuple[int, int]:
    """The bounds, with those that `integers` puts in place of missing ones."""
    if low is None:
        low = -MOST if high is None or high > -MOST else 10 * high
    if high is None:
        high = MOST if low < MOST else 10 * low
    return low, high


def _naturals(low: int, high: int) -> str:
    """From low to high, without a sign."""
    parts = []
    while low <= high:
        digits = len(str(low))
        end = min(high, 10**digits - 1)
        parts += _same_length(str(low), str(end))
        low = end + 1
    return "|".join(parts)


def _same_length(low: str, high: str) -> list[str]:
    if low == high:
        return [low]
    n = len(low) - 1
    if low.strip("0") == "" and high.strip("9") == "" and n:
        return [_times("[0-9]", n + 1)]
    if low[0] == high[0]:
        return [low[0] + _grouped(_same_length(low[1:], high[1:]))]
    if n == 0:
        return [f"[{low}-{high}]"]
    first, last, parts = int(low[0]), int(high[0]), []
    if low[1:].strip("0"):
        parts.append(low[0] + _grouped(_same_length(low[1:], "9" * n)))
        first += 1
    end = []
    if high[1:].strip("9"):
        end.append(high[0] + _grouped(_same_length("0" * n, high[1:])))
        last -= 1
    if first <= last:
        parts.append(f"[{first}-{last}]{_times('[0-9]', n)}")
    return parts + end


def _grouped(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({'|'.join(parts)})"


def _times(what: str, n: int) -> str:
    return what if n == 1 else f"{what}{{{n}}}"


class Bounds:
    """What a schema says of numbers: bounds, whether they are excluded, and multipleOf."""

    def __init__(self) -> None:
        self.low: Decimal | None = None
        self.high: Decimal | None = None
        self.low_open = self.high_open = False
        self.multiples: tuple[Decimal, ...] = ()

    def at_least(self, value: Decimal, is_open: bool) -> None:
        if self.low is None or (value, is_open) > (self.low, self.low_open):
            self.low, self.low_open = value, is_open

    def at_most(self, value: Decimal, is_open: bool) -> None:
        if self.high is None or (-value, is_open) > (-self.high, self.high_open):
            self.high, self.high_open = value, is_open

    def both(self, other: "Bounds") -> "Bounds":
        """Numbers within both."""
        found = Bounds()
        for one in (self, other):
            if one.low is not None:
                found.at_least(one.low, one.low_open)
            if one.high is not None:
                found.at_most(one.high, one.high_open)
        found.multiples = tuple(dict.fromkeys(self.multiples + other.multiples))
        return found

    def admits(self, value: Decimal) -> bool:
        if self.low is not None and (value < self.low or self.low_open and value == self.low):
            return False
        if self.high is not None and (value > self.high or self.high_open and value == self.high):
            return False
        return all(divides(step, value) for step in self.multiples)

    def whole(self) -> tuple[int | None, int | None]:
        """The bounds as whole numbers."""
        low = high = None
        if self.low is not None:
            low = ceiling(self.low)
            low += self.low_open and low == self.low
        if self.high is not None:
            high = -ceiling(-self.high)
            high -= self.high_open and high == self.high
        return low, high


def ceiling(value: Decimal) -> int:
    whole = int(value)
    return whole + (value > whole)


def scaled(value: Decimal) -> tuple[int, int]:
    """(n, k) with value = n / 10**k, k >= 0."""
    sign, digits, exponent = value.as_tuple()
    n = int("".join(map(str, digits)) or "0") * (-1 if sign else 1)
    assert isinstance(exponent, int)
    return (n * 10**exponent, 0) if exponent >= 0 else (n, -exponent)


def first_multiple(step: Decimal, low: Decimal) -> Decimal:
    """The least multiple of the step that is not below `low`. Exact."""
    a, b = scaled(step), scaled(low)
    most = max(a[1], b[1])
    n, m = a[0] * 10 ** (most - a[1]), b[0] * 10 ** (most - b[1])
    return Decimal(-(-m // n) * n).scaleb(-most)


def divides(step: Decimal, value: Decimal) -> bool:
    """Is the value a multiple of the step? Exact."""
    a, b = scaled(step), scaled(value)
    most = max(a[1], b[1])
    return b[0] * 10 ** (most - b[1]) % (a[0] * 10 ** (most - a[1])) == 0


def decimals(bounds: Bounds) -> str | None:
    """Numbers within bounds, with decimals of any length; None if there are none. To be combined
    with DECIMALS, which limits them."""
    low, high = bounds.low, bounds.high
    low_open, high_open = bounds.low_open, bounds.high_open
    far = Decimal(10) ** MOST_DIGITS
    if low is None:
        low, low_open = (-far, True) if high is None or high > -far else (10 * high, False)
    if high is None:
        high, high_open = (far, True) if low < far else (10 * low, False)
    if low > high or low == high and (low_open or high_open):
        return None
    parts = []
    if low < 0:
        end = (Decimal(0), True) if high >= 0 else (-high, high_open)
        if (text := _positive(*end, -low, low_open)) is not None:
            parts.append(f"-({text})")
    if high >= 0:
        begin = (Decimal(0), False) if low < 0 else (low, low_open)
        if (text := _positive(*begin, high, high_open)) is not None:
            parts.append(text)
    return "|".join(parts) or None


def _positive(low: Decimal, low_open: bool, high: Decimal, high_open: bool) -> str | None:
    whole_low, after_low = _split(low)
    whole_high, after_high = _split(high)
    if whole_low == whole_high:
        between = _between(after_low, low_open, after_high, high_open)
        return None if between is None else _with_fraction(str(whole_low), between)
    parts = [_with_fraction(str(whole_low), _above(after_low, low_open))]
    if whole_low + 1 < whole_high:
        parts.append(f"({_naturals(whole_low + 1, whole_high - 1)})(\\.[0-9]+)?")
    if (below := _below(after_high, high_open)) is not None:
        parts.append(_with_fraction(str(whole_high), below))
    return "|".join(parts)


def _split(value: Decimal) -> tuple[int, str]:
    n, k = scaled(value)
    whole, rest = divmod(n, 10**k)
    return whole, f"{rest:0{k}d}".rstrip("0") if k else ""


# Fractions: (expression for the digits behind the point, whether there may be none).
_Fraction = tuple[str, bool]


def _with_fraction(whole: str, fraction: _Fraction) -> str:
    text, may_miss = fraction
    return f"{whole}(\\.({text})){'?' if may_miss else ''}"


def _above(digits: str, is_open: bool) -> _Fraction:
    if not digits:
        return ("0*[1-9][0-9]*", False) if is_open else ("[0-9]*", True)
    rest = _above(digits[1:], is_open)[0]
    more = f"|[{int(digits[0]) + 1}-9][0-9]*" if digits[0] != "9" else ""
    return f"{digits[0]}({rest}){more}", False


def _below(digits: str, is_open: bool) -> _Fraction | None:
    if not digits:
        return None if is_open else ("0*", True)
    parts = [f"[0-{int(digits[0]) - 1}][0-9]*"] if digits[0] != "0" else []
    if (rest := _below(digits[1:], is_open)) is not None:
        parts.append(f"{digits[0]}({rest[0]})")
    return "|".join(["", *parts]), True


def _between(low: str, low_open: bool, high: str, high_open: bool) -> _Fraction | None:
    if not low and not low_open:
        return _below(high, high_open)
    if not high:
        return None if low or low_open or high_open else ("0*", True)
    a, b = int(low[:1] or 0), int(high[0])
    parts = []
    if a == b:
        rest = _between(low[1:], low_open, high[1:], high_open)
        return None if rest is None else (f"{a}({rest[0]})", False)
    if a > b:
        return None
    parts.append(f"{a}({_above(low[1:], low_open)[0]})")
    if a + 1 < b:
        parts.append(f"[{a + 1}-{b - 1}][0-9]*")
    if (end := _below(high[1:], high_open)) is not None:
        parts.append(f"{b}({end[0]})")
    return "|".join(parts), False


def fractions(step: Decimal) -> str | None:
    """Numbers that are multiples of a step by which 1 can be divided, such as 0.25; else None."""
    n, k = scaled(step)
    if k == 0 or 10**k % n or 10**k // n > 400 and n != 1:
        return None
    if n == 1:
        return f"-?(0|[1-9][0-9]*)(\\.[0-9]{{1,{k}}})?" if k <= 100 else None
    ends = {f"{i:0{k}d}".rstrip("0") for i in range(0, 10**k, n)}
    return f"-?(0|[1-9][0-9]*)(\\.({'|'.join(sorted(ends))})0*)?"


def limit(bounds: Bounds) -> str:
    """Numbers with at most MOST_DIGITS decimals, or more where a bound has more."""
    places = max([MOST_DIGITS, *(scaled(v)[1] for v in (bounds.low, bounds.high) if v is not None)])
    return f"-?[0-9]+(\\.[0-9]{{1,{places}}})?"
