"""powerinfer relufy: trains a Hugging Face checkpoint on until most of its neurons are zero."""

import argparse
from collections.abc import Sequence

from ..relufy import RECIPES, relufy
from ..relufy.curve import Row
from .common import add_text_arguments, number_of, whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="Hugging Face folder")
    add_text_arguments(parser, least_ctx=2)
    parser.add_argument(
        "--held-out", metavar="F", help="text to measure on (default: the end of --text)"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write")
    parser.add_argument(
        "--recipe",
        choices=RECIPES,
        default="prosparse",
        help="prosparse: ReLU, and a penalty that rises; turbosparse: ReLU on gate and up; "
        "control: no change, for comparison (default: prosparse)",
    )
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=whole(1), metavar="N", help="steps to train")
    length.add_argument("--tokens", type=whole(1), metavar="N", help="the same in tokens")
    parser.add_argument(
        "--batch", type=whole(1), default=16, metavar="N", help="windows per step (default: 16)"
    )
    parser.add_argument(
        "--parts",
        type=whole(1),
        default=1,
        metavar="N",
        help="compute each batch in N pieces, which needs less memory",
    )
    parser.add_argument(
        "--lr",
        type=number_of("learning rates"),
        default=5e-5,
        metavar="X",
        help="highest learning rate (default: 5e-5)",
    )
    parser.add_argument(
        "--l1",
        type=number_of("penalties"),
        metavar="X",
        help="last factor of the penalty (default: prosparse 0.2, others 0)",
    )
    parser.add_argument(
        "--threshold",
        type=number_of("thresholds"),
        metavar="X",
        help="gates up to X count as zero in the result of prosparse (default: 0.01)",
    )
    parser.add_argument(
        "--curve", type=whole(1), metavar="N", help="steps between rows of the curve"
    )
    parser.add_argument("-s", "--seed", type=whole(0), default=0, metavar="N")
    parser.add_argument("--device", metavar="NAME", help="default: cuda if present, else cpu")


def run(args: argparse.Namespace) -> None:
    rows = relufy(
        args.checkpoint,
        args.out,
        args.text,
        recipe=args.recipe,
        held_out=args.held_out,
        separator=args.separator,
        n_steps=args.steps,
        n_tokens=args.tokens,
        n_batch=args.batch,
        n_ctx=args.ctx_size,
        parts=args.parts,
        lr=args.lr,
        l1=args.l1,
        threshold=args.threshold,
        every=args.curve,
        seed=args.seed,
        device=args.device,
    )
    show(rows)
    print(args.out)


def show(rows: Sequence[Row]) -> None:
    """Prints a table of the curve."""
    before = rows[0]
    print("  step  activation  threshold  perplexity   change    zero  per layer")
    for row in rows:
        layers = " ".join(f"{share:.0%}" for share in row.zero[:8])
        more = " ..." if len(row.zero) > 8 else ""
        change = row.perplexity / before.perplexity - 1
        print(
            f"{row.step:6}  {row.activation:>10}  {row.threshold:9g}  {row.perplexity:10.4f}  "
            f"{change:+7.2%}  {row.sparsity:6.1%}  {layers}{more}"
        )
