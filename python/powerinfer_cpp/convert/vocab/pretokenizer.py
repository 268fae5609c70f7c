"""Finds the GGUF pre-tokeniser (tokenizer.ggml.pre) that a tokenizer.json describes.

A pre-tokeniser splits a text into pieces that merges do not cross. tokenizer.json describes it with
steps and regular expressions, a GGUF with the name of one of the engine's rules.
"""

from typing import Any

# Names that --pre accepts; pretokenizer.cpp has the rules.
PRE_NAMES = (
    "gpt-2",
    "phi-2",
    "mpt",
    "olmo",
    "falcon",
    "starcoder",
    "refact",
    "command-r",
    "smollm",
    "codeshell",
    "llama-bpe",
    "smaug-bpe",
    "dbrx",
    "chatglm-bpe",
    "qwen2",
    "qwen35",
    "stablelm2",
    "gpt-4o",
    "tekken",
    "seed-coder",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "kimi-k2",
    "bailingmoe",
    "nanochat",
    "jais-2",
    "tiny_aya",
    "laguna",
    "exaone-moe",
    "afmoe",
)

# Those with which a piece that is a token is that token, unless the file says otherwise.
IGNORE_MERGES = ("llama-bpe", "tekken")
# Those that put texts into NFC first, unless the file says otherwise.
NFC = ("qwen2", "qwen35", "deepseek-r1-qwen")

# The rule of GPT-4, with up to three digits together in Llama 3, each alone in Qwen 2.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3, _QWEN2 = _WORDS % r"\p{N}{1,3}", _WORDS % r"\p{N}"
# The same with marks as parts of words.
_QWEN35 = _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")
# That of Qwen 2 and a near one as Ling and nanochat write them.
_LING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
# Llama 3's with white space in pieces of certain sizes.
_SIZES = "".join(rf"\s{{{size}}}(?!\S)|" for size in (512, 256, 128, 64, 32, 16, 8, 4))
_JAIS2 = _LLAMA3.replace(r"\s+(?!\S)|\s+", _SIZES + r"\s{1,2}(?!\S)|\s{1}")
# Qwen 2's with words that go on over single spaces.
_EXAONE = (
    _QWEN2.replace(r"?\p{L}+", r"?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+")
    .replace(r"]+[\r\n]*", r"]+[\r\n/]?")
    .replace(r"\s*[\r\n]+", r"\s*[\r\n]")
)
# The rule of GPT-4o, of which words of one case are a part.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = r"[^\r\n\p{L}\p{N}]?%s(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
_GPT4O = (
    _CASED % f"{_UPPER}*{_LOWER}+"
    + _CASED % f"{_UPPER}+{_LOWER}*"
    + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = _GPT4O.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")
_SEED = _QWEN2.replace(r"\p{L}\p{N}]+[\r\n]*", r"\p{L}\p{N}\r\n]+").replace(r"\p{N}|", r"\p{N}{1}|")
# Han apart from the words of GPT-4o.
_KIMI = r"[\p{Han}]+|" + _GPT4O.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace("\\n/]", "\\n]")
_GPT2 = "bytes by gpt-2's rule"
_DIGITS, _NUMBERS = "each digit", "each number"
_IDEOGRAPHS = "split [\u4e00-\u9fa5"
_DEEPSEEK3 = "split [!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"

# Steps, identified by the beginning of their text, and the name. The longest deepseek expressions
# list every letter of some scripts; their beginnings are unique.
_RULES: tuple[tuple[tuple[str, ...], str], ...] = (
    ((_GPT2,), "gpt-2"),
    ((_DIGITS, _GPT2), "starcoder"),
    (("runs of punctuation", _GPT2, _NUMBERS, "split [0-9][0-9][0-9]"), "falcon"),
    (("split " + _LLAMA3,), "smaug-bpe"),
    (("split " + _QWEN2,), "qwen2"),
    (("split " + _QWEN35,), "qwen35"),
    (("split " + _GPT4O,), "gpt-4o"),
    (("split " + _TEKKEN,), "tekken"),
    (("split " + _SEED,), "seed-coder"),
    (("split " + _KIMI,), "kimi-k2"),
    (("split " + _LING % r"\p{N}",), "bailingmoe"),
    (("split " + _LING % r"\p{N}{1,2}",), "nanochat"),
    (("split " + _JAIS2,), "jais-2"),
    ((r"split \d{1,3}(?=(?:\d{3})*\b)", "split " + _GPT4O), "tiny_aya"),
    ((r"before (?:\r?\n)+(?!\r?\n)", "split " + _QWEN2), "laguna"),
    (("split " + _EXAONE,), "exaone-moe"),
    (
        (
            r"split \p{Nd}{1,510}(?=(?>\p{Nd}{510})*(?:\P{Nd}|$))|\G\p{Nd}{510}",
            r"split \A\p{Nd}{1,2}(?=\p{Nd}{3}+\z)",
            r"split \A\p{Nd}{3}|\G\p{Nd}{3}",
            r"split (?:[\u4E00-\u9FFF",
            _DEEPSEEK3,
        ),
        "afmoe",
    ),
    (
        (
            r"split \p{N}{1,3}",
            "split [\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            _DEEPSEEK3,
        ),
        "deepseek-v3",
    ),
    (
        (
            r"split [\r\n]",
            "split \\s?[A-Za-z\u00b5\u00c0-\u00d6",
            r"split \s?[!-/:-~",
            r"split \s+$",
            _IDEOGRAPHS,
            _DIGITS,
        ),
        "deepseek-llm",
    ),
    (
        (r"split [\r\n]", r"split \s?\p{L}+", r"split \s?\p{P}+", _IDEOGRAPHS, _DIGITS),
        "deepseek-coder",
    ),
)


def find_pre(tokenizer: dict[str, Any]) -> str | None:
    """The name for a tokenizer.json's pre_tokenizer; None for an unknown rule."""
    steps = _steps(tokenizer.get("pre_tokenizer"))
    for rule, name in _RULES:
        if len(rule) == len(steps) and all(
            step.startswith(part) for step, part in zip(steps, rule, strict=True)
        ):
            ignore_merges = tokenizer["model"].get("ignore_merges")
            return "llama-bpe" if name == "smaug-bpe" and ignore_merges else name
    return None


def is_byte_level(tokenizer: dict[str, Any]) -> bool:
    """Whether the vocabulary consists of bytes, not of characters."""
    return any(node.get("type") == "ByteLevel" for node in _nodes(tokenizer.get("pre_tokenizer")))


def prefixes_space(tokenizer: dict[str, Any], asked: Any) -> bool | None:
    """Whether a space is added before the text; None: before every piece of one, or after a part.

    asked: tokenizer_config.json's add_prefix_space, which counts for a tokenizer of a single step.
    """
    steps = _nodes(tokenizer.get("pre_tokenizer"))
    if len(steps) == 1 and isinstance(asked, bool):
        return asked
    adding = [bool(node.get("add_prefix_space")) for node in steps]
    return None if any(adding[1:]) else any(adding)


def _nodes(node: Any) -> list[dict[str, Any]]:
    """The steps of a pre_tokenizer, with sequences flattened."""
    if not isinstance(node, dict):
        return []
    if node.get("type") != "Sequence":
        return [node]
    inner = node.get("pretokenizers")
    return [n for part in inner for n in _nodes(part)] if isinstance(inner, list) else []


def _steps(pre_tokenizer: Any) -> list[str]:
    """A description of each step for comparison with _RULES, without steps that do nothing."""
    steps = []
    for node in _nodes(pre_tokenizer):
        kind = node.get("type")
        if kind == "ByteLevel":
            if node.get("use_regex", True):
                steps.append(_GPT2)
        elif kind == "Digits":
            steps.append(_DIGITS if node.get("individual_digits") else _NUMBERS)
        elif kind == "Punctuation" and node.get("behavior") == "Contiguous":
            steps.append("runs of punctuation")
        elif kind == "Split" and isinstance(node.get("pattern"), dict):
            # Isolating the matches or removing the rest is equal: the matches cover every text.
            cuts = (node.get("behavior"), bool(node.get("invert")))
            word = "split" if cuts in (("Isolated", False), ("Removed", True)) else f"other {node}"
            word = "before" if cuts == ("MergedWithNext", False) else word
            steps.append(f"{word} {node['pattern'].get('Regex')}")
        else:
            steps.append(f"other {node}")
    return steps
