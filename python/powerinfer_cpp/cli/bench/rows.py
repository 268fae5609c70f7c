"""What the rows of all tests have in common."""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np

from ... import __version__
from ..._native import ffi, lib
from ...core.model import Model
from ...core.session import OpTime
from ...core.stats import neuron_figures
from ...core.work import Work
from ..common import count_text
from ..doctor import cpu_name, isa

# Of models that run from storage: needed parts of neurons, or experts, that were in memory, and
# what a token read.
DISK_COLUMNS = ("hits", "disk MB/token")
OP_COLUMNS = ("part", "op", "calls", "ms", "share", "GB/s")


def _format_name(model: Model) -> str:
    """The format with the most bytes."""
    n_bytes: dict[str, int] = defaultdict(int)
    in_bundles = model.gguf.metadata.get("powerinfer.bundle.up_type", [""])[0]
    for tensor in model.gguf.tensors:
        name = in_bundles if ".ffn_bundle" in tensor.name else tensor.type_name
        n_bytes[name] += tensor.n_bytes
    return max(n_bytes, key=n_bytes.__getitem__, default="")


def fixed(args: argparse.Namespace, model: Model, loading: dict[str, Any]) -> dict[str, Any]:
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
        "n_threads": lib.pi_threads_used(args.threads or 0),
        "type_k": args.cache_type_k,
        "type_v": args.cache_type_v,
        "n_gpu_layers": loading.get("n_gpu_layers", 0),
        "sparse": args.sparse,
    }


def work_keys(model: Model, plan: dict[str, Any], work: Work) -> dict[str, Any]:
    """JSON keys of what tokens cost."""
    return {
        "neurons_computed": work.mean_shares()["computed"],
        **neuron_figures(model, plan, work),
    }


def now() -> str:
    """The time of a test."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def times(samples_ns: Sequence[int], samples_ts: Sequence[float]) -> dict[str, Any]:
    """llama-bench's JSON keys for the time and the tokens per second of repetitions."""
    return {
        "test_time": now(),
        "avg_ns": round(statistics.mean(samples_ns)),
        "stddev_ns": round(deviation(samples_ns)),
        "avg_ts": statistics.mean(samples_ts),
        "stddev_ts": deviation(samples_ts),
        "samples_ns": list(samples_ns),
        "samples_ts": list(samples_ts),
    }


def percentiles(ns: Sequence[int]) -> dict[str, float]:
    """Of times in nanoseconds, in milliseconds."""
    p50, p95, p99 = np.percentile(ns, (50, 95, 99)) / 1e6
    return {"p50": p50, "p95": p95, "p99": p99}


def deviation(values: Sequence[float]) -> float:
    """The standard deviation; 0 of one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def speed_text(mean: float, spread: float) -> str:
    """A cell of tokens per second."""
    return f"{mean:.2f} ± {spread:.2f}"


def op_rows(ops: Sequence[OpTime], repetitions: int) -> list[dict[str, Any]]:
    """Operators of one test, per repetition, the slowest first."""
    total = sum(op.seconds for op in ops) or 1.0
    return [
        {
            "part": op.part,
            "op": op.op,
            "calls": op.calls // repetitions,
            "ms": op.seconds * 1e3 / repetitions,
            "share": op.seconds / total,
            "gb_per_s": op.n_bytes / op.seconds / 1e9 if op.seconds else 0.0,
        }
        for op in sorted(ops, key=lambda op: -op.seconds)
    ]


def op_table(name: str, ops: list[dict[str, Any]]) -> str:
    """The same as a table below the name of the test."""
    lines = [f"\n{name}:", "", f"| {' | '.join(OP_COLUMNS)} |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: |")
    lines += [
        f"| {op['part']} | {op['op']} | {op['calls']} | {op['ms']:.3f} | {op['share']:.1%} "
        f"| {op['gb_per_s']:.2f} |"
        for op in ops
    ]
    return "\n".join(lines)


def disk_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """The cells of DISK_COLUMNS; none if the model does not run from storage."""
    if row["storage"] is None:
        return ()
    parts = [row["storage"][part] for part in ("first", "rest")]
    needed, missed = (sum(part[count] for part in parts) for count in ("needed", "missed"))
    return f"{1 - missed / max(1, needed):.1%}", f"{row['tiers']['storage']['reads'] / 1e6:.2f}"
