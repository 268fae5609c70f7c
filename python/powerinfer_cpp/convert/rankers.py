"""Causal models that rank: Qwen3-Reranker says yes or no to a pair of texts."""

import re
from pathlib import Path

from ..core.errors import ModelFormatError
from .families.family import Family
from .families.llama import Qwen3
from .vocab import Vocab

# As the model's card has it.
TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that "
    "answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
_CARD = re.compile(r"^#+ *qwen3-reranker", re.IGNORECASE | re.MULTILINE)


def make_ranker(folder: Path, family: Family, vocab: Vocab, rank: bool = False) -> None:
    """Makes a ranker of a Qwen3 whose folder or card says that it is one, or of any with `rank`.

    Its checkpoint does not tell it from one that writes texts. Raises UnsupportedModelError for
    other families with `rank`, ModelFormatError without the tokens "yes" and "no".
    """
    if not isinstance(family, Qwen3):
        if rank and not family.ranks:
            raise family.refuse(f"{family.architecture} as a model that ranks (rank)")
        return
    if not (rank or "reranker" in folder.name.lower() or _says_so(folder / "README.md")):
        return
    if missing := [text for text in ("yes", "no") if text not in vocab.texts]:
        raise ModelFormatError(f"{folder}: a model that ranks needs the token {missing[0]!r}")
    family.ranks_by(vocab.texts.index("yes"), vocab.texts.index("no"))
    vocab.named_templates["rerank"] = TEMPLATE


def _says_so(card: Path) -> bool:
    if not card.is_file():
        return False
    return bool(_CARD.search(card.read_text(encoding="utf-8", errors="replace")))
