"""Proposals for words that were mistyped."""

import argparse
import difflib
from collections.abc import Iterable, Sequence


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant; None if none is close."""
    known = sorted(known, key=len)
    low = word.lower()
    if len(word.lstrip("-/")) > 1:  # the beginning of a longer one
        begun = next((each for each in known if each.startswith(low)), None)
        if begun is not None:
            return begun
    return next(iter(difflib.get_close_matches(low, known, 1)), None)


def hint(word: str, known: Sequence[str], otherwise: str) -> str:
    """ "did you mean --this?", or something else if nothing is close."""
    found = closest(word, known)
    return otherwise if found is None else f"did you mean {found}?"


def unknown_option(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> str | None:
    """The first word of a command line that begins with -- and is no option of the parser's."""
    # argparse has no public access to its options.
    known = {flag for action in parser._actions for flag in action.option_strings}
    for word in arguments:
        if word == "--":
            return None
        name = word.partition("=")[0]
        if word.startswith("--") and " " not in name and name not in known:
            return name
    return None


def option_sentence(parser: argparse.ArgumentParser, name: str) -> str:
    """What to say about an unknown option."""
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    flags = [flag for action in shown for flag in action.option_strings if flag[:2] == "--"]
    wanted = "--" + name.lstrip("-").replace("_", "-")
    return f"option {name} is unknown; {hint(wanted, flags, f'{parser.prog} --help lists all')}"
