"""powerinfer simulate: replays a trace, and shows what a cache of neurons would find and read."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from ..measure.trace import Trace, load
from ..placement.simulate import Counts, Disk, Slots, compare, shared, split
from .common import gibibytes, number_of, share, whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", help="file of `powerinfer profile --trace`")
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--budget", type=gibibytes, metavar="GiB", help="memory of the cache")
    size.add_argument("--share", type=share, metavar="P", help="share of the neurons (16%%)")
    parser.add_argument(
        "--warm-up", type=whole(0), default=0, metavar="N", help="first tokens, not counted"
    )
    parser.add_argument("-s", "--seed", type=whole(0), default=1, metavar="N")
    own = Disk()
    for flag, unit, value in (
        ("--iops", "reads a second", own.iops),
        ("--bandwidth", "GB/s", own.bandwidth / 1e9),
    ):
        parser.add_argument(
            flag,
            type=number_of(unit),
            metavar="X",
            default=value,
            help=f"of the disk, which decides how --budget is divided (default: {value:g} {unit})",
        )
    parser.add_argument("--json", action="store_true", help="figures as JSON")


def run(args: argparse.Namespace) -> None:
    if not (args.iops and args.bandwidth):
        raise ValueError("--iops and --bandwidth must be more than 0")
    trace = load(args.trace)
    if args.budget is None:
        slots = shared(trace, args.share)
    else:
        disk = Disk(args.iops, args.bandwidth * 1e9)
        slots = split(trace, int(args.budget * (1 << 30)), disk)
    found = compare(trace, slots, args.warm_up, args.seed)
    if args.json:
        print(json.dumps(figures(trace, slots, found), indent=2))
    else:
        print(text(trace, slots, found))


def figures(trace: Trace, slots: Slots, found: dict[str, Counts]) -> dict[str, Any]:
    """The slots, and what each policy found and missed."""
    return {
        "neurons": trace.parts,
        "slots": asdict(slots),
        "policies": {
            name: {**asdict(c), "hits": c.hits, "reads_per_token": c.reads_per_token}
            for name, c in found.items()
        },
    }


def text(trace: Trace, slots: Slots, found: dict[str, Counts]) -> str:
    """The figures as a table."""

    def percent(missed: int, needed: int) -> str:
        return f"{100 * missed / needed:11.1f}%" if needed else f"{'-':>12}"

    proposed, computed = trace.per_token()
    lines = [
        f"{next(iter(found.values())).tokens} tokens; of {trace.parts} neurons a token needs the "
        f"first row of {proposed:.0f}, the rest of {computed:.0f}",
        f"slots: {slots.first} first rows, {slots.rest} rests",
        "",
        "policy        hits | missed: first        rest | reads/token  of belady's",
    ]
    least = found["belady"].reads
    for name, c in found.items():
        first, rest = percent(c.first_missed, c.first_needed), percent(c.rest_missed, c.rest_needed)
        ratio = f"{c.reads / least:.2f}" if least else "-"
        lines.append(
            f"{name:10} {100 * c.hits:6.1f}% | {first:>13}{rest:>12} | {c.reads_per_token:11.1f}"
            f"  {ratio:>11}"
        )
    return "\n".join(lines)
