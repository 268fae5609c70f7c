"""powerinfer bench: measures speed, with llama-bench's columns and JSON keys, or those of
llama-batched-bench for several texts at once; of vectors of texts, with columns of its own."""

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ...core.errors import OutOfMemoryError
from ...core.model import Model
from ...measure.bench import ordinary_ids
from ..common import (
    add_model_arguments,
    device_fields,
    model_fields,
    session_fields,
    whole,
)
from . import batched, embedded, single
from .rows import DISK_COLUMNS, fixed, op_table


def _numbers(least: int) -> Callable[[str], list[int]]:
    """Parser of integers of at least `least`: 512 or 128,512."""

    def parse(text: str) -> list[int]:
        return [whole(least)(part) for part in text.split(",")]

    parse.__name__ = "list of integers"  # for argparse's message
    return parse


def _range(text: str) -> tuple[int, int]:
    """Parser of FIRST,LAST."""
    first, last = _numbers(0)(text)
    if last < first:
        raise argparse.ArgumentTypeError(f"{text}: the last id is below the first")
    return first, last


_range.__name__ = "pair FIRST,LAST"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("-c", "--ctx-size", type=whole(0), default=0, help=argparse.SUPPRESS)
    parser.add_argument(
        "-p",
        "--n-prompt",
        "-npp",
        type=_numbers(0),
        default=[512],
        metavar="N,..",
        help="prompt tokens (of a text)",
    )
    parser.add_argument(
        "-n",
        "--n-gen",
        "-ntg",
        type=_numbers(0),
        default=[128],
        metavar="N,..",
        help="tokens generated (for a text)",
    )
    parser.add_argument(
        "-d", "--n-depth", type=_numbers(0), default=[0], metavar="N,..", help="tokens before them"
    )
    parser.add_argument(
        "-npl",
        "--n-parallel",
        type=_numbers(1),
        metavar="N,..",
        help="texts at once, each with tokens of its own: the columns of llama-batched-bench",
    )
    parser.add_argument(
        "--embed",
        action="store_true",
        help="vectors, or scores, of -npl texts (default: 1) of -p tokens each in one request",
    )
    parser.add_argument(
        "--mixed",
        action="store_true",
        help="with --embed: lengths from an eighth of -p to -p, evenly spread",
    )
    parser.add_argument("-r", "--repetitions", type=whole(1), default=5, metavar="N")
    parser.add_argument("-o", "--output", choices=("md", "json", "jsonl"), default="md")
    ids = parser.add_mutually_exclusive_group()
    ids.add_argument("--tokens-file", metavar="F", help="file with token ids to use")
    ids.add_argument(
        "--ids",
        type=_range,
        metavar="FIRST,LAST",
        help="random ids from this range only (default: all but special tokens)",
    )
    parser.add_argument("--ops", action="store_true", help="time and GB/s of every operator")


def _given(path: str | None, n_vocab: int) -> np.ndarray | None:
    """Ids from a file. Raises ValueError for anything except ids of the vocabulary."""
    if path is None:
        return None
    try:
        ids = np.array(Path(path).read_text().split(), dtype=np.int32)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{path}: not a list of token ids: {error}") from None
    if ids.size == 0 or ids.min() < 0 or ids.max() >= n_vocab:
        raise ValueError(f"{path}: needs at least one id, all from 0 to {n_vocab - 1}")
    return ids


@contextlib.contextmanager
def _with_sizes_of_tests() -> Iterator[None]:
    """Within it, what helps where memory is too small leaves out sizes that the tests decide, for
    which there are no options here."""
    try:
        yield
    except OutOfMemoryError as error:
        error.ways = [way for way in error.ways if way.what not in ("n_ctx", "n_kv")]
        raise


@_with_sizes_of_tests()
def run(args: argparse.Namespace) -> None:
    if args.mixed and not args.embed:
        raise ValueError("--mixed is for --embed")
    kind = embedded if args.embed else batched if args.n_parallel else single
    tests = kind.tests(args)
    if not tests:
        nothing = "-p 0 leaves" if args.embed else "-p 0 and -n 0 together leave"
        raise ValueError(f"{nothing} nothing to measure")
    fields = session_fields(args)
    room, loading = kind.session_fields(tests, fields), model_fields(args)
    loading |= device_fields(args)
    start = time.perf_counter()
    model = Model(args.model, session=room, **loading)
    given, among = _given(args.tokens_file, model.n_vocab), ordinary_ids(model, args.ids)
    load_s = time.perf_counter() - start
    if kind is not embedded and (model.is_encoder or model.ranks):
        raise ValueError(f"{args.model}: this model gives no tokens: measure it with --embed")
    plan = model.plan(**room)
    same = fixed(args, model, loading if plan["gpu"] else {}) | {"load_s": load_s}
    rows, tables = [], []
    if args.output == "md":
        columns = kind.COLUMNS + (DISK_COLUMNS if model.storage() else ())
        print(f"| {' | '.join(columns)} |")
        print(f"| {' | '.join('---' if c in kind.WORDS else '---:' for c in columns)} |")
    for test in tests:
        result = kind.measure(
            model, test, args.repetitions, args.seed, given, ops=args.ops, among=among, **fields
        )
        row = {**same, **kind.measured(result, model, plan)}
        if args.ops:
            found = kind.ops(result)
            row |= {key: ops for key, _, ops in found}
            tables += [op_table(name, ops) for _, name, ops in found]
        rows.append(row)
        if args.output == "md":
            print(f"| {' | '.join(map(str, kind.cells(row)))} |")
        elif args.output == "jsonl":
            print(json.dumps(row))
    if args.output == "json":
        print(json.dumps(rows, indent=2))
    elif args.output == "md" and tables:
        print("\n".join(tables))
