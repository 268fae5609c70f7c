"""powerinfer plot: draws statistics, placements and predictors."""

import argparse

from ..plot import WHAT, plot


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        metavar="FILE",
        nargs="+",
        help="GGUF file; two or more for overlap; for placement also statistics of a run "
        "(main --json-stats)",
    )
    parser.add_argument(
        "--what",
        choices=WHAT,
        required=True,
        help="activation: how few neurons make most of the firings; placement: tier of each "
        "neuron, as planned in a model or as in a run; overlap: hot neurons that profiles share; "
        "predictor: quality and size",
    )
    parser.add_argument("--out", required=True, metavar="PNG", help="picture to write")


def run(args: argparse.Namespace) -> None:
    print(plot(args.models, args.what, args.out))
    print(args.out)
