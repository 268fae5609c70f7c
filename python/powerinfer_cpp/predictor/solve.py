"""The way from a text to a model with predictors: record, learn, choose for every layer, write."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..convert.stored import Stored
from ..convert.writer import array
from ..profile.counters import check_sparse
from . import judge, search, sketch
from .mlps import Mlps
from .report import LayerReport, Report
from .sketch import Sketches
from .train import default_device, require_torch
from .work import Work

# Pairs per layer: as many as Deja Vu and ProSparse have; a sketch learns only its threshold.
TOKENS = {"mlp": 400_000, "sketch": 100_000}
KINDS = tuple(TOKENS)
_PROBED = 4  # of the windows that decide about sizes one in so many measures a layer alone

# What knows the predictors of every layer and rank.
Learnt = Mlps | Sketches


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
    perplexity may rise, as a share: predictors are chosen with which it stays below that on other
    text of this kind with a probability of 95%, as far as the windows that decide tell. n_tokens:
    at most so many are recorded (default: TOKENS), fewer where their store would exceed store_gib.
    torch_device: default a GPU where torch sees one. model_fields, fields: of pi_model_params,
    pi_session_params.

    Everything is kept in OUT.train until the end: work that was killed is taken up, with the same
    result. Raises OSError, ValueError (no torch, a text that is too short), UnsupportedModelError
    (sketches of SiLU and GELU, files without neuron rows); nothing half-written remains.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    if predictor_input not in ("normed", "residual"):
        raise ValueError(f"the input must be normed or residual, not {predictor_input!r}")
    if kind == "sketch" and predictor_input != "normed":
        raise ValueError("a sketch stands for gates, and its input is what they see: normed")
    if kind == "mlp":
        require_torch()
    work = Work(model_path, out, kind, predictor_input, predictor_type, model_fields or {}, fields)
    check = sketch.check if kind == "sketch" else check_sparse
    most = n_tokens or TOKENS[kind]
    with work.alone:
        work.begin(Path(text), separator, most, n_ctx, store_gib, epochs, seed, check)
        learnt: Learnt
        if kind == "sketch":
            rows = np.sort(np.concatenate([work.rows, work.held_out]))
            learnt = Sketches(work.pairs, work.tensors, rows)
        else:
            device = torch_device or default_device()
            data = (work.folder, work.pairs, work.format, work.rows, work.held_out)
            learnt = Mlps(*data, seed, epochs, device, log)
        report = _solve(work, learnt, target, log)
        work.finish()
    return report


def _solve(work: Work, learnt: Learnt, target: float, log: Callable[[str], None]) -> Report:
    """Chooses rank and recall of every layer, writes the result, and describes it."""

    def likelihood(
        found: Sequence[search.Choice], windows: Sequence[np.ndarray]
    ) -> judge.Likelihood:
        contents = _contents(work, learnt, found)
        return work.likelihood("predictor" if contents[1] else "exact", *contents, windows)

    options = [_options(work, learnt, layer) for layer in work.layers]
    exact = [search.exactly(own[0]) for own in options]
    lost = _lost_alone(work, options, exact, likelihood, log)
    whole = sum(c.exact_bytes for c in exact)

    def priced(i: int) -> Sequence[search.Choice]:
        price = search.PRICES[i] * whole
        found = [search.cheapest(*layer, price) for layer in zip(options, lost, strict=True)]
        return search.worth_while(found)

    reference = likelihood(exact, work.judged)

    def loss(i: int) -> float:
        """What the perplexity rises by at most, as far as these windows tell."""
        found = priced(i)
        more = judge.loss(likelihood(found, work.judged), reference)
        log(f"perplexity {more}, below {more.most:.3%}, with {', '.join(map(_name_of, found))}")
        return more.most

    at = search.first_within(loss, len(search.PRICES), target)
    found = exact if at is None else priced(at)
    work.embed(work.out, *_contents(work, learnt, found))
    layers = [_report(learnt, n, c) for n, c in zip(work.layers, found, strict=True)]
    notes = learnt.notes(layers)
    if at is None:
        notes.append(
            f"no predictors are sure to lose at most {target:.2%}: the file keeps exact mode"
        )
    elif not any(choice.rank for choice in found):
        notes.append("predictors would read no less than exact mode: the file keeps it")
    # Of those that were tried the windows chose the one that suits them.
    tested = [likelihood(choices, work.tested) for choices in (found, exact)]
    more = judge.loss(*tested)
    if more.mean > target:
        notes.append(
            f"on windows that decided nothing the perplexity rises by {more}, more than the "
            f"target of {target:.2%}: more text decides better"
        )
    perplexities = (math.exp(each.mean) for each in tested)
    n_learnt, n_tested = len(work.rows) + len(work.held_out), int(tested[0].counts.sum())
    return Report(layers, *perplexities, n_learnt, notes, work.kind, more.error, n_tested)


def _options(work: Work, learnt: Learnt, layer: int) -> list[search.Choice]:
    """A layer's best at each of search.RECALLS."""
    start, ranks, costs = learnt.start(layer), learnt.ranks(layer), _costs(work, learnt, layer)
    curve_of = cache(lambda rank: learnt.candidate(layer, rank)[1])
    return [search.choose(at, start, ranks, costs, curve_of) for at in range(len(search.RECALLS))]


def _costs(work: Work, learnt: Learnt, layer: int) -> search.Costs:
    first, *rest = (
        t.n_bytes * work.pairs.layers[layer].share
        for part in ("ffn_gate", "ffn_up", "ffn_down_t")
        for end in ("", "_exps")
        if (t := work.tensors.get(f"blk.{layer}.{part}{end}.weight"))
    )
    return search.Costs(first, sum(rest), learnt.rank_bytes(layer), work.smooth)


def _lost_alone(
    work: Work,
    options: Sequence[Sequence[search.Choice]],
    exact: Sequence[search.Choice],
    likelihood: Callable[..., judge.Likelihood],
    log: Callable[[str], None],
) -> list[np.ndarray]:
    """What each layer loses at each of search.RECALLS where it alone is predicted."""
    windows = work.judged[::_PROBED]
    # A layer alone stands among others that have no predictor, which a smooth activation's
    # threshold does not hold for then.
    mode = "off" if work.smooth else "exact"
    reference, lost = work.likelihood(mode, [], [], windows), []
    for i, own in enumerate(options):
        if all(c.n_bytes >= c.without_bytes for c in own):
            lost.append(np.zeros(len(own)))
            continue
        measured = []
        for at in search.PROBES:
            found = [*exact[:i], own[at], *exact[i + 1 :]]
            more = judge.loss(likelihood(found, windows), reference)
            measured.append(more.mean)
            recall = f"{own[at].curve.recall[at]:.1%}"
            log(f"layer {work.layers[i]} alone, recall {recall}: perplexity {more}")
        lost.append(search.losses(measured))
    return lost


def _contents(
    work: Work, learnt: Learnt, found: Sequence[search.Choice]
) -> tuple[list[Any], list[Stored]]:
    """Keys and tensors of chosen predictors."""
    tensors: list[Stored] = []
    names = ("sparse_threshold", "predictor.recall", "predictor.precision")
    figures = {name: [0.0] * work.n_layer for name in names}
    for layer, choice in zip(work.layers, found, strict=True):
        c, at, known = choice.curve, choice.at, bool(choice.rank)
        precision = c.hit[at] / max(c.predicted[at], 1e-30)
        for values, value in zip(
            figures.values(), (c.threshold[at], c.recall[at], precision), strict=True
        ):
            values[layer] = float(value) if known else 0.0
        if known:
            tensors += learnt.candidate(layer, choice.rank)[0]
    keys = [array(f"powerinfer.{name}", "FLOAT32", v) for name, v in figures.items()]
    return (keys, tensors) if tensors else ([], [])


def _report(learnt: Learnt, layer: int, choice: search.Choice) -> LayerReport:
    c, at = choice.curve, choice.at
    if not choice.rank:
        sizes = choice.n_bytes, choice.exact_bytes
        return LayerReport(layer, 0, 0.0, 1.0, c.fired, 1.0, c.fired, 0, *sizes, 1.0)
    tensors, _, overfit = learnt.candidate(layer, choice.rank)
    predictor_bytes = round(sum(t.n_bytes for t in tensors) * learnt.pairs.layers[layer].share)
    return LayerReport(
        layer,
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


def _name_of(choice: search.Choice) -> str:
    return f"{choice.rank} at {choice.curve.recall[choice.at]:.1%}" if choice.rank else "exact"
