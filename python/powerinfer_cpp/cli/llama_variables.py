"""llama-server's environment variables, for `serve`: each stands for an option.

LLAMA_ARG_CTX_SIZE=4096 is --ctx-size 4096. An option on the command line wins, over those that it
excludes, too. An empty variable is none.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .llama_server import TAKEN

PREFIX = "LLAMA_ARG_"
# Variables that have not the name of their option.
_OPTIONS = {
    "LLAMA_API_KEY": "--api-key",
    "MTMD_BACKEND_DEVICE": "--mmproj-device",
    **{
        PREFIX + name: option
        for name, option in {
            "BATCH": "--batch-size",
            "UBATCH": "--ubatch-size",
            "ROPE_SCALING_TYPE": "--rope-scaling",
            "SPEC_DRAFT_CACHE_TYPE_K": "--spec-draft-type-k",
            "SPEC_DRAFT_CACHE_TYPE_V": "--spec-draft-type-v",
            "SPEC_DRAFT_HF_REPO": "--spec-draft-hf",
            "CHECKPOINT_MIN_SPACING_NT": "--checkpoint-min-step",
            "N_PARALLEL": "--parallel",
            "STATIC_PATH": "--path",
            "ENDPOINT_METRICS": "--metrics",
            "ENDPOINT_PROPS": "--props",
            "ENDPOINT_SLOTS": "--slots",
            "THINK": "--reasoning-format",
            "THINK_BUDGET": "--reasoning-budget",
            "THINK_BUDGET_MESSAGE": "--reasoning-budget-message",
        }.items()
    },
}
_YES, _NO = ("1", "on", "true", "enabled"), ("0", "off", "false", "disabled")
# What names a model: one of these on the command line is in place of all in the environment.
_WHICH_MODEL = {"models", "model", "hf_repo", "hf_file", "hf_revision"}


def take(
    parser: argparse.ArgumentParser,
    environment: Mapping[str, str],
    given: Sequence[str],
    args: argparse.Namespace,
    read: Callable[[list[str], argparse.Namespace, str], object],
) -> None:
    """Puts what variables say into `args`, before the command line `given` is read into it.

    read: reads words into args, and names the variable in its errors. args.unknown_variables are
    those that stand for no option.
    """
    found = [(name, text) for name, text in sorted(environment.items()) if text and _is_ours(name)]
    args.unknown_variables = [name for name, _ in found if not _known(parser, name)]
    said = _said(parser, given) if found else set()
    for name, text in found:
        action = _known(parser, name)
        if action is None or _meant(action) in said:
            continue
        for words in _words(parser, action, name, text):
            read(words, args, name)
        # What changes nothing is told by the name that the user knows.
        ours = (_option(name), _opposite(_option(name)))
        given = getattr(args, TAKEN, None) or {}
        setattr(args, TAKEN, {name if of in ours else of: why for of, why in given.items()})


def _is_ours(name: str) -> bool:
    return name.startswith(PREFIX) or name in _OPTIONS


def _option(name: str) -> str:
    own = "--" + name.removeprefix(PREFIX).lower().replace("_", "-")
    return _OPTIONS.get(name, own)


def _opposite(option: str) -> str:
    return option.replace("--", "--no-", 1)


def _known(parser: argparse.ArgumentParser, name: str) -> Any:
    """The action of a variable's option; None: there is no such option."""
    action = parser._option_string_actions.get(_option(name))
    return None if isinstance(action, argparse._HelpAction) else action


def _words(
    parser: argparse.ArgumentParser, action: argparse.Action, name: str, text: str
) -> Iterator[list[str]]:
    """The words of a command line that a variable stands for."""
    option = _option(name)
    if action.nargs != 0 and not getattr(action, "is_flag", False):
        several = text.split(",") if option == "--api-key" else [text]
        yield from ([f"{option}={each}"] for each in several)
        return
    if text.lower() in _YES:
        yield [option]
    elif text.lower() not in _NO:
        parser.error(f"{name}={text} is neither of {', '.join(_YES)} nor of {', '.join(_NO)}")
    elif _opposite(option) in parser._option_string_actions:
        yield [_opposite(option)]


def _meant(action: argparse.Action) -> object:
    """What an option decides: where its value goes; of one without a value of its own, itself."""
    return action if action.dest in (TAKEN, argparse.SUPPRESS) else action.dest


def _said(parser: argparse.ArgumentParser, given: Sequence[str]) -> set[object]:
    """What a command line decides, and what that excludes."""
    actions = []
    for word in given:
        if word == "--":
            break
        name = word.partition("=")[0] if word.startswith("--") else word
        if action := parser._option_string_actions.get(name):
            actions.append(action)
    said = set(map(_meant, actions))
    for group in parser._mutually_exclusive_groups:
        if any(action in group._group_actions for action in actions):
            said |= set(map(_meant, group._group_actions))
    if said & _WHICH_MODEL or _positionals(parser, given):
        said |= _WHICH_MODEL
    return said


def _positionals(parser: argparse.ArgumentParser, given: Sequence[str]) -> bool:
    """Does a command line name a model without an option?"""
    args = argparse.Namespace()
    argparse.ArgumentParser.parse_known_args(parser, list(given), args)
    return bool(getattr(args, "models", None))
