"""powerinfer complete: continue a text."""

import argparse
from collections.abc import Iterator
from typing import Any

from ..core.log import tell
from ..llama import Llama
from . import generating


def add_arguments(parser: argparse.ArgumentParser) -> None:
    generating.add_arguments(parser)
    parser.add_argument(
        "--display-prompt",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="print the prompt before its continuation",
    )
    parser.add_argument("-no-cnv", "--no-conversation", action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> None:
    args.chat_format = None
    with generating.open_model(args) as llm:
        text = generating.prompt(args)
        if text is None:
            text = generating.unescaped(generating.piped(), args)
        pieces = _pieces(llm, text, args) if args.predict else iter(())
        pieces = generating.until_stop(pieces, args)
        if args.display_prompt:
            generating.put(text)
        said = text if args.display_prompt else b""
        for piece in pieces:
            generating.put(piece)
            said = piece.encode("utf-8", "surrogateescape") or said
        if said and not said.endswith(b"\n"):
            generating.put("\n")
        if args.perf and args.predict:
            tell(generating.figures(llm))


def _pieces(llm: Llama, text: bytes, args: argparse.Namespace) -> Iterator[str]:
    keywords = generating.writing(llm, args)
    chunks: Any = llm.create_completion(text, seed=args.seed, **keywords)
    for chunk in chunks:
        choice = chunk["choices"][0]
        yield choice["text"]
    if choice["finish_reason"] == "length" and args.predict < 0:
        tell(f"the context is full ({llm.n_ctx()} positions, -c)")
