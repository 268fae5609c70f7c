"""Vocabularies: tokenizer.model or byte-level BPE, plus the settings files of transformers."""

from pathlib import Path
from typing import Any

from ...core.errors import ModelFormatError
from ..checkpoint import read_json
from ..config import Config
from ..unread import first_names
from .bpe import read_bpe
from .model import TokenType, Vocab, match_flags
from .pretokenizer import PRE_NAMES
from .spm import read_sentencepiece
from .spm_json import SPACE
from .templates import read_templates

_OF_LLAMA = ("LlamaTokenizer", "CodeLlamaTokenizer")  # whose add_prefix_space counts

__all__ = ["PRE_NAMES", "Vocab", "read_vocab"]


def read_vocab(folder: Path, config: Config, n_vocab: int, pre: str | None = None) -> Vocab:
    """The vocabulary of a folder whose model has n_vocab tokens; the caller pads it to n_vocab.

    pre: the pre-tokeniser's name, overrides the one that tokenizer.json describes. Raises
    FileNotFoundError without a vocabulary, UnsupportedModelError for unknown kinds,
    ModelFormatError if the files contradict each other.
    """
    path = folder / "tokenizer_config.json"
    settings = read_json(path) if path.exists() else {}
    if (folder / "tokenizer.model").exists():
        vocab = read_sentencepiece(folder / "tokenizer.model")
    else:
        vocab = read_bpe(folder, settings, config.model_type(), pre)
    if vocab.kind == "llama" and str(settings.get("tokenizer_class")).startswith(_OF_LLAMA):
        vocab.add_space_prefix = _setting(settings, "add_prefix_space", vocab.add_space_prefix)
    added = _added_tokens(folder, settings, vocab.added)
    if len(vocab.texts) > n_vocab:
        raise ModelFormatError(
            f"{folder}: the tokenizer has {len(vocab.texts)} tokens, config.json only {n_vocab}"
        )
    if beyond := [text for token, (text, _) in sorted(added.items()) if token >= n_vocab]:
        added = {token: entry for token, entry in added.items() if token < n_vocab}
        vocab.notes.append(
            f"added tokens without a row in the embedding are left out: {first_names(beyond)}"
        )
    for token, (text, kind) in sorted(added.items()):
        _add(vocab, token, text, kind, folder)
    if vocab.scored:  # user-defined tokens are searched for in the raw text
        for token, text in enumerate(vocab.texts):
            if vocab.types[token] == TokenType.USER_DEFINED:
                vocab.texts[token] = text.replace(SPACE, " ")
    _special_ids(vocab, config, settings, n_vocab)
    if vocab.appended is not None and vocab.appended < n_vocab:
        # A GGUF can append EOS only: as in llama.cpp the token takes its place.
        if vocab.eos not in (None, vocab.appended):
            vocab.ends.append(vocab.eos)
        vocab.eos, vocab.add_eos = vocab.appended, True
    vocab.add_bos = _setting(settings, "add_bos_token", vocab.add_bos) and vocab.bos is not None
    vocab.add_eos = _setting(settings, "add_eos_token", vocab.add_eos) and vocab.eos is not None
    flags = _flags(settings)
    for token in added:
        vocab.flags[token] = flags.get(token, vocab.flags.get(token, frozenset()))
    vocab.flags = {token: vocab.flags[token] for token in sorted(added) if vocab.flags[token]}
    _ends(folder, vocab, config, n_vocab)
    vocab.chat_template, vocab.named_templates = read_templates(folder, settings)
    return vocab


def _added_tokens(
    folder: Path, settings: dict[str, Any], own: dict[int, tuple[str, TokenType]]
) -> dict[int, tuple[str, TokenType]]:
    """id -> (text, type) from added_tokens.json, the tokenizer's own, tokenizer_config.json."""
    added: dict[int, tuple[str, TokenType]] = {}
    path = folder / "added_tokens.json"
    if path.exists():
        for text, token in read_json(path).items():
            if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                raise ModelFormatError(f"{path}: the id of {text!r} is not a token's id")
            added[token] = (text, TokenType.USER_DEFINED)
    added.update(own)
    decoder = settings.get("added_tokens_decoder") or {}
    for token, entry in decoder.items() if isinstance(decoder, dict) else ():
        if not (token.isdecimal() and isinstance(entry, dict) and _content(entry)):
            raise ModelFormatError(
                f"{folder / 'tokenizer_config.json'}: added token {token!r} is malformed"
            )
        special = TokenType.CONTROL if entry.get("special") else TokenType.USER_DEFINED
        added[int(token)] = (_content(entry), special)
    return added


def _add(vocab: Vocab, token: int, text: str, kind: TokenType, folder: Path) -> None:
    """Appends an added token, or replaces the piece with its id."""
    if token < len(vocab.texts):
        if vocab.texts[token] != text or vocab.types[token] == TokenType.NORMAL:
            vocab.replace(token, text, kind)
    elif token == len(vocab.texts) or vocab.kind == "gpt2":
        vocab.pad_to(token, folder)  # byte-level vocabularies have holes
        vocab.append(text, kind)
    else:
        raise ModelFormatError(
            f"{folder}: added token {text!r} has id {token}, but no token has id {len(vocab.texts)}"
        )


def _special_ids(vocab: Vocab, config: Config, settings: dict[str, Any], n_vocab: int) -> None:
    """Sets bos, eos, unk, pad from tokenizer_config.json's text, else from config.json's id."""
    for name in ("bos", "eos", "unk", "pad", "mask"):
        text = _content(settings.get(f"{name}_token"))
        token = config.values.get(f"{name}_token_id")
        token = token[0] if isinstance(token, list) and token else token
        if text in vocab.texts:
            setattr(vocab, name, vocab.texts.index(text))
        elif isinstance(token, int) and 0 <= token < n_vocab:
            setattr(vocab, name, token)


def _flags(settings: dict[str, Any]) -> dict[int, frozenset[str]]:
    """How the added tokens of tokenizer_config.json are found in a text."""
    decoder = settings.get("added_tokens_decoder")
    found = decoder.items() if isinstance(decoder, dict) else ()
    return {int(token): match_flags(entry) for token, entry in found}


def _ends(folder: Path, vocab: Vocab, config: Config, n_vocab: int) -> None:
    """Sets the tokens besides EOS that end a text: those of generation_config.json, which decides
    in transformers, else of config.json."""
    path = folder / "generation_config.json"
    generation = read_json(path) if path.is_file() else {}
    ends = generation.get("eos_token_id")
    ends = config.values.get("eos_token_id") if ends is None else ends
    for token in ends if isinstance(ends, list) else [ends]:
        if type(token) is int and 0 <= token < n_vocab and token not in (vocab.eos, *vocab.ends):
            vocab.ends.append(token)


def _content(value: Any) -> str | None:
    """A token's text: a string, or the `content` of an object."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) and value else None


def _setting(settings: dict[str, Any], key: str, default: bool) -> bool:
    value = settings.get(key)
    return value if isinstance(value, bool) else default
