"""powerinfer quantize: rewrites a GGUF in another format."""

import argparse
import re

from .. import quantize
from ..convert import source, to_stderr
from ..core.errors import ModelFormatError, OutOfMemoryError
from ..core.gguf import Gguf
from ..quantize.vectors import compared
from .common import size_text


def _type(text: str) -> str:
    try:
        return quantize.find_type(text).name
    except ValueError:
        known = ", ".join(quantize.TYPES)
        raise argparse.ArgumentTypeError(f"{text} is not one of {known}") from None


def _format(text: str) -> str:
    try:
        return quantize.find_format(text).name
    except ValueError:
        known = ", ".join(quantize.FORMATS)
        raise argparse.ArgumentTypeError(f"{text} is not one of {known}") from None


def _tensor_format(text: str) -> tuple[str, str]:
    part, sign, name = text.rpartition("=")
    if not sign or not part:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=FORMAT")
    try:
        re.compile(part)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{part} is no regular expression: {error}") from None
    return part, _format(name)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", metavar="IN", help="GGUF or PWRI file")
    parser.add_argument("output", metavar="OUT", help="GGUF to write")
    parser.add_argument("type", metavar="TYPE", type=_type, help=", ".join(quantize.TYPES))
    parser.add_argument(
        "--predictor-type", metavar="T", type=_format, default="Q8_0", help="default: Q8_0"
    )
    parser.add_argument(
        "--imatrix",
        metavar="F",
        help="importance of columns, from `powerinfer profile --imatrix` or llama.cpp",
    )
    parser.add_argument(
        "--pure", action="store_true", help="give all matrices the format that most have"
    )
    parser.add_argument(
        "--output-tensor-type", metavar="T", type=_format, help="format of output.weight"
    )
    parser.add_argument(
        "--token-embedding-type", metavar="T", type=_format, help="format of token_embd.weight"
    )
    parser.add_argument(
        "--tensor-type",
        metavar="NAME=T",
        type=_tensor_format,
        action="append",
        default=[],
        help="format of the tensors in whose names this regular expression is found; may be "
        "repeated, the first that is found counts",
    )
    parser.add_argument(
        "--leave-output-tensor", action="store_true", help="keep output.weight as it is"
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
        choice=quantize.Choice(
            pure=args.pure,
            output=args.output_tensor_type,
            token_embedding=args.token_embedding_type,
            tensors=args.tensor_type,
            leave_output=args.leave_output_tensor,
        ),
        imatrix=args.imatrix,
        bundle=args.bundle,
        allow_requantize=args.allow_requantize,
        log=to_stderr,
    )
    with Gguf(args.output) as gguf:
        n_bytes = sum(tensor.n_bytes for tensor in gguf.tensors)
        n_weights = sum(tensor.n_elements for tensor in source.tensors(gguf))
    bits = 8 * n_bytes / max(1, n_weights)
    to_stderr(f"{size_text(n_bytes)} of weights, {bits:.2f} bits each")
    try:
        if (difference := compared(args.input, args.output)) is not None:
            to_stderr(difference)
    except (ModelFormatError, OutOfMemoryError) as error:  # the file is written, and stays
        to_stderr(f"vectors were not compared: {error}")
    print(args.output)
