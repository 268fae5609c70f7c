"""SentencePiece vocabularies without tokenizer.model: a tokenizer.json with BPE of characters and
byte tokens.

In tokenizer.json a merge is a pair of tokens with a rank. In a GGUF a token has a score, and any
two neighbours that form the token are merged. Both give the same ids: the characters of a token are
always merged in the same way, as long as no merge crosses their borders. So the last merge of a
token always joins the same two parts, and the rank of that merge is the token's score.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

from ...core.errors import ModelFormatError, UnsupportedModelError
from .model import TokenType, Vocab

SPACE = "\u2581"  # stands for a space
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# Model settings that add merges to the list or remove some.
CHANGES = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")


def as_sentencepiece(path: Path, tokenizer: dict[str, Any], vocab: Vocab) -> None:
    """Sets the types of a vocabulary of characters, and for kind "llama" scores from its merges.

    Raises UnsupportedModelError if a GGUF cannot express them, ModelFormatError for broken files.
    """
    model = tokenizer["model"]
    if model.get("ignore_merges"):
        raise UnsupportedModelError(f"{path}: a BPE model with ignore_merges")
    ids = {text: token for token, text in enumerate(vocab.texts)}
    missing = next((text for text in BYTES if text not in ids), None)
    if missing is not None:
        raise UnsupportedModelError(f"{path}: byte_fallback, but no token {missing}")
    for text in BYTES:
        vocab.types[ids[text]] = TokenType.BYTE
    unk = model.get("unk_token")
    if isinstance(unk, str) and unk in ids:
        vocab.unk = ids[unk]
        vocab.types[vocab.unk] = TokenType.UNKNOWN
    splits = _spaces(path, tokenizer, vocab)
    if vocab.kind == "llama":
        _score(path, vocab, splits)
    elif splits:
        raise UnsupportedModelError(f"{path}: a BPE of characters that stops at spaces")


def _spaces(path: Path, tokenizer: dict[str, Any], vocab: Vocab) -> bool:
    """Reads the handling of spaces from normalizer and pre_tokenizer; returns whether merges stop
    at every space."""
    unknown = UnsupportedModelError(
        f"{path}: the normalizer or pre_tokenizer has a step that SentencePiece does not have"
    )
    replaced = vocab.add_space_prefix = splits = False
    for node in nodes(tokenizer.get("normalizer"), "normalizers"):
        pattern = node.get("pattern")
        if node.get("type") == "Prepend" and node.get("prepend") == SPACE:
            vocab.add_space_prefix = True
        elif node.get("type") == "Replace" and (pattern, node.get("content")) == (
            {"String": " "},
            SPACE,
        ):
            replaced = True
        elif node.get("type") in ("NFC", "NFD", "NFKC", "NFKD"):
            vocab.notes.append("tokenizer.json normalises characters; GGUF tokenizers do not")
        else:
            raise unknown
    for node in nodes(tokenizer.get("pre_tokenizer"), "pretokenizers"):
        split = (node.get("type"), node.get("pattern"), node.get("behavior"))
        if replaced and split == ("Split", {"String": " "}, "MergedWithPrevious"):
            continue  # there are no spaces any more (Gemma)
        if node.get("type") != "Metaspace" or node.get("replacement") != SPACE:
            raise unknown
        old = "always" if node.get("add_prefix_space", True) else "never"
        if node.get("prepend_scheme", old) != "never":
            vocab.add_space_prefix = True
            vocab.notes.append(
                "tokenizer.json adds no space to a text that begins with one; GGUF tokenizers do"
            )
        replaced, splits = True, bool(node.get("split", True))
    if not replaced:
        raise unknown
    return splits


def nodes(node: Any, inner: str) -> list[dict[str, Any]]:
    """A step, or the steps of a sequence."""
    if not isinstance(node, dict):
        return []
    if node.get("type") != "Sequence":
        return [node]
    parts = node.get(inner)
    return [n for part in parts for n in nodes(part, inner)] if isinstance(parts, list) else []


def _score(path: Path, vocab: Vocab, splits: bool) -> None:
    """Sets scores: 0 for the token that is merged first, -1 for the next one, and so on."""
    ranks: dict[tuple[str, str], int] = {}
    known = set(vocab.texts)
    for rank, merge in enumerate(vocab.merges):
        left, right = merge.split(" ")
        if not {left, right, left + right} <= known:
            raise ModelFormatError(f"{path}: merge {merge!r} does not join two tokens to a token")
        ranks.setdefault((left, right), rank)
    order: dict[int, int] = {}
    for token, text in enumerate(vocab.texts):
        if vocab.types[token] != TokenType.NORMAL or token in vocab.added or len(text) < 2:
            continue
        parts, rank = _merged(text, ranks)
        if len(parts) == 1:
            order[token] = rank
        # The merges leave this token in two parts; a GGUF tokenizer would join them.
        if len(parts) == 2 or (len(parts) == 1 and splits and SPACE in text[1:]):
            raise UnsupportedModelError(
                f"{path}: its merges do not form the token {text!r}, but a GGUF tokenizer would; "
                "a SentencePiece vocabulary needs its tokenizer.model"
            )
    vocab.scores = [-float(len(order))] * len(vocab.texts)
    for score, token in enumerate(sorted(order, key=order.__getitem__)):
        vocab.scores[token] = -float(score)


def _merged(text: str, ranks: dict[tuple[str, str], int]) -> tuple[list[str], int]:
    """The tokens that a text is merged to, and the rank of the last merge."""
    parts, last, none = list(text), -1, len(ranks) + 1
    while len(parts) > 1:
        found = [ranks.get(pair, none) for pair in pairwise(parts)]
        rank = min(found)
        if rank == none:
            break
        at = found.index(rank)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        last = rank
    return parts, last
