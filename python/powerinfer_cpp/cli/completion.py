"""powerinfer completion: shell completion scripts for this command."""

import argparse

from . import COMMANDS
from . import add_arguments as add_command_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"))


def words(command: str) -> tuple[list[str], dict[str, list[str]]]:
    """A subcommand's options, and the choices of arguments by option ("" for positional ones)."""
    parser = argparse.ArgumentParser()
    add_command_arguments(command, parser)
    # argparse has no public access to its options.
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    values = {
        flag: [str(choice) for choice in action.choices]
        for action in shown
        if action.choices
        for flag in action.option_strings or [""]
    }
    return [flag for action in shown for flag in action.option_strings], values


def script(shell: str) -> str:
    """A script for bash or zsh, to source."""
    cases = []
    for name in COMMANDS:
        flags, values = words(name)
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
