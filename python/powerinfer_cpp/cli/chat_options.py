"""Options of the commands that chat: of the template, and of what a model thinks."""

import argparse
import json
from pathlib import Path
from typing import Any

from ..text.chat import FORMATS as CHAT_FORMATS
from ..text.thinking import EFFORTS, FORMATS, Thinking, template_kwargs
from .common import whole

# Formats by llama.cpp's names, if they differ.
_NAMES = {"llama2-sys-bos": "llama-2", "llama3": "llama-3"}


def add_template_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the template, of which one may be given."""
    used = parser.add_mutually_exclusive_group()
    used.add_argument(
        "--chat-format", metavar="NAME", help=f"instead of the file's: {', '.join(CHAT_FORMATS)}"
    )
    used.add_argument("--chat-template", metavar="TEXT", help="a Jinja template, or such a name")
    used.add_argument("--chat-template-file", metavar="FILE", help="a template from a file")


def template(args: argparse.Namespace) -> str | None:
    """The source of another template, if one is given; a name becomes args.chat_format. Raises
    OSError and ValueError for the file."""
    if args.chat_template_file is not None:
        return Path(args.chat_template_file).read_text(encoding="utf-8")
    given: str | None = args.chat_template
    if given is None or "{" in given:
        return given
    args.chat_format = _NAMES.get(given, given)
    return None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument(
        "--chat-template-kwargs",
        type=_kwargs,
        metavar="JSON",
        help='names for the template, such as {"enable_thinking": false}',
    )
    parser.add_argument(
        "-rea",
        "--reasoning",
        choices=("on", "off", "auto"),
        default="auto",
        help="whether the model thinks (default: auto, as its template does)",
    )
    parser.add_argument(
        "--reasoning-effort", choices=EFFORTS, metavar="LEVEL", help="none, low, medium, high ..."
    )
    parser.add_argument(
        "--reasoning-budget",
        type=whole(-1),
        metavar="N",
        help="tokens of thoughts at most; 0: none; -1: any number (the default)",
    )
    parser.add_argument(
        "--reasoning-format",
        choices=FORMATS,
        default="auto",
        help="none: thoughts stay in the answer with their tags (default: auto, apart from it)",
    )


def keywords(args: argparse.Namespace) -> dict[str, Any]:
    """The options as keyword arguments of create_chat_completion."""
    names = dict(args.chat_template_kwargs or {})
    if args.reasoning != "auto":
        names["enable_thinking"] = args.reasoning == "on"
    return {
        "chat_template_kwargs": names or None,
        "reasoning_effort": args.reasoning_effort,
        "reasoning_budget": args.reasoning_budget,
        "reasoning_format": args.reasoning_format,
    }


def thinking(args: argparse.Namespace) -> Thinking:
    """The options as what requests of a server begin with. Raises ValueError."""
    return Thinking().asked(**keywords(args))


def _kwargs(text: str) -> dict[str, Any]:
    try:
        return template_kwargs(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object for it: {error}") from None
