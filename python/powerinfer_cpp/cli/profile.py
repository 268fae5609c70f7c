"""powerinfer profile: counts how often each neuron fires, and stores it in the GGUF."""

import argparse
from pathlib import Path

import numpy as np

from ..convert import to_stderr
from ..convert.writer import refuse_inputs
from ..core.model import Model
from ..core.printable import printable
from ..measure.trace import record
from ..profile import Statistics, importance, profile
from ..profile.text import read, windows
from ..quantize import imatrix
from .common import (
    add_model_arguments,
    add_text_arguments,
    model_fields,
    need_cpu,
    session_fields,
    share,
    whole,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_text_arguments(parser, least_ctx=1, required=False)
    parser.add_argument("--tokens", type=whole(1), metavar="N", help="tokens to use (default: all)")
    parser.add_argument("--out", metavar="F", help="GGUF to write: MODEL plus statistics")
    parser.add_argument(
        "--merge",
        metavar="F",
        action="append",
        default=[],
        help="add the statistics of this profiled GGUF of the same model; may be repeated",
    )
    parser.add_argument(
        "--import", dest="imported", metavar="DIR", help="add PowerInfer's activation_N.pt"
    )
    parser.add_argument(
        "--import-tokens",
        type=whole(1),
        metavar="N",
        help="number of tokens behind --import (default: the largest count, its lower bound)",
    )
    parser.add_argument("--export", metavar="DIR", help="write activation_N.pt for PowerInfer")
    parser.add_argument(
        "--trace",
        metavar="F",
        help="write which neurons each token needs, computed with --sparse as if generated, for "
        "`powerinfer simulate`",
    )
    parser.add_argument(
        "--imatrix",
        metavar="F",
        help="write an importance matrix for `powerinfer quantize`: a GGUF as llama.cpp's",
    )
    parser.add_argument(
        "--cats",
        type=share,
        metavar="P",
        help="SiLU and GELU: set thresholds so that this share of each layer's neurons counts as "
        "zero in exact mode (for example 50%%)",
    )
    parser.add_argument("--backend", choices=("engine", "transformers"), default="engine")
    parser.add_argument(
        "--checkpoint", metavar="DIR", help="Hugging Face folder for the backend transformers"
    )


def run(args: argparse.Namespace) -> None:
    if all(value is None for value in (args.out, args.export, args.trace, args.imatrix)):
        raise ValueError("profile needs --out F, --export DIR, --imatrix F or --trace F")
    if args.trace is not None:
        _trace(args)
        return
    if args.imatrix is not None:
        _imatrix(args)
        return
    if (args.backend == "transformers") != (args.checkpoint is not None):
        raise ValueError("--backend transformers and --checkpoint DIR need each other")
    need_cpu(args)
    fields = session_fields(args)
    try:
        found = profile(
            Model(args.model, **model_fields(args)),
            args.out,
            args.text,
            separator=args.separator,
            n_tokens=args.tokens,
            n_ctx=args.ctx_size,
            merge=args.merge,
            imported=args.imported,
            imported_tokens=args.import_tokens,
            export=args.export,
            checkpoint=args.checkpoint,
            cats=args.cats,
            log=to_stderr,
            **fields,
        )
    except ImportError as error:
        raise ValueError(str(error)) from None
    show(found)
    if args.out is not None:
        print(args.out)


def _alone(args: argparse.Namespace, option: str) -> tuple[Model, list[np.ndarray]]:
    """The model and the windows of the text, for an option that writes nothing else."""
    others = (args.out, args.export, args.imported, args.cats, args.checkpoint)
    several = args.trace is not None and args.imatrix is not None
    if args.text is None or args.merge or several or any(value is not None for value in others):
        raise ValueError(f"{option} needs --text, and is an output of its own")
    need_cpu(args)
    model = Model(args.model, **model_fields(args))
    n_ctx = min(args.ctx_size, model.n_ctx_train)
    try:
        return model, windows(model, read(args.text), args.separator, n_ctx, args.tokens)
    except ValueError as error:
        raise ValueError(f"{args.text}: {error}") from None


def _trace(args: argparse.Namespace) -> None:
    model, pieces = _alone(args, "--trace")
    tokens, proposed, computed = record(model, args.trace, pieces, **session_fields(args))
    print(f"{tokens} tokens; each proposed {proposed:.0f} neurons and computed {computed:.0f}")
    print(args.trace)


def _imatrix(args: argparse.Namespace) -> None:
    model, pieces = _alone(args, "--imatrix")
    refuse_inputs(Path(args.imatrix), [*model.gguf.files, args.text])
    corpus = Path(args.text).name
    found = importance.measure(model, pieces, corpus, **session_fields(args))
    imatrix.write(args.imatrix, found)
    print(f"{sum(map(len, pieces))} tokens, inputs of {len(found.inputs)} tensors")
    print(args.imatrix)


def show(found: Statistics) -> None:
    """Prints per layer the share of neurons that fire, and how uneven they are."""
    print(f"{found.tokens} tokens of {printable(found.corpus)}")
    print("layer  fire  the 20% that fire most make up")
    for layer in range(len(found.layers)):
        rates = found.layer_rates(layer)
        if not rates.size:
            continue
        sorted_rates = np.sort(rates.reshape(-1))[::-1]
        top = sorted_rates[: max(1, round(0.2 * len(sorted_rates)))].sum()
        share = top / max(sorted_rates.sum(), 1e-12)
        print(f"{layer:5}  {rates.mean():5.1%}  {share:.1%} of the firings")
