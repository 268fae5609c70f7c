"""WordPiece vocabularies: tokenizer.json, or vocab.txt."""

from pathlib import Path
from typing import Any

from ...core.errors import ModelFormatError, UnsupportedModelError
from .model import TokenType, Vocab
from .spm_json import SPACE, nodes

_MORE = "##"  # before pieces that do not begin a word
_MOST_CHARACTERS = 100  # of a word, in all of them


def read_wordpiece(path: Path, tokenizer: dict[str, Any]) -> Vocab:
    """Tokens as a GGUF has them: a space (U+2581) before those that begin a word, nothing before
    the others.

    Raises UnsupportedModelError for steps that the engine does not have, ModelFormatError for
    broken files.
    """
    model = tokenizer["model"]
    ids = model.get("vocab")
    if not isinstance(ids, dict) or not ids:
        raise ModelFormatError(f"{path}: no vocabulary")
    if model.get("continuing_subword_prefix", _MORE) != _MORE:
        raise UnsupportedModelError(f"{path}: pieces that continue a word without {_MORE}")
    if model.get("max_input_chars_per_word", _MOST_CHARACTERS) != _MOST_CHARACTERS:
        raise UnsupportedModelError(f"{path}: max_input_chars_per_word is not {_MOST_CHARACTERS}")
    by_id = {token: text for text, token in ids.items() if type(token) is int}
    if sorted(by_id) != list(range(len(ids))):
        raise ModelFormatError(f"{path}: the ids of tokens are not those from 0 on")
    vocab = _vocab([by_id[token] for token in range(len(ids))], str(model.get("unk_token")), path)
    steps = nodes(tokenizer.get("normalizer"), "normalizers")
    if [step.get("type") for step in steps] != ["BertNormalizer"] or not steps[0].get("clean_text"):
        raise UnsupportedModelError(f"{path}: a WordPiece model without BERT's normalizer")
    _normalizer(vocab, steps[0], "handle_chinese_chars", "lowercase")
    steps = nodes(tokenizer.get("pre_tokenizer"), "pretokenizers")
    if [step.get("type") for step in steps] != ["BertPreTokenizer"]:
        raise UnsupportedModelError(f"{path}: a WordPiece model without BERT's pre_tokenizer")
    return vocab


def read_vocab_txt(path: Path, settings: dict[str, Any]) -> Vocab:
    """The same of a file with a token in each line, and tokenizer_config.json's settings."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError:
        raise ModelFormatError(f"{path}: not UTF-8") from None
    texts = [line.removesuffix("\r") for line in lines]
    while texts and not texts[-1]:
        texts.pop()
    special = {name: settings.get(f"{name}_token", f"[{name.upper()}]") for name in ("cls", "sep")}
    vocab = _vocab(texts, str(settings.get("unk_token", "[UNK]")), path)
    _normalizer(vocab, settings, "tokenize_chinese_chars", "do_lower_case")
    for name in ("cls", "sep", "mask", "pad"):
        text = settings.get(f"{name}_token", f"[{name.upper()}]")
        if text in texts:
            token = texts.index(text)
            vocab.added[token] = (text, TokenType.CONTROL)
    vocab.bos, vocab.appended = (
        texts.index(text) if text in texts else None for text in special.values()
    )
    return vocab


def _normalizer(vocab: Vocab, step: dict[str, Any], ideographs: str, lowercase: str) -> None:
    vocab.lowercase = step.get(lowercase) is not False
    accents = step.get("strip_accents")
    vocab.strip_accents = vocab.lowercase if accents is None else bool(accents)
    vocab.split_ideographs = step.get(ideographs) is not False


def _vocab(texts: list[str], unk: str, path: Path) -> Vocab:
    if unk not in texts:
        raise ModelFormatError(f"{path}: there is no token {unk} for unknown words")
    vocab = Vocab("bert", [], [])
    for text in texts:
        stored = text.removeprefix(_MORE) if text.startswith(_MORE) else SPACE + text
        vocab.append(stored, TokenType.NORMAL)
    vocab.unk = texts.index(unk)
    return vocab
