"""powerinfer chat: chat with a model, with its own template or another one."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..chat import FORMATS, Message
from ..errors import ContextOverflowError
from ..llama import Llama
from . import generating

# Formats by llama.cpp's names, if they differ.
_NAMES = {"llama2-sys-bos": "llama-2", "llama3": "llama-3"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    generating.add_arguments(parser)
    told = parser.add_mutually_exclusive_group()
    told.add_argument("-sys", "--system-prompt", metavar="TEXT", help="system message")
    told.add_argument("-sysf", "--system-prompt-file", metavar="FILE", help="the same, from a file")
    parser.add_argument("-st", "--single-turn", action="store_true", help="end after one answer")
    used = parser.add_mutually_exclusive_group()
    used.add_argument(
        "--chat-format", metavar="NAME", help=f"instead of the file's: {', '.join(FORMATS)}"
    )
    used.add_argument("--chat-template", metavar="TEXT", help="a Jinja template, or such a name")
    used.add_argument("--chat-template-file", metavar="FILE", help="a template from a file")
    # What they ask for is always so.
    for flags in (("--jinja",), ("-cnv", "--conversation")):
        parser.add_argument(*flags, action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> None:
    template = _template(args)
    first = generating.prompt(args)
    with generating.open_model(args) as llm:
        if template is not None:
            llm.set_chat_template(template)
        _talk(llm, args, None if first is None else first.decode("utf-8", "surrogateescape"))


def _template(args: argparse.Namespace) -> str | None:
    """The source of another template, if one is given; a name becomes args.chat_format."""
    if args.chat_template_file is not None:
        return Path(args.chat_template_file).read_text(encoding="utf-8")
    given = args.chat_template
    if given is None or "{" in given:
        return given
    args.chat_format = _NAMES.get(given, given)
    return None


def _question() -> str | None:
    """A line of stdin, with a prompt on a terminal; None at the end of the input."""
    if sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return None if not line else line.rstrip("\r\n")


def _talk(llm: Llama, args: argparse.Namespace, question: str | None) -> None:
    told = args.system_prompt
    if args.system_prompt_file is not None:
        told = Path(args.system_prompt_file).read_text(encoding="utf-8").removesuffix("\n")
    system: list[Message] = [{"role": "system", "content": told}] if told else []
    talk: list[Message] = []
    keywords = generating.writing(llm, args)
    if sys.stdin.isatty():
        print("/exit or Ctrl-D ends the chat, /reset starts a new one", file=sys.stderr)
    while question is not None or (question := _question()) is not None:
        if question.strip() == "/exit":
            return
        if question.strip() == "/reset":
            talk = []
        elif question.strip():
            talk.append({"role": "user", "content": question})
            talk = _answer(llm, system, talk, args, keywords)
            if args.single_turn:
                return
        question = None


def _answer(
    llm: Llama,
    system: list[Message],
    talk: list[Message],
    args: argparse.Namespace,
    keywords: dict[str, Any],
) -> list[Message]:
    """Prints an answer; returns the chat with it, without the oldest part if that does not fit."""
    while True:
        try:
            chunks = llm.create_chat_completion([*system, *talk], **keywords)
            break
        except ContextOverflowError:
            if len(talk) < 3:
                raise
            print("the context is full: the oldest question is forgotten", file=sys.stderr)
            talk = talk[2:]
    said = ""
    try:
        for piece in generating.until_stop(_contents(chunks), args):
            said += piece
            generating.put(piece)
    except KeyboardInterrupt:  # ends the answer, not the chat
        if not sys.stdin.isatty():
            raise
    generating.put("\n")
    return [*talk, {"role": "assistant", "content": said}]


def _contents(chunks: Any) -> Iterator[str]:
    for chunk in chunks:
        yield chunk["choices"][0]["delta"].get("content", "")
