"""The curve of a training: a table of sparsity against loss, and its plot."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..convert.writer import replacing


@dataclass(frozen=True)
class Row:
    """What held-out windows show after `step` steps.

    activation, threshold: those of the measurement. loss: mean of the training batches since the
    last row, in nats a token; held_out_loss: of the windows. l1: the penalty's factor; penalty:
    what it was multiplied with, the mean over layers of mean |h| / rms(h). zero: per layer, the
    share of h, the inputs of the down projection, that are zero.
    """

    step: int
    tokens: int
    activation: str
    threshold: float
    loss: float | None
    held_out_loss: float
    l1: float
    penalty: float
    zero: list[float] = field(default_factory=list)

    @property
    def sparsity(self) -> float:
        return sum(self.zero) / len(self.zero)

    @property
    def perplexity(self) -> float:
        return math.exp(self.held_out_loss)


def write(path: Path, rows: Sequence[Row]) -> None:
    """The rows as CSV, one column for each layer. Replaces the file as a whole."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    names = [name for name in asdict(rows[0]) if name != "zero"]
    layers = [f"zero_{layer}" for layer in range(len(rows[0].zero))]
    table.writerow([*names, "zero", *layers])
    for row in rows:
        values = [getattr(row, name) for name in names]
        table.writerow([_text(v) for v in [*values, row.sparsity, *row.zero]])
    with replacing(path, 0) as part:
        part.write_text(text.getvalue())


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def draw(rows: Sequence[Row], path: Path) -> bool:
    """A PNG of loss and sparsity over the tokens. Returns False without matplotlib."""
    from ..plot import style

    try:
        figure = style.figure(7.5, 5)
    except ValueError:
        return False
    first, *trained = rows
    trained = [row for row in trained if not row.threshold]
    x = [row.tokens / 1e6 for row in trained]
    above, below = figure.subplots(2, 1, sharex=True)
    style.plain(above, "", "nats a token", "Loss of held-out text")
    above.axhline(first.held_out_loss, color=style.GREY, linestyle="--")
    above.annotate(
        f"before, {first.activation}",
        (x[-1], first.held_out_loss),
        (0, 4),
        textcoords="offset points",
        color=style.GREY,
        ha="right",
    )
    above.plot(x, [row.held_out_loss for row in trained], color=style.BLUE)
    style.plain(below, "million tokens", "%", "Neurons at zero: each layer, and their mean")
    for layer in range(len(first.zero)):
        share = [100 * row.zero[layer] for row in trained]
        below.plot(x, share, color=style.RAM, linewidth=0.8)
    below.plot(x, [100 * row.sparsity for row in trained], color=style.GPU)
    style.save(figure, path)
    return True
