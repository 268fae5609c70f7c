"""Byte-level BPE vocabularies: conversion of tokenizer.json, vocab.json and merges.txt.

The engine's ids are compared with those of the tokenizers package on the same tokenizer.json.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import checkpoints
import pytest
from families import quiet
from powerinfer_cpp.convert import PRE_NAMES, convert
from powerinfer_cpp.convert.vocab.pretokenizer import find_pre
from powerinfer_cpp.core.gguf import Gguf
from pretokenizers import CASED, LING, STEPS, WORDS
from tokenizers import Tokenizer, decoders, models, trainers

from powerinfer_cpp import Llama, ModelFormatError, UnsupportedModelError

ROOT = Path(__file__).resolve().parents[2]
N_VOCAB = 700
SPECIAL = ["<pad>", "<s>", "</s>"]
CORPUS = [
    checkpoints.TEXT,
    "In 1984 they'd paid 12,345.67 dollars; she'll say: \"no\" -- (maybe)!?",
    "\n\n\tdef f(x):\n  return 1",
    "Größe übermütig, café crème; Привет, мир! 今天天气很好，我们去公园。 ありがとう ١٢٣ 🙂🙂",
]
TEXTS = [
    *CORPUS,
    "",
    " ",
    "Hello  world   12345678 it's IT'S\r\n\r\n x",
    "tabs\t\tand\u00a0spaces \u3000 1234 567",
    "naïve façade №42 ½ x² e\u0301",
]


def isolated(regex: str) -> dict[str, Any]:
    pattern = {"Regex": regex}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def byte_level(regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": regex,
    }


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def digits(individual: bool) -> dict[str, Any]:
    return {"type": "Digits", "individual_digits": individual}


IDEOGRAPHS = isolated("[一-龥ࠀ-一가-퟿]+")
# As the published models describe them.
KNOWN: dict[str, tuple[dict[str, Any], bool]] = {
    "gpt-2": (byte_level(True), False),
    "starcoder": (sequence(digits(True), byte_level(True)), False),
    "falcon": (
        sequence(
            {"type": "Punctuation", "behavior": "Contiguous"},
            byte_level(True),
            digits(False),
            isolated("[0-9][0-9][0-9]"),
        ),
        False,
    ),
    "llama-bpe": (sequence(isolated(WORDS % "{1,3}"), byte_level(False)), True),
    "smaug-bpe": (sequence(isolated(WORDS % "{1,3}"), byte_level(False)), False),
    "qwen2": (sequence(isolated(WORDS % ""), byte_level(False)), False),
    "qwen35": (
        sequence(
            isolated(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
                r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
            byte_level(False),
        ),
        False,
    ),
    "gpt-4o": (sequence(isolated(CASED), byte_level(False)), False),
    "kimi-k2": (
        sequence(
            isolated(
                r"[\p{Han}]+|"
                + CASED.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace(r"\n/]", r"\n]")
            ),
            byte_level(False),
        ),
        False,
    ),
    "deepseek-v3": (
        sequence(
            isolated(r"\p{N}{1,3}"),
            isolated("[一-龥\u3040-ゟ゠-ヿ]+"),
            isolated(
                "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
                r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
            byte_level(False),
        ),
        False,
    ),
    "deepseek-coder": (
        sequence(
            isolated(r"[\r\n]"),
            isolated(r"\s?\p{L}+"),
            isolated(r"\s?\p{P}+"),
            IDEOGRAPHS,
            digits(True),
            byte_level(False),
        ),
        False,
    ),
}
for _name, _steps in {**STEPS, "bailingmoe": LING}.items():
    # The package's names for what becomes of matches, as the file spells them.
    _splits = [
        {**isolated(rule), "behavior": behavior.title().replace("_", "")}
        for rule, behavior in _steps
    ]
    KNOWN[_name] = sequence(*_splits, byte_level(False)), False
# Letters of deepseek-llm's list are many; what recognises it is how the list begins.
DEEPSEEK_LLM = sequence(
    isolated(r"[\r\n]"),
    isolated("\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6]+"),
    isolated(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
    isolated(r"\s+$"),
    IDEOGRAPHS,
    digits(True),
    byte_level(False),
)


def tokenizer_json(pre: dict[str, Any], ignore_merges: bool = False, **more: Any) -> dict[str, Any]:
    """A trained vocabulary under a rule."""
    tokenizer = Tokenizer(models.BPE())
    whole = json.loads(tokenizer.to_str())
    whole["pre_tokenizer"] = pre
    tokenizer = Tokenizer.from_str(json.dumps(whole))
    tokenizer.decoder = decoders.ByteLevel()
    from tokenizers.pre_tokenizers import ByteLevel

    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=SPECIAL,
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    whole = json.loads(tokenizer.to_str())
    whole["model"]["ignore_merges"] = ignore_merges
    return {**whole, **more}


def model(folder: Path, tokenizer: dict[str, Any] | None, **settings: Any) -> Path:
    """A folder for tests of its vocabulary."""
    folder.mkdir(exist_ok=True)
    cfg = checkpoints.config(vocab_size=N_VOCAB, model_type="qwen2")
    (folder / "config.json").write_text(json.dumps(cfg))
    if tokenizer:
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def vocabulary(folder: Path, pre: str | None = None) -> Path:
    out = folder.with_suffix(".gguf")
    return convert(folder, vocab_only=True, outfile=out, pre=pre, log=quiet)


@pytest.mark.parametrize("name", KNOWN)
def test_ids_are_those_of_tokenizers(name: str, tmp_path: Path) -> None:
    pre, ignore_merges = KNOWN[name]
    whole = tokenizer_json(pre, ignore_merges)
    path = vocabulary(model(tmp_path / "m", whole, bos_token="<s>", eos_token="</s>"))
    with Gguf(path) as file:
        found = file.metadata
    assert found["tokenizer.ggml.model"] == "gpt2" and found["tokenizer.ggml.pre"] == name
    assert found["tokenizer.ggml.bos_token_id"] == 1 and found["tokenizer.ggml.eos_token_id"] == 2
    assert found["tokenizer.ggml.add_bos_token"] is False
    theirs = Tokenizer.from_str(json.dumps(whole))
    with Llama(path, vocab_only=True, verbose=False) as llm:
        for text in TEXTS:
            ids = llm.tokenize(text.encode(), add_bos=False)
            assert ids == theirs.encode(text, add_special_tokens=False).ids, text
            assert llm.detokenize(ids) == text.encode()


def test_deepseek_llm_is_recognised() -> None:
    assert find_pre({"pre_tokenizer": DEEPSEEK_LLM, "model": {}}) == "deepseek-llm"


def test_an_unknown_rule_names_the_way_out(tmp_path: Path) -> None:
    odd = sequence(isolated("[aeiou]"), byte_level(False))
    folder = model(tmp_path / "m", tokenizer_json(odd))
    with pytest.raises(UnsupportedModelError, match="--pre NAME forces one of gpt-2, "):
        vocabulary(folder)
    with Gguf(vocabulary(folder, pre="qwen2")) as file:
        assert file.value("tokenizer.ggml.pre") == "qwen2"
    with pytest.raises(ValueError, match="pre must be one of"):
        vocabulary(folder, pre="mine")


def test_the_engine_knows_every_name(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", tokenizer_json(byte_level(True)))
    for name in PRE_NAMES:
        with Llama(vocabulary(folder, pre=name), vocab_only=True, verbose=False) as llm:
            assert llm.tokenize(b"the quick", add_bos=False)


def test_tokens_and_their_types(tmp_path: Path) -> None:
    whole = tokenizer_json(byte_level(True))
    n = len(whole["model"]["vocab"])
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    whole["added_tokens"] += [
        {"id": n, "content": "<tool>", "special": False, **plain},
        {"id": n + 2, "content": "<|im_end|>", "special": True, **plain},  # leaves a hole
    ]
    folder = model(tmp_path / "m", whole, eos_token={"content": "<|im_end|>"})
    (folder / "added_tokens.json").write_text(json.dumps({"<|im_end|>": n + 2}))
    with Gguf(vocabulary(folder)) as file:
        found = file.metadata
    tokens, types = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    assert len(tokens) == len(types) == N_VOCAB
    assert tokens[:3] == SPECIAL and types[:4] == [3, 3, 3, 1]
    assert tokens[n : n + 3] == ["<tool>", f"[PAD{n + 1}]", "<|im_end|>"]
    assert types[n : n + 3] == [4, 5, 3] and set(types[n + 3 :]) == {5}
    assert found["tokenizer.ggml.eos_token_id"] == n + 2
    assert found["tokenizer.ggml.merges"] == [" ".join(m) for m in whole["model"]["merges"]]
    assert "tokenizer.ggml.scores" not in found


def test_a_template_that_puts_bos_first(tmp_path: Path) -> None:
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A"}}],
    }
    for processor in (template, {"type": "Sequence", "processors": [template]}):
        whole = tokenizer_json(byte_level(True), post_processor=processor)
        with Gguf(vocabulary(model(tmp_path / "m", whole))) as file:
            assert file.value("tokenizer.ggml.add_bos_token") is True
            assert file.value("tokenizer.ggml.bos_token_id") == 1
    folder = model(tmp_path / "m", whole, add_bos_token=False)
    with Gguf(vocabulary(folder)) as file:
        assert file.value("tokenizer.ggml.add_bos_token") is False


def test_vocab_json_and_merges_txt(tmp_path: Path) -> None:
    whole = tokenizer_json(byte_level(True))
    folder = model(tmp_path / "m", None, tokenizer_class="GPT2TokenizerFast")
    (folder / "vocab.json").write_text(json.dumps(whole["model"]["vocab"]))
    lines = [" ".join(merge) for merge in whole["model"]["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *lines, ""]), encoding="utf-8")
    with Gguf(vocabulary(folder)) as file:
        found = file.metadata
    assert found["tokenizer.ggml.pre"] == "gpt-2" and found["tokenizer.ggml.merges"] == lines
    (folder / "tokenizer_config.json").unlink()
    with Gguf(vocabulary(folder)) as file:  # by the family then
        assert file.value("tokenizer.ggml.pre") == "qwen2"
    cfg = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**cfg, "model_type": "llama"}))
    with pytest.raises(UnsupportedModelError, match="--pre NAME"):
        vocabulary(folder)


def broken(**changes: Any) -> dict[str, Any]:
    whole = tokenizer_json(byte_level(True))
    return {**whole, "model": {**whole["model"], **changes}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"type": "WordLevel"}, "not a byte-level BPE"),
        ({"vocab": {}}, "no vocabulary"),
        ({"vocab": {"a": 0, "b": 0}}, "have the same id"),
        ({"vocab": {"a": -1}}, "not a token's id"),
        ({"vocab": {"a": True}}, "not a token's id"),
        ({"vocab": {"a": 1 << 40}}, "not a token's id"),
        ({"vocab": {str(i): i for i in range(N_VOCAB + 1)}}, f"has {N_VOCAB + 1} tokens"),
        ({"merges": None}, "no merges"),
        ({"merges": ["ab"]}, "not a pair"),
        ({"merges": [["a", "b", "c"]]}, "not a pair"),
    ],
)
def test_broken_files(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = model(tmp_path / "m", broken(**changes))
    with pytest.raises(ModelFormatError, match=words):
        vocabulary(folder)


def test_characters_instead_of_bytes(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", {**broken(), "pre_tokenizer": None})
    with pytest.raises(UnsupportedModelError, match=r"need their tokenizer\.model"):
        vocabulary(folder)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["qwen2", "falcon7b-relu", "opt"])
def test_shared_checkpoints(name: str, shared: Path, tmp_path: Path) -> None:
    folder = shared / "fixtures" / "hf" / name
    shutil.copytree(folder, tmp_path / "m")
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    with Llama(vocabulary(tmp_path / "m"), vocab_only=True, verbose=False) as llm:
        for text in TEXTS:
            ids = llm.tokenize(text.encode(), add_bos=False)
            assert ids == theirs.encode(text, add_special_tokens=False).ids, text
