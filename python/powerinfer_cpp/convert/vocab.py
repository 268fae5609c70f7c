"""SentencePiece vocabularies: tokenizer.model and the files that transformers puts beside it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from ..errors import ModelFormatError, UnsupportedModelError
from .checkpoint import read_json
from .config import Config
from .writer import Entry, array, boolean, string, uint32


class TokenType(IntEnum):
    """tokenizer.ggml.token_type; SentencePiece numbers its piece types alike."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass
class Vocab:
    """Tokens by id, and what begins and ends a text (None: nothing does)."""

    texts: list[str]
    scores: list[float]
    types: list[int]
    bos: int | None
    eos: int | None
    unk: int | None
    pad: int | None = None
    add_bos: bool = True
    add_eos: bool = False
    add_space_prefix: bool = True
    chat_template: str | None = None
    notes: list[str] = field(default_factory=list)  # what the user should know

    def entries(self) -> Iterator[Entry]:
        """The GGUF's tokenizer keys."""
        yield string("tokenizer.ggml.model", "llama")
        yield array("tokenizer.ggml.tokens", "STRING", self.texts)
        yield array("tokenizer.ggml.scores", "FLOAT32", self.scores)
        yield array("tokenizer.ggml.token_type", "INT32", self.types)
        for key, value in (
            ("bos", self.bos),
            ("eos", self.eos),
            ("unknown", self.unk),
            ("padding", self.pad),
        ):
            if value is not None:
                yield uint32(f"tokenizer.ggml.{key}_token_id", value)
        yield boolean("tokenizer.ggml.add_bos_token", self.add_bos)
        yield boolean("tokenizer.ggml.add_eos_token", self.add_eos)
        yield boolean("tokenizer.ggml.add_space_prefix", self.add_space_prefix)
        if self.chat_template is not None:
            yield string("tokenizer.chat_template", self.chat_template)


def read_vocab(folder: Path, config: Config, n_vocab: int) -> Vocab:
    """The vocabulary of a model folder, padded with unused tokens to n_vocab.

    Raises FileNotFoundError, UnsupportedModelError without a SentencePiece BPE model, and
    ModelFormatError where the files contradict each other.
    """
    vocab = _sentencepiece(folder / "tokenizer.model")
    path = folder / "tokenizer_config.json"
    settings = read_json(path) if path.exists() else {}
    added = _added_tokens(folder, settings)
    for token, (text, kind) in sorted(added.items()):
        _add(vocab, token, text, kind, folder)
    if len(vocab.texts) > n_vocab:
        raise ModelFormatError(
            f"{folder}: the tokenizer has {len(vocab.texts)} tokens, config.json only {n_vocab}"
        )
    for token in range(len(vocab.texts), n_vocab):
        _append(vocab, f"[PAD{token}]", TokenType.UNUSED)
    _special_ids(vocab, config, settings)
    vocab.add_bos = _setting(settings, "add_bos_token", vocab.add_bos) and vocab.bos is not None
    vocab.add_eos = _setting(settings, "add_eos_token", vocab.add_eos) and vocab.eos is not None
    vocab.chat_template = _chat_template(folder, settings)
    return vocab


def _sentencepiece(path: Path) -> Vocab:
    """Pieces, scores and types of tokenizer.model."""
    from sentencepiece import SentencePieceProcessor

    if not path.exists():
        if path.with_name("tokenizer.json").exists():
            raise UnsupportedModelError(
                f"{path.parent}: only SentencePiece vocabularies (tokenizer.model) are supported"
            )
        raise FileNotFoundError(f"{path}: no such file; the model has no tokenizer")
    try:
        processor = SentencePieceProcessor(model_proto=path.read_bytes())
    except RuntimeError as error:
        raise ModelFormatError(f"{path}: not a SentencePiece model: {error}") from None
    proto = _message(processor.serialized_model_proto())
    trainer = dict(_message(_only(proto, 2, b"")))
    if trainer.get(3, 1) != 2:
        raise UnsupportedModelError(f"{path}: a unigram model; only BPE models are supported")
    normalizer = dict(_message(_only(proto, 3, b"")))
    pieces = [dict(_message(data)) for number, data in proto if number == 1]
    n = processor.get_piece_size()
    special = {
        "bos": processor.bos_id(),
        "eos": processor.eos_id(),
        "unk": processor.unk_id(),
        "pad": processor.pad_id(),
    }
    vocab = Vocab(
        texts=[processor.id_to_piece(i) for i in range(n)],
        scores=[processor.get_score(i) for i in range(n)],
        types=[piece.get(3, 1) for piece in pieces],
        **{name: token if token >= 0 else None for name, token in special.items()},
        add_space_prefix=bool(normalizer.get(3, 1)),
    )
    if normalizer.get(2, b""):
        vocab.notes.append("tokenizer.model normalises characters; GGUF tokenizers do not")
    if normalizer.get(4, 1):
        vocab.notes.append("tokenizer.model joins repeated spaces; GGUF tokenizers do not")
    return vocab


def _message(data: bytes) -> list[tuple[int, Any]]:
    """Fields of a protocol buffer message that the sentencepiece package has accepted.

    (number, value): int for varints, bytes for the rest. The package's Python interface tells
    neither user-defined pieces nor the kind of model.
    """
    fields, at = [], 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = varint()
        kind = tag & 7
        if kind == 0:
            fields.append((tag >> 3, varint()))
            continue
        size = varint() if kind == 2 else {1: 8, 5: 4}[kind]
        fields.append((tag >> 3, data[at : at + size]))
        at += size
    return fields


def _only(fields: list[tuple[int, Any]], number: int, default: bytes) -> bytes:
    return next((value for n, value in fields if n == number), default)


def _added_tokens(folder: Path, settings: dict[str, Any]) -> dict[int, tuple[str, TokenType]]:
    """id -> (text, type) from added_tokens.json and tokenizer_config.json, which wins."""
    added: dict[int, tuple[str, TokenType]] = {}
    path = folder / "added_tokens.json"
    if path.exists():
        for text, token in read_json(path).items():
            if isinstance(token, bool) or not isinstance(token, int):
                raise ModelFormatError(f"{path}: the id of {text!r} is no integer")
            added[token] = (text, TokenType.USER_DEFINED)
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
    """Puts an added token after the pieces, or over the piece that has its id."""
    if token < len(vocab.texts):
        if vocab.texts[token] != text or vocab.types[token] == TokenType.NORMAL:
            vocab.texts[token], vocab.types[token], vocab.scores[token] = text, kind, 0.0
    elif token == len(vocab.texts):
        _append(vocab, text, kind)
    else:
        raise ModelFormatError(
            f"{folder}: added token {text!r} has id {token}, but no token has id {len(vocab.texts)}"
        )


def _append(vocab: Vocab, text: str, kind: TokenType) -> None:
    vocab.texts.append(text)
    vocab.scores.append(0.0)
    vocab.types.append(kind)


def _special_ids(vocab: Vocab, config: Config, settings: dict[str, Any]) -> None:
    """bos, eos, unk, pad: by tokenizer_config.json's text, else config.json's id, else as is."""
    for name in ("bos", "eos", "unk", "pad"):
        text = _content(settings.get(f"{name}_token"))
        token = config.values.get(f"{name}_token_id")
        token = token[0] if isinstance(token, list) and token else token
        if text in vocab.texts:
            setattr(vocab, name, vocab.texts.index(text))
        elif isinstance(token, int) and 0 <= token < len(vocab.texts):
            setattr(vocab, name, token)


def _content(value: Any) -> str | None:
    """A token's text, which is a string or an object with `content`."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) and value else None


def _setting(settings: dict[str, Any], key: str, default: bool) -> bool:
    value = settings.get(key)
    return value if isinstance(value, bool) else default


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    """The template as a string; of several named ones, "default"."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = [t for t in template if isinstance(t, dict) and t.get("name") == "default"]
        template = named[0].get("template") if named else None
    return template if isinstance(template, str) and template else None
