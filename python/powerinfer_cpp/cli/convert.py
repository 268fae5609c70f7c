"""powerinfer convert: makes a GGUF from a Hugging Face folder, another GGUF, or an adapter."""

import argparse

from .. import convert


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="Hugging Face or PEFT folder, GGUF or PWRI file"
    )
    parser.add_argument(
        "predictor", metavar="PREDICTOR_DIR", nargs="?", help="PowerInfer's folder of model_N.pt"
    )
    parser.add_argument("--outfile", metavar="F", help="default: beside MODEL, NAME-TYPE.gguf")
    parser.add_argument(
        "--outtype",
        choices=convert.OUTPUT_TYPES,
        help="format of the matrices (default: f16; for a GGUF: unchanged)",
    )
    parser.add_argument("--activation", choices=convert.ACTIVATIONS, help="override the model's")
    parser.add_argument(
        "--pre",
        choices=convert.PRE_NAMES,
        metavar="NAME",
        help="pre-tokeniser of a byte-level vocabulary, if its files do not identify it: "
        + ", ".join(convert.PRE_NAMES),
    )
    parser.add_argument(
        "--dense", action="store_true", help="plain matrices, readable by other engines"
    )
    parser.add_argument(
        "--bundle", action="store_true", help="store the rows of each neuron together"
    )
    parser.add_argument(
        "--profile", metavar="STATS_DIR", help="PowerInfer's folder of activation_N.pt"
    )
    parser.add_argument(
        "--base",
        metavar="MODEL",
        help="for a PEFT adapter: its base model's GGUF, or a folder with its config.json",
    )
    parser.add_argument(
        "--rank",
        action="store_true",
        help="a folder of Qwen3 ranks pairs of texts, though neither its name nor its card says so",
    )
    parser.add_argument(
        "--allow-unknown",
        action="store_true",
        help="convert without keys of config.json and tensors that change results and are not "
        "known here",
    )
    parser.add_argument("--vocab-only", action="store_true", help="only tokenizer and sizes")


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
        base=args.base,
        rank=args.rank,
        allow_unknown=args.allow_unknown,
    )
    print(path)
