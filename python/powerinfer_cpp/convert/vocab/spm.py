"""SentencePiece vocabularies: tokenizer.model."""

from pathlib import Path
from typing import Any

from ...core.errors import ModelFormatError, UnsupportedModelError
from .model import Vocab

_UNIGRAM, _BPE = 1, 2  # trainer_spec.model_type


def read_sentencepiece(path: Path) -> Vocab:
    """Pieces, scores and types of tokenizer.model."""
    from sentencepiece import SentencePieceProcessor

    try:
        processor = SentencePieceProcessor(model_proto=path.read_bytes())
    except RuntimeError as error:
        raise ModelFormatError(f"{path}: not a SentencePiece model: {error}") from None
    proto = _message(processor.serialized_model_proto())
    trainer = dict(_message(_only(proto, 2, b"")))
    if (algorithm := trainer.get(3, 1)) not in (_UNIGRAM, _BPE):
        raise UnsupportedModelError(f"{path}: neither a unigram nor a BPE model")
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
        kind="t5" if algorithm == _UNIGRAM else "llama",
        texts=[processor.id_to_piece(i) for i in range(n)],
        scores=[processor.get_score(i) for i in range(n)],
        types=[piece.get(3, 1) for piece in pieces],
        **{name: token if token >= 0 else None for name, token in special.items()},
        add_space_prefix=bool(normalizer.get(3, 1)),
    )
    if not normalizer.get(5, 1):
        raise UnsupportedModelError(f"{path}: escape_whitespaces is off")
    if trainer.get(24, 0):
        raise UnsupportedModelError(f"{path}: treat_whitespace_as_suffix is on")
    if vocab.kind == "t5":
        vocab.charsmap = bytes(normalizer.get(2, b""))
        vocab.join_spaces = bool(normalizer.get(4, 1))
        return vocab
    if normalizer.get(2, b""):
        vocab.notes.append("tokenizer.model normalises characters; GGUF tokenizers do not")
    if normalizer.get(4, 1):
        vocab.notes.append("tokenizer.model joins repeated spaces; GGUF tokenizers do not")
    return vocab


def _message(data: bytes) -> list[tuple[int, Any]]:
    """Fields of a protocol buffer message that the sentencepiece package has accepted.

    (number, value): int for varints, bytes for the rest. The package's Python interface does not
    report user-defined pieces or the kind of model.
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
