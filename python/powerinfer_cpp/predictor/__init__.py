"""Predictors of the neurons that fire, trained on a text: `train_predictors(model, out, text)`."""

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..activations import RELUS, SMOOTH
from ..convert import source
from ..convert.embed import embed
from ..convert.stored import Stored
from ..convert.writer import alone, array, check_target, named, string
from ..errors import UnsupportedModelError
from ..fingerprint import fingerprint
from ..formats import format_by_name
from ..gguf import Gguf
from ..model import Model
from ..profile.counters import check_sparse
from ..profile.text import windows
from . import judge, search, sketch
from .mlps import LEAST, Mlps
from .pairs import Pairs, bytes_per_token
from .train import Curve, require_torch

__all__ = ["KINDS", "Report", "train_predictors"]

# Pairs per layer: as many as Deja Vu and ProSparse have; a sketch learns only its threshold.
TOKENS = {"mlp": 400_000, "sketch": 100_000}
KINDS = tuple(TOKENS)
# Below it held-out recall falls off a cliff: at 99% recall, 86% of the neurons of an OPT-1.3b
# were kept after 30,000 tokens, 45% after 100,000 and 20% after 300,000.
FEW_TOKENS = 100_000
_PROBED = 4  # of the windows that decide about sizes one in so many measures a layer alone
_HELD_OUT = 10  # every tenth window decides when to stop, and thresholds; another the sizes
# A layer's predictors of a rank, their curve, and how much they overfit.
Candidate = Callable[[int, int], tuple[list[Stored], Curve, float]]
_OLD = ("powerinfer.sparse_threshold", "powerinfer.predictor.")


@dataclass(frozen=True)
class LayerReport:
    """Shares are of neurons; bytes are of one token. rank 0: no predictor; a sketch's is 1."""

    rank: int
    threshold: float
    recall: float
    precision: float
    predicted: float
    fired: float
    predictor_bytes: int
    n_bytes: float
    exact_bytes: float
    overfit: float  # held-out loss over the loss of what was learnt from


@dataclass(frozen=True)
class Report:
    layers: list[LayerReport]
    perplexity: float  # with predictors, on the windows that decide about sizes
    reference: float  # of exact mode, on the same
    n_tokens: int
    notes: list[str]
    kind: str = "mlp"


def train_predictors(
    model_path: str | Path,
    out: str | Path,
    text: str | Path,
    *,
    separator: bytes | None = None,
    kind: str = "mlp",
    predictor_input: str = "normed",
    predictor_type: str = "Q8_0",
    target: float = 0.001,
    n_tokens: int | None = None,
    n_ctx: int | None = None,
    epochs: int = 20,
    store_gib: float = 8.0,
    seed: int = 0,
    torch_device: str | None = None,
    model_fields: dict[str, Any] | None = None,
    log: Callable[[str], None] = lambda _line: None,
    **fields: Any,
) -> Report:
    """Trains predictors on a text, writes the model with them to `out`, and says what they do.

    kind: "mlp", two small matrices per layer, of mixtures per expert, or "sketch", the signs of
    the gates' weights, of which the text only sets the threshold (predictor_type, epochs, seed and
    torch_device do not matter). A sketch does not work for activations whose sign is not their
    gate's to tell: SiLU and GELU.
    predictor_input: "normed" or "residual", what predictors see. target: how much the model's
    perplexity may rise, as a share. n_tokens: at most so many are recorded (default: TOKENS),
    fewer where their store would exceed store_gib. torch_device: default a GPU where torch sees
    one. model_fields, fields: of pi_model_params, pi_session_params.

    Everything is kept in OUT.train until the end: work that was killed is taken up, with the same
    result. Raises OSError, ValueError (no torch, a text that is too short), UnsupportedModelError
    (sketches of SiLU and GELU, files without neuron rows); nothing half-written remains.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    if predictor_input not in ("normed", "residual"):
        raise ValueError(f"the input must be normed or residual, not {predictor_input!r}")
    if kind == "sketch":
        if predictor_input != "normed":
            raise ValueError("a sketch stands for gates, and its input is what they see: normed")
        worker: type[_Work] = _Sketches
    else:
        require_torch()
        worker = _Work
    work = worker(model_path, out, predictor_input, predictor_type, model_fields or {}, fields)
    with work.alone:
        work.begin(Path(text), separator, n_tokens or TOKENS[kind], n_ctx, store_gib, epochs, seed)
        device = torch_device or ("" if kind == "sketch" else _default_device())
        report = work.solve(target, epochs, seed, device, log)
        work.finish()
    return report


def _default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


class _Work:
    """The folder OUT.train and what has been done in it, to train mlps."""

    kind = "mlp"

    def __init__(
        self,
        model_path: str | Path,
        out: str | Path,
        predictor_input: str,
        predictor_type: str,
        model_fields: dict[str, Any],
        fields: dict[str, Any],
    ):
        self.out, self.input = Path(out), predictor_input
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

    # ---- Pairs ---------------------------------------------------------------------------

    def begin(
        self,
        text: Path,
        separator: bytes | None,
        n_tokens: int,
        n_ctx: int | None,
        store_gib: float,
        epochs: int,
        seed: int,
    ) -> None:
        """Makes the folder, or finds it, and records the pairs that are missing."""
        data = text.read_bytes()
        identity = json.dumps(
            [
                fingerprint(self.gguf),
                hashlib.sha256(data).hexdigest(),
                [str(separator), n_tokens, n_ctx, store_gib, epochs, seed],
                [self.kind, self.input, self.format.name],
                [str(self.gguf.value(f"powerinfer.ffn.{n}")) for n in ("activation", "threshold")],
                [self.fields.get(name) for name in ("type_k", "type_v", "sparse_threshold")],
            ]
        )
        size = 2 * sum(t.n_bytes for t in self.gguf.tensors)
        check_target(self.out, size, [*self.gguf.files, text])
        if not self._mark.exists() and self.folder.exists() and any(self.folder.iterdir()):
            raise ValueError(f"{self.folder}: exists, and is no work of train-predictor")
        self.folder.mkdir(exist_ok=True)
        self.alone.enter_context(alone(self._mark))
        if self._mark.read_text() != identity:
            self._empty()  # of other work
            with named(self._mark):
                self._mark.write_text(identity)
        model = self._model([], [])
        self._check(model)
        self.mixture, self.smooth = bool(model.n_expert), model.activation in SMOOTH
        self.n_embd, self.n_ff, self.n_layer = model.n_embd, model.n_ff, model.n_layer
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
        self.judged = pieces[_HELD_OUT - 1 :: _HELD_OUT]
        learnt = [p for i, p in enumerate(pieces) if i % _HELD_OUT != _HELD_OUT - 1]
        of_window = np.repeat(np.arange(len(learnt)), [len(p) for p in learnt])
        held_out = of_window % _HELD_OUT == _HELD_OUT - 2
        self.rows, self.held_out = np.flatnonzero(~held_out), np.flatnonzero(held_out)
        self.n_tokens = len(of_window)
        self.pairs = Pairs(self.folder, model, self.n_tokens)
        self.pairs.record(model, learnt, **self.fields)
        self.used = self.pairs.used / self.pairs.n_expert  # of the experts, by a token
        model.close()

    # ---- Candidates ------------------------------------------------------------------------

    def _candidates(
        self, epochs: int, seed: int, device: str, log: Callable[[str], None]
    ) -> Candidate:
        """Makes a layer's predictors of a rank, or finds them in the folder."""
        data = (self.folder, self.pairs, self.format, self.mixture, self.rows, self.held_out)
        self._mlps = Mlps(*data, seed, epochs, device, log)
        return self._mlps.candidate

    def solve(
        self, target: float, epochs: int, seed: int, device: str, log: Callable[[str], None]
    ) -> Report:
        """Chooses rank and recall of every layer, writes the result, and describes it."""
        candidate = self._candidates(epochs, seed, device, log)

        def nll(found: Sequence[search.Choice], windows: Sequence[np.ndarray]) -> float:
            contents = self._contents(found, candidate)
            return self._judged("predictor" if contents[1] else "exact", *contents, windows)

        options = [self._options(layer, candidate) for layer in self._layers()]
        exact = [search.exactly(own[0]) for own in options]
        lost = self._lost_alone(options, exact, nll, log)
        whole = sum(c.exact_bytes for c in exact)

        def priced(i: int) -> Sequence[search.Choice]:
            price = search.PRICES[i] * whole
            found = [search.cheapest(*layer, price) for layer in zip(options, lost, strict=True)]
            return search.worth_while(found)

        reference, nlls = nll(exact, self.judged), {}

        def loss(i: int) -> float:
            found = priced(i)
            nlls[i] = nll(found, self.judged)
            more = judge.loss(nlls[i], reference)
            log(f"perplexity {more:+.3%} with {', '.join(map(self._name_of, found))}")
            return more

        at = search.first_within(loss, len(search.PRICES), target)
        found, found_nll = (exact, reference) if at is None else (priced(at), nlls[at])
        self._embed(self.out, *self._contents(found, candidate))
        layers = [self._report(n, c, candidate) for n, c in enumerate(found)]
        notes = self._notes(layers)
        if at is None:
            notes.append(f"no predictors lose at most {target:.2%}: the file keeps exact mode")
        elif not any(choice.rank for choice in found):
            notes.append("predictors would read no less than exact mode: the file keeps it")
        figures = math.exp(found_nll), math.exp(reference), self.n_tokens
        return Report(layers, *figures, notes, self.kind)

    def _options(self, layer: int, candidate: Candidate) -> list[search.Choice]:
        """A layer's best at each of search.RECALLS."""
        start, ranks, costs = self._start(layer), self._ranks(), self._costs(layer)
        curve_of = cache(lambda rank: candidate(layer, rank)[1])
        return [
            search.choose(at, start, ranks, costs, curve_of) for at in range(len(search.RECALLS))
        ]

    def _lost_alone(
        self,
        options: Sequence[Sequence[search.Choice]],
        exact: Sequence[search.Choice],
        nll: Callable[..., float],
        log: Callable[[str], None],
    ) -> list[np.ndarray]:
        """What each layer loses at each of search.RECALLS where it alone is predicted."""
        windows = self.judged[::_PROBED]
        # A layer alone stands among others that have no predictor, which a smooth activation's
        # threshold does not hold for then.
        mode = "off" if self.smooth else "exact"
        reference, lost = self._judged(mode, [], [], windows), []
        for layer, own in enumerate(options):
            if all(c.n_bytes >= c.without_bytes for c in own):
                lost.append(np.zeros(len(own)))
                continue
            measured = []
            for at in search.PROBES:
                found = [*exact[:layer], own[at], *exact[layer + 1 :]]
                measured.append(judge.loss(nll(found, windows), reference))
                recall = f"{own[at].curve.recall[at]:.1%}"
                log(f"layer {layer} alone, recall {recall}: perplexity {measured[-1]:+.3%}")
            lost.append(search.losses(measured))
        return lost

    def finish(self) -> None:
        """The result is written: the folder goes."""
        self._discard()
        self.gguf.close()

    def _discard(self) -> None:
        """Removes the folder."""
        self._empty()
        self._mark.unlink()
        self.folder.rmdir()

    def _empty(self) -> None:
        """Removes all but the mark. Killed on the way, it leaves no work that could be taken up."""
        self._mark.write_text("")
        for path in self.folder.iterdir():
            if path != self._mark:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _name_of(self, choice: search.Choice) -> str:
        return f"{choice.rank} at {choice.curve.recall[choice.at]:.1%}" if choice.rank else "exact"

    # ---- Inner parts -------------------------------------------------------------------------

    def _layers(self) -> range:
        return range(self.n_layer)

    def _rates(self, layer: int) -> np.ndarray:
        """How often each neuron fires on tokens that chose its expert."""
        rows = self.held_out[:: -(-len(self.held_out) // 4096)]
        found = []
        for expert in range(self.pairs.n_expert):
            own = self.pairs.chose(layer, rows, expert)
            if len(own):
                found.append(self.pairs.fired(layer, own, expert).mean(axis=0))
        return np.concatenate(found) if found else np.zeros(1)

    def _costs(self, layer: int) -> search.Costs:
        first, *rest = (
            t.n_bytes * self.used
            for part in ("ffn_gate", "ffn_up", "ffn_down_t")
            for end in ("", "_exps")
            if (t := self.tensors.get(f"blk.{layer}.{part}{end}.weight"))
        )
        return search.Costs(first, sum(rest), self._rank_bytes(layer), self.smooth)

    def _rank_bytes(self, _layer: int) -> float:
        per_weight = self.format.n_bytes(self.format.block) / self.format.block
        return per_weight * (self.n_embd + self.n_ff) * self.pairs.used

    def _ranks(self) -> list[int]:
        return search.ladder(self.n_embd)

    def _start(self, layer: int) -> int:
        return search.start_rank(self._rates(layer), self.n_embd)

    def _check(self, model: Model) -> None:
        check_sparse(model)

    def _contents(
        self, found: Sequence[search.Choice], candidate: Candidate
    ) -> tuple[list[Any], list[Stored]]:
        """Keys and tensors of chosen predictors."""
        tensors: list[Stored] = []
        figures = {"sparse_threshold": [], "predictor.recall": [], "predictor.precision": []}
        for layer, choice in enumerate(found):
            c, at, known = choice.curve, choice.at, bool(choice.rank)
            precision = c.hit[at] / max(c.predicted[at], 1e-30)
            for values, value in zip(
                figures.values(), (c.threshold[at], c.recall[at], precision), strict=True
            ):
                values.append(float(value) if known else 0.0)
            if known:
                tensors += candidate(layer, choice.rank)[0]
        keys = [array(f"powerinfer.{name}", "FLOAT32", v) for name, v in figures.items()]
        return (keys, tensors) if tensors else ([], [])

    def _embed(self, path: Path, keys: list[Any], tensors: list[Stored]) -> None:
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

    def _model(self, keys: list[Any], tensors: list[Stored]) -> Model:
        """The model with predictors, from a file in the folder."""
        path = self.folder / "candidate.gguf"
        self._embed(path, keys, tensors)
        return Model(str(path), **self.model_fields)

    def _judged(
        self, sparse: str, keys: list[Any], tensors: list[Stored], windows: Sequence[np.ndarray]
    ) -> float:
        model = self._model(keys, tensors)
        nll = judge.mean_nll(model, windows, sparse, **self.fields)
        model.close()
        return nll

    def _report(self, layer: int, choice: search.Choice, candidate: Candidate) -> LayerReport:
        c, at = choice.curve, choice.at
        if not choice.rank:
            sizes = choice.n_bytes, choice.exact_bytes
            return LayerReport(0, 0.0, 1.0, c.fired, 1.0, c.fired, 0, *sizes, 1.0)
        tensors, _, overfit = candidate(layer, choice.rank)
        predictor_bytes = round(sum(t.n_bytes for t in tensors) * self.used)
        return LayerReport(
            choice.rank,
            float(c.threshold[at]),
            float(c.recall[at]),
            float(c.hit[at] / c.predicted[at]),
            float(c.predicted[at]),
            c.fired,
            predictor_bytes,
            choice.n_bytes,
            choice.exact_bytes,
            overfit,
        )

    def _notes(self, layers: Sequence[LayerReport]) -> list[str]:
        """What the reader should know of predictors of these layers."""
        notes, n = [], round(self.n_tokens * self.used)
        if n < FEW_TOKENS:
            whose = f", {n} of them an expert's on average," if self.mixture else ""
            notes.append(
                f"{self.n_tokens} tokens{whose} are few: predictors keep getting better up to a "
                f"million, and below {FEW_TOKENS} they miss much of what they have not seen"
            )
        few = {i: self._mlps.few(i) for i, layer in enumerate(layers) if layer.rank}
        named = [f"{', '.join(map(str, own))} of layer {i}" for i, own in few.items() if own]
        if named:
            notes.append(
                f"experts that fewer than {LEAST} tokens chose propose all of their neurons: "
                + "; ".join(named)
            )
        overfit = [i for i, layer in enumerate(layers) if layer.overfit > 1.1]
        if overfit:
            notes.append(
                "more text would help: held-out loss is over 1.1 times what was learnt from in "
                f"layers {', '.join(map(str, overfit))}"
            )
        return notes


class _Sketches(_Work):
    """The same for sketches, of one size: what is searched is where they pay, and the recall."""

    kind = "sketch"

    def _candidates(
        self, _epochs: int, _seed: int, _device: str, _log: Callable[[str], None]
    ) -> Candidate:
        return lambda layer, _rank: (*self._of(layer), 1.0)

    def _of(self, layer: int) -> tuple[list[Stored], Curve]:
        if layer not in self._found:
            tensors = sketch.layer_tensors(self.tensors, layer)
            rows = np.sort(np.concatenate([self.rows, self.held_out]))
            self._found[layer] = (
                tensors,
                sketch.curve(self.pairs, layer, rows, tensors, search.RECALLS),
            )
        return self._found[layer]

    def _check(self, model: Model) -> None:
        self._found: dict[int, tuple[list[Stored], Curve]] = {}
        if model.activation not in RELUS:
            raise UnsupportedModelError(
                f"{model.path}: a sketch guesses the sign of a gate, which decides who fires only "
                f"in models of the ReLU family, not with {model.activation}"
            )
        if model.n_embd % 8:
            raise UnsupportedModelError(
                f"{model.path}: a sketch has 8 signs in a byte, and rows of {model.n_embd} weights "
                "are no multiple of that"
            )

    def _ranks(self) -> list[int]:
        return [1]

    def _start(self, _layer: int) -> int:
        return 1

    def _rank_bytes(self, layer: int) -> float:
        return sum(t.n_bytes for t in self._of(layer)[0]) * self.used

    def _notes(self, _layers: Sequence[LayerReport]) -> list[str]:
        return []
