"""Proposals for words that were mistyped."""

import argparse
import difflib
from collections.abc import Iterable, Sequence


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant; None if none is close."""
    bare = {each.lstrip("-/"): each for each in sorted(known, key=len, reverse=True)}
    wanted = word.lower().lstrip("-/")
    begun = [each for each in bare if each.startswith(wanted)]
    if wanted and begun and (len(wanted) > 1 or len(begun) == 1):  # the beginning of a longer one
        return bare[min(begun, key=len)]
    near = difflib.get_close_matches(wanted, bare, 1)
    return bare[near[0]] if near else None


def hint(word: str, known: Sequence[str], otherwise: str) -> str:
    """ "did you mean --this?", or something else if nothing is close."""
    found = closest(word, known)
    return otherwise if found is None else f"did you mean {found}?"


def unknown_option(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> str | None:
    """The first word of a command line that is no option of the parser's, and begins with -- or is
    one of llama.cpp's that _DRAFTS lists."""
    # argparse has no public access to its options.
    known = {flag for action in parser._actions for flag in action.option_strings}
    for word in arguments:
        if word == "--":
            return None
        name = word.partition("=")[0]
        long = word.startswith("--") and " " not in name
        if name not in known and (long or name in (*_DRAFT_REASONS, "-md")):
            return name
    return None


def option_sentence(parser: argparse.ArgumentParser, name: str) -> str:
    """What to say about an unknown option."""
    why = _why_not(parser, name)
    if why is not None:
        return f"option {name} is unknown; {why}"
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    flags = [flag for action in shown for flag in action.option_strings if flag[:2] == "--"]
    wanted = "--" + name.lstrip("-").replace("_", "-")
    return f"option {name} is unknown; {hint(wanted, flags, f'{parser.prog} --help lists all')}"


# llama.cpp's options of drafts that change nothing here, or are done otherwise, by what is said.
_DRAFTS = {
    "the draft model is a file (-md FILE)": "--spec-draft-hf -hfd -hfrd --hf-repo-draft",
    "drafts have the threads of -t": "--spec-draft-threads -td --threads-draft "
    "--spec-draft-threads-batch -tbd --threads-batch-draft --spec-draft-cpu-mask -Cd "
    "--cpu-mask-draft --spec-draft-cpu-range -Crd --cpu-range-draft --spec-draft-cpu-strict "
    "--cpu-strict-draft --spec-draft-prio --prio-draft --spec-draft-poll --poll-draft "
    "--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft --spec-draft-cpu-range-batch -Crbd "
    "--cpu-range-batch-draft --spec-draft-cpu-strict-batch --cpu-strict-batch-draft "
    "--spec-draft-prio-batch --prio-batch-draft --spec-draft-poll-batch --poll-batch-draft",
    "the CPU computes the draft model, with keys and values in F16": "--spec-draft-type-k -ctkd "
    "--cache-type-k-draft --spec-draft-type-v -ctvd --cache-type-v-draft "
    "--spec-draft-override-tensor -otd --override-tensor-draft --spec-draft-cpu-moe -cmoed "
    "--cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft "
    "--spec-draft-device -devd --device-draft --spec-draft-ngl -ngld --gpu-layers-draft "
    "--n-gpu-layers-draft --spec-draft-backend-sampling",
    "short guesses are checked, too": "--spec-draft-n-min --draft-min --draft-n-min "
    "--spec-ngram-mod-n-min",
    "a guess has no branches": "--spec-draft-p-split --draft-p-split",
    "--lookup takes the longest match of the last tokens, however often it occurred": (
        "--spec-ngram-mod-n-match --spec-ngram-simple-size-n --spec-ngram-simple-min-hits "
        "--spec-ngram-map-k-size-n --spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n "
        "--spec-ngram-map-k4v-min-hits --spec-ngram-size-n --spec-ngram-size-m "
        "--spec-ngram-min-hits"
    ),
    "--lookup keeps nothing between runs": "--lookup-cache-static -lcs --lookup-cache-dynamic -lcd",
}
_DRAFT_REASONS = {name: why for why, names in _DRAFTS.items() for name in names.split()}


def _why_not(parser: argparse.ArgumentParser, name: str) -> str | None:
    """Why a command that drafts lacks an option of llama.cpp's; None for other options."""
    drafts = any("--lookup" in action.option_strings for action in parser._actions)
    return _DRAFT_REASONS.get(name) if drafts else None
