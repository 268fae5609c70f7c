"""powerinfer place: decides which neurons live on the GPU, in RAM and in storage."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

from .._native import lib
from ..convert import to_stderr
from ..core import tiers
from ..core.gguf import Gguf
from ..placement import (
    CARDS,
    Machine,
    Placement,
    embed_placement,
    least_memory,
    place,
    read_model,
    sidecar_path,
    write_gpuidx,
    write_sidecar,
)
from ..placement.gpu_index import path_beside
from ..placement.machine import GB
from ..placement.place import COMMUNICATION, GROUP
from .common import gibibytes, number_of, size_text, whole
from .doctor import read_bandwidth

CARD = "4090"  # whose bandwidth counts unless another is given
GPUIDX_GROUP = 256  # PowerInfer's kernel for one token computes neurons in groups of 256


def positive(text: str) -> float:
    """Parser of a finite number above 0."""
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


positive.__name__ = "number"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    own = Machine()
    parser.add_argument("model", metavar="MODEL", help="GGUF with statistics (ffn_rate)")
    parser.add_argument(
        "--vram-budget", type=gibibytes, metavar="GiB", help="limit of GPU memory (default: 0)"
    )
    parser.add_argument(
        "--ram-budget", type=gibibytes, metavar="GiB", help="limit of RAM (default: none)"
    )
    parser.add_argument(
        "--target-speed",
        type=positive,
        metavar="T",
        help="find the least memory with a prediction of T tokens/s: least RAM if it has a budget, "
        "else least VRAM; the budgets remain upper limits",
    )
    parser.add_argument(
        "--format",
        choices=("embed", "sidecar", "gpuidx"),
        default="embed",
        help="embed: a copy of the model with the placement in it; sidecar: a small file beside "
        "the model; gpuidx: PowerInfer's (default: embed)",
    )
    parser.add_argument(
        "--out", metavar="F", help="file to write (default: none; beside MODEL if not embed)"
    )
    parser.add_argument(
        "--device", metavar="NAME", help="name to store (default: cuda0, or cpu without VRAM)"
    )
    parser.add_argument(
        "-c", "--ctx-size", type=whole(0), default=0, metavar="N", help="0: the model's"
    )
    parser.add_argument(
        "-ub", "--ubatch-size", type=whole(1), default=512, metavar="N", help="tokens at once"
    )
    parser.add_argument(
        "--group", type=whole(1), metavar="N", help=f"neurons placed together (default: {GROUP})"
    )
    parser.add_argument("--card", choices=CARDS, help=f"whose memory's bandwidth (default: {CARD})")
    parser.add_argument(
        "--vram-bandwidth", type=positive, metavar="GB/s", help="default: the card's"
    )
    parser.add_argument(
        "--ram-bandwidth", type=positive, metavar="GB/s", help="default: measured here"
    )
    parser.add_argument(
        "--storage-bandwidth",
        type=positive,
        metavar="GB/s",
        default=own.storage / GB,
        help=f"of random reads of neurons (default: {own.storage / GB:g})",
    )
    parser.add_argument(
        "--sync",
        type=number_of("microseconds"),
        metavar="US",
        default=own.sync * 1e6,
        help=f"microseconds that a layer split between CPU and GPU waits "
        f"(default: {own.sync * 1e6:g})",
    )
    parser.add_argument(
        "--communication",
        choices=COMMUNICATION,
        default=COMMUNICATION[0],
        help="how to count the neurons that make splitting a layer worthwhile",
    )
    parser.add_argument(
        "--overshoot",
        type=positive,
        metavar="X",
        help="neurons that predictors propose per firing (default: the file's, else 2)",
    )
    parser.add_argument("--json", action="store_true", help="figures as JSON")


def run(args: argparse.Namespace) -> None:
    if args.vram_budget is None and args.ram_budget is None:
        raise ValueError("give --vram-budget, --ram-budget or both")
    placement = _placement(args)
    print(json.dumps(figures(placement), indent=2) if args.json else text(placement))
    if placement.vram and not (args.card or args.vram_bandwidth or lib.pi_n_devices()):
        speed = f"a {CARD.upper()} with {placement.machine.vram / GB:,.0f} GB/s"
        to_stderr(
            f"note: there is no GPU here: what is predicted holds for {speed} "
            "(--card or --vram-bandwidth choose another)"
        )
    out = _write(args, placement)
    if not args.json:
        print(f"\nwritten to {out}" if out else "\nnothing written: --out F embeds it")


def _placement(args: argparse.Namespace) -> Placement:
    vram, ram = (
        None if b is None else int(b * (1 << 30)) for b in (args.vram_budget, args.ram_budget)
    )
    with Gguf(args.model) as gguf:
        model = read_model(gguf, args.ctx_size, args.ubatch_size, args.overshoot)
    machine = Machine(
        vram=args.vram_bandwidth * GB
        if args.vram_bandwidth
        else CARDS[args.card or CARD].bandwidth,
        ram=args.ram_bandwidth * GB if args.ram_bandwidth else _measured(),
        storage=args.storage_bandwidth * GB,
        sync=args.sync * 1e-6,
    )
    options: dict[str, Any] = {
        "device": args.device or ("cuda0" if vram else "cpu"),
        "group": args.group or (GPUIDX_GROUP if args.format == "gpuidx" else GROUP),
        "communication": args.communication,
    }
    if args.target_speed is None:
        return place(model, machine, vram or 0, ram, **options)
    return least_memory(model, machine, vram or 0, ram, args.target_speed, **options)


def _measured() -> float:
    """Bytes per second of a plain read with the usual number of threads."""
    free = lib.pi_available_memory()
    return read_bandwidth(max(1 << 24, min(1 << 30, free // 2)), lib.pi_default_threads())


def _write(args: argparse.Namespace, placement: Placement) -> str | None:
    if args.format == "gpuidx":
        out = Path(args.out) if args.out else path_beside(args.model)
        write_gpuidx(out, placement)
    elif args.format == "sidecar":
        out = Path(args.out) if args.out else sidecar_path(args.model)
        write_sidecar(out, placement)
    elif args.out:
        out = Path(args.out)
        with Gguf(args.model) as gguf:
            embed_placement(gguf, out, placement)
    else:
        return None
    return str(out)


def figures(placement: Placement) -> dict[str, Any]:
    """Figures of a placement: bytes, shares of firings, seconds per token."""
    solution, parts = placement.solution, placement.parts
    layers = []
    for i, layer in enumerate(placement.model.layers):
        counts, fired = placement.neurons(i), placement.firings(i)
        total = max(sum(fired), 1e-300)
        layers.append(
            {
                "layer": layer.statistics.layer,
                "neurons": tiers.by_name(counts),
                "firings": sum(fired),
                "share_of_firings": tiers.by_name([f / total for f in fired]),
                "least_on_gpu": int(placement.least[i]),
            }
        )
    return {
        "vram_budget": placement.vram,
        "ram_budget": placement.ram,
        "device": placement.device,
        "layers": layers,
        "share_of_firings": tiers.by_name(placement.shares()),
        "bytes": tiers.by_name(
            [
                {**parts.bytes_by_kind(tier), "neurons": n}
                for tier, n in enumerate(placement.neuron_bytes())
            ]
        ),
        "bandwidth": {
            "gpu": placement.machine.vram,
            "ram": placement.machine.ram,
            "ram_neurons": placement.machine.neurons_in_ram,
            "storage": placement.machine.storage,
        },
        "solver": {
            "value": solution.value,
            "bound": solution.bound,
            "gap": solution.gap,
            "seconds": solution.seconds,
        },
        "seconds_per_token": placement.prediction.seconds,
        "tokens_per_second": placement.prediction.tokens_per_second,
    }


def text(placement: Placement) -> str:
    """The figures as tables."""
    found = figures(placement)
    names = tiers.NAMES[::-1]
    lines = [
        "layer |   neurons: GPU       RAM   storage | % of firings: GPU    RAM storage |"
        " fire/token | split from"
    ]
    for row in found["layers"]:
        counts = "".join(f"{row['neurons'][t]:10}" for t in names)
        shares = "".join(f"{100 * row['share_of_firings'][t]:7.1f}" for t in names)
        lines.append(
            f"{row['layer']:5} | {counts:>34} | {shares:>27} | {row['firings']:10.1f} |"
            f" {row['least_on_gpu']:10}"
        )
    total = found["share_of_firings"]
    shares = "".join(f"{100 * total[t]:7.1f}" for t in names)
    fired = sum(row["firings"] for row in found["layers"])
    lines.append(f"  all | {'':>34} | {shares:>27} | {fired:10.1f} |")
    lines.append("")
    for tier in names:
        sizes = {kind: n for kind, n in found["bytes"][tier].items() if n}
        listed = ", ".join(f"{kind} {size_text(n)}" for kind, n in sizes.items())
        budget = found.get({"gpu": "vram_budget", "ram": "ram_budget"}.get(tier, ""))
        of = f" of {size_text(budget)}" if budget is not None else ""
        lines.append(f"{tier:8} {size_text(sum(sizes.values()))}{of}: {listed or 'nothing'}")
    solver = found["solver"]
    below = 100 * max(0.0, 1 - solver["value"] / max(solver["bound"], 1e-300))
    speeds = found["bandwidth"]
    spent = ", ".join(
        f"{name} {1e3 * s:.2f}" for name, s in found["seconds_per_token"].items() if s
    )
    lines += [
        "",
        f"solved in {solver['seconds']:.2f} s, {below:.3f} % below the relaxation",
        f"bandwidth (GB/s): GPU {speeds['gpu'] / GB:.0f}, RAM {speeds['ram'] / GB:.1f} "
        f"({speeds['ram_neurons'] / GB:.1f} neuron by neuron), storage "
        f"{speeds['storage'] / GB:g}",
        f"predicted: {found['tokens_per_second']:.2f} tokens/s (ms: {spent})",
    ]
    return "\n".join(lines)
