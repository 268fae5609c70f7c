"""powerinfer serve: an OpenAI-compatible server with a page."""

import argparse
import ipaddress
import re

from ...core.options import MOST_GIB
from ...core.sequences.embedding import MOST_NORM, POOLING_NAMES
from ...run.context_size import ENOUGH
from .. import chat_options, llama_server, moved_experts
from ..common import (
    add_adapter_arguments,
    add_cache_arguments,
    add_model_arguments,
    whole,
    whole_or_auto,
)
from ..drafting import add_draft_arguments
from ..generating import add_hub_arguments, add_memory_arguments, add_samplers

KEY_VARIABLE = "POWERINFER_API_KEY"
TAKES_VARIABLES = True  # llama-server's: llama_variables.py
PARALLEL = 4
CACHE_GIB = 8  # of prompts on disk
WARNINGS, REQUESTS = 2, 4  # levels of messages
# By mode: is the model mapped, and is it kept in RAM?
LOAD_MODES = {
    "auto": (True, False),
    "mmap": (True, False),
    "none": (False, False),
    "mlock": (False, True),
    "mmap+mlock": (True, True),
}
POOLINGS = {name: number for number, name in POOLING_NAMES.items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser, n_batch=512, seed=None, several=True)
    add_hub_arguments(parser)
    add_adapter_arguments(parser)
    add_cache_arguments(parser)
    moved_experts.add_arguments(parser)
    add_draft_arguments(parser)
    add_memory_arguments(parser)
    parser.add_argument(
        "-lm",
        "--load-mode",
        choices=LOAD_MODES,
        help="how the model gets into memory, in place of --mmap and --mlock",
    )
    parser.add_argument(
        "--op-offload",
        action=argparse.BooleanOptionalAction,
        help="prompts: the GPU computes the neurons in RAM, or not",
    )
    parser.add_argument(
        "-a",
        "--alias",
        metavar="NAME",
        help="what one model is called in answers, in place of its file's name",
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="address to listen at")
    parser.add_argument("--port", type=whole(0), default=8080, metavar="N")
    parser.add_argument(
        "-c",
        "--ctx-size",
        type=whole(0),
        metavar="N",
        help="tokens of a request; 0: the model's; default: what an eighth of the memory holds, "
        f"at least {ENOUGH} where they fit",
    )
    parser.add_argument(
        "-np",
        "--parallel",
        type=whole_or_auto(1),
        metavar="N",
        help=f"texts that are written at the same time (default, and -1: {PARALLEL})",
    )
    parser.add_argument(
        "--kv-size",
        type=whole(1),
        metavar="N",
        help="tokens in memory, of all texts and of known prompts (default: -c times -np; without "
        "-c what an eighth of the memory holds)",
    )
    parser.add_argument(
        "--prompt-cache-dir",
        metavar="DIR",
        help="keep what was computed of prompts there, also for the next start",
    )
    parser.add_argument(
        "--prompt-cache-size",
        type=_gib,
        metavar="G",
        help=f"GiB of these files at most (default: {CACHE_GIB})",
    )
    parser.add_argument(
        "--queue", type=whole(0), default=256, metavar="N", help="texts that may wait"
    )
    parser.add_argument(
        "--max-recorded",
        type=whole(1),
        default=256,
        metavar="MIB",
        help="memory for recorded logprobs and unsent texts of one client (default: 256 MiB)",
    )
    parser.add_argument(
        "--api-key",
        action="append",
        metavar="K",
        help=f"requests need one of these keys (also {KEY_VARIABLE}, or --api-key-file)",
    )
    parser.add_argument("--api-key-file", metavar="F", help="file with a key in each line")
    parser.add_argument(
        "--allowed-host",
        action="append",
        metavar="H",
        help="name by which clients reach this server, * for any; addresses always work",
    )
    parser.add_argument(
        "--allowed-origin",
        "--cors-origins",
        action="append",
        metavar="O",
        help="origins of other pages that may use it, with commas between, * for any",
    )
    parser.add_argument(
        "--trusted-proxy",
        action="append",
        type=_proxy,
        metavar="A",
        help="address or network of a proxy whose X-Forwarded-For says who asks (default: this "
        "machine's)",
    )
    chat_options.add_template_arguments(parser)
    chat_options.add_arguments(parser)
    parser.add_argument(
        "--omit-media",
        action="store_true",
        help="images, sounds and files in questions become [image omitted] and the like, in place "
        "of an error",
    )
    parser.add_argument(
        "--pooling",
        choices=POOLINGS,
        help="what becomes of the vectors of a text's tokens (default: as the file says, or mean)",
    )
    parser.add_argument(
        "--rerank",
        "--reranking",
        action="store_const",
        dest="pooling",
        const="rank",
        help="as --pooling rank: what models that rank do by themselves",
    )
    parser.add_argument(
        "--embd-normalize",
        type=_norm,
        default=2,
        metavar="N",
        help="vectors are scaled to: 2 length 1 (default), -1 not at all, 0 32760 for the largest "
        "number, 1 and others that norm",
    )
    parser.add_argument(
        "--truncate",
        action="store_true",
        help="texts that are too long for a vector are cut, not refused",
    )
    parser.add_argument(
        "--spm-infill", action="store_true", help="infill: the text behind comes first"
    )
    parser.add_argument(
        "--no-ui", "--no-webui", dest="page", action="store_false", help="without the page"
    )
    _add_defaults(parser)
    parser.add_argument(
        "--plan", action="store_true", help="print the memory that the models would take, and stop"
    )
    parser.add_argument(
        "-v", "--verbose", "--log-verbose", action="store_true", help="log requests"
    )
    parser.add_argument(
        "-lv",
        "--verbosity",
        "--log-verbosity",
        type=int,
        default=WARNINGS,
        metavar="N",
        help="messages up to a level: 1 errors, 2 warnings (default), 4 requests",
    )
    parser.add_argument("--log-file", metavar="FILE", help="messages also go to a file")
    parser.add_argument(
        "--log-disable", action="store_true", help="no messages but errors on stderr"
    )
    llama_server.add_arguments(parser)


def _add_defaults(parser: argparse.ArgumentParser) -> None:
    """Adds what texts are written with whose requests do not say it."""
    group = parser.add_argument_group("what requests begin with that do not say it")
    group.add_argument(
        "-n", "--predict", "--n-predict", type=whole(-2), metavar="N", help="maximum tokens"
    )
    add_samplers(group, of_requests=True)
    parser.set_defaults(escape=True)


def run(args: argparse.Namespace) -> int:
    try:
        from .running import serve
    except ImportError as error:
        if (error.name or "").startswith("powerinfer_cpp"):
            raise
        raise ValueError(
            f"the server needs the package {error.name}: pip install 'powerinfer_cpp[serve]', or "
            "./run in a clone"
        ) from None
    return serve(args)


def _gib(text: str) -> float:
    """A size in GiB. Raises argparse's error for what is none."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < MOST_GIB:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GiB above 0")
    return found


def _norm(text: str) -> int:
    """A norm of vectors. Raises argparse's error for what is none."""
    if not re.fullmatch(r"-1|\d{1,2}", text) or int(text) > MOST_NORM:
        raise argparse.ArgumentTypeError(f"{text!r} is none of -1 to {MOST_NORM}")
    return int(text)


def _proxy(text: str) -> str:
    """An address or a network. Raises argparse's error for what is none."""
    try:
        return str(
            ipaddress.ip_network(text, strict=False) if "/" in text else ipaddress.ip_address(text)
        )
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no address and no network") from None
