"""powerinfer bench: measures speed, with llama-bench's columns and JSON keys."""

import argparse
import json
import statistics
import time
from collections import defaultdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from .._native import ffi, lib
from ..core.model import Model
from ..core.stats import neuron_figures
from ..measure import bench
from .common import (
    add_model_arguments,
    count_text,
    device_fields,
    model_fields,
    session_fields,
    size_text,
    whole,
)
from .doctor import cpu_name, isa

COLUMNS = ("model", "size", "params", "backend", "threads", "test", "t/s", "GB/s", "neurons")
# Of models that run from storage: needed parts of neurons, or experts, that were in memory, and
# what a token read.
DISK_COLUMNS = ("hits", "disk MB/token")
NUMBERS = ("t/s", "GB/s", "neurons", *DISK_COLUMNS)
OP_COLUMNS = ("part", "op", "calls", "ms", "share", "GB/s")


def _numbers(text: str) -> list[int]:
    """Parses integers of at least 0: 512 or 128,512."""
    return [whole(0)(part) for part in text.split(",")]


_numbers.__name__ = "list of integers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("-c", "--ctx-size", type=whole(0), default=0, help=argparse.SUPPRESS)
    parser.add_argument(
        "-p", "--n-prompt", type=_numbers, default=[512], metavar="N,..", help="prompt tokens"
    )
    parser.add_argument(
        "-n", "--n-gen", type=_numbers, default=[128], metavar="N,..", help="tokens generated"
    )
    parser.add_argument(
        "-d", "--n-depth", type=_numbers, default=[0], metavar="N,..", help="tokens before them"
    )
    parser.add_argument("-r", "--repetitions", type=whole(1), default=5, metavar="N")
    parser.add_argument("-o", "--output", choices=("md", "json", "jsonl"), default="md")
    parser.add_argument("--tokens-file", metavar="F", help="file with token ids to use")
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


def _format_name(model: Model) -> str:
    """The format with the most bytes."""
    n_bytes: dict[str, int] = defaultdict(int)
    in_bundles = model.gguf.metadata.get("powerinfer.bundle.up_type", [""])[0]
    for tensor in model.gguf.tensors:
        name = in_bundles if ".ffn_bundle" in tensor.name else tensor.type_name
        n_bytes[name] += tensor.n_bytes
    return max(n_bytes, key=n_bytes.__getitem__, default="")


def _fixed(args: argparse.Namespace, model: Model, loading: dict[str, Any]) -> dict[str, Any]:
    """JSON keys that are the same for every test. loading: pi_model_params, empty if no
    layer is on a device."""
    device = loading.get("device", "")
    storage = model.storage()
    gpu = lib.pi_device_name(int(device[4:] or 0)) if device.startswith("cuda") else ffi.NULL
    return {
        "engine": "powerinfer_cpp",
        "build_commit": __version__,
        "build_number": 0,
        "cpu_info": cpu_name(),
        "gpu_info": ffi.string(gpu).decode("utf-8", "replace") if gpu else "",
        "backends": f"CPU {isa()}"
        + (f", {device}" if device else "")
        + (f", disk ({storage.io})" if storage else ""),
        "model_filename": args.model,
        "model_type": f"{model.architecture} {count_text(model.n_params)} {_format_name(model)}",
        "model_size": model.n_bytes,
        "model_n_params": model.n_params,
        "n_batch": args.batch_size,
        "n_ubatch": args.ubatch_size,
        "n_threads": args.threads or lib.pi_default_threads(),
        "type_k": args.cache_type_k,
        "type_v": args.cache_type_v,
        "n_gpu_layers": loading.get("n_gpu_layers", 0),
        "sparse": args.sparse,
    }


def _measured(result: bench.Result, model: Model, plan: dict[str, Any]) -> dict[str, Any]:
    """JSON keys of one test."""
    speeds, test = result.samples_ts, result.test
    found = {
        "n_prompt": test.n_prompt,
        "n_gen": test.n_gen,
        "n_depth": test.n_depth,
        "test_time": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "avg_ns": round(statistics.mean(result.samples_ns)),
        "stddev_ns": round(_deviation(result.samples_ns)),
        "avg_ts": statistics.mean(speeds),
        "stddev_ts": _deviation(speeds),
        "samples_ns": result.samples_ns,
        "samples_ts": speeds,
        "neurons_computed": result.work.mean_shares()["computed"],
        "joules_per_token": result.joules_per_token,
        **neuron_figures(model, plan, result.work),
    }
    if test.n_gen:
        p50, p95, p99 = np.percentile(result.token_ns, (50, 95, 99)) / 1e6
        found["token_ms"] = {"p50": p50, "p95": p95, "p99": p99}
        found["gb_per_s"] = found["avg_ts"] * sum(found["bytes_per_token"].values()) / 1e9
    return found


def _ops(result: bench.Result) -> list[dict[str, Any]]:
    """Operators of one test, per repetition, the slowest first."""
    n = len(result.samples_ns)
    total = sum(op.seconds for op in result.ops) or 1.0
    return [
        {
            "part": op.part,
            "op": op.op,
            "calls": op.calls // n,
            "ms": op.seconds * 1e3 / n,
            "share": op.seconds / total,
            "gb_per_s": op.n_bytes / op.seconds / 1e9 if op.seconds else 0.0,
        }
        for op in sorted(result.ops, key=lambda op: -op.seconds)
    ]


def _op_table(test: bench.Test, ops: list[dict[str, Any]]) -> str:
    lines = [f"\n{test.name}:", "", f"| {' | '.join(OP_COLUMNS)} |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: |")
    lines += [
        f"| {op['part']} | {op['op']} | {op['calls']} | {op['ms']:.3f} | {op['share']:.1%} "
        f"| {op['gb_per_s']:.2f} |"
        for op in ops
    ]
    return "\n".join(lines)


def _deviation(values: list[Any]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _disk_cells(row: dict[str, Any]) -> tuple[str, ...]:
    if row["storage"] is None:
        return ()
    parts = [row["storage"][part] for part in ("first", "rest")]
    needed, missed = (sum(part[count] for part in parts) for count in ("needed", "missed"))
    return f"{1 - missed / max(1, needed):.1%}", f"{row['tiers']['storage']['reads'] / 1e6:.2f}"


def _row(row: dict[str, Any], test: bench.Test) -> str:
    speed = f"{row['avg_ts']:.2f} ± {row['stddev_ts']:.2f}"
    rate = f"{row['gb_per_s']:.2f}" if "gb_per_s" in row else ""
    cells = (
        row["model_type"],
        size_text(row["model_size"]),
        count_text(row["model_n_params"]),
        row["backends"],
        row["n_threads"],
        test.name,
        speed,
        rate,
        f"{row['neurons_computed']:.1%}",
        *_disk_cells(row),
    )
    return f"| {' | '.join(map(str, cells))} |"


def run(args: argparse.Namespace) -> None:
    tests = bench.tests(args.n_prompt, args.n_gen, args.n_depth)
    if not tests:
        raise ValueError("-p 0 and -n 0 together leave nothing to measure")
    fields = session_fields(args)
    room, loading = bench.session_fields(tests, fields), model_fields(args)
    loading |= device_fields(args)
    start = time.perf_counter()
    model = Model(args.model, session=room, **loading)
    given = _given(args.tokens_file, model.n_vocab)
    load_s = time.perf_counter() - start
    plan = model.plan(**room)
    fixed = _fixed(args, model, loading if plan["gpu"] else {})
    rows, tables = [], []
    if args.output == "md":
        columns = COLUMNS + (DISK_COLUMNS if model.storage() else ())
        print(f"| {' | '.join(columns)} |")
        print(f"| {' | '.join('---:' if c in NUMBERS else '---' for c in columns)} |")
    for test in tests:
        result = bench.measure(
            model, test, args.repetitions, args.seed, given, ops=args.ops, **fields
        )
        row = {**fixed, "load_s": load_s, **_measured(result, model, plan)}
        if args.ops:
            row["ops"] = _ops(result)
            tables.append(_op_table(test, row["ops"]))
        rows.append(row)
        if args.output == "md":
            print(_row(row, test))
        elif args.output == "jsonl":
            print(json.dumps(row))
    if args.output == "json":
        print(json.dumps(rows, indent=2))
    elif args.output == "md" and tables:
        print("\n".join(tables))
