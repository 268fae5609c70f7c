"""Options of guesses that a model checks (run/drafts.py), under llama.cpp's names too."""

import argparse

from ..run.drafts import DraftFile, LlamaDraftModel, LlamaPromptLookupDecoding
from .common import whole

DRAFTED = 10  # tokens of a guess, the default of both kinds
WITH_MODEL = "draft-simple"
# llama.cpp has several ways to look for what the text said before; here there is one.
FROM_TEXT = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
# Those that need what only some models bring.
WITH_HEADS = ("draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark")


def add_draft_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options to a command's."""
    only = parser.add_mutually_exclusive_group()
    only.add_argument(
        "-md",
        "--model-draft",
        "--spec-draft-model",
        metavar="FILE",
        help="a smaller model whose guesses are checked together: the same text, often sooner",
    )
    only.add_argument(
        "--lookup",
        "--spec-default",
        action="store_true",
        help="guess from how the text went on before",
    )
    parser.add_argument(
        "--spec-type",
        metavar="TYPES",
        help=f"llama.cpp's names: {WITH_MODEL} (with -md), or {FROM_TEXT[0]} and others for "
        "--lookup",
    )
    parser.add_argument(
        "--draft-max",
        "--draft",
        "--draft-n",
        "--spec-draft-n-max",
        "--spec-ngram-simple-size-m",
        "--spec-ngram-map-k-size-m",
        "--spec-ngram-map-k4v-size-m",
        "--spec-ngram-mod-n-max",
        type=whole(1),
        default=DRAFTED,
        metavar="N",
        help=f"tokens of a guess (default: {DRAFTED})",
    )
    parser.add_argument(
        "--draft-p-min",
        "--spec-draft-p-min",
        type=float,
        default=0.5,
        metavar="P",
        help="a guess of -md ends before a token less likely than this (default: 0.5)",
    )


def draft_of(args: argparse.Namespace) -> LlamaDraftModel | DraftFile | None:
    """What makes the guesses that the options ask for, for `Llama`. Raises argparse.ArgumentError
    for options that do not go together."""
    if _asks_for_text(args) or args.lookup:
        return LlamaPromptLookupDecoding(num_pred_tokens=args.draft_max)
    if args.model_draft:
        return DraftFile(args.model_draft, args.draft_max, args.draft_p_min)
    return None


def _asks_for_text(args: argparse.Namespace) -> bool:
    """Does --spec-type ask for guesses from the text? Raises argparse.ArgumentError."""
    kinds = [kind.strip() for kind in (args.spec_type or "none").split(",")]
    known = ("none", WITH_MODEL, *FROM_TEXT)
    for kind in kinds:
        if kind in WITH_HEADS:
            raise _error(
                f"{kind} needs heads that models bring along, which this version does not run; "
                f"there are {WITH_MODEL} (with -md) and {FROM_TEXT[0]}"
            )
        if kind not in known:
            raise _error(f"{kind!r} is none of {', '.join(known)}")
    from_model, from_text = WITH_MODEL in kinds, any(kind in FROM_TEXT for kind in kinds)
    if (from_text and (from_model or args.model_draft)) or (from_model and args.lookup):
        raise _error("guesses come from a model or from the text, not from both")
    if from_model and not args.model_draft:
        raise _error(f"{WITH_MODEL} needs -md FILE, the model that guesses")
    return from_text


def _error(words: str) -> argparse.ArgumentError:
    return argparse.ArgumentError(None, f"--spec-type: {words}")
