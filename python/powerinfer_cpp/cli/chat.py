"""powerinfer chat: chat with a model, with its own template or a named format."""

import argparse
import sys

from ..chat import FORMATS, Message
from ..errors import ContextOverflowError
from ..llama import Llama
from ..sampling import Sampling
from .common import (
    MOST_POSITIONS,
    add_model_arguments,
    llama_options,
    note_device,
    positions,
    whole,
)

# llama.cpp's names, if they differ.
_FLAGS = {
    "temperature": "temp",
    "typical_p": "typical",
    "dynatemp_exponent": "dynatemp-exp",
    "mirostat_mode": "mirostat",
    "mirostat_tau": "mirostat-ent",
    "mirostat_eta": "mirostat-lr",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser, seed=None)
    parser.add_argument(
        "-c",
        "--ctx-size",
        type=whole(0),
        metavar="N",
        help=f"0: the model's; default: the model's, at most {MOST_POSITIONS}",
    )
    parser.add_argument(
        "-n", "--predict", type=int, default=-1, metavar="N", help="maximum tokens of an answer"
    )
    parser.add_argument("-sys", "--system-prompt", metavar="TEXT", help="system message")
    parser.add_argument(
        "--chat-format", metavar="NAME", help=f"instead of the file's: {', '.join(FORMATS)}"
    )
    for name, default in Sampling().keywords().items():
        flag = _FLAGS.get(name, name.replace("_", "-"))
        parser.add_argument(
            f"--{flag}", dest=name, type=type(default), default=default, metavar="X"
        )


def _question() -> str | None:
    """A line of stdin, with a prompt on a terminal; None at the end of the input."""
    if sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return None if not line else line.rstrip("\r\n")


def run(args: argparse.Namespace) -> None:
    note_device(args)
    n_ctx = positions(args.model) if args.ctx_size is None else args.ctx_size
    llm = Llama(args.model, n_ctx=n_ctx, **llama_options(args))
    with llm:
        _talk(llm, args)


def _talk(llm: Llama, args: argparse.Namespace) -> None:
    told = args.system_prompt
    system = [{"role": "system", "content": told}] if told else []
    talk: list[Message] = []
    if sys.stdin.isatty():
        print("/exit or Ctrl-D ends the chat, /reset starts a new one", file=sys.stderr)
    while (question := _question()) is not None:
        if question.strip() == "/exit":
            return
        if question.strip() == "/reset":
            talk = []
        elif question.strip():
            talk.append({"role": "user", "content": question})
            talk = _answer(llm, system, talk, args)


def _answer(
    llm: Llama, system: list[Message], talk: list[Message], args: argparse.Namespace
) -> list[Message]:
    """Prints an answer; returns the chat with it, without the oldest part if that does not fit."""
    while True:
        try:
            chunks = llm.create_chat_completion(
                [*system, *talk],
                stream=True,
                max_tokens=args.predict,
                **Sampling.of(vars(args)).keywords(),
            )
            break
        except ContextOverflowError:
            if len(talk) < 3:
                raise
            print("the context is full: the oldest question is forgotten", file=sys.stderr)
            talk = talk[2:]
    said = ""
    try:
        for chunk in chunks:
            piece = chunk["choices"][0]["delta"].get("content", "")
            said += piece
            print(piece, end="", flush=True)
    except KeyboardInterrupt:  # ends the answer, not the chat
        if not sys.stdin.isatty():
            raise
    print(flush=True)
    return [*talk, {"role": "assistant", "content": said}]
