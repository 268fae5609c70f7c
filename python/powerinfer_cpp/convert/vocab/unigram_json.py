"""SentencePiece unigram vocabularies without tokenizer.model: a tokenizer.json with scores."""

import binascii
import math
from base64 import b64decode
from pathlib import Path
from typing import Any

from ...core.errors import ModelFormatError, UnsupportedModelError
from .model import TokenType, Vocab
from .spm_json import BYTES, SPACE, nodes

_REPEATED = ({"Regex": " {2,}"}, {"Regex": "[ ]{2,}"})


def read_unigram(path: Path, tokenizer: dict[str, Any]) -> Vocab:
    """Tokens, scores, and the normalizer as SentencePiece has it.

    Raises UnsupportedModelError for steps that it does not have, ModelFormatError for broken files.
    """
    model = tokenizer["model"]
    pieces = model.get("vocab")
    if not isinstance(pieces, list) or not pieces:
        raise ModelFormatError(f"{path}: no vocabulary")
    vocab = Vocab("t5", [], [])
    for piece in pieces:
        if not (isinstance(piece, list) and len(piece) == 2 and isinstance(piece[0], str)):
            raise ModelFormatError(f"{path}: {piece!r} is not a token and its score")
        text, score = piece
        if isinstance(score, bool) or not isinstance(score, int | float) or math.isnan(score):
            raise ModelFormatError(f"{path}: the score of {text!r} is not a number")
        vocab.append(text, TokenType.NORMAL)
        vocab.scores[-1] = float(score)
    if model.get("byte_fallback"):
        ids = {text: token for token, text in enumerate(vocab.texts)}
        for text in BYTES:
            if text not in ids:
                raise UnsupportedModelError(f"{path}: byte_fallback, but no token {text}")
            vocab.types[ids[text]] = TokenType.BYTE
    unk = model.get("unk_id")
    if isinstance(unk, int) and 0 <= unk < len(vocab.texts):
        vocab.unk = unk
        vocab.types[unk] = TokenType.UNKNOWN
    _normalizer(path, tokenizer, vocab)
    return vocab


def _normalizer(path: Path, tokenizer: dict[str, Any], vocab: Vocab) -> None:
    """Reads normalizer and pre_tokenizer."""
    spaces = False
    for node in nodes(tokenizer.get("normalizer"), "normalizers"):
        kind, pattern, content = (node.get(key) for key in ("type", "pattern", "content"))
        if kind == "Precompiled":
            vocab.charsmap = _charsmap(path, node.get("precompiled_charsmap"))
        elif (kind == "Replace" and pattern in _REPEATED and content in (" ", SPACE)) or (
            kind == "Strip" and node.get("strip_left") and node.get("strip_right")
        ):
            vocab.join_spaces = True
        elif kind == "Replace" and (pattern, content) == ({"String": " "}, SPACE):
            spaces = True
        elif kind == "Prepend" and node.get("prepend") == SPACE:
            vocab.add_space_prefix = True
        else:
            raise _unknown(path)
    for node in nodes(tokenizer.get("pre_tokenizer"), "pretokenizers"):
        if node.get("type") == "WhitespaceSplit":
            vocab.join_spaces = True
        elif node.get("type") == "Metaspace" and node.get("replacement") == SPACE:
            old = "always" if node.get("add_prefix_space", True) else "never"
            vocab.add_space_prefix |= node.get("prepend_scheme", old) != "never"
            spaces = True
        else:
            raise _unknown(path)
    if not spaces:
        raise _unknown(path)


def _unknown(path: Path) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{path}: the normalizer or pre_tokenizer has a step that SentencePiece does not have"
    )


def _charsmap(path: Path, text: Any) -> bytes:
    try:
        return b64decode(text or "", validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise ModelFormatError(f"{path}: precompiled_charsmap is not base64") from None
