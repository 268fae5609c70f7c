"""powerinfer perplexity: how well a model predicts a text."""

import argparse
from pathlib import Path

from ..model import Session
from ..perplexity import perplexity
from .common import add_model_arguments, open_model, session_fields, whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--text", required=True, metavar="F", help="text file")
    parser.add_argument(
        "-c", "--ctx-size", type=whole(4), default=512, metavar="N", help="tokens of a window"
    )
    parser.add_argument("--separator", metavar="S", help="what stands between documents")


def run(args: argparse.Namespace) -> None:
    text = Path(args.text).read_bytes()
    model = open_model(args)
    fields = session_fields(args)
    fields["n_batch"] = min(fields["n_batch"], args.ctx_size)
    session = Session(model, n_ctx=args.ctx_size, **fields)
    separator = args.separator.encode("utf-8", "surrogateescape") if args.separator else None
    result = perplexity(model, session, text, args.ctx_size, separator)
    print(f"{result.n_windows} windows of {args.ctx_size}, {result.n_tokens} tokens scored")
    print(f"Final estimate: PPL = {result.perplexity:.4f} +/- {result.error:.5f}")
