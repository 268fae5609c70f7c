#!/usr/bin/env python3
"""Search in a text with GGUF files of an embedding model, beside sentence-transformers with the
checkpoint that they come from.

  retrieval.py --checkpoint DIR --text FILE [--passages N] [--best N] MODEL.gguf...

Passages are the long lines of a text with headings (WikiText), queries its headings. Of each file
it prints the largest difference of a number in a vector of length 1, for how many queries the same
passages are found in the same order, and which share of the best is found at all. Passages whose
scores differ by less than 1e-6 may change places: two ways to add do that. Needs
sentence-transformers.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from powerinfer_cpp import Llama

ALIKE = 1e-6
_HEADING = re.compile(r"^ = ([^=].*[^=]) = $", re.MULTILINE)


def best(scores: np.ndarray, n: int) -> np.ndarray:
    """The numbers of the n highest of each row, in order."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :n]


def same_order(theirs: np.ndarray, ours: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Of each row: are both orders the same, but for passages with scores that are alike?"""
    a = np.take_along_axis(scores, theirs, 1)
    b = np.take_along_axis(scores, ours, 1)
    return (np.abs(a - b) < ALIKE).all(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL.gguf")
    parser.add_argument("--checkpoint", required=True, metavar="DIR")
    parser.add_argument("--text", required=True, metavar="FILE")
    parser.add_argument("--passages", type=int, default=1000, metavar="N")
    parser.add_argument("--best", type=int, default=10, metavar="N")
    args = parser.parse_args()

    text = Path(args.text).read_text()
    passages = [line.strip() for line in text.splitlines() if len(line) > 200][: args.passages]
    end = text.index(passages[-1])
    queries = [heading.strip() for heading in _HEADING.findall(text[:end])]
    print(f"{len(passages)} passages, {len(queries)} queries")

    model = SentenceTransformer(args.checkpoint, device="cpu")
    theirs = model.encode([*queries, *passages], normalize_embeddings=True, batch_size=32)
    scores = theirs[: len(queries)] @ theirs[len(queries) :].T
    wanted = best(scores, args.best)
    for path in args.models:
        with Llama(path, embedding=True, verbose=False) as llm:
            ours = np.array(llm.embed([*queries, *passages], normalize=True), np.float32)
        found = best(ours[: len(queries)] @ ours[len(queries) :].T, args.best)
        same = same_order(wanted, found, scores)
        kept = [len(set(a) & set(b)) for a, b in zip(wanted.tolist(), found.tolist(), strict=True)]
        print(
            f"{path}: numbers differ by {np.abs(ours - theirs).max():.2g} at most; the same best "
            f"{args.best} of {same.sum()} of {len(queries)} queries, "
            f"{np.mean(kept) / args.best:.2%} of them found"
        )


if __name__ == "__main__":
    main()
