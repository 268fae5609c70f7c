"""powerinfer completion: scripts with which a shell completes this command."""

import argparse
import importlib

from . import COMMANDS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"))


def options() -> dict[str, list[str]]:
    """The options of each subcommand, from the parsers themselves."""
    found = {}
    for name in COMMANDS:
        parser = argparse.ArgumentParser()
        importlib.import_module(f".{name}", __package__).add_arguments(parser)
        # The parser's own way to its options: argparse has no public one.
        found[name] = [
            flag
            for action in parser._actions
            if action.help != argparse.SUPPRESS
            for flag in action.option_strings
        ]
    return found


def words(name: str) -> dict[str, list[str]]:
    """Values of a subcommand's arguments that are one of a few, by option; "" for those without."""
    parser = argparse.ArgumentParser()
    importlib.import_module(f".{name}", __package__).add_arguments(parser)
    found = {}
    for action in parser._actions:
        if action.choices:
            for flag in action.option_strings or [""]:
                found[flag] = [str(choice) for choice in action.choices]
    return found


def script(shell: str) -> str:
    """A script for bash or zsh, to be sourced."""
    cases = []
    for name, flags in options().items():
        values = words(name)
        for flag, choices in values.items():
            if flag:
                cases.append(f'        {name}:{flag}) words="{" ".join(choices)}" ;;')
        every = " ".join([*flags, *values.get("", [])])
        cases.append(f'        {name}:*) words="{every}" ;;')
    table = "\n".join(cases)
    start = "autoload -Uz bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return f"""\
{start}_powerinfer() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{" ".join(COMMANDS)} --help --version" -- "$word"))
        return
    fi
    case "${{COMP_WORDS[1]}}:$before" in
{table}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word") $(compgen -f -- "$word"))
}}
complete -o filenames -F _powerinfer powerinfer
"""


def run(args: argparse.Namespace) -> None:
    print(script(args.shell), end="")
