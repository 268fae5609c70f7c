"""A vocabulary that will be written into a GGUF."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from ...core.errors import ModelFormatError
from ..writer import Entry, array, boolean, string, uint32
from .pretokenizer import IGNORE_MERGES, NFC

# A few lines of JSON can ask for 2^31 tokens of some hundred bytes each; models have thousands.
_MOST_PADDING = 1 << 18


class TokenType(IntEnum):
    """tokenizer.ggml.token_type, with the same numbers as SentencePiece's piece types."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


FLAGS = ("lstrip", "rstrip", "single_word")
_EOM = "<|eom_id|>"  # ends a message in the middle of a turn


def match_flags(entry: dict[str, Any]) -> frozenset[str]:
    """The flags of an added token in a file of transformers."""
    return frozenset(flag for flag in FLAGS if entry.get(flag) is True)


@dataclass
class Vocab:
    """Tokens by id, and the tokens that begin and end a text (None: no such token).

    kind: tokenizer.ggml.model, "llama" (SentencePiece BPE, with scores), "t5" (SentencePiece
    unigram, with scores; charsmap: what its normalizer replaces, as SentencePiece stores it;
    join_spaces: it removes spaces at both ends and repeated ones), "gpt2" (byte-level BPE, with
    merges and the name of its pre-tokeniser), "gemma4" (BPE of characters, with merges) or "bert"
    (WordPiece; how it spells a text: lowercase, strip_accents, split_ideographs).
    """

    kind: str
    texts: list[str]
    types: list[int]
    scores: list[float] = field(default_factory=list)
    merges: list[str] = field(default_factory=list)
    pre: str | None = None
    ignore_merges: bool | None = (
        None  # a piece that is a token is that token; None: as `pre` has it
    )
    bos: int | None = None
    eos: int | None = None
    unk: int | None = None
    pad: int | None = None
    sep: int | None = None  # between two texts; add_sep: behind EOS there
    mask: int | None = None
    add_sep: bool = False
    appended: int | None = None  # what the tokenizer's files add behind every text
    add_bos: bool = True
    add_eos: bool = False
    add_space_prefix: bool = False
    charsmap: bytes = b""
    join_spaces: bool = False
    nfc: bool = False  # puts texts into NFC first
    lowercase: bool = True
    strip_accents: bool = True
    split_ideographs: bool = True
    ends: list[int] = field(default_factory=list)  # further tokens that end a text
    # How added tokens are found in a text: "lstrip", "rstrip", "single_word".
    flags: dict[int, frozenset[str]] = field(default_factory=dict)
    chat_template: str | None = None
    named_templates: dict[str, str] = field(default_factory=dict)
    added: dict[int, tuple[str, TokenType]] = field(default_factory=dict)  # beyond the model's own
    notes: list[str] = field(default_factory=list)  # notes for the user
    _padding: int = 0  # unused tokens that fill gaps

    @property
    def scored(self) -> bool:
        return self.kind not in ("gpt2", "bert")

    def append(self, text: str, kind: TokenType) -> None:
        """Adds a token at the end."""
        self.texts.append(text)
        self.types.append(kind)
        if self.scored:
            self.scores.append(0.0)

    def replace(self, token: int, text: str, kind: TokenType) -> None:
        """Replaces a token."""
        self.texts[token], self.types[token] = text, kind
        if self.scored:
            self.scores[token] = 0.0

    def pad_to(self, n: int, where: Path) -> None:
        """Adds unused tokens until there are n. Raises ModelFormatError, naming `where`, for more
        than any model needs."""
        self._padding += max(0, n - len(self.texts))
        if self._padding > _MOST_PADDING:
            raise ModelFormatError(
                f"{where}: the vocabulary leaves {self._padding} ids of {n} without a token; "
                f"at most {_MOST_PADDING} can be padded"
            )
        for token in range(len(self.texts), n):
            self.append(f"[PAD{token}]", TokenType.UNUSED)

    def entries(self) -> Iterator[Entry]:
        """The GGUF's tokenizer keys."""
        yield string("tokenizer.ggml.model", self.kind)
        if self.pre is not None:
            yield string("tokenizer.ggml.pre", self.pre)
        yield array("tokenizer.ggml.tokens", "STRING", self.texts)
        if self.scored:
            yield array("tokenizer.ggml.scores", "FLOAT32", self.scores)
        yield array("tokenizer.ggml.token_type", "INT32", self.types)
        if self.kind in ("gpt2", "gemma4"):
            yield array("tokenizer.ggml.merges", "STRING", self.merges)
        for key, value in (
            ("bos", self.bos),
            ("eos", self.eos),
            ("unknown", self.unk),
            ("padding", self.pad),
            ("seperator", self.sep),  # spelt so in llama.cpp
            ("mask", self.mask),
        ):
            if value is not None:
                yield uint32(f"tokenizer.ggml.{key}_token_id", value)
        if self.ignore_merges not in (None, self.pre in IGNORE_MERGES):
            yield boolean("powerinfer.tokenizer.ignore_merges", self.ignore_merges)
        yield from self._end_entries()
        for flag in FLAGS:
            if ids := [token for token, flags in sorted(self.flags.items()) if flag in flags]:
                yield array(f"powerinfer.tokenizer.{flag}", "INT32", ids)
        yield boolean("tokenizer.ggml.add_bos_token", self.add_bos)
        yield boolean("tokenizer.ggml.add_eos_token", self.add_eos)
        if self.sep is not None:
            yield boolean("tokenizer.ggml.add_sep_token", self.add_sep)
        if self.kind == "bert":
            yield boolean("tokenizer.ggml.normalizer.lowercase", self.lowercase)
            yield boolean("tokenizer.ggml.normalizer.strip_accents", self.strip_accents)
            if not self.split_ideographs:
                yield boolean("powerinfer.tokenizer.split_ideographs", False)
        if self.kind == "gpt2" and self.nfc != (self.pre in NFC):
            yield string("powerinfer.tokenizer.normalizer", "nfc" if self.nfc else "none")
        if self.scored or self.add_space_prefix:
            yield boolean("tokenizer.ggml.add_space_prefix", self.add_space_prefix)
        if self.kind == "t5":
            yield boolean("tokenizer.ggml.remove_extra_whitespaces", self.join_spaces)
            if self.charsmap:
                yield array("tokenizer.ggml.precompiled_charsmap", "UINT8", list(self.charsmap))
        if self.chat_template is not None:
            yield string("tokenizer.chat_template", self.chat_template)
        for name, text in sorted(self.named_templates.items()):
            yield string(f"tokenizer.chat_template.{name}", text)
        if self.named_templates:
            yield array("tokenizer.chat_templates", "STRING", sorted(self.named_templates))

    def _end_entries(self) -> Iterator[Entry]:
        """A GGUF has a key for the end of a turn and one for that of a message; ours has others."""
        messages = [token for token in self.ends if self.texts[token] == _EOM]
        turns = [token for token in self.ends if token not in messages]
        for key, tokens in (("eot", turns), ("eom", messages)):
            if tokens:
                yield uint32(f"tokenizer.ggml.{key}_token_id", tokens[0])
        if rest := turns[1:] + messages[1:]:
            yield array("powerinfer.tokenizer.ends", "INT32", rest)
