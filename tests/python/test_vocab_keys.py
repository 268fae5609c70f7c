"""Every key of a vocabulary that the converter writes is obeyed by the engine, and every one that
the engine obeys for one kind of tokenizer is obeyed, told of or refused for the others."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoints
import pytest
from families import golden, quiet
from gguf_files import changed
from powerinfer_cpp.convert import PRE_NAMES, convert
from powerinfer_cpp.convert.vocab.bpe import BYTE_LETTERS
from powerinfer_cpp.convert.vocab.pretokenizer import IGNORE_MERGES
from powerinfer_cpp.core.gguf import Gguf
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import Tokenizer, pre_tokenizers

from powerinfer_cpp import Llama, UnsupportedModelError

SPACE = "\u2581"
TEXTS = [checkpoints.TEXT, "he quick", " he", "?heh ?qui 1234", "<one> x <two>  y", "a  <one>  b "]
TEXTS += ["x\n", "\u00e9\uff21", "a<s>", "ay<three> y<three>"]
ADDED = [("<s>", True, {}), ("</s>", True, {}), ("<eot>", True, {}), ("<eom>", True, {})]
ADDED += [("<one>", False, {"lstrip": True}), ("<two>", False, {"rstrip": True})]
ADDED += [("y<three>", True, {"single_word": True}), ("<|eom_id|>", True, {})]
# Settings of folders: several ends, both texts added.
SETTINGS = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": True}


def added(first: int) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": first + i, "content": text, "special": special, **flags, **more}
        for i, (text, special, more) in enumerate(ADDED)
    ]


def bpe(letters: list[str], pieces: str, merges: str, **model: Any) -> dict[str, Any]:
    """A tokenizer.json of letters and a few more tokens."""
    texts = [*letters, *pieces.split()]
    model = {"type": "BPE", "vocab": {t: i for i, t in enumerate(texts)}, **model}
    model["merges"] = [list(pair.split("+")) for pair in merges.split()]
    return {"version": "1.0", "model": model, "added_tokens": added(len(texts))}


def byte_level(**model: Any) -> dict[str, Any]:
    """No merge reaches "qui": "ui" comes first."""
    found = bpe(
        sorted(pre_tokenizers.ByteLevel.alphabet()),
        "he ui qui \u0120he 12 34 1234",
        "h+e u+i \u0120+he 1+2 3+4 12+34",
    )
    found["model"] |= model
    step = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return {**found, "pre_tokenizer": step}


def of_characters() -> dict[str, Any]:
    letters = [f"<0x{byte:02X}>" for byte in range(256)]
    letters += [*"abcehikqu", SPACE]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    steps = [{"type": "Prepend", "prepend": SPACE}, replace]
    found = bpe(letters, f"he {SPACE}he", f"h+e {SPACE}+he", byte_fallback=True)
    return {**found, "normalizer": {"type": "Sequence", "normalizers": steps}}


def sentencepiece(kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter([checkpoints.TEXT] * 50),
        model_writer=out,
        vocab_size=150,
        model_type=kind,
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return out.getvalue()


def folder_of(where: Path, kind: str) -> Path:
    """A model folder with this kind of vocabulary, and all that it can say."""
    where.mkdir(parents=True)
    if kind == "gemma4":
        folder = golden("gemma4", where / "model", vocab_size=300)
        (folder / "tokenizer.model").unlink()
    else:
        folder = where / "model"
        folder.mkdir()
        cfg = checkpoints.config(vocab_size=300)
        (folder / "config.json").write_text(json.dumps(cfg))
    settings: dict[str, Any] = {**SETTINGS, "pad_token": "<s>", "chat_template": "{{ messages }}"}
    if kind in ("gpt2", "gemma4"):
        tokenizer = byte_level(ignore_merges=True) if kind == "gpt2" else of_characters()
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        first = tokenizer["added_tokens"][0]["id"]
    else:
        rules = where / "rules.tsv"  # a short table of characters
        rules.write_text("FF21\t61\n")
        proto = (
            sentencepiece("bpe", normalization_rule_name="identity")
            if kind == "llama"
            else sentencepiece("unigram", normalization_rule_tsv=str(rules))
        )
        (folder / "tokenizer.model").write_bytes(proto)
        first = len(SentencePieceProcessor(model_proto=proto)) - 2  # <s> and </s> are in it
        settings["added_tokens_decoder"] = {str(e.pop("id")): e for e in added(first)[2:]}
    ends = {"eos_token_id": [first + 2, first + 3, first + 6, first + 7]}
    (folder / "generation_config.json").write_text(json.dumps(ends))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


KINDS = ("llama", "t5", "gpt2", "gemma4")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            where = tmp_path_factory.mktemp(kind)
            folder = folder_of(where / "in", kind)
            made[kind] = convert(folder, vocab_only=True, outfile=where / "v.gguf", log=quiet)
        return made[kind]

    return get


def seen(path: Path) -> Any:
    """All that a vocabulary shows."""
    with Llama(path, vocab_only=True, verbose=False) as llm:
        model = llm._model
        tokens = range(model.n_vocab)
        return (
            [[model.tokenize(t.encode(), special) for t in TEXTS] for special in (False, True)],
            [(model.text(i), model.text(i, True), model.ends(i)) for i in tokens],
            (model.bos, model.eos, model.nl, model.add_bos, model.add_eos),
        )


# What changes nothing here, and why.
IDLE = {
    "tokenizer.ggml.padding_token_id",  # nothing is padded
    "tokenizer.chat_template",  # of prompts: test_chat_templates.py
}


def other(key: str, value: Any) -> Any:
    """Another value of a key; None: none."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return 20
    if key.endswith(".model"):
        return {"llama": "t5", "t5": "llama", "gpt2": "llama", "gemma4": "gpt2"}[value]
    if isinstance(value, str):
        return "llama-bpe"
    if key.endswith(".merges"):
        return value[1:]
    if key.endswith(".scores"):
        return [-float(i * 37 % 101) for i in range(len(value))]
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_keys_that_are_written_are_obeyed(
    kind: str, files: Callable[[str], Path], tmp_path: Path
) -> None:
    source = files(kind)
    plain, unused = seen(source), set()
    with Gguf(source) as file:
        keys = {k: file.value(k) for k in file.metadata if ".tokenizer." in f".{k}"}
    for key, value in keys.items():
        path = changed(source, tmp_path / "v.gguf", {key: other(key, value)})
        try:
            if seen(path) == plain:
                unused.add(key)
        except ValueError as error:
            assert str(path) in str(error)
    every_byte = kind in ("gpt2", "gemma4")  # has a token, so none is unknown
    idle = IDLE | ({"tokenizer.ggml.unknown_token_id"} if every_byte else set())
    # Gemma 4's file has scores for llama.cpp.
    idle |= {"tokenizer.ggml.scores"} if kind == "gemma4" else set()
    assert unused <= idle, unused - idle
    said = {key.rpartition(".")[2] for key in keys}
    assert said >= {"tokens", "add_space_prefix", "lstrip", "single_word", "ends", "eom_token_id"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "key",
    [
        "tokenizer.ggml.add_space_prefix",
        "tokenizer.ggml.remove_extra_whitespaces",
        "powerinfer.tokenizer.ignore_merges",
    ],
)
def test_keys_of_one_kind_are_not_lost_in_another(
    kind: str,
    key: str,
    files: Callable[[str], Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    off = seen(changed(files(kind), tmp_path / "a.gguf", {key: False}))
    path = changed(files(kind), tmp_path / "b.gguf", {key: True})
    with caplog.at_level(logging.WARNING):
        try:
            on = seen(path)
        except UnsupportedModelError as error:
            assert key in str(error)
            return
    told = [record.getMessage() for record in caplog.records]
    assert on != off or any(key in text and str(path) in text for text in told)


def test_rules_that_ignore_merges(tmp_path: Path) -> None:
    """The converter knows which do so by themselves, and writes the key for others."""
    folder = folder_of(tmp_path / "in", "gpt2")
    for ignores in (False, True):
        tokenizer = byte_level(ignore_merges=ignores)
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        theirs = Tokenizer.from_str(json.dumps({**tokenizer, "pre_tokenizer": None}))
        want = theirs.encode("qui", add_special_tokens=False).ids
        for pre in PRE_NAMES:
            path = convert(folder, vocab_only=True, pre=pre, outfile=tmp_path / "v.gguf", log=quiet)
            keys = {"tokenizer.ggml.add_space_prefix": False}
            with Llama(path, vocab_only=True, verbose=False, kv_overrides=keys) as llm:
                assert llm.tokenize(b"qui", add_bos=False) == want, pre
            with Gguf(path) as file:
                said = file.value("powerinfer.tokenizer.ignore_merges")
                assert said is (None if ignores == (pre in IGNORE_MERGES) else ignores)


@pytest.mark.parametrize("ignores", [False, True])
def test_ids_are_those_of_tokenizers(ignores: bool, tmp_path: Path) -> None:
    """With a space before a text, and before each part of one between added tokens."""
    folder = folder_of(tmp_path / "in", "gpt2")
    tokenizer = byte_level(ignore_merges=ignores)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    theirs = Tokenizer.from_str(json.dumps(tokenizer))
    path = convert(folder, vocab_only=True, outfile=tmp_path / "v.gguf", log=quiet)
    with Llama(path, vocab_only=True, verbose=False) as llm:
        for text in [*TEXTS, "", " ", "  he", "\nhe", "he<s>he<s> he", "qui quiqui"]:
            ids = llm.tokenize(text.encode(), add_bos=False, special=True)
            assert ids == theirs.encode(text, add_special_tokens=False).ids, text
        behind = llm._model.tokenize_behind(b"he qui")
        assert b"".join(map(llm._model.text, behind)) == b"he qui"


@pytest.mark.parametrize("unk", [None, "<unk>"])
def test_bytes_without_a_token(unk: str | None, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in", "gpt2")
    letters = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set("\u00c3\u00a9z"))
    for fuses in (False, True):
        found = bpe(letters, "<unk> he", "h+e", unk_token=unk, fuse_unk=fuses)
        tokenizer = {**found, "pre_tokenizer": byte_level()["pre_tokenizer"]}
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        out = tmp_path / "v.gguf"
        if fuses and unk:
            with pytest.raises(UnsupportedModelError, match="fuse_unk"):
                convert(folder, vocab_only=True, outfile=out, log=quiet)
            continue
        theirs = Tokenizer.from_str(json.dumps(tokenizer))
        path = convert(folder, vocab_only=True, outfile=out, log=quiet)
        with Llama(path, vocab_only=True, verbose=False) as llm:
            for text in ("he z\u00e9 he", "zzz", "\u00e8"):
                ids = llm.tokenize(text.encode(), add_bos=False)
                assert ids == theirs.encode(text, add_special_tokens=False).ids, text
    assert sorted(BYTE_LETTERS) == sorted(pre_tokenizers.ByteLevel.alphabet())


def test_settings_that_decide_about_the_space(tmp_path: Path) -> None:
    for kind, name in (("gpt2", "GPT2TokenizerFast"), ("llama", "LlamaTokenizer")):
        folder = folder_of(tmp_path / kind, kind)
        path = folder / "tokenizer_config.json"
        said = json.loads(path.read_text())
        for wanted in (True, False, None):
            settings = {**said, "tokenizer_class": name, "add_prefix_space": wanted}
            path.write_text(json.dumps(settings))
            found = convert(folder, vocab_only=True, outfile=tmp_path / "v.gguf", log=quiet)
            with Gguf(found) as file:
                is_on = file.value("tokenizer.ggml.add_space_prefix", False)
                assert is_on is (wanted is not False)


def split(prefix: bool) -> dict[str, Any]:
    """A step that divides a text, and one that adds spaces to the parts."""
    step = {"type": "ByteLevel", "add_prefix_space": prefix, "use_regex": True}
    return {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, step],
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"dropout": 0.1}}, "a BPE model with dropout"),
        ({"model": {"end_of_word_suffix": "</w>"}}, "a BPE model with end_of_word_suffix"),
        ({"model": {"merges": []}}, "a BPE model with no merges"),
        ({"pre_tokenizer": split(True)}, "add_prefix_space"),
        ({"pre_tokenizer": split(False)}, None),
    ],
)
def test_what_a_file_cannot_say(changes: dict[str, Any], words: str | None, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in", "gpt2")
    tokenizer = byte_level(**changes.pop("model", {}))
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**tokenizer, **changes}))
    if words is None:
        convert(folder, vocab_only=True, outfile=tmp_path / "v.gguf", log=quiet)
        return
    with pytest.raises(UnsupportedModelError, match=rf"tokenizer\.json: .*{words}"):
        convert(folder, vocab_only=True, outfile=tmp_path / "v.gguf", log=quiet)


def test_white_space_behind_words_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in", "llama")
    proto = sentencepiece("bpe", treat_whitespace_as_suffix=True)
    (folder / "tokenizer.model").write_bytes(proto)
    with pytest.raises(UnsupportedModelError, match="treat_whitespace_as_suffix is on"):
        convert(folder, vocab_only=True, outfile=tmp_path / "v.gguf", log=quiet)
