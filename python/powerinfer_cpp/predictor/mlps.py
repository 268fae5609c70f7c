"""The mlps of a layer: one for its block, or one for every expert, stacked, with the same rank."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..convert.formats import Format, format_by_name
from ..convert.stored import Stored, decoded, encoded
from ..convert.tensors import Output, stacked
from ..convert.writer import named
from . import search, train
from .pairs import Pairs
from .report import LayerReport
from .train import Curve, Trained

# Minimum rows to train an expert's predictor; with fewer, it proposes all neurons. Such an expert
# is chosen so rarely that this costs almost nothing, while missed firings might cost a lot.
LEAST = 256
# With fewer tokens, held-out recall drops sharply: at 99% recall, 86% of the neurons of an OPT-1.3b
# were kept after 30,000 tokens, 45% after 100,000 and 20% after 300,000.
FEW_TOKENS = 100_000
_EVERYONE = 1e4  # approximate scores of such an expert: far above any threshold, within F16
_SMALLEST_BATCH = 32


@dataclass
class Mlps:
    """Trains them, or finds them in the folder of interrupted work.

    rows, held_out: rows of the pairs for training and for early stopping. of_format: format of the
    weights; F16 if it does not fit the rows.
    """

    folder: Path
    pairs: Pairs
    of_format: Format
    rows: np.ndarray
    held_out: np.ndarray
    seed: int
    epochs: int
    device: str
    log: Callable[[str], None]
    _densities: dict[int, float] = field(default_factory=dict)

    def candidate(self, layer: int, rank: int) -> tuple[list[Stored], Curve, float]:
        """fc1 and fc2 of a layer, their curve, and held-out loss divided by training loss."""
        path = self.folder / f"curve-{layer}-{rank}.npz"
        tensors = [self._tensor(layer, rank, part) for part in ("fc1", "fc2")]
        if not path.exists():
            epochs, overfit, weight = [], [], []
            pairs = self.pairs.layers[layer]
            for expert in range(pairs.n_expert):
                with np.load(self._learnt(layer, rank, expert)) as found:
                    epochs.append(int(found["epochs"]))
                    overfit.append(float(found["held_out_loss"] / found["loss"]))
                    weight.append(1 + int(found["n_rows"]))
            fc1, fc2 = map(decoded, tensors)

            def scores(expert: int, x: np.ndarray) -> np.ndarray:
                first = fc1.rows(expert * rank, (expert + 1) * rank)
                second = fc2.rows(expert * pairs.n_ff, (expert + 1) * pairs.n_ff)
                return np.maximum(x @ first.T, 0) @ second.T

            c = train.curve(pairs, self.held_out, scores, search.RECALLS)
            self.log(
                f"layer {layer}, rank {rank}: {max(epochs)} epochs, "
                f"{np.interp(0.95, c.recall, c.predicted):.1%} predicted at recall 95%"
            )
            _save(path, {**vars(c), "overfit": np.average(overfit, weights=weight)})
        with np.load(path) as stored:
            values = {name: stored[name] for name in stored.files}
        overfit = float(values.pop("overfit"))
        return tensors, Curve(**{**values, "fired": float(values["fired"])}), overfit

    def ranks(self, layer: int) -> list[int]:
        """The ranks that are tried."""
        return search.ladder(self.pairs.layers[layer].width)

    def start(self, layer: int) -> int:
        """The rank at which a layer's search begins."""
        return search.start_rank(self._rates(layer), self.pairs.layers[layer].width)

    def rank_bytes(self, layer: int) -> float:
        """Bytes that a token reads of a layer's MLPs, per hidden unit."""
        per_weight = self.of_format.n_bytes(self.of_format.block) / self.of_format.block
        pairs = self.pairs.layers[layer]
        return per_weight * (pairs.width + pairs.n_ff) * pairs.used

    def notes(self, layers: Sequence[LayerReport]) -> list[str]:
        """Notes for the user about the predictors of these layers."""
        notes, n_tokens = [], self.pairs.n_tokens
        n = round(n_tokens * min(pairs.share for pairs in self.pairs.layers.values()))
        if n < FEW_TOKENS:
            whose = f", {n} of them an expert's on average," if n < n_tokens else ""
            notes.append(
                f"{n_tokens} tokens{whose} are few: predictors keep getting better up to a "
                f"million, and below {FEW_TOKENS} they miss much of what they have not seen"
            )
        few = {layer.layer: self._few(layer.layer) for layer in layers if layer.rank}
        starved = [f"{', '.join(map(str, own))} of layer {i}" for i, own in few.items() if own]
        if starved:
            notes.append(
                f"experts that fewer than {LEAST} tokens chose propose all of their neurons: "
                + "; ".join(starved)
            )
        overfit = [layer.layer for layer in layers if layer.overfit > 1.1]
        if overfit:
            notes.append(
                "more text would help: held-out loss is over 1.1 times what was learnt from in "
                f"layers {', '.join(map(str, overfit))}"
            )
        return notes

    # ---- Internal ----------------------------------------------------------------------------

    def _rates(self, layer: int) -> np.ndarray:
        """How often each neuron fires on held-out tokens that chose its expert."""
        rows = self.held_out[:: -(-len(self.held_out) // 4096)]
        found, pairs = [], self.pairs.layers[layer]
        for expert in range(pairs.n_expert):
            own = pairs.chose(rows, expert)
            if len(own):
                found.append(pairs.fired(own, expert).mean(axis=0))
        return np.concatenate(found) if found else np.zeros(1)

    def _few(self, layer: int) -> list[int]:
        """Experts with too few tokens for training: they propose all of their neurons."""
        experts = range(self.pairs.layers[layer].n_expert)
        return [e for e in experts if self._too_few(layer, *self._rows_of(layer, e))]

    def _tensor(self, layer: int, rank: int, part: str) -> Stored:
        """fc1 or fc2. Weights are read from the folder on demand, and trained if they are missing:
        those of a large mixture do not fit into memory together."""

        def rows(expert: int, a: int, b: int) -> np.ndarray:
            with np.load(self._learnt(layer, rank, expert)) as found:
                return found[part][a:b]

        pairs = self.pairs.layers[layer]
        shape = (rank, pairs.width) if part == "fc1" else (pairs.n_ff, rank)
        name = f"blk.{layer}.{part}{'_exps' if pairs.mixture else ''}.weight"
        own = [Output(name, shape, partial(rows, e)) for e in range(pairs.n_expert)]
        fmt = self.of_format if self.of_format.fits(shape[1]) else format_by_name("F16")
        return encoded(stacked(name, own) if pairs.mixture else own[0], fmt)

    def _learnt(self, layer: int, rank: int, expert: int) -> Path:
        """The file of a trained predictor."""
        path = self.folder / f"mlp-{layer}-{rank}-{expert}.npz"
        if not path.exists():
            rows, held_out = self._rows_of(layer, expert)
            if self._too_few(layer, rows, held_out):
                found = self._everyone(layer, rank)
            else:
                found = self._train(layer, rank, expert, rows, held_out)
            _save(path, {**vars(found), "n_rows": len(rows)})
        return path

    def _train(
        self, layer: int, rank: int, expert: int, rows: np.ndarray, held_out: np.ndarray
    ) -> Trained:
        pairs = self.pairs.layers[layer]
        if layer not in self._densities:
            self._densities[layer] = train.density(pairs, self.held_out)
        where = [layer, rank, expert] if pairs.mixture else [layer, rank]
        # The batch is an expert's share of BATCH tokens: as many steps as for a layer's single mlp.
        batch = max(_SMALLEST_BATCH, round(train.BATCH * len(rows) / len(self.rows)))
        return train.train(
            pairs,
            expert,
            rows,
            held_out,
            rank,
            density=self._densities[layer],
            batch_size=batch,
            seed=int(np.random.SeedSequence([self.seed, *where]).generate_state(1)[0]),
            epochs=self.epochs,
            device=self.device,
        )

    def _rows_of(self, layer: int, expert: int) -> tuple[np.ndarray, np.ndarray]:
        chose = partial(self.pairs.layers[layer].chose, expert=expert)
        return chose(self.rows), chose(self.held_out)

    def _too_few(self, layer: int, rows: np.ndarray, held_out: np.ndarray) -> bool:
        return self.pairs.layers[layer].mixture and (len(rows) < LEAST or not len(held_out))

    def _everyone(self, layer: int, rank: int) -> Trained:
        """A predictor with high scores for any input: the sum of |w . x| over random w."""
        pairs = self.pairs.layers[layer]
        shape = (rank // 2, pairs.width)
        w = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        fc1 = np.concatenate([w, -w])
        sample = pairs.inputs[:256].astype(np.float32)
        size = float(np.sqrt(np.mean(sample**2))) or 1.0
        height = _EVERYONE / (size * shape[1] ** 0.5 * rank / 2)
        fc2 = np.full((pairs.n_ff, rank), height, np.float32)
        return Trained(fc1, fc2, 1.0, 1.0, 0)


def _save(path: Path, arrays: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    with named(path):
        with part.open("wb") as file:
            np.savez(file, **arrays)
        part.replace(path)
