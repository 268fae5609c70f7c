"""powerinfer convert: a GGUF of a Hugging Face folder or of another GGUF."""

import argparse

from .. import convert


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="Hugging Face folder, GGUF or PWRI file")
    parser.add_argument(
        "predictor", metavar="PREDICTOR_DIR", nargs="?", help="PowerInfer's folder of model_N.pt"
    )
    parser.add_argument("--outfile", metavar="F", help="default: beside MODEL, NAME-TYPE.gguf")
    parser.add_argument(
        "--outtype",
        choices=convert.OUTPUT_TYPES,
        help="format of the matrices (default: f16; of a GGUF: what it has)",
    )
    parser.add_argument("--activation", choices=convert.ACTIVATIONS, help="instead of the model's")
    parser.add_argument(
        "--pre",
        choices=convert.PRE_NAMES,
        metavar="NAME",
        help="pre-tokeniser of a byte-level vocabulary, where its files do not tell: "
        + ", ".join(convert.PRE_NAMES),
    )
    parser.add_argument(
        "--dense", action="store_true", help="plain matrices, which other engines read"
    )
    parser.add_argument(
        "--bundle", action="store_true", help="neuron rows side by side, as they lie in memory"
    )
    parser.add_argument(
        "--profile", metavar="STATS_DIR", help="PowerInfer's folder of activation_N.pt"
    )
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
        bundle=args.bundle,
        profile=args.profile,
        pre=args.pre,
    )
    print(path)
