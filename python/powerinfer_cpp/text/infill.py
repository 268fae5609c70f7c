"""Prompts for text in the middle: what comes before and after it, between a model's FIM tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.gguf import Gguf
from ..core.model import Model

# Keys of the tokens in files, newer ones first, and texts of the tokens for files without keys:
# llama.cpp's lists.
_KEYS = {
    "prefix": ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"),
    "suffix": ("tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"),
    "middle": ("tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"),
    "repository": ("tokenizer.ggml.fim_rep_token_id",),
    "file": ("tokenizer.ggml.fim_sep_token_id",),
}
_NEEDED = ("prefix", "suffix", "middle")
_TEXTS = {
    "prefix": ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uff5cfim\u2581begin\uff5c>"),
    "suffix": ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\uff5cfim\u2581hole\uff5c>"),
    "middle": ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\uff5cfim\u2581end\uff5c>"),
}
_TEXTS["repository"] = ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>")
_TEXTS["file"] = ("<|file_sep|>", "<file_sep>")
_TEXTS["prefix"] += ("<PRE>", "\u2581<PRE>", "<|code_prefix|>")
_TEXTS["suffix"] += ("<SUF>", "\u2581<SUF>", "<|code_suffix|>")
_TEXTS["middle"] += ("<MID>", "\u2581<MID>", "<|code_middle|>")


@dataclass(frozen=True)
class FimTokens:
    """Ids of the tokens before the prefix, the suffix and the middle; and, where a model was
    trained with whole repositories, of those before a repository and before each file."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    file: int | None = None


def fim_tokens(gguf: Gguf, n_vocab: int) -> FimTokens | None:
    """The FIM tokens of a model; None if it lacks one of the first three.

    An id outside the vocabulary, of which the engine's log has a note, counts as missing.
    """
    found: dict[str, int] = {}
    for part, keys in _KEYS.items():
        for key in keys:
            known = gguf.value(key)
            if isinstance(known, int) and 0 <= known < n_vocab:
                found.setdefault(part, known)
    if len(found) < len(_KEYS):
        tokens = gguf.value("tokenizer.ggml.tokens")
        ids = {text: i for i, text in enumerate(tokens if isinstance(tokens, list) else [])}
        for part, texts in _TEXTS.items():
            of = next((ids[text] for text in texts if text in ids), None)
            if of is not None:
                found.setdefault(part, of)
    return FimTokens(**found) if all(part in found for part in _NEEDED) else None


def infill_ids(
    model: Model,
    tokens: FimTokens | None,
    prefix: bytes | Sequence[int],
    suffix: bytes | Sequence[int],
    suffix_first: bool = False,
    files: Sequence[tuple[str, str]] = (),
    most: int | None = None,
) -> list[int]:
    """The ids after which a model writes what belongs between prefix and suffix.

    As in llama.cpp: BOS if the file asks for it, then prefix and suffix, each behind its token, in
    this order or suffix_first, then the token of the middle. Texts of control tokens are text here.
    files: names and texts of others, which stand before them, in the way of repositories
    (arXiv:2409.12186) where the model has tokens for that. most: ids of all together, for which
    the beginnings of the files are left out. Raises ValueError for a model without FIM tokens.
    """
    if tokens is None:
        raise ValueError(
            f"{model.path} has no FIM tokens (tokenizer.ggml.fim_pre_token_id ...): it cannot take "
            "a suffix"
        )
    if isinstance(prefix, bytes):
        prefix = model.tokenize(prefix)
    if isinstance(suffix, bytes):
        suffix = model.tokenize_behind(suffix)
    before = [tokens.prefix, *prefix]
    behind = [tokens.suffix, *suffix]
    parts = [*behind, *before] if suffix_first else [*before, *behind]
    begin = [model.bos] if model.add_bos else []
    parts = [*parts, tokens.middle]
    others = _files(model, tokens, files) if files else []
    room = len(others) if most is None else max(0, most - len(begin) - len(parts))
    return [*begin, *others[max(0, len(others) - room) :], *parts]


def _files(model: Model, tokens: FimTokens, files: Sequence[tuple[str, str]]) -> list[int]:
    """What stands before a file that is written: others of its repository."""

    def ids(text: str) -> list[int]:
        return model.tokenize_behind(text.encode("utf-8", "surrogatepass"))

    found: list[int] = []
    if tokens.file is None:
        for name, text in files:
            found += ids(f"--- {name} ---\n{text}\n\n")
        return found
    if tokens.repository is not None:
        found += [tokens.repository, *ids("repository\n")]
    for name, text in files:
        found += [tokens.file, *ids(f"{name}\n{text}")]
    return [*found, tokens.file, *ids("file\n")]
