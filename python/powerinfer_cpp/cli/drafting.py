"""Options of guesses that a model checks (run/drafts.py), under llama.cpp's names too."""

import argparse

from ..run.drafts import DraftFile, LlamaDraftModel, LlamaDraftMtp, LlamaPromptLookupDecoding
from .common import whole

DRAFTED = 10  # tokens of a guess, the default of both kinds
WITH_MODEL = "draft-simple"
# llama.cpp has several ways to look for what the text said before; here there is one.
FROM_TEXT = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
WITH_LAYER = "draft-mtp"
# Those that need heads which no file has beside a model's own layers.
WITH_HEADS = ("draft-eagle3", "draft-dflash", "draft-dspark")


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
        help=f"llama.cpp's names: {WITH_MODEL} (with -md), {WITH_LAYER} (by the layer that some "
        f"models bring along), or {FROM_TEXT[0]} and others for --lookup",
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
        help="a guess of a model ends before a token less likely than this (default: 0.5)",
    )


def draft_of(args: argparse.Namespace) -> LlamaDraftModel | DraftFile | None:
    """What makes the guesses that the options ask for, for `Llama`. Raises argparse.ArgumentError
    for options that do not go together."""
    kinds = _kinds(args)
    if FROM_TEXT[0] in kinds:
        return LlamaPromptLookupDecoding(num_pred_tokens=args.draft_max)
    if WITH_MODEL in kinds:
        return DraftFile(args.model_draft, args.draft_max, args.draft_p_min)
    return LlamaDraftMtp(args.draft_p_min) if kinds else None


def _kinds(args: argparse.Namespace) -> set[str]:
    """Which kinds the options ask for, one at most, of which FROM_TEXT are one. Raises
    argparse.ArgumentError."""
    found = {WITH_MODEL} if args.model_draft else {FROM_TEXT[0]} if args.lookup else set()
    for kind in [kind.strip() for kind in (args.spec_type or "none").split(",")]:
        if kind in WITH_HEADS:
            raise _error(
                f"{kind} needs heads that this version does not run; there are {WITH_MODEL} (with "
                f"-md), {WITH_LAYER} and {FROM_TEXT[0]}"
            )
        if kind in FROM_TEXT:
            found.add(FROM_TEXT[0])
        elif kind in (WITH_MODEL, WITH_LAYER):
            found.add(kind)
        elif kind != "none":
            known = ("none", WITH_MODEL, WITH_LAYER, *FROM_TEXT)
            raise _error(f"{kind!r} is none of {', '.join(known)}")
    if len(found) > 1:
        raise _error(
            "guesses come from a model, its own layer or the text, not from several of them"
        )
    if WITH_MODEL in found and not args.model_draft:
        raise _error(f"{WITH_MODEL} needs -md FILE, the model that guesses")
    return found


def _error(words: str) -> argparse.ArgumentError:
    return argparse.ArgumentError(None, f"--spec-type: {words}")
