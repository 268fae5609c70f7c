"""Options that several subcommands share."""

import argparse
import csv
import math
import re
from pathlib import Path
from typing import Any

from ..core import options
from ..core.gguf import Gguf
from ..core.log import say

MOST_POSITIONS = 4096  # default limit of the context, as in ./main
CACHE_TYPES = {"f16": 1, "q8_0": 8, "f32": 0}  # GGUF type ids
# llama.cpp's others: what is used instead, and what to say of it.
_SMALLEST = "q8_0", "the smallest type of keys and values here"
_NEAREST = {
    "bf16": ("f16", "which is as large and has more digits"),
    **dict.fromkeys(("q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"), _SMALLEST),
}


def whole(least: int) -> Any:
    """Parser of an integer of at least `least`."""

    def parse(text: str) -> int:
        value = int(text)
        if not least <= value < 1 << 31:
            raise argparse.ArgumentTypeError(f"{text} is out of range: at least {least}")
        return value

    parse.__name__ = "integer"  # for argparse's message
    return parse


def whole_or_auto(least: int) -> Any:
    """The same, or None for llama.cpp's -1: what is done without the option."""
    at_least = whole(least)

    def parse(text: str) -> int | None:
        return None if text.strip() == "-1" else at_least(text)

    parse.__name__ = "integer"
    return parse


def number_of(unit: str) -> Any:
    """Parser of a finite number, 0 or more."""

    def parse(text: str) -> float:
        value = float(text)
        if not (math.isfinite(value) and value >= 0):
            raise argparse.ArgumentTypeError(f"{text} is not a number of {unit}")
        return value

    parse.__name__ = "number"
    return parse


def gibibytes(text: str) -> float:
    """Parser of a size in GiB, 0 or more; its bytes must fit into 63 bits."""
    value = number_of("GiB")(text)
    if value >= options.MOST_GIB:
        raise argparse.ArgumentTypeError(f"{text} GiB is more than can be counted")
    return value


gibibytes.__name__ = "number"


def share(text: str) -> float:
    """Parser of a share below 1: 0.1% or 0.001."""
    value = float(text.rstrip("%")) / (100 if text.endswith("%") else 1)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share (for example 0.1% or 0.001)")
    return value


def layers(text: str) -> int | None:
    """Parser of -ngl: a number, `all` (-1) or `auto` (None)."""
    return {"all": options.WHAT_FITS, "auto": None}[text] if text in ("all", "auto") else int(text)


layers.__name__ = "number"


def add_model_arguments(
    parser: argparse.ArgumentParser,
    n_batch: int = 2048,
    seed: int | None = 0,
    several: bool = False,
    optional: bool = False,
) -> None:
    """Adds MODEL and the options of loading and computing.

    seed: default; None: random. several: models of a server. optional: MODEL may be missing, as far
    as `take_model` goes.
    """
    if several:
        parser.add_argument(
            "models", nargs="*", metavar="MODEL", help="GGUF file, or NAME=FILE; also several"
        )
        parser.add_argument(
            "-m", "--model", action="append", metavar="MODEL", help="the same, by option"
        )
    else:
        parser.add_argument("model", nargs="?", metavar="MODEL", help="GGUF file")
        parser.add_argument(
            "-m", "--model", dest="model_file", metavar="FILE", help="MODEL, by option"
        )
        parser.set_defaults(needs_model=not optional)
    parser.add_argument(
        "-t",
        "--threads",
        type=whole_or_auto(1),
        metavar="N",
        help="threads (default, and -1: the usable physical cores)",
    )
    parser.add_argument(
        "-b", "--batch-size", type=whole(1), default=n_batch, metavar="N", help="tokens per call"
    )
    parser.add_argument(
        "-ub", "--ubatch-size", type=whole(1), default=512, metavar="N", help="tokens at once"
    )
    parser.add_argument(
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        type=layers,
        metavar="N",
        help="at most this many layers on the GPU, or all, or auto (default): what fits",
    )
    for flag, name in (("-ctk", "--cache-type-k"), ("-ctv", "--cache-type-v")):
        parser.add_argument(
            flag, name, action=_CacheType, choices=[*CACHE_TYPES, *_NEAREST], default="f16"
        )
    least = -1 if seed is None else 0  # -1: random
    parser.add_argument("-s", "--seed", type=whole(least), default=seed, metavar="N")
    parser.add_argument("--sparse", default="auto", metavar="MODE", choices=options.SPARSE_MODES)
    parser.add_argument("--sparse-threshold", type=float, metavar="X")
    parser.add_argument(
        "--vram-budget", type=gibibytes, metavar="GiB", help="limit of GPU memory; 0: no GPU"
    )
    parser.add_argument("--ram-budget", type=gibibytes, metavar="GiB", help="limit of RAM")
    parser.add_argument(
        "--no-bundle",
        action="store_true",
        help="write no bundled file, nor a list of what was in memory, for a model that is larger "
        "than RAM",
    )
    parser.add_argument(
        "--mmap-anyway",
        action="store_true",
        help="run a dense model larger than RAM, slowly: each token reads what does not fit",
    )
    parser.add_argument(
        "-dev",
        "--device",
        type=lambda name: "cpu" if name == "none" else name,
        metavar="NAME",
        help="cpu or none, or a GPU: cuda0",
    )
    parser.add_argument(
        "--allow-unknown",
        action="store_true",
        help="run a file without keys and tensors that change results and are not known here",
    )
    add_override_arguments(parser)


class _CacheType(argparse.Action):
    """Keeps a type that there is, and what to say where that is not the one that was given."""

    def __call__(self, _parser: Any, args: Any, value: Any, option: Any = None) -> None:
        used, why = _NEAREST.get(value, (value, ""))
        setattr(args, self.dest, used)
        args.told = {**getattr(args, "told", {}), self.dest: ""}
        if why:
            args.told[self.dest] = f"{option} {value}: {used} is used, {why}"


def take_model(args: argparse.Namespace) -> None:
    """Puts the model of -m into args.model, for a command with one model. Raises
    argparse.ArgumentError if it is not exactly one, and the command needs one."""
    if not hasattr(args, "needs_model"):
        return
    given = [name for name in (args.model, args.model_file) if name]
    if len(given) > 1:
        raise argparse.ArgumentError(None, "name one model: MODEL or -m FILE")
    if args.needs_model and not given:
        raise argparse.ArgumentError(None, "name a model: MODEL or -m FILE")
    args.model = given[0] if given else None


_ROPE = {  # by flag: the keyword of options.rope_fields, and help
    "--rope-freq-base": ("rope_freq_base", "base of RoPE's frequencies"),
    "--rope-freq-scale": ("rope_freq_scale", "factor of RoPE's frequencies"),
    "--yarn-ext-factor": ("yarn_ext_factor", "YaRN: how far fast frequencies stay as they are"),
    "--yarn-attn-factor": ("yarn_attn_factor", "YaRN: factor of the attention's magnitude"),
    "--yarn-beta-fast": ("yarn_beta_fast", "YaRN: turns from which a frequency is fast"),
    "--yarn-beta-slow": ("yarn_beta_slow", "YaRN: turns up to which it is slow"),
}
_SCALINGS = {"none": 0, "linear": 1, "yarn": 2}


def add_override_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what takes the place of a model's own keys."""
    parser.add_argument(
        "--override-kv",
        action="extend",
        type=_overrides,
        default=[],
        metavar="KEY=TYPE:VALUE",
        help="a value in place of the model's, of type int, float, bool or str; can be given "
        "several times, or several with commas between",
    )
    parser.add_argument(
        "--rope-scaling",
        dest="rope_scaling_type",
        choices=_SCALINGS,
        help="scaling of positions (default: the model's)",
    )
    parser.add_argument(
        "--rope-scale",
        dest="rope_freq_scale",
        type=lambda text: 1 / float(text),
        metavar="X",
        help="factor by which the context is longer than in training",
    )
    for flag, (name, text) in _ROPE.items():
        parser.add_argument(flag, dest=name, type=float, metavar="X", help=text)
    parser.add_argument(
        "--yarn-orig-ctx", type=whole(0), metavar="N", help="YaRN: positions in training"
    )


# Where the next override begins: texts may hold commas, too.
_NEXT_OVERRIDE = re.compile(r",(?=\"?[^\s,=]+=(?:int|float|str|bool):)")


def _overrides(text: str) -> list[tuple[str, bool | int | float | str]]:
    """Parser of KEY=TYPE:VALUE,... as in llama.cpp, where quotes may be around each."""
    parts = _NEXT_OVERRIDE.split(text)
    quoted = re.compile(r'"(.*)"', re.DOTALL)
    return [_override(found[1] if (found := quoted.fullmatch(p)) else p) for p in parts]


def _override(text: str) -> tuple[str, bool | int | float | str]:
    """Parser of KEY=TYPE:VALUE."""
    key, equals, rest = text.partition("=")
    kind, colon, value = rest.partition(":")
    kinds: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": _truth}
    try:
        if key and equals and colon and kind in kinds:
            return key, kinds[kind](value)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(
        f"{text} is not KEY=TYPE:VALUE, with a type int, float, bool or str"
    )


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _rope(args: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of Llama and of options.rope_fields."""
    names = [name for name, _ in _ROPE.values()] + ["yarn_orig_ctx"]
    kind = args.rope_scaling_type
    return {
        "rope_scaling_type": None if kind is None else _SCALINGS[kind],
        **{name: getattr(args, name) for name in names},
    }


def files(text: str) -> list[str]:
    """Parser of names of files with commas between; a name that has commas stands in quotes, or
    alone."""
    if Path(text).is_file():
        return [text]
    found = next(csv.reader([text], skipinitialspace=True), [])
    if not found or not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} names no file")
    return found


def _adapters(text: str) -> list[tuple[str, float]]:
    """Parser of FILE,..."""
    return [(file, 1.0) for file in files(text)]


def _scaled_adapters(text: str) -> list[tuple[str, float]]:
    """Parser of FILE:SCALE,..."""
    return [_scaled(part) for part in files(text)]


def _scaled(text: str) -> tuple[str, float]:
    file, _, scale = text.rpartition(":")
    try:
        if file:
            return file, float(scale)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not FILE:SCALE")


def add_adapter_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of LoRA adapters."""
    parser.add_argument(
        "--lora",
        action="extend",
        type=_adapters,
        default=[],
        metavar="F",
        help="a LoRA adapter (GGUF); can be given several times, or several with commas between",
    )
    parser.add_argument(
        "--lora-scaled",
        action="extend",
        type=_scaled_adapters,
        dest="lora",
        metavar="F:SCALE",
        help="the same with a scale",
    )
    parser.add_argument(
        "--lora-allow-predictor",
        action="store_true",
        help="use predictors with adapters, too, for which they were not made",
    )


def add_cache_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what sequences keep beside their keys and values."""
    parser.add_argument(
        "-ctxcp",
        "--ctx-checkpoints",
        "--swa-checkpoints",
        type=whole(0),
        metavar="N",
        help="positions from which prompts go on, of a model whose layers have a state or a window "
        "(default: 8, or what a sixteenth of the budget holds)",
    )
    parser.add_argument(
        "--swa-full",
        action="store_true",
        help="layers with a window keep what is behind it of all positions (default: what a "
        "quarter of the RAM takes that is left)",
    )


def adapter_options(args: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of Llama that these options set."""
    return {"lora_path": dict(args.lora), "lora_allow_predictor": args.lora_allow_predictor}


def _separator(text: str) -> bytes | None:
    """The bytes of a command-line argument; None if it is empty."""
    return text.encode("utf-8", "surrogateescape") or None


def add_text_arguments(
    parser: argparse.ArgumentParser, least_ctx: int, required: bool = True
) -> None:
    """Adds a text, the separator of its documents (bytes), and the size of its windows."""
    parser.add_argument("--text", required=required, metavar="F", help="text file or pipe")
    parser.add_argument("--separator", type=_separator, metavar="S", help="separator of documents")
    parser.add_argument(
        "-c",
        "--ctx-size",
        type=whole(least_ctx),
        default=512,
        metavar="N",
        help="tokens per window (default: 512)",
    )


def device_options(args: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of Llama and of options.device_fields. A GPU computes unless told not to,
    by -ngl 0, too."""
    layers = options.WHAT_FITS if args.gpu_layers is None else args.gpu_layers
    return {
        "device": args.device if layers else "cpu",
        "n_gpu_layers": layers,
        "vram_budget": args.vram_budget,
    }


def positions(path: str | Path) -> int:
    """The model's training context, at most MOST_POSITIONS."""
    with Gguf(path) as gguf:
        return min(gguf.n_ctx_train or MOST_POSITIONS, MOST_POSITIONS)


def llama_options(args: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of Llama that the shared options and --chat-format set, without n_ctx."""
    return {
        "n_batch": args.batch_size,
        "n_ubatch": args.ubatch_size,
        "n_threads": args.threads,
        "type_k": CACHE_TYPES[args.cache_type_k],
        "type_v": CACHE_TYPES[args.cache_type_v],
        "seed": args.seed,
        "sparse": args.sparse,
        "sparse_threshold": args.sparse_threshold,
        "n_checkpoints": args.ctx_checkpoints,
        "swa_full": args.swa_full,
        "ram_budget": args.ram_budget,
        "bundle": not args.no_bundle,
        "mmap_anyway": args.mmap_anyway,
        "allow_unknown": args.allow_unknown,
        **device_options(args),
        **_rope(args),
        "kv_overrides": dict(args.override_kv),
        "chat_format": args.chat_format,
        "verbose": False,
    }


def note_options(args: argparse.Namespace) -> None:
    """Notes which options ask for a GPU in vain, and which types of the cache are others. Raises
    ValueError for keys and values of two types."""
    k, v = args.cache_type_k, args.cache_type_v
    if k != v:
        words = f"-ctk {k} and -ctv {v}: keys and values have one type, {', '.join(CACHE_TYPES)}"
        raise ValueError(words)
    for text in filter(None, getattr(args, "told", {}).values()):
        say(text, True)
    if args.device in (None, "cpu"):
        asked = {"-ngl": args.gpu_layers, "--vram-budget": args.vram_budget}
        options.note_without_gpu(asked, verbose=True)


def need_cpu(args: argparse.Namespace) -> None:
    """Refuses a device where neurons are recorded, and notes which options ask for a GPU in vain.
    Raises ValueError."""
    if args.device not in (None, "cpu"):
        raise ValueError(f"--device {args.device}: only the CPU records neurons")
    note_options(args)


def model_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The pi_model_params that the shared options set, without a device."""
    return {
        "n_threads": args.threads or 0,
        "ram_budget": options.budget_bytes("--ram-budget", args.ram_budget),
        "bundle": not args.no_bundle,
        "mmap_anyway": args.mmap_anyway,
        "allow_unknown": args.allow_unknown,
        **options.override_field(dict(args.override_kv)),
    }


def device_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Those of the device; also notes which options ask for a GPU in vain."""
    note_options(args)
    return options.device_fields(**device_options(args))


def session_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The pi_session_params that the shared options set."""
    return {
        "n_batch": args.batch_size,
        "n_ubatch": min(args.ubatch_size, args.batch_size),
        "n_threads": args.threads or 0,
        "type_k": CACHE_TYPES[args.cache_type_k],
        "type_v": CACHE_TYPES[args.cache_type_v],
        **options.sparse_fields(args.sparse, args.sparse_threshold),
        **options.rope_fields(**_rope(args)),
    }


def size_text(n_bytes: float) -> str:
    """ "3.50 GiB" or "12.30 MiB"."""
    if n_bytes >= 1 << 30:
        return f"{n_bytes / (1 << 30):.2f} GiB"
    return f"{n_bytes / (1 << 20):.2f} MiB"


def count_text(n: float) -> str:
    """ "6.74 B", "4.46 M" or "512"."""
    for scale, letter in ((1e9, "B"), (1e6, "M")):
        if n >= scale:
            return f"{n / scale:.2f} {letter}"
    return f"{n:.0f}"
