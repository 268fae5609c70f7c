"""SentencePiece unigram vocabularies: the engine's ids against the sentencepiece package's, the
tokenizers package's and llama.cpp's."""

from __future__ import annotations

import io
import json
import random
import unicodedata
from base64 import b64encode
from functools import cache
from pathlib import Path
from typing import Any

import checkpoints
import pytest
from families import quiet
from powerinfer_cpp.convert import convert
from powerinfer_cpp.convert.vocab.spm import _message, _only
from powerinfer_cpp.core.gguf import Gguf
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from powerinfer_cpp import Llama, ModelFormatError, UnsupportedModelError

SENTENCES = (
    checkpoints.TEXT,
    "In 1984 they paid 12,345.67 dollars; she said no.",
    "Größe übermütig, café crème; Привет, мир! 今天天气很好，我们去公园。 ありがとう",
)
# Characters that nmt_nfkc replaces by others, by several or by none, sequences that it composes,
# and some that no vocabulary here has.
ODD = (
    *"ﬁﷺ①Ａ\u3000\u00a0\u200b\u200d\ufeff\u0300\u0301é\u0344ｶﾞ한글\u1100\u1161\u11a8½㍿K",
    *("e\u0301", "A\u030a", "\r\n", "\t", "\x00", "\x7f", "\u0085", "\u2581", "  ", "🙂", "\u202e"),
)
NAMES = {  # trainer's settings; all but the first with a byte for every character that is missing
    "as usual": {"normalization_rule_name": "nmt_nfkc"},
    "bytes": {"normalization_rule_name": "nmt_nfkc_cf", "byte_fallback": True},
    "identity": {
        "normalization_rule_name": "identity",
        "byte_fallback": True,
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
    },
    "spaces": {"normalization_rule_name": "nfkc", "remove_extra_whitespaces": False},
}


@cache
def trained(name: str, **settings: Any) -> bytes:
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 3),
        model_writer=model,
        model_type="unigram",
        vocab_size=430 if NAMES[name].get("byte_fallback") else 170,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **{**NAMES[name], **settings},
    )
    return model.getvalue()


def vocabulary(folder: Path, proto: bytes, log: Any = quiet) -> Path:
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(proto)
    n = SentencePieceProcessor(model_proto=proto).get_piece_size()
    cfg = checkpoints.config(vocab_size=n + 3, bos_token_id=1, eos_token_id=2)
    (folder / "config.json").write_text(json.dumps(cfg))
    return convert(folder, vocab_only=True, outfile=folder.with_suffix(".gguf"), log=log)


def texts(n: int) -> list[str]:
    rng = random.Random(1)
    words = " ".join(SENTENCES).split(" ")
    letters = sorted(set("".join(SENTENCES)))
    kinds = (words, letters, letters[:9], [*ODD, "a", " ", "the"], ["aa", "a", " ", "th", "t", "h"])
    found = ["", " ", "   ", "  a  b ", *SENTENCES, *ODD]
    for i in range(n):
        kind = kinds[i % len(kinds)]
        found.append((" " if kind is words else "").join(rng.choices(kind, k=rng.randint(1, 30))))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_sentencepiece(name: str, tmp_path: Path) -> None:
    theirs = SentencePieceProcessor(model_proto=trained(name))
    notes: list[str] = []
    path = vocabulary(tmp_path / "m", trained(name), notes.append)
    assert not notes
    with Gguf(path) as file:
        found = file.metadata
    assert found["tokenizer.ggml.model"] == "t5"
    assert ("tokenizer.ggml.precompiled_charsmap" in found) == (name != "identity")
    with Llama(path, vocab_only=True, verbose=False) as llm:
        for text in texts(1500):
            ids = llm.tokenize(text.encode(), add_bos=False)
            assert ids == theirs.encode(text), repr(text)
            if name == "identity":
                assert llm.detokenize(ids) == text.replace("\u2581", " ").encode()


@pytest.mark.peer("llama_cpp")
@pytest.mark.parametrize("name", ["as usual", "spaces"])
def test_ids_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    """It has no byte tokens for these vocabularies, and differs in texts of nothing but spaces."""
    import llama_cpp

    path = vocabulary(tmp_path / "m", trained(name))
    theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    with Llama(path, vocab_only=True, verbose=False) as llm:
        for text in texts(300):
            if not unicodedata.normalize("NFKC", text).strip():
                continue
            want = theirs.tokenize(text.encode(), add_bos=False, special=False)
            assert llm.tokenize(text.encode(), add_bos=False) == want, repr(text)


def test_user_defined_pieces(tmp_path: Path) -> None:
    """They win against all others; one of spaces is found in the raw text, from the left."""
    proto = trained(
        "identity", user_defined_symbols="<name>,\u2581\u2581", split_by_whitespace=False
    )
    theirs = SentencePieceProcessor(model_proto=proto)
    with Llama(vocabulary(tmp_path / "m", proto), vocab_only=True, verbose=False) as llm:
        for text in ("a<name>b", "<name><name>", "the  bear", "x  <name> the"):
            ids = llm.tokenize(text.encode(), add_bos=False)
            assert ids == theirs.encode(text), text
            assert llm.detokenize(ids) == text.encode()


# ---- tokenizer.json ----


def described(name: str, **changes: Any) -> dict[str, Any]:
    """The tokenizer.json of a vocabulary, by the tokenizers package."""
    processor = SentencePieceProcessor(model_proto=trained(name))
    pieces = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(len(processor))]
    tokenizer = Tokenizer(models.Unigram(pieces, 0, byte_fallback=name == "bytes"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    found = json.loads(tokenizer.to_str())
    found["added_tokens"] = [
        {"id": i, "content": text, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for i, text in enumerate(("<unk>", "<s>", "</s>"))
    ]
    table = {"type": "Precompiled", "precompiled_charsmap": charsmap(name)}
    found["normalizer"]["normalizers"].insert(0, table)
    return {**found, **changes}


def charsmap(name: str) -> str:
    """The table of characters in the model's protocol buffer: normalizer_spec (3), field 2."""
    table = _only(_message(_only(_message(trained(name)), 3, b"")), 2, b"")
    return b64encode(table).decode()


def from_json(folder: Path, tokenizer: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    n = len(tokenizer["model"]["vocab"])
    cfg = checkpoints.config(vocab_size=max(n, 1) + 3, bos_token_id=1, eos_token_id=2)
    (folder / "config.json").write_text(json.dumps(cfg))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return convert(folder, vocab_only=True, outfile=folder.with_suffix(".gguf"), log=quiet)


@pytest.mark.parametrize("name", ["as usual", "bytes"])
def test_a_tokenizer_json(name: str, tmp_path: Path) -> None:
    """The same keys as from tokenizer.model, and the ids of the tokenizers package."""
    tokenizer = described(name)
    path = from_json(tmp_path / "json", tokenizer)
    with Gguf(path) as file, Gguf(vocabulary(tmp_path / "model", trained(name))) as other:
        ours, theirs = file.metadata, other.metadata
    for key in theirs:
        # In tokenizer.json no token begins a text.
        if key.startswith("tokenizer.") and key != "tokenizer.ggml.add_bos_token":
            assert ours[key] == theirs[key], key
    peer = Tokenizer.from_str(json.dumps(tokenizer))
    with Llama(path, vocab_only=True, verbose=False) as llm:
        for text in (*SENTENCES, "a  b", "  Ａ ﬁ ① \u3000 x", "今天 ありがとう", "🙂 the 🙂"):
            want = peer.encode(text, add_special_tokens=False).ids
            assert llm.tokenize(text.encode(), add_bos=False) == want, text


def test_what_is_refused(tmp_path: Path) -> None:
    good = described("as usual")
    model = good["model"]
    for changes, words in (
        ({"normalizer": {"type": "Lowercase"}}, "a step that SentencePiece"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "a step that SentencePiece"),
        ({"pre_tokenizer": None}, "a step that SentencePiece"),
        ({"model": {**model, "byte_fallback": True}}, "no token <0x00>"),
    ):
        with pytest.raises(UnsupportedModelError, match=words):
            from_json(tmp_path / "m", {**good, **changes})
    for changes, words in (
        ({"model": {**model, "vocab": {}}}, "no vocabulary"),
        ({"model": {**model, "vocab": [["a"]]}}, "is not a token and its score"),
        ({"model": {**model, "vocab": [["a", "b"]]}}, "the score of 'a'"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "?"}}, "not base64"),
    ):
        with pytest.raises(ModelFormatError, match=words):
            from_json(tmp_path / "m", {**good, **changes})
    proto = trained("as usual", treat_whitespace_as_suffix=True)
    with pytest.raises(UnsupportedModelError, match="treat_whitespace_as_suffix"):
        vocabulary(tmp_path / "suffix", proto)
