"""How far a format moves the vectors and scores of a model that gives these."""

from pathlib import Path

import numpy as np

from ..core.gguf import Gguf
from ..core.sequences.embedding import RANK, normalized
from ..llama import Llama

# What people search for and in, in several languages: of some lengths, and some alike.
_QUERIES = ("How does a heat pump work?", "renewal of a passport", "¿Dónde se cría el salmón?")
_TEXTS = (
    "A heat pump moves heat from a cold place to a warm one, as a refrigerator does.",
    "Heat pumps need less electricity than heaters, because they only move heat.",
    "To renew a passport, send the form, two photographs and the old passport by post.",
    "El salmón nace en los ríos, vive en el mar y vuelve al río para criar.",
    "Die Bibliothek öffnet werktags um neun Uhr und schließt um achtzehn Uhr.",
    "函数返回列表中最大的数。",
    "def mean(values):\n    return sum(values) / len(values)",
    "The committee met on 4 March 2019 in Geneva. It agreed on three of the five points, and left "
    "the others to a working group, which reported in June: costs had doubled since 2015.",
)


def compared(origin: str | Path, target: str | Path) -> str | None:
    """A sentence about the vectors, or the scores, that two files of a model give some texts; None
    for models that write texts. Raises what `Llama` raises."""
    if not _gives_vectors(origin):
        return None
    before, after = _numbers(origin), _numbers(target)
    if before.ndim == 1:
        return f"scores of pairs move by {np.abs(before - after).max():.2g} at most"
    cosines = (normalized(before) * normalized(after)).sum(-1)
    return f"vectors before and after: cosine {cosines.mean():.5f}, the least {cosines.min():.5f}"


def _gives_vectors(path: str | Path) -> bool:
    with Gguf(path) as gguf:
        of = gguf.value("general.architecture", "")
        return gguf.gives_no_text or gguf.value(f"{of}.pooling_type", 0) != 0


def _numbers(path: str | Path) -> np.ndarray:
    """float64 [texts, width]; of rankers [pairs], not shaped to 0 to 1."""
    with Llama(path, embedding=True, verbose=False) as llm:
        if llm.pooling_type() == RANK:
            scores = [llm.rank(query, _TEXTS, raw_scores=True) for query in _QUERIES]
            return np.concatenate(scores)
        return np.array(llm.embed([*_QUERIES, *_TEXTS]))
