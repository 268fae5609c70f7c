"""Options of the commands that write text: complete and chat. Their names are llama.cpp's."""

import argparse
import contextlib
import logging
import math
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .. import hub
from ..core.log import say, warnings_told
from ..core.sampling import Sampling, by_letters
from ..core.sequences.embedding import require_texts
from ..llama import Llama
from ..text.grammar import LlamaGrammar
from . import moved_experts
from .common import (
    MOST_POSITIONS,
    adapter_options,
    add_adapter_arguments,
    add_cache_arguments,
    add_model_arguments,
    llama_options,
    note_options,
    positions,
    whole,
    whole_or_auto,
)
from .drafting import add_draft_arguments, draft_of

# llama.cpp's names, if they differ.
_FLAGS = {
    "temperature": ("--temp", "--temperature"),
    "typical_p": ("--typical", "--typical-p"),
    "top_n_sigma": ("--top-n-sigma", "--top-nsigma"),
    "dynatemp_exponent": ("--dynatemp-exp",),
    "mirostat_mode": ("--mirostat",),
    "mirostat_tau": ("--mirostat-ent",),
    "mirostat_eta": ("--mirostat-lr",),
}


# ---- Arguments -----------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the model, where it comes from, and what decides its text."""
    add_model_arguments(parser, seed=None, optional=True)
    add_hub_arguments(parser)
    add_adapter_arguments(parser)
    add_cache_arguments(parser)
    moved_experts.add_arguments(parser)
    parser.add_argument(
        "-c",
        "--ctx-size",
        type=whole(0),
        metavar="N",
        help=f"0: the model's; default: the model's, at most {MOST_POSITIONS}",
    )
    parser.add_argument(
        "-n", "--predict", "--n-predict", type=int, default=-1, metavar="N", help="maximum tokens"
    )
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="prompt, or a chat's first message")
    parser.add_argument("-f", "--file", metavar="FILE", help="read that from a file; -: stdin")
    parser.add_argument(
        "-e",
        "--escape",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="replace escapes such as \\n in -p, -f, -r and --dry-sequence-breaker",
    )
    parser.add_argument(
        "-r",
        "--reverse-prompt",
        action="append",
        default=[],
        metavar="TEXT",
        help="stop after this text; can be given several times",
    )
    add_samplers(parser)
    _add_constraints(parser)
    add_draft_arguments(parser)
    add_memory_arguments(parser)
    parser.add_argument(
        "--perf",
        action=argparse.BooleanOptionalAction,
        help="print tokens per second after a text (default: in chats on a terminal)",
    )
    parser.add_argument(
        "--simple-io", action="store_true", help="plain input and output: no editing, no figures"
    )
    # What ./main accepts, too: it is always so here, or nothing is to be hidden.
    hidden = ["--warmup", "--no-warmup", "--log-disable", "--no-context-shift"]
    parser.add_argument(*hidden, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "-fa", "--flash-attn", nargs="?", choices=("on", "off", "auto"), help=argparse.SUPPRESS
    )


def add_hub_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of models in Hugging Face repositories."""
    parser.add_argument(
        "-hf",
        "-hfr",
        "--hf-repo",
        metavar="REPO[:QUANT][@REVISION]",
        help=f"a model from Hugging Face (QUANT: by default {hub.QUANT}, else the nearest format)",
    )
    parser.add_argument("-hff", "--hf-file", metavar="FILE", help="the file of that repository")
    parser.add_argument("--hf-revision", metavar="R", help="its branch, tag or commit")
    parser.add_argument(
        "-hft", "--hf-token", metavar="TOKEN", help="access token (default: HF_TOKEN, or the login)"
    )
    parser.add_argument("--hf-token-file", metavar="FILE", help="a file that holds the token")
    parser.add_argument(
        "--offline", action="store_true", help="with -hf: only what was downloaded before"
    )


def add_memory_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds how the model gets into memory, and the threads of prompts."""
    parser.add_argument(
        "-tb", "--threads-batch", type=whole_or_auto(1), metavar="N", help="threads for the prompt"
    )
    parser.add_argument(
        "--mmap",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="map the model instead of reading it into memory",
    )
    parser.add_argument("--mlock", action="store_true", help="keep the model in RAM")


def add_samplers(parser: argparse.ArgumentParser, of_requests: bool = False) -> None:
    """Adds the samplers. of_requests: what is not given is None, and the requests of a server
    decide first."""
    for name, default in Sampling().keywords().items():
        flags = _FLAGS.get(name, (f"--{name.replace('_', '-')}",))
        if isinstance(default, int | float):
            unsaid = None if of_requests else default
            parser.add_argument(*flags, dest=name, type=type(default), default=unsaid, metavar="X")
    parser.add_argument(
        "--dry-sequence-breaker",
        dest="dry_sequence_breakers",
        action=_Breaker,
        default=None if of_requests else Sampling().dry_sequence_breakers,
        metavar="TEXT",
        help="where DRY's repetitions end, in place of newline, :, \" and *; can be given several "
        "times; none: nowhere",
    )
    parser.add_argument(
        "--samplers",
        type=lambda names: [name for name in names.split(";") if name],
        metavar="NAMES",
        help="samplers in their order, with semicolons between; others are off",
    )
    parser.add_argument(
        "--sampler-seq",
        "--sampling-seq",
        dest="samplers",
        type=_lettered,
        metavar="LETTERS",
        help="the same by letters: edskypmxt",
    )
    parser.add_argument(
        "--repeat-last-n",
        type=whole(-1),
        default=64,
        metavar="N",
        help="last tokens that get penalties; -1: all",
    )
    parser.add_argument("--ignore-eos", action="store_true", help="no token that ends the text")
    parser.add_argument(
        "-l",
        "--logit-bias",
        action="append",
        type=_bias,
        default=[],
        metavar="ID(+|-)X",
        help="add to a token's logit: 15043+1; can be given several times",
    )


class _Breaker(argparse.Action):
    """Adds to the texts, of which the first one replaces the default ones."""

    def __call__(self, parser: Any, args: Any, value: Any, _option: Any = None) -> None:
        before = getattr(args, self.dest)
        kept = [] if before is self.default or value == "none" else list(before)
        setattr(args, self.dest, kept if value == "none" else [*kept, value])


def _lettered(text: str) -> list[str]:
    try:
        return by_letters(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _bias(text: str) -> tuple[int, float]:
    """Parser of a token's id and what to add to its logit: 15043+1, 15043-inf."""
    found = re.fullmatch(r"(\d+)([+-](?:\d+\.?\d*|\.\d+|inf))", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text} is not an id with a bias such as 15043-1")
    return int(found[1]), float(found[2])


def _add_constraints(parser: argparse.ArgumentParser) -> None:
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--grammar", metavar="GBNF", help="hold the text to a grammar")
    only.add_argument("--grammar-file", metavar="FILE", help="the same, from a file")
    only.add_argument("-j", "--json-schema", metavar="JSON", help="hold the text to a JSON schema")
    only.add_argument("-jf", "--json-schema-file", metavar="FILE", help="the same, from a file")


# ---- What they mean ------------------------------------------------------------------------------


def model_path(args: argparse.Namespace) -> str:
    """The path of the one model that MODEL, -m or -hf name; downloads it if necessary.

    Raises argparse.ArgumentError if not exactly one is named, and the errors of hub.fetch.
    """
    given = [name for name in (args.model, args.hf_repo) if name]
    if len(given) != 1:
        raise argparse.ArgumentError(None, "name one model: MODEL, -m FILE or -hf REPO")
    return from_hub(args) or given[0]


def from_hub(args: argparse.Namespace) -> str | None:
    """The path of the model that -hf names; None without that option. Raises ValueError, OSError,
    and argparse.ArgumentError for --hf-file alone."""
    if args.hf_repo is None:
        for name in ("hf_file", "hf_revision", "hf_token_file"):
            if getattr(args, name) is not None:
                raise argparse.ArgumentError(None, f"--{name.replace('_', '-')} needs -hf REPO")
        return None
    token = args.hf_token
    if token is not None:
        words = "--hf-token: every user of this machine can read it in the list of processes"
        say(f"{words}; HF_TOKEN and --hf-token-file are hidden", True, logging.WARNING)
    if args.hf_token_file is not None:
        token = Path(args.hf_token_file).read_text(encoding="utf-8").strip()
        if not token:
            raise ValueError(f"{args.hf_token_file} has no token")
    try:
        return hub.fetch(args.hf_repo, args.hf_file, token, args.hf_revision, args.offline)
    except ImportError as error:
        raise ValueError(str(error)) from None


@contextlib.contextmanager
def open_model(args: argparse.Namespace) -> Iterator[Llama]:
    """The model with its draft model, open."""
    note_options(args)
    path = model_path(args)
    n_ctx = positions(path) if args.ctx_size is None else args.ctx_size
    options = {
        **llama_options(args),
        **adapter_options(args),
        **moved_experts.keywords(args, [path]),
        "n_threads_batch": args.threads_batch,
        "use_mmap": args.mmap,
        "use_mlock": args.mlock,
        "last_n_tokens_size": args.repeat_last_n,
    }
    with warnings_told():
        llm = Llama(path, n_ctx=n_ctx, draft_model=draft_of(args), **options)
    with llm:
        require_texts(llm._model)
        yield llm


def writing(llm: Llama, args: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of create_completion and create_chat_completion, without the prompt.

    Raises ValueError for a bad grammar, OSError for its file.
    """
    bias = dict(args.logit_bias)
    if args.ignore_eos:
        bias |= dict.fromkeys(llm._prompts.end_tokens, -math.inf)
    breakers = [unescaped(os.fsencode(text), args) for text in args.dry_sequence_breakers]
    return {
        "stream": True,
        "max_tokens": args.predict,
        "logit_bias": bias or None,
        "grammar": _grammar(args),
        **{name: getattr(args, name) for name in Sampling().keywords()},
        "dry_sequence_breakers": [os.fsdecode(text) for text in breakers],
    }


def _grammar(args: argparse.Namespace) -> LlamaGrammar | None:
    if args.grammar is not None:
        return LlamaGrammar.from_string(args.grammar)
    if args.grammar_file is not None:
        return LlamaGrammar.from_file(args.grammar_file)
    if args.json_schema is not None:
        return LlamaGrammar.from_json_schema(args.json_schema)
    if args.json_schema_file is not None:
        text = Path(args.json_schema_file).read_text(encoding="utf-8")
        return LlamaGrammar.from_json_schema(text)
    return None


def prompt(args: argparse.Namespace) -> bytes | None:
    """The text of -p or -f, less one newline at a file's end; None without these options."""
    if args.file is not None:
        text = sys.stdin.buffer.read() if args.file == "-" else Path(args.file).read_bytes()
        text = text.removesuffix(b"\n")
    elif args.prompt is not None:
        text = os.fsencode(args.prompt)
    else:
        return None
    return unescaped(text, args)


def piped() -> bytes:
    """All of stdin, less one newline at its end; nothing unless it is a file or a pipe, since
    others may never end."""
    kind = os.fstat(sys.stdin.fileno()).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
        return b""
    return sys.stdin.buffer.read().removesuffix(b"\n")


_ESCAPE = re.compile(rb"\\(?:([nrt'\"\\])|x([0-9a-fA-F]{2}))")
_MEANINGS = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def unescaped(text: bytes, args: argparse.Namespace) -> bytes:
    """The text with its escapes replaced as ./main does, unless --no-escape is given."""
    if not args.escape:
        return text
    return _ESCAPE.sub(
        lambda m: bytes([int(m[2], 16)]) if m[2] else _MEANINGS.get(m[1], m[1]), text
    )


def until_stop(pieces: Iterable[str], args: argparse.Namespace) -> Iterator[str]:
    """The pieces up to the first text of -r, which is the last part."""
    given = map(os.fsencode, args.reverse_prompt)
    stops = [unescaped(stop, args).decode("utf-8", "replace") for stop in given]
    if not all(stops):
        raise argparse.ArgumentError(None, "-r needs a text")
    kept = max(map(len, stops), default=1) - 1  # where a stop may begin
    tail = ""
    for piece in pieces:
        seen = tail + piece
        ends = [at + len(stop) for stop in stops if (at := seen.find(stop)) >= 0]
        if ends:
            yield seen[len(tail) : min(ends)]
            return
        yield piece
        tail = seen[max(0, len(seen) - kept) :]


def figures(llm: Llama) -> str:
    """How fast the last text was written, in a line."""
    stats = llm.stats()
    parts = [f"{stats['gen_ts']:.1f} tokens/s"] if stats["n_gen"] else []
    if stats["prompt_s"] > 0:
        rate = stats["n_prompt"] / stats["prompt_s"]
        parts.append(f"prompt {stats['n_prompt']} tokens, {rate:.1f} tokens/s")
    return f"[{'; '.join(parts) or 'nothing was computed'}]"


def put(text: str | bytes) -> None:
    """Writes text to stdout at once, any bytes as they are."""
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
