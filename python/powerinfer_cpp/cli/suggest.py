"""Proposals for words that were mistyped."""

import argparse
import difflib
from collections.abc import Iterable, Sequence

from .llama_server import REASONS


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
    one of llama.cpp's."""
    # argparse has no public access to its options.
    known = {flag for action in parser._actions for flag in action.option_strings}
    for word in arguments:
        if word == "--":
            return None
        name = word.partition("=")[0]
        long = word.startswith("--") and " " not in name
        if name not in known and (long or name in (*REASONS, "-md")):
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


def _why_not(parser: argparse.ArgumentParser, name: str) -> str | None:
    """Why a command that drafts, as those do that write text, lacks an option of llama.cpp's; None
    for other options."""
    drafts = any("--lookup" in action.option_strings for action in parser._actions)
    return REASONS.get(name) if drafts else None
