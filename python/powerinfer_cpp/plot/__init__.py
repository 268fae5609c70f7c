"""Plots of statistics, placements, runs and predictors, as PNG files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.gguf import Gguf
from . import activation, overlap, placement, predictor, running
from .style import save

WHAT = ("activation", "placement", "overlap", "predictor")
_OF_ONE = {"activation": activation.draw, "placement": placement.draw, "predictor": predictor.draw}


def plot(files: Sequence[str | Path], what: str, out: str | Path) -> str:
    """Draws one of WHAT from a model file (overlap: from two or more) into a PNG. placement: also
    from the statistics of a run (a file of `./main --json-stats`).

    Returns a one-line summary. Raises OSError, ModelFormatError if the file lacks the data,
    ValueError without matplotlib, for a wrong number of files, or for bad statistics.
    """
    if what == "placement" and len(files) == 1 and running.is_json(files[0]):
        figure, sentence = running.draw(running.read(files[0]))
        save(figure, out, files)
        return sentence
    opened: list[Gguf] = []
    try:
        for file in files:
            opened.append(Gguf(file))
        figure, sentence = _draw(opened, what)
        inputs = [path for gguf in opened for path in gguf.files]
    finally:
        for gguf in opened:
            gguf.close()
    save(figure, out, inputs)
    return sentence


def _draw(files: Sequence[Gguf], what: str) -> tuple[Any, str]:
    if what == "overlap":
        return overlap.draw(files)
    if what not in _OF_ONE:
        raise ValueError(f"what must be one of {', '.join(WHAT)}, not {what!r}")
    if len(files) != 1:
        raise ValueError(f"a plot of {what} shows one file, not {len(files)}")
    return _OF_ONE[what](files[0])
