"""The tokenizer against the sentencepiece package, and against llama.cpp's published vectors."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import checkpoints
import pytest
import sentencepiece
from circles import pick
from powerinfer_cpp.convert import convert

from powerinfer_cpp import Llama


@pytest.fixture(scope="module")
def llm(model_path):
    with Llama(str(model_path), vocab_only=True, verbose=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def pieces(tokenizer_path):
    return sentencepiece.SentencePieceProcessor(model_file=str(tokenizer_path))


def strings(seed: int, count: int, words: list[str]) -> list[str]:
    """Words, random Unicode, runs, markup: usual and unusual texts."""
    rng = random.Random(seed)
    odd = [
        "   ",
        " ",
        "\n",
        "\t",
        "a",
        "▁",
        "<0x0A>",
        "</s>",
        "<s>",
        "<unk>",
        "é",
        "😀",
        "👩‍👩‍👧",
        "\r\n",
        "\0",
    ]

    def character() -> str:
        low, high = rng.choice([(1, 0x80), (0x80, 0xD800), (0xE000, 0x110000)])
        return chr(rng.randrange(low, high))

    def string() -> str:
        n = rng.choice((1, 2, 5, 20, 100))
        kind = rng.randrange(6)
        if kind == 0:
            return "".join(character() for _ in range(n))
        if kind == 1:
            return "".join(rng.choice(words) for _ in range(n))
        if kind == 2:
            return "".join(rng.choice(odd) for _ in range(n))
        if kind == 3:
            return rng.choice(" aeh.\n") * rng.randrange(1, 500)
        if kind == 4:
            return "".join(rng.choice("abcdethe .,!\n") for _ in range(n * 5))
        return " ".join(rng.choice(words).strip() for _ in range(n)) + rng.choice(
            ["", ".", " ", "\n"]
        )

    return [string() for _ in range(count)]


def test_same_ids_as_sentencepiece(llm, pieces):
    words = [pieces.IdToPiece(i).replace("▁", " ") for i in range(259, len(pieces))]
    for text in strings(1, 5000, words):
        ids = llm.tokenize(text.encode(), add_bos=False)
        assert ids == pieces.EncodeAsIds(text), text
        # What tokenizing adds is one space; U+2581 and a space are the same to the vocabulary.
        assert llm.detokenize(ids).decode() == " " + text.replace("▁", " ")


def test_any_bytes_come_back(llm):
    rng = random.Random(2)
    for _ in range(1000):
        text = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 60)))
        ids = llm.tokenize(text, add_bos=False)
        assert llm.detokenize(ids) == b" " + text.replace("▁".encode(), b" ")


def test_bos_and_special_tokens(llm):
    bos, eos = llm.token_bos(), llm.token_eos()
    assert llm.tokenize(b"") == [bos]
    assert llm.tokenize(b"", add_bos=False) == []
    assert llm.tokenize(b"Once") == [bos, *llm.tokenize(b"Once", add_bos=False)]
    assert eos not in llm.tokenize(b"Once</s>")
    assert llm.tokenize(b"Once</s>", add_bos=False, special=True)[-1] == eos
    # A text after a special token starts again with its own space.
    once = llm.tokenize(b"Once", add_bos=False)
    assert llm.tokenize(b"<s>Once</s>Once", add_bos=False, special=True) == [bos, *once, eos, *once]


def test_long_texts_take_no_quadratic_time(llm):
    n = pick(400_000, 2_000_000)
    for text in (b"a" * n, b" " * n, b"\xff" * n, b"Lily saw a big dog. " * (n // 40)):
        ids = llm.tokenize(text, add_bos=False)
        assert llm.detokenize(ids) == b" " + text


@pytest.mark.shared
@pytest.mark.parametrize("name", ["llama-spm"])
def test_vectors_of_llama_cpp(shared, name):
    file = shared / "fixtures" / "vocab" / f"{name}.gguf"
    texts = file.with_suffix(".gguf.inp").read_bytes().split(b"\n__ggml_vocab_test__\n")
    lines = file.with_suffix(".gguf.out").read_text().split("\n")
    with Llama(str(file), vocab_only=True, verbose=False) as llm:
        for text, line in zip(texts, lines, strict=False):
            ids = llm.tokenize(text, add_bos=False)
            assert ids == [int(i) for i in line.split()], text
            assert llm.detokenize(ids).strip(b" ") == text.strip(b" ")


def test_a_vocabulary_like_gemmas(tmp_path: Path) -> None:
    """No space before a text, and pieces of spaces and newlines that are found in the raw text."""
    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([checkpoints.TEXT] * 3),
        model_writer=proto,
        vocab_size=400,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        user_defined_symbols=["\u2581" * n for n in range(2, 8)] + ["\n\n", "<start_of_turn>"],
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_proto=proto.getvalue())
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(proto.getvalue())
    cfg = checkpoints.config(vocab_size=theirs.get_piece_size())
    (folder / "config.json").write_text(json.dumps(cfg))
    notes: list[str] = []
    path = convert(folder, vocab_only=True, outfile=tmp_path / "a.gguf", log=notes.append)
    assert not notes
    rng = random.Random(5)
    parts = [" ", "  ", "the", " bear", "\n", "\n\n", "<start_of_turn>", "user", "\u00e9", "x"]
    with Llama(path, vocab_only=True, verbose=False) as llm:
        for _ in range(500):
            text = "".join(rng.choices(parts, k=rng.randint(1, 12)))
            if " " * 8 in text:
                continue  # longer than any piece: may be divided in several ways
            ids = llm.tokenize(text.encode(), add_bos=False)
            assert ids == theirs.encode(text), repr(text)
            assert llm.detokenize(ids) == text.encode()
