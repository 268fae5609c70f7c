"""powerinfer train-predictor: adds predictors of firing neurons to a GGUF."""

import argparse

from .. import predictor
from ..convert import to_stderr
from ..predictor import Report, train_predictors
from .common import (
    add_model_arguments,
    add_text_arguments,
    gibibytes,
    model_fields,
    need_cpu,
    session_fields,
    share,
    whole,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_text_arguments(parser, least_ctx=2)
    parser.add_argument(
        "--kind",
        choices=predictor.KINDS,
        default="mlp",
        help="mlp: trained, needs torch; sketch: signs of the gates' weights, untrained, for "
        "models of the ReLU family, not SiLU or GELU (default: mlp)",
    )
    parser.add_argument("--out", required=True, metavar="F", help="GGUF to write")
    parser.add_argument(
        "--target",
        type=share,
        default=0.001,
        metavar="P",
        help="maximum rise of perplexity, with 95%% certainty (default: 0.1%%)",
    )
    parser.add_argument(
        "--tokens",
        type=whole(1),
        metavar="N",
        help="tokens to learn from (default: 400000, for sketches 100000)",
    )
    parser.add_argument(
        "--store",
        type=gibibytes,
        default=8.0,
        metavar="GiB",
        help="disk space for recordings, beside OUT (default: 8)",
    )
    parser.add_argument("--input", choices=("normed", "residual"), default="normed")
    parser.add_argument("--predictor-type", default="Q8_0", choices=("Q8_0", "Q4_0", "F16", "F32"))
    parser.add_argument("--epochs", type=whole(1), default=20, metavar="N", help="maximum epochs")
    parser.add_argument("--torch-device", metavar="NAME", help="default: cuda if present, else cpu")


def run(args: argparse.Namespace) -> None:
    need_cpu(args)
    report = train_predictors(
        args.model,
        args.out,
        args.text,
        separator=args.separator,
        kind=args.kind,
        predictor_input=args.input,
        predictor_type=args.predictor_type,
        target=args.target,
        n_tokens=args.tokens,
        n_ctx=args.ctx_size,
        epochs=args.epochs,
        store_gib=args.store,
        seed=args.seed,
        torch_device=args.torch_device,
        model_fields=model_fields(args),
        log=to_stderr,
        **session_fields(args),
    )
    show(report)
    print(args.out)


def show(report: Report) -> None:
    """Prints a table of the layers and their total cost."""
    print("layer    rank   recall  precision  predicted   fired  predictor KiB  bytes of exact")
    for layer in report.layers:
        share = layer.n_bytes / layer.exact_bytes
        without = "exact" if layer.n_bytes <= layer.exact_bytes else "all"
        size = without if not layer.rank else "sketch" if report.kind == "sketch" else layer.rank
        print(
            f"{layer.layer:5}  {size:>6}  {layer.recall:7.2%}  {layer.precision:9.2%}  "
            f"{layer.predicted:9.2%}  {layer.fired:6.2%}  {layer.predictor_bytes / 1024:13.1f}  "
            f"{share:14.1%}"
        )
    read, exact = (
        sum(getattr(layer, name) for layer in report.layers) for name in ("n_bytes", "exact_bytes")
    )
    loss = report.perplexity / report.reference - 1
    print(f"in all {read / exact:.1%} of the bytes that exact mode reads per token")
    print(
        f"perplexity {report.perplexity:.4f} ({loss:+.3%} ± {report.error:.3%} of "
        f"{report.reference:.4f}) on {report.n_tested} tokens that decided nothing"
    )
    print(f"learnt from {report.n_tokens} tokens")
    for note in report.notes:
        print(f"note: {note}")
