"""`Llama` on the device "simt": the GPU's kernels, run by the CPU.

test_device.py runs these tests, because only a test build has this device. A row takes 0.1 to 0.2 s
on it, so prompts are short.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import golden, quiet
from powerinfer_cpp.cli.doctor import device_report, print_devices
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.placement.solve import Layer, solve
from powerinfer_cpp.placement.statistics import read_statistics
from powerinfer_cpp.plot import plot
from test_golden import F32, GOLDEN, ROUNDING, error, logits
from test_gpu_index import placement

from powerinfer_cpp import DeviceError, Llama, OutOfMemoryError, main_path

MIB = 1 / 1024  # in GiB
PROMPT = "Once upon a time"
# MiB: neurons of the last layer; all layers and the head, with few neurons; everything.
LITTLE, PART, ALL = 1, 2.5, 64


def opened(path: Path, budget: float | None = None, **options: Any) -> Llama:
    """On the CPU, or with a budget (MiB) on the device."""
    device = {} if budget is None else {"device": "simt", "vram_budget": budget * MIB}
    # Few rows at a time: the scratch memory of more would take most of these budgets.
    options = {"n_ctx": 64, "n_ubatch": 8, "n_threads": 2, "seed": 1, "verbose": False, **options}
    return Llama(path, **options, **device)


def last_logits(llm: Llama, ids: list[int], generated: int = 2) -> np.ndarray:
    """Logits after ids, of which the last ones were generated."""
    llm.reset()
    llm.eval(ids[:-generated])
    llm.eval(ids[-generated:], generated=True)
    return llm.scores[llm.n_tokens - 1].copy()


def written(llm: Llama, n: int, prompt: str = PROMPT) -> str:
    return llm(prompt, max_tokens=n, temperature=0)["choices"][0]["text"]


@pytest.mark.parametrize("budget", [LITTLE, 1.5, 2, PART, 3, ALL])
def test_text_and_logits_are_those_of_the_cpu(model_path: Path, budget: float) -> None:
    with opened(model_path) as cpu, opened(model_path, budget) as device:
        plan = device.plan()
        gpu = sum(plan["gpu"].values())
        assert 0 < gpu <= plan["vram_budget"] == budget * (1 << 20)
        assert plan["total"] == gpu + sum(plan["ram"].values())
        assert cpu.plan()["gpu"] == {} and cpu.plan()["vram_budget"] == 0
        assert gpu >= 0.95 * budget * (1 << 20) or budget == ALL
        if budget in (LITTLE, PART, ALL):
            assert ("head" in plan["gpu"]) == (budget != LITTLE)
        assert plan["ram"].get("ffn", 0) + plan["gpu"]["ffn"] >= cpu.plan()["ram"]["ffn"]
        assert ("ffn" in plan["ram"]) == (budget != ALL)
        ids = device.tokenize(PROMPT.encode())
        got, want = last_logits(device, ids), last_logits(cpu, ids)
        assert error(got, want) <= 2e-2 and got.argmax() == want.argmax()
        text = written(device, 16)
        assert text == written(cpu, 16)
        stats = device.stats()
        assert stats["vram_peak"] == gpu
        tiers, neurons = stats["tiers"], cpu.stats()["tiers"]["ram"]["neurons"]
        assert tiers["gpu"]["bytes"] == plan["gpu"]["ffn"]
        assert tiers["gpu"]["neurons"] + tiers["ram"]["neurons"] == neurons
        assert (tiers["gpu"]["neurons"] == neurons) == (budget == ALL)
        read = [sum(llm.stats()["bytes_per_token"].values()) for llm in (device, cpu)]
        assert tiers["gpu"]["reads"] + tiers["ram"]["reads"] == read[0]
        assert read[0] == pytest.approx(read[1], rel=0.01)
        assert (tiers["ram"]["reads"] == 0) == (tiers["ram"]["hits"] == 0) == (budget == ALL)
        assert tiers["gpu"]["hits"] > 0
        assert min(tiers["gpu"]["stall_s"], tiers["ram"]["stall_s"]) >= 0
        of_cpu = cpu.stats()["tiers"]
        assert of_cpu["ram"]["hits"] > 0 == of_cpu["gpu"]["hits"] == of_cpu["gpu"]["reads"]
        assert stats["pcie_bytes"] > 0 == cpu.stats()["pcie_bytes"]
        for share in ("share_predicted", "share_computed", "share_fired"):
            assert stats[share] == pytest.approx(cpu.stats()[share], abs=1e-3)


@pytest.mark.parametrize("budget", [LITTLE, PART])
def test_bits_depend_on_nothing_else(model_path: Path, budget: float) -> None:
    """Neither on threads, nor on calls, nor on what was computed before."""
    with opened(model_path, budget, n_threads=1) as one:
        ids = one.tokenize(PROMPT.encode())
        first = last_logits(one, ids)
        assert np.array_equal(last_logits(one, ids), first)
        one.reset()
        for i, token in enumerate(ids):
            one.eval([token], generated=i >= len(ids) - 2)
        assert np.array_equal(one.scores[len(ids) - 1], first)
    with opened(model_path, budget) as two:
        two.eval(ids[::-1])
        assert np.array_equal(last_logits(two, ids), first)


def test_prompts_stream(model_path: Path) -> None:
    """The neurons of RAM go to the device for prompts alone, and only if they may. Then what was
    generated is no part of a later prompt."""
    with (
        opened(model_path, PART, sparse="exact") as llm,
        opened(model_path, PART, sparse="exact", op_offload=False) as plain,
    ):
        assert "exchange" in llm.plan()["gpu"] and "exchange" not in plain.plan()["gpu"]
        text = {}
        for name, which in (("streams", llm), ("plain", plain)):
            text[name] = written(which, 6)
            again = which(PROMPT + text[name] + ".", max_tokens=1, temperature=0)
            reused = again["usage"]["prompt_tokens"] - which.stats()["n_prompt"]
            of_prompt = len(which.tokenize(PROMPT.encode()))
            assert (reused == of_prompt) if name == "streams" else (reused > of_prompt)
        assert text["streams"] == text["plain"]


@pytest.mark.parametrize("budget", [LITTLE, PART])
def test_three_tiers(model_path: Path, tmp_path: Path, budget: float) -> None:
    """What fits neither the device nor a budget of RAM stays on the disk: the same neurons are on
    the device, and every bit is the same."""
    path = Path(shutil.copy(model_path, tmp_path / "m.gguf"))
    with opened(path, budget) as whole:
        ids = whole.tokenize(PROMPT.encode())
        want, text = last_logits(whole, ids), written(whole, 6)
        of_whole, in_ram = whole.stats()["tiers"], sum(whole.plan()["ram"].values())
    with opened(path, budget, ram_budget=0.97 * in_ram / (1 << 30)) as llm:
        assert np.array_equal(last_logits(llm, ids), want)
        assert written(llm, 6) == text
        plan, stats = llm.plan(), llm.stats()
        assert sum(plan["ram"].values()) <= plan["budget"] < in_ram
        assert sum(plan["gpu"].values()) <= plan["vram_budget"]
        assert "cache" in plan["ram"] and "ffn" not in plan["ram"] and plan["storage"]["ffn"] > 0
        tiers = stats["tiers"]
        assert tiers["gpu"]["layer_neurons"] == of_whole["gpu"]["layer_neurons"]
        others = [tiers[name]["layer_neurons"] for name in ("ram", "storage")]
        assert [sum(n) for n in zip(*others, strict=True)] == of_whole["ram"]["layer_neurons"]
        # Of so small a model the cache takes little.
        assert min(tiers[name]["neurons"] for name in ("gpu", "storage")) > 0
        assert min(tiers[name]["hits"] for name in ("gpu", "storage")) > 0
        assert of_whole["storage"]["neurons"] == of_whole["storage"]["hits"] == 0
        hits = [np.sum([t["layer_hits"] for t in of.values()], axis=0) for of in (tiers, of_whole)]
        assert np.allclose(*hits)
        assert stats["storage"]["reads"] > 0


def test_no_placement_serves_more_firings(model_path: Path) -> None:
    """The neurons with the highest rates, chosen when a model is opened, serve at least the firings
    that the solver of `powerinfer place` finds for the same bytes: nothing needs to be solved
    first, or cached."""
    rates = [np.sort(s.rates)[::-1].astype(float) for s in read_statistics(Gguf(model_path))]
    for budget in (2, PART, 3):
        with opened(model_path, budget) as llm:
            on_gpu = [llm._model.layer_on_device(i) for i in range(len(rates))]
        assert 0 < sum(on_gpu) < sum(map(len, rates))
        layers = [Layer(rate, np.ones(len(rate), np.int64)) for rate in rates]
        best = solve(layers, sum(on_gpu)).value
        served = sum(rate[:n].sum() for rate, n in zip(rates, on_gpu, strict=True))
        assert served >= 0.999 * best > 0


def test_where_the_neurons_of_the_device_come_from(model_path: Path, tmp_path: Path) -> None:
    """A placement, or the rates alone, or no neurons at all."""
    path = tmp_path / "m.gguf"
    path.symlink_to(model_path)
    n_ff = 1024
    placement(tmp_path / "m.gguf.generated.gpuidx", [list(range(n_ff)), [], [], []], n_ff)

    def on_gpu(**options: bool) -> list[int]:
        with opened(path, PART, **options) as llm:
            return [llm._model.layer_on_device(i) for i in range(4)]

    placed, fastest = on_gpu(), on_gpu(reset_gpu_index=True)
    with opened(model_path, PART) as llm:
        assert fastest == [llm._model.layer_on_device(i) for i in range(4)] != placed
    assert placed[0] > fastest[0] and sum(placed) == pytest.approx(sum(fastest), rel=0.01)
    assert on_gpu(disable_gpu_index=True) == [0] * 4
    with opened(path, PART, disable_gpu_index=True) as none, opened(path, PART) as some:
        ids = none.tokenize(PROMPT.encode())
        assert error(last_logits(none, ids), last_logits(some, ids)) <= 2e-2
        assert none.stats()["tiers"]["gpu"]["hits"] == 0


def test_plot_of_a_run(model_path: Path, tmp_path: Path) -> None:
    """Where the neurons were, from the statistics of ./main and of `Llama`."""
    file, n = tmp_path / "stats.json", 4
    options = ["-c", 64, "-ub", 8, "-t", 2, "-n", n, "--temp", 0, "--ignore-eos"]
    options += ["--device", "simt", "--vram-budget", PART * MIB, "--json-stats", file]
    line = [main_path(), "-m", model_path, "-p", PROMPT, *options]
    subprocess.run([*map(str, line)], check=True, capture_output=True)
    of_main = json.loads(file.read_text())["tiers"]
    with opened(model_path, PART) as llm:
        llm(PROMPT, max_tokens=n, temperature=0, logit_bias={llm.token_eos(): -1000})
        tiers, layers = llm.stats()["tiers"], range(4)
        assert tiers["gpu"]["layer_neurons"] == [llm._model.layer_on_device(i) for i in layers]
    for name, tier in tiers.items():
        assert of_main[name]["layer_neurons"] == tier["layer_neurons"]
        assert of_main[name]["layer_hits"] == pytest.approx(tier["layer_hits"])
        assert sum(tier["layer_neurons"]) == tier["neurons"]
        assert 0 <= sum(tier["layer_hits"]) - tier["hits"] < 1
    assert sum(tiers["gpu"]["layer_hits"]) > 0 < sum(tiers["ram"]["layer_hits"])
    shown = plot([file], "placement", tmp_path / "x.png")
    share = 100 * tiers["gpu"]["neurons"] / (tiers["gpu"]["neurons"] + tiers["ram"]["neurons"])
    assert shown.startswith(f"GPU: {share:.1f} % of the neurons, ") and "; RAM: " in shown


def test_a_sequence_goes_on(model_path: Path) -> None:
    """After a saved state, of a CPU too, and after a prefix that is there already."""
    with opened(model_path, PART) as device, opened(model_path) as cpu:
        ids = device.tokenize(PROMPT.encode())
        texts = [written(device, 4), written(device, 4)]
        assert texts == [written(cpu, 4)] * 2
        fresh = last_logits(device, ids, 1)
        device.reset()
        device.eval(ids[:-1])
        state = device.save_state()
        cpu.reset()
        cpu.eval(ids[:-1])
        for saved in (state, cpu.save_state()):
            device.reset()
            device.eval(ids[::-1][:3])
            device.load_state(saved)
            assert device.n_tokens == len(ids) - 1
            device.eval(ids[-1:], generated=True)
            got = device.scores[len(ids) - 1]
            assert error(got, fresh) <= (0 if saved is state else 2e-2)
        # generate keeps what is computed: only the last token is new.
        device.reset()
        device.eval(ids)
        next(device.generate(ids, temp=0))
        assert device.stats()["n_prompt"] == 1
        next(device.generate([*ids, ids[-1]], temp=0))
        assert device.stats()["n_prompt"] == 1
        again = device.scores[len(ids)].copy()
        device.reset()
        device.eval([*ids, ids[-1]])
        assert np.array_equal(device.scores[len(ids)], again)


@pytest.mark.parametrize("type_kv", [0, 8])
def test_layers_and_types_of_the_cache(model_path: Path, type_kv: int) -> None:
    types = {"type_k": type_kv, "type_v": type_kv}
    with opened(model_path, **types) as cpu:
        ids = cpu.tokenize(PROMPT.encode())
        want, kv = last_logits(cpu, ids), cpu.plan()["ram"]["kv"]
    for n in (1, 3):
        with opened(model_path, ALL, n_gpu_layers=n, **types) as device:
            plan = device.plan()
            assert plan["gpu"]["kv"] == pytest.approx(n * kv / 4, rel=0.05)
            assert "head" not in plan["gpu"]
            got = last_logits(device, ids)
            assert error(got, want) <= 2e-2 and got.argmax() == want.argmax()


def test_embeddings_leave_room_for_completions(model_path: Path) -> None:
    with opened(model_path, PART, embedding=True) as device, opened(model_path) as cpu:
        assert len(device.embed("One day")) == device.n_embd()
        assert written(device, 2) == written(cpu, 2)


def test_refusals(model_path: Path, capfd: pytest.CaptureFixture) -> None:
    with pytest.raises(OutOfMemoryError, match=r"1 of 4 layers .* would take \d.* MiB of VRAM"):
        opened(model_path, 0.1)
    with pytest.raises(OutOfMemoryError, match="VRAM"):
        opened(model_path, PART, n_ctx=100000)
    with pytest.raises(OutOfMemoryError, match="2 of 4 layers"):
        opened(model_path, LITTLE, n_gpu_layers=99)
    for name in ("tpu", "cuda0", "simtx"):
        with pytest.raises(DeviceError, match=f'there is no device "{name}"'):
            opened(model_path, device=name)
    for record in ("fired", "fired+input"):
        with pytest.raises(ValueError, match='record needs device="cpu"'):
            opened(model_path, PART, record=record, sparse="exact")
    with opened(model_path, 0, record="fired", sparse="exact") as llm:
        assert llm.plan()["gpu"] == {}
    opened(model_path, PART, vocab_only=True).close()
    assert capfd.readouterr().err == ""
    opened(model_path, PART, verbose=True).close()
    said = capfd.readouterr().err
    assert "\nVRAM: head 0.5, " in said and " MiB, of 2 that may be used\n" in said
    assert "without effect" not in said


def converted(name: str, folder: Path, layout: str = "matrices") -> Path:
    """A GGUF of a golden model, in F32, with its FFNs as matrices, neuron rows or bundles."""
    options: dict[str, Any] = {"outtype": "f32", "log": quiet}
    out = folder / f"{layout}.gguf"
    if layout != "rows":
        model = golden(name, folder / name)
        return convert(model, outfile=out, bundle=layout == "bundles", **options)
    return convert(converted(name, folder), outfile=out, **options)


GOLDEN_ON_DEVICE = [
    *[(name, "rows") for name in ("llama-relu-gqa", "llama-bias", "llama-llama3", "bamboo", "opt")],
    *[(name, "rows") for name in ("falcon-7b", "falcon-40b", "qwen2-yarn", "llama-silu-tied")],
    *[(name, "rows") for name in ("llama-linear", "qwen2-window", "gpt2")],
    *[(name, "rows") for name in ("phi3-short", "stablelm")],
    *[(name, "bundles") for name in ("llama-relu-gqa", "opt", "llama-silu-tied")],
    *[(name, "matrices") for name in ("opt", "falcon-7b", "falcon-40b")],
    *[(name, "matrices") for name in ("gemma2", "qwen3", "stablelm-parallel")],
]


@pytest.mark.parametrize(("name", "layout"), GOLDEN_ON_DEVICE)
def test_golden_models(name: str, layout: str, tmp_path: Path) -> None:
    """Logits of transformers at six budgets, from the least that is taken to everything."""
    path = converted(name, tmp_path, layout)
    stored = np.load(GOLDEN / name / "expected.npz")
    tokens, want = [int(t) for t in stored["tokens"][:16]], stored["logits"][:16]
    options = {"n_ctx": 128, "logits_all": True, "type_k": F32, "type_v": F32, "sparse": "exact"}

    def most(n_gpu_layers: int, **placed: bool) -> int:
        with opened(path, ALL, n_gpu_layers=n_gpu_layers, **placed, **options) as llm:
            return sum(llm.plan()["gpu"].values())

    # The last layer without neurons, nor memory for those of prompts; matrices are there in any
    # case.
    least, everything = most(1, disable_gpu_index=True, op_offload=False), most(-1)
    seen = []
    for budget in np.linspace(least, everything, 6):
        with opened(path, budget / (1 << 20), **options) as llm:
            llm.eval(tokens[:8])
            for token in tokens[8:]:
                llm.eval([token])
            got, on_gpu, plan = llm.scores[:16].copy(), llm._model.on_device()[0], llm.plan()
        assert error(got, want) <= ROUNDING
        assert max(error(a, b) for a, b in zip(got, want, strict=True)) <= ROUNDING
        seen.append((on_gpu, "attention" in plan["ram"], "head" in plan["gpu"]))
    # From one layer to everything; falcon-7b's head takes the room of two of the shares.
    assert seen[0][1:] == (True, False) and seen[-1][1:] == (False, True)
    shares = len({on_gpu for on_gpu, *_ in seen})
    assert shares == 2 if layout == "matrices" else shares >= 4


@pytest.mark.parametrize(
    ("name", "layout", "why"),
    [
        ("bitnet", "rows", "neuron rows whose values are normed keep to the CPU"),
        ("glm4", "matrices", 'there is no operator on the device for tensor "blk.1.attn_output'),
    ],
)
def test_what_keeps_to_the_cpu(
    name: str, layout: str, why: str, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    path = converted(name, tmp_path, layout)
    with opened(path, ALL, verbose=True) as llm:
        plan = llm.plan()
        assert plan["gpu"] == {} and plan["device_layers"] == 0 and not plan["device_head"]
        assert f"layer 1: {why}" in plan["why_layer"]
    said = [line for line in capfd.readouterr().err.splitlines() if "no layer is on simt" in line]
    assert len(said) == 1 and why in said[0]
    stored = np.load(GOLDEN / name / "expected.npz")
    got = logits(path, stored["tokens"], kv=F32, device="simt", vram_budget=ALL * MIB)
    assert error(got, stored["logits"]) <= ROUNDING


def planned(path: Path, *words: object) -> list[str]:
    """What ./main and `powerinfer serve` say of layers on the device."""
    options = ["-c", 64, "-ub", 8, "-t", 2, "--device", "simt", "--plan", *words]
    lines = []
    for program in ([main_path(), "-m"], [sys.executable, "-m", "powerinfer_cpp", "serve"]):
        line = [*map(str, [*program, path, *options])]
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        said = [text.strip() for text in done.stdout.splitlines()]
        lines.append(
            [text for text in said if re.search(r"layers .*on simt|the head is not", text)]
        )
    # A server's sessions take more.
    assert re.sub(r"\d+\.\d+", "", str(lines[0])) == re.sub(r"\d+\.\d+", "", str(lines[1]))
    return lines[0]


def test_plans_say_what_is_not_on_the_device(model_path: Path, tmp_path: Path) -> None:
    """The layer before those that are there and the head, and what keeps them away."""
    all_there = planned(model_path, "--vram-budget", ALL * MIB)
    assert all_there == ["4 of 4 layers and the head are on simt"]
    layer, head = planned(model_path, "--vram-budget", LITTLE * MIB)
    fits = r"layer \d does not fit \(\d\.\d\d MiB of VRAM with it, 1\.00 may be used\)"
    assert re.fullmatch(rf"\d of 4 layers are on simt: {fits}", layer)
    why = r"it does not fit \(it takes \d\.\d\d MiB of VRAM, \d\.\d\d are left\)"
    assert re.fullmatch(rf"the head is not on simt: {why}", head)
    assert planned(model_path, "-ngl", 2) == [
        "2 of 4 layers are on simt: n_gpu_layers is 2",
        "the head is not on simt: n_gpu_layers is 2",
    ]
    assert planned(model_path, "-ngl", 0) == []
    kept = converted("bitnet", tmp_path, "rows")
    why = "layer 1: neuron rows whose values are normed keep to the CPU"
    assert planned(kept) == [f"0 of 2 layers are on simt: {why}"]


def test_doctor_measures_a_device(capsys: pytest.CaptureFixture) -> None:
    report = device_report("simt", 1 << 22)
    assert (report.compute, report.cuda, report.driver_cuda) == ("7.5", "13.0", "13.0")
    assert report.free_bytes + report.context_bytes == report.total_bytes > 1 << 30
    for rate in (report.copy_per_s, report.in_per_s, report.out_per_s):
        assert 1e8 < rate < 1e12
    assert 1e-8 < report.flag_s < 0.1
    assert 1e-7 < report.launch_s < 1 and 1e-8 < report.node_s < 0.1
    with pytest.raises(OutOfMemoryError, match="for the copy test"):
        device_report("simt", 1 << 40)
    with pytest.raises(ValueError, match="at least 4096"):
        device_report("simt", 1)
    print_devices("simt", measured=True)
    shown = capsys.readouterr().out
    for word in ("driver", "memory", "copies inside", "PCIe", "flag and back", "graph"):
        assert f"\n  {word}" in shown
    print_devices(None, measured=True)
    assert capsys.readouterr().out == "GPU             none: built without CUDA\n"
    with pytest.raises(DeviceError, match='there is no device "cuda7"'):
        print_devices("cuda7", measured=True)
