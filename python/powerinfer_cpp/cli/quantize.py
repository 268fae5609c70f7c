"""powerinfer quantize: rewrites a GGUF in another format."""

import argparse

from .. import quantize
from ..convert import source, to_stderr
from ..gguf import Gguf
from .common import size_text


def _type(text: str) -> str:
    try:
        return quantize.find_type(text).name
    except ValueError:
        known = ", ".join(quantize.TYPES)
        raise argparse.ArgumentTypeError(f"{text} is not one of {known}") from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", metavar="IN", help="GGUF or PWRI file")
    parser.add_argument("output", metavar="OUT", help="GGUF to write")
    parser.add_argument("type", metavar="TYPE", type=_type, help=", ".join(quantize.TYPES))
    parser.add_argument(
        "--predictor-type", metavar="T", type=_type, default="Q8_0", help="default: Q8_0"
    )
    parser.add_argument(
        "--bundle", action="store_true", help="store the rows of each neuron together"
    )
    parser.add_argument(
        "--allow-requantize", action="store_true", help="also accept quantised matrices"
    )


def run(args: argparse.Namespace) -> None:
    quantize.quantize(
        args.input,
        args.output,
        args.type,
        predictor_type=args.predictor_type,
        bundle=args.bundle,
        allow_requantize=args.allow_requantize,
        log=to_stderr,
    )
    with Gguf(args.output) as gguf:
        n_bytes = sum(tensor.n_bytes for tensor in gguf.tensors)
        n_weights = sum(tensor.n_elements for tensor in source.tensors(gguf))
    bits = 8 * n_bytes / max(1, n_weights)
    to_stderr(f"{size_text(n_bytes)} of weights, {bits:.2f} bits each")
    print(args.output)
