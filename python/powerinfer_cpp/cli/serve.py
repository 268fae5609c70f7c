"""powerinfer serve: an OpenAI-compatible server with a page."""

import argparse
import ipaddress
import os
from pathlib import Path

from ..core.embedding import CLS, LAST, MEAN
from ..core.gguf import Gguf
from ..core.options import MOST_GIB
from ..run.prefix_files import PrefixFiles
from ..text.chat import FORMATS
from . import reasoning
from .common import (
    MOST_POSITIONS,
    adapter_options,
    add_adapter_arguments,
    add_checkpoint_argument,
    add_model_arguments,
    llama_options,
    note_device,
    positions,
    whole,
)
from .drafting import add_draft_arguments, draft_of
from .generating import add_hub_arguments, from_hub

DEFAULT_MODEL = Path("models/stories-relu.Q8_0.gguf")
KEY_VARIABLE = "POWERINFER_API_KEY"
CACHE_GIB = 8  # of prompts on disk
_POOLINGS = {"mean": MEAN, "cls": CLS, "last": LAST}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser, n_batch=512, seed=None, several=True)
    add_hub_arguments(parser)
    add_adapter_arguments(parser)
    add_checkpoint_argument(parser)
    add_draft_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="address to listen at")
    parser.add_argument("--port", type=whole(0), default=8080, metavar="N")
    parser.add_argument(
        "-c",
        "--ctx-size",
        type=whole(0),
        metavar="N",
        help=f"tokens of a request; 0: the model's; default: the model's, at most {MOST_POSITIONS}",
    )
    parser.add_argument(
        "-np",
        "--parallel",
        type=whole(1),
        default=4,
        metavar="N",
        help="texts that are written at the same time (default: 4)",
    )
    parser.add_argument(
        "--kv-size",
        type=whole(1),
        metavar="N",
        help="tokens in memory, of all texts and of known prompts (default: -c times -np)",
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
        action="append",
        metavar="O",
        help="origin of other pages that may use it, * for any",
    )
    parser.add_argument(
        "--trusted-proxy",
        action="append",
        type=_proxy,
        metavar="A",
        help="address or network of a proxy whose X-Forwarded-For says who asks (default: this "
        "machine's)",
    )
    parser.add_argument(
        "--chat-format", metavar="NAME", help=f"instead of the file's: {', '.join(FORMATS)}"
    )
    reasoning.add_arguments(parser)
    parser.add_argument(
        "--pooling",
        choices=_POOLINGS,
        help="what becomes of a text's vectors in embeddings (default: as the file says, or mean)",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="log requests")


def run(args: argparse.Namespace) -> None:
    try:
        from ..server.run import run as serve
        from ..server.settings import Settings
    except ImportError as error:
        if (error.name or "").startswith("powerinfer_cpp"):
            raise
        raise ValueError(
            f"the server needs the package {error.name}: pip install 'powerinfer_cpp[serve]', or "
            "./run in a clone"
        ) from None
    note_device(args)
    downloaded = from_hub(args)
    named = [*args.models, *(args.model or ())]
    paths = _models([*named, *([downloaded] if downloaded else ())])
    if len(paths) > 1 and args.lora:
        raise ValueError("--lora: an adapter belongs to one model, and several are served")
    n_ctx = min(map(positions, paths.values())) if args.ctx_size is None else args.ctx_size
    options = {
        **llama_options(args),
        **adapter_options(args),
        "n_ctx": n_ctx,
        "n_parallel": args.parallel,
        "n_kv": args.kv_size,
        "n_queue": args.queue,
        "draft_model": draft_of(args),
        "pooling_type": _POOLINGS.get(args.pooling, -1),
        "thinking": reasoning.thinking(args),
    }
    if args.prompt_cache_dir is not None:
        n_bytes = int((args.prompt_cache_size or CACHE_GIB) * 2**30)
        options["prefix_files"] = PrefixFiles(args.prompt_cache_dir, n_bytes, verbose=True)
    elif args.prompt_cache_size is not None:
        raise ValueError("--prompt-cache-size needs --prompt-cache-dir")
    settings = Settings(
        api_keys=tuple(_keys(args)),
        hosts=tuple(name.lower() for name in args.allowed_host or ()),
        origins=tuple(args.allowed_origin or ()),
        proxies=None if args.trusted_proxy is None else tuple(args.trusted_proxy),
        max_recorded=args.max_recorded << 20,
    )
    serve(paths, options, settings, args.host, args.port, args.verbose)


def _gib(text: str) -> float:
    """A size in GiB. Raises argparse's error for what is none."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < MOST_GIB:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GiB above 0")
    return found


def _proxy(text: str) -> str:
    """An address or a network. Raises argparse's error for what is none."""
    try:
        return str(
            ipaddress.ip_network(text, strict=False) if "/" in text else ipaddress.ip_address(text)
        )
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no address and no network") from None


def _models(given: list[str]) -> dict[str, Path]:
    """Files by name: of NAME=FILE, or the file's own."""
    if not given and not DEFAULT_MODEL.is_file():
        raise ValueError(f"name a model: there is no {DEFAULT_MODEL} here")
    found: dict[str, Path] = {}
    for text in given or [str(DEFAULT_MODEL)]:
        name, _, file = text.partition("=")
        path = Path(text) if not file or Path(text).is_file() else Path(file)
        name = path.name.removesuffix(".gguf") if str(path) == text else name
        if name in found:
            raise ValueError(f"two models have the name {name}: use -m NAME=FILE")
        with Gguf(path):  # refuses what is no model before the server begins
            found[name] = path
    return found


def _keys(args: argparse.Namespace) -> list[str]:
    """All keys. Raises ValueError for an empty one, and OSError for the file."""
    keys = list(args.api_key or ())
    if os.environ.get(KEY_VARIABLE):
        keys.append(os.environ[KEY_VARIABLE])
    if args.api_key_file:
        lines = Path(args.api_key_file).read_text(encoding="utf-8").splitlines()
        in_file = [line.strip() for line in lines if line.strip()]
        if not in_file:  # it would be open to anybody
            raise ValueError(f"{args.api_key_file} has no key")
        keys += in_file
    if not all(keys):
        raise ValueError("an API key is empty")
    return keys
