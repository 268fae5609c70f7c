"""What `serve` runs with, from its options: models, sizes, settings, log."""

import argparse
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.gguf import Gguf
from ...core.log import say
from ...core.plan import from_storage, memory_plan, on_device, ways_of
from ...core.sampling import Sampling
from ...core.ways import sentence
from ...run.context_size import context_size
from ...run.options import Options
from ...run.prefix_files import PrefixFiles
from ...run.shared_session import (
    gives_no_text,
    knows_its_texts,
    session_fields,
    vector_fields,
    with_fewer_texts,
)
from ...server import run as server
from ...server.settings import Defaults, Settings
from .. import chat_options, llama_server, moved_experts
from ..common import adapter_options, llama_options, note_options
from ..drafting import draft_of
from ..generating import from_hub, unescaped
from . import CACHE_GIB, KEY_VARIABLE, LOAD_MODES, PARALLEL, POOLINGS, REQUESTS, WARNINGS

DEFAULT_MODEL = Path("models/stories-relu.Q8_0.gguf")
# Arguments of `ServedModel` that `Llama` does not have.
_OF_SERVER = (
    *("n_parallel", "n_kv", "n_queue", "prefix_files", "thinking", "chat_template", "omit_media"),
    "n_ctx_vectors",
)


def serve(args: argparse.Namespace) -> int:
    """Serves what the options name until the process is told to end, or prints its plans; gives
    the exit status."""
    for note in llama_server.notes(args):
        say(note, True)
    note_options(args)
    downloaded = from_hub(args)
    named = [*args.models, *(args.model or ())]
    paths = _models([*named, *([downloaded] if downloaded else ())], args.alias)
    if len(paths) > 1 and args.lora:
        raise ValueError("--lora: an adapter belongs to one model, and several are served")
    options = _options(args, list(paths.values()))
    sizes, ready = _sizes(args, options, list(paths.values()))
    options |= sizes
    if args.plan:
        return _print_plans(paths, options)
    server.run(paths, options, _settings(args), args.host, args.port, *_logging(args), ready)
    return 0


def _options(args: argparse.Namespace, paths: Sequence[Path]) -> dict[str, Any]:
    """Arguments of `ServedModel`, but for sizes, which serves each of these files."""
    mapped, locked = LOAD_MODES[args.load_mode] if args.load_mode else (args.mmap, args.mlock)
    options = {
        "chat_template": chat_options.template(args),  # before chat_format is read
        **llama_options(args),
        **adapter_options(args),
        **moved_experts.keywords(args, paths),
        "n_threads_batch": args.threads_batch,
        "use_mmap": mapped,
        "use_mlock": locked,
        "op_offload": args.op_offload,
        "last_n_tokens_size": args.repeat_last_n,
        "spm_infill": args.spm_infill,
        "n_parallel": args.parallel or PARALLEL,
        "n_queue": args.queue,
        "draft_model": draft_of(args),
        "pooling_type": POOLINGS.get(args.pooling, -1),
        "thinking": chat_options.thinking(args),
        "omit_media": args.omit_media,
        "n_ctx_vectors": args.ctx_size,
    }
    if args.prompt_cache_dir is not None:
        n_bytes = int((args.prompt_cache_size or CACHE_GIB) * 2**30)
        options["prefix_files"] = PrefixFiles(args.prompt_cache_dir, n_bytes, verbose=True)
    elif args.prompt_cache_size is not None:
        raise ValueError("--prompt-cache-size needs --prompt-cache-dir")
    return options


def _sizes(
    args: argparse.Namespace, options: dict[str, Any], paths: Sequence[Path]
) -> tuple[dict[str, int | None], str]:
    """n_ctx and n_kv of all models, as the options say or as memory allows; and what is to be said
    of that."""
    if args.ctx_size is not None:
        return {"n_ctx": args.ctx_size, "n_kv": args.kv_size}, ""
    found = []
    for path in paths:
        if knows_its_texts(path):
            continue
        given, fields = _session(path, {**options, "n_ctx": 0, "n_kv": None})
        found.append(context_size(given, fields, options["n_parallel"], len(paths)))
    if not found:
        return {"n_ctx": None, "n_kv": args.kv_size}, ""
    n_ctx = min(of.n_ctx for of in found)
    if args.kv_size is not None:
        return {"n_ctx": min(n_ctx, args.kv_size), "n_kv": args.kv_size}, ""
    n_kv = min(of.n_kv for of in found)
    gib = sum(of.n_bytes for of in found) / 2**30
    ready = f"-c {n_ctx} --kv-size {n_kv}, as memory allows: {gib:.1f} GiB for keys and values"
    return {"n_ctx": n_ctx, "n_kv": n_kv}, ready


def _session(path: Path, options: Mapping[str, Any]) -> tuple[Options, dict[str, Any]]:
    """What `ServedModel` opens a file with: the options, and fields of its session."""
    of_llama = {name: value for name, value in options.items() if name not in _OF_SERVER}
    given = Options(path, **of_llama)
    if gives_no_text(path):
        return given, vector_fields(given, options["n_ctx_vectors"])
    n_parallel, n_kv = options["n_parallel"], options["n_kv"]
    return given, session_fields(given, n_parallel, n_kv, _keeps(options))[0]


def _keeps(options: Mapping[str, Any]) -> bool:
    """Are prompts kept on disk?"""
    return "prefix_files" in options


def _print_plans(paths: Mapping[str, Path], options: Mapping[str, Any]) -> int:
    """Prints what each model would take; 3 if one does not fit."""
    status = 0
    for name, path in paths.items():
        given, fields = _session(path, options)
        plan = memory_plan(given.model_path, given.model, fields)
        if gives_no_text(path):
            print(f"{name}: {fields['n_ctx']} tokens of a text (-c), which is not continued")
        else:
            print(f"{name}: {fields['n_ctx']} positions (-c), {fields['n_kv']} of all texts")
        rows = [(t, part, n) for t in ("ram", "gpu", "storage") for part, n in plan[t].items()]
        for tier, part, n_bytes in rows:
            print(f"  {tier:8}{part:14}{n_bytes / 2**20:12.2f} MiB")
        fits = plan["total"] <= plan["budget"] + plan["vram_budget"]
        budget = plan["budget"] / 2**20
        print(f"  {'':8}{'total':14}{plan['total'] / 2**20:12.2f} MiB, of {budget:.0f} in RAM")
        if words := from_storage(plan):
            print(f"  {name} {words}")
        for words in on_device(plan, given.model.get("device", "")):
            print(f"  {words}")
        if not fits:
            texts = given, options["n_parallel"], options["n_kv"], _keeps(options)
            ways = with_fewer_texts(ways_of(given.model_path, given.model, fields), *texts)
            print(f"  {name} does not fit; {sentence(ways, given.model_path, flags=True)}")
            status = 3
    return status


def _settings(args: argparse.Namespace) -> Settings:
    """What the server allows, and what its requests begin with. Raises ValueError, OSError."""
    given = {name: getattr(args, name) for name in Sampling().keywords()}
    if given["dry_sequence_breakers"] is not None:
        breakers = [unescaped(os.fsencode(text), args) for text in given["dry_sequence_breakers"]]
        given["dry_sequence_breakers"] = [os.fsdecode(text) for text in breakers]
    sampling = {name: value for name, value in given.items() if value is not None}
    Sampling(**sampling)  # refuses what is none
    n = args.predict
    defaults = Defaults(
        sampling, None if n is None else max(n, -1), dict(args.logit_bias), args.ignore_eos
    )
    origins = [origin for text in args.allowed_origin or () for origin in text.split(",")]
    return Settings(
        api_keys=tuple(_keys(args)),
        hosts=tuple(name.lower() for name in args.allowed_host or ()),
        origins=tuple(origins),
        proxies=None if args.trusted_proxy is None else tuple(args.trusted_proxy),
        page=args.page,
        defaults=defaults,
        truncate=args.truncate,
        embd_normalize=args.embd_normalize,
        max_recorded=args.max_recorded << 20,
    )


def _logging(args: argparse.Namespace) -> tuple[bool, logging.Handler | None]:
    """Are requests logged, and what writes messages to a file. Raises OSError for the file."""
    if args.log_disable or args.verbosity < WARNINGS:
        logging.getLogger("powerinfer_cpp.server").setLevel(logging.ERROR)
    handler = None
    if args.log_file is not None:
        handler = logging.FileHandler(args.log_file, encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    return args.verbose or args.verbosity >= REQUESTS, handler


def _models(given: list[str], alias: str | None) -> dict[str, Path]:
    """Files by name: of NAME=FILE, the alias of a single one, or the file's own."""
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
    if alias is None:
        return found
    if len(found) > 1:
        raise ValueError("--alias names one model, and several are served: use -m NAME=FILE")
    # llama-server's further names; one model has every name.
    return {alias.split(",")[0].strip(): path for path in found.values()}


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
