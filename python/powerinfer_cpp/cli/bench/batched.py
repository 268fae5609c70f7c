"""Tests of several texts at once: llama-batched-bench's columns and JSON keys."""

import argparse
import statistics
from typing import Any

from ...core.model import Model
from ...measure import batched, bench
from ...run.sequences import MOST_SEQUENCES
from .rows import deviation, disk_cells, now, op_rows, percentiles, speed_text, work_keys

COLUMNS = ("PP", "TG", "B", "N_KV", "T_PP s", "S_PP t/s", "T_TG s", "S_TG t/s", "T s", "S t/s")
WORDS = ()  # columns that are set to the left

measure = batched.measure
session_fields = batched.session_fields


def tests(args: argparse.Namespace) -> list[batched.Test]:
    """What the options ask for. Raises ValueError for what does not go with several texts, for more
    of them than a call or a session takes, and for more positions than -c allows."""
    if args.n_depth != [0]:
        raise ValueError("-d is for one text: leave it out, or -npl")
    most = max(args.n_parallel)
    if most > MOST_SEQUENCES:
        raise ValueError(f"-npl {most}: a session has at most {MOST_SEQUENCES} texts")
    if most > args.batch_size:
        raise ValueError(f"-npl {most}: one call computes a step, so -b must be at least {most}")
    found = batched.tests(args.n_prompt, args.n_gen, args.n_parallel)
    need = max((test.n_kv for test in found), default=0)
    if 0 < args.ctx_size < need:
        raise ValueError(f"-c {args.ctx_size}: the tests need {need} positions")
    return found


def measured(result: batched.Result, model: Model, plan: dict[str, Any]) -> dict[str, Any]:
    """JSON keys of one test. Bytes and neurons are those of generated tokens, or of prompts if
    nothing is generated."""
    test = result.test
    found: dict[str, Any] = {
        "pp": test.n_prompt,
        "tg": test.n_gen,
        "pl": test.n_texts,
        "n_kv": test.n_kv,
        "test_time": now(),
    }
    prompts, generated = result.prompts, result.generated
    for name, n_tokens, ns in (
        ("_pp", prompts.n_tokens, prompts.samples_ns),
        ("_tg", generated.n_tokens, generated.samples_ns),
        ("", test.n_kv, result.samples_ns),
    ):
        speeds = bench.speeds(n_tokens, ns)
        found |= {
            f"t{name}": statistics.mean(ns) / 1e9,
            f"speed{name}": statistics.mean(speeds),
            f"stddev_speed{name}": deviation(speeds),
            f"samples{name}_ns": ns,
        }
    if test.n_gen:
        found["token_ms"] = percentiles(result.token_ns)
    costly = generated if test.n_gen else prompts
    return {**found, **work_keys(model, plan, costly.work)}


def ops(result: batched.Result) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """JSON key, heading and operators of prompts and of generated tokens."""
    test = result.test
    phases = (
        ("ops_pp", f"pp{test.n_prompt}", result.prompts),
        ("ops_tg", f"tg{test.n_gen}", result.generated),
    )
    return [
        (key, f"{name} x {test.n_texts}", op_rows(phase.ops, len(phase.samples_ns)))
        for key, name, phase in phases
        if phase.n_tokens
    ]


def cells(row: dict[str, Any]) -> tuple[Any, ...]:
    """A row of the table."""
    out = [row["pp"], row["tg"], row["pl"], row["n_kv"]]
    for name in ("_pp", "_tg", ""):
        speed = speed_text(row[f"speed{name}"], row[f"stddev_speed{name}"])
        out += [f"{row[f't{name}']:.3f}", speed]
    return (*out, *disk_cells(row))
