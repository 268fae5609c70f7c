"""Byte-level BPE against the tokenizers package, and against llama.cpp's published vectors."""

from __future__ import annotations

import importlib
import random
import re
import struct
import unicodedata
from functools import cache
from pathlib import Path

import gguf
import pytest
from circles import pick
from powerinfer_cpp.convert.vocab.pretokenizer import NFC
from pretokenizers import CASED, ENDING, LING, STEPS, WORDS
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from powerinfer_cpp import Llama, UnsupportedModelError

NORMAL, CONTROL, USER_DEFINED = (
    int(t) for t in (gguf.TokenType.NORMAL, gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED)
)

# ---- Rules, as expressions of their tokenizer.json ----------------------------------------------

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = WORDS % "{1,3}"
KIMI = r"\p{Han}+|" + CASED.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace(r"\n/]", r"\n]")
IDEOGRAPHS = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_MARKS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
# Code points, because a tool that normalises this file would merge some of the letters.
DEEPSEEK_LETTERS = """
41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A
38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF
1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D
1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4
1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F
2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F
A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3
104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943
"""


def character_class(ranges: str) -> str:
    parts = ("-".join(chr(int(end, 16)) for end in item.split("-")) for item in ranges.split())
    return "[" + "".join(parts) + "]"


RULES: dict[str, list] = {  # texts, or with what becomes of their matches
    "gpt-2": [GPT2],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "starcoder": [r"\p{N}", GPT2],
    "llama-bpe": [LLAMA3],
    "qwen2": [WORDS % ""],
    "qwen35": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
        r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "gpt-4o": [CASED],
    "tekken": [CASED.replace(ENDING + "?", "").replace("{1,3}", "")],
    "seed-coder": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}|"
        r" ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "deepseek-llm": [
        "[\r\n]",
        r"\s?" + character_class(DEEPSEEK_LETTERS) + "+",
        DEEPSEEK_MARKS,
        r"\s+$",
        IDEOGRAPHS,
        r"\p{N}+",
    ],
    "kimi-k2": [KIMI],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", IDEOGRAPHS, r"\p{N}"],
    **STEPS,
}
SAME = {  # further names and the rule that each shares
    "gpt-2": "phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat roberta-bpe jina-v2-de",
    "starcoder": "mellum2 refact command-r smollm codeshell exaone minerva-7b",
    "llama-bpe": "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    "gpt-4o": "llama4 kanana2 minimax-m2",
    "deepseek-v3": "hunyuan-dense joyai-llm",
    "qwen2": "bailingmoe bailingmoe2 llada-moe deepseek-r1-qwen megrez kormo stablelm2 hunyuan"
    " grok-2 solar-open",
    "tiny_aya": "cohere2moe",
}

# ---- Texts in many scripts ----------------------------------------------------------------------

LETTERS = [  # first and last of a stretch of letters, most of them assigned since Unicode 1.1
    *((0x61, 0x7A), (0x41, 0x5A), (0xE0, 0x17E), (0x391, 0x3C9), (0x410, 0x44F), (0x5D0, 0x5EA)),
    *((0x621, 0x64A), (0x905, 0x939), (0x985, 0x9B9), (0xE01, 0xE2E), (0x10D0, 0x10F0)),
    *((0x1F00, 0x1FFC), (0x2100, 0x214F), (0x2C00, 0x2CF3), (0x3041, 0x30FE), (0x4E00, 0x4E80)),
    *((0xAC00, 0xAC80), (0xFB00, 0xFB17), (0xFF21, 0xFF5A), (0x10400, 0x1044F), (0x20000, 0x20040)),
    *((0x1780, 0x17A2), (0x1000, 0x1021), (0xE94, 0xE97), (0x1100, 0x1112), (0xFF66, 0xFF9D)),
]
MARKS = [(0x300, 0x36F), (0x591, 0x5BD), (0x64B, 0x652), (0x93C, 0x94D), (0xE31, 0xE4E)]
DIGITS = [0x30, 0x660, 0x6F0, 0x966, 0xE50, 0xFF10, 0x1D7CE, 0xB2, 0x2160, 0x2460, 0x3220]
SPACES = [
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    " \n",
    "\n ",
    "\x0b",
    "\x0c",
    "\x85",
    "\xa0",
]
SPACES += ["\u1680", "\u2003", "\u2028", "\u2029", "\u202f", "\u3000", "\u200b", "\ufeff", "\x1f"]
ENDS = "s t re ve m ll d S T RE Ve M lL D \u017f r v l se st x \u212a ' s' \u0130"
CONTRACTIONS = [quote + end for quote in "''\u2019" for end in ENDS.split(" ")]
SYMBOLS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\x7f\x00¡§«·»¿€£¬±×÷‘’“”…–—、。，！（）～؟،।॥߷𐄀∑√≠→"
EMOJI = ["😀", "👩‍👩‍👧", "👍🏽", "🇩🇪", "❤️", "1️⃣", "🏴‍☠️", "🧑🏿‍🚀"]


def text(rng: random.Random) -> str:
    def word() -> str:
        first, last = rng.choice(LETTERS)
        letters = [chr(rng.randint(first, last)) for _ in range(rng.randint(1, 8))]
        if rng.random() < 0.3:
            first, last = rng.choice(MARKS)
            letters.insert(rng.randint(0, len(letters)), chr(rng.randint(first, last)))
        return "".join(letters)

    def number() -> str:
        zero = rng.choice(DIGITS)
        return "".join(chr(zero + rng.randint(0, 9)) for _ in range(rng.randint(1, 8)))

    def anything() -> str:
        while True:
            c = chr(rng.choice((rng.randrange(0x3000), rng.randrange(0x110000))))
            # What Unicode 13 does not know the package and the table may know differently.
            if unicodedata.category(c) not in ("Cn", "Cs", "Co"):
                return c

    kinds = [
        word,
        word,
        number,
        anything,
        lambda: rng.choice(SPACES),
        lambda: rng.choice(SPACES) * rng.randint(1, 5),
        lambda: rng.choice(CONTRACTIONS),
        lambda: rng.choice(["it", "WE", "l\u00ed"]) + rng.choice(CONTRACTIONS),
        lambda: "".join(rng.choice(SYMBOLS) for _ in range(rng.randint(1, 4))),
        lambda: rng.choice(EMOJI),
        lambda: rng.choice("e \u0939n") + chr(rng.randint(0x300, 0x36F)),
    ]
    space = rng.choice(["", " ", " ", None])
    parts = [rng.choice(kinds)() for _ in range(rng.choice((1, 2, 5, 20, 60)))]
    return (rng.choice(SPACES) if space is None else space).join(parts)


@cache
def texts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return [text(rng) for _ in range(count)]


# ---- A vocabulary in which every piece boundary shows -------------------------------------------


@cache
def vocabulary() -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens and merges trained across all boundaries; then every pair of bytes is also a token."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=3000, initial_alphabet=alphabet, show_progress=False, max_token_length=12
    )
    learner.train_from_iterator(texts(1, 3000), trainer)
    ids = learner.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    assert tokens[:256] == sorted(alphabet)
    # Not quite the trainer's merges, which it keeps to itself, but both sides get the same ones.
    merges = []
    for token in tokens[256:]:
        cuts = ((token[:i], token[i:]) for i in range(1, len(token)))
        merges.append(min(((a, b) for a, b in cuts if a in ids and b in ids), key=later_part(ids)))
    pairs = [(a, b) for a in tokens[:256] for b in tokens[:256] if a + b not in ids]
    random.Random(2).shuffle(pairs)
    return tokens + [a + b for a, b in pairs], merges + pairs


def later_part(ids: dict[str, int]):
    return lambda pair: max(ids[pair[0]], ids[pair[1]])


def write(path: Path, pre: str | None, tokens: list[str], merges: list[str], **more) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(more.pop("types", [NORMAL] * len(tokens)))
    writer.add_token_merges(merges)
    for key, value in more.items():
        add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
        add(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def opened(path: Path) -> Llama:
    return Llama(str(path), vocab_only=True, verbose=False)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """large(pre) is the engine with that vocabulary and rule."""
    tokens, merges = vocabulary()
    folder = tmp_path_factory.mktemp("bpe")

    @cache
    def written(pre: str | None) -> bytes:
        path = write(folder / "v.gguf", pre, tokens, [f"{a} {b}" for a, b in merges])
        return path.read_bytes()

    def field(pre: str) -> bytes:
        return b"tokenizer.ggml.pre" + struct.pack("<IQ", 8, len(pre)) + pre.encode()

    @cache
    def engine(pre: str | None) -> Llama:
        data, path = written(pre and "gpt-2"), folder / f"{pre}.gguf"
        if pre:  # written once: that takes longer than to open it
            assert data.count(field("gpt-2")) == 1
            data = data.replace(field("gpt-2"), field(pre))
        path.write_bytes(data)
        return opened(path)

    return engine


def package(rules: list, ignore_merges: bool) -> Tokenizer:
    tokens, merges = vocabulary()
    model = models.BPE({t: i for i, t in enumerate(tokens)}, merges, ignore_merges=ignore_merges)
    tokenizer = Tokenizer(model)
    steps = [(rule, "isolated") if isinstance(rule, str) else rule for rule in rules]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(rule), behavior) for rule, behavior in steps),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def runs() -> list[str]:
    """Runs of one thing, of lengths at which rules change."""
    lengths = pick((7, 511, 514), (4, 7, 16, 17, 31, 509, 510, 511, 512, 513, 1021, 1027))
    kinds = (" ", "\t", "1", "\u0663", "\u0e01", "\n", "\r\n", "a ", "\u00b2")
    ends = ("", "x", "1", "!", "_", "\n", "\u2167", "\u00b2", "\u0301", "\u200d")
    return [f"{kind * n}{end}" for n in lengths for kind in kinds for end in ends]


@pytest.mark.parametrize("pre", [*RULES, "bailingmoe"])
def test_same_ids_as_tokenizers(large, pre):
    rules = RULES.get(pre, LING)
    llm, reference = large(pre), package(rules, pre in ("llama-bpe", "tekken"))
    strings = texts(3, pick(500, 2000)) + (runs() if pre in STEPS else [])
    if pre in NFC:
        reference.normalizer = normalizers.NFC()
    for string, expected in zip(strings, reference.encode_batch(strings), strict=True):
        ids = llm.tokenize(string.encode(), add_bos=False)
        assert ids == expected.ids, string
        assert llm.detokenize(ids) == (composed(string) if pre in NFC else string).encode()


def composed(text: str) -> str:
    return normalizers.NFC().normalize_str(text)


def composed_bytes(data: bytes) -> bytes:
    """The text between bytes that are none, in NFC."""
    parts = re.split("([\udc80-\udcff]+)", data.decode(errors="surrogateescape"))
    parts[::2] = map(composed, parts[::2])
    return "".join(parts).encode(errors="surrogateescape")


def test_names_that_share_a_rule(large):
    strings = list(map(composed, texts(4, 60)))  # some names ask for that

    def ids(pre: str) -> str:
        return str([large(pre).tokenize(s.encode(), add_bos=False) for s in strings])

    assert len({ids(rule) for rule in RULES}) == len(RULES)  # every rule shows in these texts
    for rule, names in SAME.items():
        for name in names.split()[:2]:
            assert ids(name) == ids(rule), name


# ---- Vocabularies of a few tokens ----------------------------------------------------------------

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def small(path: Path, pre: str | None = "gpt-2", extra=(), merges=(), **more) -> Llama:
    """The bytes, then further texts with their types."""
    tokens = BYTES + [t for t, _ in extra]
    types = [NORMAL] * 256 + [kind for _, kind in extra]
    return opened(write(path / "v.gguf", pre, tokens, ["a b", *merges], types=types, **more))


@pytest.mark.parametrize("rule", SAME)
def test_every_name_is_known(tmp_path, rule):
    string = "I'll 12345 caf\u00e9 \n\n x".encode()
    for name in SAME[rule].split():
        with small(tmp_path, name, [("ab", NORMAL)]) as llm:
            assert llm.detokenize(llm.tokenize(string, add_bos=False)) == string, name


def test_unknown_name_is_refused(tmp_path):
    for name in ("gpt-5", " ", "gpt-2 phi-2", "GPT-2"):
        with pytest.raises(UnsupportedModelError, match="pre-tokenizer"):
            small(tmp_path, name)


def test_missing_name_is_gpt2(large):
    for string in texts(5, 200):
        ids = large("gpt-2").tokenize(string.encode(), add_bos=False)
        assert large(None).tokenize(string.encode(), add_bos=False) == ids


def test_special_tokens(tmp_path):
    extra = [
        ("<|end|>", CONTROL),
        ("<tag>", USER_DEFINED),
        ("ab", NORMAL),
        ("\u00e9 \u4e00", NORMAL),
    ]
    with small(tmp_path, "gpt-2", extra, eos_token_id=256, bos_token_id=256) as llm:
        end, tag, ab, raw = 256, 257, 258, 259
        assert llm.tokenize(b"ab<|end|>", add_bos=False, special=True) == [ab, end]
        plain = llm.tokenize(b"ab<|end|><tag>ab", add_bos=False)
        assert end not in plain and plain[-2:] == [tag, ab]
        assert llm.detokenize(plain) == b"ab<|end|><tag>ab"
        # A text that is not made of the bytes' characters stands for itself.
        assert llm.detokenize([raw]) == "\u00e9 \u4e00".encode()
        assert llm.token_eos() == end and llm.token_nl() == BYTES.index("\u010a")


def test_ends_of_turns(tmp_path):
    """Of families whose files may name only the end of a text."""
    bars = ["<|eot|>", "<|role_end|>", "<|endofturn|>", "<|assistant_end|>"]
    others = ["[|endofturn|]", "</assistant>", "[e~[", "<\uff5chy_eos:opensource\uff5c>"]
    none = ["<|eom|>", "<|message|>"]  # more of the answer follows
    for kind in (CONTROL, USER_DEFINED):
        extra = [(text, kind) for text in (*bars, *others, *none)]
        with small(tmp_path, "gpt-2", extra) as llm:
            ends = [llm._model.ends(256 + i) for i in range(len(extra))]
        assert ends == [True] * 4 + [kind == CONTROL] * 4 + [False] * 2


def test_bos_of_the_families(tmp_path):
    extra = [("<s>", CONTROL), ("ab", NORMAL)]

    def starts(pre: str | None, **more) -> bool:
        with small(tmp_path, pre, extra, **more) as llm:
            return llm.tokenize(b"a")[0] == llm.token_bos()

    for pre in ("gpt-2", "qwen2", "falcon", "dbrx", "deepseek-llm", None):
        assert not starts(pre, bos_token_id=256)
        assert starts(pre, bos_token_id=256, add_bos_token=True)
    for pre in ("llama-bpe", "llama3", "falcon3"):
        assert starts(pre, bos_token_id=256)
        assert not starts(pre, bos_token_id=256, add_bos_token=False)


def test_whole_pieces_that_are_tokens(tmp_path):
    # Only Llama 3's rule takes "xyz" although no merges lead to it; a control token it never takes.
    extra = [("ab", NORMAL), ("xyz", NORMAL), ("bye", CONTROL), ("\u0120xyz", NORMAL)]
    for pre, count in (("llama-bpe", 1), ("dbrx", 3), ("gpt-2", 3)):
        with small(tmp_path, pre, extra) as llm:
            assert len(llm.tokenize(b"xyz", add_bos=False)) == count
            assert len(llm.tokenize(b"bye", add_bos=False)) == 3
    with small(tmp_path, "llama-bpe", extra) as llm:
        assert llm.tokenize(b"xyz xyz", add_bos=False) == [257, 259]


def test_merges_that_make_no_token(tmp_path):
    # "bc" is a step towards "abc" but no token itself: what stays of it is spelt.
    merges = ["b c", "a bc", "bc d", "b c", "", " ", "a", "a ", " a", "b c d", "\u4e00 a"]
    with small(tmp_path, "gpt-2", [("abc", NORMAL)], merges) as llm:
        a, b, c, d = (BYTES.index(x) for x in "abcd")
        assert llm.tokenize(b"abc", add_bos=False) == [a, b, c]  # "a b" goes first, and is lost
        assert llm.tokenize(b"bcd", add_bos=False) == [b, c, d]
        assert llm.tokenize(b"cbc", add_bos=False) == [c, b, c]


def test_any_bytes_come_back(large):
    rng = random.Random(6)
    for pre in RULES:
        for _ in range(200):
            string = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 60)))
            back = large(pre).detokenize(large(pre).tokenize(string, add_bos=False))
            assert back == (composed_bytes(string) if pre in NFC else string)


@pytest.mark.parametrize(
    "pre", pick(("gpt-2", "deepseek-llm", "tiny_aya", "jais-2", "afmoe"), tuple(RULES))
)
def test_long_texts_take_no_quadratic_time(large, pre):
    for string in (
        b"a" * 200_000,
        b" " * 200_000,
        b" \n" * 100_000,
        b" " * 200_000 + b"x",
        b"   x" * 50_000,
        b"\xff" * 200_000,
        b"'" * 200_000,
        b"1" * 200_000,
        b"A" * 200_000,
        b"Aa" * 100_000,
        "\u0301A".encode() * 70_000,
        b"1" * 200_000 + b"a",
        b"a " * 100_000,
        "\u0e01\u0e81".encode() * 30_000,
    ):
        back = large(pre).detokenize(large(pre).tokenize(string, add_bos=False))
        same = back == (composed_bytes(string) if pre in NFC else string)
        assert same  # pytest would take minutes to show where such long texts differ


# ---- Published data ------------------------------------------------------------------------------


@pytest.mark.shared
@pytest.mark.parametrize("name", ["gpt-2", "falcon", "starcoder", "deepseek-llm", "gemma-4"])
def test_vectors_of_llama_cpp(shared, name):
    file = shared / "fixtures" / "vocab" / f"{name}.gguf"
    strings = file.with_suffix(".gguf.inp").read_bytes().split(b"\n__ggml_vocab_test__\n")
    lines = file.with_suffix(".gguf.out").read_text().split("\n")
    with opened(file) as llm:
        for string, line in zip(strings, lines, strict=False):
            ids = llm.tokenize(string, add_bos=False)
            assert ids == [int(i) for i in line.split()], string
            assert llm.detokenize(ids) == string


def test_unicode_tables(root, monkeypatch):
    monkeypatch.syspath_prepend(root / "scripts")
    script = importlib.import_module("make_unicode_tables")
    table = script.OUTPUT.read_text()
    if unicodedata.unidata_version == "16.0.0":
        assert script.table(unicodedata) == table
    # What both know is of the same kind, whatever this Python's version of Unicode is.
    kinds = {}
    for item in table.replace("\n", " ").split("{")[1:]:
        first, last, kind = item.split("}")[0].split(", ")
        kinds.update(dict.fromkeys(range(int(first, 16), int(last, 16) + 1), kind))
    assert len(kinds) > 140_000
    for point in range(0x110000):
        if unicodedata.category(chr(point)) != "Cn":
            assert script.kind(point, unicodedata) == kinds.get(point, ""), hex(point)
