"""BPE vocabularies, mostly byte-level: tokenizer.json, or vocab.json and merges.txt."""

from pathlib import Path
from typing import Any

from ...core.errors import ModelFormatError, UnsupportedModelError
from ..checkpoint import read_json
from .model import TokenType, Vocab, match_flags
from .pretokenizer import PRE_NAMES, find_pre, is_byte_level, prefixes_space
from .spm_json import CHANGES, as_sentencepiece, nodes
from .unigram_json import read_unigram
from .wordpiece import read_vocab_txt, read_wordpiece

# Characters that stand for bytes: printable ones of Latin-1 for themselves, others for the rest.
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTE_LETTERS = {chr(point) for point in (*_PRINTABLE, *range(256, 512 - len(_PRINTABLE)))}

# Without tokenizer.json: the rule of a tokenizer's class, else of a family.
_PRE_OF_CLASS = {"GPT2Tokenizer": "gpt-2", "Qwen2Tokenizer": "qwen2"}
_PRE_OF_FAMILY = {
    "gpt2": "gpt-2",
    "opt": "gpt-2",
    "qwen2": "qwen2",
    "qwen3": "qwen2",
    "qwen3_moe": "qwen2",
    "smallthinker": "qwen2",
}
# Families of which llama.cpp keeps the merges of a BPE of characters, instead of scores.
_OF_CHARACTERS = ("gemma4", "gemma4_text", "embedding_gemma2", "embedding_gemma2_text")


# Post-processors with a token before and one behind each text; and how many stand between two.
_WITH_CLS = {"BertProcessing": 1, "RobertaProcessing": 2}


def read_bpe(folder: Path, settings: dict[str, Any], family: str, pre: str | None) -> Vocab:
    """Tokens and merges; special ids come from tokenizer_config.json and config.json.

    pre: one of PRE_NAMES, overrides the one found. Raises FileNotFoundError, ModelFormatError,
    UnsupportedModelError, ValueError for an unknown `pre`.
    """
    if (folder / "tokenizer.json").exists():
        return _from_json(folder / "tokenizer.json", settings, family, pre)
    if (folder / "vocab.txt").exists():
        return read_vocab_txt(folder / "vocab.txt", settings)
    if not (folder / "vocab.json").exists():
        raise FileNotFoundError(
            f"{folder}: no tokenizer.model, tokenizer.json or vocab.json: there is no tokenizer"
        )
    merges = folder / "merges.txt"
    try:
        lines = merges.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError:
        raise ModelFormatError(f"{merges}: not UTF-8") from None
    found = [line.rstrip("\r") for line in lines]
    found = [line for line in found if line and not line.startswith("#version")]
    if pre is None:
        name = str(settings.get("tokenizer_class", "")).removesuffix("Fast")
        pre = _PRE_OF_CLASS.get(name) or _PRE_OF_FAMILY.get(family)
    vocab = _vocab(folder / "vocab.json", read_json(folder / "vocab.json"), found)
    vocab.pre = _named(pre, f"{folder}: without tokenizer.json the pre-tokeniser is not known")
    vocab.add_bos = False
    vocab.add_space_prefix = settings.get("add_prefix_space") is True
    return vocab


def _from_json(path: Path, settings: dict[str, Any], family: str, pre: str | None) -> Vocab:
    tokenizer = read_json(path)
    model = tokenizer.get("model")
    if not isinstance(model, dict):
        raise ModelFormatError(f"{path}: no model")
    if model.get("type") == "Unigram":
        return _finished(path, tokenizer, read_unigram(path, tokenizer))
    if model.get("type") == "WordPiece":
        return _finished(path, tokenizer, read_wordpiece(path, tokenizer))
    byte_level = is_byte_level(tokenizer)
    if model.get("type", "BPE") != "BPE" or not (byte_level or model.get("byte_fallback")):
        raise UnsupportedModelError(
            f"{path}: not a byte-level BPE, nor a BPE with byte_fallback; other SentencePiece "
            "vocabularies need their tokenizer.model"
        )
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise ModelFormatError(f"{path}: no merges")
    for name in CHANGES:
        if model.get(name):
            raise UnsupportedModelError(f"{path}: a BPE model with {name}")
    vocab = _vocab(
        path,
        model.get("vocab"),
        [_merge(path, merge) for merge in merges],
        "gpt2" if byte_level else "gemma4" if family in _OF_CHARACTERS else "llama",
    )
    if byte_level:
        vocab.pre = _named(
            pre or find_pre(tokenizer), f"{path}: the pre-tokeniser's rule is not known"
        )
        vocab.ignore_merges = bool(model.get("ignore_merges"))
        vocab.unk = _unknown(path, model, set(vocab.texts))
        prefix = prefixes_space(tokenizer, settings.get("add_prefix_space"))
        if prefix is None:
            raise UnsupportedModelError(
                f"{path}: a step that adds spaces (add_prefix_space) behind one that divides a text"
            )
        vocab.add_space_prefix = prefix
        steps = [step.get("type") for step in nodes(tokenizer.get("normalizer"), "normalizers")]
        vocab.nfc = steps == ["NFC"]
        if steps and not vocab.nfc:
            vocab.notes.append("tokenizer.json normalises characters; GGUF tokenizers do not")
    else:
        as_sentencepiece(path, tokenizer, vocab)
    return _finished(path, tokenizer, vocab)


def _unknown(path: Path, model: dict[str, Any], texts: set[str]) -> int | None:
    """The token of a byte that has none."""
    unk = model.get("unk_token")
    if not isinstance(unk, str) or unk not in texts:
        return None
    if model.get("fuse_unk") and BYTE_LETTERS - texts:
        raise UnsupportedModelError(f"{path}: a BPE model with fuse_unk, and bytes without a token")
    return int(model["vocab"][unk])


def _finished(path: Path, tokenizer: dict[str, Any], vocab: Vocab) -> Vocab:
    """The vocabulary with added tokens, and with those before and behind every text."""
    entries = tokenizer.get("added_tokens") or []
    vocab.added = dict(_added(path, entry) for entry in entries)
    vocab.flags = {entry["id"]: match_flags(entry) for entry in entries}
    first = _special_piece(tokenizer.get("post_processor"), 0)
    last = _special_piece(tokenizer.get("post_processor"), -1)
    between = _between(tokenizer.get("post_processor"))
    texts = {text: token for token, (text, _) in vocab.added.items()}
    vocab.sep = texts.get(between[-1]) if between else None
    vocab.add_sep = len(between) > 1
    vocab.add_bos = first is not None
    vocab.bos = texts.get(first) if first else None
    vocab.appended = texts.get(last) if last else None
    return vocab


def _named(pre: str | None, why: str) -> str:
    if pre is None:
        raise UnsupportedModelError(f"{why}: --pre NAME forces one of {', '.join(PRE_NAMES)}")
    if pre not in PRE_NAMES:
        raise ValueError(f"pre must be one of {', '.join(PRE_NAMES)}, not {pre!r}")
    return pre


def _vocab(path: Path, ids: Any, merges: list[str], kind: str = "gpt2") -> Vocab:
    """Tokens in the order of their ids; missing ids become unused tokens."""
    if not isinstance(ids, dict) or not ids:
        raise ModelFormatError(f"{path}: no vocabulary")
    by_id: dict[int, str] = {}
    for text, token in ids.items():
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 1 << 24:
            raise ModelFormatError(f"{path}: the id of {text!r} is not a token's id")
        if token in by_id:
            raise ModelFormatError(
                f"{path}: {text!r} and {by_id[token]!r} have the same id {token}"
            )
        by_id[token] = text
    if not merges and kind != "llama":
        raise UnsupportedModelError(f"{path}: a BPE model with no merges, which no GGUF has")
    vocab = Vocab(kind, [], [], merges=merges)
    for token, text in sorted(by_id.items()):
        vocab.pad_to(token, path)
        vocab.append(text, TokenType.NORMAL)
    return vocab


def _merge(path: Path, merge: Any) -> str:
    """A merge as "left right"; some files store a pair."""
    if isinstance(merge, list) and len(merge) == 2 and all(isinstance(m, str) for m in merge):
        merge = " ".join(merge)
    if not isinstance(merge, str) or merge.count(" ") != 1:
        raise ModelFormatError(f"{path}: merge {merge!r} is not a pair of tokens")
    return merge


def _added(path: Path, entry: Any) -> tuple[int, tuple[str, TokenType]]:
    if (
        not isinstance(entry, dict)
        or not isinstance(entry.get("id"), int)
        or not 0 <= entry["id"] < 1 << 24
        or not isinstance(entry.get("content"), str)
    ):
        raise ModelFormatError(f"{path}: added token {entry!r} is malformed")
    kind = TokenType.CONTROL if entry.get("special") else TokenType.USER_DEFINED
    return entry["id"], (entry["content"], kind)


def _special_piece(processor: Any, at: int) -> str | None:
    """The special token that the post-processor adds before (0) or behind (-1) every text."""
    if not isinstance(processor, dict):
        return None
    if processor.get("type") == "Sequence":
        parts = processor.get("processors")
        found = [_special_piece(part, at) for part in parts] if isinstance(parts, list) else []
        return next((text for text in found if text), None)
    if processor.get("type") in _WITH_CLS:
        special = processor.get("sep" if at else "cls")
        return str(special[0]) if isinstance(special, list) and special else None
    single = processor.get("single")
    if processor.get("type") != "TemplateProcessing" or not isinstance(single, list) or not single:
        return None
    piece = single[at].get("SpecialToken") if isinstance(single[at], dict) else None
    text = piece.get("id") if isinstance(piece, dict) else None
    return text if isinstance(text, str) else None


def _between(processor: Any) -> list[str]:
    """The special tokens that the post-processor puts between two texts."""
    if not isinstance(processor, dict):
        return []
    if processor.get("type") == "Sequence":
        parts = processor.get("processors")
        return next(filter(None, map(_between, parts if isinstance(parts, list) else [])), [])
    if (n := _WITH_CLS.get(str(processor.get("type")))) is not None:
        return [text] * n if (text := _special_piece(processor, -1)) else []
    pair = processor.get("pair")
    if not isinstance(pair, list) or not all(isinstance(piece, dict) for piece in pair):
        return []
    sequences = [i for i, piece in enumerate(pair) if "Sequence" in piece]
    if len(sequences) != 2:
        return []
    found = [piece.get("SpecialToken") for piece in pair[sequences[0] + 1 : sequences[1]]]
    return [str(piece.get("id")) for piece in found if isinstance(piece, dict)]
