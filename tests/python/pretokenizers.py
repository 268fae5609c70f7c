"""Expressions of pre-tokenisers, as tokenizer.json has them."""

from __future__ import annotations

ENDING = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = (  # of Llama 3 and Qwen 2, but for how many digits stand together
    rf"{ENDING}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = (  # of GPT-4o
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{ENDING}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{ENDING}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SIZES = "".join(rf"\s{{{size}}}(?!\S)|" for size in (512, 256, 128, 64, 32, 16, 8, 4))
_SCRIPTS = (
    r"\u4E00-\u9FFF\u3040-\u309F\u30A0-\u30FF\u3400-\u4DBF\uf900-\uFAFF\uFF65-\uFF9F\u2F00-\u2FDF",
    *(r"\u0E00-\u0E7F", r"\u0E80-\u0EFF", r"\u1780-\u17FF"),
    *(r"\u1000-\u109F\uAA60-\uAA7F\uA9E0-\uA9FF", r"\uAC00-\uD7AF\u1100-\u11FF"),
)


def _isolated(*expressions: str) -> list[tuple[str, str]]:
    return [(expression, "isolated") for expression in expressions]


# Steps of families of 2025 and 2026: each an expression and what becomes of its matches.
STEPS: dict[str, list[tuple[str, str]]] = {
    "nanochat": _isolated(_LING % "{1,2}"),
    "jais-2": _isolated(
        (WORDS % "{1,3}").replace(r"\s+(?!\S)|\s+", rf"{_SIZES}\s{{1,2}}(?!\S)|\s{{1}}")
    ),
    "tiny_aya": _isolated(r"\d{1,3}(?=(?:\d{3})*\b)", CASED),
    "laguna": [
        (r"(?:\r?\n)+(?!\r?\n)", "merged_with_next"),
        *_isolated(WORDS % ""),
    ],
    "exaone-moe": _isolated(
        ENDING + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "afmoe": _isolated(
        r"\p{Nd}{1,510}(?=(?>\p{Nd}{510})*(?:\P{Nd}|$))|\G\p{Nd}{510}",
        r"\A\p{Nd}{1,2}(?=\p{Nd}{3}+\z)",
        r"\A\p{Nd}{3}|\G\p{Nd}{3}",
        f"(?:{'|'.join(f'[{script}]+' for script in _SCRIPTS)})",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
        r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
}
# Ling's is that of Qwen 2 in other words.
LING = _isolated(_LING % "")
