"""Tests of one text: llama-bench's columns and JSON keys."""

import argparse
from typing import Any

from ...core.model import Model
from ...measure import bench
from ..common import count_text, size_text
from .rows import disk_cells, op_rows, percentiles, speed_text, times, work_keys

COLUMNS = ("model", "size", "params", "backend", "threads", "test", "t/s", "GB/s", "neurons")
WORDS = COLUMNS[:6]  # columns that are set to the left

measure = bench.measure
session_fields = bench.session_fields


def tests(args: argparse.Namespace) -> list[bench.Test]:
    """What the options ask for."""
    return bench.tests(args.n_prompt, args.n_gen, args.n_depth)


def measured(result: bench.Result, model: Model, plan: dict[str, Any]) -> dict[str, Any]:
    """JSON keys of one test."""
    test = result.test
    found = {
        "n_prompt": test.n_prompt,
        "n_gen": test.n_gen,
        "n_depth": test.n_depth,
        **times(result.samples_ns, result.samples_ts),
        "joules_per_token": result.joules_per_token,
        **work_keys(model, plan, result.work),
    }
    if test.n_gen:
        found["token_ms"] = percentiles(result.token_ns)
        found["gb_per_s"] = found["avg_ts"] * sum(found["bytes_per_token"].values()) / 1e9
    return found


def ops(result: bench.Result) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """By JSON key and name of the test: its operators."""
    return [("ops", result.test.name, op_rows(result.ops, len(result.samples_ns)))]


def cells(row: dict[str, Any]) -> tuple[Any, ...]:
    """A row of the table."""
    return (
        row["model_type"],
        size_text(row["model_size"]),
        count_text(row["model_n_params"]),
        row["backends"],
        row["n_threads"],
        bench.Test(row["n_prompt"], row["n_gen"], row["n_depth"]).name,
        speed_text(row["avg_ts"], row["stddev_ts"]),
        f"{row['gb_per_s']:.2f}" if "gb_per_s" in row else "",
        f"{row['neurons_computed']:.1%}",
        *disk_cells(row),
    )
