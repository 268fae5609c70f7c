"""Mixtures of experts on the device "simt", which holds some of the experts: the bits of the CPU.

test_device.py runs these tests, because only a test build has this device.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving
from conftest import SHARED
from families import quiet
from on_simt import ALL, MIB, last_logits, opened, written
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.core.session import Session
from powerinfer_cpp.core.tiers import NAMES
from powerinfer_cpp.llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding
from powerinfer_cpp.plot import plot
from small_mixtures import Mixture

from powerinfer_cpp import OutOfMemoryError, main_path

EVERY_LAYER = 2**31 - 1  # n_cpu_moe
PROMPTS = ("Once upon a time", "b", "There was a little")

SMALL = Mixture(type="F32", down="F32", width=64, n_ff=64, n_layer=3, n_expert=16, n_used=3)
MADE = {
    "small": SMALL,
    "q8": replace(SMALL, type="Q8_0", down="Q8_0"),
    # The first layer has no experts, and those of the others differ in number and size.
    "uneven": replace(SMALL, uneven=True, experts="fused", type="Q4_0", down="Q8_0", seed=2),
    "many": replace(SMALL, n_expert=64, seed=4),
    # With biases of experts, sinks and an activation of its own.
    "gpt-oss": replace(SMALL, family="gpt-oss", type="Q8_0", down="Q8_0", seed=5),
    "single": replace(SMALL, family="llama", experts="single", seed=3),
    # With factors of products, for experts one each.
    "nvfp4": replace(SMALL, type="NVFP4", down="NVFP4", experts="fused", scaled=True, seed=6),
}
OF_OTHERS = (
    *(
        f"gguf2/{name}.gguf"
        for name in ("mixtral", "dots1", "glm4_moe", "gpt_oss", "gpt_oss_mxfp4")
    ),
    "hf2/qwen3_moe",
)
FILES = [
    *(name for name in MADE if name != "many"),
    *(pytest.param(name, marks=pytest.mark.shared) for name in OF_OTHERS),
]


@pytest.fixture
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The file of a mixture: made here, or what others wrote."""
    name = getattr(request, "param", "small")
    if name in MADE:
        return MADE[name].write(tmp_path / "m.gguf")
    found = SHARED / "fixtures" / name
    return found if found.is_file() else convert(found, outfile=tmp_path / "m.gguf", log=quiet)


def bytes_with(path: Path, **options: Any) -> int:
    """What a model takes of a device that has room for everything."""
    with opened(path, ALL, **options) as llm:
        return sum(llm.plan()["gpu"].values())


def budgets(path: Path, **options: Any) -> dict[str, float]:
    """In MiB: what a refusal says that it takes at least; room for half of the experts, with all
    that is no expert; and everything."""
    with pytest.raises(OutOfMemoryError) as refused:
        opened(path, 0.01, **options)
    least = float(re.search(r"would take (\d+\.\d+) MiB of VRAM", str(refused.value))[1])
    none, everything = (
        bytes_with(path, n_cpu_moe=EVERY_LAYER, **options),
        bytes_with(path, **options),
    )
    # The message rounds to a tenth.
    half = (none + everything) / 2 / (1 << 20)
    return {"least": least + 0.05, "half": half, "all": everything / (1 << 20)}


@pytest.mark.parametrize("path", FILES, indirect=True)
def test_texts_and_logits_are_those_of_the_cpu(path: Path) -> None:
    """Whatever the device has, and whatever was written before."""
    with opened(path) as cpu:
        ids = cpu.tokenize(PROMPTS[0].encode())
        want = last_logits(cpu, ids)
        texts = {prompt: written(cpu, 8, prompt) for prompt in PROMPTS}
    for name, budget in budgets(path).items():
        with opened(path, budget) as llm:
            plan, has = llm.plan(), llm._model.experts()
            assert sum(plan["gpu"].values()) <= plan["vram_budget"]
            assert has.device_has <= has.device_room == plan["device_experts"]
            if name != "least":
                assert "attention" not in plan["ram"] and "head" in plan["gpu"]
                assert (has.device_room == has.experts) == (name == "all")
                assert has.device_room > 0
            for prompt in (*PROMPTS, *PROMPTS[::-1]):
                got = last_logits(llm, ids)
                assert np.array_equal(got, want), (name, prompt)
                assert written(llm, 8, prompt) == texts[prompt], (name, prompt)


def test_several_texts_at_once(path: Path) -> None:
    """Rows of three texts in one pass, of prompts and then generated ones."""
    fields = {"n_ctx": 64, "n_batch": 8, "n_ubatch": 8, "n_threads": 2}
    ids = np.arange(3, 43, dtype=np.int32)
    at = np.arange(40, dtype=np.int32) % 3

    def logits(**device: Any) -> list[np.ndarray]:
        model = Model(str(path), session={"n_seq": 3, **fields}, **device)
        many, found = Session(model, n_seq=3, **fields), []
        for i in range(0, 40, 8):
            keep, generated = np.ones(8, bool), np.full(8, i >= 16)
            many.eval(ids[i : i + 8], keep, at[i : i + 8], generated)
            found += [many.logits(row).copy() for row in range(8)]
        many.close(), model.close()
        return found

    want = logits()
    for budget in budgets(path).values():
        got = logits(device="simt", vram_budget=int(budget * (1 << 20)))
        assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("n_cpu_moe", [0, 1, EVERY_LAYER])
@pytest.mark.parametrize("op_offload", [True, False])
def test_long_prompts(path: Path, op_offload: bool, n_cpu_moe: int) -> None:
    """Whether the experts of RAM come to the device for them or not."""
    ids = [3 + i * i % 200 for i in range(48)]
    options = {"n_ubatch": 32, "logits_all": True}
    with opened(path, **options) as cpu:
        cpu.eval(ids)
        want = cpu.scores[:48].copy()
    for budget in budgets(path, **options).values():
        placed = {"op_offload": op_offload, "n_cpu_moe": n_cpu_moe}
        with opened(path, budget, **placed, **options) as llm:
            llm.eval(ids)
            assert np.array_equal(llm.scores[:48], want)


@pytest.mark.parametrize("draft", ["lookup", "model"])
def test_drafts(path: Path, draft: str) -> None:
    prompt = PROMPTS[0] * 2  # so that there is something to look up
    guesses: LlamaDraftModel | str = LlamaPromptLookupDecoding() if draft == "lookup" else str(path)
    with opened(path) as cpu, opened(path, budgets(path)["half"], draft_model=guesses) as llm:
        assert written(llm, 12, prompt) == written(cpu, 12, prompt)
        assert written(llm, 12, "b") == written(cpu, 12, "b")


def test_a_state_goes_on_elsewhere(path: Path) -> None:
    """What the CPU has computed is continued on the device, and back."""
    with opened(path) as cpu, opened(path, budgets(path)["half"]) as device:
        ids = cpu.tokenize(PROMPTS[0].encode())
        want = last_logits(cpu, ids, 1)
        for first, second in ((cpu, device), (device, cpu)):
            first.reset()
            first.eval(ids[:-1])
            second.load_state(first.save_state())
            second.eval(ids[-1:], generated=True)
            assert np.array_equal(second.scores[len(ids) - 1], want)


def test_experts_of_the_first_layers_stay_with_the_cpu(path: Path) -> None:
    """As many as n_cpu_moe says, and the text is the same."""
    with opened(path) as cpu:
        text = written(cpu, 8)
    for n in (1, 2, 3, EVERY_LAYER):
        with opened(path, ALL, n_cpu_moe=n) as llm:
            plan = llm.plan()
            assert "attention" not in plan["ram"] and plan["experts"] == 48
            there = [16 * (layer >= n) for layer in range(3)]
            assert plan["device_experts"] == sum(there)
            assert written(llm, 8) == text
            tiers = [llm._model.tiers(layer) for layer in range(3)]
            assert [int((t == 2).all(axis=1).sum()) for t in tiers] == there
            stats = llm.stats()
            assert stats["tiers"]["gpu"]["experts"] == sum(there)
            chosen = stats["experts"]["chosen"]
            assert (chosen["gpu"] > 0) == (sum(there) > 0) and chosen["ram"] > 0
    with pytest.raises(ValueError, match="n_cpu_moe must be a number of layers, not -1"):
        opened(path, ALL, n_cpu_moe=-1)


def command(path: Path, *words: object) -> subprocess.CompletedProcess:
    """./main on the device with room for everything."""
    line = [main_path(), "-m", path, "-p", "b", "-n", 8, "--temp", 0, "-c", 64, "-t", 2, "-ub", 8]
    line += ["--device", "simt", "--ignore-eos", *words]
    return subprocess.run([*map(str, line)], capture_output=True, text=True, errors="replace")


@pytest.mark.parametrize(
    ("pattern", "said", "has"),
    [
        ("exps=CPU", "as --cpu-moe: the experts of all layers stay with the CPU", 0),
        (r"\.ffn_.*_exps\.=CPU", "as --cpu-moe: the experts of all layers", 0),
        (r"blk\.[01]\.ffn_.*_exps.*=CPU", "as --n-cpu-moe 2: the experts of the first 2", 16),
        (r"blk\.0\..*_exps=CPU,blk\.1\..*exps=CPU", "as --n-cpu-moe 2: ", 16),
        (r"blk\.9\..*_exps=CPU", "no experts of this model have such a name", 48),
        (r"blk\.1\..*_exps=CPU", "the experts of layer 1, but not those of layer 0", None),
        ("ffn_up_exps=CPU", "only some matrices of the experts of layer 0", None),
        ("ffn=CPU", "moves blk.0.ffn_norm.weight, which is no expert", None),
        ("exps=CUDA0", "only experts can be left to the CPU", None),
        ("exps", "a pattern and what it is for", None),
        ("(=CPU", "a regular expression", None),
    ],
)
def test_patterns_of_tensors(path: Path, pattern: str, said: str, has: int | None) -> None:
    """What ./main and `powerinfer` make of -ot."""
    done = command(path, "-ot", pattern, "--plan")
    assert said in done.stderr, done.stderr
    line = [sys.executable, "-m", "powerinfer_cpp", "serve", "--plan", "-c", "64", "-ub", "8"]
    line += ["--device", "simt", "-ot", pattern, str(path)]
    served = subprocess.run(line, capture_output=True, text=True)
    if has is None:
        assert done.returncode == 2 and served.returncode != 0 and not served.stdout
        assert f"-ot {pattern}" in served.stderr
        return
    assert done.returncode == served.returncode == 0, served.stderr
    room = f"{has} of 48 experts have room on simt"
    room += "" if has == 48 else "; the others are computed by the CPU"
    assert f"{room}\n" in done.stdout and f"  {room}\n" in served.stdout


def test_the_options_of_main_and_of_the_package(path: Path) -> None:
    """Figures of a run: the last lines of ./main, its statistics, and those of `Llama`."""
    file, budget = path.with_name("run.json"), budgets(path)["half"]
    with opened(path, budget) as llm:
        llm("b", max_tokens=8, temperature=0, logit_bias={llm.token_eos(): -1000})
        stats, plan = llm.stats(), llm.plan()
    done = command(path, "--vram-budget", budget * MIB, "--json-stats", file)
    assert done.returncode == 0, done.stderr
    of_main = json.loads(file.read_text())
    figures = of_main["experts"]
    assert set(figures) == set(stats["experts"]) and figures["experts"] == 48
    assert figures["gpu_room"] == stats["experts"]["gpu_room"] == plan["device_experts"] > 0
    assert 0 < figures["gpu_has"] <= figures["gpu_room"] < 48
    for found in (of_main, stats):
        chosen, tiers = found["experts"]["chosen"], found["tiers"]
        assert sum(chosen.values()) == 7 * 3 * 3 and chosen["storage"] == 0
        assert min(chosen["gpu"], chosen["ram"]) > 0
        assert (found["experts"]["copies"] == 0) == (found["experts"]["copied_bytes"] == 0)
        assert [tiers[name]["experts"] for name in ("gpu", "ram", "storage")] == [
            found["experts"]["gpu_has"],
            48 - found["experts"]["gpu_has"],
            0,
        ]
        assert tiers["gpu"]["neurons"] == 64 * tiers["gpu"]["experts"]
        assert tiers["gpu"]["bytes"] == plan["gpu"].get("ffn", 0) + plan["gpu"]["experts"]
        assert tiers["gpu"]["hits"] == pytest.approx(chosen["gpu"] * 64 / 7, abs=1)
    said = re.search(
        r"  chosen experts = gpu (\S+) %, ram (\S+) %, storage 0.00 %; the GPU has (\d+) of 48 and "
        r"room for (\d+), (\d+) were copied there \(\d+\.\d\d MB\)\n",
        done.stderr,
    )
    assert said, done.stderr
    assert float(said[1]) == pytest.approx(100 * figures["chosen"]["gpu"] / 63, abs=0.01)
    assert [int(n) for n in said.groups()[2:]] == [
        figures[name] for name in ("gpu_has", "gpu_room", "copies")
    ]
    share = 100 * figures["gpu_has"] / 48
    assert f"tiers = gpu {share:.2f} %" in done.stderr
    assert plot([file], "placement", path.with_name("x.png")).startswith(
        f"GPU: {share:.1f} % of the experts, "
    )


@pytest.mark.parametrize("path", ["many"], indirect=True)
def test_from_storage(path: Path) -> None:
    """Experts on the device, in RAM and on the disk: the text of the CPU, and each counts once."""
    with opened(path) as cpu:
        want = {prompt: written(cpu, 24, prompt) for prompt in PROMPTS}
    budget = budgets(path)["half"]
    few = {"n_batch": 8}
    with pytest.raises(OutOfMemoryError) as refused:
        opened(path, budget, ram_budget=1e-6, **few)
    least = int(re.search(r"on the disk it needs at least (\d+) bytes", str(refused.value))[1])
    with opened(path, budget, ram_budget=1.3 * least / (1 << 30), **few) as llm:
        plan = llm.plan()
        assert plan["storage"]["ffn"] > 0 and 0 < plan["device_experts"] < plan["experts"] == 192
        for _ in range(2):
            assert {prompt: written(llm, 24, prompt) for prompt in PROMPTS} == want
        stats, tiers = llm.stats(), [llm._model.tiers(i)[:, 0] for i in range(3)]
        counts = np.bincount(np.concatenate(tiers), minlength=3).tolist()
        assert [stats["tiers"][name]["experts"] for name in NAMES] == counts and sum(counts) == 192
        # Nothing was there when the model was opened.
        figures = stats["experts"]
        assert 0 < figures["gpu_has"] == counts[2] <= figures["copies"]
        assert figures["copied_bytes"] == figures["copies"] * 3 * 64 * 64 * 4
        assert min(figures["chosen"].values()) > 0 and sum(figures["chosen"].values()) == 23 * 9


def metrics_of_experts(running: serving.Running) -> dict[str, float]:
    """By name, or name and tier as in "chosen_total,gpu"."""
    line = r'(?m)^powerinfer:experts_(\w+)\{model="model"(?:,tier="(\w+)")?\} (\S+)$'
    found = re.findall(line, running.get("metrics").text)
    return {f"{name},{tier}".rstrip(","): float(value) for name, tier, value in found}


def test_the_server_tells_where_experts_are(path: Path) -> None:
    """Two texts at the same time, then metrics, properties and the page's map."""
    with opened(path) as cpu:
        want = [written(cpu, 8, prompt) for prompt in PROMPTS[:2]]
    budget = budgets(path)["half"]
    options = {"n_ctx": 64, "n_ubatch": 8, "n_threads": 2, "n_parallel": 2, "n_kv": 128}
    with serving.in_thread(
        path, device="simt", vram_budget=1.2 * budget * MIB, **options
    ) as running:

        def ask(prompt: str) -> str:
            body = {"prompt": prompt, "max_tokens": 8, "temperature": 0}
            return running.post("v1/completions", body).json()["choices"][0]["text"]

        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(ask, PROMPTS[:2])) == want
        room = running.get("props").json()["plan"]["device_experts"]
        assert 0 < room < 48
        found = metrics_of_experts(running)
        chosen = {tier: found[f"chosen_total,{tier}"] for tier in NAMES}
        assert chosen["gpu"] > 0 < chosen["ram"] and chosen["storage"] == 0
        assert found["gpu_room"] == room and 0 < found["gpu"] <= room
        assert "copied_total" in found
        view = running.get("view").json()
        tiers = np.frombuffer(base64.b64decode(view["tiers"]), np.uint8)
        assert view["unit"] == "experts" and view["layer_units"] == [16] * 3
        assert (tiers == 2).sum() == found["gpu"]


def test_sixteen_clients(path: Path) -> None:
    """A quarter has a grammar, and four more leave before their answer: the texts of the CPU."""
    asked = [
        {"prompt": f"Once upon a time {chr(97 + i)}", "max_tokens": 12, "temperature": 0}
        | ({"grammar": "root ::= [a-z ]+"} if i % 4 == 3 else {})
        for i in range(16)
    ]
    left = {"prompt": "There was", "max_tokens": 40, "stream": True}
    options = {"n_ctx": 64, "n_ubatch": 16, "n_threads": 2, "n_parallel": 20, "n_kv": 1280}

    def texts(**device: Any) -> tuple[list[str], dict[str, float]]:
        with serving.in_thread(path, **options, **device) as running:

            def ask(body: dict[str, Any]) -> str:
                return running.post("v1/completions", body).json()["choices"][0]["text"]

            leaving = [running.ask("v1/completions", left) for _ in range(4)]
            with ThreadPoolExecutor(16) as pool:
                answers = [pool.submit(ask, body) for body in asked]
                for connection in leaving:
                    connection.recv(1)
                    connection.close()
                said = [answer.result() for answer in answers]
            serving.wait_for(lambda: running.idle)
            return said, metrics_of_experts(running)

    want, _ = texts()
    budget = 1.2 * budgets(path)["half"] * MIB
    got, found = texts(device="simt", vram_budget=budget)
    assert got == want
    assert found["chosen_total,gpu"] > 0 < found["chosen_total,ram"] and found["copied_total"] > 0
