"""The folder OUT.train: what work it belongs to, the pairs in it, and files of candidates.

Work that was killed finds it as it was left, and goes on.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..convert import source
from ..convert.activations import SMOOTH
from ..convert.embed import embed
from ..convert.formats import format_by_name
from ..convert.stored import Stored
from ..convert.writer import alone, check_target, named, string
from ..core.errors import UnsupportedModelError
from ..core.gguf import Gguf
from ..core.model import Model
from ..profile.fingerprint import fingerprint
from ..profile.text import read, windows
from . import judge
from .judge import Likelihood
from .pairs import Pairs, bytes_per_token

# Windows that decide when training stops, and thresholds; those that decide about sizes; and those
# that decide nothing, so that they can say what came of all that: a tenth each. Of a short text the
# last two are more, up to so many tokens, since what a few hundred say of a percent is chance.
_HELD_OUT = 10
_ENOUGH = 16384
_SHORT = 6  # one window in so many at most
_OLD = ("powerinfer.sparse_threshold", "powerinfer.predictor.")


@dataclass(frozen=True)
class Parts:
    """Numbers of the windows of a text, ascending: those that are learnt from, and of these those
    by which training stops; those that decide about sizes; those that decide nothing."""

    learnt: np.ndarray
    stops: np.ndarray
    sizes: np.ndarray
    tests: np.ndarray


def parts(n: int, size: int, untrained: bool) -> Parts:
    """The parts of n windows of `size` tokens, each spread over the whole text.

    untrained: what is learnt is a threshold for each layer, which no text is learnt by heart with:
    then sizes are decided by windows that are learnt from, too, and by more of them.
    """
    tenth, enough = -(-n // _HELD_OUT), -(-_ENOUGH // size)
    several = max(tenth, min(enough, n // _SHORT))
    tests = _spread(np.arange(n), several)
    rest = np.setdiff1d(np.arange(n), tests)
    if untrained:
        sizes, learnt = _spread(rest, min(len(rest), max(tenth, enough))), rest
    else:
        sizes = _spread(rest, several)
        learnt = np.setdiff1d(rest, sizes)
    return Parts(learnt, _spread(learnt, min(tenth, len(learnt))), sizes, tests)


def _spread(numbers: np.ndarray, k: int) -> np.ndarray:
    """k of the numbers, evenly."""
    return numbers[(2 * np.arange(k) + 1) * len(numbers) // (2 * k)]


class Work:
    """A model, what predictors of it learn from, and where that is kept.

    pairs: recorded by `begin`. rows: those to learn from; held_out: those by which training stops
    and thresholds are set. judged: windows of the text that decide about sizes, for sketches some
    of the same; tested: those that decide nothing. layers: those that have neurons.
    """

    def __init__(
        self,
        model_path: str | Path,
        out: str | Path,
        kind: str,
        predictor_input: str,
        predictor_type: str,
        model_fields: dict[str, Any],
        fields: dict[str, Any],
    ):
        self.out, self.kind, self.input = Path(out), kind, predictor_input
        self.format = format_by_name(predictor_type)
        self.model_fields, self.fields = model_fields, fields
        self.folder = self.out.with_name(self.out.name + ".train")
        self._mark = self.folder / "identity.json"
        self.alone = ExitStack()  # holds the mark's lock
        self.gguf = Gguf(model_path)
        source.refuse_same_file(self.gguf, out)
        self.tensors = {t.name: t for t in source.tensors(self.gguf)}
        if not any(".ffn_down_t" in name for name in self.tensors):
            raise UnsupportedModelError(
                f"{model_path}: has no neuron rows (ffn_down_t), which predictors need; "
                "`powerinfer convert` makes a file with them of it"
            )

    def begin(
        self,
        text: Path,
        separator: bytes | None,
        n_tokens: int,
        n_ctx: int | None,
        store_gib: float,
        epochs: int,
        seed: int,
        check: Callable[[Model], None],
    ) -> None:
        """Makes the folder, or finds it, and records the pairs that are missing.

        check: raises for a model that cannot have predictors of this kind.
        """
        data = read(text)
        identity = json.dumps(
            [
                fingerprint(self.gguf),
                hashlib.sha256(data).hexdigest(),
                [str(separator), n_tokens, n_ctx, store_gib, epochs, seed],
                [_HELD_OUT, _ENOUGH, _SHORT],
                [self.kind, self.input, self.format.name],
                [str(self.gguf.value(f"powerinfer.ffn.{n}")) for n in ("activation", "threshold")],
                [self.fields.get(name) for name in ("type_k", "type_v", "sparse_threshold")],
            ]
        )
        size = 2 * sum(t.n_bytes for t in self.gguf.tensors)
        check_target(self.out, size, [*self.gguf.files, text])
        again = self._take_up(identity)
        try:
            self._begin(text, separator, data, n_tokens, n_ctx, store_gib, seed, check)
        except Exception:
            if not again:  # refused: there is no work to go on with
                self._remove()
            raise

    def _begin(
        self,
        text: Path,
        separator: bytes | None,
        data: bytes,
        n_tokens: int,
        n_ctx: int | None,
        store_gib: float,
        seed: int,
        check: Callable[[Model], None],
    ) -> None:
        model = self._model([], [])
        check(model)
        self.smooth, self.n_layer = model.activation in SMOOTH, model.n_layer
        size = min(n_ctx or 512, model.n_ctx_train)
        try:
            pieces = windows(model, data, separator, size)
        except ValueError as error:
            raise ValueError(f"{text}: {error}") from None
        pieces = [piece for piece in pieces if len(piece) > 1]
        room = min(n_tokens, int(store_gib * (1 << 30)) // bytes_per_token(model))
        if sum(map(len, pieces)) > room:  # some of the whole text rather than its beginning
            chosen = np.random.default_rng(seed).permutation(len(pieces))[: room // size]
            pieces = [pieces[i] for i in sorted(chosen)]
        if len(pieces) < 2 * _HELD_OUT:
            raise ValueError(
                f"{text}: {len(pieces)} windows of {size} tokens are too few to train and to test "
                f"on; {2 * _HELD_OUT} are the least"
            )
        of = parts(len(pieces), size, self.kind == "sketch")
        self.judged, self.tested = ([pieces[i] for i in some] for some in (of.sizes, of.tests))
        learnt = [pieces[i] for i in of.learnt]
        held_out = np.repeat(np.isin(of.learnt, of.stops), [len(p) for p in learnt])
        self.rows, self.held_out = np.flatnonzero(~held_out), np.flatnonzero(held_out)
        self.pairs = Pairs(self.folder, model, len(held_out))
        self.pairs.record(model, learnt, **self.fields)
        self.layers = list(self.pairs.layers)
        model.close()

    def finish(self) -> None:
        """The result is written: the folder goes."""
        self._remove()
        self.gguf.close()

    def _remove(self) -> None:
        self._empty()
        self._mark.unlink()
        self.folder.rmdir()

    def embed(self, path: Path, keys: list[Any], tensors: list[Stored]) -> None:
        """Writes the model with these predictors in place of those that it has."""
        marks = [
            string("powerinfer.predictor.input", self.input),
            string("powerinfer.predictor.kind", self.kind),
        ]
        embed(
            self.gguf,
            path,
            [*marks, *keys],
            tensors,
            removed=lambda name: name.startswith(_OLD) or bool(source.PREDICTOR.fullmatch(name)),
        )

    def likelihood(
        self, sparse: str, keys: list[Any], tensors: list[Stored], windows: Sequence[np.ndarray]
    ) -> Likelihood:
        """The likelihood of the windows with these predictors; sparse: a mode."""
        model = self._model(keys, tensors)
        found = judge.likelihood(model, windows, sparse, **self.fields)
        model.close()
        return found

    def _take_up(self, identity: str) -> bool:
        """Makes the folder and locks it. What it holds of work of another identity goes.

        Returns whether it holds work of this identity.
        """
        if not self._mark.exists() and self.folder.exists() and any(self.folder.iterdir()):
            raise ValueError(f"{self.folder}: exists, and is no work of train-predictor")
        self.folder.mkdir(exist_ok=True)
        self.alone.enter_context(alone(self._mark))
        if self._mark.read_text() == identity:
            return True
        self._empty()
        with named(self._mark):
            self._mark.write_text(identity)
        return False

    def _model(self, keys: list[Any], tensors: list[Stored]) -> Model:
        """The model with predictors, from a file in the folder."""
        path = self.folder / "candidate.gguf"
        self.embed(path, keys, tensors)
        return Model(str(path), **self.model_fields)

    def _empty(self) -> None:
        """Removes all but the mark. Killed on the way, it leaves no work that could be taken up."""
        self._mark.write_text("")
        for path in self.folder.iterdir():
            if path != self._mark:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
