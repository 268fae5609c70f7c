"""powerinfer convert: a GGUF of a Hugging Face folder, with predictors if there are any."""

import argparse

from .. import convert


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="Hugging Face folder")
    parser.add_argument(
        "predictor", metavar="PREDICTOR_DIR", nargs="?", help="PowerInfer's folder of model_N.pt"
    )
    parser.add_argument("--outfile", metavar="F", help="default: beside MODEL, NAME-TYPE.gguf")
    parser.add_argument(
        "--outtype", choices=convert.OUTPUT_TYPES, default="f16", help="format of the matrices"
    )
    parser.add_argument(
        "--activation", choices=convert.ACTIVATIONS, help="instead of config.json's"
    )
    parser.add_argument(
        "--pre",
        choices=convert.PRE_NAMES,
        metavar="NAME",
        help="pre-tokeniser of a byte-level vocabulary, where its files do not tell: "
        + ", ".join(convert.PRE_NAMES),
    )
    parser.add_argument("--dense", action="store_true", help="a GGUF that any engine opens")
    parser.add_argument("--vocab-only", action="store_true", help="tokenizer and sizes alone")


def run(args: argparse.Namespace) -> None:
    path = convert.convert(
        args.model,
        args.predictor,
        outfile=args.outfile,
        outtype=args.outtype,
        activation=args.activation,
        dense=args.dense,
        vocab_only=args.vocab_only,
        pre=args.pre,
    )
    print(path)
