"""powerinfer perplexity: measures how well a model predicts a text."""

import argparse
import math

import numpy as np

from ..core import options
from ..core.model import Model
from ..core.session import Session
from ..measure.perplexity import (
    Comparison,
    Estimate,
    compare,
    perplexity,
    scoring_fields,
    standard_error,
)
from ..profile.text import read
from .common import (
    add_model_arguments,
    add_text_arguments,
    device_fields,
    model_fields,
    session_fields,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_text_arguments(parser, least_ctx=4)
    parser.add_argument(
        "--compare",
        metavar="off|MODEL2",
        help="also compare the results with those of every neuron computed, or with another file "
        "that has the same vocabulary (for example the F16 original of a quantised model)",
    )


def run(args: argparse.Namespace) -> None:
    text = read(args.text)
    n_ctx, loading = args.ctx_size, model_fields(args)
    fields = scoring_fields(n_ctx, session_fields(args))
    n_sessions = 2 if args.compare == "off" else 1
    model = Model(
        args.model, session=fields, n_sessions=n_sessions, **loading, **device_fields(args)
    )
    session = Session(model, verbose=True, **fields)
    if args.compare is None:
        _show(perplexity(model, session, text, n_ctx, args.separator), n_ctx, model)
        return
    # Another file computes on the CPU: the budget of VRAM is for the model.
    other = model if args.compare == "off" else Model(args.compare, **loading)
    base = Session(other, verbose=True, **{**fields, **options.sparse_fields("off", None)})
    found = compare((model, session), (other, base), text, n_ctx, args.separator)
    _show(found.chosen, n_ctx, model)
    _show_comparison(found)


def _show(result: Estimate, n_ctx: int, model: Model) -> None:
    print(f"{result.n_windows} windows of {n_ctx}, {result.n_tokens} tokens scored")
    print(f"Final estimate: PPL = {result.perplexity:.4f} +/- {result.error:.5f}")
    share = {name: f"{x:.2%}" for name, x in result.work.mean_shares().items()}
    print(
        f"Neurons of scored tokens: computed {share['computed']} "
        f"(predicted {share['predicted']}, fired {share['fired']})"
    )


def _show_comparison(found: Comparison) -> None:
    """Prints the comparison in llama-perplexity's format."""
    kl, ratio, same = found.kl, found.log_ratio, found.same_top
    log_ratio, log_error = ratio.mean(), standard_error(ratio)
    deviation = math.sqrt(same * (1 - same) / max(1, len(kl) - 1))

    def line(name: str, value: float, error: float | None = None) -> None:
        print(f"{name}: {value:10.6f}" + ("" if error is None else f" ± {error:10.6f}"))

    print("\n====== Perplexity statistics ======")
    line(f"{'Mean PPL(Q)':30}", found.chosen.perplexity, found.chosen.error)
    line(f"{'Mean PPL(base)':30}", found.reference.perplexity, found.reference.error)
    line(f"{'Mean ln(PPL(Q)/PPL(base))':30}", log_ratio, log_error)
    ratio_of_means = math.exp(log_ratio)
    line(f"{'Mean PPL(Q)/PPL(base)':30}", ratio_of_means, ratio_of_means * log_error)
    print("\n====== KL divergence statistics ======")
    line("Mean    KLD", found.mean, standard_error(kl))
    line("Maximum KLD", kl.max())
    line("99.9%   KLD", float(np.percentile(kl, 99.9)))
    line("99.0%   KLD", found.p99)
    line("Median  KLD", float(np.median(kl)))
    print("\n====== Token probability statistics ======")
    print(f"Same top p: {100 * same:6.3f} ± {100 * deviation:5.3f} %")
