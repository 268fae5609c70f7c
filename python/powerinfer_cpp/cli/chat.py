"""powerinfer chat: chat with a model, with its own template or another one."""

import argparse
import sys
from pathlib import Path

from ..core.log import tell
from ..core.printable import printable
from ..llama import Llama
from . import chat_options, generating
from .terminal.chat_commands import COMMANDS, WITH_FILES, Again, Commands, Ended
from .terminal.history import HistoryFile, history_path
from .terminal.lines import EditedLines, Lines, open_lines
from .terminal.talk import Talk

# What can go wrong with one answer, while the chat goes on.
_FAILURES = (OSError, ValueError, MemoryError, RuntimeError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    generating.add_arguments(parser)
    told = parser.add_mutually_exclusive_group()
    told.add_argument("-sys", "--system-prompt", "--system", metavar="TEXT", help="system message")
    told.add_argument("-sysf", "--system-prompt-file", metavar="FILE", help="the same, from a file")
    parser.add_argument("-st", "--single-turn", action="store_true", help="end after one answer")
    chat_options.add_template_arguments(parser)
    chat_options.add_arguments(parser)
    parser.add_argument(
        "--no-history",
        action="store_true",
        help="do not keep what is typed for later chats, and do not read it",
    )
    parser.add_argument(
        "-co",
        "--color",
        nargs="?",
        choices=("on", "off", "auto"),
        const="on",
        default="auto",
        help="colours for what the user types (default: auto, on terminals)",
    )
    # What they ask for is always so.
    for flags in (("--jinja",), ("-cnv", "--conversation")):
        parser.add_argument(*flags, action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> None:
    template = chat_options.template(args)
    first = generating.prompt(args)
    system = args.system_prompt or ""
    if args.system_prompt_file is not None:
        system = Path(args.system_prompt_file).read_text(encoding="utf-8").removesuffix("\n")
    with generating.open_model(args) as llm:
        if template is not None:
            llm.set_chat_template(template)
        question = None if first is None else first.decode("utf-8", "surrogateescape")
        _Chat(llm, args, system).run(question)


def _tell(text: str) -> None:
    """Shows lines to the user. Text goes to stdout, all else to stderr."""
    for line in text.splitlines():
        tell(printable(line))


class _Chat:
    """The user and the model in turns.

    alive: a person is there, who can be told what went wrong; without one it ends the chat.
    """

    def __init__(self, llm: Llama, args: argparse.Namespace, system: str):
        plain = llm.chats_with is None
        if plain and system:
            raise ValueError(
                f"{llm.model_path} has no chat template, which a system message needs: "
                "--chat-format names another"
            )
        keywords = generating.writing(llm, args)
        if not plain:
            keywords |= chat_options.keywords(args)
        self._talk, self._args = Talk(llm, system, keywords, plain), args
        self._alive = sys.stdin.isatty()
        self._commands = Commands(self._talk, _tell, args.seed, self._alive)
        terminal = self._alive and sys.stderr.isatty() and not args.simple_io
        self._figures = terminal if args.perf is None else args.perf

    def run(self, question: str | None) -> None:
        """Until the user ends it, or the input does. question: the first message."""
        if self._alive:
            self._greet()
        given, lines = question is not None, self._lines()
        while True:
            try:
                if not given:
                    question = lines.read()
                if question is None:
                    return
                self._take(question, given)
            except Ended:
                return
            except KeyboardInterrupt:  # what was typed is dropped
                if not self._alive or self._args.single_turn:
                    raise
            except _FAILURES as error:
                if not self._goes_on_after(error):
                    raise
                _tell(f"error: {error or type(error).__name__}")
            given = False

    def _greet(self) -> None:
        if self._talk.plain:
            _tell(
                "This model has no chat template: it continues what you write (--chat-format "
                "chats anyway)."
            )
        _tell("/help lists commands; Ctrl-D ends")

    def _lines(self) -> Lines:
        args = self._args
        shows = args.color == "on" or args.color == "auto" and sys.stderr.isatty()

        def edited(history: HistoryFile | None) -> Lines:
            return EditedLines(history, COMMANDS, WITH_FILES, shows)

        return open_lines(args.simple_io, None if args.no_history else history_path(), edited)

    def _take(self, text: str, is_message: bool) -> None:
        """Answers a text, or runs the command that it is."""
        talk = self._talk
        before = list(talk.messages)
        try:
            if not is_message and self._commands.run(text):
                return
            goes_on = talk.plain and bool(talk.messages)  # without a word of the user's
            if not text.strip() and not goes_on:
                return
            talk.say(text)
        except Again:
            pass
        if not self._answer():
            talk.messages = before
        if self._args.single_turn:
            raise Ended

    def _answer(self) -> bool:
        """Prints an answer, and keeps what was written of it; False if there is nothing to keep."""
        talk, said, whole = self._talk, "", False

        def forget() -> None:
            _tell("the context is full: the oldest question is forgotten")

        def think(piece: str) -> None:
            """Shows thoughts to a person, before the answer."""
            if self._alive:
                generating.put(piece)

        try:
            for piece in generating.until_stop(talk.answer(forget, think), self._args):
                said += piece
                generating.put(piece)
            whole = True
        except KeyboardInterrupt:  # ends the answer, not the chat
            if not self._alive or self._args.single_turn:
                raise
        except _FAILURES as error:
            if not self._goes_on_after(error):
                raise
            if said:
                generating.put("\n")
            _tell(f"error: {error or type(error).__name__}")
            return self._keep(said)
        generating.put("\n")
        if talk.full:
            _tell(f"the context is full ({talk.llm.n_ctx()} positions, -c)")
        if self._figures and (said or whole):
            _tell(generating.figures(talk.llm))
        return self._keep(said) or whole and not talk.plain

    def _keep(self, said: str) -> bool:
        if said or not self._talk.plain:
            self._talk.heard(said)
        return bool(said)

    def _goes_on_after(self, error: BaseException) -> bool:
        """Can the chat go on? Not without a person, and not without anywhere to write."""
        return self._alive and not isinstance(error, BrokenPipeError)
