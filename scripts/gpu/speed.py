"""The parts that measure speed. Rates are medians, in tokens per second."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from programs import MIB, Runner
from results import Results

BYTES = {"F16": 2, "Q8_0": 34 / 32, "Q4_0": 18 / 32}  # of a weight


@dataclass(frozen=True)
class Shape:
    """A Llama; density: mean share of neurons that fire."""

    name: str
    density: float
    embd: int = 4096
    ff: int = 11008
    layers: int = 32
    heads: int = 32
    vocab: int = 32000
    type: str = "F16"

    def options(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if k != "name"}

    @property
    def n_bytes(self) -> int:
        """About the size of its file."""
        weights = self.layers * (4 * self.embd**2 + 3 * self.embd * self.ff)
        weights += 2 * self.vocab * self.embd
        each = BYTES[self.type]
        signs = self.layers * self.embd * self.ff // 8
        return int(weights * each + signs) + 16 * MIB


TOY = {"embd": 256, "ff": 768, "layers": 2, "heads": 4, "vocab": 320}
CONTEXT = 512


def shape(run: Runner, name: str, density: float, **sizes: Any) -> Shape:
    """A shape, or in its place a toy."""
    return Shape(name, density, **(TOY if run.toy else sizes))


def written(run: Runner, of: Shape, predictor: str = "sharp", dense: int = 0) -> Path:
    """The model's file."""
    label = f"{of.name}-{of.type}-{of.density}-{'dense' if dense else predictor}"
    options = {**of.options(), "predictor": predictor, "dense": dense}
    return run.model(label, of.n_bytes, **options)


def lengths(run: Runner) -> dict[str, object]:
    return {"gen": 2, "repeat": 1} if run.toy else {"gen": 64, "repeat": 3}


def everything(run: Runner, model: Path, **options: object) -> int:
    """Bytes on the device with the whole model there."""
    return int(run.speed(model, vram=1 << 20, plan=1, ctx=CONTEXT, **options)["gpu_bytes"])


def whole_layers(run: Runner, model: Path, layers: int, budget: int) -> int:
    """How many of the last layers fit with all of their neurons; at least one."""
    low, high = 1, layers
    while low < high:
        middle = (low + high + 1) // 2
        plan = run.speed(model, vram=1 << 20, layers=middle, plan=1, ctx=CONTEXT)
        low, high = (middle, high) if plan["gpu_bytes"] <= budget else (low, middle - 1)
    return low


def report(run: Runner) -> dict[str, Any]:
    """What the device and the RAM can do, measured once."""
    if not run.machine:
        n_bytes = 1 << (22 if run.toy else 28)
        said = run.run("gpu_speed", "--device", run.device, "--report", 1, "--bytes", n_bytes)
        run.machine = json.loads(said)
    return run.machine


def card(run: Runner, to: Results) -> None:
    """The figures that bounds are made of."""
    to.add("card", "measured", None, **report(run))


def activations(share: float) -> float:
    """The share of activations that the hottest neurons make, of this share of all: gpu_model's
    law."""
    falling = 6.2
    return float(-math.expm1(-falling * share) / -math.expm1(-falling))


def bound(
    run: Runner, of: Shape, found: dict[str, Any], hot: bool, sparse: str, apart: bool
) -> float:
    """Seconds that a token takes at least: what each side reads at its measured bandwidth, the
    FFN's halves at the same time, and a flag and its answer per shared layer. hot: the device has
    the hottest neurons; apart: layers are not shared."""
    machine = report(run)
    gpu, ram = machine["copy_gb_s"] * 1e9, machine["ram_gb_s"] * 1e9
    row = of.embd * BYTES[of.type] * of.layers * of.ff
    share = found["device_neurons"] / found["neurons"]
    served = activations(share) if hot else share  # of what fires
    # Gates, then up and down: how much of them is read, and the device's part of that.
    gates = {"auto": (found["proposed"], served)}.get(sparse, (1, share))
    others = (1, share) if sparse == "off" else (found["fired"], served)
    parts = [(row * gates[0], gates[1]), (2 * row * others[0], others[1])]
    here = sum(n * part for n, part in parts)
    halves = (here / gpu, (sum(n for n, _ in parts) - here) / ram)
    always = ("attention", "predictor", "norms", "head")
    seconds = sum(found["gpu"].get(part, 0) for part in always) / gpu
    seconds += sum(found["ram"].get(part, 0) for part in always) / ram
    if apart or share == 1:
        return float(seconds + sum(halves))
    return float(seconds + max(halves) + machine["flag_us"] * 1e-6 * of.layers)


def measured(
    run: Runner,
    to: Results,
    part: str,
    what: str,
    of: Shape,
    model: Path,
    budget: int,
    hot: bool = True,
    **options: object,
) -> dict[str, Any]:
    """A row of a table. The driver's figure of what the process takes must be within the budget."""
    chosen = {"ctx": CONTEXT, **lengths(run), **options}
    found = run.speed(model, vram=budget / MIB, **chosen)
    row = {
        "tokens_per_s": round(found["gen_per_s"], 2),
        "ms": round(found["step_ms"], 3),
        "neurons_on_device": round(found["device_neurons"] / found["neurons"], 4),
        "proposed": found["proposed"],
        "fired": found["fired"],
        "bytes_over_pcie": found["transferred_per_token"],
        "budget_mib": round(budget / MIB, 1),
        "planned_mib": round(found["gpu_bytes"] / MIB, 1),
    }
    if chosen.get("batch", 1) == 1:
        sparse = str(chosen.get("sparse", "auto"))
        least = bound(run, of, found, hot, sparse, apart="layers" in chosen)
        row["of_bound"] = float(f"{1e3 * least / found['step_ms']:.3g}")
    ok = found["device_bytes"] <= budget
    if "vram_peak" in found:
        row["driver_mib"] = round(found["vram_peak"] / MIB, 1)
        ok = ok and found["vram_peak"] <= budget
    to.add(part, what, ok, **row)
    return found


def llama_cpp(run: Runner, to: Results, part: str, of: Shape, budget: int) -> None:
    """llama-bench with as many whole layers as fit, of the same shape."""
    if run.llama_bench is None:
        return
    model = written(run, of, dense=1)
    layers = whole_layers(run, model, of.layers, budget)
    arguments = ("-m", model, "-ngl", layers, "-p", 0, "-n", 64, "-r", 3, "-o", "json")
    found = json.loads(run.run(run.llama_bench.resolve(), *arguments))[0]
    rate = round(found["avg_ts"], 2)
    to.add(part, f"llama.cpp, {layers} layers", None, tokens_per_s=rate)
    model.unlink()


def forget_models(run: Runner) -> None:
    """Removes what the parts wrote, and its folder."""
    for path in run.folder.glob("gpu-*.gguf*"):
        path.unlink()
    with contextlib.suppress(OSError):  # there is none, or something else in it
        run.folder.rmdir()


def hybrid(
    run: Runner, to: Results, part: str, of: Shape, shares: list[int], at: int, keep: bool
) -> None:
    """Speed against the budget, and at one of them beside other ways to use it. keep: the model,
    for other parts."""
    model = written(run, of)
    full = everything(run, model)
    rates: dict[int, dict[str, Any]] = {}
    for percent in shares:
        what = f"{percent}% of {full / MIB:.0f} MiB"
        rates[percent] = measured(run, to, part, what, of, model, full * percent // 100)
    budget = full * at // 100
    layers = whole_layers(run, model, of.layers, budget)
    whole = {"layers": layers}
    name = f"at {at}%: {layers} whole layers"
    dense = measured(run, to, part, f"{name}, dense", of, model, budget, sparse="off", **whole)
    sparse = measured(run, to, part, f"{name}, sparse", of, model, budget, False, **whole)
    none = {"placement": "none"}
    unplaced = measured(run, to, part, f"at {at}%: --disable-gpu-index", of, model, budget, **none)
    # All gates are computed: what predictors save, and what it costs that they ask for too many.
    exact = measured(run, to, part, f"at {at}%: exact mode", of, model, budget, sparse="exact")
    best = rates[at]
    # A placement that knows nothing.
    index = model.with_name(model.name + ".generated.gpuidx")
    share = best["device_neurons"] / best["neurons"]
    sizes = ("--layers", of.layers, "--ff", of.ff)
    run.run("gpu_model", "--index", model, "--share", f"{share:.6f}", *sizes)
    try:
        drawn = measured(run, to, part, f"at {at}%: random neurons", of, model, budget, False)
    finally:
        index.unlink()
    if not keep:
        model.unlink()  # two do not fit everywhere
    plain = written(run, of, "plain")
    name = "predictors as good as trained ones"
    trained = measured(run, to, part, f"at {at}%: {name}", of, plain, budget)
    plain.unlink()
    others = {"dense layers": dense, "sparse layers": sparse, "--disable-gpu-index": unplaced}
    others |= {"exact mode": exact, "random neurons": drawn, name: trained}
    for rival, figures in others.items():
        ratio = best["gen_per_s"] / figures["gen_per_s"]
        to.add(part, f"at {at}%: times {rival}", None, ratio=round(ratio, 2))
    llama_cpp(run, to, part, of, budget)


def speed_7b(run: Runner, to: Results) -> None:
    of = shape(run, "7b", 0.10)
    hybrid(run, to, "speed-7b", of, [60, 100] if run.toy else [30, 45, 60, 75, 90, 100], 60, True)


def speed_13b(run: Runner, to: Results) -> None:
    sizes = {"embd": 5120, "ff": 13824, "layers": 40, "heads": 40}
    forget_models(run)
    hybrid(run, to, "speed-13b", shape(run, "13b", 0.05, **sizes), [55], 55, False)


def mixture(run: Runner, to: Results) -> None:
    """A mixture of 12 of the 48 layers of Qwen3-30B-A3B, with a part of its experts on the device,
    and a prompt."""
    sizes: dict[str, Any] = {"experts": 128, "used": 8, "embd": 2048, "ff": 768, "layers": 12}
    sizes |= {"heads": 32, "kv": 4, "head-dim": 128, "vocab": 32000, "type": "Q4_K"}
    if run.toy:
        sizes |= {"experts": 8, "used": 2, "embd": 256, "ff": 256, "layers": 2}
        sizes |= {"heads": 4, "kv": 2, "head-dim": 64, "vocab": 320}
    weights = sizes["layers"] * sizes["experts"] * 3 * sizes["embd"] * sizes["ff"]
    model = run.model("mixture", int(weights * 0.6) + 256 * MIB, **sizes)
    prompt = 24 if run.toy else 1024
    options = {"ctx": 2 * prompt, "prompt": prompt, **lengths(run)}
    whole = run.speed(model, vram=1 << 20, plan=1, ctx=2 * prompt, prompt=prompt)
    experts = whole["gpu"]["experts"]
    for percent in (50, 100) if run.toy else (25, 50, 75, 100):
        budget = whole["gpu_bytes"] - experts * (100 - percent) // 100
        found = run.speed(model, vram=budget / MIB, **options)
        to.add(
            "mixture",
            f"{percent}% of {experts / MIB:.0f} MiB of experts",
            found["device_bytes"] <= budget,
            tokens_per_s=round(found["gen_per_s"], 2),
            prompt_per_s=round(found["prompt_per_s"], 1),
            pairs_on_device=found["pairs_on_device"],
            bytes_over_pcie=found["transferred_per_token"],
            budget_mib=round(budget / MIB, 1),
        )
    none = run.speed(model, device="cpu", **options)
    to.add("mixture", "the CPU alone", None, tokens_per_s=round(none["gen_per_s"], 2))
    if run.llama_bench is not None:
        for percent in (25, 50, 75):
            layers = round(sizes["layers"] * (100 - percent) / 100)
            line = ("-m", model, "-ngl", 99, "-ncmoe", layers, "-p", 0, "-n", 64, "-r", 3)
            said = json.loads(run.run(run.llama_bench.resolve(), *line, "-o", "json"))[0]
            what = f"llama.cpp, -ncmoe {layers}"
            to.add("mixture", what, None, tokens_per_s=round(said["avg_ts"], 2))
    model.unlink()


def vram(run: Runner, to: Results) -> None:
    """Everything on the device: dense, and sparse, in the formats that matter."""
    for kind in ("F16",) if run.toy else ("F16", "Q8_0", "Q4_0"):
        of = shape(run, "7b", 0.10, type=kind)
        model = written(run, of)
        budget = everything(run, model)
        dense = measured(run, to, "vram", f"{kind}, dense", of, model, budget, sparse="off")
        sparse = measured(run, to, "vram", f"{kind}, sparse", of, model, budget)
        ratio = sparse["gen_per_s"] / dense["gen_per_s"]
        to.add("vram", f"{kind}: sparse of dense", None, ratio=round(ratio, 2))
        llama_cpp(run, to, "vram", of, 1 << 60)
        if kind != "F16":
            model.unlink()


def batches(run: Runner, to: Results) -> None:
    """Sequences that are computed together, at 60% of what the whole model takes."""
    of = shape(run, "7b", 0.10)
    model = written(run, of)
    sizes = (1, 2) if run.toy else (1, 4, 8, 16, 32)
    for n in sizes:
        budget = everything(run, model, batch=n) * 60 // 100
        measured(run, to, "batches", f"{n} sequences", of, model, budget, batch=n)


def prompts(run: Runner, to: Results) -> None:
    """A long prompt, and text after it."""
    of = shape(run, "7b", 0.10)
    model = written(run, of)
    prompt, gen = (8, 2) if run.toy else (1500, 256)
    options = {"ctx": prompt + gen, "prompt": prompt, "gen": gen, "repeat": 1}
    sizes = {"ctx": prompt + gen, "prompt": prompt}
    full = int(run.speed(model, vram=1 << 20, plan=1, **sizes)["gpu_bytes"])
    for percent in (60, 100):
        budget = full * percent // 100
        found = measured(run, to, "prompts", f"{percent}%, text", of, model, budget, **options)
        rate = round(found["prompt_per_s"], 1)
        to.add("prompts", f"{percent}%, prompt of {prompt}", None, tokens_per_s=rate)
