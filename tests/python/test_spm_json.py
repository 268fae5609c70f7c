"""SentencePiece vocabularies with only a tokenizer.json, against the tokenizers package."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import checkpoints
import pytest
from families import golden, quiet
from hypothesis import given, settings
from hypothesis import strategies as st
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer, models, trainers

from powerinfer_cpp import Llama, ModelFormatError, UnsupportedModelError

ROOT = Path(__file__).resolve().parents[2]
PREFIXED = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    ],
}
REPLACED = PREFIXED["normalizers"][1]
AT_SPACES = {
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
    "invert": False,
}
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
}


def metaspace(scheme: str, split: bool) -> dict[str, Any]:
    return {
        "type": "Metaspace",
        "replacement": "\u2581",
        "prepend_scheme": scheme,
        "split": split,
    }


def whole(vocab: dict[str, int], merges: list[Any], **changes: Any) -> dict[str, Any]:
    """A tokenizer.json as Llama 2's."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": i, "content": text, "special": True, **flags}
        for i, text in enumerate(("<unk>", "<s>", "</s>"))
    ]
    if "<name>" in vocab:
        added.append({"id": vocab["<name>"], "content": "<name>", "special": False, **flags})
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": "<unk>",
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": vocab,
        "merges": merges,
    }
    parts = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
    parts |= {"normalizer": PREFIXED, "pre_tokenizer": None, "post_processor": TEMPLATE}
    return {**parts, "decoder": None, "model": model, **changes}


def extracted(proto: bytes) -> tuple[dict[str, int], list[list[str]]]:
    """Vocabulary and merges of a SentencePiece model as transformers extracts them."""
    processor = SentencePieceProcessor(model_proto=proto)
    scores = {processor.id_to_piece(i): processor.get_score(i) for i in range(len(processor))}
    ids = {text: i for i, text in enumerate(scores)}
    merges = []
    for text, score in scores.items():
        pairs = [(text[:i], text[i:]) for i in range(1, len(text))]
        pairs = sorted((ids[a], ids[b], a, b) for a, b in pairs if a in ids and b in ids)
        merges += [(-score, ids[text], a, b) for _, _, a, b in pairs]
    return ids, [[a, b] for _, _, a, b in sorted(merges, key=lambda m: m[:2])]


def trained() -> tuple[dict[str, int], list[list[str]]]:
    """One merge for each token, as the tokenizers package trains them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.train_from_iterator(
        [f"\u2581{checkpoints.TEXT}".replace(" ", "\u2581"), "abababab\u2581\u2581\u2581cdcdcdcd"]
        * 9,
        trainers.BpeTrainer(vocab_size=260, show_progress=False),
    )
    found = json.loads(tokenizer.to_str())["model"]
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    texts += sorted(found["vocab"], key=found["vocab"].__getitem__)
    return {text: i for i, text in enumerate(texts)}, found["merges"]


def folder_of(folder: Path, tokenizer: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    n = len(tokenizer["model"]["vocab"])
    cfg = checkpoints.config(vocab_size=n + 7, bos_token_id=1, eos_token_id=2)
    (folder / "config.json").write_text(json.dumps(cfg))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def vocabulary(folder: Path, tokenizer: dict[str, Any], log: Any = quiet) -> Path:
    out = folder.with_suffix(".gguf")
    return convert(folder_of(folder, tokenizer), vocab_only=True, outfile=out, log=log)


def texts(vocab: dict[str, int], n: int) -> list[str]:
    """Random strings of the vocabulary's characters, of its pieces, and of any characters."""
    rng = random.Random(1)
    pieces = [p.replace("\u2581", " ") for p in vocab if not p.startswith("<")]
    letters = sorted({c for p in pieces for c in p})
    kinds = (pieces, letters, letters[:4], [" ", "a", "b", "\u2581"], ["\n", "é", "今", "🙂", "x"])
    found = ["", " ", "   ", checkpoints.TEXT, "\x00\x7f\u0301", "a\u2581b"]
    return found + ["".join(rng.choices(kinds[i % 5], k=rng.randint(1, 40))) for i in range(n)]


@pytest.mark.parametrize("source", ["small", "stories", "trained"])
def test_ids_are_those_of_tokenizers(source: str, tmp_path: Path) -> None:
    if source == "trained":
        vocab, merges = trained()
    else:
        stories = (ROOT / "models" / "tokenizer.model").read_bytes
        vocab, merges = extracted(checkpoints.tokenizer() if source == "small" else stories())
    tokenizer = whole(vocab, merges)
    theirs = Tokenizer.from_str(json.dumps(tokenizer))
    path = vocabulary(tmp_path / "m", tokenizer)
    with Gguf(path) as file:
        found = file.metadata
    assert found["tokenizer.ggml.model"] == "llama" and "tokenizer.ggml.merges" not in found
    assert found["tokenizer.ggml.token_type"][:4] == [2, 3, 3, 4 if source == "small" else 6]
    assert found["tokenizer.ggml.add_bos_token"] is True
    assert [found[f"tokenizer.ggml.{e}_token_id"] for e in ("bos", "eos", "unknown")] == [1, 2, 0]
    with Llama(path, vocab_only=True, verbose=False) as llm:
        for text in texts(vocab, 2000):
            ids = llm.tokenize(text.encode(), add_bos=False)
            assert ids == theirs.encode(text, add_special_tokens=False).ids, text
            assert llm.detokenize([1, *ids]) == text.replace("\u2581", " ").encode()

        @settings(max_examples=300, deadline=None)
        @given(st.text(st.sampled_from("the quickabrown\u2581 é"), max_size=30))
        def same(text: str) -> None:
            want = theirs.encode(text, add_special_tokens=False).ids
            assert llm.tokenize(text.encode(), add_bos=False) == want

        same()


@pytest.mark.parametrize("source", ["small", "trained"])
def test_merges_of_characters(source: str, tmp_path: Path) -> None:
    """Gemma 4's kind: the file has the merges themselves, also such as scores cannot express."""
    vocab, merges = trained() if source == "trained" else extracted(checkpoints.tokenizer())
    left = [pair for pair in merges if pair[0] + pair[1] != "ab"][::-1]  # "abab" then needs others
    tokenizer = whole(vocab, left, normalizer=REPLACED, pre_tokenizer=AT_SPACES)
    theirs = Tokenizer.from_str(json.dumps(tokenizer))
    folder = golden("gemma4", tmp_path / "m", vocab_size=len(vocab) + 7)
    (folder / "tokenizer.model").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    path = convert(folder, vocab_only=True, outfile=tmp_path / "a.gguf", log=quiet)
    with Gguf(path) as file:
        found = file.metadata
    assert found["tokenizer.ggml.model"] == "gemma4" and "tokenizer.ggml.pre" not in found
    assert found["tokenizer.ggml.merges"] == [" ".join(pair) for pair in left]
    assert found["tokenizer.ggml.add_space_prefix"] is False
    with Llama(path, vocab_only=True, verbose=False) as llm:
        for text in texts(vocab, 1000):
            ids = llm.tokenize(text.encode(), add_bos=False)
            assert ids == theirs.encode(text, add_special_tokens=False).ids, text
            assert llm.detokenize(ids) == text.replace("\u2581", " ").encode()
        for text in (b"ab" * 200_000, b" " * 200_000, b"\xff\xfe a"):
            assert llm.detokenize(llm.tokenize(text, add_bos=False)) == text
    split = {**tokenizer, "normalizer": None, "pre_tokenizer": metaspace("never", True)}
    (folder / "tokenizer.json").write_text(json.dumps(split))
    with pytest.raises(UnsupportedModelError, match="stops at spaces"):
        convert(folder, vocab_only=True, outfile=tmp_path / "b.gguf", log=quiet)


def test_the_same_file_as_from_tokenizer_model(tmp_path: Path) -> None:
    """Tokens and types, and the order of the scores."""
    tokenizer = whole(*extracted(checkpoints.tokenizer()))
    with Gguf(vocabulary(tmp_path / "json", tokenizer)) as file:
        ours = file.metadata
    folder = folder_of(tmp_path / "model", tokenizer)
    (folder / "tokenizer.model").write_bytes(checkpoints.tokenizer())
    out = convert(folder, vocab_only=True, outfile=tmp_path / "model.gguf", log=quiet)
    with Gguf(out) as file:
        theirs = file.metadata
    for key in ("tokens", "token_type", "add_space_prefix", "add_bos_token", "bos_token_id"):
        assert ours[f"tokenizer.ggml.{key}"] == theirs[f"tokenizer.ggml.{key}"], key


@pytest.mark.parametrize(
    ("changes", "prefix"),
    [
        ({"normalizer": REPLACED}, False),
        ({"normalizer": REPLACED, "pre_tokenizer": AT_SPACES}, False),  # Gemma
        ({"normalizer": None, "pre_tokenizer": metaspace("never", False)}, False),
        ({"normalizer": None, "pre_tokenizer": metaspace("first", False)}, True),
        ({"normalizer": None, "pre_tokenizer": metaspace("always", False)}, True),
        ({"normalizer": None, "pre_tokenizer": metaspace("always", True)}, True),
    ],
)
def test_what_becomes_of_spaces(changes: dict[str, Any], prefix: bool, tmp_path: Path) -> None:
    vocab, merges = extracted(checkpoints.tokenizer())
    assert not any("\u2581" in text[1:] for text in vocab)
    tokenizer = whole(vocab, merges, **changes)
    theirs, notes = Tokenizer.from_str(json.dumps(tokenizer)), []
    path = vocabulary(tmp_path / "m", tokenizer, notes.append)
    spaces = prefix and any("begins with one" in note for note in notes)
    assert spaces == prefix
    with Gguf(path) as file:
        assert file.value("tokenizer.ggml.add_space_prefix") is prefix
    with Llama(path, vocab_only=True, verbose=False) as llm:
        for text in texts(vocab, 500):
            if prefix and text.startswith((" ", "\u2581")):
                continue  # the note is about these
            ids = llm.tokenize(text.encode(), add_bos=False)
            assert ids == theirs.encode(text, add_special_tokens=False).ids, text


def changed(**model: Any) -> dict[str, Any]:
    tokenizer = whole(*extracted(checkpoints.tokenizer()))
    return {**tokenizer, "model": {**tokenizer["model"], **model}}


def test_what_a_gguf_cannot_tell(tmp_path: Path) -> None:
    vocab, merges = extracted(checkpoints.tokenizer())
    n = len(vocab)
    for tokenizer, words in (
        (changed(type="WordLevel"), r"need their tokenizer\.model"),
        (changed(byte_fallback=False), r"need their tokenizer\.model"),
        (changed(dropout=0.1), "a BPE model with dropout"),
        (changed(vocab={**vocab, "qz": n}), "its merges do not form the token 'qz'"),
        (
            changed(vocab={t: i for t, i in vocab.items() if t != "<0x41>"}),
            "no token <0x41>",
        ),
        (whole(vocab, merges, normalizer={"type": "Lowercase"}), "a step that SentencePiece"),
        (whole(vocab, merges, normalizer=None), "a step that SentencePiece"),
    ):
        with pytest.raises(UnsupportedModelError, match=words):
            vocabulary(tmp_path / "m", tokenizer)
    with pytest.raises(ModelFormatError, match="'q zzz' does not join two tokens"):
        vocabulary(tmp_path / "m", changed(merges=[["q", "zzz"]]))
    inner = {**vocab, "e\u2581": n}
    split = whole(inner, [*merges, ["e", "\u2581"]], normalizer=None)
    split["pre_tokenizer"] = metaspace("always", True)
    with pytest.raises(UnsupportedModelError, match="do not form the token 'e\u2581'"):
        vocabulary(tmp_path / "m", split)
