"""powerinfer perplexity: how well a model predicts a text."""

import argparse
from pathlib import Path

from ..model import Model, Session
from ..perplexity import Estimate, compare, perplexity
from .common import add_model_arguments, open_model, session_fields, whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--text", required=True, metavar="F", help="text file")
    parser.add_argument(
        "-c", "--ctx-size", type=whole(4), default=512, metavar="N", help="tokens of a window"
    )
    parser.add_argument("--separator", metavar="S", help="what stands between documents")
    parser.add_argument(
        "--compare",
        metavar="off|MODEL2",
        help="also how far the results are from those with every neuron computed, or from those "
        "of another file with the same vocabulary (a model in F16 beside its quantised form)",
    )


def _session(model: Model, args: argparse.Namespace) -> Session:
    fields = session_fields(args)
    fields["n_batch"] = min(fields["n_batch"], args.ctx_size)
    return Session(model, n_ctx=args.ctx_size, **fields)


def run(args: argparse.Namespace) -> None:
    text = Path(args.text).read_bytes()
    model = open_model(args)
    session = _session(model, args)
    separator = args.separator.encode("utf-8", "surrogateescape") if args.separator else None
    if args.compare is None:
        result = perplexity(model, session, text, args.ctx_size, separator)
        _show(result, args.ctx_size)
        return
    other = model if args.compare == "off" else open_model(args, args.compare)
    pairs = (model, session), (other, _session(other, args))
    found = compare(*pairs, text, args.ctx_size, separator)
    _show(found.chosen, args.ctx_size)
    print(f"Reference: PPL = {found.reference.perplexity:.4f} +/- {found.reference.error:.5f}")
    print(f"KL divergence: mean {found.mean:.6f} +/- {found.mean_error:.6f}, 99% {found.p99:.6f}")
    print(f"Same top 1: {100 * found.same_top:.3f} %")


def _show(result: Estimate, n_ctx: int) -> None:
    print(f"{result.n_windows} windows of {n_ctx}, {result.n_tokens} tokens scored")
    print(f"Final estimate: PPL = {result.perplexity:.4f} +/- {result.error:.5f}")
