"""The command `powerinfer`: one module per subcommand, one-line errors.

Exit status: 0 on success; 1 after an error; 2 for a wrong command line; 130 after Ctrl-C. A closed
stdout (`| head`) is not an error, and neither is a stderr that cannot be written.
"""

import argparse
import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn, TextIO

from ..core.log import tell
from ..core.printable import printable
from . import llama_variables
from .suggest import closest, option_sentence, unknown_option

COMMANDS = {
    "convert": "make a GGUF from a Hugging Face folder or another GGUF",
    "quantize": "rewrite a GGUF in another format",
    "bundle": "write a model's neurons so that single ones can be read from disk",
    "inspect": "show the contents of a GGUF",
    "profile": "count how often each neuron fires on a text",
    "train-predictor": "train predictors of firing neurons",
    "relufy": "train a checkpoint on until most of its neurons are zero",
    "place": "decide which neurons live on the GPU, in RAM and in storage",
    "simulate": "replay a trace of neurons through the cache for models larger than memory",
    "plot": "draw statistics, placements and predictors",
    "perplexity": "measure how well a model predicts a text",
    "bench": "measure speed",
    "complete": "continue a text",
    "chat": "chat with a model",
    "serve": "serve models to OpenAI clients and browsers",
    "doctor": "show the capabilities of this machine",
    "completion": "print a shell completion script for this command",
}


_ERROR = "powerinfer: error: "
_UNWRITABLE = "cannot write to stdout: "


class _Parser(argparse.ArgumentParser):
    """argparse with one-line errors, in the style of `./main`."""

    def error(self, message: str) -> NoReturn:
        _fail(f"{message} ({self.prog} --help shows how)", 2)


class _CommandParser(_Parser):
    """That of a subcommand. An unknown option is told before anything else, with a proposal.

    takes_variables: llama-server's variables say what its command line does not.
    """

    takes_variables = False
    _about = ""  # the variable that is read

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but no option is left over."""
        given = sys.argv[1:] if args is None else list(args)
        name = unknown_option(self, given)
        if name is not None:
            _fail(option_sentence(self, name), 2)
        args = argparse.Namespace() if namespace is None else namespace
        if self.takes_variables:
            llama_variables.take(self, os.environ, given, args, self._read_variable)
        found, left = super().parse_known_args(given, args)
        for word in left:
            if word.startswith("-") and word != "--":
                _fail(option_sentence(self, word), 2)
        return found, left

    def error(self, message: str) -> NoReturn:
        """As argparse's, about a variable where one is read."""
        super().error(self._about + message)

    def _read_variable(self, words: list[str], args: Any, name: str) -> None:
        self._about = f"{name}: "
        try:
            super().parse_known_args(words, args)
        finally:
            self._about = ""


def add_arguments(command: str, parser: argparse.ArgumentParser) -> ModuleType:
    """Adds the arguments of a subcommand to a parser, and returns the module that runs it."""
    module = importlib.import_module(f".{command.replace('-', '_')}", __name__)
    module.add_arguments(parser)
    return module


def _parser(command: str | None) -> argparse.ArgumentParser:
    parser = _Parser(prog="powerinfer", description="Language models from GGUF files.")
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_CommandParser)
    for name, text in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        if name == command:  # importing the others would only cost time
            module = add_arguments(name, sub)
            sub.set_defaults(run=module.run)
            sub.takes_variables = getattr(module, "TAKES_VARIABLES", False)
    return parser


def _command(arguments: Sequence[str]) -> str | None:
    """The subcommand of a command line. Exits with a suggestion if it is unknown."""
    name = next((a for a in arguments if not a.startswith("-")), None)
    if name is not None and name not in COMMANDS:
        close = closest(name, COMMANDS)
        hint = f"did you mean {close}?" if close else f"commands: {', '.join(COMMANDS)}"
        _fail(f"unknown command {name!r}; {hint}", 2)
    return name


def _fail(message: str, status: int) -> NoReturn:
    _complain(_ERROR + message)
    raise SystemExit(status)


def _complain(message: str) -> None:
    """Prints one line without control characters, since names from files can be part of it."""
    tell(printable(" ".join(message.split())))


def _sentence(error: BaseException) -> str:
    """A one-line message for an expected error."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        if not where and error.strerror == os.strerror(errno.ENOSPC):
            where = _UNWRITABLE  # errors of files already name the file
        return f"{where}{error.strerror}"
    told = getattr(error, "told", None)  # OutOfMemoryError, which takes long to import
    return (told(flags=True) if told else str(error)) or type(error).__name__


def _run(arguments: Sequence[str]) -> int:
    parser = _parser(_command(arguments))
    args = parser.parse_args(arguments)
    from .common import take_model  # not for --help and the like: it loads the engine

    if args.version:
        from .. import __version__

        print(__version__)
        return 0
    if args.command is None:
        parser.print_help()
        return 0
    take_model(args)
    return args.run(args) or 0


def _outcome(arguments: Sequence[str]) -> tuple[int, str | None]:
    """Runs a command line; returns the exit status and a message for stderr."""
    try:
        return _run(arguments), None
    except SystemExit as exit_:
        return (exit_.code if isinstance(exit_.code, int) else 0), None
    except argparse.ArgumentError as error:  # options that do not go together
        return 2, _ERROR + str(error)
    except KeyboardInterrupt:
        return 130, "interrupted"
    except BrokenPipeError:
        return 0, None
    except (OSError, ValueError, MemoryError, RuntimeError) as error:
        return 1, _ERROR + _sentence(error)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line (default: the process's) and returns the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # File names may hold any bytes. Readers of a pipe get each line when it is written.
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
    if sys.stdin is None:  # closed (`<&-`, services): as an empty input
        sys.stdin = open(os.devnull)  # noqa: SIM115, used until the end
    if sys.stdout is None:
        status, said = 1, f"{_ERROR}{_UNWRITABLE}it is closed"
    else:
        status, said = _outcome(sys.argv[1:] if arguments is None else arguments)
    error = _finish(sys.stdout)
    if error is not None and not isinstance(error, BrokenPipeError):
        status, said = 1, f"{_ERROR}{_UNWRITABLE}{error.strerror}"
    if said is not None:
        _complain(said)
    _finish(sys.stderr)
    return status


def _finish(stream: TextIO | None) -> OSError | None:
    """Writes what a stream holds back. If that fails, drops it, since Python would try again when
    the process ends, and end with another status; and returns the error."""
    try:
        if stream is not None:
            stream.flush()
    except OSError as error:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return error
    except Exception:  # noqa: BLE001, S110 - closed, or a program's own stream
        pass
    return None
