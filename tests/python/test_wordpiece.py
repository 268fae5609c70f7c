"""WordPiece and NFC against the package tokenizers; tests/engine/test_wordpiece.cpp has each step
alone."""

from __future__ import annotations

import importlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from circles import pick
from families import quiet
from gguf_files import changed
from hypothesis import given, settings
from hypothesis import strategies as st
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf
from small_encoders import BERT, LLAMA, OF_BERT, byte_pairs, make
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
from tokenizers import processors as post

from powerinfer_cpp import Llama, ModelFormatError, UnsupportedModelError

RANGES = [  # first and last: letters, marks, ideographs, what is dropped, spaces, punctuation
    *((0x61, 0x7A), (0x41, 0x5A), (0x30, 0x39), (0x20, 0x2F), (0, 0x20), (0x7F, 0xBF)),
    *((0xC0, 0x24F), (0x300, 0x362), (0x370, 0x3FF), (0x400, 0x45F), (0x5D0, 0x5EA)),
    *((0x600, 0x65F), (0x8E0, 0x8E5), (0x93C, 0x94D), (0xE31, 0xE4E), (0x1100, 0x1175)),
    *((0x1680, 0x1680), (0x180B, 0x180E), (0x1E00, 0x1EFF), (0x1F80, 0x1FFF), (0x2000, 0x206F)),
    *((0x2100, 0x212B), (0x2E3A, 0x2E5D), (0x3000, 0x3020), (0x3041, 0x30FF), (0x33FF, 0x3402)),
    *((0x4DBE, 0x4E02), (0x9FFC, 0xA001), (0xAC00, 0xAC30), (0xE000, 0xE002), (0xF900, 0xF902)),
    *((0xFAFE, 0xFB01), (0xFEFF, 0xFEFF), (0xFF01, 0xFF5E), (0xFFF9, 0xFFFD), (0x10400, 0x10427)),
    *((0x110CD, 0x110CD), (0x1D15E, 0x1D165), (0x1F600, 0x1F602), (0x1FFFF, 0x20002)),
    *((0x2A6DD, 0x2A702), (0x2B81D, 0x2B822), (0x2B91E, 0x2B922), (0x2CEAE, 0x2CEB2)),
    *((0x2F7FF, 0x2F802), (0x2FA1D, 0x2FA21), (0xE0001, 0xE0021), (0x10FFFD, 0x10FFFF)),
]
POINTS = [chr(c) for first, last in RANGES for c in range(first, last + 1)]
WHOLE = ["the", "bear", "##ing", "##ear", "don", "i\u0307", "\u00e9t\u00e9", "cafe", "##caf\u00e9"]
WORDS = (
    *("the", "Bear", "BEARING", "don't", "[SEP]", "[MASK]", "[sep]", "#", "##", "##ing"),
    *(
        "\u0130stanbul",
        "na\u00efve",
        "\u03a3\u0399\u03a3\u03a5\u03a3",
        "\ud55c\uad6d\uc5b4",
        "cafe\u0301",
    ),
    *("\u2581the", "\u2581"),
)


def package(**how: Any) -> Tokenizer:
    """Most characters are pieces, at the beginning of a word and within, so that ids tell what
    became of each; a few are not, so that some words are unknown."""
    texts = dict.fromkeys([*OF_BERT, *WHOLE])
    for c in random.Random(1).sample(POINTS, len(POINTS) * 19 // 20):
        texts.update(dict.fromkeys((c, f"##{c}")))
    vocab = {text: i for i, text in enumerate(texts)}
    made = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer(**how)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = post.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in OF_BERT])
    return made


def converted(folder: Path, tokenizer: Tokenizer, cfg: dict[str, Any] = BERT) -> Path:
    """The vocabulary as a GGUF."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return vocabulary(folder, {**cfg, "vocab_size": tokenizer.get_vocab_size()})


def vocabulary(folder: Path, cfg: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(cfg))
    return convert(folder, outfile=folder / "v.gguf", vocab_only=True, log=quiet)


def opened(path: Path) -> Llama:
    return Llama(path, vocab_only=True, verbose=False)


def random_texts(seed: int, n: int) -> list[str]:
    rng, found = random.Random(seed), []
    for _ in range(n):
        parts = []
        for _ in range(rng.randint(0, 14)):
            kind = rng.random()
            if kind < 0.25:
                parts.append(rng.choice(WORDS))
            elif kind < 0.5:
                first, last = rng.choice(RANGES)
                parts += [chr(rng.randint(first, last)) for _ in range(rng.randint(1, 5))]
            elif kind < 0.8:
                parts.append(rng.choice(POINTS))
            elif kind < 0.98:
                parts.append(rng.choice((" ", "  ", "\n", "\t")))
            else:
                parts.append(rng.choice("ab\u00e9\u0130") * rng.choice((50, 99, 100, 101, 150)))
        found.append("".join(parts))
    return found


HOW: list[dict[str, Any]] = [
    {},
    {"lowercase": False},
    {"strip_accents": False},
    {"lowercase": False, "strip_accents": True},
    {"handle_chinese_chars": False},
]


@pytest.mark.parametrize("how", HOW, ids=str)
def test_same_ids_as_tokenizers(how: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = package(**how)
    told = json.loads(tokenizer.to_str())
    plain = Tokenizer.from_str(json.dumps({**told, "added_tokens": []}))
    texts = random_texts(2, pick(2000, 20000)) + [f"a{c}b {c}" for c in POINTS]
    with opened(converted(tmp_path / "m", tokenizer)) as llm:
        for text, want in zip(texts, tokenizer.encode_batch(texts), strict=True):
            assert llm.tokenize(text.encode(), special=True) == want.ids, ascii(text)
        without = plain.encode_batch(texts, add_special_tokens=False)
        for text, want in zip(texts, without, strict=True):
            assert llm.tokenize(text.encode(), add_bos=False) == want.ids, ascii(text)


def test_any_text(tmp_path: Path) -> None:
    tokenizer = package()
    with opened(converted(tmp_path / "m", tokenizer)) as llm:

        @settings(max_examples=pick(200, 3000), deadline=None)
        @given(st.text(st.characters(exclude_categories=["Cs"])))
        def same(text: str) -> None:
            assert llm.tokenize(text.encode(), special=True) == tokenizer.encode(text).ids

        same()


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    """They vanish, as U+FFFD does, which they become where texts are read."""
    with opened(converted(tmp_path / "m", package())) as llm:
        for data in (b"the\xffbear", b"\xc3", b"a \xed\xa0\x80b", b"\xf4\x90\x80\x80c"):
            text = data.decode(errors="replace")
            assert llm.tokenize(data) == llm.tokenize(text.encode())


def test_a_file_of_lines(tmp_path: Path) -> None:
    """vocab.txt beside tokenizer_config.json, without tokenizer.json."""
    for how, told in (
        ({}, {}),
        ({"lowercase": False}, {"do_lower_case": False}),
        ({"strip_accents": False}, {"strip_accents": False}),
        ({"handle_chinese_chars": False}, {"tokenize_chinese_chars": False}),
    ):
        tokenizer = package(**how)
        vocab = tokenizer.get_vocab()
        lines = sorted(vocab, key=vocab.__getitem__)
        # A line has no end of line within.
        lines = [
            f"[unused{i}]" if set(text) & set("\r\n") else text for i, text in enumerate(lines)
        ]
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        (folder / "vocab.txt").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
        (folder / "tokenizer_config.json").write_text(json.dumps(told))
        texts = random_texts(3, 300)
        with opened(vocabulary(folder, {**BERT, "vocab_size": len(lines)})) as llm:
            for text in texts:
                want = tokenizer.encode(text).ids
                assert llm.tokenize(text.encode(), special=True) == want, ascii(text)


def test_what_no_engine_has(tmp_path: Path) -> None:
    def refused(match: str, **changes: Any) -> None:
        told = json.loads(package().to_str())
        for key, value in changes.items():
            part, _, name = key.partition("__")
            if name:
                told[part] = {**told[part], name: value}
            else:
                told[part] = value
        (folder / "tokenizer.json").write_text(json.dumps(told))
        with pytest.raises((ModelFormatError, UnsupportedModelError), match=match):
            vocabulary(folder, {**BERT, "vocab_size": 5})

    folder = tmp_path / "m"
    converted(folder, package())
    refused("without ##", model__continuing_subword_prefix="@@")
    refused("max_input_chars_per_word is not 100", model__max_input_chars_per_word=200)
    refused("no token \\[XXX\\] for unknown", model__unk_token="[XXX]")
    refused("without BERT's normalizer", normalizer=None)
    refused("without BERT's normalizer", normalizer={"type": "Lowercase"})
    refused("without BERT's normalizer", normalizer__clean_text=False)
    refused("without BERT's pre_tokenizer", pre_tokenizer={"type": "Whitespace"})
    refused("not those from 0 on", model__vocab={"[UNK]": 1, "a": 2})
    refused("no vocabulary", model__vocab={})


def test_keys_of_a_file(tmp_path: Path) -> None:
    """What is missing is as in BERT's first models; ours for ideographs is only there if needed."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "tokenizer_config.json").write_text('{"mask_token": "[MASK]"}')
    path = converted(tmp_path / "m", package())
    with Gguf(path) as file:
        found = file.metadata
    assert found["tokenizer.ggml.model"] == "bert"
    assert found["tokenizer.ggml.normalizer.lowercase"] is True
    assert found["tokenizer.ggml.normalizer.strip_accents"] is True
    assert found["tokenizer.ggml.seperator_token_id"] == 3
    assert found["tokenizer.ggml.mask_token_id"] == 4
    assert "powerinfer.tokenizer.split_ideographs" not in found
    tokens = found["tokenizer.ggml.tokens"]
    assert tokens[:5] == list(OF_BERT)
    assert "\u2581the" in tokens and "ing" in tokens
    bare = changed(
        path,
        tmp_path / "bare.gguf",
        {f"tokenizer.ggml.normalizer.{key}": None for key in ("lowercase", "strip_accents")},
    )
    text = "\u00c9t\u00e9 BEAR \u4e2d\u6587".encode()
    with opened(path) as llm, opened(bare) as other:
        assert other.tokenize(text) == llm.tokenize(text)
    cased = changed(bare, tmp_path / "cased.gguf", {"tokenizer.ggml.normalizer.lowercase": False})
    with opened(cased) as llm, opened(converted(tmp_path / "c", package(lowercase=False))) as want:
        assert llm.tokenize(text) == want.tokenize(text)


def test_detokenized(tmp_path: Path) -> None:
    with opened(converted(tmp_path / "m", package())) as llm:
        ids = llm.tokenize(b"the bearing, don")
        assert llm.detokenize(ids) == b"the bearing , don"


# ---- NFC -----------------------------------------------------------------------------------------

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def of_bytes(nfc: bool, rule: str | None) -> Tokenizer:
    made = byte_pairs(("<|end|>",), "", "", nfc)
    if rule:
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(rule), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    return made


@pytest.mark.parametrize("rule", [None, QWEN2], ids=["gpt-2", "qwen2"])
@pytest.mark.parametrize("nfc", [True, False])
def test_nfc(rule: str | None, nfc: bool, tmp_path: Path) -> None:
    tokenizer = of_bytes(nfc, rule)
    path = converted(tmp_path / "m", tokenizer, {**LLAMA, "model_type": "llama"})
    with Gguf(path) as file:
        pre = file.value("tokenizer.ggml.pre")
        said = file.value("powerinfer.tokenizer.normalizer")
    assert pre == ("qwen2" if rule else "gpt-2")
    # Said where the rule's name does not tell it.
    assert said == (None if nfc == bool(rule) else "nfc" if nfc else "none")
    rng = random.Random(4)
    texts = [
        "".join(rng.choice(POINTS) for _ in range(rng.randint(1, 12))) for _ in range(1500)
    ] + [
        "cafe\u0301",
        "\u1100\u1161\u11a8",
        "\u212b",
        "\u0958 \ufb1d",
        "a\u0323\u0307",
        "<|end|>e\u0301",
    ]
    with opened(path) as llm:
        for text, want in zip(texts, tokenizer.encode_batch(texts), strict=True):
            ids = llm.tokenize(text.encode(), add_bos=False, special=True)
            assert ids == want.ids, ascii(text)
        assert (llm.tokenize(b"e\xcc\x81") == llm.tokenize("\u00e9".encode())) == nfc


def test_a_normalizer_that_nobody_has(tmp_path: Path) -> None:
    path = converted(tmp_path / "m", of_bytes(True, None), {**LLAMA, "model_type": "llama"})
    bad = changed(path, tmp_path / "b.gguf", {"powerinfer.tokenizer.normalizer": "nfkc"})
    with pytest.raises(UnsupportedModelError, match=r"normalizer: 'nfkc' is not supported"):
        opened(bad)


# ---- Tables --------------------------------------------------------------------------------------


@pytest.mark.slow  # nine seconds; the texts above have what stands at the ends of most ranges
def test_text_tables(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They are what the script makes of the package's."""
    monkeypatch.syspath_prepend(root / "scripts")
    script = importlib.import_module("make_text_tables")
    shipped = script.FOLDER
    monkeypatch.setattr(script, "FOLDER", tmp_path)
    (tmp_path / "unicode").mkdir()
    script.main()
    for name in ("unicode/normal_forms.inc", "wordpiece.inc"):
        assert (tmp_path / name).read_text() == (shipped / name).read_text()


def test_the_model_of_the_vocabulary(tmp_path: Path) -> None:
    """A whole checkpoint has the ids, too: of a text alone, and of its padding rows none."""
    made = make(tmp_path / "m", "nomic")
    path = convert(made.folder, outfile=tmp_path / "v.gguf", log=quiet)
    with opened(path) as llm:
        assert llm.n_vocab() == made.tokenizer.get_vocab_size() + 6
        assert llm.tokenize(b"the small bear", special=True) == made.ids("the small bear")
