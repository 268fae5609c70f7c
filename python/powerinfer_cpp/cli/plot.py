"""powerinfer plot: draws statistics, placements and predictors."""

import argparse

from ..plot import WHAT, plot


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", metavar="MODEL", nargs="+", help="GGUF file; two or more for overlap"
    )
    parser.add_argument(
        "--what",
        choices=WHAT,
        required=True,
        help="activation: how few neurons make most of the firings; placement: tier of each "
        "neuron; overlap: hot neurons that profiles share; predictor: quality and size",
    )
    parser.add_argument("--out", required=True, metavar="PNG", help="picture to write")


def run(args: argparse.Namespace) -> None:
    print(plot(args.models, args.what, args.out))
    print(args.out)
