"""convert: added tokens with flags or without a row, ends of a text, and chat templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import checkpoints
import pytest
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from powerinfer_cpp import Llama, ModelFormatError

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def folder_of(where: Path, *tokens: AddedToken, n_vocab: int = 300, **files: Any) -> Path:
    """A model with a byte-level vocabulary; files: JSON, or text, by name without the suffix."""
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate([*ALPHABET, "th"])}, [("t", "h")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(list(tokens))
    cfg = checkpoints.config(vocab_size=n_vocab)
    checkpoints.save(where, cfg, checkpoints.weights(cfg))
    (where / "tokenizer.model").unlink()
    tokenizer.save(str(where / "tokenizer.json"))
    for name, value in files.items():
        (where / f"{name}.json").write_text(json.dumps(value))
    return where


def vocab_of(folder: Path) -> tuple[Path, list[str]]:
    notes: list[str] = []
    target = folder.parent / "vocab.gguf"
    return convert(folder, outfile=target, vocab_only=True, log=notes.append), notes


def keys_of(folder: Path) -> dict[str, Any]:
    path, _ = vocab_of(folder)
    with Gguf(path) as file:
        return {key: file.value(key) for key in file.metadata}


TEXTS = [
    "",
    "@one",
    "a @one b",
    "a@one b@one",
    "a  \t\n@one\u00a0\u3000 \n b",
    "@one@one  @one",
    "é@one é",
    "_@one -@one- 1@one²",
    "日@one本 @one。",
    "@two@one @two  @one\n\n@three.",
    "x @three y@three",
    "  @one  @two  ",
]


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(
    "flags",
    [
        {"lstrip": True},
        {"rstrip": True},
        {"lstrip": True, "rstrip": True},
        {"single_word": True},
        {"single_word": True, "rstrip": True, "lstrip": True},
    ],
)
def test_ids_are_those_of_tokenizers(flags: dict[str, bool], special: bool, tmp_path: Path) -> None:
    tokens = [
        AddedToken("@one", special=special, normalized=False, **flags),
        AddedToken("@two", special=special, normalized=False, rstrip=True),
        AddedToken("@three", special=special, normalized=False),
    ]
    folder = folder_of(tmp_path / "model", *tokens)
    want = Tokenizer.from_file(str(folder / "tokenizer.json"))
    path, _ = vocab_of(folder)
    with Llama(path, vocab_only=True, verbose=False) as llm:
        for text in TEXTS:
            got = llm.tokenize(text.encode(), add_bos=False, special=True)
            assert got == want.encode(text).ids, text
        # Invalid UTF-8 beside a token is neither white space nor a letter.
        for text in (b"\xff@one\xe2\x80", b"\x80\x80\x80\x80@one \xf0\x9f"):
            assert len(llm.tokenize(text, add_bos=False, special=True)) >= 4


def test_flags_of_tokenizer_config(tmp_path: Path) -> None:
    decoder = {"257": {"content": "@one", "rstrip": True, "special": True}}
    folder = folder_of(
        tmp_path / "model",
        AddedToken("@one", lstrip=True, special=True),
        tokenizer_config={"added_tokens_decoder": decoder},
    )
    keys = keys_of(folder)
    assert keys["powerinfer.tokenizer.rstrip"] == [257]
    assert "powerinfer.tokenizer.lstrip" not in keys


def test_flags_of_tokens_that_do_not_exist(tmp_path: Path) -> None:
    from powerinfer_cpp.convert.embed import embed
    from powerinfer_cpp.convert.writer import array

    path, _ = vocab_of(folder_of(tmp_path / "model"))
    for key in ("powerinfer.tokenizer.lstrip", "powerinfer.tokenizer.ends"):
        with Gguf(path) as origin:
            embed(origin, tmp_path / "bad.gguf", [array(key, "INT32", [300])], [])
        with pytest.raises(ModelFormatError, match="there is no token 300"):
            Llama(tmp_path / "bad.gguf", vocab_only=True, verbose=False)


def test_added_tokens_without_a_row(tmp_path: Path) -> None:
    tokens = [AddedToken("@one", special=True), AddedToken("[PAD]", special=True)]
    folder = folder_of(
        tmp_path / "model", *tokens, n_vocab=258, tokenizer_config={"pad_token": "[PAD]"}
    )
    path, notes = vocab_of(folder)
    assert any("left out: [PAD]" in note for note in notes)
    with Gguf(path) as file:
        assert file.value("tokenizer.ggml.tokens")[257:] == ["@one"]
        assert file.value("tokenizer.ggml.padding_token_id") is None
    with pytest.raises(ModelFormatError, match="the tokenizer has 257 tokens"):
        vocab_of(folder_of(tmp_path / "small", n_vocab=256))


def test_ends_of_a_text(tmp_path: Path) -> None:
    tokens = [AddedToken(f"@{i}", special=True) for i in range(5)]
    folder = folder_of(
        tmp_path / "model",
        *tokens,
        AddedToken("<|eom_id|>", special=True),
        tokenizer_config={"eos_token": "@1"},
        generation_config={"eos_token_id": [257, 258, 262, 259, 260, 999, None]},
    )
    keys = keys_of(folder)
    assert keys["tokenizer.ggml.eos_token_id"] == 258
    assert keys["tokenizer.ggml.eot_token_id"] == 257
    assert keys["tokenizer.ggml.eom_token_id"] == 262
    assert keys["powerinfer.tokenizer.ends"] == [259, 260]
    path, _ = vocab_of(folder)
    with Llama(path, vocab_only=True, verbose=False) as llm:
        assert [t for t in range(300) if llm._model.ends(t)] == [257, 258, 259, 260, 262]


def test_a_token_behind_every_text(tmp_path: Path) -> None:
    """As embedding models have it, whose EOS may be another token."""
    tokens = [AddedToken(f"@{i}", special=True) for i in range(3)]
    folder = folder_of(tmp_path / "model", *tokens, tokenizer_config={"eos_token": "@1"})
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A @2", special_tokens=[("@2", 259)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    keys = keys_of(folder)
    assert keys["tokenizer.ggml.eos_token_id"] == 259 and keys["tokenizer.ggml.add_eos_token"]
    assert keys["tokenizer.ggml.eot_token_id"] == 258
    (folder / "tokenizer_config.json").write_text('{"eos_token": "@1", "add_eos_token": false}')
    assert not keys_of(folder)["tokenizer.ggml.add_eos_token"]


NAMED = [{"name": "default", "template": "D"}, {"name": "tool-use", "template": "T"}]


@pytest.mark.parametrize(
    ("files", "want"),
    [
        ({"tokenizer_config.json": {"chat_template": "S"}}, {"": "S"}),
        ({"tokenizer_config.json": {"chat_template": NAMED}}, {"": "D", ".tool_use": "T"}),
        ({"chat_template.json": {"chat_template": "J"}}, {"": "J"}),
        ({"chat_template.json": {"chat_template": NAMED}}, {"": "D", ".tool_use": "T"}),
        (
            {
                "tokenizer_config.json": {"chat_template": "S"},
                "chat_template.json": {"chat_template": "J"},
            },
            {"": "S"},
        ),
        (
            {"chat_template.jinja": "X", "tokenizer_config.json": {"chat_template": NAMED}},
            {"": "X"},
        ),
        (
            {"chat_template.jinja": "X", "additional_chat_templates/rag.jinja": "R"},
            {"": "X", ".rag": "R"},
        ),
        ({"additional_chat_templates/rag.jinja": "R"}, {".rag": "R"}),
        ({}, {}),
    ],
)
def test_chat_templates(files: dict[str, Any], want: dict[str, str], tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model")
    (folder / "additional_chat_templates").mkdir()
    for name, value in files.items():
        (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))
    keys = keys_of(folder)
    start = "tokenizer.chat_template"
    named = {k.removeprefix(start): v for k, v in keys.items() if k.startswith(start)}
    names = named.pop("s", [])
    assert named == want
    assert [f".{name}" for name in names] == [name for name in want if name]
