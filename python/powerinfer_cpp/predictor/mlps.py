"""The mlps of a layer: one of its block, or one of every expert, stacked, all of one rank."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..convert.stored import Stored, decoded, encoded
from ..convert.tensors import Output, stacked
from ..convert.writer import named
from ..formats import Format, format_by_name
from . import search, train
from .pairs import Pairs
from .train import Curve, Trained

# Rows that an expert must have to learn from; what has fewer proposes all of its neurons. It is
# chosen so seldom that this costs next to nothing, and firings that it missed might cost a lot.
LEAST = 256
_EVERYONE = 1e4  # scores of such an expert, about: far above any threshold, within F16
_SMALLEST_BATCH = 32


@dataclass
class Mlps:
    """Trains them, or finds them in the folder where work was killed.

    rows, held_out: of the pairs, to learn from and to stop by. of_format: of weights whose rows it
    fits; F16 takes others.
    """

    folder: Path
    pairs: Pairs
    of_format: Format
    mixture: bool
    rows: np.ndarray
    held_out: np.ndarray
    seed: int
    epochs: int
    device: str
    log: Callable[[str], None]
    _densities: dict[int, float] = field(default_factory=dict)

    def candidate(self, layer: int, rank: int) -> tuple[list[Stored], Curve, float]:
        """fc1 and fc2 of a layer, their curve and how much they overfit."""
        path = self.folder / f"curve-{layer}-{rank}.npz"
        tensors = [self._tensor(layer, rank, part) for part in ("fc1", "fc2")]
        if not path.exists():
            epochs, overfit, weight = [], [], []
            for expert in range(self.pairs.n_expert):
                with np.load(self._learnt(layer, rank, expert)) as found:
                    epochs.append(int(found["epochs"]))
                    overfit.append(float(found["held_out_loss"] / found["loss"]))
                    weight.append(1 + int(found["n_rows"]))
            fc1, fc2 = map(decoded, tensors)

            def scores(expert: int, x: np.ndarray) -> np.ndarray:
                first = fc1.rows(expert * rank, (expert + 1) * rank)
                second = fc2.rows(expert * self.pairs.n_ff, (expert + 1) * self.pairs.n_ff)
                return np.maximum(x @ first.T, 0) @ second.T

            c = train.curve(self.pairs, layer, self.held_out, scores, search.RECALLS)
            self.log(
                f"layer {layer}, rank {rank}: {max(epochs)} epochs, "
                f"{np.interp(0.95, c.recall, c.predicted):.1%} predicted at recall 95%"
            )
            _save(path, {**vars(c), "overfit": np.average(overfit, weights=weight)})
        with np.load(path) as stored:
            values = {name: stored[name] for name in stored.files}
        overfit = float(values.pop("overfit"))
        return tensors, Curve(**{**values, "fired": float(values["fired"])}), overfit

    def few(self, layer: int) -> list[int]:
        """Experts that too few tokens chose to learn from: they propose all of their neurons."""
        experts = range(self.pairs.n_expert)
        return [e for e in experts if self._too_few(*self._rows_of(layer, e))]

    # ---- Inner parts -------------------------------------------------------------------------

    def _tensor(self, layer: int, rank: int, part: str) -> Stored:
        """fc1 or fc2. Weights are read from the folder when they are needed, and trained where
        they are not there: those of a large mixture do not fit into memory together."""

        def rows(expert: int, a: int, b: int) -> np.ndarray:
            with np.load(self._learnt(layer, rank, expert)) as found:
                return found[part][a:b]

        n_embd = self.pairs.inputs.shape[-1]
        shape = (rank, n_embd) if part == "fc1" else (self.pairs.n_ff, rank)
        name = f"blk.{layer}.{part}{'_exps' if self.mixture else ''}.weight"
        own = [Output(name, shape, partial(rows, e)) for e in range(self.pairs.n_expert)]
        fmt = self.of_format if self.of_format.fits(shape[1]) else format_by_name("F16")
        return encoded(stacked(name, own) if self.mixture else own[0], fmt)

    def _learnt(self, layer: int, rank: int, expert: int) -> Path:
        """The file of a predictor that is trained."""
        path = self.folder / f"mlp-{layer}-{rank}-{expert}.npz"
        if not path.exists():
            rows, held_out = self._rows_of(layer, expert)
            if self._too_few(rows, held_out):
                found = self._everyone(layer, rank)
            else:
                found = self._train(layer, rank, expert, rows, held_out)
            _save(path, {**vars(found), "n_rows": len(rows)})
        return path

    def _train(
        self, layer: int, rank: int, expert: int, rows: np.ndarray, held_out: np.ndarray
    ) -> Trained:
        if layer not in self._densities:
            self._densities[layer] = train.density(self.pairs, layer, self.held_out)
        where = [layer, rank, expert] if self.mixture else [layer, rank]
        # A batch is what an expert gets of BATCH tokens: as many steps as a layer's own mlp makes.
        batch = max(_SMALLEST_BATCH, round(train.BATCH * len(rows) / len(self.rows)))
        return train.train(
            self.pairs,
            layer,
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
        chose = partial(self.pairs.chose, layer, expert=expert)
        return chose(self.rows), chose(self.held_out)

    def _too_few(self, rows: np.ndarray, held_out: np.ndarray) -> bool:
        return self.mixture and (len(rows) < LEAST or not len(held_out))

    def _everyone(self, layer: int, rank: int) -> Trained:
        """A predictor whose scores are high whatever it sees: |w . x| summed over random w."""
        shape = (rank // 2, self.pairs.inputs.shape[-1])
        w = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        fc1 = np.concatenate([w, -w])
        sample = self.pairs.inputs[layer, :256].astype(np.float32)
        size = float(np.sqrt(np.mean(sample**2))) or 1.0
        height = _EVERYONE / (size * shape[1] ** 0.5 * rank / 2)
        fc2 = np.full((self.pairs.n_ff, rank), height, np.float32)
        return Trained(fc1, fc2, 1.0, 1.0, 0)


def _save(path: Path, arrays: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    with named(path):
        with part.open("wb") as file:
            np.savez(file, **arrays)
        part.replace(path)
