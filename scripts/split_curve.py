#!/usr/bin/env python3
"""Tokens per second against the VRAM budget of models that GPU and CPU share, without a GPU.

    python scripts/split_model.py 7b-f16.gguf                                  # 14 GB
    python scripts/split_curve.py calibrate cpu.json --model 7B-F16 7b-f16.gguf
    python scripts/split_curve.py measure docs/split.csv --cpu cpu.json --model 7B-F16 7b-f16.gguf
    python scripts/split_curve.py predict docs/split.csv --cpu cpu.json --model 7B-F16 7b-f16.gguf
    python scripts/split_curve.py plot docs/split.csv docs/split.png

measure runs the engine with a device that takes the modelled time of a card's kernels and computes
nothing (tests/device/timed; test builds have it). The CPU's half, the flags and the threads are
real. The device keeps a core busy, so it uses one core less than the machine has. predict is the
model of speed of `powerinfer place`, with the costs of this CPU that calibrate found on the CPU
alone.

ideal: the neurons that fire are those that are asked for. realistic: the predictor asks for twice
as many neurons as fire, and finds 92 % of those that fire (ProSparse's table 2).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from powerinfer_cpp.cli.doctor import read_bandwidth
from powerinfer_cpp.convert.statistics.rates import read_rates
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.core.plan import memory_plan
from powerinfer_cpp.core.session import OpTime, Session
from powerinfer_cpp.placement.machine import (
    ATTENTION_KERNELS,
    CARDS,
    FFN_KERNELS,
    GB,
    HEAD_KERNELS,
    PREDICTOR_KERNELS,
    Machine,
)
from powerinfer_cpp.plot import style

LOOKS = {"predicted": "-", "measured": "x", "bound": "--", "dense split": ":"}
BUDGETS = (30, 45, 60, 75, 90, 100)  # % of what the whole model takes on the GPU
CONTEXT = 512
LINK = 25 * GB  # PCIe 4.0 x16, one way
DENSE_KERNELS = ATTENTION_KERNELS + 4  # of a layer with matrices


@dataclass(frozen=True)
class Mode:
    """proposed: neurons that are asked for, per firing. fired: share of these that fire."""

    proposed: float
    fired: float


MODES = {"ideal": Mode(1.0, 1.0), "realistic": Mode(2.0, 0.46)}


@dataclass(frozen=True)
class Shape:
    """A model: bytes that a token reads, and how often its neurons fire (float64 [L, n])."""

    attention: float  # of a layer, with its norms
    predictor: float
    neuron: float
    head: float
    position: float  # keys and values of a position, of a layer
    rates: np.ndarray

    @classmethod
    def read(cls, path: str) -> Shape:
        with Gguf(path) as gguf:
            found = read_rates(gguf)
            d = gguf.value("llama.embedding_length")
        rates = np.array([found[i] for i in sorted(found)], np.float64)
        n_layer, n = rates.shape
        ram = memory_plan(path, {}, {"n_ctx": CONTEXT, "n_logits": 1})["ram"]
        return cls(
            (ram["attention"] + ram["norms"]) / n_layer,
            (ram["predictor"] - rates.size * 4) / n_layer,
            ram["ffn"] / rates.size,
            ram["head"],
            2 * d * 2,
            rates,
        )


def device(card: str, mode: Mode, rates: Path) -> str:
    """The id of a device that takes the time of a card."""
    c, m = CARDS[card], Machine(vram=CARDS[card].bandwidth)
    level = 6.0 if mode.fired == 1 else NormalDist().inv_cdf(mode.fired)
    keys = {
        "memory": c.memory,
        "bandwidth": m.gpu,
        "link": LINK,
        "node": m.node,
        "launch": m.launch,
        "flag": m.sync / 4,  # the CPU's flag and the GPU's, each seen by the other side
        "proposed": mode.proposed,
        "fired": mode.fired,
        "level": level,
        "rates": rates,
    }
    return "timed:" + ",".join(f"{key}={value}" for key, value in keys.items())


def everything(path: str, rates: Path) -> int:
    """Bytes of the whole model and its session on a GPU."""
    large = device("5090", MODES["ideal"], rates).replace("memory=", "memory=9")
    fields = {"device": large}
    session = {"n_ctx": CONTEXT, "n_logits": 1}
    return sum(memory_plan(path, fields, session)["gpu"].values()) + (4 << 20)


def machine(card: str, cpu: dict[str, float]) -> Machine:
    return Machine(
        vram=CARDS[card].bandwidth,
        ram=cpu["dense"],
        scattered=cpu["neurons"] / cpu["dense"],
        dispatch=cpu["dispatch"],
    )


def split_seconds(
    m: Machine, shape: Shape, plan: dict[str, Any], mode: Mode, depth: float
) -> float:
    """Seconds of a token, with what the engine's plan puts on the GPU."""
    n_layer, n = shape.rates.shape
    on_gpu = round(plan["gpu"].get("attention", 0) / shape.attention)
    first = n_layer - on_gpu
    tables = on_gpu * n * 5  # of slots; the plan counts them with the neurons
    n_hot = max(0, round((plan["gpu"].get("ffn", 0) - tables) / shape.neuron)) if on_gpu else 0
    hot = np.zeros(shape.rates.size, bool)
    if n_hot:
        order = np.argsort(-shape.rates[first:].reshape(-1), kind="stable")[:n_hot]
        hot[first * n + order] = True
    hot = hot.reshape(shape.rates.shape)
    proposed = np.minimum(1.0, mode.proposed * shape.rates)
    reads = shape.neuron * proposed * (1 + 2 * mode.fired) / 3
    fixed = shape.attention + shape.predictor + depth * shape.position
    seconds, kernels = 0.0, 0
    for i in range(n_layer):
        gpu, ram = reads[i][hot[i]].sum(), reads[i][~hot[i]].sum()
        seconds += sum(m.ffn_seconds(gpu, ram))
        if i < first:
            seconds += fixed / m.ram
            continue
        seconds += fixed / m.gpu
        if ram > 0 and not gpu:  # the halves still meet
            seconds += m.dispatch + m.sync
        kernels += ATTENTION_KERNELS + PREDICTOR_KERNELS + FFN_KERNELS + (ram > 0)
    head = bool(plan["gpu"].get("head"))
    seconds += shape.head / (m.gpu if head else m.ram)
    kernels += HEAD_KERNELS if head else 0
    return seconds + kernels * m.node + (m.launch if kernels else 0)


def dense_seconds(m: Machine, shape: Shape, budget: float, depth: float) -> float:
    """Seconds of a token of the dense model, whole layers on the GPU as far as the budget goes."""
    n_layer, n = shape.rates.shape
    layer = shape.attention + n * shape.neuron
    left = budget - shape.head
    on_gpu = int(min(n_layer, max(0, left // (layer + CONTEXT * shape.position))))
    layer += depth * shape.position
    gpu = on_gpu * layer + (shape.head if left >= 0 else 0)
    ram = (n_layer - on_gpu) * layer + (0 if left >= 0 else shape.head)
    return m.dense_seconds(gpu, ram, on_gpu * DENSE_KERNELS)


def calibrate(args: argparse.Namespace) -> None:
    """Costs of the CPU, from a run without a device: as fast as each operator was."""
    found = json.loads(args.out.read_text()) if args.out.exists() else {}
    for name, path in args.model:
        model = Model(path, n_threads=args.threads)
        session = {"n_ctx": CONTEXT, "n_logits": 1, "n_threads": args.threads}
        speeds, times = decode(model, session, args.tokens, args.rounds)
        ops = {(op.part, op.op): op for op in times}
        products = [op for (_, op_name), op in ops.items() if op_name == "matmul"]
        dense = sum(op.n_bytes for op in products) / sum(op.seconds for op in products)
        neurons, merge = ops["ffn", "partial_ffn"], ops["ffn", "merge"]
        around = [merge, *(ops[key] for key in [("ffn", "quantise")] if key in ops)]
        found[name] = {
            "threads": args.threads,
            "read": max(read_bandwidth(1 << 30, args.threads) for _ in range(5)),
            "dense": dense,
            "neurons": neurons.n_bytes / neurons.seconds,
            "dispatch": sum(op.seconds for op in around) / merge.calls,
            "tokens_per_second": max(speeds),
        }
        print(name, found[name], flush=True)
        model.close()
        args.out.write_text(json.dumps(found, indent=1) + "\n")


def points(args: argparse.Namespace):
    """Model, its shape, card, mode, share of the budget, and the device's id."""
    with tempfile.TemporaryDirectory() as folder:
        for name, path in args.model:
            shape = Shape.read(path)
            rates = Path(folder) / f"{name}.f32"
            shape.rates.astype(np.float32).tofile(rates)
            whole = everything(path, rates)
            for card in args.card:
                for share in args.budget:
                    budget = whole * share // 100
                    if budget > CARDS[card].memory - (512 << 20):
                        continue  # the driver's own memory
                    for mode in args.mode:
                        yield name, path, shape, card, mode, share, budget, rates


FIELDS = ("model", "card", "mode", "budget", "vram_gib", "cpu", "kind", "tokens_per_s")


def append(out: Path, *row: Any) -> None:
    new = not out.exists()
    with out.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(FIELDS)
        writer.writerow(row)
    print(*row, flush=True)


def measure(args: argparse.Namespace) -> None:
    for name, path, _, card, mode, share, budget, rates in points(args):
        session = {"n_ctx": CONTEXT, "n_logits": 1, "n_threads": args.threads}
        fields = {"device": device(card, MODES[mode], rates), "vram_budget": budget}
        model = Model(path, session=session, n_threads=os.cpu_count(), **fields)
        if MODES[mode].proposed != 1:
            session["sparse_threshold"] = -0.64  # layers on the CPU ask for twice as many, too
        speeds, _ = decode(model, session, args.tokens, args.rounds)
        model.close()
        cpu = f"here, {args.threads} thread(s)"
        append(args.out, name, card, mode, share, f"{budget / 2**30:.2f}", cpu, "measured",
               f"{max(speeds):.2f}")  # fmt: skip


def decode(
    model: Model, fields: dict[str, Any], tokens: int, rounds: int
) -> tuple[list[float], list[OpTime]]:
    """Tokens per second by the median token of each round, after one that does not count; then the
    times of the operators in another round.

    The device's thread gets the last core for itself: a thread of the CPU's half beside it would
    halve both. Real-time priority, where it may be had, keeps other programs away.
    """
    session = Session(model, interruptible=False, n_threads_batch=fields["n_threads"], **fields)
    cores = sorted(os.sched_getaffinity(0))
    main = threading.get_native_id()
    try:
        if len(cores) > 1:
            for thread in os.listdir("/proc/self/task"):
                mine = int(thread) == main
                os.sched_setaffinity(int(thread), cores[:-1] if mine else cores[-1:])
                with suppress(PermissionError):
                    os.sched_setscheduler(int(thread), os.SCHED_RR, os.sched_param(1))
        generated = np.ones(1, dtype=bool)
        ids = np.random.default_rng(1).integers(3, model.n_vocab, tokens, dtype=np.int32)
        speeds = []
        for r in range(rounds + 2):
            session.truncate(0)
            session.profile(r > rounds)
            times = []
            for i in range(tokens):
                start = time.perf_counter()
                session.eval(ids[i : i + 1], generated=generated)
                session.logits_pointer(0)
                times.append(time.perf_counter() - start)
            speeds.append(1 / statistics.median(times))
        return speeds[1:-1], session.op_times()
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, cores)
        session.close()


def predict(args: argparse.Namespace) -> None:
    measured = json.loads(args.cpu.read_text())
    for name, path, shape, card, mode, share, budget, rates in points(args):
        fields = {"device": device(card, MODES[mode], rates), "vram_budget": budget}
        plan = memory_plan(path, fields, {"n_ctx": CONTEXT, "n_logits": 1})
        # What a format costs with one model it costs with another.
        same = [key for key in measured if key.split("-")[1] == name.split("-")[1]]
        here = measured.get(name) or measured[same[0]]
        for label, cpu in ((f"here, {here['threads']} thread(s)", here),
                           ("desktop, 60 GB/s", DESKTOP)):  # fmt: skip
            m = machine(card, cpu)
            bound = Machine.bound(vram=m.vram, ram=cpu.get("read", 60 * GB))
            found = {
                "predicted": split_seconds(m, shape, plan, MODES[mode], args.depth),
                "bound": split_seconds(bound, shape, plan, MODES[mode], args.depth),
                "dense split": dense_seconds(m, shape, budget, args.depth),
            }
            for kind, seconds in found.items():
                append(args.out, name, card, mode, share, f"{budget / 2**30:.2f}", label, kind,
                       f"{1 / seconds:.2f}")  # fmt: skip


# A desktop of 8 cores: RAM limits its products, and single neurons reach 0.65 of it.
DESKTOP = {"dense": 54 * GB, "neurons": 39 * GB, "dispatch": 10e-6, "read": 60 * GB}


def pair(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if not os.path.exists(path):
        raise argparse.ArgumentTypeError(f"{text}: give NAME=FILE")
    return name, path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("calibrate", "measure", "predict", "plot"))
    parser.add_argument("out", type=Path)
    parser.add_argument("png", type=Path, nargs="?")
    parser.add_argument("--model", type=pair, action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--card", action="append", choices=CARDS)
    parser.add_argument("--mode", action="append", choices=MODES)
    parser.add_argument("--budget", type=int, action="append", metavar="%")
    parser.add_argument("--cpu", type=Path, help="what calibrate wrote")
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--depth", type=float, default=16.0, help="positions in the cache")
    args = parser.parse_args()
    args.card = args.card or list(CARDS)
    args.mode = args.mode or list(MODES)
    args.budget = args.budget or list(BUDGETS)
    {"calibrate": calibrate, "measure": measure, "predict": predict, "plot": plot}[args.what](args)


COLOURS = {"2080ti": style.GREY, "3090": style.RAM, "4090": style.GPU, "5090": style.BLUE}


def plot(args: argparse.Namespace) -> None:
    """A row of plots for each model: with the CPU that was measured, and with a desktop's."""
    with args.out.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["mode"] == "ideal"]
    models = sorted({row["model"] for row in rows}, key=lambda name: (len(name), name))
    cpus = sorted({row["cpu"] for row in rows}, reverse=True)
    figure = style.figure(4.2 * len(cpus), 2.3 * len(models))
    grid = figure.subplots(len(models), len(cpus), squeeze=False)
    for model, line in zip(models, grid, strict=True):
        for cpu, axes in zip(cpus, line, strict=True):
            own = [row for row in rows if row["model"] == model and row["cpu"] == cpu]
            for card, colour in COLOURS.items():
                for kind, look in LOOKS.items():
                    points = [
                        (float(row["vram_gib"]), float(row["tokens_per_s"]))
                        for row in own
                        if row["card"] == card and row["kind"] == kind
                    ]
                    if points and (card == "4090" or kind in ("predicted", "measured")):
                        x, y = zip(*sorted(points), strict=True)
                        label = kind if card == "4090" else None
                        axes.plot(x, y, look, color=colour, linewidth=1, markersize=6, label=label)
                    if points and kind == "predicted":
                        axes.annotate(card, (x[-1], y[-1]), fontsize=7, color=colour)
            axes.set_yscale("log")
            style.plain(axes, "VRAM, GiB", "tokens/s", f"{model}, CPU: {cpu}")
    grid[0][0].legend(fontsize=7, frameon=False)
    style.save(figure, args.png, [args.out])


if __name__ == "__main__":
    main()
