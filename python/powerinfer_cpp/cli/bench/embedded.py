"""Tests of vectors and scores."""

import argparse
import statistics
from typing import Any

from ...core.model import Model
from ...measure import embedded
from ..common import count_text, size_text
from .rows import op_rows, speed_text, times

COLUMNS = ("model", "size", "params", "backend", "threads", "test", "ms/text", "texts/s", "t/s")
WORDS = COLUMNS[:6]  # columns that are set to the left

measure = embedded.measure
session_fields = embedded.session_fields


def tests(args: argparse.Namespace) -> list[embedded.Test]:
    """What the options ask for. Raises ValueError for an option that needs generated tokens."""
    if args.n_depth != [0]:
        raise ValueError("-d is for generated tokens: leave it out, or --embed")
    return embedded.tests(args.n_prompt, args.n_parallel or [1], args.mixed)


def measured(result: embedded.Result, model: Model, plan: dict[str, Any]) -> dict[str, Any]:
    """JSON keys of one test."""
    test = result.test
    return {
        "n_prompt": test.n_prompt,
        "n_texts": test.n_texts,
        "n_tokens": sum(test.lengths),
        "mixed": test.mixed,
        "test": test.name,
        "ms_per_text": statistics.mean(result.samples_ns) / 1e6 / test.n_texts,
        **times(result.samples_ns, result.samples_ts),
    }


def ops(result: embedded.Result) -> list[tuple[str, str, list[dict[str, Any]]]]:
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
        row["test"],
        f"{row['ms_per_text']:.3f}",
        f"{1e3 / row['ms_per_text']:.1f}",
        speed_text(row["avg_ts"], row["stddev_ts"]),
    )
